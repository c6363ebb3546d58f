"""Columns of tables in memory, shared by all versions that hold the same fragments."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from omnigraph.arrays.types import Offsets
    from omnigraph.engine.tables.columns import Numbers

ChunkKey = tuple[str, str, tuple[str, ...], str]
"""Graph, table, the data files of a fragment, and the identity of a column."""


class ColumnCache:
    """Column chunks of a process, by the files they were read from; bounded in bytes, oldest use first out.

    A chunk is named by its fragment's data files and knows which rows were dead when it was read. It is
    right for every version and branch that holds that fragment and shows none of those rows.
    Thread-safety: every method may be called from any thread.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = (
            threading.RLock()
        )  # what is dropped may be collected in any thread, also inside a call of this class, also in here
        self._chunks: OrderedDict[ChunkKey, tuple[pa.Array, Offsets]] = OrderedDict()
        self.evictions = 0
        """Grows when chunks leave; an image that keeps chunks lets go of them then."""

    def get(self, key: ChunkKey, dead: Offsets) -> pa.Array | None:
        """The chunk, or None when it has to be read. `dead` are the rows the asking version does not show."""
        with self._lock:
            kept = self._chunks.get(key)
            if kept is not None:
                self._chunks.move_to_end(key)
        if kept is None or (len(kept[1]) and not np.isin(kept[1], dead).all()):
            return None
        return kept[0]

    def put(self, key: ChunkKey, chunk: pa.Array, dead: Offsets) -> None:
        """Keep a chunk; others leave until the bound holds. A chunk above the bound is not kept."""
        if chunk.nbytes > self._bytes_max:
            return
        with self._lock:
            replaced = self._chunks.pop(key, None)
            self._bytes += chunk.nbytes - (replaced[0].nbytes if replaced is not None else 0)
            self._chunks[key] = (chunk, dead)
            self._make_room()

    def hold(self, made: Numbers) -> bool:
        """Count what was copied from chunks, for as long as it is in use; False where that is above the bound
        and its maker should let go of it.
        """
        size = made.nbytes_copied
        if size > self._bytes_max:
            return False
        if size:
            weakref.finalize(made, self._release, size).atexit = False
            with self._lock:
                self._bytes += size
                self._make_room()
        return True

    def _release(self, size: int) -> None:
        with self._lock:
            self._bytes -= size

    def _make_room(self) -> None:
        while self._bytes > self._bytes_max and self._chunks:
            _, dropped = self._chunks.popitem(last=False)
            self._bytes -= dropped[0].nbytes
            self.evictions += 1

    def nbytes(self) -> int:
        """Memory in use."""
        with self._lock:
            return self._bytes
