"""Finding the addresses of rows by key, in bounded pieces."""

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from omnigraph.arrays.addresses import ADDRESS, addresses_in
from omnigraph.core.events import StorageCall, emit, listening
from omnigraph.core.limits import KEY_PROBE_CHUNK_ROWS
from omnigraph.planning.filters import filter_text, has_text
from omnigraph.storage.datasets import DatasetPool
from omnigraph.storage.failures import substrate
from omnigraph.storage.handles import SnapshotHandle, lance_dataset
from omnigraph.storage.version_files import circumstances

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset


FEW_KEYS_MAX: Final = 500
"""Up to this many keys are always looked up by an `IN` list, with or without an index."""

ROWS_PER_PROBED_KEY_MIN: Final = 50
"""With an index `IN` lists win while the table has this many rows per key (measured on a million rows)."""

SCAN_BATCH_ROWS: Final = 128 * 1024
"""Rows compared at once in a scan: every comparison prepares the wanted keys anew."""


def probe_addresses(
    pool: DatasetPool, handle: SnapshotHandle, column: str, keys: "pa.Array | pa.ChunkedArray"
) -> npt.NDArray[np.uint64]:
    """Addresses of the live rows whose key is among `keys` (an Arrow string array), sorted.

    Cost: one `IN` probe per chunk for few keys, one streamed scan of the key column for many.
    """
    dataset = lance_dataset(handle)
    keys = keys.drop_null()
    if len(keys) == 0 or handle.row_count == 0:
        return np.empty(0, np.uint64)
    with substrate(lambda: circumstances(pool, handle)):
        if _few(dataset, column, len(keys), handle.row_count):
            found = [
                _probe(dataset, column, keys.slice(start, KEY_PROBE_CHUNK_ROWS).to_pylist())
                for start in range(0, len(keys), KEY_PROBE_CHUNK_ROWS)
            ]
        else:
            found = _scan(dataset, column, keys)
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)


def _few(dataset: "LanceDataset", column: str, keys: int, rows: int) -> bool:
    if keys <= FEW_KEYS_MAX:
        return True
    indexed = any(list(index.field_names) == [column] for index in dataset.describe_indices())
    return indexed and keys * ROWS_PER_PROBED_KEY_MIN <= rows


def _probe(dataset: "LanceDataset", column: str, keys: list[str]) -> npt.NDArray[np.uint64]:
    if listening():
        emit(StorageCall("scan", str(dataset.uri)))
    wanted = filter_text(has_text(column, keys))
    found = dataset.to_table(columns=[], filter=wanted, with_row_address=True)
    return addresses_in(found)


def _scan(
    dataset: "LanceDataset", column: str, keys: "pa.Array | pa.ChunkedArray"
) -> list[npt.NDArray[np.uint64]]:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if listening():
        emit(StorageCall("scan", str(dataset.uri)))
    wanted = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    found: list[npt.NDArray[np.uint64]] = []
    for batch in dataset.to_batches(columns=[column], with_row_address=True, batch_size=SCAN_BATCH_ROWS):
        hits = pc.is_in(batch.column(column), value_set=wanted)
        if pc.any(hits).as_py():
            found.append(batch.column(ADDRESS).filter(hits).to_numpy())
    return found
