"""String keys in memory: a vectorised hash, and immutable segments that map a key to a row address."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

ABSENT: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
"""No row address has this value: it would be the last row of the last possible fragment."""

HASH_CHUNK_ROWS: Final = 1 << 18
"""Rows hashed or looked up at a time, so that the working arrays stay in the processor's cache."""

SEGMENT_ROWS_MAX: Final = 1 << 23
SEGMENT_BYTES_MAX: Final = 1 << 30
"""One segment uses 32-bit string offsets and 32-bit ordinals; both bounds stay far below."""

DICTIONARY_ROWS_MAX: Final = 1024
FEW_KEYS: Final = 32

_MIX_A: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIX_B: Final = np.uint64(0xFF51_AFD7_ED55_8CCD)
_MIX_A_INT: Final = int(_MIX_A)
_MIX_B_INT: Final = int(_MIX_B)
_HASHED_AT_ONCE: Final = 256
"""Bytes of a key made one number; a multiple of eight."""
_WORD_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


def string_array(keys: Any) -> pa.StringArray:
    """The keys as one contiguous string array."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks() if keys.num_chunks != 1 else keys.chunk(0)
    if isinstance(keys, pa.ChunkedArray):
        keys = pa.concat_arrays(keys.chunks)
    return keys if keys.type == pa.string() else keys.cast(pa.string())


def hash_keys(keys: pa.StringArray) -> NDArray[np.uint64]:
    """A 64-bit hash per key; equal keys have equal hashes, whatever array they come from.

    Cost: a few passes of eight bytes at a time over the text; no Python object per key.
    """
    count = len(keys)
    hashes = np.empty(count, np.uint64)
    if count == 0:
        return hashes
    _, offset_buffer, value_buffer = keys.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, count + 1, keys.offset * 4).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(last - first + 16, np.uint8)
    if value_buffer is not None and last > first:
        padded[: last - first] = np.frombuffer(value_buffer, np.uint8, last - first, first)
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


@dataclass(slots=True, eq=False)
class KeySegment:
    """Some keys and their row addresses; never changed after construction.

    Lookups are exact: a hash only proposes a row, the text decides.
    Thread-safety: the lookup structures are built on first use; two threads may build the same one twice.
    """

    keys: pa.StringArray
    addresses: NDArray[np.uint64]
    _hashes: NDArray[np.uint64] | None = field(default=None, repr=False)
    _slots: NDArray[np.int32] | None = field(default=None, repr=False)
    _told_apart: bool | None = field(default=None, repr=False)
    """Whether no two keys have the same hash; known with the slots."""
    _single: Callable[[str], int | None] | None = field(default=None, repr=False)
    _nbytes: int = field(default=-1, repr=False)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Memory this segment holds or will hold once it has been searched."""
        if self._nbytes < 0:
            rows = len(self.keys)
            slot_bytes = 4 << _slot_bits(rows)
            self._nbytes = int(self.keys.nbytes) + int(self.addresses.nbytes) + 8 * rows + slot_bytes
        return self._nbytes

    def find_one(self, key: str) -> int | None:
        """The address of `key`, or None when this segment does not name it."""
        return (self._single or self.single())(key)

    def single(self) -> Callable[[str], int | None]:
        """What `find_one` does, without this object around it."""
        find = self._single
        if find is None:
            if len(self.keys) <= DICTIONARY_ROWS_MAX:
                find = dict(zip(self.keys.to_pylist(), self.addresses.tolist(), strict=True)).get
            else:
                find = _single_finder(self.keys, self.addresses, *self.table())
            self._single = find
        return find

    def find(
        self,
        keys: pa.StringArray,
        hashes: NDArray[np.uint64],
        *,
        at: NDArray[np.intp] | None = None,
        referenced: bool = False,
    ) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
        """Per key: whether this segment names it, and the address it gives.

        `at`: the ascending positions of the keys that are asked for, whose hashes are given; None: all.
        `referenced`: every key is known to be one of the table's, so a hash that only one of them has is
        enough and no text is compared.
        """
        self.table()
        if not self._told_apart or not len(self.keys):
            ordinals = self._probe(keys, hashes, at)
        else:
            ordinals = np.empty(len(hashes), np.int64)
            for begin in range(0, len(hashes), HASH_CHUNK_ROWS):
                part = slice(begin, begin + HASH_CHUNK_ROWS)
                ordinals[part] = self._probe_told_apart(hashes[part])
            if not referenced:
                self._drop_other_text(keys, ordinals, at)
        named = ordinals >= 0
        if named.all():
            return named, self.addresses[ordinals]
        found = np.full(len(hashes), ABSENT, np.uint64)
        found[named] = self.addresses[ordinals[named]]
        return named, found

    def _probe_told_apart(self, wanted: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The only ordinal with each hash, or -1."""
        own_hashes, slots = self.table()
        bits = _slot_bits(len(self.keys))
        slot = (wanted >> np.uint64(64 - bits)).astype(np.int64)
        result = slots[slot]
        # An empty slot gives -1 here, the last hash; it stays -1 whatever that is.
        pending = np.flatnonzero((own_hashes[result] != wanted) & (result >= 0))
        while pending.size:
            slot[pending] = (slot[pending] + 1) & ((1 << bits) - 1)
            ordinal = slots[slot[pending]]
            result[pending] = ordinal
            pending = pending[(own_hashes[ordinal] != wanted[pending]) & (ordinal >= 0)]
        return result

    def _drop_other_text(
        self, keys: pa.StringArray, ordinals: NDArray[np.int64], at: NDArray[np.intp] | None
    ) -> None:
        proposed = np.flatnonzero(ordinals >= 0)
        if proposed.size:
            asked = proposed if at is None else at[proposed]
            equal = _equal_text(keys, asked, self.keys, ordinals[proposed])
            ordinals[proposed[~equal]] = -1

    def _probe(
        self, keys: pa.StringArray, wanted: NDArray[np.uint64], at: NDArray[np.intp] | None
    ) -> NDArray[np.int64]:
        own_hashes, slots = self.table()
        bits = _slot_bits(len(self.keys))
        mask = (1 << bits) - 1
        slot = (wanted >> np.uint64(64 - bits)).astype(np.int64)
        result = np.full(len(wanted), -1, np.int64)
        pending = np.arange(len(wanted))
        while pending.size:
            ordinal = slots[slot[pending]]
            occupied = ordinal >= 0
            pending, ordinal = pending[occupied], ordinal[occupied]
            same = own_hashes[ordinal] == wanted[pending]
            if same.any():
                asked = pending[same] if at is None else at[pending[same]]
                same[same] = _equal_text(keys, asked, self.keys, ordinal[same])
                result[pending[same]] = ordinal[same]
            pending = pending[~same]
            slot[pending] = (slot[pending] + 1) & mask
        return result

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """The hash of each key."""
        if self._hashes is None:
            self._hashes = hash_keys(self.keys)
        return self._hashes

    def table(self) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """The hashes of the keys, and the open-addressing table of their ordinals."""
        if self._slots is None:
            slots, self._told_apart = _build_slots(self.hashes)
            self._slots = slots
        return self.hashes, self._slots

    @property
    def told_apart(self) -> bool:
        """Whether no two keys have the same hash."""
        self.table()
        return bool(self._told_apart)

    @staticmethod
    def stored(
        keys: pa.StringArray,
        addresses: NDArray[np.uint64],
        hashes: NDArray[np.uint64],
        slots: NDArray[np.int32],
        *,
        told_apart: bool,
    ) -> KeySegment:
        """A segment with its lookup structures, as `table` made them before."""
        return KeySegment(keys, addresses, hashes, slots, told_apart)


def _single_finder(
    keys: pa.StringArray,
    addresses: NDArray[np.uint64],
    hashes: NDArray[np.uint64],
    slots: NDArray[np.int32],
) -> Callable[[str], int | None]:
    """A lookup of one key at a time: the views it reads are made once, no array is made by a call."""
    _, offsets, data = keys.buffers()
    end_of = np.frombuffer(offsets, np.int32, len(keys) + 1, keys.offset * 4).item
    text: Any = memoryview(b"" if data is None else data).cast("B")
    slot_of, hash_of, address_of = slots.item, hashes.item, addresses.item
    bits = _slot_bits(len(keys))
    shift, mask = 64 - bits, (1 << bits) - 1

    def find(key: str) -> int | None:
        wanted = key.encode()
        hashed = hash_key(wanted)
        slot = hashed >> shift
        while (row := slot_of(slot)) >= 0:
            if hash_of(row) == hashed and text[end_of(row) : end_of(row + 1)] == wanted:
                return address_of(row)
            slot = (slot + 1) & mask
        return None

    return find


def _equal_text(
    left: pa.StringArray, left_at: NDArray[Any], right: pa.StringArray, right_at: NDArray[Any]
) -> NDArray[np.bool_]:
    # Ascending positions, as many as there are keys: all of them.
    asked = left if len(left_at) == len(left) else left.take(pa.array(left_at))
    equal = pc.equal(asked, right.take(pa.array(right_at)))
    return np.asarray(equal.to_numpy(zero_copy_only=False), np.bool_)


def _slot_bits(rows: int) -> int:
    return max(4, (2 * rows).bit_length())


def _build_slots(hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int32], bool]:
    """Open addressing, filled by rounds: everybody writes, rereads, and the losers move on by one slot.

    Also whether all hashes differ: equal ones meet, because they begin at the same slot.
    """
    bits = _slot_bits(len(hashes))
    mask = (1 << bits) - 1
    slots = np.full(1 << bits, -1, np.int32)
    slot = (hashes >> np.uint64(64 - bits)).astype(np.int64)
    pending = np.arange(len(hashes), dtype=np.int32)
    told_apart = True
    while pending.size:
        at = slot[pending]
        free = slots[at] < 0
        slots[at[free]] = pending[free]
        winner = slots[at]
        lost = winner != pending
        pending = pending[lost]
        told_apart = told_apart and not (hashes[winner[lost]] == hashes[pending]).any()
        slot[pending] = (slot[pending] + 1) & mask
    return slots, told_apart


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The distinct values, ascending. numpy's own `unique` hashes, which takes thirty times as long for
    integers.
    """
    ordered = np.sort(values)
    return ordered[np.r_[True, ordered[1:] != ordered[:-1]]] if len(ordered) else ordered


def is_among(values: NDArray[Any], ascending: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values occur in an ascending array that is not empty."""
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return ascending[at] == values


def join_segments(newest_last: Sequence[KeySegment]) -> KeySegment:
    """One segment that answers like the given ones searched from the newest to the oldest."""
    if len(newest_last) == 1:
        return newest_last[0]
    if sum(map(len, newest_last)) <= DICTIONARY_ROWS_MAX:
        return _joined_by_text(newest_last)
    joined = newest_last[-1]
    for older in reversed(newest_last[:-1]):
        joined = _joined_by_hash(older, joined)
    return joined


def _joined_by_text(newest_last: Sequence[KeySegment]) -> KeySegment:
    """For few keys, which are found by their texts and have no hashes."""
    keys = pa.concat_arrays([segment.keys for segment in newest_last])
    addresses = np.concatenate([segment.addresses for segment in newest_last])
    last = last_occurrences(keys)
    if len(last) < len(keys):
        return KeySegment(keys.take(pa.array(last)), addresses[last])
    return KeySegment(keys, addresses)


def _joined_by_hash(older: KeySegment, newer: KeySegment) -> KeySegment:
    """For many keys: what the older one names alone, and the newer one; no key is hashed again."""
    again, _ = newer.find(older.keys, older.hashes)
    kept, addresses, hashes = older.keys, older.addresses, older.hashes
    if again.any():
        alone = ~again
        kept, addresses, hashes = kept.filter(pa.array(alone)), addresses[alone], hashes[alone]
    return KeySegment(
        pa.concat_arrays([kept, newer.keys]),
        np.concatenate([addresses, newer.addresses]),
        np.concatenate([hashes, newer.hashes]),
    )


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
