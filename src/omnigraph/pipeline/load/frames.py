"""DataFrames, Arrow tables and lists of rows as the source of a load."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq

from omnigraph.core.errors import BadRequest, LoadFormatError
from omnigraph.core.load_options import SourceFormat
from omnigraph.pipeline.input.columns import MARK
from omnigraph.pipeline.input.convert import shown_text
from omnigraph.pipeline.input.sources import plan_splits
from omnigraph.pipeline.plan import Split
from omnigraph.pipeline.spark.session import SparkRuntime

ROW_GROUP_ROWS: Final = 262_144
VALUE_LEVELS_MAX: Final = 8
"""How deep lists and objects within one value are looked into; no property has a list of lists."""
_OTHER_FRAMES: Final = {
    "LazyFrame": "compute it first: frame.collect()",
    "DuckDBPyConnection": "give a relation, as `connection.sql(...)` makes it",
    "str": "a file is loaded with `graph.load`",
    "dict": "give a list of dictionaries, one for each row, or an Arrow table",
}
"""What is often given in place of a frame, and what to give instead."""
_NESTED: Final = frozenset({list, tuple, dict})


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
            write = partial(frame.write.mode("error").parquet, str(folder))
            runtime.run(write, operation="load", stage=f"spool {name}")
        else:
            folder.mkdir(parents=True)
            try:
                table = _as_table(name, frame)
                pq.write_table(table, folder / "part.parquet", row_group_size=ROW_GROUP_ROWS)
            except UnicodeEncodeError as error:
                message = "a string holds half of a surrogate pair"
                raise LoadFormatError(line=None, file=f"frame {name}", message=message) from error
            except (ValueError, TypeError, OverflowError, pa.ArrowNotImplementedError) as error:
                raise BadRequest(
                    f"'{name}': the rows have no common column types ({shown_text(str(error))})",
                    hint="give an Arrow table or a file of JSON lines",
                ) from error
        files = sorted(path for path in folder.rglob("*.parquet") if path.is_file())
        for split in plan_splits(files, format_=SourceFormat.PARQUET, type_name=name):
            marked = isinstance(frame, list)
            splits.append(replace(split, number=len(splits), name=f"frame {name}", marked=marked))
    return splits


def _as_table(name: str, frame: Any) -> pa.Table:
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    if isinstance(frame, list):
        return _table_of_rows(name, cast("list[Any]", frame))
    if type(frame).__module__.startswith("pandas"):
        for column in frame.columns:
            if frame[column].dtype == object:
                _refuse_deep(name, column, frame[column].tolist())
        return pa.Table.from_pandas(frame, preserve_index=False)
    if hasattr(frame, "__arrow_c_stream__"):  # what Polars, DuckDB and readers of Arrow agree on
        return _plain_texts(pa.table(frame))
    if hasattr(frame, "to_arrow"):
        return _plain_texts(frame.to_arrow())
    kind = type(frame).__name__
    raise BadRequest(
        f"'{name}': {kind} is not a DataFrame, an Arrow table or stream, or a list of rows",
        hint=_OTHER_FRAMES.get(kind, "give a DataFrame, an Arrow table or a list of dictionaries"),
    )


def _plain_texts(table: pa.Table) -> pa.Table:
    """The table without dictionaries of texts in views: Polars makes them of categories, Parquet has none."""
    for at, name in enumerate(table.column_names):
        column: Any = table.column(at)
        if pa.types.is_dictionary(column.type) and pa.types.is_string_view(column.type.value_type):
            chunks: list[pa.Array] = [
                each.dictionary.cast(pa.string()).take(each.indices) for each in column.chunks
            ]
            table = table.set_column(at, name, pa.chunked_array(chunks, pa.string()))
    return table


def _column(values: list[Any]) -> pa.Array:
    """Values of rows as a column; whole numbers beyond 63 bits as unsigned ones."""
    try:
        return pa.array(values)
    except OverflowError:
        in_lists = any(isinstance(value, list) for value in values)
        return pa.array(values, pa.list_(pa.uint64()) if in_lists else pa.uint64())


def _refuse_deep(name: str, member: Any, values: Collection[Any]) -> None:
    """Refuse lists within lists within lists: Arrow takes minutes to find the type of thousands of them."""
    for _level in range(VALUE_LEVELS_MAX):
        nested = _NESTED & set(map(type, values))
        if not nested:
            return
        inside = [each for each in values if type(each) in nested]
        values = list(chain.from_iterable(map(_members, inside)))
    raise BadRequest(
        f"'{name}': {shown_text(repr(member))} is nested more than {VALUE_LEVELS_MAX - 1} levels"
    )


def _members(nested: Any) -> Iterable[Any]:
    return cast("dict[Any, Any]", nested).values() if isinstance(nested, dict) else nested


def _table_of_rows(name: str, rows: list[Any]) -> pa.Table:
    """Dictionaries as columns, one for every member of any row, with marks where some rows lack it."""
    members: dict[Any, None] = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise BadRequest(f"'{name}': row {number} is {type(row).__name__}, not a dictionary")
        members.update(dict.fromkeys(cast("dict[Any, Any]", row)))
    columns: dict[str, pa.Array] = {}
    for member in members:
        if not isinstance(member, str) or member.startswith(MARK):
            raise BadRequest(f"'{name}': {shown_text(repr(member))} is not the name of a property")
        values = [row.get(member) for row in rows]
        _refuse_deep(name, member, values)
        columns[member] = _column(values)
        given = [member in row for row in rows]
        if not all(given):
            columns[MARK + member] = pa.array(given)
    # Rows without any member are rows: an id that is null is one that was not given.
    return pa.table(columns or ({"id": pa.nulls(len(rows), pa.string())} if rows else {}))
