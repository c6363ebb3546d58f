"""Rows as text, a batch at a time: records of the load format, objects of a query result, CSV.

Text is assembled by Arrow kernels: a column becomes pieces, fixed text or one string per row, and the pieces
of all columns are joined once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.arrays.text_buffers import large_bounds, text_bytes
from omnigraph.catalog.schema import EdgeType
from omnigraph.engine.entities.blob_columns import blob_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.catalog.schema import TableType

Piece: TypeAlias = "str | pa.LargeStringArray"
"""The same text in every row, or a text per row without nulls."""

_TEXT: Final = pa.large_string()
_UNSAFE_BYTES: Final = np.array([code < 32 or code in {34, 92, 127} for code in range(256)])
_ESCAPES: Final = [
    ("\\", "\\\\"),
    ('"', '\\"'),
    ("\n", "\\n"),
    ("\r", "\\r"),
    ("\t", "\\t"),
    *((chr(code), f"\\u{code:04x}") for code in (*range(32), 127) if chr(code) not in "\n\r\t"),
]


def json_lines(rows: pa.Table | pa.RecordBatch, table_type: TableType) -> bytes:
    """The rows of one type as records of the load format; every line ends with a line break."""
    if rows.num_rows == 0:
        return b""
    # Asking for a column by name costs as much as the table is wide.
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    pieces: list[Piece] = []
    if isinstance(table_type, EdgeType):
        pieces += [f'{{"edge":{json_text(table_type.name)},"from":', *_json(columns["src"])]
        pieces += [',"to":', *_json(columns["dst"]), ',"data":{"id":']
    else:
        pieces.append(f'{{"type":{json_text(table_type.name)},"data":{{"id":')
    pieces += _json(columns["id"])
    for prop in table_type.properties:
        pieces += [f',"{prop.name}":', *_json(columns[prop.name])]
    return _joined_bytes([*pieces, "}}\n"])


def object_lines(rows: pa.Table) -> bytes:
    """Any rows as one JSON object per line. Numbers that JSON cannot say are text, as in a query's answer."""
    if rows.num_rows == 0:
        return b""
    pieces: list[Piece] = []
    for number, name in enumerate(rows.column_names):
        pieces += [f"{',' if number else '{'}{json_text(name)}:", *_json(rows.column(number))]
    return _joined_bytes([*pieces, "}\n"])


def csv_header(names: Sequence[str]) -> bytes:
    """The first line of a CSV file."""
    return (",".join(_csv_name(name) for name in names) + "\n").encode()


def csv_lines(rows: pa.Table | pa.RecordBatch) -> bytes:
    """The rows as CSV without a header. Text is quoted, null is an empty cell without quotes.

    Lists and vectors are JSON arrays, blobs and moments as in JSON: what a load of CSV reads.
    """
    import pyarrow.csv as pv  # noqa: PLC0415 - only CSV needs it

    if rows.num_rows == 0:
        return b""
    cells = pa.RecordBatch.from_arrays([_cells(column) for column in rows.columns], rows.schema.names)
    sink = pa.BufferOutputStream()
    pv.write_csv(cells, sink, pv.WriteOptions(include_header=False, quoting_style="needed"))
    return sink.getvalue().to_pybytes()


def json_array(column: pa.ChunkedArray | pa.Array) -> bytes:
    """The values of a column as one JSON array."""
    if len(column) == 0:
        return b"[]"
    return b"[" + _joined_bytes([*_json(column), ","])[:-1] + b"]"


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists; vectors are."""
    return pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind)


def flat_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column


def json_text(text: str) -> str:
    """A short text as a JSON string."""
    for char, escape in _ESCAPES:
        text = text.replace(char, escape)
    return f'"{text}"'


def _csv_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"\r\n') else name


def _cells(column: Any) -> pa.Array:
    """A column in a form whose CSV text is exact."""
    flat = flat_array(column)
    kind = flat.type
    if pa.types.is_float32(kind):
        return flat.cast(pa.float64())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return flat
    if is_list(kind):
        texts = _joined(_lists(flat))
        return pc.if_else(flat.is_valid(), texts, pa.scalar(None, _TEXT)) if flat.null_count else texts
    return _plain(flat)


# --- JSON ---


def _json(column: Any) -> list[Piece]:
    """A column as JSON values."""
    flat = flat_array(column)
    if is_list(flat.type):
        return _lists(flat)
    text = _plain(flat)
    if _is_quoted(flat.type):
        pieces: list[Piece] = ['"', _escaped(text), '"']
    elif pa.types.is_floating(flat.type) and not pc.all(pc.is_finite(flat), min_count=0).as_py():
        pieces = [_non_finite(flat, text)]
    else:
        pieces = [text]
    return [_null_as_text(pieces)] if flat.null_count else pieces


def _null_as_text(pieces: list[Piece]) -> pa.LargeStringArray:
    return pc.fill_null(_joined(pieces), pa.scalar("null", _TEXT))


def _plain(flat: pa.Array) -> pa.LargeStringArray:
    """The text of scalar values, without quotes; null stays null."""
    kind = flat.type
    if pa.types.is_timestamp(kind):
        # Printing a moment with a zone is fifty times slower than printing one without.
        moments = pc.cast(pc.cast(flat, pa.timestamp(kind.unit)), _TEXT)
        return _joined([pc.replace_substring(moments, " ", "T", max_replacements=1), "Z"])
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return blob_texts(flat)
    if pa.types.is_floating(kind):
        text = pc.cast(flat.cast(pa.float64()), _TEXT)
        # Some readers of JSON take `-0` for the integer zero.
        return pc.if_else(pc.equal(text, "-0"), "-0.0", text)
    return pc.cast(flat, _TEXT)


def _is_quoted(kind: pa.DataType) -> bool:
    """Whether JSON says values of this type as text."""
    return not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _non_finite(flat: pa.Array, text: pa.LargeStringArray) -> pa.LargeStringArray:
    signed = pc.if_else(pc.greater(flat, 0), '"Infinity"', '"-Infinity"')
    named = pc.cast(pc.if_else(pc.is_nan(flat), '"NaN"', signed), _TEXT)
    return pc.if_else(pc.is_finite(flat), text, named)


def _escaped(text: pa.LargeStringArray) -> pa.LargeStringArray:
    """The text with everything escaped that JSON does not allow inside quotes."""
    ends = large_bounds(text)
    used = np.frombuffer(text_bytes(text)[ends[0] : ends[-1]], np.uint8)
    if not _UNSAFE_BYTES[used].any():
        return text
    for char, escape in _ESCAPES:
        text = pc.replace_substring(text, pattern=char, replacement=escape)
    return text


def _lists(flat: pa.Array) -> list[Piece]:
    if pa.types.is_fixed_size_list(flat.type):
        flat = flat.cast(pa.list_(flat.type.value_type))
    lengths = np.asarray(pc.fill_null(pc.list_value_length(flat), 0), np.int64)
    items = _joined(_json(pc.list_flatten(flat)))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    texts = pa.ListArray.from_arrays(pa.array(offsets), pc.cast(items, pa.string()))
    joined: Piece = pc.cast(pc.binary_join(texts, ","), _TEXT)
    if not flat.null_count:
        return ["[", joined, "]"]
    boxed = _joined(["[", joined, "]"])
    return [pc.if_else(flat.is_valid(), boxed, pa.scalar("null", _TEXT))]


# --- joining ---


def _joined(pieces: Sequence[Piece]) -> pa.LargeStringArray:
    """Row by row, the pieces one after the other; null where one of them is null."""
    merged: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    if len(merged) == 1 and not isinstance(merged[0], str):
        return merged[0]
    values = [pa.scalar(piece, _TEXT) if isinstance(piece, str) else piece for piece in merged]
    return pc.binary_join_element_wise(*values, pa.scalar("", _TEXT))


def _joined_bytes(pieces: Sequence[Piece]) -> bytes:
    lines = _joined(pieces)
    ends = large_bounds(lines)
    return bytes(text_bytes(lines)[ends[0] : ends[-1]])
