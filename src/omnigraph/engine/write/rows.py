"""Values of a statement as Arrow columns of a type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from omnigraph.catalog.types import arrow_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnigraph.catalog.schema import Property, TableType
    from omnigraph.planning.values import Value

_SCHEMAS_KEPT_MAX: Final = 4096


class _RelaxedSchemas:
    """The pending schemas of the types in use, by identity: hashing a type or a schema takes longer than
    making one row.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[TableType, pa.Schema]] = {}

    def of(self, table_type: TableType) -> pa.Schema:
        kept = self._kept.get(id(table_type))
        if kept is not None and kept[0] is table_type:
            return kept[1]
        schema = pa.schema([field.with_nullable(True) for field in table_type.arrow_schema])
        if len(self._kept) >= _SCHEMAS_KEPT_MAX:
            self._kept = {}
        self._kept[id(table_type)] = (table_type, schema)
        return schema


_relaxed: Final = _RelaxedSchemas()


def pending_schema(table_type: TableType) -> pa.Schema:
    """The columns of a type while rows are gathered: null is allowed until the rows are validated."""
    return _relaxed.of(table_type)


def in_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The validated rows with the columns as a table declares them. Raises where a column does not fit."""
    same = rows.schema.names == schema.names and all(
        column.type == field.type and (field.nullable or column.null_count == 0)
        for column, field in zip(rows.columns, schema, strict=True)
    )
    # A cast looks at every value again; here only the declarations differ.
    return pa.Table.from_arrays(rows.columns, schema=schema) if same else rows.cast(schema)


def row_table(table_type: TableType, system: Mapping[str, str], values: Mapping[str, Value]) -> pa.Table:
    """One row: the system columns, and every property, null where no value is given. Values are fitted."""
    schema = pending_schema(table_type)
    columns: list[Any] = [pa.array([system[name]], pa.string()) for name in schema.names if name in system]
    columns.extend(constant(prop, values.get(prop.name), 1) for prop in table_type.properties)
    return pa.Table.from_arrays(columns, schema=schema)


def constant(prop: Property, value: Value, rows: int) -> pa.Array:
    """A column that holds one fitted value everywhere; a blob as its stored cell."""
    stored = list(value) if isinstance(value, tuple) else value
    arrow = arrow_type(prop.type)
    if rows == 1:
        return pa.array([stored], arrow)
    if stored is None:
        return pa.nulls(rows, arrow)
    return pa.repeat(pa.scalar(stored, arrow), rows)
