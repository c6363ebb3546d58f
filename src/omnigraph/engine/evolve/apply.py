"""Applying a schema: planned, checked, written to the tables, published as one commit, accepted."""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from omnigraph.catalog.diff import require_supported
from omnigraph.catalog.ir import schema_hash
from omnigraph.catalog.plan import DropMode
from omnigraph.catalog.scalars import as_instant
from omnigraph.catalog.table_changes import catalog_change
from omnigraph.core.cancel import NEVER
from omnigraph.core.errors import ConflictError, MigrationBlocked, RecoveryRequired
from omnigraph.core.events import tidying
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import CommitId, OperationId, TableKey, new_ulid, show_branch
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.permission import Action, Question
from omnigraph.engine.evolve.checks import check_rows, row_checks
from omnigraph.engine.evolve.costs import StepCost, step_costs
from omnigraph.engine.evolve.planned_fills import planned_fills
from omnigraph.engine.evolve.rows import runner
from omnigraph.engine.evolve.tables import reshape, table_writes
from omnigraph.engine.schema_contract import SchemaContract, stage_contract
from omnigraph.engine.write.afterwards import offer_index_work
from omnigraph.engine.write.entering import entering_write
from omnigraph.engine.write.ground import Ground, WhenMoved, queue_keys
from omnigraph.engine.write.parts import Windows, WriteIntent
from omnigraph.engine.write.protocol import Staged, carry
from omnigraph.manifest.branches import BranchStore
from omnigraph.manifest.commit_record import SCHEMA_OPERATION
from omnigraph.recovery.queues import SCHEMA_APPLY_KEY
from omnigraph.recovery.schema_state import discard_staged, place_staged
from omnigraph.recovery.sidecar import WriterKind

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from omnigraph.catalog.plan import SchemaPlan, SchemaStep
    from omnigraph.core.cancel import Cancellation
    from omnigraph.engine.evolve.request import SchemaRequest
    from omnigraph.engine.evolve.rows import BulkWork
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot
    from omnigraph.planning.fills import Fill
    from omnigraph.recovery.outcome import WriteCourse
    from omnigraph.recovery.queues import Guards

APPLY: Final = "the schema change"
IN_TURN: Final = (
    "apply what may be null first and the properties that come afterwards: each waits for no branch"
)
WINDOWS: Final = Windows(
    post_sidecar=Window.SCHEMA_APPLY_POST_SIDECAR_PRE_COMMIT,
    post_create=Window.SCHEMA_APPLY_AFTER_TABLE_CREATE,
    pre_schema=Window.SCHEMA_APPLY_BEFORE_STAGING_WRITE,
    post_schema=Window.SCHEMA_APPLY_AFTER_STAGING_WRITE,
    post_publish=Window.SCHEMA_APPLY_AFTER_MANIFEST_COMMIT,
)


@dataclass(frozen=True, slots=True)
class AppliedSchema:
    """What a schema change did, or with `applied` false what it would do."""

    steps: tuple[SchemaStep, ...]
    applied: bool
    graph_manifest_version: int
    commit: CommitId
    """The newest commit of main afterwards."""
    generation: int
    """How many schemas the graph has had, this one included."""
    costs: tuple[StepCost, ...] = ()
    """What each step did to rows that existed."""
    reclaimed_bytes: int = 0
    """What a hard drop took out of the files."""
    kept_by: tuple[str, ...] = ()
    """What still shows values that a hard drop took: tags, branches, clones; or why nothing was reclaimed."""

    @property
    def has_hard_drops(self) -> bool:
        """Whether it dropped something for good."""
        return self.applied and any(step.to_dict().get("mode") == DropMode.HARD for step in self.steps)

    @property
    def tells_reclaimed(self) -> bool:
        """Whether it says what became of dropped values: its own, or those of the change before."""
        return self.has_hard_drops or bool(self.reclaimed_bytes or self.kept_by)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "supported": True,
            "applied": self.applied,
            "steps": [
                {**step.to_dict(), **cost.to_dict()}
                for step, cost in zip(self.steps, self.costs, strict=True)
            ],
            "graph_manifest_version": self.graph_manifest_version,
            "commit": self.commit,
            "generation": self.generation,
            **(
                {"reclaimed_bytes": self.reclaimed_bytes, "kept_by": list(self.kept_by)}
                if self.tells_reclaimed
                else {}
            ),
        }


def apply_schema(
    session: GraphSession,
    request: SchemaRequest,
    *,
    course: WriteCourse,
    bulk: BulkWork | None = None,
    cancel: Cancellation = NEVER,
) -> AppliedSchema:
    """Make a text the schema of the graph, as one commit of main, or change nothing.

    Raises the schema error of an invalid text, `MigrationUnsupported` for a plan with a refused step,
    `MigrationBlocked` when a plan that is not additive meets other branches, `ConstraintViolation` with the
    rows that break a new rule, `ConflictError` beside another apply. `bulk` gets the work on tables that are
    too large for this process.
    Raises `RecoveryRequired` when it stopped after its first effect: recovery settles it.
    """
    contract = entering_write(session, request.actor, Question(Action.SCHEMA_APPLY, None, show_branch(None)))
    planned = _plan(session, contract, request)
    plan = planned.plan
    if plan.is_empty or request.dry_run:
        _refuse_unready(session, planned, contract, bulk)
        costs = step_costs(session, contract.catalog, plan)
        return _report(
            session.manifest.current(None), plan, costs, contract.catalog.generation, applied=False
        )
    keys = queue_keys(
        None, [TableKey(key) for key in (*contract.catalog.table_keys(), *plan.desired.table_keys())]
    )
    with session.queues.acquire_many([SCHEMA_APPLY_KEY, *keys]) as guards, session.lease.hold():
        if session.contract().hash != contract.hash:
            raise ConflictError(
                "another schema change was applied meanwhile", hint="plan the change again on the new schema"
            )
        cancel.raise_if_requested()
        with _locked(session):
            _refuse_unready(session, planned, contract, bulk)
            costs = step_costs(session, contract.catalog, plan)
            snapshot = _apply(session, request, planned, contract, guards, course, bulk)
    with tidying("the new schema could not be read yet"):
        session.schemas.current()  # whoever asks this session for the accepted one without a probe
    made = [TableKey(key) for key in plan.desired.table_keys()]
    offer_index_work(session, snapshot, [key for key in made if key in snapshot.entries])
    return _report(snapshot, plan, costs, contract.catalog.generation + 1, applied=True)


@dataclass(frozen=True, slots=True)
class _Planned:
    """What is to be done, and with which values."""

    plan: SchemaPlan
    fills: Mapping[TableKey, Sequence[Fill]]


def _plan(session: GraphSession, contract: SchemaContract, request: SchemaRequest) -> _Planned:
    plan, fills = request.plan(session, contract.catalog)
    require_supported(plan)
    now = as_instant(dt.datetime.fromtimestamp(session.clock.now_us() / 1_000_000, dt.UTC))
    return _Planned(plan, planned_fills(contract.catalog, plan, fills, now))


def _refuse_unready(
    session: GraphSession, planned: _Planned, contract: SchemaContract, bulk: BulkWork | None
) -> None:
    """Refuse what the branches or the rows that exist stand against.

    Steps that a branch with the old schema could not follow need main to be alone. Rows must keep the rules
    that are new, with the values they are to get.
    """
    others = session.manifest.branches()
    if others and not planned.plan.is_additive:
        raise (
            MigrationBlocked(others, hint=IN_TURN)
            if planned.plan.is_additive_in_turn
            else MigrationBlocked(others)
        )
    change = catalog_change(contract.catalog, planned.plan.desired)
    for check in row_checks(session, change, session.manifest.current(None).entries, planned.fills):
        stage = f"check {check.rows.table_key}"
        check_rows(check, runner(session, bulk, stage, check.count, check.bytes))


@contextmanager
def _locked(session: GraphSession) -> Generator[None]:
    """Hold the lock branch. The caller has the lease: a lock that is there is that of a dead apply."""
    branches = BranchStore(session.manifest)
    pending = [each for each in session.sidecars.pending() if each.changes_accepted_schema]
    if pending:
        raise RecoveryRequired(
            "an interrupted schema change must be undone first",
            pending[0].operation_id,
            hint="reopen the graph read-write, then apply the schema again",
        )
    branches.release_schema_apply_lock()
    discard_staged(session.recovery)
    branches.take_schema_apply_lock()
    try:
        failpoint(Window.SCHEMA_APPLY_AFTER_LOCK)
        yield
        failpoint(Window.SCHEMA_APPLY_BEFORE_LOCK_RELEASE)
    finally:
        # One that stays is removed by the next opening for writing.
        with tidying("the lock of the schema change could not be released"):
            branches.release_schema_apply_lock()


def _apply(
    session: GraphSession,
    request: SchemaRequest,
    planned: _Planned,
    contract: SchemaContract,
    guards: Guards,
    course: WriteCourse,
    bulk: BulkWork | None,
) -> Snapshot:
    snapshot = session.manifest.current(None)
    catalog = replace(planned.plan.desired, generation=contract.catalog.generation + 1, parent=contract.hash)
    # A text that could be planned is UTF-8.
    text = request.source if isinstance(request.source, str) else request.source.decode("utf-8-sig")
    desired = SchemaContract(text, catalog, schema_hash(catalog))
    operation_id = OperationId(new_ulid())
    change = catalog_change(contract.catalog, catalog)
    staged = Staged(
        WriteIntent(
            kind=WriterKind.SCHEMA_APPLY,
            operation=SCHEMA_OPERATION,
            operation_id=operation_id,
            commit_id=CommitId(new_ulid()),
            actor=request.actor,
            schema_hash=desired.hash,
        ),
        Ground(snapshot, session.branch_identity(None), WhenMoved.REFUSE),
        course,
        table_writes(session, snapshot, change, operation_id, planned.fills, bulk),
        windows=WINDOWS,
        reshape=reshape(
            session,
            snapshot,
            change,
            operation_id,
            stage_schema=lambda: stage_contract(session.adapter, desired, operation_id),
            place_schema=lambda: place_staged(session.recovery),
        ),
    )
    return carry(session, staged, guards=guards).snapshot


def _report(
    snapshot: Snapshot, plan: SchemaPlan, costs: tuple[StepCost, ...], generation: int, *, applied: bool
) -> AppliedSchema:
    return AppliedSchema(plan.steps, applied, snapshot.manifest_version, snapshot.head, generation, costs)
