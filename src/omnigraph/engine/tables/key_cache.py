"""The key indexes of a process: of the newest version of each table, and of some older ones in use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnigraph.arrays.addresses import ABSENT
from omnigraph.core import limits
from omnigraph.core.errors.base import said
from omnigraph.core.events import Warned, emit
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.tables.cache_work import BACKGROUND
from omnigraph.engine.tables.key_files import load_exact, load_near, save_fragments, save_index
from omnigraph.engine.tables.keys import (
    NO_ROWS,
    TableKeys,
    advance,
    build,
    carried,
    describe,
    probe,
    unread_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from numpy.typing import NDArray

    from omnigraph.engine.tables.cache_files import CacheFiles
    from omnigraph.engine.tables.key_files import Base, Saved
    from omnigraph.engine.tables.keys import Fragments, KeyIndex
    from omnigraph.storage.tables import SnapshotHandle, TableStorage

PROBED_KEYS_MAX: Final = 1000
UNINDEXED_ROWS_MIN: Final = 200_000
"""The first small lookup in a table of this size asks the table instead of reading its whole id column. So
does one after a commit of others that wrote so many rows, or wrote them anew.
"""

SAVED_AFTER_ROWS: Final = 50_000
SAVED_AFTER_COMMITS: Final = 16
"""An index is saved anew after this many rows or commits, and when its graph is closed: the next process
opens a file for each commit that was not saved.
"""

LISTED_FRAGMENTS_MIN: Final = 32
"""Asking the table about fewer fragments costs no more than reading what was kept about them."""

LISTED_KEPT_MAX: Final = 16
"""Versions whose fragments are kept at hand: those that reads begin with."""

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
        """Whether somebody asked since it was last looked at; if so, it need not leave."""

    def find_one(self, key: str) -> int | None:
        """The row address of an id; None where there is none."""
        find = self._find
        if find is None:
            self._find = find = self.index.finder()
        return find(key)


@dataclass(slots=True)
class _Listed:
    """The fragments of a version, as long as reads of it begin."""

    identity: str
    handle: SnapshotHandle
    fragments: Fragments
    saved: bool
    """Whether another process finds them as cheaply as this one would."""


@dataclass(slots=True)
class _Saving:
    """What files have of the index of a table."""

    base: Base | None = None
    version: int | None = None
    rows: int = 0
    commits: int = 0
    """Since anything was saved."""


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
        self._saving: dict[Place, _Saving] = {}
        self._listed: OrderedDict[int, _Listed] = OrderedDict()
        """By identity of the handle."""

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
                return probe(storage, handle, ids)
            known = self._built(place, storage, handle)
        return known.index.find(ids, referenced=referenced)

    def known(self, identity: str, storage: TableStorage, handle: SnapshotHandle) -> KnownKeys | None:
        """The index of this version; None while there is none of the table, which `addresses` can do without.

        The caller may use it for as long as the cache keeps it.
        """
        return self._known((identity, handle.location, handle.branch or ""), storage, handle)

    def make(self, identity: str, storage: TableStorage, handle: SnapshotHandle) -> None:
        """Make the index of this version now, for memory and for the files of its graph."""
        self._built((identity, handle.location, handle.branch or ""), storage, handle)

    def fragments(self, identity: str, storage: TableStorage, handle: SnapshotHandle) -> Fragments:
        """The fragments of a version, in the order of its rows.

        Cost: nothing for a version that was just asked for or whose index is in memory; one file for what was
        saved; else some microseconds for each fragment.
        """
        place = (identity, handle.location, handle.branch or "")
        with self._lock:
            listed = self._listed.get(id(handle))
            if listed is not None and listed.handle is handle:
                return listed.fragments
            known = self._exactly(place, handle)
        seen = None if known is None else known.index.seen(handle.fragment_ids)
        if seen is not None:
            return self._list(identity, handle, seen, saved=True)
        if handle.fragment_count < LISTED_FRAGMENTS_MIN:
            return self._list(identity, handle, describe(storage, handle), saved=True)
        files = self._files.get(identity)
        exact = None if files is None else load_exact(files, handle)
        if exact is None:
            return self._list(identity, handle, describe(storage, handle), saved=False)
        self._adopt(place, handle, exact)
        return self._list(identity, handle, exact.fragments, saved=True)

    def _list(self, identity: str, handle: SnapshotHandle, fragments: Fragments, *, saved: bool) -> Fragments:
        with self._lock:
            self._listed[id(handle)] = _Listed(identity, handle, fragments, saved)
            while len(self._listed) > LISTED_KEPT_MAX:
                self._listed.popitem(last=False)
        return fragments

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
        return known.index.dead.get(fragment_id, NO_ROWS)

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
            source = self._source(identity, storage, handle)
            if unread_rows(known.index, source.fragments()) - len(keys) >= UNINDEXED_ROWS_MIN:
                return  # others wrote much: a lookup sees to it, and nobody waits
            index = advance(known.index, source, own_keys=keys, own_removed=removed)
        self._keep(place, handle, index)

    def forget(self, identity: str) -> None:
        """Drop every index of one graph from memory."""
        with self._lock:
            for place in [place for place in self._newest if place[0] == identity]:
                del self._newest[place]
            for key in [key for key in self._past if key[0][0] == identity]:
                del self._past[key]
            for place in [place for place in self._saving if place[0] == identity]:
                del self._saving[place]
            for key in [key for key, listed in self._listed.items() if listed.identity == identity]:
                del self._listed[key]

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

    def _known(
        self, place: Place, storage: TableStorage, handle: SnapshotHandle, *, waits: bool = False
    ) -> KnownKeys | None:
        """The index of this version; None when there is none that could be carried over to it quickly.

        `waits`: however long that takes.
        """
        with self._lock:
            known = self._exactly(place, handle)
            if known is not None:
                return known
            near = self._newest.get(place)
            if near is None:  # a branch starts from what is known of the table elsewhere
                near = next((each for at, each in self._newest.items() if at[:2] == place[:2]), None)
        if near is None:
            return self._stored(place, storage, handle, waits=waits)
        source = self._source(place[0], storage, handle)
        if not waits and unread_rows(near.index, source.fragments()) >= UNINDEXED_ROWS_MIN:
            return None
        index = advance(near.index, source)
        return self._keep(place, handle, index.prepared() if waits else index)

    def _source(self, identity: str, storage: TableStorage, handle: SnapshotHandle) -> TableKeys:
        return TableKeys(storage, handle, self.fragments(identity, storage, handle))

    def _stored(
        self, place: Place, storage: TableStorage, handle: SnapshotHandle, *, waits: bool
    ) -> KnownKeys | None:
        """The index from cache files, carried over what was committed since; None when there is none."""
        files = self._files.get(place[0])
        if files is None or handle.row_count < limits.CACHED_ROWS_MIN:
            return None
        exact = load_exact(files, handle)
        known = None if exact is None else self._adopt(place, handle, exact)
        if known is not None:
            return known
        near = load_near(files, handle)
        if near is None or near.index is None:
            return None
        source = self._source(place[0], storage, handle)
        if not waits and unread_rows(near.index, source.fragments()) >= UNINDEXED_ROWS_MIN:
            return None
        index = advance(near.index, source)
        with self._lock:
            self._saving[place] = _Saving(near.base, near.version, sum(map(len, near.index.segments)))
        return self._keep(place, handle, index)

    def _adopt(self, place: Place, handle: SnapshotHandle, exact: Saved) -> KnownKeys | None:
        """Take over the index of this version from a file; None when that has none."""
        if exact.index is None:
            return None
        with self._lock:
            if place not in self._newest:
                rows = sum(map(len, exact.index.segments))
                # What is kept next is this very version: no commit since.
                self._saving[place] = _Saving(exact.base, exact.version, rows, -1)
        return self._keep(place, handle, exact.index)

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
            known = self._known(place, storage, handle, waits=True)
            if known is None:
                index = build(self._source(place[0], storage, handle)).prepared()
                known = self._keep(place, handle, index)
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
            BACKGROUND.submit(place[0], ("save keys", place), lambda: self._save(place, known))
        return known

    # --- files -------------------------------------------------------------------------------------------

    def save_rest(self, identity: str) -> None:
        """Save what this process knows about a graph and files do not: the commits since an index was saved,
        and the fragments of tables without one. Cost: follows these, not the tables. Never fails.
        """
        files = self._files.get(identity)
        if files is None or not files.writable:
            return
        try:
            for place, known in self._unsaved(identity):
                self._save(place, known)
            for listed in self._unlisted(identity):
                listed.saved = save_fragments(files, listed.handle, listed.fragments)
        except Exception as error:  # noqa: BLE001  a cache that cannot be saved is not an error of anybody
            emit(Warned("a read cache was not saved", said(error)))

    def _unsaved(self, identity: str) -> list[tuple[Place, KnownKeys]]:
        """Indexes that are ahead of their files by little."""
        with self._lock:
            return [
                (place, known)
                for place, known in self._newest.items()
                if place[0] == identity
                and (saving := self._saving.get(place)) is not None
                and saving.base is not None
                and saving.version != known.version
                and saving.base.has_room_for(known.index)
            ]

    def _unlisted(self, identity: str) -> list[_Listed]:
        """The newest version that was listed of each table without an index."""
        newest: dict[Place, _Listed] = {}
        with self._lock:
            for listed in self._listed.values():
                handle = listed.handle
                place = (listed.identity, handle.location, handle.branch or "")
                if place[0] != identity or place in self._newest:
                    continue
                before = newest.get(place)
                if before is None or before.handle.version < handle.version:
                    newest[place] = listed
        return [listed for listed in newest.values() if not listed.saved]

    def _is_due(self, place: Place, index: KeyIndex) -> bool:
        """Whether an index has changed so much that the next process should not have to follow it."""
        files = self._files.get(place[0])
        rows = sum(map(len, index.segments))
        if files is None or not files.writable or rows < limits.CACHED_ROWS_MIN:
            return False
        saving = self._saving.setdefault(place, _Saving())
        saving.commits += 1
        grown = abs(rows - saving.rows) >= max(SAVED_AFTER_ROWS, rows // 100)
        if saving.base is not None and saving.commits < SAVED_AFTER_COMMITS and not grown:
            return False
        saving.rows, saving.commits = rows, 0
        return True

    def _save(self, place: Place, known: KnownKeys) -> None:
        with self._lock:
            saving = self._saving.setdefault(place, _Saving())
            base = saving.base
        saved = save_index(self._files[place[0]], known.handle, known.index, base)
        with self._lock:
            if saved is not None:
                saving.base, saving.version = saved, known.version


def _drop_one(kept: OrderedDict[Any, KnownKeys]) -> KnownKeys:
    """Let go of one: the oldest that nobody used since the last look, else the oldest."""
    while True:
        key, known = kept.popitem(last=False)
        if not known.used:
            return known
        known.used = False
        kept[key] = known
