"""String keys in memory: immutable segments that map a key to a row address."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.arrays.addresses import ABSENT
from omnigraph.arrays.keys import HASH_CHUNK_ROWS, hash_key, hash_keys, last_occurrences
from omnigraph.arrays.text_buffers import text_bounds, text_bytes
from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Addresses

SEGMENT_ROWS_MAX: Final = 1 << 23
SEGMENT_BYTES_MAX: Final = 1 << 30
"""One segment uses 32-bit string offsets and 32-bit ordinals; both bounds stay far below."""

DICTIONARY_ROWS_MAX: Final = 1024


@dataclass(slots=True, eq=False)
class KeySegment:
    """Some keys and their row addresses; never changed after construction.

    Lookups are exact: a hash only proposes a row, the text decides.
    Thread-safety: the lookup structures are built on first use; two threads may build the same one twice.
    """

    keys: pa.StringArray
    addresses: Addresses
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
        addresses: Addresses,
        hashes: NDArray[np.uint64],
        slots: NDArray[np.int32],
        *,
        told_apart: bool,
    ) -> KeySegment:
        """A segment with its lookup structures, as `table` made them before."""
        return KeySegment(keys, addresses, hashes, slots, told_apart)


def _single_finder(
    keys: pa.StringArray,
    addresses: Addresses,
    hashes: NDArray[np.uint64],
    slots: NDArray[np.int32],
) -> Callable[[str], int | None]:
    """A lookup of one key at a time: the views it reads are made once, no array is made by a call."""
    end_of = text_bounds(keys).item
    text: Any = text_bytes(keys)  # equals bytes of the same content, which the checker denies
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
    """For many keys: those that only the older segment names, then those of the newer one. No key is hashed
    again.
    """
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
