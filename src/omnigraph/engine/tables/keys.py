"""The key index: which row of a table holds an id, exact for one version of the table.

A `KeyIndex` is an immutable value. The index of the next version shares everything with the one before: new
rows become a new segment, dead rows are known per fragment. Which fragments two versions share is read from
the versions themselves, so an index is right after any foreign commit, restore or compaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from omnigraph.arrays.addresses import ABSENT, OFFSET_BITS, OFFSET_MASK, addresses_in, all_rows, by_fragment
from omnigraph.arrays.key_segments import (
    DICTIONARY_ROWS_MAX,
    SEGMENT_BYTES_MAX,
    SEGMENT_ROWS_MAX,
    KeySegment,
    join_segments,
)
from omnigraph.arrays.keys import hash_keys, string_array
from omnigraph.arrays.sets import is_among
from omnigraph.core.late_dataclass import dataclass
from omnigraph.planning.filters import filter_text, has_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Addresses
    from omnigraph.storage.handles import Fragment
    from omnigraph.storage.tables import SnapshotHandle, TableStorage

FEW_KEYS: Final = 32
"""Up to this many keys are looked up one by one, which costs less than making arrays of them."""

JOINED_ROWS_MAX: Final = 1 << 17
"""Small segments are joined up to this size; larger ones stay as they are until there are too many."""

FEW_JOINED: Final = 4
"""Segments of few keys are joined this many at a time: that takes as long for two as for four."""

SIMILAR_RATIO: Final = 4
"""Segments whose sizes differ by no more are of similar size."""
SEGMENTS_MAX: Final = 24

NO_ROWS: Final[NDArray[np.uint32]] = np.empty(0, np.uint32)

Fragments: TypeAlias = "Mapping[int, Fragment]"
"""The fragments of a version by their numbers, in the order of its rows."""

DeadRows: TypeAlias = "Mapping[int, NDArray[np.uint32]]"
"""The offsets of dead rows, ascending, by the number of their fragment; one without any has no entry."""


class KeySource(Protocol):
    """One version of a table, as the key index reads it."""

    def fragments(self) -> Fragments:
        """The fragments of the version."""
        ...

    def dead_rows(self, fragment: Fragment) -> NDArray[np.uint32]:
        """The deleted row offsets of one fragment, ascending."""
        ...

    def live_keys(self, fragment_ids: Iterable[int] | None) -> Iterator[tuple[pa.StringArray, Addresses]]:
        """Ids and row addresses of the live rows of the given fragments (None: of all)."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class KeyIndex:
    """Ids to row addresses for one version of one table.

    Segments are searched from the newest to the oldest and the first that names a key decides; what it names
    counts only while that row is alive in this version.
    """

    fragments: Fragments
    dead: DeadRows
    segments: tuple[KeySegment, ...]
    known_files: Mapping[int, tuple[str, ...]]

    @property
    def nbytes(self) -> int:
        """Memory of the segments."""
        return sum(segment.nbytes for segment in self.segments)

    def prepared(self) -> KeyIndex:
        """This index with what its first lookup would make."""
        for segment in self.segments:
            segment.single()
        return self

    def seen(self, numbers: Sequence[int]) -> dict[int, Fragment] | None:
        """The fragments of the version this is of, in the order of `numbers`; None when those are others."""
        if set(self.fragments) != set(numbers):
            return None
        return {number: self.fragments[number] for number in numbers}

    def find(self, ids: pa.StringArray, *, referenced: bool = False) -> Addresses:
        """The address of each id, or `ABSENT`.

        `referenced`: rows of this graph refer to these ids, so they are compared by hash where that tells
        all keys apart.
        """
        if len(ids) <= FEW_KEYS:
            find = self.finder()
            found = [find(key) for key in ids.to_pylist()]
            return np.array([ABSENT if each is None else each for each in found], np.uint64)
        hashes = hash_keys(ids)
        if len(self.segments) == 1:
            return self._alive(self.segments[0].find(ids, hashes, referenced=referenced)[1])
        found = np.full(len(ids), ABSENT, np.uint64)
        pending = np.arange(len(ids))
        for segment in reversed(self.segments):
            if not pending.size:
                break
            named, addresses = segment.find(ids, hashes[pending], at=pending, referenced=referenced)
            found[pending[named]] = addresses[named]
            pending = pending[~named]
        return self._alive(found)

    def find_one(self, key: str) -> int:
        """The address of one id, or `ABSENT`."""
        found = self.finder()(key)
        return int(ABSENT) if found is None else found

    def finder(self) -> Callable[[str], int | None]:
        """A lookup of one id after another: its address, or None."""
        segments = tuple(reversed(self.segments))
        is_alive = None if self._none_dead() else self._is_alive

        def find(key: str) -> int | None:
            for segment in segments:
                address = segment.find_one(key)
                if address is not None:
                    return address if is_alive is None or is_alive(address) else None
            return None

        return segments[0].single() if len(segments) == 1 and is_alive is None else find

    def _none_dead(self) -> bool:
        """Whether no row this index ever knew is dead."""
        return not self.dead and len(self.known_files) == len(self.fragments)

    def _is_alive(self, address: int) -> bool:
        number = address >> OFFSET_BITS
        dead = self.dead.get(number)
        if dead is None:
            return number in self.fragments
        offset = address & OFFSET_MASK
        at = int(dead.searchsorted(np.uint32(offset)))
        return at >= len(dead) or dead.item(at) != offset

    def _alive(self, addresses: Addresses) -> Addresses:
        if self._none_dead():
            return addresses
        order = np.argsort(addresses)
        for fragment_id, offsets, part in by_fragment(addresses[order]):
            dead = self.dead.get(fragment_id)
            if dead is not None:
                addresses[order[part][is_among(offsets, dead)]] = ABSENT
            elif fragment_id not in self.fragments:
                addresses[order[part]] = ABSENT
        return addresses


def build(source: KeySource) -> KeyIndex:
    """The index of a version, from a scan of its id column."""
    fragments = source.fragments()
    dead = {number: source.dead_rows(each) for number, each in fragments.items() if each.deleted_rows}
    known = {number: each.files for number, each in fragments.items()}
    return KeyIndex(fragments, dead, tuple(_segments(source.live_keys(None))), known)


def advance(
    index: KeyIndex,
    source: KeySource,
    *,
    own_keys: pa.StringArray | None = None,
    own_removed: Addresses | None = None,
) -> KeyIndex:
    """The index of another version of the same table, reading only what differs.

    `own_keys` and `own_removed` are what this process just wrote, in the order of writing: when they explain
    the difference completely nothing is read at all.
    """
    seen = source.fragments()
    rebuilt = any(index.known_files.get(number, each.files) != each.files for number, each in seen.items())
    if rebuilt:  # A fragment number was given out twice: addresses of the two cannot be told apart.
        return build(source)
    new_ids = [fragment_id for fragment_id in seen if fragment_id not in index.fragments]
    new_rows = sum(seen[fragment_id].physical_rows for fragment_id in new_ids)
    explained = own_keys is not None and len(own_keys) == new_rows
    if not explained and new_rows > sum(each.physical_rows for each in seen.values()) // 2:
        return build(source)
    removed: dict[int, NDArray[np.uint32]] | None = None
    if own_removed is not None and explained:
        removed = {number: offsets for number, offsets, _ in by_fragment(np.sort(own_removed))}
    dead: dict[int, NDArray[np.uint32]] = {}
    revived: list[int] = []
    for number, fragment in seen.items():
        before, died = index.fragments.get(number), index.dead.get(number, NO_ROWS)
        if before is None or (before.deletions, len(died)) != (fragment.deletions, fragment.deleted_rows):
            known = None if removed is None or before is None else _with(died, removed.get(number, NO_ROWS))
            now = _dead_rows(source, fragment, known)
            if before is not None and not _contains(now, died):
                revived.append(number)  # a restore: rows that a newer segment overrides live again
            died = now
        if len(died):
            dead[number] = died
    segments = list(index.segments)
    if explained and own_keys is not None and not revived:
        if len(own_keys):
            segments.append(KeySegment(own_keys, _addresses(sorted(new_ids), seen)))
    elif new_ids or revived:
        segments.extend(_segments(source.live_keys([*new_ids, *revived])))
    files = dict(index.known_files)
    files.update({number: seen[number].files for number in new_ids})
    return KeyIndex(seen, dead, _tidy(segments), files)


def unread_rows(index: KeyIndex, fragments: Fragments) -> int:
    """Rows of a version whose ids `advance` would have to read."""
    return sum(each.physical_rows for number, each in fragments.items() if number not in index.fragments)


def _contains(whole: NDArray[np.uint32], part: NDArray[np.uint32]) -> bool:
    """Whether every element of `part` is in `whole`; both ascending."""
    return len(part) == 0 or (len(whole) > 0 and bool(is_among(part, whole).all()))


def _with(dead: NDArray[np.uint32], more: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Both together, ascending as they are: what is there already is not sorted again."""
    return np.insert(dead, np.searchsorted(dead, more), more)


def carried(
    index: KeyIndex,
    storage: TableStorage,
    handle: SnapshotHandle,
    keys: pa.StringArray,
    removed: Addresses,
) -> KeyIndex | None:
    """The index after exactly one own commit on the version it is of; None when that does not explain what
    is seen.

    Only the fragments the commit touched are looked at: no other has changed.
    """
    newest = max(index.known_files, default=-1)
    touched = {number: offsets for number, offsets, _ in by_fragment(np.sort(removed))}
    seen = {info.id: info for info in storage.fragments(handle, above=newest, also=frozenset(touched))}
    new_ids = sorted(fragment_id for fragment_id in seen if fragment_id > newest)
    if newest < 0 or sum(seen[fragment_id].physical_rows for fragment_id in new_ids) != len(keys):
        return None
    fragments, dead = dict(index.fragments), dict(index.dead)
    for fragment_id, offsets in touched.items():
        died = _with(dead.pop(fragment_id, NO_ROWS), offsets)
        del fragments[fragment_id]
        fragment = seen.get(fragment_id)
        if fragment is None:  # its last rows are gone
            continue
        if len(died) != fragment.deleted_rows:
            return None
        fragments[fragment_id], dead[fragment_id] = fragment, died
    known = dict(index.known_files)
    for fragment_id in new_ids:
        fragments[fragment_id] = seen[fragment_id]
        known[fragment_id] = seen[fragment_id].files
    segments = list(index.segments)
    if len(keys):
        segments.append(KeySegment(keys, _addresses(new_ids, seen)))
    return KeyIndex(fragments, dead, _tidy(segments), known)


def _dead_rows(
    source: KeySource, fragment: Fragment, expected: NDArray[np.uint32] | None
) -> NDArray[np.uint32]:
    """The dead rows of a fragment; those that are expected where they are as many, else they are read."""
    if fragment.deleted_rows == 0:
        return NO_ROWS
    if expected is not None and len(expected) == fragment.deleted_rows:
        return expected
    return source.dead_rows(fragment)


def _addresses(numbers: Iterable[int], fragments: Fragments) -> Addresses:
    """The addresses of all rows of some fragments, live or dead, in their order."""
    parts = [all_rows(number, fragments[number].physical_rows) for number in numbers]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _segments(batches: Iterable[tuple[pa.StringArray, Addresses]]) -> Iterator[KeySegment]:
    keys: list[pa.StringArray] = []
    addresses: list[Addresses] = []
    rows = size = 0
    for batch_keys, batch_addresses in batches:
        if len(batch_keys) == 0:
            continue
        if keys and (
            rows + len(batch_keys) > SEGMENT_ROWS_MAX or size + batch_keys.nbytes > SEGMENT_BYTES_MAX
        ):
            yield KeySegment(pa.concat_arrays(keys), np.concatenate(addresses))
            keys, addresses, rows, size = [], [], 0, 0
        keys.append(batch_keys)
        addresses.append(batch_addresses)
        rows += len(batch_keys)
        size += int(batch_keys.nbytes)
    if keys:
        yield KeySegment(pa.concat_arrays(keys), np.concatenate(addresses))


def _tidy(segments: list[KeySegment]) -> tuple[KeySegment, ...]:
    """Join the newest segments while they are small and of similar size, so that a lookup visits few.

    Of too many, two are joined at a time: a write waits for no more than that.
    """
    while len(segments) > 1:
        count = FEW_JOINED if len(segments[-1]) <= DICTIONARY_ROWS_MAX else 2
        newest = segments[-count:]
        similar = len(newest[0]) <= len(newest[-1]) and sum(map(len, newest)) <= JOINED_ROWS_MAX
        if not (similar and len(newest) == count):
            break
        segments[-count:] = [join_segments(newest)]
    if len(segments) > SEGMENTS_MAX:
        at = _soonest_joined(list(map(len, segments)))
        segments[at : at + 2] = [join_segments(segments[at : at + 2])]
    return tuple(segments)


def _soonest_joined(sizes: Sequence[int]) -> int:
    """Where the two neighbours lie that are joined when there are too many.

    Those of similar size first: a large segment that grew by every small write would be copied by each. Of
    these the large ones, which nothing else joins. Then those that are the least work.
    """

    def work(at: int) -> tuple[bool, bool, int]:
        one, other = sizes[at], sizes[at + 1]
        similar = max(one, other) <= SIMILAR_RATIO * min(one, other)
        return not similar, one + other <= JOINED_ROWS_MAX, one + other

    return min(range(len(sizes) - 1), key=work)


class TableKeys:
    """`KeySource` over one snapshot of a table."""

    def __init__(self, storage: TableStorage, handle: SnapshotHandle, fragments: Fragments) -> None:
        self._storage = storage
        self._handle = handle
        self._fragments = fragments

    def fragments(self) -> Fragments:
        """See `KeySource`."""
        return self._fragments

    def dead_rows(self, fragment: Fragment) -> NDArray[np.uint32]:
        """See `KeySource`."""
        return self._storage.dead_rows(self._handle, fragment).astype(np.uint32)

    def live_keys(self, fragment_ids: Iterable[int] | None) -> Iterator[tuple[pa.StringArray, Addresses]]:
        """See `KeySource`."""
        wanted = None if fragment_ids is None else list(fragment_ids)
        reader = self._storage.scan(self._handle, columns=["id"], with_row_address=True, fragments=wanted)
        for batch in reader:
            addresses = addresses_in(batch)
            yield string_array(batch.column("id")), addresses


def describe(storage: TableStorage, handle: SnapshotHandle) -> dict[int, Fragment]:
    """The fragments of a version, asked from the table. Cost: some microseconds for each of them."""
    return {fragment.id: fragment for fragment in storage.fragments(handle)}


def probe(storage: TableStorage, handle: SnapshotHandle, ids: pa.StringArray) -> Addresses:
    """Addresses by asking the table for these ids, without an index in memory."""
    found = KeySegment(pa.array([], pa.string()), np.empty(0, np.uint64))
    where = filter_text(has_text("id", ids.to_pylist()))
    reader = storage.scan(handle, columns=["id"], filter=where, with_row_address=True)
    table = reader.read_all()
    if table.num_rows:
        addresses = addresses_in(table)
        found = KeySegment(string_array(table.column("id")), addresses)
    named, addresses = found.find(ids, hash_keys(ids))
    return np.where(named, addresses, ABSENT)
