"""Blobs on their way in: the cell that a statement assigns, and the bytes behind addresses that stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from omnigraph.catalog.blobs import ASKED, PREFIX, decode_base64, stored_content
from omnigraph.core.errors import BlobPolicyError, BlobSourceError, PropertyValueError
from omnigraph.engine.entities.blob_columns import asked_addresses

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnigraph.catalog.schema import Property, TableType
    from omnigraph.core.blob_uris import BlobUri
    from omnigraph.storage.blob_sources import BlobSources


def assigned_blob(table_type: TableType, prop: Property, text: str) -> bytes:
    """The cell for the text a statement assigns. An address is kept as it is: a later statement of the same
    query may replace it, and only what stays is judged. Raises PropertyValueError.
    """
    if not text.startswith(PREFIX):
        return ASKED + text.encode()
    content = decode_base64(text[len(PREFIX) :])
    if content is None:
        raise PropertyValueError(
            entity_kind=table_type.kind.value,
            type_name=table_type.name,
            property_name=prop.name,
            message=f"{table_type.name}.{prop.name}: the value is not padded standard base64",
        )
    return stored_content(content)


def has_addresses(table_type: TableType, rows: pa.Table) -> bool:
    """Whether bytes of these rows are still to be read."""
    return any(asked_addresses(rows.column(name)) for name in table_type.blob_columns)


def with_contents(
    table_type: TableType, rows: pa.Table, sources: BlobSources, make_room: Callable[[int], None]
) -> pa.Table:
    """The rows with the bytes behind every address. `make_room` is told how many, before any is read.

    Raises BlobPolicyError, BlobSourceError, ResourceLimit.
    """
    for name in table_type.blob_columns:
        asked = asked_addresses(rows.column(name))
        try:
            allowed = {row: sources.allowed(text) for row, text in asked.items()}
            make_room(_size(allowed, sources))
            contents = sources.contents(allowed.values())
        except (BlobPolicyError, BlobSourceError) as refused:
            place = f"{table_type.name}.{name}"
            raise type(refused)(
                f"{place}: {refused.message}", hint=refused.hint, details=refused.details
            ) from None
        if allowed:
            cells = rows.column(name).to_pylist()
            for row, uri in allowed.items():
                cells[row] = stored_content(contents[uri])
            field = rows.schema.field(name)
            column = pa.array(cells, field.type)
            rows = rows.set_column(rows.schema.get_field_index(name), field, column)
    return rows


def _size(allowed: dict[int, BlobUri], sources: BlobSources) -> int:
    sizes = sources.sizes(set(allowed.values()))
    total = 0
    for uri in allowed.values():
        outcome = sizes[uri]
        if not isinstance(outcome, int):
            raise outcome
        total += outcome
    return total
