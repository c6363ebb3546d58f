"""Declared indexes as derived state: what exists, what is missing, and building it.

An index never decides an answer, only its speed, so nothing here may fail a logical operation.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Final

from omnigraph.core.errors import InternalError, ReadSetConflict, ResourceBusy
from omnigraph.core.failpoints import Window
from omnigraph.core.ids import Branch, CommitId, OperationId, TableKey, new_ulid, show_branch
from omnigraph.core.limits import FOLDED_BYTES_MAX, FOLDED_ROWS_MAX, INDEX_SEGMENTS_MAX
from omnigraph.engine.create import index_plans
from omnigraph.engine.write.ground import Ground, ReadSetMoved, WhenMoved, queue_keys
from omnigraph.engine.write.parts import LaterPart, StagedPart, TableWrite, Windows, WriteIntent
from omnigraph.engine.write.protocol import Staged, carry
from omnigraph.maintenance.compacting import stage_compaction, work_of
from omnigraph.maintenance.folding import compactable, foldable
from omnigraph.maintenance.read_structures import serves
from omnigraph.planning.filters import HasValue, filter_text
from omnigraph.recovery.outcome import WriteCourse
from omnigraph.recovery.sidecar import WriterKind
from omnigraph.storage.handles import SnapshotHandle, StagedHandle, Stamp
from omnigraph.storage.indexes import IndexCoverage, IndexKind, IndexPlan, has_too_many_segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from omnigraph.catalog.schema import TableType
    from omnigraph.engine.evolve.rows import BulkWork
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.parts import Part
    from omnigraph.manifest.state import Snapshot, TableEntry
    from omnigraph.manifest.store import Head
    from omnigraph.recovery.queues import Guards

BUILD: Final = "the index build"
OPERATION: Final = "ensure_indices"
RESTAGES_MAX: Final = 2
"""Runs that others may spoil, wholly or partly; in the one after these everybody else waits."""
FOLD_OPERATION: Final = "optimize"
"""The operation that a commit names when fragments were folded as well."""

WINDOWS: Final = Windows(pre_publish=Window.ENSURE_INDICES_POST_PHASE_B_PRE_MANIFEST_COMMIT)
FOLD_WINDOWS: Final = Windows(pre_publish=Window.OPTIMIZE_POST_PHASE_B_PRE_MANIFEST_COMMIT)

_VECTORS: Final[Mapping[str, Any]] = {"metric": "l2"}
"""The distance the language ranks by; as many partitions as the table's size asks for."""


# --- what is declared ------------------------------------------------------------------------------------


def declared_plans(table_type: TableType) -> tuple[IndexPlan, ...]:
    """The indexes a type asks for, with their build options."""
    return tuple(
        replace(plan, options=dict(_VECTORS)) if plan.kind is IndexKind.VECTOR else plan
        for plan in index_plans(table_type)
    )


class Unneeded(StrEnum):
    """Why nothing would read a declared index, so that it is not built."""

    EXACT_SEARCH = "exact search"
    """A search compares every vector, and no part of them is asked for."""
    READ_STRUCTURES = "read structures"
    """Rows are found by the key index, edges by the adjacency and words by their analysis, kept in files."""


def kept_plans(
    session: GraphSession, table_type: TableType, rows: int, existing: Mapping[str, IndexCoverage]
) -> Iterator[tuple[IndexPlan, IndexCoverage | None]]:
    """The declared indexes of a table with this many rows that are built and extended, with what exists.

    Those that something would read, and those that read structures replace where they are there already:
    extending one costs little.
    """
    for plan in declared_plans(table_type):
        there, why = present_of(plan, existing), unneeded(session, table_type, plan, rows)
        if why is None or (why is Unneeded.READ_STRUCTURES and there is not None and there.covered):
            yield plan, there


def unneeded(session: GraphSession, table_type: TableType, plan: IndexPlan, rows: int) -> Unneeded | None:
    """Why nothing would read an index of a table with this many rows; None where something may."""
    if plan.kind is IndexKind.VECTOR and session.settings.vector_probes is None:
        return Unneeded.EXACT_SEARCH
    return Unneeded.READ_STRUCTURES if serves(session, table_type, plan, rows) else None


def present_of(plan: IndexPlan, existing: Mapping[str, IndexCoverage]) -> IndexCoverage | None:
    """The index of a plan, if there is one; one that was built in another way is as good as none."""
    there = existing.get(plan.name)
    return there if there is not None and there.follows(plan) else None


# --- building --------------------------------------------------------------------------------------------


class IndexWork(IntEnum):
    """How much of the upkeep of tables a run does; each member includes those before it."""

    MISSING = 1
    """Declared indexes that do not exist are built."""
    EXTENDED = 2
    """Existing ones learn what they do not cover."""
    FOLDED = 3
    """Small fragments are written as one first, as far as that is quickly done."""
    ALL = 4
    """Every fragment that is worth it is rewritten first, and indexes of too many segments are made anew."""


@dataclass(frozen=True, slots=True)
class PendingIndex:
    """A declared index that cannot be built yet."""

    type_name: str
    column: str
    reason: str


@dataclass(frozen=True, slots=True)
class IndexesEnsured:
    """What one run did."""

    branch: str
    built: tuple[tuple[str, str], ...] = ()
    """(type name, index name), in table order."""
    pending: tuple[PendingIndex, ...] = ()
    commit_ids: tuple[str, ...] = ()
    """The commits that show it: one, or more where others wrote meanwhile."""

    @property
    def commit_id(self) -> str | None:
        """The last commit; None when there was nothing to do."""
        return self.commit_ids[-1] if self.commit_ids else None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "branch": self.branch,
            "built": [{"type_name": owner, "index": name} for owner, name in self.built],
            "pending": [
                {"type_name": p.type_name, "column": p.column, "reason": p.reason} for p in self.pending
            ],
            "graph_commit_id": self.commit_id,
        }


@dataclass(frozen=True, slots=True)
class _Work:
    """The indexes to build on one table, as the snapshot shows it."""

    table_type: TableType
    entry: TableEntry
    plans: tuple[IndexPlan, ...]
    folded: tuple[int, ...] = ()
    """Small fragments that are written as one first; what the indexes miss is seen after that."""
    compacted: tuple[tuple[int, ...], ...] = ()
    """Groups of fragments, of any size, that are written as one each first."""

    @property
    def key(self) -> TableKey:
        return self.entry.table_key


def ensure_indices(
    session: GraphSession,
    branch: Branch,
    *,
    tables: Iterable[TableKey] | None = None,
    work: IndexWork = IndexWork.MISSING,
    queue_wait_s_max: float | None = None,
    actor: str | None = None,
    course: WriteCourse | None = None,
    bulk: BulkWork | None = None,
) -> IndexesEnsured:
    """Build the declared indexes that do not exist, in one commit, and whatever else `work` asks for.

    Steady state writes nothing at all. A vector column without a vector is reported as pending. Tables the
    branch inherits from main are left to main. Does not heal: a drifted table raises. `course` is told how
    far the build has come. `bulk` rewrites what is too large for this process.
    Cost: metadata when nothing is missing, else the indexed columns of the uncovered fragments.
    """
    chosen = None if tables is None else frozenset(tables)
    course = WriteCourse(BUILD) if course is None else course
    run = _Run(session, branch, work, queue_wait_s_max, actor, course, bulk)
    done: list[_Done] = []
    for attempt in range(RESTAGES_MAX + 1):
        with suppress(ReadSetMoved):
            done.append(run.alone(chosen) if attempt == RESTAGES_MAX else run.beside_others(chosen))
            chosen = done[-1].behind
            if not chosen:
                break
    if not done:
        raise ResourceBusy("others rewrote the same tables again and again", hint="try again later")
    return IndexesEnsured(
        show_branch(branch),
        built=tuple(dict.fromkeys(each for one in done for each in one.built)),
        pending=done[0].pending,
        commit_ids=tuple(one.commit_id for one in done if one.commit_id is not None),
    )


@dataclass(frozen=True, slots=True)
class _Done:
    """What one attempt did."""

    pending: tuple[PendingIndex, ...]
    built: tuple[tuple[str, str], ...] = ()
    commit_id: str | None = None
    behind: frozenset[TableKey] = frozenset()
    """Tables of which a part could not be shown, because others rewrote it meanwhile."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Upkeep of the tables of one branch, as often as others make it necessary."""

    session: GraphSession
    branch: Branch
    work: IndexWork
    queue_wait_s_max: float | None
    actor: str | None
    course: WriteCourse
    bulk: BulkWork | None

    def beside_others(self, chosen: frozenset[TableKey] | None) -> _Done:
        """Stage while others write, and show what still fits. Raises `ReadSetMoved` when nothing does."""
        works, pending, head = self._look(chosen)
        return self._show(works, pending, head, None) if works else _Done(pending)

    def alone(self, chosen: frozenset[TableKey] | None) -> _Done:
        """Stage while others wait, so only what is quickly done. Raises `ReadSetMoved` when that is nothing.

        The light pass after writes makes nobody wait: it has its tables to itself in this process only.
        """
        works, pending, head = self._look(chosen)
        queues = queue_keys(self.branch, [each.key for each in works])
        with ExitStack() as held:
            guards = held.enter_context(
                self.session.queues.acquire_many(queues, wait_s_max=self.queue_wait_s_max)
            )
            if self.work is not IndexWork.FOLDED:
                held.enter_context(self.session.lease.hold())
                works, pending, head = self._look(frozenset(each.key for each in works))
                if works:
                    works = quickly_done(self.session, works)
                    if not works:
                        raise ReadSetMoved(ReadSetConflict("tables", message="others rewrote them"))
            return self._show(works, pending, head, guards) if works else _Done(pending)

    def _look(self, chosen: frozenset[TableKey] | None) -> tuple[list[_Work], tuple[PendingIndex, ...], Head]:
        head = self.session.manifest.head(self.branch)
        return *_missing(self.session, head.snapshot, chosen, self.work), head

    def _show(
        self, works: Sequence[_Work], pending: tuple[PendingIndex, ...], head: Head, guards: Guards | None
    ) -> _Done:
        behind: set[TableKey] = set()
        ground = Ground(
            head.snapshot,
            head.token or "",
            WhenMoved.PREPARE_AGAIN,
            restage=lambda table, entry: _followed(self.session, table, entry, behind),
        )
        staged = _stage_all(self.session, ground, self.course, works, self.actor, self.bulk, behind)
        carried = carry(self.session, staged, guards=guards, queue_wait_s_max=self.queue_wait_s_max)
        built = tuple((each.table_type.name, plan.name) for each in works for plan in each.plans)
        return _Done(pending, built, carried.snapshot.head, frozenset(behind))


def quickly_done(session: GraphSession, works: Sequence[_Work]) -> list[_Work]:
    """What of this work may be done while every other writer waits: that of the fewest rows.

    Groups of many fragments come first. An index is extended by as many rows, not by more.
    """
    quick: list[_Work] = []
    rows_left, bytes_left = FOLDED_ROWS_MAX, FOLDED_BYTES_MAX
    for work in works:
        handle = session.open_entry(work.entry)
        chosen: list[tuple[int, ...]] = []
        for group in sorted(work.compacted, key=len, reverse=True):
            rows, size = work_of(session, handle, [group])
            if rows <= rows_left and size <= bytes_left:
                rows_left, bytes_left = rows_left - rows, bytes_left - size
                chosen.append(group)
        known = {each.role: each for each in session.storage.index_coverage(handle)}
        plans: list[IndexPlan] = []
        for plan in work.plans:
            there = present_of(plan, known)
            uncovered = handle.fragment_ids if there is None else there.uncovered
            rows, size = work_of(session, handle, [tuple(uncovered)])
            if rows <= rows_left and size <= bytes_left:
                plans.append(plan)
        if chosen or plans:
            quick.append(replace(work, plans=tuple(plans), compacted=tuple(chosen)))
    return quick


def _missing(
    session: GraphSession,
    snapshot: Snapshot,
    chosen: frozenset[TableKey] | None,
    work: IndexWork,
) -> tuple[list[_Work], tuple[PendingIndex, ...]]:
    """What is to be built, in table order, and what cannot be built yet."""
    works: list[_Work] = []
    pending: list[PendingIndex] = []
    for table_type in sorted(session.catalog_of(snapshot).tables(), key=lambda each: each.table_key):
        entry = snapshot.entries.get(TableKey(table_type.table_key))
        if entry is None or entry.row_count == 0 or (chosen is not None and entry.table_key not in chosen):
            continue
        if snapshot.branch is not None and entry.branch is None:
            continue  # main's own indexes serve what a branch only inherits
        handle = session.open_entry(entry)
        plans, waiting = _due(session, table_type, handle, work)
        pending.extend(
            PendingIndex(table_type.name, each.column, "no row has a vector yet") for each in waiting
        )
        folded: tuple[int, ...] = ()
        groups: tuple[tuple[int, ...], ...] = ()
        if entry.branch == snapshot.branch:  # a rewrite is no reason to fork a table
            if work is IndexWork.FOLDED:
                folded = foldable(session.storage.fragments(handle))
            elif work is IndexWork.ALL:
                groups = compactable(session.storage.fragments(handle))
            if folded and table_type.blob_columns:
                # What a scan gives of a blob cannot be written again; a compaction copies it.
                folded, groups = (), (folded,)
        if plans or folded or groups:
            works.append(_Work(table_type, entry, plans, folded, compacted=groups))
    return works, tuple(pending)


def _due(
    session: GraphSession, table_type: TableType, handle: SnapshotHandle, work: IndexWork
) -> tuple[tuple[IndexPlan, ...], tuple[IndexPlan, ...]]:
    """The declared indexes to build at a version of a table, and those that do not exist and cannot be."""
    known = {each.role: each for each in session.storage.index_coverage(handle)}
    due: list[IndexPlan] = []
    waiting: list[IndexPlan] = []
    for plan, there in kept_plans(session, table_type, handle.row_count, known):
        # A full-text index is made with the empty table; until it knows a row it is as good as missing.
        if there is not None and there.covered and not _lacks(there, work):
            continue
        if is_buildable(session, handle, plan, there):
            due.append(plan)
        elif there is None:
            waiting.append(plan)
    return tuple(due), tuple(waiting)


def _lacks(there: IndexCoverage, work: IndexWork) -> bool:
    """Whether an existing index is to be worked on."""
    if work is IndexWork.ALL and has_too_many_segments(there, INDEX_SEGMENTS_MAX):
        return True
    return work >= IndexWork.EXTENDED and bool(there.uncovered)


def is_buildable(
    session: GraphSession, handle: SnapshotHandle, plan: IndexPlan, known: IndexCoverage | None
) -> bool:
    """Whether what the index does not cover can be covered: a vector index needs a vector to learn from."""
    if plan.kind is not IndexKind.VECTOR or (known is not None and not known.uncovered):
        return True
    found = session.storage.read(
        handle,
        columns=[plan.column],
        filter=filter_text(HasValue(plan.column, wanted=True)),
        fragments=None if known is None else sorted(known.uncovered),
        limit=1,
    )
    return found.num_rows > 0


def _stage_all(
    session: GraphSession,
    ground: Ground,
    course: WriteCourse,
    works: Sequence[_Work],
    actor: str | None,
    bulk: BulkWork | None,
    behind: set[TableKey],
) -> Staged:
    """Stage every table, several at a time; what one of them reports is heard by this caller's listeners."""
    folds = any(work.folded or work.compacted for work in works)
    by_key = {work.key: work for work in works}
    intent = WriteIntent(
        kind=WriterKind.OPTIMIZE if folds else WriterKind.ENSURE_INDICES,
        operation=FOLD_OPERATION if folds else OPERATION,
        operation_id=OperationId(new_ulid()),
        commit_id=CommitId(new_ulid()),
        actor=actor,
        summary={work.key: _summary(work) for work in works},
    )
    tables = session.map_tables(
        lambda key: _stage(session, ground.branch, by_key[key], intent.operation_id, bulk, behind),
        list(by_key),
        threads=session.settings.maintenance_concurrency,
    )
    windows = FOLD_WINDOWS if folds else WINDOWS
    return Staged(intent, ground, course, dict(zip(by_key, tables, strict=True)), windows=windows)


def _stage(
    session: GraphSession,
    branch: Branch,
    work: _Work,
    operation_id: OperationId,
    bulk: BulkWork | None,
    behind: set[TableKey],
) -> TableWrite:
    handle = session.open_entry(work.entry)
    stamp = Stamp(operation_id, work.key)
    before = Window.ENSURE_INDICES_POST_STAGE_PRE_COMMIT_BTREE

    def build(on: SnapshotHandle) -> StagedHandle | None:
        return session.storage.stage_indexes(on, work.plans, stamp, segments_max=INDEX_SEGMENTS_MAX)

    def extend(on: SnapshotHandle) -> StagedHandle | None:
        plans, _ = _due(session, work.table_type, on, IndexWork.EXTENDED)
        return session.storage.stage_indexes(on, plans, stamp, segments_max=INDEX_SEGMENTS_MAX)

    parts: tuple[Part, ...]
    if work.compacted:
        parts = stage_compaction(
            session, handle, work.compacted, stamp, extend, bulk, dropped=lambda: behind.add(work.key)
        )
    elif work.folded:
        rewritten = session.storage.stage_rewrite(handle, work.folded, stamp)
        after = Window.OPTIMIZE_POST_COMPACT_PRE_REINDEX
        # The new fragment is small, so its indexes are built in no time; no build before it can know it.
        parts = (StagedPart(rewritten, before=before, after=after), LaterPart(extend))
    elif work.entry.branch != branch:
        parts = (LaterPart(build, before=before),)
    else:
        built = build(handle)
        if built is None:
            raise InternalError(f"'{work.key}' lacks indexes of which nothing can be built")
        parts = (StagedPart(built, before=before),)
    return TableWrite(work.entry, handle, parts)


def _followed(
    session: GraphSession, table: TableWrite, entry: TableEntry, behind: set[TableKey]
) -> TableWrite | None:
    """The same work on a newer version, as far as others left the fragments it was made of; None: nothing.

    A table that is left out, or a part of it, is noted in `behind`.
    """
    first, *rest = table.parts
    handle = session.open_entry(entry)
    followed = None
    if isinstance(first, StagedPart) and entry.branch == table.entry.branch:
        followed = session.storage.followed(first.staged, table.handle, handle)
    if followed is None or not followed.whole:
        behind.add(entry.table_key)
    if followed is None:
        return None
    moved = replace(first, staged=followed.staged)
    return replace(table, entry=entry, handle=handle, parts=(moved, *rest))


def _summary(work: _Work) -> dict[str, int]:
    folded = {"folded": len(work.folded)} if work.folded else {}
    rewritten = {"compacted": sum(map(len, work.compacted))} if work.compacted else {}
    return {"indexes": len(work.plans), **folded, **rewritten}
