"""Recording what became of an abandoned operation, and taking its sidecar away."""

from collections.abc import Sequence

from omnigraph.core.events import RecoveryPerformed, emit
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import Branch, CommitId, TableKey, new_ulid
from omnigraph.manifest.changes import Change, CommitIntent, Expectations
from omnigraph.manifest.commit_record import CommitRecord
from omnigraph.manifest.publisher import SchemaLock
from omnigraph.manifest.recoveries import RecoveryKind, RecoveryRecord, TableOutcome
from omnigraph.manifest.state import Snapshot
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.schema_state import settle_schema_files
from omnigraph.recovery.sidecar import Sidecar
from omnigraph.storage.checksums import FileSum

RECOVERY_ACTOR = "omnigraph:recovery"
RECOVERY_OPERATION = "recovery"
_WITHOUT_TABLES = "graph:recovery"
"""Marks a roll-forward of an operation that touches no table; no type can be named like this."""


def publish_recovery(
    context: RecoveryContext,
    sidecar: Sidecar,
    *,
    branch: Branch,
    changes: Sequence[Change],
    expected: Expectations,
    kind: RecoveryKind,
    outcomes: Sequence[TableOutcome],
    merged_parent: CommitId | None = None,
    schema_hash: str | None = None,
    files: Sequence[FileSum] = (),
) -> Snapshot:
    """One publish that carries the recovery's changes and its commit record.

    The record names the operation it settles and what happened to each table, so a pass that dies after this
    point can be finished from it. Without changes only the commit record is published.
    """
    forward = kind is RecoveryKind.ROLLED_FORWARD
    intent = CommitIntent(
        commit_id=CommitId(new_ulid()),
        operation=RECOVERY_OPERATION,
        actor=RECOVERY_ACTOR,
        recovers=sidecar.operation_id,
        merged_parent=merged_parent,
        summary=summary_of(outcomes, forward=forward),
        schema_hash=schema_hash,
        requests=sidecar.requests if forward else 1,
        # Whoever sends one of these requests again gets this commit for an answer.
        keys=sidecar.keys if forward else (),
    )
    context.lease.check()
    # A schema apply that died holds its lock for ever, and a live one compares what it planned on.
    return context.publisher.publish(
        branch, changes, expected, intent, schema_lock=SchemaLock.HELD, files=files
    )


def finish(
    context: RecoveryContext,
    sidecar: Sidecar,
    *,
    kind: RecoveryKind,
    commit_id: CommitId,
    outcomes: Sequence[TableOutcome],
) -> RecoveryRecord:
    """Let schema files follow, write the audit row, exactly once per operation, then delete the sidecar."""
    if sidecar.changes_accepted_schema:
        settle_schema_files(context, sidecar.operation_id)
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
    outcomes = tuple(
        TableOutcome(TableKey(key), versions["from_version"], versions["to_version"])
        for key, versions in record.summary.items()
        if key != _WITHOUT_TABLES
    )
    forward = any(each.to_version > each.from_version for each in outcomes)
    if not outcomes and _WITHOUT_TABLES in record.summary:
        forward = True
    kind = RecoveryKind.ROLLED_FORWARD if forward else RecoveryKind.ROLLED_BACK
    return finish(context, sidecar, kind=kind, commit_id=record.id, outcomes=outcomes)


def summary_of(outcomes: Sequence[TableOutcome], *, forward: bool) -> dict[str, dict[str, int]]:
    """What the commit record keeps of a recovery, so that a dead pass can be finished from it."""
    if forward and not outcomes:
        return {_WITHOUT_TABLES: {"rolled_forward": 1}}
    return {
        each.table_key: {"from_version": each.from_version, "to_version": each.to_version}
        for each in outcomes
    }
