"""What commits changed of an adjacency, kept beside it: the index stays, a small overlay corrects it.

Everything is said twice here: in *base* ordinals, those of the state the index was built from, and in
*current* ordinals, those of the state the overlay leads to. A node that was written anew has another current
ordinal and keeps its place in the index.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from omnigraph.arrays.pairs import Packed, first_pair, heads_of, pack, tails_of, unpack
from omnigraph.arrays.sets import distinct, is_among
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.edges.traverse import (
    Incidence,
    Neighbours,
    connected,
    expand,
    expand_edges,
    lengths_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnigraph.arrays.types import Mask, Ordinals
    from omnigraph.engine.edges.traverse import Claim

Ends = NDArray[np.int32]

NO_NODE: Final = -1
MAPPED_NODES_MIN: Final = 4096
"""From this many nodes, a map over all ordinals is faster than a search for each."""

_NOTHING: Final[Packed] = np.empty(0, np.uint64)
NO_ORDINALS: Final[Ordinals] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Where the nodes of a base state are now.

    `old` (ascending) are the nodes that have gone from their place, `new` where each is now, -1 for nowhere.
    """

    base_extent: int
    extent: int
    old: Ordinals
    new: Ordinals
    origin: Ordinals
    """For each ordinal the base does not have: the base ordinal of the same node, or -1."""

    @staticmethod
    def none(extent: int) -> Moves:
        """Nothing has moved."""
        return Moves(extent, extent, NO_ORDINALS, NO_ORDINALS, NO_ORDINALS)

    def then(self, gone: Ordinals, now: Ordinals, extent: int) -> Moves:
        """After a further step in which the nodes at `gone` went to `now` (-1: deleted)."""
        base = self.to_base(gone)
        mine = base >= 0
        old = np.concatenate([self.old, base[mine]])
        new = np.concatenate([self.new, now[mine]])
        order = np.argsort(old, kind="stable")
        old, new = old[order], new[order]
        if len(old):  # of two moves of one node the later counts
            last = np.r_[old[1:] != old[:-1], True]
            old, new = old[last], new[last]
        origin = np.full(extent - self.base_extent, NO_NODE, np.int64)
        known = new >= 0
        origin[new[known] - self.base_extent] = old[known]
        return Moves(self.base_extent, extent, old, new, origin)

    def to_base(self, nodes: Ordinals) -> Ordinals:
        """The base ordinals of current nodes; -1 for nodes the base does not have."""
        if not len(self.origin) or not len(nodes):
            return nodes
        added = nodes >= self.base_extent
        if not added.any():
            return nodes
        result = nodes.copy()
        result[added] = self.origin[nodes[added] - self.base_extent]
        return result

    def to_current(self, nodes: Ordinals) -> tuple[Ordinals, Mask | None]:
        """Where base nodes are now; and which of them moved, None when none did."""
        if not len(self.old) or not len(nodes):
            return nodes, None
        if len(nodes) >= max(MAPPED_NODES_MIN, self.base_extent // 16):
            place = np.arange(self.base_extent, dtype=np.int64)
            place[self.old] = self.new
            result = place[nodes]
            moved = result != nodes
        else:
            at = np.minimum(np.searchsorted(self.old, nodes), len(self.old) - 1)
            moved = self.old[at] == nodes
            result = np.where(moved, self.new[at], nodes)
        return (result, moved) if moved.any() else (nodes, None)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.old.nbytes + self.new.nbytes + self.origin.nbytes


@dataclass(slots=True, eq=False)
class _Heads:
    """A set of nodes, asked for few at a time or for many."""

    nodes: Ordinals
    """Ascending."""
    extent: int
    _map: Mask | None = field(default=None, init=False)
    _lengths: Ordinals | None = field(default=None, init=False)

    def among(self, nodes: Ordinals) -> Mask | None:
        """Which of the nodes are in the set; None when none is."""
        if not len(self.nodes) or not len(nodes):
            return None
        if len(nodes) >= MAPPED_NODES_MIN:
            known = self._map
            if known is None:
                known = np.zeros(self.extent + 1, np.bool_)
                known[self.nodes] = True
                self._map = known
            found = known[nodes]  # -1 is the slot behind the last node
        else:
            found = is_among(nodes, self.nodes)
        return found if found.any() else None

    def corrected(self, lengths: Ordinals, nodes: Ordinals, rows: Callable[[Ordinals], Ordinals]) -> Ordinals:
        """The lengths with those of the set as they are; `rows` makes the entries of nodes."""
        mine = self.among(nodes)
        if mine is None:
            return lengths
        known = self._lengths
        if known is None:
            known = self._lengths = np.bincount(rows(self.nodes), minlength=len(self.nodes))
        lengths[mine] = known[np.searchsorted(self.nodes, nodes[mine])]
        return lengths


@dataclass(frozen=True, slots=True, eq=False)
class OverlaidNeighbours:
    """The distinct neighbours of every node at a later state than that of `base`."""

    base: Neighbours
    heads: Moves
    tails: Moves
    removed: Packed
    """Pairs of the base, in base ordinals, of which no edge is left; ascending."""
    added: Packed
    """Pairs of new edges, in current ordinals; ascending. Some may be in the base as well."""
    touched: _Heads

    @property
    def nbytes(self) -> int:
        """Bytes held beside the base."""
        return self.removed.nbytes + self.added.nbytes + self.touched.nodes.nbytes

    def expand(self, nodes: Ordinals, claim: Claim) -> tuple[Ordinals, Ordinals]:
        """See `traverse.expand`."""
        base_heads = self.heads.to_base(nodes)
        rows, base_tails = expand(self.base, base_heads, claim)
        tails, moved = self.tails.to_current(base_tails)
        touched = self.touched.among(nodes)
        if moved is None and touched is None:
            return rows, tails
        alive = tails >= 0
        if touched is not None and len(self.removed) and len(rows):
            suspect = np.flatnonzero(touched[rows])
            pairs = pack(base_heads[rows[suspect]], base_tails[suspect])
            alive[suspect[is_among(pairs, self.removed)]] = False
        packed = pack(rows[alive], tails[alive])
        if touched is not None and len(self.added):
            more = self._added_of(np.flatnonzero(touched), nodes)
            claim(len(packed) + len(more))
            packed = np.concatenate([packed, more])
        return unpack(distinct(packed))

    def _added_of(self, rows: Ordinals, nodes: Ordinals) -> Packed:
        """The added neighbours of some rows, as packed pairs of row and node."""
        begin = np.searchsorted(self.added, first_pair(nodes[rows]))
        end = np.searchsorted(self.added, first_pair(nodes[rows] + 1))
        which, positions = _ranges(begin, end - begin)
        return pack(rows[which], tails_of(self.added[positions]))

    def lengths(self, nodes: Ordinals) -> Ordinals:
        """See `traverse.lengths_of`. Cost: at first, what the nodes that commits touched lead to is made."""
        found = lengths_of(self.base, self.heads.to_base(nodes))
        assert found is not None  # noqa: S101 - the base is in memory
        return self.touched.corrected(found, nodes, lambda nodes: self.expand(nodes, _uncounted)[0])

    def connected(self, heads: Ordinals, tails: Ordinals) -> Mask:
        """See `traverse.connected`."""
        base_heads, base_tails = self.heads.to_base(heads), self.tails.to_base(tails)
        found = connected(self.base, base_heads, base_tails)
        if len(self.removed):
            found &= ~is_among(pack(base_heads, base_tails), self.removed)
        if len(self.added):
            known = (heads >= 0) & (tails >= 0)
            found |= known & is_among(pack(heads, tails), self.added)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class OverlaidIncidence:
    """The edges of every node at a later state than that of `base`."""

    base: Incidence
    heads: Moves
    tails: Moves
    dead: Ordinals
    """Edges of the base that are gone; ascending."""
    added_heads: Ordinals
    """Heads of the new edges in current ordinals; ascending, with their tails and edges."""
    added_tails: Ordinals
    added_edges: Ordinals
    touched: _Heads

    @property
    def nbytes(self) -> int:
        """Bytes held beside the base."""
        return 3 * self.added_heads.nbytes + self.dead.nbytes + self.touched.nodes.nbytes

    def lengths(self, nodes: Ordinals) -> Ordinals:
        """See `traverse.lengths_of`. Cost: at first, what the nodes that commits touched lead to is made."""
        found = lengths_of(self.base, self.heads.to_base(nodes))
        assert found is not None  # noqa: S101 - the base is in memory
        return self.touched.corrected(found, nodes, lambda nodes: self.expand_edges(nodes, _uncounted)[0])

    def expand_edges(self, nodes: Ordinals, claim: Claim) -> tuple[Ordinals, Ordinals, Ordinals]:
        """See `traverse.expand_edges`."""
        rows, base_tails, edges = expand_edges(self.base, self.heads.to_base(nodes), claim)
        tails, moved = self.tails.to_current(base_tails)
        touched = self.touched.among(nodes)
        if moved is not None:
            alive = tails >= 0
            rows, tails, edges = rows[alive], tails[alive], edges[alive]
        if touched is None:
            return rows, tails, edges
        if len(self.dead) and len(edges):
            alive = ~is_among(edges, self.dead)
            rows, tails, edges = rows[alive], tails[alive], edges[alive]
        asked = np.flatnonzero(touched)
        begin = np.searchsorted(self.added_heads, nodes[asked])
        end = np.searchsorted(self.added_heads, nodes[asked], side="right")
        which, positions = _ranges(begin, end - begin)
        if not len(which):
            return rows, tails, edges
        claim(len(rows) + len(which))
        rows = np.concatenate([rows, asked[which]])
        tails = np.concatenate([tails, self.added_tails[positions]])
        edges = np.concatenate([edges, self.added_edges[positions]])
        order = np.lexsort((edges, rows))
        return rows[order], tails[order], edges[order]


def _uncounted(_: int) -> None:
    """Takes the size of what is only counted."""


def _ranges(begins: Ordinals, lengths: Ordinals) -> tuple[Ordinals, Ordinals]:
    """For several ranges: which range each position belongs to, and the positions."""
    which = np.repeat(np.arange(len(begins), dtype=np.int64), lengths)
    reached = np.cumsum(lengths)
    starts = begins - (reached - lengths)
    return which, np.arange(len(which), dtype=np.int64) + starts[which]


def overlay_neighbours(
    base: Neighbours, repeats: Packed, gone: Packed, added: Packed, heads: Moves, tails: Moves
) -> OverlaidNeighbours:
    """Correct an index by pairs of edges that went (base ordinals) and that came (current ordinals).

    `repeats` has, for each pair that several edges of the base make, one entry less than there are edges. A
    pair is removed when as many of its edges went as there were.
    """
    removed = _NOTHING
    if len(gone):
        ordered = np.sort(gone)
        first = np.r_[True, ordered[1:] != ordered[:-1]]
        pairs = ordered[first]
        counts = np.diff(np.r_[np.flatnonzero(first), len(ordered)])
        more = np.searchsorted(repeats, pairs, side="right") - np.searchsorted(repeats, pairs)
        removed = pairs[counts == 1 + more]
    extra = distinct(added)
    removed_heads, _ = heads.to_current(heads_of(removed))
    touched = distinct(np.concatenate([removed_heads[removed_heads >= 0], heads_of(extra)]))
    return OverlaidNeighbours(base, heads, tails, removed, extra, _Heads(touched, heads.extent))


def overlay_incidence(
    base: Incidence,
    dead: Ordinals,
    dead_heads: Ordinals,
    added: tuple[Ordinals, Ordinals, Ordinals],
    heads: Moves,
    tails: Moves,
) -> OverlaidIncidence:
    """Correct an index by edges that went (with their heads, base ordinals) and that came (heads, tails and
    edges, current ordinals).
    """
    added_heads, added_tails, added_edges = added
    order = np.lexsort((added_edges, added_heads))
    gone_heads, _ = heads.to_current(dead_heads)
    touched = distinct(np.concatenate([gone_heads[gone_heads >= 0], added_heads]))
    return OverlaidIncidence(
        base,
        heads,
        tails,
        dead,
        added_heads[order],
        added_tails[order],
        added_edges[order],
        _Heads(touched, heads.extent),
    )
