"""The key index: which row of a table holds an id, exact for one version of the table.

A `KeyIndex` is an immutable value. The index of the next version shares everything with the one before: new
rows become a new segment, dead rows are known per fragment. Which fragments two versions share is read from
the versions themselves, so an index is right after any foreign commit, restore or compaction.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa

from omnigraph.core import limits
from omnigraph.engine.cache_work import BACKGROUND
from omnigraph.engine.key_segments import (
    ABSENT,
    FEW_KEYS,
    SEGMENT_BYTES_MAX,
    SEGMENT_ROWS_MAX,
    KeySegment,
    distinct,
    hash_keys,
    is_among,
    join_segments,
    string_array,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from omnigraph.engine.cache_files import CacheFiles
    from omnigraph.storage.tables import SnapshotHandle, TableStorage

JOINED_ROWS_MAX: Final = 1 << 17
"""Small segments are joined up to this size; larger ones stay as they are until there are too many."""

SEGMENTS_MAX: Final = 24

PROBED_KEYS_MAX: Final = 1000
UNINDEXED_ROWS_MIN: Final = 200_000
"""The first small lookup in a table of this size asks the table instead of reading its whole id column."""

SAVED_AFTER_ROWS: Final = 50_000
SAVED_AFTER_COMMITS: Final = 256
"""An index is saved anew after this many rows (or a hundredth of them) or commits."""

Place = tuple[str, str, str]
"""Graph, table and branch."""

_NO_ROWS: Final[NDArray[np.uint32]] = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class FragmentRows:
    """What one fragment of a version holds: its files, and which of its rows are dead."""

    files: tuple[str, ...]
    deletion: str | None
    rows: int
    dead: NDArray[np.uint32]


class KeySource(Protocol):
    """One version of a table, as the key index reads it."""

    def fragments(self) -> Mapping[int, tuple[tuple[str, ...], str | None, int, int]]:
        """Per fragment id: data files, deletion file, physical rows, number of deleted rows."""
        ...

    def dead_rows(self, fragment_id: int) -> NDArray[np.uint32]:
        """The deleted row offsets of one fragment, ascending."""
        ...

    def live_keys(
        self, fragment_ids: Iterable[int] | None
    ) -> Iterator[tuple[pa.StringArray, NDArray[np.uint64]]]:
        """Ids and row addresses of the live rows of the given fragments (None: of all)."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class KeyIndex:
    """Ids to row addresses for one version of one table.

    Segments are searched from the newest to the oldest and the first that names a key decides; what it names
    counts only while that row is alive in this version.
    """

    fragments: Mapping[int, FragmentRows]
    segments: tuple[KeySegment, ...]
    known_files: Mapping[int, tuple[str, ...]]

    @property
    def nbytes(self) -> int:
        """Memory of the segments."""
        return sum(segment.nbytes for segment in self.segments)

    def find(self, ids: pa.StringArray, *, referenced: bool = False) -> NDArray[np.uint64]:
        """The address of each id, or `ABSENT`.

        `referenced`: rows of this graph refer to these ids, so they are compared by hash where that tells
        all keys apart.
        """
        if len(ids) <= FEW_KEYS:
            return np.array([self.find_one(key) for key in ids.to_pylist()], np.uint64)
        hashes = hash_keys(ids)
        if len(self.segments) == 1:
            return self._alive(self.segments[0].find(ids, hashes, referenced=referenced)[1])
        found = np.full(len(ids), ABSENT, np.uint64)
        pending = np.arange(len(ids))
        for segment in reversed(self.segments):
            if not pending.size:
                break
            whole = pending.size == len(ids)
            by_hash = referenced and segment.told_apart
            keys = ids if whole or by_hash else ids.take(pa.array(pending))
            named, addresses = segment.find(keys, hashes if whole else hashes[pending], referenced=by_hash)
            found[pending[named]] = addresses[named]
            pending = pending[~named]
        return self._alive(found)

    def find_one(self, key: str) -> int:
        """The address of one id, or `ABSENT`."""
        for segment in reversed(self.segments):
            address = segment.find_one(key)
            if address is not None:
                return address if self._is_alive(address) else int(ABSENT)
        return int(ABSENT)

    def _is_alive(self, address: int) -> bool:
        fragment = self.fragments.get(address >> 32)
        if fragment is None:
            return False
        dead = fragment.dead
        if not len(dead):
            return True
        offset = address & 0xFFFF_FFFF
        at = int(dead.searchsorted(np.uint32(offset)))
        return at >= len(dead) or dead.item(at) != offset

    def _alive(self, addresses: NDArray[np.uint64]) -> NDArray[np.uint64]:
        if len(self.known_files) == len(self.fragments) and not any(
            len(each.dead) for each in self.fragments.values()
        ):
            return addresses  # no row this index ever knew is dead
        fragment_of = addresses >> np.uint64(32)
        offset_of = (addresses & np.uint64(0xFFFF_FFFF)).astype(np.uint32)
        for fragment_id in distinct(fragment_of[addresses != ABSENT]).tolist():
            fragment = self.fragments.get(fragment_id)
            mine = fragment_of == np.uint64(fragment_id)
            if fragment is None:
                addresses[mine] = ABSENT
            elif len(fragment.dead):
                mine[mine] = is_among(offset_of[mine], fragment.dead)
                addresses[mine] = ABSENT
        return addresses


def build(source: KeySource) -> KeyIndex:
    """The index of a version, from a scan of its id column."""
    fragments = {
        fragment_id: FragmentRows(
            files, deletion, rows, source.dead_rows(fragment_id) if deleted else _NO_ROWS
        )
        for fragment_id, (files, deletion, rows, deleted) in source.fragments().items()
    }
    known = {fragment_id: fragment.files for fragment_id, fragment in fragments.items()}
    return KeyIndex(fragments, tuple(_segments(source.live_keys(None))), known)


def advance(
    index: KeyIndex,
    source: KeySource,
    *,
    own_keys: pa.StringArray | None = None,
    own_removed: NDArray[np.uint64] | None = None,
) -> KeyIndex:
    """The index of another version of the same table, reading only what differs.

    `own_keys` and `own_removed` are what this process just wrote, in the order of writing: when they explain
    the difference completely nothing is read at all.
    """
    seen = source.fragments()
    rebuilt = any(
        index.known_files.get(fragment_id, files) != files for fragment_id, (files, _, _, _) in seen.items()
    )
    if rebuilt:  # A fragment number was given out twice: addresses of the two cannot be told apart.
        return build(source)
    new_ids = [fragment_id for fragment_id in seen if fragment_id not in index.fragments]
    new_rows = sum(seen[fragment_id][2] for fragment_id in new_ids)
    explained = own_keys is not None and len(own_keys) == new_rows
    if not explained and new_rows > sum(rows for _, _, rows, _ in seen.values()) // 2:
        return build(source)
    removed = own_removed if own_removed is not None and explained else None
    fragments: dict[int, FragmentRows] = {}
    revived: list[int] = []
    for fragment_id, (files, deletion, rows, deleted) in seen.items():
        before = index.fragments.get(fragment_id)
        if before is not None and before.deletion == deletion and len(before.dead) == deleted:
            fragments[fragment_id] = before
            continue
        dead = _dead_rows(source, fragment_id, deleted, before, removed)
        fragments[fragment_id] = FragmentRows(files, deletion, rows, dead)
        if before is not None and not _contains(dead, before.dead):
            revived.append(fragment_id)  # a restore: rows that a newer segment overrides live again
    segments = list(index.segments)
    if explained and own_keys is not None and not revived:
        if len(own_keys):
            segments.append(KeySegment(own_keys, _addresses(sorted(new_ids), seen)))
    elif new_ids or revived:
        segments.extend(_segments(source.live_keys([*new_ids, *revived])))
    known = dict(index.known_files)
    known.update({fragment_id: fragments[fragment_id].files for fragment_id in new_ids})
    return KeyIndex(fragments, _tidy(segments), known)


def _contains(whole: NDArray[np.uint32], part: NDArray[np.uint32]) -> bool:
    """Whether every element of `part` is in `whole`; both ascending."""
    return len(part) == 0 or (len(whole) > 0 and bool(is_among(part, whole).all()))


def _carried(
    index: KeyIndex,
    storage: TableStorage,
    handle: SnapshotHandle,
    keys: pa.StringArray,
    removed: NDArray[np.uint64],
) -> KeyIndex | None:
    """The index after exactly one own commit on the version it is of; None when that does not explain what
    is seen.

    Only the fragments the commit touched are looked at: no other has changed.
    """
    newest = max(index.known_files, default=-1)
    touched = distinct(removed >> np.uint64(32)).astype(np.int64).tolist()
    seen = {info.id: info for info in storage.fragments(handle, above=newest, also=frozenset(touched))}
    new_ids = sorted(fragment_id for fragment_id in seen if fragment_id > newest)
    if newest < 0 or sum(seen[fragment_id].physical_rows for fragment_id in new_ids) != len(keys):
        return None
    fragments = dict(index.fragments)
    for fragment_id in touched:
        info = seen.get(fragment_id)
        before = fragments.pop(fragment_id)
        if info is None:  # its last rows are gone
            continue
        mine = removed[(removed >> np.uint64(32)) == np.uint64(fragment_id)]
        dead = distinct(np.concatenate([before.dead, (mine & np.uint64(0xFFFF_FFFF)).astype(np.uint32)]))
        if len(dead) != info.deleted_rows:
            return None
        fragments[fragment_id] = FragmentRows(info.files, info.deletions, info.physical_rows, dead)
    known = dict(index.known_files)
    for fragment_id in new_ids:
        info = seen[fragment_id]
        fragments[fragment_id] = FragmentRows(info.files, info.deletions, info.physical_rows, _NO_ROWS)
        known[fragment_id] = info.files
    segments = list(index.segments)
    if len(keys):
        parts = [
            (np.uint64(number) << np.uint64(32)) + np.arange(seen[number].physical_rows, dtype=np.uint64)
            for number in new_ids
        ]
        segments.append(KeySegment(keys, np.concatenate(parts)))
    return KeyIndex(fragments, _tidy(segments), known)


def _dead_rows(
    source: KeySource,
    fragment_id: int,
    deleted: int,
    before: FragmentRows | None,
    removed: NDArray[np.uint64] | None,
) -> NDArray[np.uint32]:
    if deleted == 0:
        return _NO_ROWS
    if removed is not None and before is not None:
        mine = removed[(removed >> np.uint64(32)) == np.uint64(fragment_id)]
        dead = distinct(np.concatenate([before.dead, (mine & np.uint64(0xFFFF_FFFF)).astype(np.uint32)]))
        if len(dead) == deleted:
            return dead
    return source.dead_rows(fragment_id)


def _addresses(
    fragment_ids: list[int], seen: Mapping[int, tuple[tuple[str, ...], str | None, int, int]]
) -> NDArray[np.uint64]:
    parts = [
        (np.uint64(fragment_id) << np.uint64(32)) + np.arange(seen[fragment_id][2], dtype=np.uint64)
        for fragment_id in fragment_ids
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _segments(batches: Iterable[tuple[pa.StringArray, NDArray[np.uint64]]]) -> Iterator[KeySegment]:
    keys: list[pa.StringArray] = []
    addresses: list[NDArray[np.uint64]] = []
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
    """Join the newest segments while they are small and of similar size, so that a lookup visits few."""
    while len(segments) > 1:
        older, newer = segments[-2], segments[-1]
        similar = len(older) <= len(newer) and len(older) + len(newer) <= JOINED_ROWS_MAX
        if not similar and len(segments) <= SEGMENTS_MAX:
            break
        segments[-2:] = [join_segments([older, newer])]
    return tuple(segments)


@dataclass(slots=True)
class _Kept:
    """The index of the newest version of a table that was asked for."""

    version: int
    handle: SnapshotHandle | None
    index: KeyIndex
    nbytes: int


class KeyIndexCache:
    """The key indexes of a process, shared by all handles, bounded in bytes; least recently used go first.

    Graphs that were attached have their large indexes in cache files: found there, made in the background
    while lookups ask the table, and saved again when they have grown.
    Thread-safety: every method may be called from any thread; an index is built once.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._entries: OrderedDict[Place, _Kept] = OrderedDict()
        self._asked: set[Place] = set()
        self._building: dict[Place, threading.Lock] = {}
        self._files: dict[str, CacheFiles] = {}
        self._saved: dict[Place, tuple[int, int]] = {}
        """Rows of the segments when an index was saved last, and commits since."""

    def attach(self, identity: str, files: CacheFiles) -> None:
        """Use the cache files of a graph."""
        with self._lock:
            before = self._files.get(identity)
            if before is None or files.writable or before.directory != files.directory:
                self._files[identity] = files

    def files_of(self, identity: str) -> CacheFiles | None:
        """The cache files of an attached graph."""
        return self._files.get(identity)

    def addresses(
        self,
        identity: str,
        storage: TableStorage,
        handle: SnapshotHandle,
        ids: pa.StringArray,
        *,
        referenced: bool = False,
    ) -> NDArray[np.uint64]:
        """Where the rows with these ids are in this version; `ABSENT` where there is none.

        `referenced`: see `KeyIndex.find`.
        """
        if len(ids) == 0 or handle.row_count == 0:
            return np.full(len(ids), ABSENT, np.uint64)
        key = (identity, handle.location, handle.branch or "")
        index = self._current(key, storage, handle)
        if index is None:
            small = len(ids) <= PROBED_KEYS_MAX and handle.row_count >= UNINDEXED_ROWS_MIN
            if small and self._is_made_elsewhere(key, storage, handle):
                return probe(storage, handle, ids)
            index = self._built(key, storage, handle)
        return index.find(ids, referenced=referenced)

    def address_of(self, identity: str, storage: TableStorage, handle: SnapshotHandle, key: str) -> int:
        """As `addresses` for one id of a table that has rows."""
        place = (identity, handle.location, handle.branch or "")
        index = self._current(place, storage, handle)
        if index is None:
            return int(self.addresses(identity, storage, handle, pa.array([key], pa.string()))[0])
        return index.find_one(key)

    def is_ready(self, identity: str, handle: SnapshotHandle) -> bool:
        """Whether an index of the table is in memory, of this version or of another."""
        with self._lock:
            return any(key[:2] == (identity, handle.location) for key in self._entries)

    def dead_rows(self, identity: str, handle: SnapshotHandle, fragment_id: int) -> NDArray[np.uint32] | None:
        """The dead row offsets of one fragment of exactly this version, if its index is in memory."""
        with self._lock:
            entry = self._entries.get((identity, handle.location, handle.branch or ""))
        if entry is None or entry.handle is not handle or fragment_id not in entry.index.fragments:
            return None
        return entry.index.fragments[fragment_id].dead

    def extend(
        self,
        identity: str,
        storage: TableStorage,
        handle: SnapshotHandle,
        keys: pa.StringArray,
        removed: NDArray[np.uint64],
        *,
        base: SnapshotHandle,
    ) -> None:
        """Carry the index of a table over a commit of this process, from `base` to `handle`.

        Does nothing when there is no index. Cost: follows the commit, not the table.
        """
        key = (identity, handle.location, handle.branch or "")
        with self._lock:
            entry = self._entries.get(key)
        if entry is None or entry.version >= handle.version:
            return
        index = _carried(entry.index, storage, handle, keys, removed) if entry.handle is base else None
        if index is None:
            source = TableKeys(storage, handle)
            index = advance(entry.index, source, own_keys=keys, own_removed=removed)
        self._keep(key, handle, index)

    def forget(self, identity: str) -> None:
        """Drop every index of one graph from memory."""
        with self._lock:
            for key in [key for key in self._entries if key[0] == identity]:
                del self._entries[key]

    def nbytes(self) -> int:
        """Memory in use."""
        with self._lock:
            return sum(entry.nbytes for entry in self._entries.values())

    def _current(self, key: Place, storage: TableStorage, handle: SnapshotHandle) -> KeyIndex | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:  # a branch starts from what is known of the table elsewhere
                entry = next((e for k, e in self._entries.items() if k[:2] == key[:2]), None)
            else:
                self._entries.move_to_end(key)
        if entry is None:
            return self._stored(key, storage, handle)
        if entry.handle is handle:
            return entry.index
        index = advance(entry.index, TableKeys(storage, handle))
        self._keep(key, handle, index)
        return index

    def _stored(self, key: Place, storage: TableStorage, handle: SnapshotHandle) -> KeyIndex | None:
        """The index from a cache file, carried over what was committed since; None when there is none."""
        files = self._files.get(key[0])
        if files is None or handle.row_count < limits.CACHED_ROWS_MIN:
            return None
        from omnigraph.engine.key_files import load_index  # noqa: PLC0415 - it builds on this module

        source = TableKeys(storage, handle)
        index = load_index(files, handle.location, source.fragments())
        if index is None:
            return None
        with self._lock:
            self._saved[key] = (sum(map(len, index.segments)), 0)
        index = advance(index, source)
        self._keep(key, handle, index)
        return index

    def _is_made_elsewhere(self, key: Place, storage: TableStorage, handle: SnapshotHandle) -> bool:
        """Whether this lookup may ask the table: the index is being made, or this is the first lookup."""
        if key[0] in self._files:
            BACKGROUND.submit(key[0], ("keys", key), lambda: self._built(key, storage, handle))
            return True
        first = key not in self._asked
        self._asked.add(key)
        return first

    def _built(self, key: Place, storage: TableStorage, handle: SnapshotHandle) -> KeyIndex:
        with self._lock:
            building = self._building.setdefault(key, threading.Lock())
        with building:
            index = self._current(key, storage, handle)
            if index is None:
                index = build(TableKeys(storage, handle))
                self._keep(key, handle, index)
            return index

    def _keep(self, key: Place, handle: SnapshotHandle, index: KeyIndex) -> None:
        with self._lock:
            before = self._entries.get(key)
            if before is not None and before.version > handle.version:
                return  # an older reader must not push the newest index out
            self._entries[key] = _Kept(handle.version, handle, index, index.nbytes)
            self._entries.move_to_end(key)
            total = sum(entry.nbytes for entry in self._entries.values())
            while total > self._bytes_max and self._entries:
                _, dropped = self._entries.popitem(last=False)
                total -= dropped.nbytes
            due = self._is_due(key, index)
        if due:
            self._save_later(key, handle.location, index)

    def _is_due(self, key: Place, index: KeyIndex) -> bool:
        """Whether an index has changed so much that the next process should not have to follow it."""
        files = self._files.get(key[0])
        rows = sum(map(len, index.segments))
        if files is None or not files.writable or rows < limits.CACHED_ROWS_MIN:
            return False
        saved, commits = self._saved.get(key, (-SAVED_AFTER_ROWS, 0))
        if abs(rows - saved) < max(SAVED_AFTER_ROWS, rows // 100) and commits < SAVED_AFTER_COMMITS:
            self._saved[key] = (saved, commits + 1)
            return False
        self._saved[key] = (rows, 0)
        return True

    def _save_later(self, key: Place, location: str, index: KeyIndex) -> None:
        from omnigraph.engine.key_files import save_index  # noqa: PLC0415 - it builds on this module

        files = self._files[key[0]]
        BACKGROUND.submit(key[0], ("save keys", key), lambda: save_index(files, location, index))


class TableKeys:
    """`KeySource` over one snapshot of a table."""

    def __init__(self, storage: TableStorage, handle: SnapshotHandle) -> None:
        self._storage = storage
        self._handle = handle

    def fragments(self) -> Mapping[int, tuple[tuple[str, ...], str | None, int, int]]:
        """See `KeySource`."""
        return {
            info.id: (info.files, info.deletions, info.physical_rows, info.deleted_rows)
            for info in self._storage.fragments(self._handle)
        }

    def dead_rows(self, fragment_id: int) -> NDArray[np.uint32]:
        """See `KeySource`. Read as the complement of the live rows."""
        rows = next(i.physical_rows for i in self._storage.fragments(self._handle) if i.id == fragment_id)
        alive = np.zeros(rows, np.bool_)
        reader = self._storage.scan(self._handle, columns=[], with_row_address=True, fragments=[fragment_id])
        for batch in reader:
            addresses = np.asarray(batch.column("_rowaddr").to_numpy(zero_copy_only=False), np.uint64)
            alive[(addresses & np.uint64(0xFFFF_FFFF)).astype(np.int64)] = True
        return np.flatnonzero(~alive).astype(np.uint32)

    def live_keys(
        self, fragment_ids: Iterable[int] | None
    ) -> Iterator[tuple[pa.StringArray, NDArray[np.uint64]]]:
        """See `KeySource`."""
        wanted = None if fragment_ids is None else list(fragment_ids)
        reader = self._storage.scan(self._handle, columns=["id"], with_row_address=True, fragments=wanted)
        for batch in reader:
            addresses = np.asarray(batch.column("_rowaddr").to_numpy(zero_copy_only=False), np.uint64)
            yield string_array(batch.column("id")), addresses


def probe(storage: TableStorage, handle: SnapshotHandle, ids: pa.StringArray) -> NDArray[np.uint64]:
    """Addresses by asking the table for these ids, without an index in memory."""
    found = KeySegment(pa.array([], pa.string()), np.empty(0, np.uint64))
    reader = storage.scan(handle, columns=["id"], filter=in_filter("id", ids), with_row_address=True)
    table = reader.read_all()
    if table.num_rows:
        addresses = np.asarray(table.column("_rowaddr").to_numpy(), np.uint64)
        found = KeySegment(string_array(table.column("id")), addresses)
    named, addresses = found.find(ids, hash_keys(ids))
    return np.where(named, addresses, ABSENT)


def in_filter(column: str, values: pa.StringArray) -> str:
    """Filter text for "the column holds one of these strings"; names are back-ticked, quotes doubled."""
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values.unique().to_pylist())
    return f"`{column}` IN ({quoted})"
