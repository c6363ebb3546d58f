"""Recording what became of an abandoned operation, and taking its sidecar away."""

from collections.abc import Mapping, Sequence

from omnigraph.core.events import RecoveryPerformed, emit
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import Branch, CommitId, TableKey, new_ulid
from omnigraph.manifest.changes import Change, CommitIntent, Expectations
from omnigraph.manifest.publisher import SchemaLock
from omnigraph.manifest.record import CommitRecord
from omnigraph.manifest.recoveries import RecoveryKind, RecoveryRecord, TableOutcome
from omnigraph.manifest.state import Snapshot
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.sidecar import Sidecar

RECOVERY_ACTOR = "omnigraph:recovery"
RECOVERY_OPERATION = "recovery"


def publish_recovery(
    context: RecoveryContext,
    sidecar: Sidecar,
    *,
    branch: Branch,
    changes: Sequence[Change],
    expected: Expectations,
    outcomes: Sequence[TableOutcome],
    merged_parent: CommitId | None = None,
) -> Snapshot:
    """One publish that carries the recovery's changes and its commit record.

    The record names the operation it settles and what happened to each table, so a pass that dies after this
    point can be finished from it. Without changes only the commit record is published.
    """
    intent = CommitIntent(
        commit_id=CommitId(new_ulid()),
        operation=RECOVERY_OPERATION,
        actor=RECOVERY_ACTOR,
        recovers=sidecar.operation_id,
        merged_parent=merged_parent,
        summary=_summary(outcomes),
    )
    # A schema apply that died holds its lock for ever, and a live one compares what it planned on.
    return context.publisher.publish(branch, changes, expected, intent, schema_lock=SchemaLock.HELD)


def finish(
    context: RecoveryContext,
    sidecar: Sidecar,
    *,
    kind: RecoveryKind,
    commit_id: CommitId,
    outcomes: Sequence[TableOutcome],
) -> RecoveryRecord:
    """Write the audit row, exactly once per operation, then delete the sidecar."""
    failpoint(
        Window.RECOVERY_ORPHAN_DISCARD_AUDIT_APPEND
        if kind is RecoveryKind.ORPHANED_BRANCH_DISCARDED
        else Window.RECOVERY_RECORD_AUDIT
    )
    record = context.recoveries.append_once(
        RecoveryRecord(
            graph_commit_id=commit_id,
            recovery_kind=kind,
            recovery_for_actor=sidecar.actor,
            operation_id=sidecar.operation_id,
            sidecar_writer_kind=sidecar.writer_kind.value,
            per_table_outcomes=tuple(outcomes),
            created_at_us=context.clock.now_us(),
        )
    )
    # A note that cannot be deleted is found again with its audit row, and then only deleted.
    context.sidecars.delete_or_warn(sidecar.operation_id)
    emit(RecoveryPerformed(sidecar.operation_id, record.recovery_kind.value))
    return record


def finish_from_record(context: RecoveryContext, sidecar: Sidecar, record: CommitRecord) -> RecoveryRecord:
    """Complete an earlier pass, whose publish landed and whose audit row may be missing."""
    outcomes = _outcomes(record.summary)
    kind = RecoveryKind.ROLLED_BACK
    if any(each.to_version > each.from_version for each in outcomes) or not sidecar.tables:
        kind = RecoveryKind.ROLLED_FORWARD
    return finish(context, sidecar, kind=kind, commit_id=record.id, outcomes=outcomes)


def _summary(outcomes: Sequence[TableOutcome]) -> dict[str, dict[str, int]]:
    return {
        each.table_key: {"from_version": each.from_version, "to_version": each.to_version}
        for each in outcomes
    }


def _outcomes(summary: Mapping[str, Mapping[str, int]]) -> tuple[TableOutcome, ...]:
    return tuple(
        TableOutcome(TableKey(key), versions["from_version"], versions["to_version"])
        for key, versions in summary.items()
    )
