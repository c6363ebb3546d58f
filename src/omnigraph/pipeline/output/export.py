"""Export to files: of a graph, of some types or of a query's result, at one commit.

Below the bounds of the settings the rows are written by this process, by ascending id. Above them Spark tasks
write part files, in row order. Either way nothing is visible under the target's name before all of it is
there.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from omnigraph.catalog.schema import TableType
from omnigraph.core.cancel import NEVER, Cancellation
from omnigraph.core.errors import BadRequest, InternalError, IoFailure
from omnigraph.core.events import Progress, emit
from omnigraph.core.ids import TableKey, show_branch
from omnigraph.core.limits import MIB
from omnigraph.core.load_options import SourceFormat
from omnigraph.engine.entities.export import ahead, file_columns, select_types, type_rows
from omnigraph.engine.entities.lines import csv_header, csv_lines, object_lines
from omnigraph.engine.entities.ordered import batch_rows_of
from omnigraph.engine.readable import own_names
from omnigraph.engine.session import GraphSession
from omnigraph.manifest.state import Snapshot
from omnigraph.pipeline.input.sources import compression_of, format_of
from omnigraph.pipeline.output.atomic_output import ABOUT, appearing
from omnigraph.pipeline.output.sinks import (
    ParquetSink,
    Part,
    PartPlan,
    Sink,
    TextSink,
    WrittenPart,
    closing_sink,
    encoder,
    fragment_groups,
    type_sink,
    write_part,
)

if TYPE_CHECKING:
    from omnigraph.engine.read.result import Rows

PART_ROWS_MAX: Final = 1_000_000
"""Rows of one part file, unless one fragment has more."""
PART_BYTES_MAX: Final = 256 * MIB
COPY_BYTES: Final = 8 * MIB
OPERATION: Final = "export"


class ExportEngine(StrEnum):
    """Who writes an export."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class TypeExport:
    """What was written of one type; `entity_kind` is `rows` for the result of a query."""

    name: str
    entity_kind: str
    rows: int
    bytes: int
    files: tuple[str, ...]
    """Names inside the target directory, or of the target itself."""

    def to_dict(self) -> dict[str, Any]:
        """JSON members."""
        return {
            "name": self.name,
            "entity_kind": self.entity_kind,
            "rows": self.rows,
            "bytes": self.bytes,
            "files": list(self.files),
        }


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The outcome of an export: the target is complete."""

    target: str
    format: str
    engine: str
    branch: str | None
    """The branch that was read; None when a commit was named instead."""
    commit_id: str
    types: tuple[TypeExport, ...]
    bytes: int
    """Bytes of all files. One file of several types counts its bytes once here and by type above."""
    seconds: float

    @property
    def rows(self) -> int:
        """Rows of all types."""
        return sum(each.rows for each in self.types)

    def to_dict(self) -> dict[str, Any]:
        """The shape the command line gives."""
        return {
            "target": self.target,
            "format": self.format,
            "engine": self.engine,
            "branch": self.branch,
            "graph_commit_id": self.commit_id,
            "types": [each.to_dict() for each in self.types],
            "rows": self.rows,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Target:
    """Where an export goes: a file when the name ends like one, else a directory."""

    path: Path
    format: SourceFormat
    directory: bool
    compression: str | None
    overwrite: bool


def plan_target(out: str | os.PathLike[str], format_: str | None, *, overwrite: bool) -> Target:
    """What a name and a format mean together. Raises BadRequest when they contradict each other."""
    text = os.fspath(out)
    if "://" in text:
        raise BadRequest(f"'{text}' is not in a file system", hint="export to a local or shared path")
    path = Path(os.path.abspath(text))  # noqa: PTH100 - a name that does not exist yet has no real path
    announced = format_of(path)
    chosen = announced or SourceFormat.JSON_LINES
    if format_ is not None:
        chosen = _format(format_)
        if announced is not None and announced is not chosen:
            raise BadRequest(f"'{text}' is named like {announced.value} but the format is {chosen.value}")
    compression = compression_of(path) if announced is not None else None
    if compression is not None and chosen is SourceFormat.PARQUET:
        raise BadRequest("a Parquet file is compressed inside", hint=f"name it {path.stem}")
    return Target(path, chosen, announced is None, compression, overwrite)


def _format(text: str) -> SourceFormat:
    try:
        return SourceFormat(text)
    except ValueError:
        known = ", ".join(word.value for word in SourceFormat)
        raise BadRequest(f"unknown format '{text}'", hint=f"use one of {known}") from None


# --- graphs and types ---


def export_types(
    session: GraphSession,
    snapshot: Snapshot,
    target: Target,
    *,
    types: Sequence[str] | None = None,
    engine: str = ExportEngine.AUTO,
    named_commit: bool = False,
    spark: Any = None,
    cancel: Cancellation = NEVER,
) -> ExportReport:
    """Write types of a snapshot, all unless named, to one file or to one directory of files per type.

    Raises BadRequest, TypeNotFound, IoFailure; then nothing is visible at the target.
    """
    began = time.monotonic()
    chosen = select_types(session.catalog_of(snapshot), own_names(session, snapshot, types))
    _check_shape(target, chosen)
    who = _engine(session, snapshot, target, chosen, engine)
    run = _Export(session, snapshot, target, chosen, cancel)
    with appearing(
        target.path, directory=target.directory, overwrite=target.overwrite, sync=run.sync
    ) as place:
        written = run.on_spark(place, spark) if who is ExportEngine.SPARK else run.in_process(place)
        size = sum(file.stat().st_size for file in place.iterdir())
        report = ExportReport(
            target=str(target.path),
            format=target.format.value,
            engine=who.value,
            branch=None if named_commit else show_branch(snapshot.branch),
            commit_id=snapshot.head,
            types=written,
            bytes=size,
            seconds=time.monotonic() - began,
        )
        if target.directory:
            _write_about(place, report, sync=run.sync)
    return report


def _check_shape(target: Target, chosen: Sequence[TableType]) -> None:
    if target.format is not SourceFormat.JSON_LINES and not target.directory and len(chosen) != 1:
        raise BadRequest(
            f"one {target.format.value} file holds one type; this export has {len(chosen)}",
            hint="name a directory, or one type",
        )
    names = [each.name for each in chosen]
    for name in names:
        if target.directory and names.count(name) > 1:
            raise BadRequest(
                f"'{name}' is a node type and an edge type; their files would have one name",
                hint="export to one file of JSON lines",
            )


def _engine(
    session: GraphSession, snapshot: Snapshot, target: Target, chosen: Sequence[TableType], word: str
) -> ExportEngine:
    try:
        wanted = ExportEngine(word)
    except ValueError:
        known = ", ".join(each.value for each in ExportEngine)
        raise BadRequest(f"unknown engine '{word}'", hint=f"use one of {known}") from None
    one_parquet_file = target.format is SourceFormat.PARQUET and not target.directory
    if wanted is ExportEngine.SPARK and one_parquet_file:
        raise BadRequest("Spark writes Parquet as several files", hint="name a directory")
    if wanted is not ExportEngine.AUTO:
        return wanted
    if one_parquet_file:
        return ExportEngine.LOCAL
    rows, size = _size(session, snapshot, chosen)
    settings = session.settings
    large = rows > settings.bulk_rows_in_process_max or size > settings.bulk_bytes_in_process_max
    return ExportEngine.SPARK if large else ExportEngine.LOCAL


def _size(session: GraphSession, snapshot: Snapshot, chosen: Sequence[TableType]) -> tuple[int, int]:
    """Rows of the types, and bytes of their data files. Cost: metadata only."""
    rows = size = 0
    for table_type in chosen:
        entry = snapshot.entries.get(TableKey(table_type.table_key))
        if entry is not None and entry.row_count:
            rows += entry.row_count
            size += sum(each.bytes for each in session.storage.fragments(session.open_entry(entry)))
    return rows, size


def _write_about(place: Path, report: ExportReport, *, sync: bool) -> None:
    # Without the absolute target: the directory may be moved.
    about = {name: value for name, value in report.to_dict().items() if name != "target"}
    with (place / ABOUT).open("w", encoding="utf-8") as file:
        json.dump(about, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        if sync:
            os.fsync(file.fileno())


class _Export:
    """One run: the same files whichever engine writes them, up to the cut into parts and the order."""

    def __init__(
        self,
        session: GraphSession,
        snapshot: Snapshot,
        target: Target,
        types: Sequence[TableType],
        cancel: Cancellation,
    ) -> None:
        self.session = session
        self.snapshot = snapshot
        self.target = target
        self.types = types
        self.cancel = cancel
        self.sync = session.settings.durability != "os"

    # --- in this process ---

    def in_process(self, place: Path) -> tuple[TypeExport, ...]:
        """Write every type in turn, rows by ascending id."""
        target = self.target
        if target.directory:
            return tuple(self._one_type(place, each) for each in self.types)
        path = place / target.path.name
        written: list[TypeExport] = []
        if not self.types:
            path.touch()
            return ()
        # Several types share a file only as JSON lines, which have no header.
        sink = type_sink(path, target.format, self.types[0], target.compression)
        with closing_sink(sink, path, sync=self.sync):
            for table_type in self.types:
                rows, size = self._write_rows(sink, table_type)
                written.append(
                    TypeExport(table_type.name, table_type.kind.value, rows, size, (target.path.name,))
                )
        if len(written) == 1:
            written[0] = replace(written[0], bytes=path.stat().st_size)
        return tuple(written)

    def _one_type(self, place: Path, table_type: TableType) -> TypeExport:
        path = place / f"{table_type.name}.{self.target.format.value}"
        sink = type_sink(path, self.target.format, table_type)
        with closing_sink(sink, path, sync=self.sync):
            rows, _ = self._write_rows(sink, table_type)
        return TypeExport(table_type.name, table_type.kind.value, rows, path.stat().st_size, (path.name,))

    def _write_rows(self, sink: Sink, table_type: TableType) -> tuple[int, int]:
        total = self._rows_of(table_type)
        encode = encoder(self.target.format, table_type)
        rows = size = 0

        def counted(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
            nonlocal rows
            for table in tables:
                rows += table.num_rows
                yield table

        for encoded in ahead(encode, counted(type_rows(self.session, self.snapshot, table_type))):
            self.cancel.raise_if_requested()
            sink.write(encoded)
            size += len(encoded) if isinstance(encoded, bytes) else encoded.nbytes
            emit(Progress(OPERATION, table_type.name, rows, total, "rows"))
        if rows != total:
            raise InternalError(f"{table_type.name}: {rows} rows were read where {total} live")
        return rows, size

    def _rows_of(self, table_type: TableType) -> int:
        entry = self.snapshot.entries.get(TableKey(table_type.table_key))
        return 0 if entry is None else entry.row_count

    # --- on Spark ---

    def on_spark(self, place: Path, spark: Any) -> tuple[TypeExport, ...]:
        """Let tasks write the parts, then give the parts that count their names."""
        from omnigraph.pipeline.spark.executors import SparkExecutor  # noqa: PLC0415 - a small export needs none
        from omnigraph.pipeline.spark.session import spark_runtime  # noqa: PLC0415

        self.cancel.raise_if_requested()
        parts = [part for table_type in self.types for part in self._parts(table_type)]
        plan = PartPlan(
            root=self.session.root,
            settings=self.session.settings,
            commit=self.snapshot.head,
            format=self.target.format,
            directory=str(place),
            headers=self.target.directory,
        )
        executor = SparkExecutor(spark_runtime(self.session.settings, session=spark), OPERATION)
        written = executor.map("write", partial(write_part, plan), parts)
        self.cancel.raise_if_requested()
        self._check_seen(place, written)
        by_type: dict[str, list[WrittenPart]] = {each.table_key: [] for each in self.types}
        for part, made in zip(parts, written, strict=True):
            by_type[part.table_type.table_key].append(made)
        if self.target.directory:
            done = tuple(self._named(place, each, by_type[each.table_key]) for each in self.types)
        else:
            done = self._joined(place, by_type)
        for leftover in place.glob("*.part"):  # of attempts that Spark did not count
            leftover.unlink()
        return done

    def _parts(self, table_type: TableType) -> list[Part]:
        entry = self.snapshot.entries.get(TableKey(table_type.table_key))
        if entry is None or entry.row_count == 0:
            return []
        fragments = self.session.storage.fragments(self.session.open_entry(entry))
        size = sum(each.bytes for each in fragments)
        step = batch_rows_of(entry.row_count, size)
        return [
            Part(
                table_type=table_type,
                location=entry.location,
                branch=entry.branch,
                version=entry.version,
                fragments=tuple(each.id for each in group),
                rows=sum(each.live_rows for each in group),
                batch_rows=step,
            )
            for group in fragment_groups(fragments, rows_max=PART_ROWS_MAX, bytes_max=PART_BYTES_MAX)
        ]

    def _check_seen(self, place: Path, written: Sequence[WrittenPart]) -> None:
        for made in written:
            path = place / made.name
            if not path.is_file() or path.stat().st_size != made.bytes:
                raise IoFailure(
                    f"a file that a Spark worker wrote is not at '{place.parent}' on this machine",
                    hint="export to a directory that this process and the Spark workers share",
                )

    def _named(self, place: Path, table_type: TableType, parts: Sequence[WrittenPart]) -> TypeExport:
        ending = self.target.format.value
        files: list[str] = []
        for number, made in enumerate(parts):
            files.append(f"{table_type.name}.{number:05}.{ending}")
            (place / made.name).rename(place / files[-1])
        size = sum(made.bytes for made in parts)
        if not parts:  # a type without rows has a file too, as it has in process
            path = place / f"{table_type.name}.{0:05}.{ending}"
            with closing_sink(type_sink(path, self.target.format, table_type), path, sync=self.sync):
                files.append(path.name)
            size = path.stat().st_size
        rows = sum(made.rows for made in parts)
        return TypeExport(table_type.name, table_type.kind.value, rows, size, tuple(files))

    def _joined(self, place: Path, by_type: Mapping[str, Sequence[WrittenPart]]) -> tuple[TypeExport, ...]:
        """One file of text from all parts; each part is gone once it is copied."""
        path = place / self.target.path.name
        sink = TextSink(path, self.target.compression)
        done: list[TypeExport] = []
        with closing_sink(sink, path, sync=self.sync):
            for table_type in self.types:
                parts = by_type[table_type.table_key]
                if self.target.format is SourceFormat.CSV:
                    sink.write(csv_header(file_columns(table_type)))
                for made in parts:
                    self.cancel.raise_if_requested()
                    _copy_and_remove(place / made.name, sink)
                rows, size = sum(made.rows for made in parts), sum(made.bytes for made in parts)
                done.append(TypeExport(table_type.name, table_type.kind.value, rows, size, (path.name,)))
        return tuple(done)


def _copy_and_remove(part: Path, sink: TextSink) -> None:
    with part.open("rb") as file:
        while block := file.read(COPY_BYTES):
            sink.write(block)
    part.unlink()


# --- results of queries ---


def export_rows(session: GraphSession, rows: "Rows", target: Target, *, engine: str) -> ExportReport:
    """Write the result of a query to one file. Raises as `export_types` does."""
    began = time.monotonic()
    if engine not in {ExportEngine.AUTO, ExportEngine.LOCAL}:
        raise BadRequest("the result of a query is written by this process", hint="leave the engine out")
    if target.directory:
        ending = target.format.value
        raise BadRequest("the result of a query is one file", hint=f"name it {target.path.name}.{ending}")
    sync = session.settings.durability != "os"
    name = target.path.name
    with appearing(target.path, directory=False, overwrite=target.overwrite, sync=sync) as place:
        path = place / name
        if target.format is SourceFormat.PARQUET:
            with closing_sink(ParquetSink(path, rows.schema), path, sync=sync) as sink:
                sink.write(_distinct(rows.table))
        else:
            with closing_sink(TextSink(path, target.compression), path, sync=sync) as sink:
                for text in encoded_text(rows, target.format):
                    sink.write(text)
        size = path.stat().st_size
    emit(Progress(OPERATION, rows.query_name, len(rows), len(rows), "rows"))
    return ExportReport(
        target=str(target.path),
        format=target.format.value,
        engine=ExportEngine.LOCAL.value,
        branch=rows.branch if rows.snapshot is None else None,
        commit_id=rows.commit_id,
        types=(TypeExport(rows.query_name, "rows", len(rows), size, (name,)),),
        bytes=size,
        seconds=time.monotonic() - began,
    )


def encoded_text(rows: "Rows", format_: SourceFormat) -> Iterator[bytes]:
    """A query's result as pieces of JSON lines, or of CSV that begins with the column names."""
    table = _distinct(rows.table)
    if format_ is SourceFormat.CSV:
        yield csv_header(table.column_names)
    encode = csv_lines if format_ is SourceFormat.CSV else object_lines
    step = batch_rows_of(table.num_rows, table.nbytes)
    for begin in range(0, table.num_rows, step):
        yield encode(table.slice(begin, step))


def _distinct(table: pa.Table) -> pa.Table:
    """The table; refused when two of its columns share a name, which no format can carry."""
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadRequest(
            f"two columns of the result are called '{twice[0]}'", hint="name one of them with `as`"
        )
    return table
