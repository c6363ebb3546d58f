"""Shortest paths between pairs of nodes, over ordinals: plain numpy, whole fronts at a time.

Of several paths that are as short, the one whose nodes come first is given, compared from the end. Then
nothing but distances is needed while a front grows: the path itself is read back from its end, and only
nodes beside it are ever compared.

A front is a sorted array of packed pairs: the number of a search, and a node that it has reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from omnigraph.arrays.pairs import Packed, heads_of, pack, tails_of, without_tails
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.edges.traverse import expand, expand_edges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from omnigraph.arrays.types import Mask, Ordinals
    from omnigraph.engine.edges.traverse import AnyIncidence, AnyNeighbours, Claim

    Ranks = Callable[[Ordinals], NDArray[np.int64]]
    """For nodes, each once, numbers that order them."""


Costs: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """Paths of one length, a row each: the pair it connects, its nodes from start to end, its cost."""

    pairs: Ordinals
    nodes: Ordinals
    costs: Costs | None


@dataclass(frozen=True, slots=True, eq=False)
class HopSearch:
    """Paths with the fewest edges."""

    forward: AnyNeighbours
    backward: AnyNeighbours
    ranks: Ranks
    claim: Claim

    def between(self, starts: Ordinals, ends: Ordinals, most: int) -> Iterator[Path]:
        """The paths of pairs of nodes, each pair searched from both ends, the smaller front first."""
        numbers = np.arange(len(starts), dtype=np.int64)
        near, far = _Ball(pack(numbers, starts), self.claim), _Ball(pack(numbers, ends), self.claim)
        for _ in range(most):
            if not len(near.front) or not len(far.front):
                return
            if len(near.front) <= len(far.front):
                near.grow(self.forward)
            else:
                far.grow(self.backward)
            met = np.intersect1d(near.front, far.front, assume_unique=True)
            if not len(met):
                continue
            done = np.unique(heads_of(met))
            layers = [*near.layers[:-1], met]
            for layer in far.layers[-2::-1]:
                layers.append(_among(_next(self.forward, layers[-1], self.claim), layer))
            yield self._read_back(done, done, ends[done], layers)
            near.leave(done)
            far.leave(done)

    def from_starts(self, starts: Ordinals, wanted: Packed, most: int) -> Iterator[Path]:
        """The paths from each start to all the ends that are wanted: pairs of a start's number and an end."""
        ball = _Ball(pack(np.arange(len(starts), dtype=np.int64), starts), self.claim)
        open_, place = wanted, np.arange(len(wanted), dtype=np.int64)
        for _ in range(most):
            if not len(ball.front) or not len(open_):
                return
            ball.grow(self.forward)
            hit = _has(ball.front, open_)
            if hit.any():
                found = open_[hit]
                yield self._read_back(place[hit], heads_of(found), tails_of(found), ball.layers)
                open_, place = open_[~hit], place[~hit]
                ball.keep(np.unique(heads_of(open_)))

    def _read_back(self, pairs: Ordinals, owners: Ordinals, ends: Ordinals, layers: Sequence[Packed]) -> Path:
        """The nodes of paths whose k-th node is in the k-th layer, from the last one on."""
        nodes = np.empty((len(pairs), len(layers)), dtype=np.int64)
        nodes[:, -1] = current = ends
        for at in range(len(layers) - 2, -1, -1):
            rows, found = expand(self.backward, current, self.claim)
            on = _has(layers[at], pack(owners[rows], found))
            rows, found = rows[on], found[on]
            nodes[:, at] = current = found[_first(rows, found, self.ranks)]
        return Path(pairs, nodes, None)


@dataclass(frozen=True, slots=True, eq=False)
class CostSearch:
    """Paths with the least sum of weights; of those the ones with the fewest edges."""

    forward: AnyIncidence
    backward: AnyIncidence
    weights: Costs
    """The weight of each edge, none of them negative; NaN: it is not followed."""
    ranks: Ranks
    claim: Claim

    def from_starts(self, starts: Ordinals, wanted: Packed, most: int) -> Iterator[Path]:
        """As `HopSearch.from_starts`. A node is followed again where more edges lead to it at less cost."""
        front = pack(np.arange(len(starts), dtype=np.int64), starts)
        layers = [(front, np.zeros(len(front)))]
        known, least = layers[0]
        ends, edges = np.full(len(wanted), np.inf), np.zeros(len(wanted), dtype=np.int64)
        for count in range(1, most + 1):
            pairs, costs = self._next(*layers[-1])
            at = np.minimum(np.searchsorted(known, pairs), len(known) - 1)
            better = (known[at] != pairs) | (costs < least[at])
            better &= costs < self._bounds(wanted, ends, len(starts))[heads_of(pairs)]
            pairs, costs = pairs[better], costs[better]
            if not len(pairs):
                break
            layers.append((pairs, costs))
            known, least = _lowered(known, least, pairs, costs)
            self.claim(sum(len(layer) for layer, _ in layers) + len(known))
            hit = _has(pairs, wanted)
            ends[hit] = costs[np.searchsorted(pairs, wanted[hit])]
            edges[hit] = count
        for count in np.unique(edges[edges > 0]).tolist():
            mine = np.flatnonzero(edges == count)
            yield self._read_back(mine, wanted[mine], ends[mine], layers[: count + 1])

    def _next(self, front: Packed, costs: Costs) -> tuple[Packed, Costs]:
        """What edges from a front lead to, each pair once with its least cost."""
        rows, found, edges = expand_edges(self.forward, tails_of(front), self.claim)
        weights = self.weights[edges]
        known = ~np.isnan(weights)
        rows, found = rows[known], found[known]
        pairs = without_tails(front[rows]) | found.astype(np.uint64)
        sums = costs[rows] + weights[known]
        order = np.lexsort((sums, pairs))
        pairs, sums = pairs[order], sums[order]
        first = _firsts(pairs)
        return pairs[first], sums[first]

    def _bounds(self, wanted: Packed, ends: Costs, searches: int) -> Costs:
        """For each search the cost from which on nothing can shorten one of its paths."""
        bounds = np.zeros(searches)
        np.maximum.at(bounds, heads_of(wanted), ends)
        return bounds

    def _read_back(
        self, pairs: Ordinals, wanted: Packed, costs: Costs, layers: Sequence[tuple[Packed, Costs]]
    ) -> Path:
        owners, current, left = heads_of(wanted), tails_of(wanted), costs
        nodes = np.empty((len(pairs), len(layers)), dtype=np.int64)
        nodes[:, -1] = current
        for at in range(len(layers) - 2, -1, -1):
            layer, least = layers[at]
            rows, found, edges = expand_edges(self.backward, current, self.claim)
            before = pack(owners[rows], found)
            place = np.minimum(np.searchsorted(layer, before), len(layer) - 1)
            on = (layer[place] == before) & (least[place] + self.weights[edges] == left[rows])
            rows, found, place = rows[on], found[on], place[on]
            chosen = _first(rows, found, self.ranks)
            nodes[:, at] = current = found[chosen]
            left = least[place[chosen]]
        return Path(pairs, nodes, costs)


class _Ball:
    """What searches have reached so far, hop by hop."""

    def __init__(self, front: Packed, claim: Claim) -> None:
        self.layers = [front]
        self._seen = front
        self._claim = claim

    @property
    def front(self) -> Packed:
        """What was reached last."""
        return self.layers[-1]

    def grow(self, index: AnyNeighbours) -> None:
        """One hop more."""
        fresh = _next(index, self.front, self._claim)
        fresh = fresh[~_has(self._seen, fresh)]
        self._seen = np.sort(np.concatenate([self._seen, fresh]), kind="stable")
        self._claim(2 * len(self._seen))
        self.layers.append(fresh)

    def leave(self, searches: Ordinals) -> None:
        """Go on without these searches; they are ascending."""
        self.layers[-1] = self.front[~np.isin(heads_of(self.front), searches)]

    def keep(self, searches: Ordinals) -> None:
        """Go on with these searches alone."""
        owners = heads_of(self.front)
        if len(searches) < len(np.unique(owners)):
            self.layers[-1] = self.front[np.isin(owners, searches)]


def _next(index: AnyNeighbours, front: Packed, claim: Claim) -> Packed:
    """What a hop from a front leads to."""
    rows, found = expand(index, tails_of(front), claim)
    return np.unique(without_tails(front[rows]) | found.astype(np.uint64))


def _has(layer: Packed, pairs: Packed) -> Mask:
    """Which of the pairs a layer has."""
    if not len(layer):
        return np.zeros(len(pairs), dtype=np.bool_)
    return layer[np.minimum(np.searchsorted(layer, pairs), len(layer) - 1)] == pairs


def _among(pairs: Packed, layer: Packed) -> Packed:
    return pairs[_has(layer, pairs)]


def _firsts(values: NDArray[np.uint64] | Ordinals) -> Mask:
    """Of values in order, those that differ from the one before."""
    first = np.ones(len(values), dtype=np.bool_)
    first[1:] = values[1:] != values[:-1]
    return first


def _first(rows: Ordinals, nodes: Ordinals, ranks: Ranks) -> Ordinals:
    """For each row, which are all there and ascending, the place of the node that comes first."""
    first = _firsts(rows)
    if first.all():
        return np.arange(len(rows), dtype=np.int64)
    entities, at = np.unique(nodes, return_inverse=True)
    order = np.lexsort((ranks(entities)[at.reshape(-1)], rows))
    return order[_firsts(rows[order])]


def _lowered(known: Packed, least: Costs, pairs: Packed, costs: Costs) -> tuple[Packed, Costs]:
    """What is known with what is new or less."""
    at = np.minimum(np.searchsorted(known, pairs), len(known) - 1)
    old = known[at] == pairs
    least = least.copy()
    least[at[old]] = costs[old]
    fresh = ~old
    order = np.argsort(joined := np.concatenate([known, pairs[fresh]]), kind="stable")
    return joined[order], np.concatenate([least, costs[fresh]])[order]
