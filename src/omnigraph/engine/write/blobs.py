"""Blobs on their way in and out: what a statement assigns, what a stored column says."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.catalog.blobs import MARK, PREFIX, REFERENCE, BlobReference, blob_value, stored_content
from omnigraph.core.errors import BadRequest, BlobPolicyError, BlobSourceError, PropertyValueError

if TYPE_CHECKING:
    from omnigraph.catalog.schema import Property, TableType
    from omnigraph.storage.blob_sources import BlobSources


def decode_base64(text: str) -> bytes | None:
    """The bytes of standard, padded base64; None when it is anything else."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        return None


def assigned_blob(table_type: TableType, prop: Property, text: str, sources: BlobSources) -> bytes:
    """The cell for the text a statement assigns. The bytes of an external address are copied in.

    Raises PropertyValueError, BlobPolicyError, BlobSourceError, ResourceLimit.
    """
    place = f"{table_type.name}.{prop.name}"
    if text.startswith(PREFIX):
        content = decode_base64(text[len(PREFIX) :])
        if content is None:
            raise PropertyValueError(
                entity_kind=table_type.kind.value,
                type_name=table_type.name,
                property_name=prop.name,
                message=f"{place}: the value is not padded standard base64",
            )
        return stored_content(content)
    try:
        uri = sources.allowed(text)
        outcome = sources.sizes([uri])[uri]
        if not isinstance(outcome, int):
            raise outcome
        return stored_content(sources.contents([uri])[uri])
    except (BlobPolicyError, BlobSourceError) as refused:
        raise type(refused)(
            f"{place}: {refused.message}", hint=refused.hint, details=refused.details
        ) from None


def has_marks(column: pa.Array) -> bool:
    """Whether some cells are more than plain bytes."""
    return bool(pc.any(pc.starts_with(column, pattern=MARK), min_count=0).as_py())


def stored_contents(column: pa.Array) -> pa.Array:
    """The cells that hold these bytes."""
    if not has_marks(column):
        return column
    return pa.array([None if c is None else stored_content(c) for c in column.to_pylist()], column.type)


def blob_texts(column: pa.Array) -> pa.LargeStringArray:
    """Stored cells as the load format says them: `base64:…`, or the address of a reference.

    One Python object per blob: base64 has no Arrow kernel, and the bytes dominate the cost.
    """
    return pa.array(
        [None if stored is None else _text(blob_value(stored)) for stored in column.to_pylist()],
        pa.large_string(),
    )


def _text(value: bytes | BlobReference) -> str:
    if isinstance(value, BlobReference):
        return value.uri
    return PREFIX + base64.b64encode(value).decode()


def blob_contents(column: pa.Array, name: str) -> pa.Array:
    """Stored cells as bytes. Raises BadRequest where one is a reference: bytes could not say so."""
    if not has_marks(column):
        return column
    if pc.any(pc.starts_with(column, pattern=REFERENCE), min_count=0).as_py():
        raise BadRequest(
            f"'{name}' holds references to external blobs, which a column of bytes cannot say",
            hint="export as jsonl or csv, or leave the column out",
        )
    return pa.array([None if each is None else blob_value(each) for each in column.to_pylist()], column.type)
