"""The tables of a branch brought to another schema: staged column changes, new tables, names that go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from omnigraph.catalog.table_changes import ColumnMap
from omnigraph.core.failpoints import Window
from omnigraph.core.ids import TableKey
from omnigraph.engine.create import index_plans
from omnigraph.engine.evolve.columns import column_work, write_values
from omnigraph.engine.evolve.rows import runner
from omnigraph.engine.write.parts import LaterPart, NewTable, Reshape, StagedPart, TableWrite
from omnigraph.storage.handles import Stamp
from omnigraph.storage.layout import table_location

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from omnigraph.catalog.schema import TableType
    from omnigraph.catalog.table_changes import CatalogChange, TableChange
    from omnigraph.core.ids import OperationId
    from omnigraph.engine.evolve.columns import ColumnWork
    from omnigraph.engine.evolve.rows import BulkWork
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.parts import Part
    from omnigraph.manifest.state import Snapshot, TableEntry
    from omnigraph.planning.fills import Fill
    from omnigraph.storage.handles import SnapshotHandle, StagedHandle

COMMITTED: Final = Window.SCHEMA_APPLY_AFTER_TABLE_COMMIT
NO_FILLS: Final[Mapping[TableKey, Sequence[Fill]]] = {}


def table_writes(
    session: GraphSession,
    snapshot: Snapshot,
    change: CatalogChange,
    operation_id: OperationId,
    fills: Mapping[TableKey, Sequence[Fill]] = NO_FILLS,
    bulk: BulkWork | None = None,
) -> dict[TableKey, TableWrite]:
    """The tables whose columns change, with their commits. Values of new columns are written here, and no
    others.
    """
    writes: dict[TableKey, TableWrite] = {}
    for each in change.kept:
        entry = snapshot.entries.get(each.key)
        if entry is None or each.columns is None:
            continue
        work = column_work(session, entry, each, fills.get(each.new_key, ()))
        columns = each.columns if work is None else work.columns
        first, *rest = _commits(each, columns) if entry.row_count else [columns]
        stamp = Stamp(operation_id, each.key)
        if work is None:
            part: Part = _metadata_part(session, first, stamp)
        else:
            staged = _stage_values(session, replace(work, columns=first), entry, stamp, bulk)
            part = StagedPart(staged, after=COMMITTED)
        parts = (part, *(_metadata_part(session, later, stamp) for later in rest))
        writes[each.key] = TableWrite(entry, session.open_entry(entry), parts)
    return writes


def _commits(change: TableChange, columns: ColumnMap) -> list[ColumnMap]:
    """The commits that make the change. Columns that come and others that may be null, or may not be any
    longer, are two: the table format takes only one of both at a time.
    """
    before, wanted = change.before.arrow_schema, columns.schema
    comes = set(columns.written) | (set(wanted.names) - set(columns.sources))
    kept = [name for name in wanted.names if name not in comes]
    nullable = {name: before.field(columns.sources[name]).nullable for name in kept}
    if not comes or all(wanted.field(name).nullable is each for name, each in nullable.items()):
        return [columns]
    fields = [each.with_nullable(nullable.get(each.name, each.nullable)) for each in wanted]
    same = {name: name for name in wanted.names}
    return [replace(columns, schema=pa.schema(fields)), ColumnMap(wanted, same)]


def _metadata_part(session: GraphSession, columns: ColumnMap, stamp: Stamp) -> LaterPart:
    def stage(handle: SnapshotHandle) -> StagedHandle | None:
        return session.storage.stage_columns(handle, columns, stamp)

    return LaterPart(stage, after=COMMITTED)


def _stage_values(
    session: GraphSession, work: ColumnWork, entry: TableEntry, stamp: Stamp, bulk: BulkWork | None
) -> StagedHandle:
    run = runner(session, bulk, f"write columns of {entry.table_key}", work.count, work.bytes)
    written = write_values(work, run)
    return session.storage.stage_columns(session.open_entry(entry), work.columns, stamp, written)


def reshape(
    session: GraphSession,
    snapshot: Snapshot,
    change: CatalogChange,
    operation_id: OperationId,
    *,
    makes_added: bool = True,
    stage_schema: Callable[[], None] | None = None,
    place_schema: Callable[[], None] | None = None,
) -> Reshape:
    """What the branch gets and loses beside the commits of its tables.

    `makes_added=False`: the tables of added types exist already.
    """
    taken = set(snapshot.registrations.values())
    created: list[NewTable] = []
    for each in change.added if makes_added else ():
        location = _free_location(session, TableKey(each.table_key), taken)
        taken.add(location)
        created.append(_new_table(session, each, location, operation_id))
    shown = snapshot.entries
    return Reshape(
        created=tuple(created),
        renamed={old: new for old, new in change.renamed.items() if old in shown},
        dropped=frozenset(key for each in change.dropped if (key := TableKey(each.table_key)) in shown),
        stage_schema=stage_schema,
        place_schema=place_schema,
    )


def _free_location(session: GraphSession, key: TableKey, taken: set[str]) -> str:
    """Where a new table may lie: nobody registers anything there, and nothing was left there."""
    incarnation = 1
    while (location := table_location(key, incarnation)) in taken or session.adapter.exists(location):
        incarnation += 1
    return location


def _new_table(
    session: GraphSession, table_type: TableType, location: str, operation_id: OperationId
) -> NewTable:
    key = TableKey(table_type.table_key)

    def make() -> SnapshotHandle:
        plans = index_plans(table_type, on_empty=True)
        stamp = Stamp(operation_id, key)
        return session.storage.create_table(key, location, table_type.arrow_schema, stamp, plans)

    return NewTable(key, location, make)
