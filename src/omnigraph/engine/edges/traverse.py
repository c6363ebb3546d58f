"""Hops over ordinals: plain numpy kernels, no storage, no query syntax.

An ordinal is a row's position in its table's image; -1 stands for "no entity" (an unmatched optional
variable) and has no neighbours. Every kernel takes the nodes of all working rows at once and answers with
`(row, node)` pairs, so the caller can repeat its other columns by `row`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from omnigraph.arrays.pair_filter import PairFilter
from omnigraph.arrays.pairs import Packed, heads_of, pack, tails_of, without_tails
from omnigraph.arrays.types import Mask, Ordinals
from omnigraph.core.late_dataclass import dataclass

Claim = Callable[[int], None]
"""Told how many pairs a step is about to hold, before it holds them; raises when that is too much."""

ONE_ARM_SHARE = 1.2
"""Of lists that are intersected one arm leads for all rows when it makes at most so many times the pairs."""
FEW_NODES = 8
"""Up to this many nodes are expanded one by one: a vectorised step costs as much as this many slices."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Neighbours:
    """The distinct neighbours of every node, ascending: `tails[offsets[h]:offsets[h + 1]]`."""

    offsets: Ordinals
    tails: npt.NDArray[np.uint32]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.offsets.nbytes + self.tails.nbytes


@dataclass(frozen=True, slots=True)
class Incidence:
    """The edges of every node, in edge order: the neighbour at the other end and the edge's own ordinal."""

    offsets: Ordinals
    tails: npt.NDArray[np.uint32]
    edges: npt.NDArray[np.uint32]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.offsets.nbytes + self.tails.nbytes + self.edges.nbytes


class FollowedNeighbours(Protocol):
    """Neighbours that are not one index in memory: corrected by an overlay, or looked up in the table."""

    def expand(self, nodes: Ordinals, claim: Claim) -> tuple[Ordinals, Ordinals]:
        """What `expand` gives."""
        ...

    def connected(self, heads: Ordinals, tails: Ordinals) -> Mask:
        """What `connected` gives."""
        ...

    def lengths(self, nodes: Ordinals, /) -> Ordinals | None:
        """What `lengths_of` gives."""
        ...


class FollowedIncidence(Protocol):
    """As `FollowedNeighbours`, for edges."""

    def expand_edges(self, nodes: Ordinals, claim: Claim) -> tuple[Ordinals, Ordinals, Ordinals]:
        """What `expand_edges` gives."""
        ...

    def lengths(self, nodes: Ordinals, /) -> Ordinals | None:
        """What `lengths_of` gives."""
        ...


AnyNeighbours = Neighbours | FollowedNeighbours
AnyIncidence = Incidence | FollowedIncidence


def neighbours(heads: Ordinals, tails: Ordinals, head_count: int) -> Neighbours:
    """Index `heads -> tails`, each pair once.

    Cost: one sort of packed pairs; about 26 ns an edge.
    """
    packed = pack(heads, tails)
    packed.sort()
    if len(packed):
        keep = np.empty(len(packed), dtype=np.bool_)
        keep[0] = True
        np.not_equal(packed[1:], packed[:-1], out=keep[1:])
        packed = packed[keep]
    return Neighbours(
        offsets=_offsets(heads_of(packed), head_count),
        tails=packed.astype(np.uint32),
    )


def incidence(heads: Ordinals, tails: Ordinals, edges: Ordinals, head_count: int) -> Incidence:
    """Index `heads -> (tails, edges)`, parallel edges kept, in ascending edge order per head."""
    order = np.argsort(heads, kind="stable")
    return Incidence(
        offsets=_offsets(heads, head_count),
        tails=tails[order].astype(np.uint32),
        edges=edges[order].astype(np.uint32),
    )


def _offsets(heads: Ordinals, head_count: int) -> Ordinals:
    offsets = np.zeros(head_count + 1, dtype=np.int64)
    np.cumsum(np.bincount(heads, minlength=head_count), out=offsets[1:])
    return offsets


def expand(index: AnyNeighbours, nodes: Ordinals, claim: Claim) -> tuple[Ordinals, Ordinals]:
    """All `(row, neighbour)` pairs of the working rows, each distinct neighbour once per row."""
    if not isinstance(index, Neighbours):
        return index.expand(nodes, claim)
    if len(nodes) <= FEW_NODES:
        parts = _slices(index, nodes, claim)
        rows = [np.full(len(part), row, dtype=np.int64) for row, part in enumerate(parts)]
        return _joined(rows), _joined(parts)
    rows, positions = _positions(index.offsets, nodes, claim)
    return rows, index.tails[positions].astype(np.int64)


def reached(index: AnyNeighbours, nodes: Ordinals, claim: Claim) -> Ordinals:
    """What `expand` reaches, in the same order, when nobody asks from which row."""
    if not isinstance(index, Neighbours):
        return index.expand(nodes, claim)[1]
    if len(nodes) <= FEW_NODES:
        return _joined(_slices(index, nodes, claim))
    begins, lengths = _spans(index.offsets, nodes)
    ends = np.cumsum(lengths)
    total = ends.item(-1)
    claim(total)
    begins -= ends
    begins += lengths
    positions = np.repeat(begins, lengths)
    positions += np.arange(total, dtype=np.int64)
    return index.tails[positions].astype(np.int64)


def _slices(index: Neighbours, nodes: Ordinals, claim: Claim) -> list[npt.NDArray[np.uint32]]:
    # The hop of a point query is a few slices; a gather would cost more than the answer.
    item, tails = index.offsets.item, index.tails
    parts: list[npt.NDArray[np.uint32]] = []
    total = 0
    for node in nodes.tolist():
        begin, end = (item(node), item(node + 1)) if node >= 0 else (0, 0)
        total += end - begin
        parts.append(tails[begin:end])
    claim(total)
    return parts


def _joined(parts: Sequence[npt.NDArray[np.integer]]) -> Ordinals:
    if len(parts) == 1:
        return parts[0].astype(np.int64)
    return np.concatenate(parts, dtype=np.int64) if parts else np.empty(0, dtype=np.int64)


def expand_edges(index: AnyIncidence, nodes: Ordinals, claim: Claim) -> tuple[Ordinals, Ordinals, Ordinals]:
    """All `(row, neighbour, edge)` triples of the working rows, one per edge."""
    if not isinstance(index, Incidence):
        return index.expand_edges(nodes, claim)
    rows, positions = _positions(index.offsets, nodes, claim)
    return rows, index.tails[positions].astype(np.int64), index.edges[positions].astype(np.int64)


def _positions(offsets: Ordinals, nodes: Ordinals, claim: Claim) -> tuple[Ordinals, Ordinals]:
    if not len(nodes) or len(offsets) == 1:
        claim(0)
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    begins, lengths = _spans(offsets, nodes)
    ends = np.cumsum(lengths)
    total = ends.item(-1)
    claim(total)
    rows = np.repeat(np.arange(len(nodes), dtype=np.int64), lengths)
    begins -= ends - lengths
    return rows, np.arange(total, dtype=np.int64) + begins[rows]


def spans(offsets: Ordinals, nodes: Ordinals, claim: Claim) -> tuple[Ordinals, slice | Ordinals]:
    """How many entries each node has, and where they lie, one node after the other.

    Nodes that follow each other have their entries in one piece.
    """
    if not len(nodes) or len(offsets) == 1:
        return np.zeros(len(nodes), dtype=np.int64), slice(0, 0)
    first, last = nodes.item(0), nodes.item(-1)
    if first >= 0 and last - first == len(nodes) - 1 and (np.diff(nodes) == 1).all():
        ends = offsets[first : last + 2]
        claim(ends.item(-1) - ends.item(0))
        return np.diff(ends), slice(ends.item(0), ends.item(-1))
    begins, lengths = _spans(offsets, nodes)
    ends = np.cumsum(lengths)
    claim(ends.item(-1))
    return lengths, np.repeat(begins - ends + lengths, lengths) + np.arange(ends.item(-1), dtype=np.int64)


def _spans(offsets: Ordinals, nodes: Ordinals) -> tuple[Ordinals, Ordinals]:
    """Where the entries of each node begin, and how many they are; none for -1."""
    if nodes.min() >= 0:
        begins = offsets[nodes]
        return begins, offsets[nodes + 1] - begins
    known = nodes >= 0
    safe = np.where(known, nodes, 0)
    begins = offsets[safe]
    return begins, np.where(known, offsets[safe + 1] - begins, 0)


def connected(
    index: AnyNeighbours, heads: Ordinals, tails: Ordinals, filtered: PairFilter | None = None
) -> Mask:
    """For each working row, whether an edge leads from its head to its tail.

    Cost: a binary search among one head's neighbours, done for all rows at once. Where most rows have no such
    edge, `filtered`, which has all pairs of the index, spares them the search.
    """
    if filtered is not None and isinstance(index, Neighbours):
        mask = filtered.may_have(heads, tails)
        if filtered.is_exact:
            return mask
        left = np.flatnonzero(mask)
        mask[left] = connected(index, heads[left], tails[left])
        return mask
    if not isinstance(index, Neighbours):
        return index.connected(heads, tails)
    if not len(index.tails) or not len(heads):
        return np.zeros(len(heads), dtype=np.bool_)
    known = (heads >= 0) & (tails >= 0)
    every = bool(known.all())
    low, length = _spans(index.offsets, heads)
    end = low + length
    last = len(index.tails) - 1
    steps = int(length.max()).bit_length()
    for _ in range(steps):
        half = length >> 1
        below = index.tails[np.minimum(low + half, last)] < tails
        below &= length > 0
        low = np.where(below, low + half + 1, low)
        length = np.where(below, length - half - 1, half)
    found = (index.tails[np.minimum(low, last)] == tails) & (low < end)
    return found if every else found & known


def intersect(
    indexes: Sequence[AnyNeighbours],
    heads: Sequence[Ordinals],
    claim: Claim,
    filtered: Callable[[int], PairFilter | None],
    lead: int | None = None,
) -> tuple[Ordinals, Ordinals]:
    """All `(row, node)` pairs whose node is a neighbour of every head of the row.

    The head with the fewest neighbours leads on, row by row; the others are asked. So what is made is never
    more than the least list of each row. `lead` is an arm of which a head has one neighbour at most;
    `filtered` gives the filter of an arm that is asked.
    """
    shortest = _shortest(indexes, heads) if lead is None else lead
    parts: list[tuple[Ordinals, Ordinals]] = []
    for arm, index in enumerate(indexes):
        if isinstance(shortest, int):
            if shortest != arm:
                continue
            rows, found = expand(index, heads[arm], claim)
        else:
            chosen = np.flatnonzero(shortest == arm)
            if not len(chosen):
                continue
            rows, found = expand(index, heads[arm][chosen], claim)
            rows = chosen[rows]
        for other, asked in enumerate(indexes):
            if other != arm:
                mask = connected(asked, heads[other][rows], found, filtered(other))
                rows, found = rows[mask], found[mask]
        parts.append((rows, found))
    if not parts:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([rows for rows, _ in parts])
    order = np.argsort(rows, kind="stable")
    return rows[order], np.concatenate([found for _, found in parts])[order]


def lengths_of(index: AnyNeighbours | AnyIncidence, nodes: Ordinals) -> Ordinals | None:
    """How many entries each node has; None of an index that is not in memory."""
    if not isinstance(index, Neighbours | Incidence):
        return index.lengths(nodes)
    if not len(nodes) or len(index.offsets) == 1:
        return np.zeros(len(nodes), dtype=np.int64)
    return _spans(index.offsets, nodes)[1]


def _shortest(indexes: Sequence[AnyNeighbours], heads: Sequence[Ordinals]) -> Ordinals | int:
    """For each row the arm with the fewest neighbours; one arm for all where that is not known, or where it
    has few more than the fewest of all rows.
    """
    lengths = [lengths_of(index, nodes) for index, nodes in zip(indexes, heads, strict=True)]
    if lengths[0] is None:
        return 0
    best, fewest = np.zeros(len(heads[0]), dtype=np.int64), lengths[0]
    for arm, mine in enumerate(lengths):
        if mine is not None and arm:
            best[mine < fewest] = arm
            fewest = np.minimum(fewest, mine)
    most = int(fewest.sum()) * ONE_ARM_SHARE
    for arm, mine in enumerate(lengths):
        if mine is not None and int(mine.sum()) <= most:
            return arm
    return best


def reach(
    index: AnyNeighbours, nodes: Ordinals, lo: int, hi: int, claim: Claim, *, backward: bool = False
) -> tuple[Ordinals, Ordinals]:
    """All `(row, node)` pairs whose shortest distance from the row's node lies within `lo..hi`.

    A node with an edge to itself is also given at the hop after it was first reached, once. The start
    itself is given only through such an edge. `backward`: the row's node is where the paths end, and the
    nodes from which it is so reached are given; then its own edge to itself is the one that counts.
    """
    starts, of_row = np.unique(nodes, return_inverse=True)
    live = starts >= 0
    front = pack(np.flatnonzero(live), starts[live])
    visited = front
    emitted: Packed = np.empty(0, dtype=np.uint64)
    looped: Packed = emitted
    for hop in range(1, hi + 1):
        if not len(front):
            break
        front_nodes = tails_of(front)
        source, target = expand(index, front_nodes, claim)
        owner = without_tails(front[source])
        pairs = owner | target.astype(np.uint64)
        fresh = np.setdiff1d(np.unique(pairs), visited, assume_unique=True)
        if hop == 1:
            looped = np.unique(owner[target == front_nodes[source]])
        if hop >= lo:
            loops = (
                front[np.isin(without_tails(front), looped)]
                if backward
                else np.unique(pairs[target == front_nodes[source]])
            )
            due = np.union1d(fresh, np.setdiff1d(loops, emitted, assume_unique=True))
            emitted = np.union1d(emitted, due)
        visited = np.union1d(visited, fresh)
        claim(len(visited) + len(emitted))
        front = fresh
    group = heads_of(emitted)
    result = Incidence(
        offsets=_offsets(group, len(starts)),
        tails=emitted.astype(np.uint32),
        edges=np.empty(0, dtype=np.uint32),
    )
    rows, positions = _positions(result.offsets, of_row.astype(np.int64), claim)
    return rows, result.tails[positions].astype(np.int64)
