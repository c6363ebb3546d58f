"""String keys as whole arrays: one array of them, a hash of each, the last of equal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.arrays.text_buffers import text_bounds, text_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnigraph.arrays.types import Mask

HASH_CHUNK_ROWS: Final = 1 << 18
"""Rows hashed or looked up at a time, so that the working arrays stay in the processor's cache."""

_MIX_A: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIX_B: Final = np.uint64(0xFF51_AFD7_ED55_8CCD)
_MIX_A_INT: Final = int(_MIX_A)
_MIX_B_INT: Final = int(_MIX_B)
_HASHED_AT_ONCE: Final = 256
"""How many bytes of a key are made one number at a time; a multiple of eight."""
_WORD_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


def string_array(keys: pa.Array | pa.ChunkedArray) -> pa.StringArray:
    """The keys as one contiguous string array."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks() if keys.num_chunks != 1 else keys.chunk(0)
    return keys if isinstance(keys, pa.StringArray) else keys.cast(pa.string())


def is_in(keys: pa.StringArray, wanted: pa.StringArray) -> Mask:
    """Which of the keys are wanted."""
    if not len(keys) or not len(wanted):
        return np.zeros(len(keys), np.bool_)
    return pc.is_in(keys, value_set=wanted).to_numpy(zero_copy_only=False)


def hash_keys(keys: pa.StringArray) -> NDArray[np.uint64]:
    """A 64-bit hash per key; equal keys have equal hashes, whatever array they come from.

    Cost: a few passes of eight bytes at a time over the text; no Python object per key.
    """
    count = len(keys)
    hashes = np.empty(count, np.uint64)
    if count == 0:
        return hashes
    offsets = text_bounds(keys).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(last - first + 16, np.uint8)
    padded[: last - first] = np.frombuffer(text_bytes(keys)[first:last], np.uint8)
    # One unaligned eight-byte window at every byte of the text.
    windows: NDArray[np.uint64] = np.ndarray((last - first + 8,), np.uint64, padded.data, 0, (1,))
    starts = offsets[:-1] - first
    lengths = np.diff(offsets)
    for begin in range(0, count, HASH_CHUNK_ROWS):
        end = min(count, begin + HASH_CHUNK_ROWS)
        hashes[begin:end] = _hash_chunk(windows, starts[begin:end], lengths[begin:end])
    return hashes


def hash_key(key: bytes) -> int:
    """What `hash_keys` gives for one key, without the arrays."""
    state = (len(key) + 1) * _MIX_A_INT & _WORD_MASK
    # A whole number is taken apart faster than bytes, but each step copies what is left of it.
    for begin in range(0, len(key), _HASHED_AT_ONCE):
        part = key[begin : begin + _HASHED_AT_ONCE]
        size, rest = len(part), int.from_bytes(part, "little")
        while size > 0:
            word = rest & _WORD_MASK if size >= 8 else rest << (8 - size) * 8
            state = (state ^ word) * _MIX_A_INT & _WORD_MASK
            state = (state ^ state >> 32) * _MIX_B_INT & _WORD_MASK
            state ^= state >> 29
            rest >>= 64
            size -= 8
    state = (state ^ state >> 32) * _MIX_B_INT & _WORD_MASK
    return state ^ state >> 29


def _hash_chunk(
    windows: NDArray[np.uint64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    # The length seeds the hash, so that trailing zero bytes count.
    state = (lengths.astype(np.uint64) + np.uint64(1)) * _MIX_A
    active: NDArray[np.intp] | slice = slice(None)
    position = 0
    longest = int(lengths.max())
    while position < longest:
        remaining = lengths[active] - position
        if int(remaining.min()) <= 0:
            keep = remaining > 0
            active = np.flatnonzero(keep) if isinstance(active, slice) else active[keep]
            remaining = remaining[keep]
        surplus = (8 - np.minimum(remaining, 8)).astype(np.uint64) << np.uint64(3)
        word = windows[starts[active] + position] << surplus
        mixed = (state[active] ^ word) * _MIX_A
        mixed ^= mixed >> np.uint64(32)
        mixed *= _MIX_B
        mixed ^= mixed >> np.uint64(29)
        state[active] = mixed
        position += 8
    state ^= state >> np.uint64(32)
    state *= _MIX_B
    state ^= state >> np.uint64(29)
    return state


def last_occurrences(keys: pa.StringArray) -> NDArray[np.int64]:
    """Positions of the last occurrence of each distinct key, ascending; every null counts as distinct."""
    count = len(keys)
    if count < 2:
        return np.arange(count, dtype=np.int64)
    codes = np.asarray(
        keys.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False), np.int64
    )
    winner = np.zeros(int(codes.max()) + 1, np.int64)
    # Later assignments win: numpy assigns repeated indices in order.
    winner[codes] = np.arange(count, dtype=np.int64)
    keep = winner[codes] == np.arange(count, dtype=np.int64)
    if keys.null_count:
        keep |= np.asarray(keys.is_null().to_numpy(zero_copy_only=False), np.bool_)
    return np.flatnonzero(keep)
