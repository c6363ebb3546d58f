"""Which nodes an edge table connects at one snapshot, as indexes over ordinals; built on first use.

An index belongs to the exact contents of three tables: the edges and both endpoint types. A commit to one of
them makes another key, so a reader at an older commit keeps seeing its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from omnigraph.engine.key_segments import string_array
from omnigraph.engine.traverse import Incidence, Neighbours, incidence, neighbours
from omnigraph.planning.steps import Direction

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from omnigraph.engine.images import Ordinals, TableImage

Contents = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The edges whose two ends exist: their own ordinals and those of their ends."""

    edges: Ordinals
    sources: Ordinals
    targets: Ordinals

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.edges.nbytes + self.sources.nbytes + self.targets.nbytes


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

    def nbytes(self) -> int:
        """Memory in use."""
        with self._lock:
            return self._bytes


class AdjacencyCache:
    """The adjacency indexes of a process."""

    def __init__(self, derived: DerivedCache) -> None:
        self._derived = derived

    def neighbours(self, tables: EdgeTables, direction: Direction) -> Neighbours:
        """Distinct neighbours in one direction, or in either."""

        def build() -> Neighbours:
            ends = self.endpoints(tables)
            heads, tails = _oriented(ends, direction)
            return neighbours(heads, tails, _head_extent(tables, direction))

        return self._derived.get((tables.key(), "neighbours", direction), Neighbours, build)

    def incidence(self, tables: EdgeTables, direction: Direction) -> Incidence:
        """Edges in one direction, or in either; a self-loop is given once."""

        def build() -> Incidence:
            ends = self.endpoints(tables)
            edges = ends.edges
            heads, tails = _oriented(ends, direction)
            if direction is Direction.EITHER:
                loop = ends.sources == ends.targets
                keep = np.concatenate([np.ones(len(edges), dtype=np.bool_), ~loop])
                heads, tails, edges = heads[keep], tails[keep], np.concatenate([edges, edges])[keep]
            return incidence(heads, tails, edges, _head_extent(tables, direction))

        return self._derived.get((tables.key(), "incidence", direction), Incidence, build)

    def endpoints(self, tables: EdgeTables) -> Endpoints:
        """The ordinals of both ends of every live edge; edges with a missing end are left out."""

        def build() -> Endpoints:
            live = tables.edges.live()
            sources = tables.sources.find(string_array(tables.edges.take("src", live)))
            targets = tables.targets.find(string_array(tables.edges.take("dst", live)))
            whole = (sources >= 0) & (targets >= 0)
            return Endpoints(edges=live[whole], sources=sources[whole], targets=targets[whole])

        return self._derived.get((tables.key(), "endpoints"), Endpoints, build)


def _oriented(ends: Endpoints, direction: Direction) -> tuple[Ordinals, Ordinals]:
    match direction:
        case Direction.FORWARD:
            return ends.sources, ends.targets
        case Direction.BACKWARD:
            return ends.targets, ends.sources
        case Direction.EITHER:
            return (
                np.concatenate([ends.sources, ends.targets]),
                np.concatenate([ends.targets, ends.sources]),
            )


def _head_extent(tables: EdgeTables, direction: Direction) -> int:
    return tables.targets.extent if direction is Direction.BACKWARD else tables.sources.extent
