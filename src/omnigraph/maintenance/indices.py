"""Declared indexes as derived state: what exists, what is missing, and building it.

An index never decides an answer, only its speed, so nothing here may fail a logical operation.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from omnigraph.catalog.schema import EdgeType, TableType
from omnigraph.catalog.types import IndexKind as DeclaredIndex
from omnigraph.core.errors import RecoveryRequired, ResourceBusy
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import Branch, CommitId, OperationId, TableKey, new_ulid, show_branch
from omnigraph.engine.write.forks import fork_table
from omnigraph.maintenance.folding import foldable
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.planning.filters import HasValue, filter_text
from omnigraph.recovery.drift import drift_guard
from omnigraph.recovery.outcome import left_to_recovery
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
FOLD_OPERATION: Final = "optimize"
"""What a commit is called in which fragments were folded as well."""

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
    folded: tuple[int, ...] = ()
    """Small fragments that are written as one first; what the indexes miss is seen after that."""

    @property
    def key(self) -> TableKey:
        return self.entry.table_key


@dataclass(frozen=True, slots=True)
class _Staged:
    work: _Work
    handle: SnapshotHandle
    staged: StagedHandle | None
    """The folded fragments, else the indexes. None: the branch does not own the table yet, so its files are
    written after the fork.
    """


def ensure_indices(
    session: GraphSession,
    branch: Branch,
    *,
    tables: Iterable[TableKey] | None = None,
    extend: bool = False,
    fold: bool = False,
    queue_wait_s_max: float | None = None,
    actor: str | None = None,
) -> IndexesEnsured:
    """Build the declared indexes that do not exist, in one commit; `extend` adds what existing ones miss, and
    `fold` writes small fragments as one before that.

    Steady state writes nothing at all. A vector column without a vector is reported as pending. Tables the
    branch inherits from main are left to main. Does not heal: a drifted table raises.
    Cost: metadata when nothing is missing, else the indexed columns of the uncovered fragments.
    """
    chosen = None if tables is None else frozenset(tables)
    for attempt in range(RESTAGES_MAX + 1):
        snapshot = session.manifest.current(branch)
        works, pending = _missing(session, snapshot, chosen, extend=extend, fold=fold)
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
    session: GraphSession,
    snapshot: Snapshot,
    chosen: frozenset[TableKey] | None,
    *,
    extend: bool,
    fold: bool,
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
        plans, waiting = _due(session, table_type, handle, extend=extend)
        pending.extend(
            PendingIndex(table_type.name, each.column, "no row has a vector yet") for each in waiting
        )
        # A fold is no reason to fork a table, and what a scan gives of a blob cannot be written again.
        mine = fold and entry.branch == snapshot.branch and not table_type.blob_columns
        folded = foldable(session.storage.fragments(handle)) if mine else ()
        if plans or folded:
            works.append(_Work(table_type, entry, plans, folded))
    return works, tuple(pending)


def _due(
    session: GraphSession, table_type: TableType, handle: SnapshotHandle, *, extend: bool
) -> tuple[tuple[IndexPlan, ...], tuple[IndexPlan, ...]]:
    """The declared indexes to build at a version of a table, and those that do not exist and cannot be."""
    known = {each.name: each for each in session.storage.index_coverage(handle)}
    due: list[IndexPlan] = []
    waiting: list[IndexPlan] = []
    for plan in declared_plans(table_type, session.settings):
        there = known.get(plan.name)
        # A full-text index is made with the empty table; until it knows a row it is as good as missing.
        if there is not None and there.covered and not (extend and there.uncovered):
            continue
        if is_buildable(session, handle, plan, there):
            due.append(plan)
        elif there is None:
            waiting.append(plan)
    return tuple(due), tuple(waiting)


def is_buildable(
    session: GraphSession, handle: SnapshotHandle, plan: IndexPlan, known: IndexCoverage | None
) -> bool:
    """Whether what the index does not cover can be covered: a vector index needs a vector to learn from."""
    if plan.kind is not IndexKind.VECTOR:
        return True
    found = session.storage.read(
        handle,
        columns=[plan.column],
        filter=filter_text(HasValue(plan.column, wanted=True)),
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
    if work.folded:
        return _Staged(work, handle, session.storage.stage_rewrite(handle, work.folded, stamp))
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
    folds = any(each.work.folded for each in staged)
    kind = WriterKind.OPTIMIZE if folds else WriterKind.ENSURE_INDICES
    sidecar = _sidecar(session, branch, staged, operation_id, actor, kind)
    session.storage.make_durable([each.staged for each in staged if each.staged is not None])
    session.sidecars.write(sidecar)
    moved: list[TableKey] = []
    with left_to_recovery("the index build", operation_id, moved=lambda: bool(moved)):
        updates = [_commit_table(session, branch, each, operation_id, moved) for each in staged]
        failpoint(
            Window.OPTIMIZE_POST_PHASE_B_PRE_MANIFEST_COMMIT
            if folds
            else Window.ENSURE_INDICES_POST_PHASE_B_PRE_MANIFEST_COMMIT
        )
        published = session.publisher.publish(
            branch,
            updates,
            {each.work.key: each.work.entry.version for each in staged},
            CommitIntent(
                CommitId(new_ulid()),
                FOLD_OPERATION if folds else OPERATION,
                actor,
                operation_id,
                summary={each.work.key: _summary(each.work) for each in staged},
            ),
        )
    session.sidecars.delete_or_warn(operation_id)
    return published


def _sidecar(
    session: GraphSession,
    branch: Branch,
    staged: Sequence[_Staged],
    operation_id: OperationId,
    actor: str | None,
    kind: WriterKind,
) -> Sidecar:
    return Sidecar(
        operation_id=operation_id,
        started_at_us=session.clock.now_us(),
        branch=branch,
        actor=actor,
        writer_kind=kind,
        tables=tuple(
            SidecarPin(
                table_key=each.work.key,
                table_path=each.work.entry.location,
                expected_version=each.work.entry.version,
                post_commit_pin=each.work.entry.version + 1,
                table_branch=branch,
            )
            for each in staged
        ),
    )


def _summary(work: _Work) -> dict[str, int]:
    folded = {"folded": len(work.folded)} if work.folded else {}
    return {"indexes": len(work.plans), **folded}


def _commit_table(
    session: GraphSession, branch: Branch, each: _Staged, operation_id: OperationId, moved: list[TableKey]
) -> SubTableUpdate:
    """Move one HEAD; the indexes of a table the branch did not own are built on its fork.

    `moved` gets the table with its first step: what follows may fail, and decides about the error.
    """
    entry, handle, staged = each.work.entry, each.handle, each.staged
    identifier = entry.branch_identifier
    stamp = Stamp(operation_id, entry.table_key)
    if staged is None:
        handle = fork_table(session, entry, branch)
        identifier = session.storage.branch_identifier(entry.location, branch) or ()
        staged = session.storage.stage_indexes(handle, each.work.plans, stamp)
        if staged is None:
            raise RecoveryRequired(f"nothing was built for '{entry.table_key}'", operation_id)
    failpoint(Window.ENSURE_INDICES_POST_STAGE_PRE_COMMIT_BTREE)
    committed = session.storage.commit_staged(handle, staged)
    moved.append(entry.table_key)
    if each.work.folded:
        failpoint(Window.OPTIMIZE_POST_COMPACT_PRE_REINDEX)
        # The new fragment is small, so its indexes are built in no time; no build before it can know it.
        plans, _ = _due(session, each.work.table_type, committed, extend=True)
        built = session.storage.stage_indexes(committed, plans, stamp)
        if built is not None:
            staged, committed = built, session.storage.commit_staged(committed, built)
    session.storage.make_durable([committed])
    return SubTableUpdate(
        table_key=entry.table_key,
        table_version=committed.version,
        table_branch=branch,
        row_count=committed.row_count,
        transaction_uuid=staged.transaction_uuid,
        branch_identifier=identifier,
    )
