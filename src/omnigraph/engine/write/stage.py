"""Staging: the tables of a write become files that nobody points at.

`plan_tables` decides what each table will get, without writing; `stage_tables` writes it. What the commit
will announce is known in between, so that the rows of the publish can be written beside the tables.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from omnigraph.arrays.addresses import ABSENT
from omnigraph.arrays.keys import string_array
from omnigraph.core.errors import ExpectedVersionMismatch, InternalError
from omnigraph.core.events import TableStaged, emit, listening
from omnigraph.core.failpoints import Window
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.write.gathered import MutationStaging, PendingMode, PendingTable
from omnigraph.engine.write.ground import ReadSetMoved
from omnigraph.engine.write.parts import KeyChange, StagedPart, TableWrite
from omnigraph.engine.write.records import entry_after
from omnigraph.engine.write.rows import in_schema
from omnigraph.storage.handles import SnapshotHandle, StagedHandle, Stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from omnigraph.arrays.types import Addresses
    from omnigraph.core.ids import TableKey
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import TableEntry

STAGE_THREADS: Final = 2
"""Tables a mutation stages or commits at once: most of the time is spent waiting for threads of Lance."""

SOUGHT_BESIDE_MIN: Final = 1024
"""From this many ids, the rows they replace are looked up while the new rows are written."""


_NO_IDS: Final = pa.array([], pa.string())
_NO_ADDRESSES: Final[Addresses] = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """What one table will get: all but the files."""

    entry: TableEntry
    handle: SnapshotHandle
    stamp: Stamp
    transaction_uuid: str
    pending: PendingTable | None
    """None: rows are only hidden."""
    rows: pa.Table | None
    """Rows in memory, with the table's own schema."""
    ids: pa.StringArray | None
    """Ids of the written rows in the order of writing; None when only the executors know them."""
    hides: Callable[[], Addresses]
    """Gives the addresses of the rows of `handle` that the commit hides; may have to wait for them."""

    @property
    def is_announced(self) -> bool:
        """Whether `coming` is known before the files are."""
        return self.pending is None or (
            self.rows is not None and self.pending.mode is not PendingMode.OVERWRITE
        )

    def coming(self) -> TableEntry:
        """The entry the commit will make. May wait for the addresses."""
        added = 0 if self.rows is None else self.rows.num_rows
        return entry_after(
            self.entry, self.transaction_uuid, rows_added=added, rows_removed=len(self.hides())
        )


def plan_tables(session: GraphSession, staging: MutationStaging) -> dict[TableKey, PlannedTable]:
    """What every touched table will get, in key order, against the snapshot of the write. Writes nothing."""
    planned: dict[TableKey, PlannedTable] = {}
    for key in staging.written_tables():
        table = _plan(session, staging, key, staging.snapshot.entries[key])
        if table.pending is not None or len(table.hides()):
            planned[key] = table
    return planned


def stage_tables(
    session: GraphSession,
    staging: MutationStaging,
    planned: Mapping[TableKey, PlannedTable],
    *,
    threads: int = STAGE_THREADS,
) -> dict[TableKey, TableWrite]:
    """Stage every planned table once. Holds no queue; a failure leaves unreferenced files only."""
    keys = list(planned)
    # A load may stage for minutes; threads that the syncs of other writes need must not wait for it.
    spread = session.share if threads <= STAGE_THREADS else session.map_tables
    tables = spread(lambda key: _stage(session, staging, planned[key]), keys, threads=threads)
    return dict(zip(keys, tables, strict=True))


def restage(
    session: GraphSession, staging: MutationStaging, table: TableWrite, entry: TableEntry
) -> TableWrite:
    """A relaxed write against a newer pin: the files stay, and an upsert hides the rows that have its ids
    there now.
    """
    key = entry.table_key
    pending = staging.pending[key]
    if pending.mode is PendingMode.APPEND:
        return _moved(session, table, entry, session.open_entry(entry), None)
    if pending.mode is PendingMode.OVERWRITE or pending.fragments:
        mismatch = ExpectedVersionMismatch(table_key=key, expected=table.entry.version, actual=entry.version)
        raise mismatch if pending.mode is PendingMode.OVERWRITE else ReadSetMoved(mismatch)
    planned = _plan(session, staging, key, entry)
    if entry.branch != staging.branch:
        return _stage(session, staging, planned)  # deletion files belong to the fork that comes
    moved = _moved(session, table, entry, planned.handle, planned.hides())
    if listening() and planned.rows is not None:
        # Staged again, without writing its rows.
        emit(TableStaged(key, "stage_merge_insert", planned.rows.num_rows, 0))
    keys = None if planned.ids is None else KeyChange(planned.ids, planned.hides())
    return replace(moved, keys=keys)


def _moved(
    session: GraphSession,
    table: TableWrite,
    entry: TableEntry,
    handle: SnapshotHandle,
    hides: Addresses | None,
) -> TableWrite:
    parts = [
        replace(part, staged=session.storage.rebase(part.staged, handle, addresses=hides))
        for part in table.parts
        if isinstance(part, StagedPart)
    ]
    return replace(table, entry=entry, handle=handle, parts=tuple(parts))


def _plan(
    session: GraphSession, staging: MutationStaging, table_key: TableKey, entry: TableEntry
) -> PlannedTable:
    handle = session.open_entry(entry)
    own_uuid = str(uuid.uuid4())
    stamp = Stamp(staging.operation_id, table_key, own_uuid)
    removal = staging.deletions.get(table_key)
    if removal is not None:
        return PlannedTable(
            entry, handle, stamp, own_uuid, None, None, _NO_IDS, _given(removal.all_addresses())
        )
    pending = staging.pending[table_key]
    if pending.fragments:
        hides = _given(pending.fragment_addresses)
        return PlannedTable(entry, handle, stamp, own_uuid, pending, None, None, hides)
    rows = pending.combined()
    ids = string_array(rows.column("id"))
    rows = in_schema(rows, handle.schema)
    hides = _given(None)
    if pending.mode is PendingMode.MERGE:
        same_base = entry.version == staging.expected_versions[table_key]
        hides = _replaced(session, pending, handle, ids, same_base=same_base)
    known = None if pending.mode is PendingMode.OVERWRITE else ids
    return PlannedTable(entry, handle, stamp, own_uuid, pending, rows, known, hides)


def _given(addresses: Addresses | None) -> Callable[[], Addresses]:
    return lambda: _NO_ADDRESSES if addresses is None else addresses


def _replaced(
    session: GraphSession,
    pending: PendingTable,
    handle: SnapshotHandle,
    ids: pa.StringArray,
    *,
    same_base: bool,
) -> Callable[[], Addresses]:
    """What gives the addresses of the committed rows the pending rows replace."""

    def sought() -> Addresses:
        found = session.keys.addresses(session.root.identity, session.storage, handle, ids)
        return found[found != ABSENT]

    known = pending.known_addresses(ids, same_base=same_base)
    if known is not None:
        return _given(known[known != ABSENT])
    return _given(sought()) if len(ids) < SOUGHT_BESIDE_MIN else session.submit(sought).result


def _stage(session: GraphSession, staging: MutationStaging, planned: PlannedTable) -> TableWrite:
    staged = _write(session, planned, before_fork=planned.entry.branch != staging.branch)
    part = StagedPart(staged, after=Window.MUTATION_POST_TABLE_COMMIT)
    keys = None if planned.ids is None else KeyChange(planned.ids, planned.hides())
    return TableWrite(planned.entry, planned.handle, (part,), keys)


def _write(session: GraphSession, planned: PlannedTable, *, before_fork: bool) -> StagedHandle:
    storage, handle, stamp = session.storage, planned.handle, planned.stamp
    pending, rows, hides = planned.pending, planned.rows, planned.hides
    if pending is None:
        deleted = storage.stage_delete(handle, stamp, addresses=hides(), before_fork=before_fork)
        if deleted is None:
            raise InternalError(f"a delete of '{handle.table_key}' that hides nothing was staged")
        return deleted
    if rows is None:
        return storage.stage_fragments(
            handle, pending.fragments, pending.mode.value, stamp, addresses=hides(), before_fork=before_fork
        )
    match pending.mode:
        case PendingMode.APPEND:
            return storage.stage_append(handle, rows, stamp)
        case PendingMode.OVERWRITE:
            return storage.stage_overwrite(handle, rows if rows.num_rows else None, stamp)
        case PendingMode.MERGE:
            many = rows.num_rows >= SOUGHT_BESIDE_MIN
            return storage.stage_merge_insert(
                handle, rows, stamp, addresses=hides if many else hides(), before_fork=before_fork
            )


__all__ = [
    "STAGE_THREADS",
    "PlannedTable",
    "plan_tables",
    "restage",
    "stage_tables",
]
