"""Files and indexes of a branch, written anew without what is deleted in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnigraph.core.errors import InternalError, ResourceBusy
from omnigraph.core.failpoints import Window
from omnigraph.core.ids import CommitId, OperationId, new_ulid
from omnigraph.engine.write.ground import Ground, ReadSetMoved, WhenMoved
from omnigraph.engine.write.parts import LaterPart, StagedPart, TableWrite, Windows, WriteIntent
from omnigraph.engine.write.protocol import Staged, carry
from omnigraph.maintenance.compacting import compacted, stage_compaction
from omnigraph.maintenance.indices import FOLD_OPERATION, declared_plans, is_buildable, present_of, unneeded
from omnigraph.recovery.sidecar import WriterKind
from omnigraph.storage.handles import Stamp

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from omnigraph.catalog.schema import TableType
    from omnigraph.core.ids import Branch
    from omnigraph.engine.evolve.rows import BulkWork
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.parts import Part
    from omnigraph.manifest.state import Snapshot, TableEntry
    from omnigraph.recovery.outcome import WriteCourse
    from omnigraph.storage.handles import SnapshotHandle, StagedHandle
    from omnigraph.storage.indexes import IndexPlan

ATTEMPTS: Final = 5
WINDOWS: Final = Windows(pre_publish=Window.OPTIMIZE_POST_PHASE_B_PRE_MANIFEST_COMMIT)


def rewrite_files(
    session: GraphSession,
    branch: Branch,
    locations: Collection[str],
    files: Collection[str],
    *,
    actor: str | None,
    course: WriteCourse,
    bulk: BulkWork | None,
) -> Snapshot:
    """Write the fragments that have one of these files anew, and every index of these tables: one commit.

    Deleted rows are in neither afterwards. A branch that only inherits a table gets its own. Gives back what
    the branch shows then. Raises `ResourceBusy` when other writers moved the tables again and again.
    Cost: the rewritten fragments, and the indexed columns of the tables.
    """
    for _ in range(ATTEMPTS):
        head = session.manifest.head(branch)
        ground = Ground(head.snapshot, head.token or "", WhenMoved.PREPARE_AGAIN)
        entries = [entry for _, entry in sorted(head.snapshot.entries.items()) if entry.location in locations]
        intent = WriteIntent(
            kind=WriterKind.OPTIMIZE,
            operation=FOLD_OPERATION,
            operation_id=OperationId(new_ulid()),
            commit_id=CommitId(new_ulid()),
            actor=actor,
        )
        writes = [
            _write(session, head.snapshot, entry, files, intent.operation_id, bulk) for entry in entries
        ]
        tables = {write.entry.table_key: write for write in writes if write is not None}
        if not tables:
            return head.snapshot
        try:
            return carry(session, Staged(intent, ground, course, tables, windows=WINDOWS)).snapshot
        except ReadSetMoved:
            continue
    raise ResourceBusy("the tables kept moving while they were written anew", hint="try again later")


def _write(
    session: GraphSession,
    snapshot: Snapshot,
    entry: TableEntry,
    files: Collection[str],
    operation_id: OperationId,
    bulk: BulkWork | None,
) -> TableWrite | None:
    """What one table gets; None when there is nothing to write anew."""
    table_type = session.catalog_of(snapshot).type_of(entry.table_key)
    handle = session.open_entry(entry)
    stamp = Stamp(operation_id, entry.table_key)
    groups = [
        [each.id] for each in session.storage.fragments(handle) if not set(files).isdisjoint(each.files)
    ]

    def anew(on: SnapshotHandle) -> StagedHandle | None:
        return session.storage.stage_indexes(on, _plans(session, table_type, on), stamp, rebuild=True)

    def rewritten(on: SnapshotHandle) -> StagedHandle | None:
        return session.storage.stage_compaction(on, compacted(session, on, groups, None), stamp)

    parts: tuple[Part, ...]
    if entry.branch != snapshot.branch:
        # Only in the branch's own table, which the write makes first, can anything of it be written.
        parts = (*((LaterPart(rewritten),) if groups else ()), LaterPart(anew))
    elif groups:
        parts = stage_compaction(session, handle, groups, stamp, anew, bulk, dropped=_misfit)
    else:
        built = anew(handle)
        if built is None:
            return None
        parts = (StagedPart(built, before=Window.ENSURE_INDICES_POST_STAGE_PRE_COMMIT_BTREE),)
    return TableWrite(entry, handle, parts)


def _misfit() -> None:
    # Nobody moved the table since, so an old index would still know the subject.
    raise InternalError("the indexes of a table do not fit the version they were built for")


def _plans(session: GraphSession, table_type: TableType, handle: SnapshotHandle) -> Sequence[IndexPlan]:
    """The indexes that there are afterwards: those there are and those something would read."""
    known = {each.role: each for each in session.storage.index_coverage(handle)}
    return [
        plan
        for plan in declared_plans(table_type)
        if (
            present_of(plan, known) is not None
            or unneeded(session, table_type, plan, handle.row_count) is None
        )
        and is_buildable(session, handle, plan, None)
    ]
