"""Values of a statement as Arrow columns of a type."""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph.catalog.schema import EdgeType, Property
from omnigraph.catalog.types import ScalarKind, arrow_type
from omnigraph.core.errors import BlobPolicyError, PropertyValueError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnigraph.catalog.schema import TableType
    from omnigraph.planning.values import Value

_BASE64 = "base64:"


@lru_cache(maxsize=1024)
def _relaxed(table_type_id: int, schema: pa.Schema) -> pa.Schema:
    del table_type_id
    return pa.schema([field.with_nullable(True) for field in schema])


def pending_schema(table_type: TableType) -> pa.Schema:
    """The columns of a type while rows are gathered: null is allowed until the rows are validated."""
    return _relaxed(table_type.type_id, table_type.arrow_schema)


def row_table(table_type: TableType, system: Mapping[str, str], values: Mapping[str, Value]) -> pa.Table:
    """One row: the system columns, and every property, null where no value is given. Values are fitted."""
    schema = pending_schema(table_type)
    columns: list[Any] = [pa.array([system[name]], pa.string()) for name in schema.names if name in system]
    columns.extend(constant(table_type, prop, values.get(prop.name), 1) for prop in table_type.properties)
    return pa.Table.from_arrays(columns, schema=schema)


def constant(table_type: TableType, prop: Property, value: Value, rows: int) -> pa.Array:
    """A column that holds one fitted value everywhere."""
    stored = _stored(table_type, prop, value)
    arrow = arrow_type(prop.type)
    if rows == 1:
        return pa.array([stored], arrow)
    if stored is None:
        return pa.nulls(rows, arrow)
    return pa.repeat(pa.scalar(stored, arrow), rows)


def _stored(table_type: TableType, prop: Property, value: Value) -> Any:
    """A fitted value as the column stores it."""
    if value is not None and prop.type.kind is ScalarKind.BLOB:
        return blob_bytes(table_type, prop, str(value))
    return list(value) if isinstance(value, tuple) else value


def blob_bytes(table_type: TableType, prop: Property, text: str) -> bytes:
    """The bytes that `base64:…` supplies. Every other text is an external address, which is not allowed
    here.
    """
    if not text.startswith(_BASE64):
        raise BlobPolicyError(
            f"{table_type.name}.{prop.name}: external blob references are not allowed here",
            hint="supply the bytes as base64:<text>",
        )
    try:
        return base64.b64decode(text[len(_BASE64) :], validate=True)
    except (binascii.Error, ValueError):
        kind = "edge" if isinstance(table_type, EdgeType) else "node"
        raise PropertyValueError(
            entity_kind=kind,
            type_name=table_type.name,
            property_name=prop.name,
            message=f"{table_type.name}.{prop.name}: the value is not padded standard base64",
        ) from None
