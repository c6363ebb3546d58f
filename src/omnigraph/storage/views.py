"""A table seen as another type: columns by the names of that type, those it lacks as null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.catalog.table_changes import ColumnMap

R = TypeVar("R", pa.Table, pa.RecordBatch)
CARRIER = "id"
"""A column that every table has: read where only columns are asked for that the table lacks."""


def stored_columns(view: ColumnMap, columns: Sequence[str] | None) -> list[str]:
    """The names under which the columns asked for are stored; None asks for all of the view."""
    asked = view.schema.names if columns is None else columns
    found = [view.sources[name] for name in asked if name in view.sources]
    return found or ([CARRIER] if asked else [])


def seen(view: ColumnMap, columns: Sequence[str] | None, rows: R) -> R:
    """The rows with the columns asked for, and behind them whatever else was read, such as addresses."""
    asked = view.schema.names if columns is None else list(columns)
    stored = set(stored_columns(view, columns))
    found: dict[str, Any] = dict(zip(rows.schema.names, rows.columns, strict=True))
    fields: list[pa.Field] = []
    arrays: list[Any] = []
    for name in asked:
        field = view.schema.field(name)
        source = view.sources.get(name)
        array = pa.nulls(rows.num_rows, field.type) if source is None else found[source]
        fields.append(field.with_nullable(True) if source is None else field)
        arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
    for field in rows.schema:
        if field.name not in stored:
            fields.append(field)
            arrays.append(found[field.name])
    schema = pa.schema(fields)
    if isinstance(rows, pa.RecordBatch):
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    return pa.Table.from_arrays(arrays, schema=schema)
