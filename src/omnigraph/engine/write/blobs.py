"""Blobs on their way in: the cell for what a statement assigns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.catalog.blobs import PREFIX, decode_base64, stored_content
from omnigraph.core.errors import BlobPolicyError, BlobSourceError, PropertyValueError

if TYPE_CHECKING:
    from omnigraph.catalog.schema import Property, TableType
    from omnigraph.storage.blob_sources import BlobSources


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
