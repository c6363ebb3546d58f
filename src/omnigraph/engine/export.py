"""A snapshot as JSON lines in the load format, a batch of rows at a time."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.catalog.schema import EdgeType
from omnigraph.catalog.types import ScalarKind
from omnigraph.core.errors import TypeNotFound
from omnigraph.core.ids import TableKey
from omnigraph.language.diagnostics import near_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from omnigraph.catalog.schema import Catalog, Property, TableType
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot

EXPORT_BATCH_ROWS: Final = 16_384
EXPORT_BATCH_NUMBERS_MAX: Final = 1 << 24
"""Vector elements printed at a time; their text must stay below two gigabytes."""
_UNSAFE: Final = r'[\x00-\x1f"\\\x7f]'


def export_lines(
    session: GraphSession, snapshot: Snapshot, *, types: Sequence[str] | None = None
) -> Iterator[bytes]:
    """Chunks of complete JSON lines: node types by name, then edge types by name, rows by ascending id.

    `types` selects by name (a node type, an edge type, or both); an unknown name raises `TypeNotFound`
    before the first chunk. Memory: the ids and addresses of one type at a time, plus one batch of rows.
    """
    catalog = session.catalog_of(snapshot)
    chosen = select_types(catalog, types)
    return _chunks(session, snapshot, chosen)


def select_types(catalog: Catalog, names: Sequence[str] | None) -> list[TableType]:
    """The types to export, in export order."""
    ordered: list[TableType] = [*catalog.nodes.values(), *catalog.edges.values()]
    if names is None:
        return ordered
    known = {each.name for each in ordered}
    for name in names:
        if name not in known:
            raise TypeNotFound(name, candidates=near_names(name, sorted(known)))
    wanted = set(names)
    return [each for each in ordered if each.name in wanted]


def _chunks(session: GraphSession, snapshot: Snapshot, types: Sequence[TableType]) -> Iterator[bytes]:
    for table_type in types:
        entry = snapshot.entries.get(TableKey(table_type.table_key))
        if entry is None or entry.row_count == 0:
            continue
        handle = session.open_entry(entry)
        columns = table_type.arrow_schema.names
        # Lance returns rows in row order; only ids and addresses are sorted, the rest is fetched per batch.
        keys = session.storage.read(handle, columns=["id"], with_row_address=True)
        order = pc.sort_indices(keys.column("id"))
        addresses = np.asarray(keys.column("_rowaddr").to_numpy(), np.uint64)[np.asarray(order)]
        del keys, order
        dimensions = sum(prop.type.vector_dim or 0 for prop in table_type.properties)
        step = max(1, min(EXPORT_BATCH_ROWS, EXPORT_BATCH_NUMBERS_MAX // max(1, dimensions)))
        for begin in range(0, len(addresses), step):
            rows = session.storage.take(handle, addresses[begin : begin + step], columns)
            yield json_lines(rows, table_type)


def json_lines(rows: pa.Table, table_type: TableType) -> bytes:
    """The rows as JSON lines; every line ends with a line break."""
    if rows.num_rows == 0:
        return b""
    pieces: list[Any] = []
    if isinstance(table_type, EdgeType):
        pieces += [
            f'{{"edge":{_quoted_text(table_type.name)},"from":',
            _strings(rows.column("src")),
            ',"to":',
        ]
        pieces += [_strings(rows.column("dst")), ',"data":{"id":', _strings(rows.column("id"))]
    else:
        pieces += [f'{{"type":{_quoted_text(table_type.name)},"data":{{"id":', _strings(rows.column("id"))]
    for prop in table_type.properties:
        pieces += [f',"{prop.name}":', _values(rows.column(prop.name), prop)]
    pieces.append("}}\n")
    lines = _joined(*(_text(piece) if isinstance(piece, str) else piece for piece in pieces))
    return b"".join(
        bytes(chunk.buffers()[2])[_first(chunk) : _last(chunk)] for chunk in _chunked(lines) if len(chunk)
    )


def _chunked(array: Any) -> list[Any]:
    return array.chunks if isinstance(array, pa.ChunkedArray) else [array]


def _first(chunk: Any) -> int:
    return int(_offsets(chunk)[0])


def _last(chunk: Any) -> int:
    return int(_offsets(chunk)[-1])


def _offsets(chunk: Any) -> Any:
    width = np.int64 if pa.types.is_large_string(chunk.type) else np.int32
    return np.frombuffer(chunk.buffers()[1], width, len(chunk) + 1, chunk.offset * np.dtype(width).itemsize)


def _text(text: str) -> Any:
    return pa.scalar(text, pa.large_string())


def _joined(*pieces: Any) -> Any:
    """Row by row, the pieces one after the other; null where one of them is null."""
    return pc.binary_join_element_wise(*pieces, _text(""))


def _quoted_text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _strings(column: Any) -> Any:
    """A text column as JSON strings; null becomes `null`."""
    text = pc.cast(column, pa.large_string())
    if pc.any(pc.match_substring_regex(text, _UNSAFE), min_count=0).as_py():
        text = _escaped(text)
    quoted = _joined(_text('"'), text, _text('"'))
    return pc.fill_null(quoted, _text("null")) if column.null_count else quoted


def _escaped(text: Any) -> Any:
    for char, escape in _ESCAPES:
        text = pc.replace_substring(text, pattern=char, replacement=escape)
    return text


_ESCAPES: Final = [
    ("\\", "\\\\"),
    ('"', '\\"'),
    ("\n", "\\n"),
    ("\r", "\\r"),
    ("\t", "\\t"),
    *((chr(code), f"\\u{code:04x}") for code in (*range(32), 127) if chr(code) not in "\n\r\t"),
]


def _values(column: Any, prop: Property) -> Any:
    """A property column as JSON values."""
    if prop.type.vector_dim is not None or prop.type.is_list:
        return _lists(column, prop)
    return _scalars(column, prop.type.kind)


def _scalars(column: Any, kind: ScalarKind) -> Any:
    match kind:
        case ScalarKind.STRING:
            return _strings(column)
        case ScalarKind.DATE:
            return _strings(pc.strftime(column, format="%Y-%m-%d"))
        case ScalarKind.DATETIME:
            return _strings(pc.strftime(column, format="%Y-%m-%dT%H:%M:%SZ"))
        case ScalarKind.BLOB:
            return _blobs(column)
        case ScalarKind.F32:
            column = pc.cast(column, pa.float64())
        case _:
            pass
    text = pc.cast(column, pa.large_string())
    return pc.fill_null(text, _text("null")) if column.null_count else text


def _blobs(column: Any) -> Any:
    # One Python object per blob: base64 has no Arrow kernel, and the bytes dominate the cost.
    texts = [
        None if value is None else "base64:" + base64.b64encode(value).decode()
        for value in column.to_pylist()
    ]
    return _strings(pa.chunked_array([pa.array(texts, pa.large_string())]))


def _lists(column: Any, prop: Property) -> Any:
    flat = column.combine_chunks()
    if isinstance(flat, pa.ChunkedArray):
        flat = pa.concat_arrays(flat.chunks)
    if prop.type.vector_dim is not None:
        flat = flat.cast(pa.list_(pa.float32()))
    items = _scalars(flat.flatten(), prop.type.kind)
    items = items.combine_chunks() if isinstance(items, pa.ChunkedArray) else items
    lengths = pc.fill_null(pc.list_value_length(flat), 0)
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int32)
    texts = pa.ListArray.from_arrays(pa.array(offsets), pc.cast(items, pa.string()))
    joined = pc.cast(pc.binary_join(texts, ","), pa.large_string())
    boxed = _joined(_text("["), joined, _text("]"))
    return pc.if_else(pc.is_valid(flat), boxed, _text("null")) if flat.null_count else boxed
