"""Settling one sidecar: observe, decide, act. The caller holds the queues of its pins and the lease."""

from collections.abc import Sequence
from typing import Final, assert_never

from omnigraph.core.errors import (
    ExpectedVersionMismatch,
    GraphNotFound,
    InternalError,
    SidecarSchemaError,
    SnapshotNotFound,
    StorageNotFound,
    StoragePermanent,
    StorageUnknown,
)
from omnigraph.core.errors.base import said
from omnigraph.core.events import Warned, emit
from omnigraph.core.ids import Branch
from omnigraph.manifest.recoveries import RecoveryKind, RecoveryRecord, TableOutcome
from omnigraph.manifest.state import Snapshot
from omnigraph.recovery.audit import finish, finish_from_record, publish_recovery
from omnigraph.recovery.context import RecoveryContext, RecoveryMode
from omnigraph.recovery.decide import Decision, RollBackPath, decide, roll_back_path
from omnigraph.recovery.observe import Observation, observe, published_record
from omnigraph.recovery.roll_back import remove_added_tables, roll_back
from omnigraph.recovery.roll_forward import converged, roll_forward
from omnigraph.recovery.schema_state import staged_by
from omnigraph.recovery.sidecar import Sidecar, WriterKind

BROKEN: Final = (
    StorageNotFound,
    StoragePermanent,
    StorageUnknown,
    InternalError,
    GraphNotFound,
    SnapshotNotFound,
    SidecarSchemaError,
)
"""What reading a damaged branch or a damaged table ends in; a failure that may pass is not among them."""


def settle_or_wait(context: RecoveryContext, sidecar: Sidecar, mode: RecoveryMode) -> RecoveryRecord | None:
    """As `settle`, but a damaged branch does not stop the others: what was interrupted there waits."""
    try:
        return settle(context, sidecar, mode)
    except BROKEN as error:
        if sidecar.branch is None:
            raise
        emit(
            Warned(
                f"an interrupted write on '{sidecar.branch}' waits", f"{sidecar.operation_id}: {said(error)}"
            )
        )
        return None


def settle(context: RecoveryContext, sidecar: Sidecar, mode: RecoveryMode) -> RecoveryRecord | None:
    """Bring one abandoned operation to its end and say which in the audit; None when it must wait.

    May be called again after dying anywhere inside. Staged schema files follow the decision: they are put in
    place once the schema is published, and removed when the operation is undone. Raises `SidecarSchemaError`
    in full mode when the sidecar contradicts the store; the sidecar stays.
    """
    recorded = context.recoveries.find(sidecar.operation_id)
    if recorded is not None:
        context.sidecars.delete_or_warn(sidecar.operation_id)
        return recorded
    if sidecar.branch is not None and sidecar.branch not in context.manifest.all_branches():
        return _discard(context, sidecar)
    snapshot = context.manifest.current(sidecar.branch)
    record = published_record(context, sidecar, snapshot)
    if record is not None and record.recovers == sidecar.operation_id:
        return finish_from_record(context, sidecar, record)
    if record is not None:
        return _finish_visible(
            context, sidecar, context.manifest.at_version(sidecar.branch, record.manifest_version)
        )
    observations, decision = _judged(context, sidecar, snapshot)
    match decision:
        case Decision.ABORT:
            return _refuse(sidecar, observations, mode)
        case Decision.ROLL_FORWARD:
            schema_hash = _schema_of(context, sidecar)
            if sidecar.writer_kind is not WriterKind.SCHEMA_APPLY or schema_hash is not None:
                return _forward(context, sidecar, snapshot, observations, schema_hash)
            return _back(context, sidecar, observations, mode)
        case Decision.ROLL_BACK:
            return _back(context, sidecar, observations, mode)
        case _:
            assert_never(decision)


def waits_for_open(context: RecoveryContext, sidecar: Sidecar) -> bool:
    """Whether the next write leaves the sidecar to a read-write open: it needs a restore, or contradicts the
    graph. Whoever asks holds a queue of its tables and the lease, so its writer is dead.
    """
    if context.recoveries.find(sidecar.operation_id) is not None:
        return False
    snapshot = context.manifest.current(sidecar.branch)
    if published_record(context, sidecar, snapshot) is not None:
        return False
    observations, decision = _judged(context, sidecar, snapshot)
    match decision:
        case Decision.ABORT:
            return True
        case Decision.ROLL_FORWARD:
            changes_schema = sidecar.writer_kind is WriterKind.SCHEMA_APPLY
            return changes_schema and _schema_of(context, sidecar) is None
        case Decision.ROLL_BACK:
            return roll_back_path([each.table_class for each in observations]) is RollBackPath.RESTORE
        case _:
            assert_never(decision)


def _schema_of(context: RecoveryContext, sidecar: Sidecar) -> str | None:
    """The schema the branch follows once the operation is complete; None: as before, or not known yet."""
    if sidecar.schema_hash is not None or sidecar.writer_kind is not WriterKind.SCHEMA_APPLY:
        return sidecar.schema_hash
    return staged_by(context, sidecar.operation_id)


def _judged(
    context: RecoveryContext, sidecar: Sidecar, snapshot: Snapshot
) -> tuple[tuple[Observation, ...], Decision]:
    observations = observe(context, sidecar, snapshot)
    ground_moved = any(snapshot.pin(key) != seen for key, seen in sidecar.unwritten_ground().items())
    return observations, decide([each.table_class for each in observations], ground_moved=ground_moved)


def _forward(
    context: RecoveryContext,
    sidecar: Sidecar,
    snapshot: Snapshot,
    observations: Sequence[Observation],
    schema_hash: str | None,
) -> RecoveryRecord:
    try:
        return roll_forward(context, sidecar, snapshot, observations, schema_hash=schema_hash)
    except ExpectedVersionMismatch:
        current = context.manifest.current(sidecar.branch)
        if converged(observations, current):
            return _finish_visible(context, sidecar, current)
        raise


def _back(
    context: RecoveryContext, sidecar: Sidecar, observations: Sequence[Observation], mode: RecoveryMode
) -> RecoveryRecord | None:
    if roll_back_path([each.table_class for each in observations]) is RollBackPath.EMPTY:
        remove_added_tables(context, sidecar)
        return _finish_without_changes(context, sidecar, RecoveryKind.ROLLED_BACK, (), branch=sidecar.branch)
    if mode is RecoveryMode.ROLL_FORWARD_ONLY:
        emit(Warned("an interrupted write waits for the next read-write open", sidecar.operation_id))
        return None
    remove_added_tables(context, sidecar)
    return roll_back(context, sidecar, observations)


def _refuse(sidecar: Sidecar, observations: Sequence[Observation], mode: RecoveryMode) -> None:
    found = ", ".join(f"{each.pin.table_key}: {each.table_class}" for each in observations)
    message = f"recovery note '{sidecar.name}' contradicts the graph ({found})"
    if mode is RecoveryMode.FULL:
        raise SidecarSchemaError(object=sidecar.name, message=message)
    emit(Warned(message, sidecar.operation_id))


def _finish_visible(context: RecoveryContext, sidecar: Sidecar, published: Snapshot) -> RecoveryRecord:
    """The writer's result is visible: it only could not delete its note."""
    outcomes = [
        TableOutcome(pin.table_key, pin.expected_version, published.pin(pin.table_key))
        for pin in sidecar.tables
    ]
    return _finish_without_changes(
        context, sidecar, RecoveryKind.ROLLED_FORWARD, outcomes, branch=sidecar.branch
    )


def _discard(context: RecoveryContext, sidecar: Sidecar) -> RecoveryRecord:
    """The branch is gone, and with it everything the operation could have changed."""
    record = published_record(context, sidecar, context.manifest.current(None))
    if record is not None:
        # An earlier pass died between its commit and its audit row.
        return finish(
            context, sidecar, kind=RecoveryKind.ORPHANED_BRANCH_DISCARDED, commit_id=record.id, outcomes=()
        )
    return _finish_without_changes(context, sidecar, RecoveryKind.ORPHANED_BRANCH_DISCARDED, (), branch=None)


def _finish_without_changes(
    context: RecoveryContext,
    sidecar: Sidecar,
    kind: RecoveryKind,
    outcomes: Sequence[TableOutcome],
    *,
    branch: Branch,
) -> RecoveryRecord:
    """Publish the recovery commit alone, then record and delete."""
    published = publish_recovery(
        context, sidecar, branch=branch, changes=(), expected={}, kind=kind, outcomes=outcomes
    )
    return finish(context, sidecar, kind=kind, commit_id=published.head, outcomes=outcomes)
