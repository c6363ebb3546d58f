"""The two ends of every edge at one state of three tables, as ordinals; and how they follow a later state."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from typing import TYPE_CHECKING, Final

import numpy as np

from omnigraph.arrays.keys import string_array
from omnigraph.core.events import Progress, emit
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.edges.overlay import NO_NODE, NO_ORDINALS, Ends, Moves
from omnigraph.planning.steps import Direction

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from omnigraph.arrays.types import Ordinals
    from omnigraph.engine.tables.images import TableImage

Contents = tuple[str, bytes]
StateKey = tuple[str, Contents, Contents, Contents]

RESOLVE_THREADS: Final = 2
THREADED_EDGES_MIN: Final = 100_000
SAID_AFTER_SECONDS: Final = 1.0
"""A build that takes longer, and that somebody waits for, says how far it is."""
BATCHES_AHEAD_MAX: Final = 2
"""Batches of edges read before the ends of the first are found; bounds the memory of a build."""


@dataclass(frozen=True, slots=True)
class EdgeTables:
    """One edge table and its endpoint tables, at one snapshot."""

    edges: TableImage
    sources: TableImage
    targets: TableImage
    _key: list[StateKey] = field(default_factory=list[StateKey], repr=False, compare=False)

    def key(self) -> StateKey:
        """The identity of everything that is derived from these three tables."""
        if not self._key:
            self._key.append(
                (self.edges.identity, self.edges.contents, self.sources.contents, self.targets.contents)
            )
        return self._key[0]

    @property
    def place(self) -> tuple[str, str]:
        """Graph and edge table."""
        return (self.edges.identity, self.edges.handle.location)

    def heads(self, direction: Direction) -> TableImage:
        """The table of the nodes an edge is followed from."""
        return self.targets if direction is Direction.BACKWARD else self.sources

    def tails(self, direction: Direction) -> TableImage:
        """The table of the nodes an edge is followed to."""
        return self.sources if direction is Direction.BACKWARD else self.targets


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


def resolve(tables: EdgeTables, check: Callable[[], None] | None = None) -> Endpoints:
    """The ends of all edges of a state.

    `check` is called between batches and may raise; a caller that gives one builds in the background. Cost:
    both end columns are streamed; the two sides are looked up on two threads, in the background on one.
    """
    sources, targets = _resolve_from(tables, 0, check)
    return _whole_edges(sources, targets, tables.edges.row_count)


def _resolve_from(
    tables: EdgeTables, after: int, check: Callable[[], None] | None = None
) -> tuple[Ends, Ends]:
    """The ends of the edges from an ordinal on; -1 for dead edges and for ends that do not exist."""
    extent = tables.edges.extent - after
    sources = np.full(extent, NO_NODE, dtype=np.int32)
    targets = np.full(extent, NO_NODE, dtype=np.int32)
    batches = tables.edges.read_live(["src", "dst"], after=after)
    if extent < THREADED_EDGES_MIN:
        for ordinals, rows in batches:
            _look_up(tables.sources, rows.column("src"), sources, ordinals - after)
            _look_up(tables.targets, rows.column("dst"), targets, ordinals - after)
        return sources, targets
    # In the background one core is left to the readers.
    with ThreadPoolExecutor(RESOLVE_THREADS if check is None else 1, "omnigraph-resolve") as pool:
        ahead: list[Future[None]] = []
        begun, done = time.monotonic(), 0
        for ordinals, rows in batches:
            places = ordinals - after
            ahead.append(pool.submit(_look_up, tables.sources, rows.column("src"), sources, places))
            ahead.append(pool.submit(_look_up, tables.targets, rows.column("dst"), targets, places))
            while len(ahead) > 2 * BATCHES_AHEAD_MAX:
                ahead.pop(0).result()
            done += len(places)
            if check is not None:
                check()
            elif time.monotonic() - begun >= SAID_AFTER_SECONDS:
                emit(Progress("read", "adjacency", done, tables.edges.row_count, "edges"))
        for each in ahead:
            each.result()
    return sources, targets


def _look_up(nodes: TableImage, ids: pa.Array, ends: Ends, places: Ordinals) -> None:
    ends[places] = nodes.find(string_array(ids), referenced=True)


def _whole_edges(sources: Ends, targets: Ends, live: int) -> Endpoints:
    """Leave out the edges that miss an end."""
    broken = (sources < 0) | (targets < 0)
    if broken.any():
        sources[broken] = NO_NODE
        targets[broken] = NO_NODE
    return Endpoints(sources, targets, live - int(len(sources) - np.count_nonzero(broken)))


@dataclass(frozen=True, slots=True, eq=False)
class EdgeState:
    """A state of an edge table as the difference from a base state whose ends are known."""

    base: EdgeTables
    tables: EdgeTables
    sources: Moves
    targets: Moves
    dead: Ordinals
    """Edges of the base that have gone; ascending."""
    fresh_sources: Ends
    """Ends of the edges that the base does not have, by ordinal from its extent on; -1 where dead."""
    fresh_targets: Ends

    @staticmethod
    def of_base(tables: EdgeTables) -> EdgeState:
        """The base itself."""
        none = np.empty(0, np.int32)
        same = tables.sources.contents == tables.targets.contents
        sources = Moves.none(tables.sources.extent)
        targets = sources if same else Moves.none(tables.targets.extent)
        return EdgeState(tables, tables, sources, targets, NO_ORDINALS, none, none)

    @property
    def is_base(self) -> bool:
        """Whether nothing differs."""
        return self.base is self.tables

    @property
    def changes(self) -> int:
        """Edges and nodes that differ from the base."""
        return len(self.dead) + len(self.fresh_sources) + len(self.sources.old) + len(self.targets.old)

    def then(self, tables: EdgeTables, ends: Endpoints) -> EdgeState | None:
        """A later state; None when it cannot be told from this one. `ends` are those of the base.

        Cost: follows what was committed between the two.
        """
        before = self.tables
        gone = tables.edges.removed_since(before.edges)
        gone_sources = tables.sources.removed_since(before.sources)
        gone_targets = tables.targets.removed_since(before.targets)
        if gone is None or gone_sources is None or gone_targets is None or ends.dangling:
            return None
        base_extent = self.base.edges.extent
        dead = self.dead
        old = gone[gone < base_extent]
        if len(old):
            dead = np.sort(np.concatenate([dead, old]))
        sources_now = _now(gone_sources, before.sources, tables.sources)
        targets_now = _now(gone_targets, before.targets, tables.targets)
        if _leaves_edges(ends, dead, self, gone_sources, sources_now, gone_targets, targets_now):
            return None
        more = _resolve_from(tables, before.edges.extent)
        lost = gone[gone >= base_extent] - base_extent
        fresh: list[Ends] = []
        for mine, left, now, added in (
            (self.fresh_sources, gone_sources, sources_now, more[0]),
            (self.fresh_targets, gone_targets, targets_now, more[1]),
        ):
            kept = mine.copy()
            kept[lost] = NO_NODE
            _redirect(kept, left, now)
            fresh.append(np.concatenate([kept, added]))
        broken = (fresh[0] < 0) | (fresh[1] < 0)
        fresh[0][broken] = fresh[1][broken] = NO_NODE
        live = len(fresh[0]) - int(np.count_nonzero(broken))
        if live + self._live_of_base(ends, len(dead)) != tables.edges.row_count:
            return None  # an edge without an end: only a build of the whole table counts those
        moves = self.sources.then(gone_sources, sources_now, tables.sources.extent)
        same = self.sources is self.targets
        others = moves if same else self.targets.then(gone_targets, targets_now, tables.targets.extent)
        return EdgeState(self.base, tables, moves, others, dead, fresh[0], fresh[1])

    def _live_of_base(self, ends: Endpoints, dead: int) -> int:
        return self.base.edges.row_count - ends.dangling - dead

    def folded(self, ends: Endpoints) -> Endpoints:
        """The ends of all edges of this state, as one. Cost: a copy."""
        sides: list[Ends] = []
        for base, moves, fresh in (
            (ends.sources, self.sources, self.fresh_sources),
            (ends.targets, self.targets, self.fresh_targets),
        ):
            place = np.arange(moves.base_extent + 1, dtype=np.int32)
            place[moves.old] = moves.new
            place[NO_NODE] = NO_NODE
            whole = np.empty(len(base) + len(fresh), np.int32)
            np.take(place, base, out=whole[: len(base)], mode="wrap")
            whole[self.dead] = NO_NODE
            whole[len(base) :] = fresh
            sides.append(whole)
        return _whole_edges(sides[0], sides[1], self.tables.edges.row_count)


def _now(gone: Ordinals, before: TableImage, after: TableImage) -> Ordinals:
    """Where the nodes that left their place are; -1 for deleted ones."""
    if not len(gone):
        return gone
    return after.find(string_array(before.take("id", gone)))


def _redirect(ends: Ends, gone: Ordinals, now: Ordinals) -> None:
    """Point the ends at nodes that were written anew at their new rows."""
    if not len(gone) or not len(ends):
        return
    order = np.argsort(gone)
    at = order[np.minimum(np.searchsorted(gone[order], ends), len(gone) - 1)]
    hit = gone[at] == ends
    ends[hit] = now[at[hit]]


def _leaves_edges(
    ends: Endpoints,
    dead: Ordinals,
    state: EdgeState,
    gone_sources: Ordinals,
    sources_now: Ordinals,
    gone_targets: Ordinals,
    targets_now: Ordinals,
) -> bool:
    """Whether a node was deleted and edges of the base still lead to it. No write of ours does that."""
    for side, moves, gone, now in (
        (ends.sources, state.sources, gone_sources, sources_now),
        (ends.targets, state.targets, gone_targets, targets_now),
    ):
        deleted = moves.to_base(gone[now < 0])
        deleted = deleted[deleted >= 0]
        if not len(deleted):
            continue
        missing = np.zeros(moves.base_extent + 1, np.bool_)
        missing[deleted] = True
        hit = np.flatnonzero(missing[side])
        if len(np.setdiff1d(hit, dead, assume_unique=True)):
            return True
    return False
