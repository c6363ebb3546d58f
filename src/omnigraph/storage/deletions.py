"""Which rows of a fragment are deleted, read from its deletion file: the cost follows the deletions.

Lance keeps few deletions as an Arrow file of row numbers and many as a roaring bitmap in the portable format.
"""

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from omnigraph.arrays.addresses import addresses_in, offsets_of
from omnigraph.core.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from numpy.typing import NDArray

    from omnigraph.storage.handles import Fragment, SnapshotHandle
    from omnigraph.storage.layout import GraphRoot
    from omnigraph.storage.tables import TableStorage

_WITHOUT_RUNS: Final = 12346
_WITH_RUNS: Final = 12347
_OFFSETS_FROM: Final = 4
"""A bitmap with runs and at least this many containers also has a table of their positions."""
_ARRAY_MAX: Final = 4096
"""Values a container holds as a sorted list; more are held as bits."""
_BITS_BYTES: Final = 8192


def dead_rows(
    tables: "TableStorage", root: "GraphRoot", handle: "SnapshotHandle", fragment: "Fragment"
) -> "NDArray[np.int64]":
    """The numbers of the deleted rows of a fragment of a version, ascending.

    Cost: follows the deletions on a local disk, elsewhere the rows of the fragment, without their values.
    """
    if fragment.deletions is None:
        return np.empty(0, np.int64)
    if not root.is_local:
        shown = tables.scan(handle, columns=[], with_row_address=True, fragments=[fragment.id])
        return hidden_rows(shown, fragment.physical_rows)
    path = root.local_path(fragment.deletions)
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".arrow"):
        import pyarrow as pa  # noqa: PLC0415  the room is imported before it is used

        found = pa.ipc.open_file(pa.py_buffer(data)).read_all().column(0).to_numpy()
        dead = np.sort(np.asarray(found, np.int64))
    else:
        dead = roaring_values(data)
    if len(dead) != fragment.deleted_rows:
        raise InternalError(
            f"'{fragment.deletions}' names {len(dead)} rows; the table says {fragment.deleted_rows}"
        )
    return dead


def hidden_rows(batches: "Iterable[pa.RecordBatch]", physical_rows: int) -> "NDArray[np.int64]":
    """The numbers of the rows of one fragment whose addresses a scan of it does not show."""
    alive = np.zeros(physical_rows, np.bool_)
    for batch in batches:
        alive[offsets_of(addresses_in(batch))] = True
    return np.flatnonzero(~alive)


def roaring_values(data: bytes) -> "NDArray[np.int64]":
    """The numbers in a 32-bit roaring bitmap, ascending."""
    (cookie,) = struct.unpack_from("<I", data, 0)
    if cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        flags = np.unpackbits(np.frombuffer(data, np.uint8, (count + 7) // 8, 4), bitorder="little")
        at = 4 + (count + 7) // 8
    elif cookie == _WITHOUT_RUNS:
        (count,) = struct.unpack_from("<I", data, 4)
        flags = np.zeros(count, np.uint8)
        at = 8
    else:
        raise InternalError(f"a deletion file begins with {cookie}, which no known format does")
    heads = np.frombuffer(data, np.dtype("<u2"), 2 * count, at).reshape(count, 2).astype(np.int64)
    at += 4 * count
    if cookie == _WITHOUT_RUNS or count >= _OFFSETS_FROM:
        at += 4 * count
    parts: list[NDArray[np.int64]] = []
    for (key, last), runs in zip(heads.tolist(), flags[:count].tolist(), strict=True):
        values, at = _container(data, at, last + 1, runs=bool(runs))
        parts.append(values + (key << 16))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _container(data: bytes, at: int, cardinality: int, *, runs: bool) -> "tuple[NDArray[np.int64], int]":
    """The values of one container, and where the next one begins."""
    if runs:
        (count,) = struct.unpack_from("<H", data, at)
        pairs = np.frombuffer(data, np.dtype("<u2"), 2 * count, at + 2).reshape(count, 2).astype(np.int64)
        lengths = pairs[:, 1] + 1
        firsts = np.repeat(pairs[:, 0] - (np.cumsum(lengths) - lengths), lengths)
        return firsts + np.arange(int(lengths.sum())), at + 2 + 4 * count
    if cardinality <= _ARRAY_MAX:
        values = np.frombuffer(data, np.dtype("<u2"), cardinality, at).astype(np.int64)
        return values, at + 2 * cardinality
    bits = np.unpackbits(np.frombuffer(data, np.uint8, _BITS_BYTES, at), bitorder="little")
    return np.flatnonzero(bits).astype(np.int64), at + _BITS_BYTES
