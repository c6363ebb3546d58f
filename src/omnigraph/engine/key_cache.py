"""The key indexes of a process: of the newest version of each table, and of some older ones in use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnigraph.core import limits
from omnigraph.engine import keys
from omnigraph.engine.cache_work import BACKGROUND
from omnigraph.engine.key_files import load_index, save_index
from omnigraph.engine.key_segments import ABSENT
from omnigraph.engine.keys import TableKeys, advance, carried

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from numpy.typing import NDArray

    from omnigraph.engine.cache_files import CacheFiles
    from omnigraph.engine.keys import KeyIndex
    from omnigraph.storage.tables import SnapshotHandle, TableStorage

PROBED_KEYS_MAX: Final = 1000
UNINDEXED_ROWS_MIN: Final = 200_000
"""The first small lookup in a table of this size asks the table instead of reading its whole id column."""

SAVED_AFTER_ROWS: Final = 50_000
SAVED_AFTER_COMMITS: Final = 16
SAVED_ROWS_PER_COMMIT: Final = 20_000
"""An index is saved anew after this many rows (or a hundredth of them) or commits. The next process opens a
file for each commit that was not saved; the smaller the index, the more often it is worth saving.
"""

PAST_KEPT_MAX: Final = 16
"""Indexes kept of versions that are not the newest: readers of an older commit, other handles of a graph."""

Place = tuple[str, str, str]
"""Graph, table and branch."""


class KnownKeys:
    """The index of one version of a table, as long as the cache keeps it.

    Whoever asks often holds a weak reference and sets `used`, which spares it the way through the cache.
    """

    __slots__ = ("__weakref__", "_find", "handle", "index", "nbytes", "used", "version")

    def __init__(self, handle: SnapshotHandle, index: KeyIndex) -> None:
        self.handle: Final = handle
        self.version: Final = handle.version
        self.index: Final = index
        self.nbytes: Final = index.nbytes
        self._find: Callable[[str], int | None] | None = None
        self.used = True
        """Whether somebody asked since it was last looked at; such a one does not have to leave."""

    def find_one(self, key: str) -> int | None:
        """The row address of an id; None where there is none."""
        find = self._find
        if find is None:
            self._find = find = self.index.finder()
        return find(key)


class KeyIndexCache:
    """The key indexes of a process, shared by all handles, bounded in bytes; what nobody uses goes first.

    Graphs that were attached have their large indexes in cache files: found there, made in the background
    while lookups ask the table, and saved again when they have grown.
    Thread-safety: every method may be called from any thread; an index is built once.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._newest: OrderedDict[Place, KnownKeys] = OrderedDict()
        self._past: OrderedDict[tuple[Place, int], KnownKeys] = OrderedDict()
        """Of other versions, by table and identity of the handle. They share what they have in common with
        the newest, but are counted in full: it may go on without them."""
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
        place = (identity, handle.location, handle.branch or "")
        known = self._known(place, storage, handle)
        if known is None:
            small = len(ids) <= PROBED_KEYS_MAX and handle.row_count >= UNINDEXED_ROWS_MIN
            if small and self._is_made_elsewhere(place, storage, handle):
                return keys.probe(storage, handle, ids)
            known = self._built(place, storage, handle)
        return known.index.find(ids, referenced=referenced)

    def known(self, identity: str, storage: TableStorage, handle: SnapshotHandle) -> KnownKeys | None:
        """The index of this version; None while there is none of the table, which `addresses` can do without.

        The caller may use it for as long as the cache keeps it.
        """
        return self._known((identity, handle.location, handle.branch or ""), storage, handle)

    def is_ready(self, identity: str, handle: SnapshotHandle) -> bool:
        """Whether an index of the table is in memory, of this version or of another."""
        with self._lock:
            return any(place[:2] == (identity, handle.location) for place in self._newest)

    def dead_rows(self, identity: str, handle: SnapshotHandle, fragment_id: int) -> NDArray[np.uint32] | None:
        """The dead row offsets of one fragment of exactly this version, if its index is in memory."""
        place = (identity, handle.location, handle.branch or "")
        with self._lock:
            known = self._exactly(place, handle)
        if known is None or fragment_id not in known.index.fragments:
            return None
        return known.index.fragments[fragment_id].dead

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
        place = (identity, handle.location, handle.branch or "")
        with self._lock:
            known = self._newest.get(place)
        if known is None or known.version >= handle.version:
            return
        index = carried(known.index, storage, handle, keys, removed) if known.handle is base else None
        if index is None:
            source = TableKeys(storage, handle)
            index = advance(known.index, source, own_keys=keys, own_removed=removed)
        self._keep(place, handle, index)

    def forget(self, identity: str) -> None:
        """Drop every index of one graph from memory."""
        with self._lock:
            for place in [place for place in self._newest if place[0] == identity]:
                del self._newest[place]
            for key in [key for key in self._past if key[0][0] == identity]:
                del self._past[key]

    def nbytes(self) -> int:
        """Memory in use."""
        with self._lock:
            return self._total()

    def _total(self) -> int:
        return sum(each.nbytes for kept in (self._newest, self._past) for each in kept.values())

    def _exactly(self, place: Place, handle: SnapshotHandle) -> KnownKeys | None:
        """What is kept of just this version."""
        known = self._newest.get(place)
        if known is None or known.handle is not handle:
            known = self._past.get((place, id(handle)))
        if known is None or known.handle is not handle:
            return None
        known.used = True
        return known

    def _known(self, place: Place, storage: TableStorage, handle: SnapshotHandle) -> KnownKeys | None:
        with self._lock:
            known = self._exactly(place, handle)
            if known is not None:
                return known
            near = self._newest.get(place)
            if near is None:  # a branch starts from what is known of the table elsewhere
                near = next((each for at, each in self._newest.items() if at[:2] == place[:2]), None)
        if near is None:
            return self._stored(place, storage, handle)
        return self._keep(place, handle, advance(near.index, TableKeys(storage, handle)))

    def _stored(self, place: Place, storage: TableStorage, handle: SnapshotHandle) -> KnownKeys | None:
        """The index from a cache file, carried over what was committed since; None when there is none."""
        files = self._files.get(place[0])
        if files is None or handle.row_count < limits.CACHED_ROWS_MIN:
            return None
        source = TableKeys(storage, handle)
        index = load_index(files, handle.location, source.fragments())
        if index is None:
            return None
        with self._lock:
            self._saved[place] = (sum(map(len, index.segments)), 0)
        return self._keep(place, handle, advance(index, source))

    def _is_made_elsewhere(self, place: Place, storage: TableStorage, handle: SnapshotHandle) -> bool:
        """Whether this lookup may ask the table: the index is being made, or this is the first lookup."""
        if place[0] in self._files:
            BACKGROUND.submit(place[0], ("keys", place), lambda: self._built(place, storage, handle))
            return True
        first = place not in self._asked
        self._asked.add(place)
        return first

    def _built(self, place: Place, storage: TableStorage, handle: SnapshotHandle) -> KnownKeys:
        with self._lock:
            building = self._building.setdefault(place, threading.Lock())
        with building:
            known = self._known(place, storage, handle)
            if known is None:
                known = self._keep(place, handle, keys.build(TableKeys(storage, handle)))
            return known

    def _keep(self, place: Place, handle: SnapshotHandle, index: KeyIndex) -> KnownKeys:
        known = KnownKeys(handle, index)
        with self._lock:
            before = self._newest.get(place)
            if before is not None and before.version > handle.version:
                # An older reader must not push the newest index out, nor read the table for each lookup.
                self._past[place, id(handle)] = known
                newest = False
            else:
                if before is not None:
                    self._past[place, id(before.handle)] = before
                self._newest[place] = known
                self._newest.move_to_end(place)
                newest = True
            while len(self._past) > PAST_KEPT_MAX:
                _drop_one(self._past)
            total = self._total()
            while total > self._bytes_max and (self._past or self._newest):
                total -= _drop_one(self._past or self._newest).nbytes
            due = newest and self._is_due(place, index)
        if due:
            self._save_later(place, handle.location, index)
        return known

    def _is_due(self, place: Place, index: KeyIndex) -> bool:
        """Whether an index has changed so much that the next process should not have to follow it."""
        files = self._files.get(place[0])
        rows = sum(map(len, index.segments))
        if files is None or not files.writable or rows < limits.CACHED_ROWS_MIN:
            return False
        saved, commits = self._saved.get(place, (-SAVED_AFTER_ROWS, 0))
        commits_max = max(SAVED_AFTER_COMMITS, rows // SAVED_ROWS_PER_COMMIT)
        if abs(rows - saved) < max(SAVED_AFTER_ROWS, rows // 100) and commits < commits_max:
            self._saved[place] = (saved, commits + 1)
            return False
        self._saved[place] = (rows, 0)
        return True

    def _save_later(self, place: Place, location: str, index: KeyIndex) -> None:
        files = self._files[place[0]]
        BACKGROUND.submit(place[0], ("save keys", place), lambda: save_index(files, location, index))


def _drop_one(kept: OrderedDict[Any, KnownKeys]) -> KnownKeys:
    """Let go of one: the oldest that nobody used since the last look, else the oldest."""
    while True:
        key, known = kept.popitem(last=False)
        if not known.used:
            return known
        known.used = False
        kept[key] = known
