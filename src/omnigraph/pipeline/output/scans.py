"""One type at one commit as Spark reads it: what a task must know, and what it does."""

import datetime as dt
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from omnigraph.catalog.schema import Catalog, TableType
from omnigraph.catalog.table_changes import ColumnMap
from omnigraph.catalog.types import PropertyType, ScalarKind
from omnigraph.core.errors import BadRequest, OmnigraphError, StorageNotFound, TypeNotFound
from omnigraph.core.ids import Branch, TableKey
from omnigraph.core.settings import Settings
from omnigraph.engine.entities.blob_columns import blob_contents
from omnigraph.engine.entities.ordered import batch_rows_of
from omnigraph.engine.readable import naming
from omnigraph.language.diagnostics import near_names
from omnigraph.manifest.state import Snapshot
from omnigraph.pipeline.output.sinks import fragment_groups
from omnigraph.planning.filters import ALWAYS, FilterText, by_stored_names, filter_text
from omnigraph.storage.fragments import open_pinned, open_tables
from omnigraph.storage.layout import GraphRoot

if TYPE_CHECKING:  # tasks load this module too
    from omnigraph.engine.readable import SeenAs
    from omnigraph.engine.session import GraphSession

PARTITION_ROWS: Final = 262_144
"""Small fragments share a partition up to this many rows; a larger fragment is a partition of its own."""
PARTITION_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class FrameScan:
    """What a task needs to read its part of one type at one version. No handle, client or context."""

    root: GraphRoot
    settings: Settings
    table_key: TableKey
    location: str
    branch: Branch
    version: int
    commit: str
    state: tuple[Branch, int]
    """The branch of the graph and the version of its manifest that shows the table so."""
    columns: tuple[str, ...]
    ddl: str
    """The columns as Spark's schema text."""
    where: FilterText | None
    groups: tuple[tuple[int, ...], ...]
    """The fragments of each partition."""
    schema: pa.Schema
    batch_rows: int
    seen: ColumnMap | None = None
    """What the columns were called when the version was written, where that was otherwise."""


def plan_scan(
    session: "GraphSession",
    seen: "SeenAs",
    table_type: TableType,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> FrameScan:
    """A scan pinned to the snapshot. `where` is a condition of the query language, as after `delete … where`.

    Raises BadRequest for an unknown column, and what compiling a query raises for the condition.
    """
    root, settings, snapshot = session.root, session.settings, seen.snapshot
    entry = snapshot.entries[TableKey(table_type.table_key)]
    view = seen.columns.get(entry.table_key)
    names = _columns(table_type, columns)
    store = open_tables(root, settings, snapshot.head)
    handle = open_pinned(store, entry.table_key, entry.location, entry.branch, entry.version)
    fragments = store.fragments(handle)
    groups = fragment_groups(fragments, rows_max=PARTITION_ROWS, bytes_max=PARTITION_BYTES)
    fields = [spark_field(table_type, name) for name in names]
    return FrameScan(
        root=root,
        settings=settings,
        table_key=entry.table_key,
        location=entry.location,
        branch=entry.branch,
        version=entry.version,
        commit=snapshot.head,
        state=(snapshot.branch, snapshot.manifest_version),
        columns=names,
        ddl=", ".join(f"`{name}` {spelled}" for name, spelled, _ in fields),
        where=None if where is None else _filter(seen.catalog, table_type, where, view),
        groups=tuple(tuple(each.id for each in group) for group in groups),
        schema=pa.schema([pa.field(name, arrow) for name, _, arrow in fields]),
        batch_rows=batch_rows_of(entry.row_count, sum(each.bytes for each in fragments)),
        seen=view,
    )


def readable_type(
    session: "GraphSession", snapshot: Snapshot, name: str, columns: Sequence[str] | None
) -> "tuple[SeenAs, TableType]":
    """The node or edge type of a name, edges in any case, and the snapshot as its schema sees it.

    Where the snapshot lacks the name or a column, the accepted schema has a say. Raises TypeNotFound.
    """
    seen = naming(session, snapshot, name, columns or ())
    catalog = seen.catalog
    found = catalog.node(name) or catalog.edge(name)
    if found is None:
        known = sorted([*catalog.nodes, *catalog.edges])
        raise TypeNotFound(name, candidates=near_names(name, known))
    return seen, found


def _columns(table_type: TableType, columns: Sequence[str] | None) -> tuple[str, ...]:
    known = table_type.arrow_schema.names
    if columns is None:
        return tuple(known)
    for name in columns:
        if name not in known:
            raise BadRequest(f"{table_type.name} has no column '{name}'", hint=f"it has {', '.join(known)}")
    if not columns or len(set(columns)) != len(columns):
        raise BadRequest("name every column once, and at least one")
    return tuple(columns)


def _filter(catalog: Catalog, table_type: TableType, where: str, view: ColumnMap | None) -> FilterText | None:
    from omnigraph.planning.compile import as_mutation, compile_query  # noqa: PLC0415 - loads the query language
    from omnigraph.planning.ir import DeleteOp  # noqa: PLC0415
    from omnigraph.planning.predicate import normalize  # noqa: PLC0415

    # The condition has the meaning it has in a query because it is compiled as one.
    plan = as_mutation(
        compile_query(f"query frame() {{ delete {table_type.name} where\n{where}\n}}", catalog)
    )
    match plan.statements:
        case (DeleteOp() as statement,):
            formula = normalize(statement.predicate, table_type, {}, dt.datetime.now(dt.UTC))
            if view is not None:
                formula = by_stored_names(formula, view.sources)
            return None if formula == ALWAYS else filter_text(formula)
        case _:
            raise BadRequest('where takes one condition, such as: age > 30 and city = "Oslo"')


def scan_fragments(scan: FrameScan, fragments: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """The rows of some fragments, in the types Spark wants. Opens its own handle.

    Raises `VersionReclaimed` when a cleanup has removed the commit since the frame was made.
    """
    if not fragments:  # no list of fragments would mean all of them
        return
    os.environ.setdefault("LANCE_LOG", "error")
    try:
        yield from _rows(scan, fragments)
    except StorageNotFound as error:
        raise _gone(scan, error) from error


def _rows(scan: FrameScan, fragments: Sequence[int]) -> Iterator[pa.RecordBatch]:
    store = open_tables(scan.root, scan.settings, scan.commit)
    handle = open_pinned(store, scan.table_key, scan.location, scan.branch, scan.version)
    reader = store.scan(
        handle if scan.seen is None else store.seen_as(handle, scan.seen),
        columns=scan.columns,
        filter=scan.where,
        fragments=fragments,
        batch_rows=scan.batch_rows,
    )
    for found in reader:
        columns = [for_spark(found.column(field.name), field) for field in scan.schema]
        yield pa.RecordBatch.from_arrays(columns, schema=scan.schema)


def _gone(scan: FrameScan, error: OmnigraphError) -> OmnigraphError:
    """Why a file is missing; a task has no graph at hand, so one is opened to ask."""
    from omnigraph.engine.session import open_session  # noqa: PLC0415 - tasks that succeed need none

    session = open_session(
        scan.root.uri, read_only=True, settings=scan.settings, storage_options=scan.root.storage_options
    )
    try:
        return session.manifest.gone(*scan.state, error)
    finally:
        session.close()


def for_spark(column: pa.Array, field: pa.Field) -> pa.Array:
    """A stored column in the Arrow type Spark has for it."""
    target = field.type
    if pa.types.is_binary(target):
        return blob_contents(column, field.name).cast(target)
    if pa.types.is_list(target) and pa.types.is_fixed_size_list(column.type):
        return column.cast(pa.list_(column.type.value_type)).cast(target)
    return column.cast(target)


def spark_field(table_type: TableType, name: str) -> tuple[str, str, pa.DataType]:
    """A column's name, its Spark type as DDL, and the Arrow type Spark wants for it."""
    prop = table_type.get(name)
    if prop is None:  # id, src, dst
        return name, "string", pa.string()
    spelled, arrow = _spark_type(prop.type)
    return name, spelled, arrow


_SPARK_TYPES: Final[Mapping[ScalarKind, tuple[str, pa.DataType]]] = {
    ScalarKind.STRING: ("string", pa.string()),
    ScalarKind.BOOL: ("boolean", pa.bool_()),
    ScalarKind.I32: ("int", pa.int32()),
    ScalarKind.I64: ("bigint", pa.int64()),
    # Spark has no unsigned numbers.
    ScalarKind.U32: ("bigint", pa.int64()),
    ScalarKind.U64: ("decimal(20,0)", pa.decimal128(20, 0)),
    ScalarKind.F32: ("float", pa.float32()),
    ScalarKind.F64: ("double", pa.float64()),
    ScalarKind.DATE: ("date", pa.date32()),
    ScalarKind.DATETIME: ("timestamp", pa.timestamp("us", tz="UTC")),
    ScalarKind.BLOB: ("binary", pa.binary()),
}


def _spark_type(type_: PropertyType) -> tuple[str, pa.DataType]:
    spelled, arrow = _SPARK_TYPES[type_.kind]
    if type_.is_list or type_.is_vector:
        # The name Spark gives to the elements; it refuses a source that calls them otherwise.
        return f"array<{spelled}>", pa.list_(pa.field("element", arrow, nullable=True))
    return spelled, arrow
