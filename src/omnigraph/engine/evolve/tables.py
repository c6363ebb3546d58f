"""The tables of a branch brought to another schema: staged column changes, new tables, names that go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
    """The tables whose columns change, each with one commit. Values of new columns are written here, and no
    others.
    """
    writes: dict[TableKey, TableWrite] = {}
    for each in change.kept:
        entry = snapshot.entries.get(each.key)
        if entry is None or each.columns is None:
            continue
        work = column_work(session, entry, each, fills.get(each.new_key, ()))
        if work is None:
            part: Part = LaterPart(_stage_columns(session, each, operation_id), after=COMMITTED)
        else:
            part = StagedPart(_stage_values(session, work, entry, operation_id, bulk), after=COMMITTED)
        writes[each.key] = TableWrite(entry, session.open_entry(entry), (part,))
    return writes


def _stage_values(
    session: GraphSession,
    work: ColumnWork,
    entry: TableEntry,
    operation_id: OperationId,
    bulk: BulkWork | None,
) -> StagedHandle:
    run = runner(session, bulk, f"write columns of {entry.table_key}", work.count, work.bytes)
    written = write_values(work, run)
    stamp = Stamp(operation_id, entry.table_key)
    return session.storage.stage_columns(session.open_entry(entry), work.columns, stamp, written)


def _stage_columns(
    session: GraphSession, change: TableChange, operation_id: OperationId
) -> Callable[[SnapshotHandle], StagedHandle | None]:
    columns = change.columns

    def stage(handle: SnapshotHandle) -> StagedHandle | None:
        if columns is None:
            return None
        return session.storage.stage_columns(handle, columns, Stamp(operation_id, change.key))

    return stage


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
