"""DataFrames in and out: frames as the source of a load, and a type of the graph as a Spark DataFrame."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from omnigraph.catalog.schema import Catalog, TableType
from omnigraph.catalog.types import PropertyType, ScalarKind
from omnigraph.core.errors import BadRequest
from omnigraph.core.ids import Branch, TableKey
from omnigraph.core.settings import Settings
from omnigraph.engine.session import GraphSession
from omnigraph.manifest.state import Snapshot
from omnigraph.pipeline.columns import type_named
from omnigraph.pipeline.plan import SourceFormat, Split
from omnigraph.pipeline.session import SparkRuntime, spark_runtime
from omnigraph.pipeline.sources import plan_splits
from omnigraph.storage.fragments import open_pinned, open_tables
from omnigraph.storage.layout import GraphRoot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCAN_BATCH_ROWS: Final = 8_192
ROW_GROUP_ROWS: Final = 262_144


def is_spark_frame(frame: Any) -> bool:
    """Whether a value is a Spark DataFrame, classic or Connect, without importing Spark."""
    return any(each.__module__.startswith("pyspark.sql") for each in type(frame).__mro__)


def spool_frames(frames: Mapping[str, Any], directory: Path, runtime: SparkRuntime | None) -> list[Split]:
    """Write every frame to Parquet files, once, and plan their splits.

    A frame may compute something else the second time, and a load reads its input twice when records are
    left out.
    """
    splits: list[Split] = []
    for name, frame in frames.items():
        folder = directory / f"frame-{len(splits)}-{name}"
        if is_spark_frame(frame):
            if runtime is None:
                raise BadRequest("a Spark DataFrame needs engine='spark'")
            write = partial(frame.write.mode("errorifexists").parquet, str(folder))
            runtime.run(write, operation="load", stage=f"spool {name}")
        else:
            folder.mkdir(parents=True)
            pq.write_table(_as_table(name, frame), folder / "part.parquet", row_group_size=ROW_GROUP_ROWS)
        files = sorted(path for path in folder.rglob("*.parquet") if path.is_file())
        for split in plan_splits(files, format_=SourceFormat.PARQUET, type_name=name):
            splits.append(replace(split, number=len(splits), name=f"frame {name}"))
    return splits


def _as_table(name: str, frame: Any) -> pa.Table:
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    if isinstance(frame, list):
        try:
            return pa.Table.from_pylist(frame)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise BadRequest(
                f"'{name}': the rows have no common column types ({error})",
                hint="give an Arrow table or a file of JSON lines",
            ) from error
    if hasattr(frame, "to_arrow"):
        return frame.to_arrow()
    if type(frame).__module__.startswith("pandas"):
        return pa.Table.from_pandas(frame, preserve_index=False)
    raise BadRequest(f"'{name}': {type(frame).__name__} is not a DataFrame, an Arrow table or a list of rows")


# --- reading ---


@dataclass(frozen=True, slots=True)
class FrameScan:
    """What a task needs to read its part of one type at one version."""

    root: GraphRoot
    settings: Settings
    table_key: TableKey
    location: str
    branch: Branch
    version: int
    commit: str
    columns: tuple[str, ...]
    where: str | None
    groups: tuple[tuple[int, ...], ...]
    schema: pa.Schema


def read_frame(
    runtime: SparkRuntime,
    root: GraphRoot,
    settings: Settings,
    snapshot: Snapshot,
    catalog: Catalog,
    type_name: str,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> "DataFrame":
    """One type as a Spark DataFrame, pinned to one version for as long as the frame lives.

    Node frames have `id` and the properties, edge frames `id`, `src`, `dst` and the properties. `where` is a
    filter over stored columns that runs inside the scan. One partition per fragment.
    """
    table_type = type_named(catalog, type_name)
    entry = snapshot.entries[TableKey(table_type.table_key)]
    names = _columns(table_type, columns)
    store = open_tables(root, settings, snapshot.head)
    handle = open_pinned(store, entry.table_key, entry.location, entry.branch, entry.version)
    groups = tuple((fragment.id,) for fragment in store.fragments(handle))
    fields = [spark_field(table_type, name) for name in names]
    scan = FrameScan(
        root=root,
        settings=settings,
        table_key=entry.table_key,
        location=entry.location,
        branch=entry.branch,
        version=entry.version,
        commit=snapshot.head,
        columns=names,
        where=where,
        groups=groups,
        schema=pa.schema([pa.field(name, arrow) for name, _, arrow in fields]),
    )
    described = ", ".join(f"`{name}` {spelled}" for name, spelled, _ in fields)
    count = len(groups)
    return runtime.spark.range(0, count, 1, max(count, 1)).mapInArrow(partial(scan_group, scan), described)


def graph_frame(
    session: GraphSession,
    snapshot: Snapshot,
    type_name: str,
    *,
    columns: Sequence[str] | None,
    where: str | None,
    spark: Any,
) -> "DataFrame":
    """`read_frame` for an open graph; starts Spark when none runs yet."""
    return read_frame(
        spark_runtime(session.settings, session=spark),
        session.root,
        session.settings,
        snapshot,
        session.catalog_of(snapshot),
        type_name,
        columns=columns,
        where=where,
    )


def _columns(table_type: TableType, columns: Sequence[str] | None) -> tuple[str, ...]:
    known = table_type.arrow_schema.names
    for name in columns or ():
        if name not in known:
            raise BadRequest(f"{table_type.name} has no column '{name}'", hint=f"it has {', '.join(known)}")
    return tuple(columns) if columns is not None else tuple(known)


def scan_group(scan: FrameScan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of a task: read the fragments whose group numbers arrive."""
    os.environ.setdefault("LANCE_LOG", "error")
    store = open_tables(scan.root, scan.settings, scan.commit)
    handle = open_pinned(store, scan.table_key, scan.location, scan.branch, scan.version)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            reader = store.scan(
                handle,
                columns=scan.columns,
                filter=scan.where,
                fragments=scan.groups[number],
                batch_rows=SCAN_BATCH_ROWS,
            )
            for found in reader:
                columns = [_for_spark(found.column(field.name), field.type) for field in scan.schema]
                yield pa.RecordBatch.from_arrays(columns, schema=scan.schema)


def _for_spark(column: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(target):
        return column.cast(pa.decimal128(20, 0))
    if pa.types.is_list(target):
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
        return f"array<{spelled}>", pa.list_(arrow)
    return spelled, arrow
