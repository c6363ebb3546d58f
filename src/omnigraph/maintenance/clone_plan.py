"""What a clone consists of: one moment of the source, and every file that belongs to it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, TypeVar

from omnigraph.core.errors import (
    BadRequest,
    BranchNotFound,
    OmnigraphError,
    ResourceBusy,
    SnapshotNotFound,
    StorageNotFound,
    StoragePermanent,
)
from omnigraph.core.ids import Branch, BranchName, normalize_branch
from omnigraph.engine.session import GraphSession
from omnigraph.maintenance.pins import PinnedState
from omnigraph.maintenance.stored_files import Line, StoredFiles
from omnigraph.manifest.commit_record import CommitRecord
from omnigraph.manifest.lineage import possible_bases
from omnigraph.manifest.state import Snapshot
from omnigraph.manifest.store import Head
from omnigraph.recovery.file_checks import FileChecks
from omnigraph.storage.layout import (
    MANIFEST,
    SCHEMAS,
    TABLE_DIRECTORIES,
    branch_directory,
    branch_reference,
    tag_reference,
)
from omnigraph.storage.version_files import UsedFiles

LOOKS_MAX: Final = 64
"""Looks at all branches until two in a row see the same; a writer has to publish between any two of them."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CloneRequest:
    """What a caller wants of a graph."""

    branches: tuple[str, ...] | None = None
    """None for all of them."""
    at: CommitRecord | None = None
    heads_only: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """One moment of a graph: the state in which each branch of the clone ends."""

    heads: Mapping[Branch, Snapshot]
    lives: Mapping[BranchName, str]
    """Which incarnation of each branch it is: one of the same name may be made meanwhile."""
    beside: tuple[Snapshot, ...] = ()
    """Former states that come without their history: what merges of the heads will be based on."""
    history: bool = True

    def states(self) -> tuple[PinnedState, ...]:
        """What must not be reclaimed while the clone is made."""
        shown = (*self.heads.values(), *self.beside)
        return tuple(PinnedState(each.branch, each.manifest_version, each.head) for each in shown)


# ---- the moment


def take_cut(session: GraphSession, request: CloneRequest) -> Cut:
    """The states a clone consists of. Raises BranchNotFound, BadRequest, SnapshotNotFound, ResourceBusy."""
    if request.at is not None:
        heads = _states_at(session, request, request.at)
        lives = {b: session.manifest.branch_reference(b).incarnation for b in heads if b is not None}
    else:
        seen = _seen_at_once(session, request)
        heads = {branch: head.snapshot for branch, head in seen.items()}
        lives = {branch: head.incarnation for branch, head in seen.items() if branch is not None}
    if not request.heads_only:
        return Cut(heads, lives)
    return Cut(heads, lives, _bases(session, heads), history=False)


def still_there(session: GraphSession, cut: Cut) -> bool:
    """Whether no branch of the cut was deleted since."""
    try:
        now = {branch: session.manifest.branch_reference(branch).incarnation for branch in cut.lives}
    except BranchNotFound:
        return False
    return now == cut.lives


def _seen_at_once(session: GraphSession, request: CloneRequest) -> dict[Branch, Head]:
    """What every branch that comes showed at one moment; main first, and each after its parent.

    Two looks that see the same tell a moment between them: no branch had moved on from one to the other.
    Branches that were taken at different moments would not do. One may show a table version of another one
    that the other, seen earlier, does not show yet.
    """
    last: dict[Branch, tuple[int, str]] | None = None
    for _ in range(LOOKS_MAX):
        try:
            heads = {branch: session.manifest.head(branch) for branch in _coming(session, request)}
        except BranchNotFound:
            if request.branches is not None:
                raise
            last = None  # it was deleted between the listing and the look
            continue
        seen = {branch: (head.version, head.incarnation) for branch, head in heads.items()}
        if seen == last:
            return heads
        last = seen
    raise ResourceBusy("writers changed the branches again and again while they were looked at")


def _coming(session: GraphSession, request: CloneRequest) -> list[Branch]:
    """The branches that are wanted and those they grew out of: their storage stands on them."""
    if request.branches is None:
        wanted: list[Branch] = list(session.manifest.branches())
    else:
        wanted = [normalize_branch(name) for name in request.branches]
    found: dict[Branch, None] = {None: None}
    for branch in wanted:
        chain: list[Branch] = []
        current = branch
        while current is not None:
            chain.append(current)
            current = session.manifest.branch_reference(current).parent
        found.update(dict.fromkeys(reversed(chain)))
    return list(found)


def _states_at(session: GraphSession, request: CloneRequest, record: CommitRecord) -> dict[Branch, Snapshot]:
    """The branch of a commit, ending with it, and its parents, ending with what the commit grew out of.

    A parent must not end earlier: the branch may show tables of it as of its last merge from there.
    """
    if any(normalize_branch(name) != record.home for name in request.branches or ()):
        raise BadRequest(
            f"commit {record.id} was published on {record.branch}: a clone that ends with it has that branch",
            hint="leave the branches out, or the commit",
        )
    heads: dict[Branch, Snapshot] = {record.home: session.manifest.at_commit(record.id)}
    before = session.commits.behind([record.id])
    current = record.home
    while current is not None:
        reference = session.manifest.branch_reference(current)
        parent = reference.parent
        incarnation = "" if parent is None else session.manifest.branch_reference(parent).incarnation
        own = [each for each in before if (each.home, each.incarnation) == (parent, incarnation)]
        version = max((each.manifest_version for each in own), default=0)
        heads[parent] = session.manifest.at_version(parent, max(version, reference.parent_version))
        current = parent
    return dict(reversed(heads.items()))


def _bases(session: GraphSession, heads: Mapping[Branch, Snapshot]) -> tuple[Snapshot, ...]:
    """The states that merges between the heads are based on, as far as they are there."""
    lineage = session.commits.ancestry()
    found: dict[tuple[Branch, int], Snapshot] = {}
    for left, right in combinations(heads.values(), 2):
        for commit_id in possible_bases(lineage, left.head, right.head):
            try:
                state = session.manifest.at_commit(commit_id)
            except OmnigraphError:  # a merge will say that it is gone, here as there
                continue
            if state.branch in heads:
                found[(state.branch, state.manifest_version)] = state
    return tuple(found.values())


# ---- the files


@dataclass(slots=True)
class ClonePlan:
    """Every object of a clone that its place does not have yet, in the order in which they may appear."""

    cut: Cut
    content: dict[str, int] = field(default_factory=dict[str, int])
    """Data, deletion, index and transaction files with their bytes: nothing shows them by themselves."""
    table_versions: dict[str, int] = field(default_factory=dict[str, int])
    table_references: list[str] = field(default_factory=list[str])
    schemas: list[str] = field(default_factory=list[str])
    states: dict[str, int] = field(default_factory=dict[str, int])
    """Versions of the manifest: those of branches before those of main, older ones before newer."""
    state_references: list[str] = field(default_factory=list[str])
    """Branches and tags."""
    tags: tuple[str, ...] = ()


def plan_clone(session: GraphSession, cut: Cut, there: Mapping[str, int], checks: FileChecks) -> ClonePlan:
    """What has to be copied where `there` is already, with its bytes.

    A version that is there has all its files there: they came before it. One that is not is compared with its
    checksum before it is opened. Cost: a listing of the graph, and two reads for each version not there.
    """
    return _Planner(session, cut, there, checks).plan()


class _Planner:
    """One planning run."""

    def __init__(self, session: GraphSession, cut: Cut, there: Mapping[str, int], checks: FileChecks) -> None:
        self._session = session
        self._checks = checks
        self._cut = cut
        self._there = there
        adapter = session.adapter
        places = (*sorted(TABLE_DIRECTORIES), MANIFEST, SCHEMAS)
        self._listed = {name: size for place in places for name, size in adapter.sizes(place).items()}
        self._files = StoredFiles(self._listed)
        self._plan = ClonePlan(cut)

    def plan(self) -> ClonePlan:
        """All of it."""
        kept = {branch: self._kept_states(branch) for branch in self._cut.heads}
        new = [(branch, number) for branch, numbers in kept.items() for number in numbers]
        new = [state for state in new if not self._has(self._version_name((MANIFEST, state[0]), state[1]))]
        snapshots = [each for each in self._beside_each_other(self._snapshot, new) if each is not None]
        self._add_tables(snapshots)
        self._add_states(kept, new)
        self._plan.schemas = sorted(name for name in self._listed if name.startswith(f"{SCHEMAS}/"))
        return self._plan

    # -- states

    def _kept_states(self, branch: Branch) -> list[int]:
        head = self._cut.heads[branch]
        if self._cut.history:
            there = self._files.versions[branch_directory(MANIFEST, branch)]
            return sorted(number for number in there if number <= head.manifest_version)
        beside = (each for each in self._cut.beside if each.branch == branch)
        return sorted({head.manifest_version, *(each.manifest_version for each in beside)})

    def _snapshot(self, state: tuple[Branch, int]) -> Snapshot | None:
        self._checks.look_at(self._version_name((MANIFEST, state[0]), state[1]))
        try:
            return self._session.manifest.read_version(*state)
        except SnapshotNotFound:
            return None  # the first versions of a manifest are empty

    def _add_states(self, kept: Mapping[Branch, list[int]], new: Sequence[tuple[Branch, int]]) -> None:
        dataset = self._session.manifest.dataset
        for files in self._beside_each_other(lambda state: dataset.used_files(*state), new):
            self._add_content(files)
        for branch in sorted(kept, key=lambda each: each is None):
            for number in kept[branch]:
                self._add_version(self._plan.states, (MANIFEST, branch), number)
            if branch is not None:
                self._plan.state_references.append(branch_reference(MANIFEST, branch))
        tags = self._session.manifest.tags.places() if self._cut.history else {}
        self._plan.tags = tuple(
            sorted(tag for tag, (branch, number) in tags.items() if number in kept.get(branch, ()))
        )
        self._plan.state_references += [tag_reference(MANIFEST, tag) for tag in self._plan.tags]

    # -- tables

    def _add_tables(self, snapshots: Iterable[Snapshot]) -> None:
        pinned: dict[Line, set[int]] = defaultdict(set)
        for snapshot in snapshots:
            for entry in snapshot.entries.values():
                pinned[(entry.location, entry.branch)].add(entry.version)
        wanted = [(line, number) for line, numbers in pinned.items() for number in self._kept(line, numbers)]
        new = [each for each in wanted if not self._has(self._version_name(*each))]
        found = self._beside_each_other(lambda each: self._table_files(*each, shown=pinned[each[0]]), new)
        left_out = {each for each, files in zip(new, found, strict=True) if files is None}
        for files in found:
            if files is not None:
                self._add_content(files)
        for line, number in wanted:
            if (line, number) not in left_out:
                self._add_version(self._plan.table_versions, line, number)
        references = {branch_reference(where, branch) for where, branch in pinned if branch is not None}
        self._plan.table_references = sorted(references)

    def _kept(self, line: Line, shown: set[int]) -> list[int]:
        """The versions of a table that come. With history also those between: numbers without a gap tell
        whoever has the table open that there is a next one.
        """
        if not self._cut.history:
            return sorted(shown)
        there = self._files.versions[branch_directory(*line)]
        return sorted(shown.union(number for number in there if number <= max(shown)))

    def _table_files(self, line: Line, number: int, *, shown: set[int]) -> UsedFiles | None:
        """The files of a version; None for one that no state shows and that is not whole any more."""
        try:
            self._checks.look_at(self._version_name(line, number))
            files = self._session.storage.used_files(*line, number)
            self._require(files)
        except (StorageNotFound, StoragePermanent):
            if number in shown:
                raise
            return None
        return files

    # -- files

    def _require(self, files: UsedFiles) -> None:
        for name, size in files.data.items():
            found = self._size(name)
            if size and found != size:
                raise StoragePermanent(
                    f"{self._session.adapter.address(name)}: the file has {found:,} bytes where {size:,} were"
                    " written",
                    hint="restore it from a backup; the graph itself was not changed",
                )
        for name in files.deletions:
            self._size(name)

    def _add_content(self, files: UsedFiles) -> None:
        self._require(files)
        names = [*files.data, *files.deletions]
        for index in files.indexes:
            names += self._files.index_files[index]
        if files.transaction in self._listed:
            names.append(files.transaction)
        for name in names:
            self._plan.content[name] = self._size(name)

    def _add_version(self, versions: dict[str, int], line: Line, number: int) -> None:
        name = self._version_name(line, number)
        if not self._has(name):
            versions[name] = self._listed[name]

    def _version_name(self, line: Line, number: int) -> str:
        directory = branch_directory(*line)
        try:
            return self._files.versions[directory][number]
        except KeyError:
            address = self._session.adapter.address(f"{directory}/_versions")
            raise StorageNotFound(
                f"{address}: version {number} does not exist",
                hint="a version that the graph shows is gone; restore it from a backup",
            ) from None

    def _has(self, name: str) -> bool:
        return self._there.get(name) == self._listed[name]

    def _size(self, name: str) -> int:
        try:
            return self._listed[name]
        except KeyError:
            raise StorageNotFound(
                f"{self._session.adapter.address(name)}: the object does not exist",
                hint="restore the object from a backup; the graph itself was not changed",
            ) from None

    def _beside_each_other(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        with ThreadPoolExecutor(self._session.settings.maintenance_concurrency) as pool:
            return list(pool.map(work, items))
