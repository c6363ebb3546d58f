"""Finding the addresses of rows by key, in bounded pieces."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from omnigraph.core.events import StorageCall, emit, listening
from omnigraph.core.limits import KEY_PROBE_CHUNK_ROWS
from omnigraph.storage.contents import circumstances
from omnigraph.storage.datasets import DatasetPool
from omnigraph.storage.failures import substrate
from omnigraph.storage.handles import SnapshotHandle, lance_dataset

SCAN_KEYS_MIN: Final = 2_000
"""From here on one scan of the key column is cheaper than `IN` lists (measured on a million rows)."""


def probe_addresses(
    pool: DatasetPool, handle: SnapshotHandle, column: str, keys: Any
) -> npt.NDArray[np.uint64]:
    """Addresses of the live rows whose key is among `keys` (an Arrow string array), sorted.

    Cost: one `IN` probe per chunk for few keys, one streamed scan of the key column for many.
    """
    dataset = lance_dataset(handle)
    keys = keys.drop_null()
    if len(keys) == 0 or handle.row_count == 0:
        return np.empty(0, np.uint64)
    with substrate(lambda: circumstances(pool, handle)):
        if len(keys) < SCAN_KEYS_MIN:
            found = [
                _probe(dataset, column, keys[start : start + KEY_PROBE_CHUNK_ROWS].to_pylist())
                for start in range(0, len(keys), KEY_PROBE_CHUNK_ROWS)
            ]
        else:
            found = _scan(dataset, column, keys)
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)


def text_literal(value: str) -> str:
    """A string as Lance filter text reads it."""
    return "'" + value.replace("'", "''") + "'"


def _probe(dataset: Any, column: str, keys: list[str]) -> npt.NDArray[np.uint64]:
    if listening():
        emit(StorageCall("scan", str(dataset.uri)))
    wanted = f"`{column}` IN ({', '.join(map(text_literal, keys))})"
    found = dataset.to_table(columns=[], filter=wanted, with_row_address=True)
    return found["_rowaddr"].to_numpy()


def _scan(dataset: Any, column: str, keys: Any) -> list[npt.NDArray[np.uint64]]:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if listening():
        emit(StorageCall("scan", str(dataset.uri)))
    wanted = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    found: list[npt.NDArray[np.uint64]] = []
    for batch in dataset.to_batches(columns=[column], with_row_address=True):
        hits = pc.is_in(batch.column(column), value_set=wanted)
        if pc.any(hits).as_py():
            found.append(batch.column("_rowaddr").filter(hits).to_numpy())
    return found
