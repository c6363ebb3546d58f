"""The history of a graph.

The authority for a commit is the manifest version its publish made. The two commit tables repeat that, so
that a query of history need not open every manifest version. They are written in batches and completed from
the manifest whenever something is missing, under one invariant: **when a commit is in the table, so is its
first parent, and so on back to the first commit.** A walk from a branch's head therefore stops at the first
commit the table has.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.errors import (
    BadRequest,
    BranchNotFound,
    CommitNotFound,
    OmnigraphError,
    SnapshotNotFound,
    StoragePermanent,
    StorageTransient,
)
from omnigraph.core.events import Warned, emit
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import Branch, BranchName, CommitId, OperationId
from omnigraph.core.limits import COMMIT_PROJECTION_BATCH, COMMITS_BEHIND_MAX
from omnigraph.manifest.commit_record import CommitRecord, record_from_json, record_to_json
from omnigraph.manifest.dataset import ControlDataset
from omnigraph.manifest.lineage import Lineage
from omnigraph.manifest.projection import KEY, Projection
from omnigraph.manifest.state import Snapshot
from omnigraph.planning.filters import filter_text, has_text
from omnigraph.storage.durability import DurabilityMode
from omnigraph.storage.layout import COMMIT_ACTORS, COMMITS, GraphRoot
from omnigraph.storage.objects import StorageAdapter

__all__ = ["CommitLog", "CommitRecord"]

Records = list[CommitRecord]
_ULID: Final = re.compile("[0-9A-HJKMNP-TV-Z]{26}")
_TIME: Final = pa.timestamp("us", tz="UTC")
_COMMITS_SCHEMA: Final = pa.schema(
    [
        pa.field(KEY, pa.string(), nullable=False),
        pa.field("manifest_branch", pa.string()),
        pa.field("manifest_incarnation", pa.string(), nullable=False),
        pa.field("manifest_version", pa.uint64(), nullable=False),
        pa.field("parent_commit_id", pa.string()),
        pa.field("merged_parent_commit_id", pa.string()),
        pa.field("created_at", _TIME, nullable=False),
        pa.field("recovers", pa.string()),
        pa.field("metadata", pa.string(), nullable=False),
    ]
)
_ACTORS_SCHEMA: Final = pa.schema(
    [
        pa.field(KEY, pa.string(), nullable=False),
        pa.field("actor_id", pa.string(), nullable=False),
        pa.field("created_at", _TIME, nullable=False),
    ]
)
NONE_FOUND: Final[Mapping[CommitId, CommitRecord]] = {}
_PARENTS: Final = ("parent_commit_id", "merged_parent_commit_id")
LINEAGE_COLUMNS: Final = [
    KEY,
    *_PARENTS,
    "manifest_branch",
    "manifest_version",
]


_SHOWN: Final = ["manifest_incarnation", "manifest_version"]


def _newest_versions(rows: pa.Table) -> Mapping[str, int]:
    """The newest manifest version that rows of the commit table have of each branch incarnation."""
    grouped = rows.group_by("manifest_incarnation").aggregate([("manifest_version", "max")])
    names, versions = grouped["manifest_incarnation"], grouped["manifest_version_max"]
    return dict(zip(names.to_pylist(), versions.to_pylist(), strict=True))


class PublishedStates(Protocol):
    """What the history needs from the manifest."""

    def current(self, branch: Branch) -> Snapshot:
        """What a branch shows."""
        ...

    def at_version(self, branch: Branch, manifest_version: int) -> Snapshot:
        """What a branch showed."""
        ...

    def branches(self) -> list[BranchName]:
        """The branches beside main."""
        ...

    def readable(self, branches: Sequence[Branch] | None = None) -> dict[Branch, Snapshot]:
        """What these branches show, or all of them; those that cannot be read are left out."""
        ...

    def published_since(self, branch: Branch, newest: Mapping[str, int]) -> bool:
        """Whether a branch may have commits after the newest version known of its incarnation."""
        ...


class CommitLog:
    """Queries of the history, and the upkeep of the commit tables. Thread-safe."""

    def __init__(
        self,
        states: PublishedStates,
        root: GraphRoot,
        adapter: StorageAdapter,
        durability: DurabilityMode,
        *,
        read_only: bool = False,
    ) -> None:
        self._states = states
        self._read_only = read_only
        self._commits = Projection(ControlDataset(root, COMMITS, adapter, durability), _COMMITS_SCHEMA)
        self._actors = Projection(ControlDataset(root, COMMIT_ACTORS, adapter, durability), _ACTORS_SCHEMA)
        self._pending: dict[CommitId, CommitRecord] = {}
        self._lock = threading.Lock()
        self._lineage = Lineage()
        self._lineage_ids: pa.ChunkedArray | None = None
        """The keys of the table when all of them were in the lineage."""

    # ---- upkeep

    def remember(self, record: CommitRecord) -> None:
        """Queue a commit that was just published; a full queue is written out.

        Never fails the write that published: what could not be written is found in the manifest later.
        """
        with self._lock:
            self._pending[record.id] = record
            if len(self._pending) < COMMIT_PROJECTION_BATCH:
                return
        self.flush_or_warn()

    def flush(self) -> None:
        """Write the queued commits, and whatever lies between them and the table, to the commit tables."""
        with self._lock:
            batch, self._pending = self._pending, {}
        # When this fails the batch is simply dropped: the manifest still has it.
        self._write(self._missing(batch.values(), batch))

    def flush_or_warn(self) -> None:
        """As `flush`; a failure is reported and made up for later, because the commits themselves stand."""
        try:
            self.flush()
        except OmnigraphError as error:
            emit(
                Warned("the commit tables could not be extended; they will be completed later", error.message)
            )

    def complete(self, branches: Sequence[Branch] | None = None) -> None:
        """Write every commit of these branches, or of all, that the commit tables lack.

        A branch that was named must be complete afterwards. Among all of them, a damaged one is reported as a
        warning and does not stop the others. Cost when none is lacking: a few probes per branch.
        """
        named = (None, *self._states.branches()) if branches is None else branches
        behind = self._behind(named)
        with self._lock:
            batch, self._pending = self._pending, {}
        if branches is None:
            missing, _ = self._missing_of(behind, batch)
        else:
            missing = self._missing([*map(self.head, behind), *batch.values()], batch)
        self._write(missing)

    def complete_before_deletion(self, branch: BranchName) -> None:
        """Write the commits of a branch that is about to be deleted; of a damaged one, those that can still
        be read.
        """
        self._commits.read(_SHOWN)  # what fails here is not the branch's fault, and nothing may be lost to it
        with self._lock:
            queued = dict(self._pending)
        missing, all_known = self._missing_of([branch], queued)
        if not all_known:
            emit(Warned(f"the newest commits of the damaged branch '{branch}' go with it"))
        self._write(missing)

    def _is_behind(self, branch: Branch, newest: Mapping[str, int]) -> bool:
        try:
            return self._states.published_since(branch, newest)
        except StoragePermanent:
            return True  # who reads it will say why it cannot be told

    def _behind(self, branches: Iterable[Branch]) -> list[Branch]:
        """The branches that may have commits which the table lacks.

        Commits are added in the order of their branch, so the rows that were added last tell it of the
        branches among them. Only where they leave it open all rows are read.
        """
        lately = _newest_versions(self._commits.read_newest(_SHOWN))
        open_ones = [branch for branch in branches if self._is_behind(branch, lately)]
        if not open_ones:
            return []
        newest = _newest_versions(self._commits.read(_SHOWN))
        return [branch for branch in open_ones if self._is_behind(branch, newest)]

    def close(self) -> None:
        """Write what is queued."""
        if self._pending:
            self.flush()

    def _missing(
        self,
        starts: Iterable[CommitRecord],
        queued: Mapping[CommitId, CommitRecord],
        besides: Mapping[CommitId, CommitRecord] = NONE_FOUND,
    ) -> dict[CommitId, CommitRecord]:
        """The commits that the table and `besides` lack on the first-parent paths back from `starts`."""
        found: dict[CommitId, CommitRecord] = {}
        begun = list(starts)
        if not begun:
            return found  # as at most opens: the ids of a long history need not be read
        ids = self._commits.ids()
        for start in begun:
            record: CommitRecord | None = start
            while record is not None and not (
                record.id in found or record.id in besides or _contains(ids, record.id)
            ):
                found[record.id] = record
                record = None if record.parent is None else queued.get(record.parent) or self._parent(record)
        return found

    def _missing_of(
        self, branches: Sequence[Branch], queued: Mapping[CommitId, CommitRecord]
    ) -> tuple[dict[CommitId, CommitRecord], bool]:
        """The commits of these branches and of the queue that the table lacks, and whether these are all.

        A branch whose head or history is damaged is reported as a warning and left out; main never is.
        """
        heads = self._states.readable(branches)
        found = self._missing(queued.values(), queued)
        all_known = len(heads) == len(branches)
        for branch, shown in heads.items():
            try:
                found |= self._missing([shown.commit], queued, besides=found)
            except StorageTransient:
                raise
            except OmnigraphError as error:
                if branch is None:
                    raise
                all_known = False
                emit(Warned(f"the history of branch '{branch}' cannot be read", error.message))
        return found, all_known

    def _parent(self, record: CommitRecord) -> CommitRecord | None:
        """As `_stored_parent`, for a walk that must not end here."""
        parent = self._stored_parent(record)
        if parent is None:
            # Versions and branches are removed only after their commits are in the table, so a walk does not
            # come here unless somebody removed them by hand. Any other failure to read stops the walk as an
            # error: the table must not get a commit without the commits before it.
            emit(Warned(f"history before commit {record.id} is gone", f"commit {record.parent} is missing"))
        return parent

    def _stored_parent(self, record: CommitRecord) -> CommitRecord | None:
        """The first parent, read from the manifest version the commit was made on; None when that is gone."""
        try:
            parent = self._states.at_version(record.home, record.manifest_version - 1).commit
        except (BranchNotFound, SnapshotNotFound):
            return None
        return parent if parent.id == record.parent else None

    def _write(self, records: dict[CommitId, CommitRecord]) -> None:
        if not records:
            return
        # Parents first, so that even a torn batch would respect the order; actors before commits, so that a
        # commit in the table always has its actor.
        ordered = sorted(records.values(), key=lambda record: (record.manifest_version, record.id))
        with_actor = [record for record in ordered if record.actor is not None]
        if with_actor:
            self._actors.add(_actor_rows(with_actor))
        failpoint(Window.COMMIT_PROJECTION_BEFORE_APPEND)
        self._commits.add(_commit_rows(ordered))
        self._lineage.add_records(ordered)

    def take_over(self, records: Iterable[CommitRecord]) -> None:
        """Add commits of a graph that this one is a copy of: with each of them everything it grew out of."""
        self._write({record.id: record for record in records})

    # ---- queries

    def behind(self, heads: Iterable[CommitId]) -> Records:
        """These commits and everything they grew out of, over both parents, in no particular order."""
        table = self._known_rows([KEY, *_PARENTS, "manifest_branch", "manifest_version", "metadata"])
        lineage = Lineage()
        lineage.add_rows(table)
        wanted = {each for head in heads for each in lineage.distances(head)}
        stored = zip(table[KEY].to_pylist(), table["metadata"].to_pylist(), strict=True)
        return [record_from_json(text, row=key) for key, text in stored if key in wanted]

    def times(self) -> dict[str, dict[int, int]]:
        """When each known state was published (microseconds), by incarnation of its branch and by number."""
        columns = ["manifest_incarnation", "manifest_version", "created_at"]
        table = self._known_rows([KEY, *columns], kept_back_max=sys.maxsize)
        found: dict[str, dict[int, int]] = {}
        times = table["created_at"].cast(pa.int64())
        for incarnation, version, time_us in zip(
            table[columns[0]].to_pylist(), table[columns[1]].to_pylist(), times.to_pylist(), strict=True
        ):
            found.setdefault(incarnation, {})[version] = time_us
        return found

    def head(self, branch: Branch) -> CommitRecord:
        """The newest commit of a branch."""
        return self._states.current(branch).commit

    def show(self, commit_id: CommitId) -> CommitRecord:
        """One commit, wherever it was made. Raises CommitNotFound."""
        with self._lock:
            queued = self._pending.get(commit_id)
        if queued is not None:
            return queued
        if not _ULID.fullmatch(commit_id):
            raise CommitNotFound(commit_id)
        stored = self._commits.read([KEY, "metadata"], filter_text(has_text(KEY, [commit_id])))
        if stored.num_rows == 0:
            everything = self._known_rows([KEY, "metadata"])
            stored = everything.filter(pc.equal(everything[KEY], commit_id))
        if stored.num_rows == 0:
            raise CommitNotFound(commit_id)
        return record_from_json(stored["metadata"][0].as_py(), row=commit_id)

    def shows_rows_of(self, record: CommitRecord, commit_id: CommitId) -> bool:
        """Whether a commit shows exactly the rows of an earlier one: itself, or nothing but upkeep between.

        History that is gone proves nothing. Cost: none for the commit itself and its parent; one lookup for
        each further step.
        """
        while record.id != commit_id:
            if not record.is_upkeep or record.parent is None:
                return False
            if record.parent == commit_id:
                return True
            try:
                record = self.show(record.parent)
            except CommitNotFound:
                return False
        return True

    def newest_of_rows(self, record: CommitRecord) -> CommitRecord:
        """The commit itself, or the newest one before it that changed rows."""
        while record.is_upkeep and record.parent is not None:
            record = self.show(record.parent)
        return record

    def list(
        self,
        branch: Branch = None,
        *,
        actor: str | None = None,
        limit: int | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        before: CommitId | None = None,
        merged: bool = False,
        upkeep: bool = True,
    ) -> Records:
        """The history of a branch, newest first: inherited and own commits.

        `merged` adds those of branches that were merged into it; every commit comes before its parents.
        `upkeep=False` leaves out the commits that changed no row.
        `since_us` and `until_us` bound the time (both included); `before` starts after that commit.
        """
        if limit is not None and limit < 0:
            raise BadRequest(f"a number of commits is not negative: {limit}")
        chosen: Records = []
        reached = before is None
        for record in self._history(branch, merged=merged):
            if limit is not None and len(chosen) >= limit:
                break
            shown = upkeep or not record.is_upkeep
            if reached and shown and _matches(record, actor, since_us, until_us):
                chosen.append(record)
            reached = reached or record.id == before
        if before is not None and not reached:
            raise CommitNotFound(before)
        return chosen

    def recovering(self, operation_id: OperationId) -> CommitRecord | None:
        """The commit that settled an interrupted operation, if there is one."""
        rows = self._known_rows([KEY, "recovers", "metadata"])
        found = rows.filter(pc.equal(rows["recovers"], operation_id))
        if found.num_rows == 0:
            return None
        return record_from_json(found["metadata"][0].as_py(), row=found[KEY][0].as_py())

    def damaged(self) -> Iterator[str]:
        """The commit tables that cannot be read as they were made."""
        tables = {COMMITS: self._commits, COMMIT_ACTORS: self._actors}
        return (location for location, table in tables.items() if not table.is_whole())

    def lineage(self) -> pa.Table:
        """Ids, both parents, branch and manifest version of every commit (columns `LINEAGE_COLUMNS`).

        Commits that the tables lack are not written now unless they are many, because the caller is about to
        write.
        """
        return self._known_rows(LINEAGE_COLUMNS, kept_back_max=COMMIT_PROJECTION_BATCH)

    def ancestry(self) -> Lineage:
        """Parents and manifest version of every commit there is; it is kept and only ever grows.

        Cost when this process made the newest commits: a few probes per branch, whatever the history.
        """
        with self._lock:
            queued = dict(self._pending)
        missing, all_known = self._missing_of((None, *self._states.branches()), queued)
        ids = self._commits.ids()
        if ids is not self._lineage_ids:
            known = self._lineage.parents
            if any(each not in known for each in ids.to_pylist()):
                self._lineage.add_rows(self._commits.read(LINEAGE_COLUMNS))
            self._lineage_ids = ids
        self._lineage.add_records(missing.values())
        if not all_known and (lost := self._lineage.unknown_parents()):
            # If a line ended here that really goes on, an older commit would be taken for the common
            # ancestor.
            raise StoragePermanent(
                f"not all of the history is known: commit {min(lost)} was made on a branch that is damaged",
                hint="run `omnigraph verify`; restore the branch from a backup, or delete it",
            )
        return self._lineage

    def after(self, known: CommitId, head: CommitRecord) -> Records | None:
        """`head` and those before it by first parents, newest first, that came after a commit.

        None when that commit is not among the last `COMMIT_PROJECTION_BATCH`. Cost: nothing for commits that
        this process published lately, one manifest version for each of another one, whatever the history.
        """
        with self._lock:
            queued = dict(self._pending)
        found: Records = []
        current: CommitRecord | None = head
        while current is not None and current.id != known:
            if current.parent is None or len(found) >= COMMIT_PROJECTION_BATCH:
                return None
            found.append(current)
            if current.parent == known:
                return found
            current = queued.get(current.parent) or self._stored_parent(current)
        return None if current is None else found

    def since(self, head: CommitRecord, since_us: int) -> Records:
        """A commit and those before it by first parents, newest first, back to the oldest one of a time.

        Between these there may be some with an earlier time, of writers whose clocks were behind.
        """
        found: Records = []
        behind: Records = []
        for record in self._history_of(head, merged=False, kept_back_max=COMMIT_PROJECTION_BATCH):
            behind.append(record)
            if record.time_us >= since_us:
                found += behind
                behind = []
            elif len(behind) >= COMMITS_BEHIND_MAX:
                break
        return found

    def _history(self, branch: Branch, *, merged: bool) -> Iterator[CommitRecord]:
        return self._history_of(self.head(branch), merged=merged)

    def _history_of(
        self, head: CommitRecord, *, merged: bool, kept_back_max: int = 0
    ) -> Iterator[CommitRecord]:
        links = _PARENTS if merged else _PARENTS[:1]
        columns = [KEY, *links, "metadata"]
        table = self._known_rows(columns, None if merged else [head], kept_back_max=kept_back_max)
        position = {key: number for number, key in enumerate(table[KEY].to_pylist())}
        parents = [table[name] for name in links]
        metadata = table["metadata"]

        def parents_of(commit_id: str) -> list[str]:
            found = [link[position[commit_id]].as_py() for link in parents]
            return [parent for parent in found if parent in position]

        walk = _children_first if merged else _first_parents
        for current in walk(head.id, parents_of) if head.id in position else ():
            yield record_from_json(metadata[position[current]].as_py(), row=current)

    def _known_rows(
        self, columns: Sequence[str], heads: Sequence[CommitRecord] | None = None, *, kept_back_max: int = 0
    ) -> pa.Table:
        """Rows of all commits: those of the table and those it lacks.

        A writer adds the lacking ones now if they are more than `kept_back_max`.
        """
        with self._lock:
            queued = dict(self._pending)
        if heads is None:
            missing, _ = self._missing_of((None, *self._states.branches()), queued)
        else:
            missing = self._missing([*heads, *queued.values()], queued)
        if len(missing) > kept_back_max and not self._read_only:
            try:
                self._write(missing)
            except OmnigraphError as error:
                emit(
                    Warned(
                        "the commit tables could not be extended; they will be completed later", error.message
                    )
                )
        stored = self._commits.read([*columns])
        extra = _commit_rows(missing.values()).select([*columns])
        lacking = extra.filter(pc.invert(pc.is_in(extra[KEY], value_set=stored[KEY].combine_chunks())))
        return pa.concat_tables([stored.cast(extra.schema), lacking])


def _matches(record: CommitRecord, actor: str | None, since_us: int | None, until_us: int | None) -> bool:
    return (
        (actor is None or record.actor == actor)
        and (since_us is None or record.time_us >= since_us)
        and (until_us is None or record.time_us <= until_us)
    )


def _first_parents(head: str, parents_of: Callable[[str], list[str]]) -> Iterator[str]:
    found = [head]
    while found:
        yield found[0]
        found = parents_of(found[0])


def _children_first(head: str, parents_of: Callable[[str], list[str]]) -> Iterator[str]:
    """A commit and its ancestors, every one before its parents, otherwise the greatest id first."""
    children: dict[str, int] = {head: 0}
    waiting = [head]
    while waiting:
        for parent in parents_of(waiting.pop()):
            if parent not in children:
                waiting.append(parent)
            children[parent] = children.get(parent, 0) + 1
    ready = {head}
    while ready:
        current = max(ready)
        ready.discard(current)
        yield current
        for parent in parents_of(current):
            children[parent] -= 1
            if children[parent] == 0:
                ready.add(parent)


def _contains(ids: pa.ChunkedArray, commit_id: CommitId) -> bool:
    return pc.index(ids, commit_id).as_py() >= 0


def _commit_rows(records: Iterable[CommitRecord]) -> pa.Table:
    rows = [
        {
            KEY: record.id,
            "manifest_branch": record.home,
            "manifest_incarnation": record.incarnation,
            "manifest_version": record.manifest_version,
            "parent_commit_id": record.parent,
            "merged_parent_commit_id": record.merged_parent,
            "created_at": record.time_us,
            "recovers": record.recovers,
            "metadata": record_to_json(record),
        }
        for record in records
    ]
    return pa.Table.from_pylist(rows, schema=_COMMITS_SCHEMA)


def _actor_rows(records: Iterable[CommitRecord]) -> pa.Table:
    rows = [{KEY: r.id, "actor_id": r.actor, "created_at": r.time_us} for r in records]
    return pa.Table.from_pylist(rows, schema=_ACTORS_SCHEMA)
