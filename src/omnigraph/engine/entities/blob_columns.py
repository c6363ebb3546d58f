"""Columns of blob cells: the cells that hold some bytes, and what stored cells say as texts or as bytes."""

import base64

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.catalog.blobs import ASKED, MARK, PREFIX, REFERENCE, BlobReference, blob_value, stored_content
from omnigraph.core.errors import BadRequest


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


def asked_addresses(column: pa.ChunkedArray) -> dict[int, str]:
    """The addresses that nobody has looked at yet, by row."""
    mask = pc.fill_null(pc.starts_with(column, pattern=ASKED), False)
    rows = np.flatnonzero(np.asarray(mask)).tolist()
    if not rows:
        return {}
    cells = column.take(pa.array(rows, pa.int64())).to_pylist()
    return {row: cell[len(ASKED) :].decode() for row, cell in zip(rows, cells, strict=True)}
