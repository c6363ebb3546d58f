"""Writing a planned merge: stage everything, then commit, confirm and publish under the queues and the lease.

A process that dies before the sidecar leaves unreferenced files. After it, recovery rolls the merge back
unless the sidecar was confirmed: then every table is complete and recovery publishes all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from omnigraph.branching.bulk import TABLES_AT_ONCE
from omnigraph.branching.equality import chunk_rows, in_fields, read_rows
from omnigraph.branching.merge_plan import TableAction
from omnigraph.core.errors import (
    ExpectedVersionMismatch,
    InternalError,
    ReadSetConflict,
)
from omnigraph.core.events import Warned, emit
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import CommitId, OperationId, new_ulid, show_branch
from omnigraph.engine.write.forks import fork_table
from omnigraph.manifest.changes import CommitIntent, RegisterTable, SubTableUpdate
from omnigraph.recovery.drift import drift_guard
from omnigraph.recovery.outcome import left_to_recovery
from omnigraph.recovery.sidecar import Sidecar, SidecarPin, SidecarRead, SidecarSwitch, WriterKind
from omnigraph.storage.handles import Stamp

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from omnigraph.arrays.types import Addresses
    from omnigraph.branching.planning import MergePlan, MergeStep
    from omnigraph.core.cancel import Cancellation
    from omnigraph.core.ids import TableKey
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.changes import Change
    from omnigraph.manifest.state import Snapshot
    from omnigraph.recovery.outcome import WriteCourse
    from omnigraph.storage.handles import SnapshotHandle, StagedHandle


@dataclass(frozen=True, slots=True)
class MergeRecord:
    """What the commit of a merge says about itself."""

    operation: str
    actor: str | None
    merged_parent: CommitId | None


@dataclass(frozen=True, slots=True)
class StagedPart:
    """One commit of a table: its files, the rows it hides, and the window behind it."""

    staged: StagedHandle
    hidden: Addresses | None
    window: Window


@dataclass(frozen=True, slots=True)
class StagedStep:
    """One table that the merge writes rows to."""

    step: MergeStep
    handle: SnapshotHandle
    parts: tuple[StagedPart, ...]


@dataclass(slots=True)
class _Effects:
    """What has happened so far; once anything has, a failure is not "nothing happened" any more."""

    changes: list[Change] = field(default_factory=list["Change"])
    achieved: dict[TableKey, int] = field(default_factory=dict["TableKey", int])
    files: list[str] = field(default_factory=list[str])
    _complete: set[TableKey] = field(default_factory=set["TableKey"])

    def finished(self, key: TableKey) -> int:
        """Note that all commits of a table are made; how many tables that is true of."""
        self._complete.add(key)
        return len(self._complete)


def write_merge(
    session: GraphSession, plan: MergePlan, record: MergeRecord, cancel: Cancellation, course: WriteCourse
) -> Snapshot:
    """Make the planned merge visible as one commit, or change nothing a reader can see.

    Raises `ExpectedVersionMismatch` when the target moved since the plan: nothing has happened then. Raises
    `RecoveryRequired` when it stopped after its first effect: the sidecar stays for recovery.
    """
    operation_id = OperationId(new_ulid())
    written = {step.table_key: step for step in plan.steps if step.writes_rows}
    parts = session.share(
        lambda key: stage_step(session, written[key], plan.target, operation_id),
        list(written),
        threads=TABLES_AT_ONCE,
    )
    staged = dict(zip(written, parts, strict=True))
    failpoint(Window.BRANCH_MERGE_POST_CLASSIFY_PRE_QUEUE)
    cancel.raise_if_requested()
    keys = [(key, plan.target.branch) for key in plan.expected]
    with session.queues.acquire_many(keys), session.lease.hold():
        published = _commit_and_publish(session, plan, record, operation_id, staged, course)
    _reconcile_indexes(session, plan, published)
    return published


# --- stage ---------------------------------------------------------------------------------------------


def stage_step(
    session: GraphSession, step: MergeStep, target: Snapshot, operation_id: OperationId
) -> StagedStep:
    """Write the rows of one table as files nobody points at. Rows stream from the source's table.

    New rows and replacing ones are a commit each, so that new rows are never joined with anything. Deletion
    files name a version, so only the first part may have them already; the others get theirs when the commit
    before them exists.
    """
    handle = step.target_handle
    if handle is None or step.target is None:
        raise InternalError(f"'{step.table_key}' is merged row by row into a table that is not there")
    stamp = Stamp(operation_id, step.table_key)
    changes, storage = step.changes, session.storage
    forks = step.target.branch != target.branch
    parts: list[StagedPart] = []
    if step.action is TableAction.ADOPT:
        if len(changes.appends):
            rows = source_rows(session, step, changes.appends.addresses)
            appended = storage.stage_append_stream(handle, rows, stamp)
            parts.append(StagedPart(appended, None, Window.BRANCH_MERGE_ADOPT_AFTER_APPEND_PRE_UPSERT))
        written, after_merge = changes.upserts.after, Window.BRANCH_MERGE_ADOPT_AFTER_UPSERT_PRE_DELETE
    else:
        written = np.concatenate([changes.appends.addresses, changes.upserts.after])
        after_merge = Window.BRANCH_MERGE_REWRITE_AFTER_MERGE_PRE_DELETE
    if len(written):
        hidden = changes.upserts.before
        merged = storage.stage_merge_insert(
            handle,
            source_rows(session, step, written),
            stamp,
            addresses=hidden,
            before_fork=forks or bool(parts),
        )
        parts.append(StagedPart(merged, hidden, after_merge))
    if len(changes.deletes):
        hidden = changes.deletes.addresses
        deleted = storage.stage_delete(handle, stamp, addresses=hidden, before_fork=forks or bool(parts))
        if deleted is not None:
            window = Window.BRANCH_MERGE_REWRITE_AFTER_DELETE_PRE_INDEX
            parts.append(StagedPart(deleted, hidden, window))
    return StagedStep(step, handle, tuple(parts))


def source_rows(
    session: GraphSession, step: MergeStep, addresses: Addresses
) -> pa.RecordBatchReader | pa.Table:
    """Rows of the source's table in the columns of the target's: those in memory, or read in bounded pieces
    as they are asked for.
    """
    handle = step.target_handle
    if handle is None:
        raise InternalError(f"'{step.table_key}' has no table to write to")
    fields = list(handle.schema)
    size = chunk_rows(fields)
    ordered = np.sort(addresses)
    held = _held_rows(step, ordered)
    if held is not None:
        return in_fields(held, len(ordered), fields)

    def batches() -> Any:
        for start in range(0, len(ordered), size):
            chunk = read_rows(session.storage, step.source_handle, ordered[start : start + size], fields)
            yield from chunk.to_batches()

    return pa.RecordBatchReader.from_batches(pa.schema(fields), batches())


def _held_rows(step: MergeStep, addresses: Addresses) -> pa.Table | None:
    return None if step.held is None else step.held.take(addresses)


# --- commit --------------------------------------------------------------------------------------------


def _commit_and_publish(
    session: GraphSession,
    plan: MergePlan,
    record: MergeRecord,
    operation_id: OperationId,
    staged: dict[TableKey, StagedStep],
    course: WriteCourse,
) -> Snapshot:
    """Phases A to D, under the queues and the lease."""
    _check_target(session, plan)
    for each in staged.values():
        if each.step.target is not None:
            drift_guard(session.recovery, each.step.target, plan.target.branch)
    intent = CommitIntent(
        commit_id=CommitId(new_ulid()),
        operation=record.operation,
        actor=record.actor,
        operation_id=operation_id,
        merged_parent=record.merged_parent,
        summary=plan.summary,
        schema_hash=plan.schema_hash,
    )
    effects = _Effects()
    sidecar = _sidecar(session, plan, record, operation_id, staged) if staged else None
    course.intends(operation_id)
    if sidecar is not None:
        session.sidecars.write(sidecar)
    data_synced = session.submit(
        session.storage.make_durable, [part.staged for each in staged.values() for part in each.parts]
    )
    with left_to_recovery("the merge", operation_id, moved=lambda: bool(effects.achieved)):
        _apply_steps(session, plan, staged, effects)
        _make_durable(session, staged, effects, data_synced)
        if sidecar is not None:
            failpoint(Window.BRANCH_MERGE_POST_EFFECTS_PRE_CONFIRM)
            session.sidecars.confirm_sidecar_phase_b(sidecar, effects.achieved)
            failpoint(Window.BRANCH_MERGE_POST_PHASE_B_PRE_MANIFEST_COMMIT)
        published = session.publisher.publish(plan.target.branch, effects.changes, plan.expected, intent)
    course.published()
    if sidecar is not None:
        session.sidecars.delete_or_warn(operation_id)
    return published


def _check_target(session: GraphSession, plan: MergePlan) -> None:
    """Refuse a merge whose ground is gone, by what storage says now."""
    branch = plan.target.branch
    # No table may move for a publish that will be refused.
    session.manifest.refuse_during_schema_apply()
    current = session.manifest.current(branch)
    if session.branch_identity(branch) != plan.target_identity:
        raise ReadSetConflict(
            "branch", message=f"{show_branch(branch)} was created anew during the merge; merge again"
        )
    if current.schema_hash != plan.target.schema_hash:
        raise ReadSetConflict("schema", message="the schema changed during the merge; merge again")
    for key, seen in sorted(plan.expected.items()):
        if current.pin(key) != seen:
            raise ExpectedVersionMismatch(table_key=key, expected=seen, actual=current.pin(key))


def _sidecar(
    session: GraphSession,
    plan: MergePlan,
    record: MergeRecord,
    operation_id: OperationId,
    staged: dict[TableKey, StagedStep],
) -> Sidecar:
    branch = plan.target.branch
    pins = [
        SidecarPin(
            table_key=key,
            table_path=each.handle.location,
            expected_version=each.handle.version,
            post_commit_pin=each.handle.version + 1,
            table_branch=branch,
        )
        for key, each in sorted(staged.items())
    ]
    switches = [
        SidecarSwitch(
            table_key=step.table_key,
            table_path=step.source.location,
            expected_version=plan.target.pin(step.table_key),
            table_version=step.source.version,
            table_branch=branch if step.action is TableAction.FORK else step.source.branch,
        )
        for step in plan.steps
        if step.action in {TableAction.SWITCH, TableAction.FORK}
    ]
    return Sidecar(
        operation_id=operation_id,
        started_at_us=session.clock.now_us(),
        branch=branch,
        actor=record.actor,
        writer_kind=WriterKind.BRANCH_MERGE,
        tables=tuple(pins),
        merge_source_commit_id=record.merged_parent,
        switches=tuple(switches),
        reads=tuple(
            SidecarRead(key, version)
            for key, version in sorted(plan.read_set.items())
            if key not in staged and not any(switch.table_key == key for switch in switches)
        ),
    )


def _apply_steps(
    session: GraphSession, plan: MergePlan, staged: dict[TableKey, StagedStep], effects: _Effects
) -> None:
    """Phase B: references first, then every table's own commits, several tables beside each other.

    Tables do not depend on each other, and a merge that stops among them is rolled back whatever is done.
    """
    handles = {
        key: _fork(session, plan, each.step, effects) if _inherits(plan, each.step) else each.handle
        for key, each in sorted(staged.items())
    }
    keys = sorted(staged)
    made = session.share(
        lambda key: _commit_parts(session, staged[key], handles[key], effects, len(staged)),
        keys,
        threads=TABLES_AT_ONCE,
    )
    updates = dict(zip(keys, made, strict=True))
    for step in plan.steps:
        if step.table_key in updates:
            effects.changes.append(updates[step.table_key])
        elif step.action is TableAction.SWITCH:
            effects.changes.extend(_shown(plan, step))
        elif step.action is TableAction.FORK:
            handle = _fork(session, plan, step, effects)
            effects.changes.extend(_registered(plan, step))
            made_by = session.storage.transaction_of(handle.location, handle.branch, handle.version)
            effects.changes.append(_update(session, step, handle, "" if made_by is None else made_by.uuid))


def _inherits(plan: MergePlan, step: MergeStep) -> bool:
    return step.target is not None and step.target.branch != plan.target.branch


def _fork(session: GraphSession, plan: MergePlan, step: MergeStep, effects: _Effects) -> SnapshotHandle:
    """Give the target its own reference: at its inherited version, or at the source's for a pure fork."""
    failpoint(Window.BRANCH_MERGE_POST_SIDECAR_PRE_FORK)
    origin = step.source if step.action is TableAction.FORK or step.target is None else step.target
    handle = fork_table(session, origin, plan.target.branch)
    effects.files.extend(session.storage.new_files(handle))
    return handle


def _commit_parts(
    session: GraphSession, staged: StagedStep, handle: SnapshotHandle, effects: _Effects, tables: int
) -> SubTableUpdate:
    """The commits of one table; `tables` is how many the merge writes rows to."""
    key = staged.step.table_key
    inherited = handle is not staged.handle
    for number, part in enumerate(staged.parts):
        ready = part.staged
        if number or inherited:
            # Commits of this merge only add rows or hide other rows, so addresses keep their meaning.
            ready = session.storage.rebase(part.staged, handle, addresses=part.hidden)
        handle = session.storage.commit_staged(handle, ready)
        effects.achieved[key] = handle.version
        effects.files.extend((*ready.files, *session.storage.new_files(handle)))
        failpoint(part.window)
    if effects.finished(key) < tables:
        failpoint(Window.BRANCH_MERGE_BETWEEN_TABLES)
    return _update(session, staged.step, handle, staged.parts[-1].staged.transaction_uuid)


def _update(
    session: GraphSession, step: MergeStep, handle: SnapshotHandle, transaction_uuid: str
) -> SubTableUpdate:
    if step.target is not None and step.target.branch == handle.branch:
        identifier = step.target.branch_identifier
    else:
        identifier = session.storage.branch_identifier(handle.location, handle.branch) or ()
    return SubTableUpdate(
        table_key=step.table_key,
        table_version=handle.version,
        table_branch=handle.branch,
        row_count=handle.row_count,
        transaction_uuid=transaction_uuid,
        branch_identifier=identifier,
    )


def _registered(plan: MergePlan, step: MergeStep) -> list[Change]:
    if step.table_key in plan.target.registrations:
        return []
    return [RegisterTable(step.table_key, step.source.location)]


def _shown(plan: MergePlan, step: MergeStep) -> list[Change]:
    """The changes that show the source's version on the target."""
    entry = step.source
    update = SubTableUpdate(
        table_key=step.table_key,
        table_version=entry.version,
        table_branch=entry.branch,
        row_count=entry.row_count,
        transaction_uuid=entry.transaction_uuid,
        branch_identifier=entry.branch_identifier,
    )
    return [*_registered(plan, step), update]


def _make_durable(
    session: GraphSession, staged: dict[TableKey, StagedStep], effects: _Effects, data_synced: Future[None]
) -> None:
    """Everything the publish will name is on the device before the merge can count as finished."""
    data_synced.result()
    synced = {path for each in staged.values() for part in each.parts for path in part.staged.files}
    session.make_durable([path for path in dict.fromkeys(effects.files) if path not in synced])


def _reconcile_indexes(session: GraphSession, plan: MergePlan, published: Snapshot) -> None:
    """Bring the indexes of rewritten tables up to date before the call returns; a fast-forward never does."""
    rewritten: Sequence[TableKey] = [
        step.table_key for step in plan.steps if step.action is TableAction.REWRITE and step.writes_rows
    ]
    if session.after_publish is None or not rewritten:
        return
    try:
        session.after_publish(session, published, rewritten, always=True)
    except Exception as error:  # noqa: BLE001  the merge is visible; index work is never its failure
        emit(Warned("index work after a merge failed", str(error)))
