"""Declared indexes as derived state: what exists, what is missing, and building it.

An index never decides an answer, only its speed, so nothing here may fail a logical operation.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from omnigraph.catalog.schema import EdgeType, TableType
from omnigraph.catalog.types import IndexKind as DeclaredIndex
from omnigraph.core.errors import (
    OmnigraphError,
    RecoveryRequired,
    ResourceBusy,
    RowLevelCasContention,
    UnpublishedWrite,
)
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import Branch, CommitId, OperationId, TableKey, new_ulid, show_branch
from omnigraph.core.limits import BULK_INDEX_ROWS_MIN, UNCOVERED_FRAGMENTS_MAX
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.recovery.drift import drift_guard
from omnigraph.recovery.sidecar import Sidecar, SidecarPin, WriterKind
from omnigraph.storage.handles import SnapshotHandle, StagedHandle, Stamp
from omnigraph.storage.indexes import IndexCoverage, IndexKind, IndexPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from omnigraph.core.settings import Settings
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot, TableEntry

OPERATION: Final = "ensure_indices"
RESTAGES_MAX: Final = 2
"""Builds thrown away because the table moved meanwhile; after that the queue is held while building."""
BULK_OPERATIONS: Final = frozenset({"load"})
FREE_QUEUE_WAIT_S: Final = 0.0
"""The reconciler takes a queue that is free and leaves a busy table to a later write."""

_EXACT_VECTORS: Final[Mapping[str, Any]] = {"metric": "l2", "num_partitions": 1}
"""The distance the language ranks by; one partition searches everything, so answers stay exact."""
_PROBED_VECTORS: Final[Mapping[str, Any]] = {"metric": "l2"}
"""As many partitions as the table's size asks for: a search looks into some of them."""


# --- what is declared ------------------------------------------------------------------------------------


def declared_plans(table_type: TableType, settings: Settings) -> tuple[IndexPlan, ...]:
    """The indexes a type asks for, with their build options."""
    vectors = _EXACT_VECTORS if settings.vector_probes is None else _PROBED_VECTORS
    return tuple(
        IndexPlan(
            IndexKind[spec.kind.name],
            spec.column,
            dict(vectors) if spec.kind is DeclaredIndex.VECTOR else {},
        )
        for spec in table_type.index_specs
    )


# --- coverage --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Indexed:
    """An equality or range on the column is answered by an index that knows every row."""


@dataclass(frozen=True, slots=True)
class Degraded:
    """An equality or range on the column scans."""

    reason: str


Coverage = Indexed | Degraded


def column_coverage(session: GraphSession, handle: SnapshotHandle, column: str) -> Coverage:
    """Whether comparisons on a column are served by an index. Cost: metadata only."""
    if column not in handle.schema.names:
        return Degraded(f"there is no column '{column}'")
    ordered = [
        each
        for each in session.storage.index_coverage(handle, column)
        if each.kind.upper() == IndexKind.BTREE.value and each.columns == (column,)
    ]
    if not ordered:
        return Degraded("no ordered index on the column")
    uncovered = min(len(each.uncovered) for each in ordered)
    if uncovered:
        return Degraded(f"{uncovered} fragments are not covered by the index")
    return Indexed()


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """One column of one type: the indexes on it and whether comparisons use one."""

    type_name: str
    column: str
    declared: tuple[str, ...]
    """Kinds of the indexes the schema asks for."""
    present: tuple[str, ...]
    """Names of the indexes that exist."""
    uncovered: int
    """Fragments that some existing or declared index does not know."""
    coverage: Coverage

    def to_dict(self) -> dict[str, Any]:
        """As JSON says it."""
        state = {"state": "Indexed"} if isinstance(self.coverage, Indexed) else _degraded(self.coverage)
        return {
            "type_name": self.type_name,
            "column": self.column,
            "declared": list(self.declared),
            "present": list(self.present),
            "uncovered_fragments": self.uncovered,
            **state,
        }


def _degraded(coverage: Degraded) -> dict[str, str]:
    return {"state": "Degraded", "reason": coverage.reason}


def index_report(
    session: GraphSession, snapshot: Snapshot, types: Iterable[str] | None = None
) -> tuple[ColumnReport, ...]:
    """Every column that has or should have an index, at one snapshot. Cost: metadata only."""
    wanted = None if types is None else frozenset(types)
    found: list[ColumnReport] = []
    for table_type in session.catalog_of(snapshot).tables():
        entry = snapshot.entries.get(TableKey(table_type.table_key))
        if entry is None or (wanted is not None and table_type.name not in wanted):
            continue
        found.extend(_table_report(session, table_type, session.open_entry(entry)))
    return tuple(found)


def _table_report(session: GraphSession, table_type: TableType, handle: SnapshotHandle) -> list[ColumnReport]:
    plans = declared_plans(table_type, session.settings)
    existing = session.storage.index_coverage(handle)
    fragments = len(session.storage.fragments(handle))
    fixed = ("id", "src", "dst") if isinstance(table_type, EdgeType) else ("id",)
    reports: list[ColumnReport] = []
    for column in dict.fromkeys((*fixed, *(prop.name for prop in table_type.properties))):
        mine = [plan for plan in plans if plan.column == column]
        here = {each.name: each for each in existing if each.columns == (column,)}
        missing = [fragments for plan in mine if plan.name not in here]
        reports.append(
            ColumnReport(
                type_name=table_type.name,
                column=column,
                declared=tuple(plan.kind.value for plan in mine),
                present=tuple(sorted(here)),
                uncovered=max([*missing, *(len(each.uncovered) for each in here.values())], default=0),
                coverage=column_coverage(session, handle, column),
            )
        )
    return reports


# --- building --------------------------------------------------------------------------------------------


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
    commit_id: str | None = None
    """The commit that shows the indexes; None when there was nothing to do."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON says it."""
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

    @property
    def key(self) -> TableKey:
        return self.entry.table_key


@dataclass(frozen=True, slots=True)
class _Staged:
    work: _Work
    handle: SnapshotHandle
    staged: StagedHandle | None
    """None: the branch does not own the table yet, so its files are written after the fork."""


def ensure_indices(
    session: GraphSession,
    branch: Branch,
    *,
    tables: Iterable[TableKey] | None = None,
    extend: bool = False,
    queue_wait_s_max: float | None = None,
    actor: str | None = None,
) -> IndexesEnsured:
    """Build the declared indexes that do not exist, in one commit; `extend` adds what existing ones miss.

    Steady state writes nothing at all. A vector column without a vector is reported as pending. Tables the
    branch inherits from main are left to main. Does not heal: a drifted table raises.
    Cost: metadata when nothing is missing, else the indexed columns of the uncovered fragments.
    """
    chosen = None if tables is None else frozenset(tables)
    for attempt in range(RESTAGES_MAX + 1):
        snapshot = session.manifest.current(branch)
        works, pending = _missing(session, snapshot, chosen, extend=extend)
        if not works:
            return IndexesEnsured(show_branch(branch), pending=pending)
        operation_id = OperationId(new_ulid())
        queues = [(work.key, branch) for work in works]
        with ExitStack() as held:
            if attempt == RESTAGES_MAX:
                held.enter_context(session.queues.acquire_many(queues, wait_s_max=queue_wait_s_max))
                if _moved(session.manifest.current(branch), works):
                    continue
            staged = _stage_all(session, branch, works, operation_id)
            if attempt < RESTAGES_MAX:
                held.enter_context(session.queues.acquire_many(queues, wait_s_max=queue_wait_s_max))
            held.enter_context(session.lease.hold())
            if _moved(session.manifest.current(branch), works):
                continue
            published = _commit_and_publish(session, branch, staged, operation_id, actor)
        built = tuple((work.table_type.name, plan.name) for work in works for plan in work.plans)
        return IndexesEnsured(show_branch(branch), built, pending, published.head)
    raise ResourceBusy("the tables kept moving while their indexes were built", hint="try again later")


def _missing(
    session: GraphSession, snapshot: Snapshot, chosen: frozenset[TableKey] | None, *, extend: bool
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
        known = {each.name: each for each in session.storage.index_coverage(handle)}
        plans: list[IndexPlan] = []
        for plan in declared_plans(table_type, session.settings):
            there = known.get(plan.name)
            # A full-text index is made with the empty table; until it knows a row it is as good as missing.
            if there is not None and there.covered and not (extend and there.uncovered):
                continue
            if not _buildable(session, handle, plan, there):
                if there is None:
                    pending.append(PendingIndex(table_type.name, plan.column, "no row has a vector yet"))
                continue
            plans.append(plan)
        if plans:
            works.append(_Work(table_type, entry, tuple(plans)))
    return works, tuple(pending)


def _buildable(
    session: GraphSession, handle: SnapshotHandle, plan: IndexPlan, known: IndexCoverage | None
) -> bool:
    """Whether what the index does not cover can be covered: a vector index needs a vector to learn from."""
    if plan.kind is not IndexKind.VECTOR:
        return True
    found = session.storage.read(
        handle,
        columns=[plan.column],
        filter=f"`{plan.column}` is not null",
        fragments=None if known is None else sorted(known.uncovered),
        limit=1,
    )
    return found.num_rows > 0


def _moved(current: Snapshot, works: Sequence[_Work]) -> bool:
    return any(current.entries.get(work.key) != work.entry for work in works)


def _stage_all(
    session: GraphSession, branch: Branch, works: Sequence[_Work], operation_id: OperationId
) -> list[_Staged]:
    """Stage every table, several at a time; what one of them reports is heard by this caller's listeners."""
    if len(works) == 1:
        return [_stage(session, branch, works[0], operation_id)]
    most = min(len(works), session.settings.maintenance_concurrency)
    with ThreadPoolExecutor(most, thread_name_prefix="omnigraph-indices") as threads:
        waiting = [
            threads.submit(copy_context().run, _stage, session, branch, work, operation_id) for work in works
        ]
        return [each.result() for each in waiting]


def _stage(session: GraphSession, branch: Branch, work: _Work, operation_id: OperationId) -> _Staged:
    handle = session.open_entry(work.entry)
    if work.entry.branch != branch:
        return _Staged(work, handle, None)
    stamp = Stamp(operation_id, work.key)
    return _Staged(work, handle, session.storage.stage_indexes(handle, work.plans, stamp))


def _commit_and_publish(
    session: GraphSession,
    branch: Branch,
    staged: Sequence[_Staged],
    operation_id: OperationId,
    actor: str | None,
) -> Snapshot:
    """Phases A to D, under the queues and the lease."""
    session.manifest.refuse_during_schema_apply()
    for each in staged:
        drift_guard(session.recovery, each.work.entry, branch)
    sidecar = _sidecar(session, branch, staged, operation_id, actor)
    session.storage.make_durable([each.staged for each in staged if each.staged is not None])
    session.sidecars.write(sidecar)
    updates: list[SubTableUpdate] = []
    try:
        for each in staged:
            # One by one: what has moved when a later table fails decides the error.
            updates.append(_commit_table(session, branch, each, operation_id))  # noqa: PERF401
        failpoint(Window.ENSURE_INDICES_POST_PHASE_B_PRE_MANIFEST_COMMIT)
        published = session.publisher.publish(
            branch,
            updates,
            {each.work.key: each.work.entry.version for each in staged},
            CommitIntent(
                CommitId(new_ulid()),
                OPERATION,
                actor,
                operation_id,
                summary={each.work.key: {"indexes": len(each.work.plans)} for each in staged},
            ),
        )
    except OmnigraphError as error:
        if updates and isinstance(error, RowLevelCasContention):
            raise UnpublishedWrite(operation_id, attempts=error.attempts) from error
        if updates and not isinstance(error, RecoveryRequired):
            message = f"the index build stopped half-way and must be recovered: {error}"
            raise RecoveryRequired(message, operation_id) from error
        raise
    session.sidecars.delete_or_warn(operation_id)
    return published


def _sidecar(
    session: GraphSession,
    branch: Branch,
    staged: Sequence[_Staged],
    operation_id: OperationId,
    actor: str | None,
) -> Sidecar:
    return Sidecar(
        operation_id=operation_id,
        started_at_us=session.clock.now_us(),
        branch=branch,
        actor=actor,
        writer_kind=WriterKind.ENSURE_INDICES,
        tables=tuple(
            SidecarPin(
                table_key=each.work.key,
                table_path=session.root.dataset_uri(each.work.entry.location),
                expected_version=each.work.entry.version,
                post_commit_pin=each.work.entry.version + 1,
                table_branch=branch,
            )
            for each in staged
        ),
    )


def _commit_table(
    session: GraphSession, branch: Branch, each: _Staged, operation_id: OperationId
) -> SubTableUpdate:
    """Move one HEAD; the indexes of a table the branch did not own are built on its fork."""
    entry, handle, staged = each.work.entry, each.handle, each.staged
    identifier = entry.branch_identifier
    if staged is None:
        handle = session.fork_table(entry, branch)
        identifier = session.storage.branch_identifier(entry.location, branch) or ()
        staged = session.storage.stage_indexes(handle, each.work.plans, Stamp(operation_id, entry.table_key))
        if staged is None:
            raise RecoveryRequired(f"nothing was built for '{entry.table_key}'", operation_id)
    failpoint(Window.ENSURE_INDICES_POST_STAGE_PRE_COMMIT_BTREE)
    committed = session.storage.commit_staged(handle, staged)
    session.storage.make_durable([committed])
    return SubTableUpdate(
        table_key=entry.table_key,
        table_version=committed.version,
        table_branch=branch,
        row_count=committed.row_count,
        transaction_uuid=staged.transaction_uuid,
        branch_identifier=identifier,
    )


# --- after a publish -------------------------------------------------------------------------------------


class Reconciler:
    """Builds and extends indexes after writes, when enough of a table is not covered.

    Below the bound a write costs one count of fragments. Thread-safe; one per process is enough.
    """

    def __init__(self, uncovered_max: int = UNCOVERED_FRAGMENTS_MAX, tables_kept_max: int = 4096) -> None:
        self._uncovered_max = uncovered_max
        self._tables_kept_max = tables_kept_max
        self._covered: OrderedDict[tuple[str, str, Branch], int] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(
        self, session: GraphSession, snapshot: Snapshot, tables: Sequence[TableKey], *, always: bool = False
    ) -> None:
        """Reconcile the tables a write touched, if that is worthwhile now.

        `always`: whatever the bound, waiting for other writers (a merge that rewrote tables, B-46).
        """
        due = list(tables) if always else [key for key in tables if self._is_due(session, snapshot, key)]
        if not due:
            return
        wait_s_max = None if always else FREE_QUEUE_WAIT_S
        try:
            ensure_indices(session, snapshot.branch, tables=due, extend=True, queue_wait_s_max=wait_s_max)
        except ResourceBusy:
            return  # another write of these tables is running, and it will ask again
        except Exception:
            # A build that fails is not tried at every write, but once the bound is reached anew.
            for entry in (snapshot.entries[key] for key in due):
                self._note(session, entry, session.open_entry(entry).fragment_count)
            raise
        current = session.manifest.current(snapshot.branch)
        for key in due:
            if key in current.entries:
                self._look(session, current, key)

    def _is_due(self, session: GraphSession, snapshot: Snapshot, key: TableKey) -> bool:
        entry = snapshot.entries.get(key)
        if entry is None or entry.row_count == 0:
            return False
        if snapshot.branch is not None and entry.branch is None:
            return False
        if _rows_of_bulk_load(snapshot, key) >= BULK_INDEX_ROWS_MIN:
            return True
        place = (session.root.identity, entry.location, entry.branch)
        fragments = session.open_entry(entry).fragment_count
        with self._lock:
            known = self._covered.get(place, 0)
        if fragments - known < self._uncovered_max:
            return False
        return fragments - self._look(session, snapshot, key) >= self._uncovered_max

    def _look(self, session: GraphSession, snapshot: Snapshot, key: TableKey) -> int:
        """How many fragments the least complete index covers; what cannot be covered counts as covered."""
        entry = snapshot.entries[key]
        handle = session.open_entry(entry)
        existing = {each.name: each for each in session.storage.index_coverage(handle)}
        covered = handle.fragment_count
        for plan in declared_plans(session.catalog_of(snapshot).type_of(key), session.settings):
            there = existing.get(plan.name)
            count = 0 if there is None else len(there.covered)
            if count < covered and _buildable(session, handle, plan, there):
                covered = count
        self._note(session, entry, covered)
        return covered

    def _note(self, session: GraphSession, entry: TableEntry, covered: int) -> None:
        place = (session.root.identity, entry.location, entry.branch)
        with self._lock:
            self._covered[place] = covered
            self._covered.move_to_end(place)
            while len(self._covered) > self._tables_kept_max:
                self._covered.popitem(last=False)


def _rows_of_bulk_load(snapshot: Snapshot, key: TableKey) -> int:
    commit = snapshot.commit
    return sum(commit.summary.get(key, {}).values()) if commit.operation in BULK_OPERATIONS else 0


reconcile: Final = Reconciler()
"""The reconciler of this process."""
