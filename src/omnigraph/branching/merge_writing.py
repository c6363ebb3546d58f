"""Writing a planned merge: stage everything, then carry it through the write protocol.

A process that dies before the sidecar leaves unreferenced files. After it, recovery rolls the merge back
unless the sidecar was confirmed: then every table is complete and recovery publishes all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from omnigraph.branching.delta_engine import TABLES_AT_ONCE
from omnigraph.branching.equality import chunk_rows, in_fields, read_rows
from omnigraph.branching.merge_plan import TableAction
from omnigraph.branching.mixed_rows import mixed_rows
from omnigraph.core.errors import InternalError
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import CommitId, OperationId, TableKey, new_ulid
from omnigraph.core.progress import Steps
from omnigraph.engine.write.afterwards import offer_index_work
from omnigraph.engine.write.ground import Ground, WhenMoved
from omnigraph.engine.write.parts import StagedPart, Switch, TableWrite, Windows, WriteIntent
from omnigraph.engine.write.protocol import Staged, carry
from omnigraph.recovery.sidecar import WriterKind
from omnigraph.storage.handles import Stamp

if TYPE_CHECKING:
    from omnigraph.arrays.types import Addresses
    from omnigraph.branching.merge_planning import MergePlan
    from omnigraph.branching.merge_step import MergeStep
    from omnigraph.core.cancel import Cancellation
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot
    from omnigraph.recovery.outcome import WriteCourse

WINDOWS: Final = Windows(
    pre_fork=Window.BRANCH_MERGE_POST_SIDECAR_PRE_FORK,
    between_tables=Window.BRANCH_MERGE_BETWEEN_TABLES,
    pre_confirm=Window.BRANCH_MERGE_POST_EFFECTS_PRE_CONFIRM,
    pre_publish=Window.BRANCH_MERGE_POST_PHASE_B_PRE_MANIFEST_COMMIT,
)


@dataclass(frozen=True, slots=True)
class MergeRecord:
    """What the commit of a merge says about itself."""

    operation: str
    actor: str | None
    merged_parent: CommitId | None


def write_merge(
    session: GraphSession, plan: MergePlan, record: MergeRecord, cancel: Cancellation, course: WriteCourse
) -> Snapshot:
    """Make the planned merge visible as one commit, or change nothing a reader can see.

    Raises `ExpectedVersionMismatch` when the target moved since the plan: nothing has happened then. Raises
    `RecoveryRequired` when it stopped after its first effect: the sidecar stays for recovery.
    """
    operation_id = OperationId(new_ulid())
    written = {step.table_key: step for step in plan.steps if step.writes_rows}

    def stage(key: TableKey) -> TableWrite:
        return stage_step(session, written[key], plan.target, operation_id)

    staging = Steps("merge", "write", len(written), "tables")
    tables = session.share(staging.counting(stage), list(written), threads=TABLES_AT_ONCE)
    failpoint(Window.BRANCH_MERGE_POST_CLASSIFY_PRE_QUEUE)
    staged = Staged(
        _intent(plan, record, operation_id),
        Ground(plan.target, plan.target_identity, WhenMoved.REFUSE, reads=frozenset(plan.read_set)),
        course,
        dict(zip(written, tables, strict=True)),
        switches={
            step.table_key: Switch(step.source, forks=step.action is TableAction.FORK)
            for step in plan.steps
            if step.action in {TableAction.SWITCH, TableAction.FORK}
        },
        windows=WINDOWS,
        # Tables do not depend on each other, and a merge that stops among them is rolled back in any case.
        tables_at_once=TABLES_AT_ONCE,
    )
    published = carry(session, staged, cancel=cancel).snapshot
    rewritten = [key for key, step in written.items() if step.action is TableAction.REWRITE]
    if rewritten:  # a fast-forward builds no index
        offer_index_work(session, published, rewritten, always=True)
    return published


def _intent(plan: MergePlan, record: MergeRecord, operation_id: OperationId) -> WriteIntent:
    return WriteIntent(
        kind=WriterKind.BRANCH_MERGE,
        operation=record.operation,
        operation_id=operation_id,
        commit_id=CommitId(new_ulid()),
        actor=record.actor,
        merged_parent=record.merged_parent,
        schema_hash=plan.schema_hash,
        summary=plan.summary,
    )


# --- stage ---------------------------------------------------------------------------------------------


def stage_step(
    session: GraphSession, step: MergeStep, target: Snapshot, operation_id: OperationId
) -> TableWrite:
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
            parts.append(StagedPart(appended, after=Window.BRANCH_MERGE_ADOPT_AFTER_APPEND_PRE_UPSERT))
        written, after_merge = changes.upserts.after, Window.BRANCH_MERGE_ADOPT_AFTER_UPSERT_PRE_DELETE
    else:
        written = np.concatenate([changes.appends.addresses, changes.upserts.after])
        after_merge = Window.BRANCH_MERGE_REWRITE_AFTER_MERGE_PRE_DELETE
    if len(written) or len(changes.mixed):
        hidden = np.concatenate([changes.upserts.before, changes.mixed.pairs.before])
        merged = storage.stage_merge_insert(
            handle,
            _with_mixed(session, step, source_rows(session, step, written)),
            stamp,
            addresses=hidden,
            before_fork=forks or bool(parts),
        )
        parts.append(StagedPart(merged, hidden, after=after_merge))
    if len(changes.deletes):
        hidden = changes.deletes.addresses
        deleted = storage.stage_delete(handle, stamp, addresses=hidden, before_fork=forks or bool(parts))
        if deleted is not None:
            window = Window.BRANCH_MERGE_REWRITE_AFTER_DELETE_PRE_INDEX
            parts.append(StagedPart(deleted, hidden, after=window))
    return TableWrite(step.target, handle, tuple(parts))


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


def _with_mixed(
    session: GraphSession, step: MergeStep, rows: pa.RecordBatchReader | pa.Table
) -> pa.RecordBatchReader | pa.Table:
    """The rows, and after them those that are put together from both sides."""
    handle, mixed = step.target_handle, step.changes.mixed
    if handle is None or not len(mixed):
        return rows

    def batches() -> Any:
        yield from rows.to_batches() if isinstance(rows, pa.Table) else rows
        for table in mixed_rows(
            session.storage, mixed, step.source_handle, handle, list(handle.schema), step.held
        ):
            yield from table.to_batches()

    return pa.RecordBatchReader.from_batches(pa.schema(list(handle.schema)), batches())


def _held_rows(step: MergeStep, addresses: Addresses) -> pa.Table | None:
    return None if step.held is None else step.held.take(addresses)
