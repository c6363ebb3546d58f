"""Read structures in place of indexes on ids: where they serve, and making them before anybody asks.

Rows of a large table are found by its key index, and edges are followed over the adjacency. Both are kept in
cache files. The ordered indexes of the table format on `id`, `src` and `dst` answer only while those are
missing, and after a bulk load building them takes longer than the load itself. So a load makes what reads ask
first, and these indexes are built only where the structures cannot serve. The same goes for the words of a
key that no `@index` asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnigraph.core.errors.base import said
from omnigraph.core.events import Warned, emit
from omnigraph.core.ids import TableKey
from omnigraph.engine.edges.endpoints import EdgeTables
from omnigraph.engine.read.query import read_caches
from omnigraph.engine.tables.cache_work import BACKGROUND
from omnigraph.planning.steps import Direction
from omnigraph.storage.indexes import IndexKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from omnigraph.catalog.schema import TableType
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot
    from omnigraph.storage.indexes import IndexPlan

SERVED_ROWS_MIN: Final = 200_000
"""An ordered index over fewer rows is built in a tenth of a second."""
ROW_BYTES: Final = 64
"""Memory of one row in the structures of its table: a key of usual length, or two ends and two directions."""
MEMORY_SHARE: Final = 4
"""The structures of one table may fill one part in so many of the cache budget."""
ID_COLUMNS: Final = frozenset({"id", "src", "dst"})


def serves(session: GraphSession, table_type: TableType, plan: IndexPlan, rows: int) -> bool:
    """Whether reads of a table with this many rows ask a read structure where they would ask this index."""
    match plan.kind:
        case IndexKind.BTREE:
            return plan.column in ID_COLUMNS and are_kept(session, rows)
        case IndexKind.INVERTED:
            # Words of a key are rarely searched. The first search analyses the texts, and files keep that.
            return plan.column not in table_type.indexed and are_kept(session, rows)
        case IndexKind.VECTOR:
            return False


def are_kept(session: GraphSession, rows: int) -> bool:
    """Whether the read structures of a table with this many rows are kept where every process finds them."""
    if not (session.root.is_local and session.cache_files.writable):
        return False
    return SERVED_ROWS_MIN <= rows <= session.settings.cache_bytes // (MEMORY_SHARE * ROW_BYTES)


def make_ready(session: GraphSession, snapshot: Snapshot, tables: Iterable[TableKey]) -> None:
    """Make the structures that reads of these tables ask first, and wait until files have them. Never fails.

    Cost: the ids of nodes and the ends of edges are read once, in large tables only.
    """
    chosen = frozenset(tables)
    try:
        _make_keys(session, snapshot, chosen)
        _make_adjacencies(session, snapshot, chosen)
        BACKGROUND.drain(session.root.identity)
    except Exception as error:  # noqa: BLE001  what was written is visible; the first read makes them then
        emit(Warned("a read structure was not made", said(error)))


def _make_keys(session: GraphSession, snapshot: Snapshot, chosen: frozenset[TableKey]) -> None:
    for node in session.catalog_of(snapshot).nodes.values():
        entry = snapshot.entries.get(TableKey(node.table_key))
        if entry is not None and entry.table_key in chosen and are_kept(session, entry.row_count):
            session.keys.make(session.root.identity, session.storage, session.open_entry(entry))


def _make_adjacencies(session: GraphSession, snapshot: Snapshot, chosen: frozenset[TableKey]) -> None:
    catalog, caches = session.catalog_of(snapshot), read_caches(session)
    for edge in catalog.edges.values():
        types = (edge, catalog.nodes[edge.source], catalog.nodes[edge.target])
        entries = [snapshot.entries[TableKey(each.table_key)] for each in types]
        if are_kept(session, entries[0].row_count) and any(each.table_key in chosen for each in entries):
            edges, sources, targets = (caches.image(session, entry) for entry in entries)
            tables = EdgeTables(edges, sources, targets)
            for direction in (Direction.FORWARD, Direction.BACKWARD):
                caches.adjacency.neighbours(tables, direction)
