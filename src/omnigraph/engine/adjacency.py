"""Which nodes an edge table connects at one snapshot, as indexes over ordinals; built on first use.

An index belongs to the exact contents of three tables: the edges and both endpoint types. A commit to one of
them makes another key, so a reader at an older commit keeps seeing its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from omnigraph.engine.key_segments import string_array
from omnigraph.engine.traverse import (
    Incidence,
    Mask,
    Neighbours,
    incidence,
    neighbours,
    patch_incidence,
    patch_neighbours,
)
from omnigraph.planning.steps import Direction

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from omnigraph.engine.images import Ordinals, TableImage

Contents = tuple[str, bytes]

FRESH_SHARE_MAX: Final = 0.25
"""Above this share of new or dead edges the whole table is indexed anew."""


NO_NODE: Final = -1
Ends = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Endpoints:
    """The ordinals of both ends of every edge, by the edge's ordinal; -1 where the edge is dead.

    An edge with one end missing counts as dead here; `dangling` tells how many there are.
    """

    sources: Ends
    targets: Ends
    dangling: int

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.sources.nbytes + self.targets.nbytes


@dataclass(frozen=True, slots=True)
class EdgeTables:
    """One edge table and its endpoint tables, at one snapshot."""

    edges: TableImage
    sources: TableImage
    targets: TableImage

    def key(self) -> tuple[str, Contents, Contents, Contents]:
        """The identity of everything that is derived from these three tables."""
        return (self.edges.identity, self.edges.contents, self.sources.contents, self.targets.contents)


class Sized(Protocol):
    """Anything that knows how many bytes it holds."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...


D = TypeVar("D", bound=Sized)


class DerivedCache:
    """Structures built from the contents of tables, bounded in bytes; the least recently used go first.

    A key names everything its value was built from, so a value is never stale.
    Thread-safety: every method may be called from any thread; two may build the same value at once.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, Sized] = OrderedDict()

    def get(self, key: Hashable, kind: type[D], build: Callable[[], D]) -> D:
        """The value of a key, built when it is not there."""
        with self._lock:
            found = self._entries.get(key)
            if isinstance(found, kind):
                self._entries.move_to_end(key)
                return found
        built = build()
        with self._lock:
            replaced = self._entries.pop(key, None)
            self._bytes += built.nbytes - (replaced.nbytes if replaced is not None else 0)
            self._entries[key] = built
            while self._bytes > self._bytes_max and len(self._entries) > 1:
                _, dropped = self._entries.popitem(last=False)
                self._bytes -= dropped.nbytes
        return built

    def peek(self, key: Hashable, kind: type[D]) -> D | None:
        """The value of a key if it is there."""
        with self._lock:
            found = self._entries.get(key)
            return found if isinstance(found, kind) else None

    def has(self, key: Hashable) -> bool:
        """Whether a key has a value."""
        with self._lock:
            return key in self._entries

    def nbytes(self) -> int:
        """Memory in use."""
        with self._lock:
            return self._bytes


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Two states of one edge table: the ends of its edges before and after, and the edges that differ."""

    tables: EdgeTables
    """Before."""
    before: Endpoints
    after: Endpoints
    edges: Ordinals


class AdjacencyCache:
    """The adjacency indexes of a process.

    An index is made from the one of the state looked at before when that is cheaper: only the nodes whose
    edges differ get new entries. It is exact either way. Thread-safety: any method from any thread.
    """

    def __init__(self, derived: DerivedCache) -> None:
        self._derived = derived
        self._latest: dict[tuple[str, str], EdgeTables] = {}
        self.built = self.patched = 0
        """How often endpoints were made from the whole table, and from an earlier state."""

    def neighbours(self, tables: EdgeTables, direction: Direction) -> Neighbours:
        """Distinct neighbours in one direction, or in either."""

        def build() -> Neighbours:
            ends, change = self._resolve(tables)
            extent = _head_extent(tables, direction)
            old = self._earlier(change, direction, "neighbours", Neighbours)
            if change is not None and old is not None:
                touched = _touched(change, direction, extent)
                heads, tails, _ = _incident(ends, direction, touched)
                return patch_neighbours(old, touched, neighbours(heads, tails, extent))
            heads, tails, _ = _incident(ends, direction, None)
            return neighbours(heads, tails, extent)

        return self._derived.get((tables.key(), "neighbours", direction), Neighbours, build)

    def incidence(self, tables: EdgeTables, direction: Direction) -> Incidence:
        """Edges in one direction, or in either; a self-loop is given once."""

        def build() -> Incidence:
            ends, change = self._resolve(tables)
            extent = _head_extent(tables, direction)
            old = self._earlier(change, direction, "incidence", Incidence)
            if change is not None and old is not None:
                touched = _touched(change, direction, extent)
                heads, tails, edges = _incident(ends, direction, touched)
                return patch_incidence(old, touched, incidence(heads, tails, edges, extent))
            heads, tails, edges = _incident(ends, direction, None)
            return incidence(heads, tails, edges, extent)

        return self._derived.get((tables.key(), "incidence", direction), Incidence, build)

    def is_ready(self, tables: EdgeTables, direction: Direction, kind: str) -> bool:
        """Whether an index is in memory for exactly this state."""
        return self._derived.has((tables.key(), kind, direction))

    def endpoints(self, tables: EdgeTables) -> Endpoints:
        """The ordinals of both ends of every edge."""
        return self._resolve(tables)[0]

    def _resolve(self, tables: EdgeTables) -> tuple[Endpoints, Change | None]:
        """The ends at this state, and how they differ from an earlier state that is still in memory."""
        place = (tables.edges.identity, tables.edges.handle.location)
        earlier = self._latest.get(place)
        known = self._derived.peek((tables.key(), "endpoints"), Endpoints)
        before = None
        if earlier is not None:
            before = self._derived.peek((earlier.key(), "endpoints"), Endpoints)
        if known is not None and (before is None or known is before):
            return known, None
        made = None if earlier is None or before is None else _follow(tables, earlier, before)
        if made is None:
            if known is None:
                known = _whole_edges(*_resolve_from(tables, 0), tables.edges.row_count)
                self.built += 1
                self._keep(place, tables, known)
            return known, None
        if known is None:
            known = made[0]
            self.patched += 1
            self._keep(place, tables, known)
        assert earlier is not None  # noqa: S101 - it was followed
        assert before is not None  # noqa: S101
        return known, Change(earlier, before, known, made[1])

    def _keep(self, place: tuple[str, str], tables: EdgeTables, ends: Endpoints) -> None:
        self._derived.get((tables.key(), "endpoints"), Endpoints, lambda: ends)
        self._latest[place] = tables

    def _earlier(self, change: Change | None, direction: Direction, kind: str, form: type[D]) -> D | None:
        if change is None:
            return None
        return self._derived.peek((change.tables.key(), kind, direction), form)


def _resolve_from(tables: EdgeTables, after: int) -> tuple[Ends, Ends]:
    """The ends of the edges from an ordinal on; -1 for dead edges and for ends that do not exist."""
    edges = tables.edges
    sources = np.full(edges.extent - after, NO_NODE, dtype=np.int32)
    targets = np.full(edges.extent - after, NO_NODE, dtype=np.int32)
    for ordinals, rows in edges.read_live(["src", "dst"], after=after):
        sources[ordinals - after] = tables.sources.find(string_array(rows.column("src")))
        targets[ordinals - after] = tables.targets.find(string_array(rows.column("dst")))
    return sources, targets


def _whole_edges(sources: Ends, targets: Ends, live: int) -> Endpoints:
    """Leave out the edges that miss an end."""
    broken = (sources < 0) | (targets < 0)
    sources[broken] = NO_NODE
    targets[broken] = NO_NODE
    return Endpoints(sources, targets, live - int(len(sources) - broken.sum()))


def _follow(tables: EdgeTables, earlier: EdgeTables, before: Endpoints) -> tuple[Endpoints, Ordinals] | None:
    """The ends at a later state and the edges whose ends differ; None when the whole table must be read."""
    gone = tables.edges.removed_since(earlier.edges)
    gone_sources = tables.sources.removed_since(earlier.sources)
    gone_targets = tables.targets.removed_since(earlier.targets)
    if gone is None or gone_sources is None or gone_targets is None or before.dangling:
        return None
    first = earlier.edges.extent
    fresh = tables.edges.extent - first
    if fresh > FRESH_SHARE_MAX * first or len(gone) > FRESH_SHARE_MAX * first:
        return None
    fresh_sources, fresh_targets = _resolve_from(tables, first)
    sources = np.concatenate([before.sources, fresh_sources])
    targets = np.concatenate([before.targets, fresh_targets])
    sources[gone] = NO_NODE
    targets[gone] = NO_NODE
    moved = [
        _redirect(sources[:first], gone_sources, earlier.sources, tables.sources),
        _redirect(targets[:first], gone_targets, earlier.targets, tables.targets),
    ]
    new = np.arange(first, first + fresh, dtype=np.int64)
    changed = np.unique(np.concatenate([gone, *moved, new]))
    return _whole_edges(sources, targets, tables.edges.row_count), changed


def _redirect(ends: Ends, gone: Ordinals, before: TableImage, after: TableImage) -> Ordinals:
    """Point the edges of nodes that were written anew at their new rows; gives back those edges."""
    if not len(gone):
        return gone
    place = np.full(before.extent + 1, -2, dtype=np.int32)
    place[gone] = after.find(string_array(before.take("id", gone)))
    hit = np.flatnonzero(place[ends] != -2)
    ends[hit] = place[ends[hit]]
    return hit


def _sides(ends: Endpoints, direction: Direction) -> list[tuple[Ends, Ends]]:
    match direction:
        case Direction.FORWARD:
            return [(ends.sources, ends.targets)]
        case Direction.BACKWARD:
            return [(ends.targets, ends.sources)]
        case Direction.EITHER:
            return [(ends.sources, ends.targets), (ends.targets, ends.sources)]


def _touched(change: Change, direction: Direction, extent: int) -> Mask:
    """The nodes whose entries differ between two states; one more slot for no node."""
    touched = np.zeros(extent + 1, dtype=np.bool_)
    old = change.edges[change.edges < len(change.before.sources)]
    for heads, _ in _sides(change.before, direction):
        touched[heads[old]] = True
    for heads, _ in _sides(change.after, direction):
        touched[heads[change.edges]] = True
    touched[NO_NODE] = False
    return touched


def _incident(
    ends: Endpoints, direction: Direction, touched: Mask | None
) -> tuple[Ordinals, Ordinals, Ordinals]:
    """Heads, tails and edges in one direction; only those of the touched heads when given."""
    parts: list[tuple[Ordinals, Ordinals, Ordinals]] = []
    for number, (heads, tails) in enumerate(_sides(ends, direction)):
        wanted = heads >= 0 if touched is None else touched[heads]
        if number:
            wanted &= heads != tails  # the other side of a self-loop is the same edge again
        edges = np.flatnonzero(wanted)
        parts.append((heads[edges].astype(np.int64), tails[edges].astype(np.int64), edges))
    heads, tails, edges = (np.concatenate(column) for column in zip(*parts, strict=True))
    if len(parts) > 1:
        order = np.argsort(edges, kind="stable")
        heads, tails, edges = heads[order], tails[order], edges[order]
    return heads, tails, edges


def _head_extent(tables: EdgeTables, direction: Direction) -> int:
    return tables.targets.extent if direction is Direction.BACKWARD else tables.sources.extent
