"""Files an export writes: one sink per format, and the part of a type that one Spark task writes."""

import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from omnigraph.catalog.schema import TableType
from omnigraph.core.errors import InternalError, IoFailure
from omnigraph.core.ids import Branch, TableKey, new_ulid
from omnigraph.core.limits import MIB
from omnigraph.core.load_options import SourceFormat
from omnigraph.core.settings import Settings
from omnigraph.engine.entities.blob_columns import blob_contents
from omnigraph.engine.entities.export import file_columns
from omnigraph.engine.entities.lines import csv_header, csv_lines, flat_array, json_lines
from omnigraph.storage.fragments import open_pinned, open_tables
from omnigraph.storage.handles import Fragment
from omnigraph.storage.layout import GraphRoot

ROW_GROUP_ROWS_MAX: Final = 262_144
ROW_GROUP_BYTES_MAX: Final = 64 * MIB
PARQUET_COMPRESSION: Final = "zstd"

Encoded = bytes | pa.Table
"""What a sink takes: text of a text format, rows of Parquet."""


class Sink(Protocol):
    """One file being written."""

    def write(self, encoded: Any) -> None:
        """Append rows in the form the format's encoder gives."""
        ...

    def close(self) -> None:
        """Complete the file."""
        ...


class TextSink:
    """A file of JSON lines or CSV."""

    def __init__(self, path: Path, compression: str | None = None) -> None:
        self._stream: Any = pa.output_stream(str(path), compression=compression)

    def write(self, encoded: bytes) -> None:
        """See `Sink.write`."""
        self._stream.write(encoded)

    def close(self) -> None:
        """See `Sink.close`."""
        self._stream.close()


class ParquetSink:
    """A Parquet file; small pieces are gathered into row groups. Memory: one row group."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415 - only Parquet needs it

        self._writer: Any = pq.ParquetWriter(str(path), schema, compression=PARQUET_COMPRESSION)
        self._schema = schema
        self._held: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0

    def write(self, encoded: pa.Table) -> None:
        """See `Sink.write`."""
        self._held.append(encoded)
        self._rows += encoded.num_rows
        self._bytes += encoded.nbytes
        if self._rows >= ROW_GROUP_ROWS_MAX or self._bytes >= ROW_GROUP_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.concat_tables(self._held), row_group_size=ROW_GROUP_ROWS_MAX)
        self._held, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        """See `Sink.close`."""
        try:
            self._flush()
        finally:
            self._writer.close()


@contextmanager
def closing_sink(sink: Sink, path: Path, *, sync: bool) -> Generator[Sink]:
    """Complete the file at the end, and put it on the device when asked to. OS errors become `IoFailure`."""
    try:
        try:
            yield sink
        finally:
            sink.close()
        if sync:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    except OSError as error:
        raise IoFailure(f"'{path}' cannot be written: {error.strerror or error}") from error


def file_schema(table_type: TableType) -> pa.Schema:
    """The columns of a Parquet file of one type: stored types, the ends of an edge as `from` and `to`."""
    names = file_columns(table_type)
    return pa.schema(
        [field.with_name(name) for name, field in zip(names, table_type.arrow_schema, strict=True)]
    )


def encoder(format_: SourceFormat, table_type: TableType) -> Callable[[pa.Table], Encoded]:
    """How rows of the type become what the sink of the format takes."""
    match format_:
        case SourceFormat.JSON_LINES:
            return partial(json_lines, table_type=table_type)
        case SourceFormat.CSV:
            return csv_lines
        case SourceFormat.PARQUET:
            return partial(_as_file_rows, schema=file_schema(table_type))


def _as_file_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        blob_contents(flat_array(column), field.name) if pa.types.is_large_binary(field.type) else column
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def type_sink(
    path: Path, format_: SourceFormat, table_type: TableType, compression: str | None = None
) -> Sink:
    """A new file of one type, with what stands at its beginning."""
    if format_ is SourceFormat.PARQUET:
        return ParquetSink(path, file_schema(table_type))
    sink = TextSink(path, compression)
    if format_ is SourceFormat.CSV:
        sink.write(csv_header(file_columns(table_type)))
    return sink


# --- tasks ---


def fragment_groups(
    fragments: Iterable[Fragment], *, rows_max: int, bytes_max: int
) -> list[tuple[Fragment, ...]]:
    """Fragments in a row packed up to either bound; those without a live row are left out."""
    groups: list[tuple[Fragment, ...]] = []
    group: list[Fragment] = []
    rows = size = 0
    for each in fragments:
        if each.live_rows == 0:
            continue
        if group and (rows + each.live_rows > rows_max or size + each.bytes > bytes_max):
            groups.append(tuple(group))
            group, rows, size = [], 0, 0
        group.append(each)
        rows += each.live_rows
        size += each.bytes
    if group:
        groups.append(tuple(group))
    return groups


@dataclass(frozen=True, slots=True)
class PartPlan:
    """What every task of one export knows."""

    root: GraphRoot
    settings: Settings
    commit: str
    format: SourceFormat
    directory: str
    headers: bool
    """Whether a CSV part begins with the column names."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some fragments of one type, at the version the export is pinned to."""

    table_type: TableType
    location: str
    branch: Branch
    version: int
    fragments: tuple[int, ...]
    rows: int
    batch_rows: int


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """The file one task wrote. A retried task leaves a file that no result names."""

    name: str
    rows: int
    bytes: int


def write_part(plan: PartPlan, part: Part) -> WrittenPart:
    """The body of a task: write the live rows of some fragments to one file, in row order."""
    os.environ.setdefault("LANCE_LOG", "error")
    store = open_tables(plan.root, plan.settings, plan.commit)
    key = TableKey(part.table_type.table_key)
    handle = open_pinned(store, key, part.location, part.branch, part.version)
    columns = part.table_type.arrow_schema.names
    reader = store.scan(handle, columns=columns, fragments=part.fragments, batch_rows=part.batch_rows)
    encode = encoder(plan.format, part.table_type)
    path = Path(plan.directory) / f"{new_ulid()}.part"
    rows = 0
    sink = _part_sink(path, plan, part.table_type)
    with closing_sink(sink, path, sync=plan.settings.durability != "os"):
        for batch in reader:
            sink.write(encode(pa.Table.from_batches([batch]).select(columns)))
            rows += batch.num_rows
    if rows != part.rows:
        raise InternalError(f"{part.table_type.name}: {rows} rows were read where {part.rows} live")
    return WrittenPart(path.name, rows, path.stat().st_size)


def _part_sink(path: Path, plan: PartPlan, table_type: TableType) -> Sink:
    try:
        if plan.format is SourceFormat.CSV and not plan.headers:
            return TextSink(path)
        return type_sink(path, plan.format, table_type)
    except OSError as error:
        raise IoFailure(
            f"'{path.parent}' cannot be written by a Spark task: {error.strerror or error}",
            hint="export to a directory that this process and the Spark workers share",
        ) from error
