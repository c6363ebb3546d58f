"""A snapshot as rows of its types, in export order, and as JSON lines in the load format."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from omnigraph.catalog.schema import EdgeType
from omnigraph.core.errors import TypeNotFound
from omnigraph.core.ids import TableKey
from omnigraph.engine.entities.lines import csv_header, csv_lines, json_lines
from omnigraph.engine.entities.ordered import ordered_batches
from omnigraph.engine.readable import own_names
from omnigraph.language.diagnostics import near_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from omnigraph.catalog.schema import Catalog, TableType
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot

Item = TypeVar("Item")
Result = TypeVar("Result")


def export_lines(
    session: GraphSession, snapshot: Snapshot, *, types: Sequence[str] | None = None
) -> Iterator[bytes]:
    """Chunks of complete JSON lines: node types by name, then edge types by name, rows by ascending id.

    `types` selects by name (a node type, an edge type, or both); an unknown name raises `TypeNotFound`
    before the first chunk. Memory: that of `ordered_batches`, plus a few batches of rows.
    """
    chosen = select_types(session.catalog_of(snapshot), own_names(session, snapshot, types))
    return _line_chunks(session, snapshot, chosen)


def _line_chunks(session: GraphSession, snapshot: Snapshot, types: Sequence[TableType]) -> Iterator[bytes]:
    with session.manifest.reading(snapshot):
        for table_type in types:
            rows = type_rows(session, snapshot, table_type)
            yield from ahead(partial(json_lines, table_type=table_type), rows)


def export_csv(session: GraphSession, snapshot: Snapshot, table_type: TableType) -> Iterator[bytes]:
    """Chunks of CSV: a header, then the rows of one type by ascending id."""
    yield csv_header(file_columns(table_type))
    with session.manifest.reading(snapshot):
        yield from ahead(csv_lines, type_rows(session, snapshot, table_type))


def select_types(catalog: Catalog, names: Sequence[str] | None) -> list[TableType]:
    """The types to export, in export order."""
    ordered: list[TableType] = [*catalog.nodes.values(), *catalog.edges.values()]
    if names is None:
        return ordered
    known = {each.name for each in ordered}
    for name in names:
        if name not in known:
            raise TypeNotFound(name, candidates=near_names(name, sorted(known)))
    wanted = set(names)
    return [each for each in ordered if each.name in wanted]


def type_rows(session: GraphSession, snapshot: Snapshot, table_type: TableType) -> Iterator[pa.Table]:
    """The rows of a type by ascending id, in stored columns, a few at a time."""
    entry = snapshot.entries.get(TableKey(table_type.table_key))
    if entry is None or entry.row_count == 0:
        return iter(())
    return ordered_batches(session, session.open_entry(entry), table_type.arrow_schema.names)


def file_columns(table_type: TableType) -> list[str]:
    """The stored columns as CSV and Parquet files call them: the ends of an edge are `from` and `to`."""
    names = list(table_type.arrow_schema.names)
    if isinstance(table_type, EdgeType):
        names[names.index("src")], names[names.index("dst")] = "from", "to"
    return names


def ahead(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Apply the function to the items, in order, a few items ahead of the caller on other threads."""
    threads = os.cpu_count() or 1
    window: deque[Future[Result]] = deque()
    source: Any = items
    with ThreadPoolExecutor(threads, "omnigraph-export") as pool:
        try:
            for item in source:
                window.append(pool.submit(function, item))
                if len(window) > threads:
                    yield window.popleft().result()
            while window:
                yield window.popleft().result()
        finally:
            for waiting in window:
                waiting.cancel()
            if hasattr(source, "close"):  # a generator may hold temporary files
                source.close()
