"""Edges looked up in their table: what a hop from few nodes needs, without an adjacency in memory."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from omnigraph.arrays.addresses import addresses_in
from omnigraph.arrays.keys import string_array
from omnigraph.arrays.sets import distinct
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import KEY_PROBE_CHUNK_ROWS
from omnigraph.engine.edges.traverse import (
    AnyIncidence,
    AnyNeighbours,
    connected,
    expand,
    expand_edges,
    incidence,
    neighbours,
)
from omnigraph.planning.filters import filter_text, has_text
from omnigraph.planning.steps import Direction

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnigraph.arrays.types import Mask, Ordinals
    from omnigraph.engine.edges.endpoints import EdgeTables
    from omnigraph.engine.edges.traverse import Claim

Found = tuple["Ordinals", "Ordinals", "Ordinals"]
"""Heads (as positions among the asked nodes), tails and edges."""

_NONE: Final = np.empty(0, np.int64)

COLUMNS: Final = {
    Direction.FORWARD: (("src", "dst"),),
    Direction.BACKWARD: (("dst", "src"),),
    Direction.EITHER: (("src", "dst"), ("dst", "src")),
}
"""The column of the near end and that of the far end, for each way a lookup has to be made."""


def look_up(tables: EdgeTables, direction: Direction, nodes: Ordinals, claim: Claim) -> Found:
    """The edges of some nodes (ascending, each once), in the order of the edges, each edge once per node.

    Cost: one index probe per chunk of nodes, and what it finds.
    """
    heads, tails = tables.heads(direction), tables.tails(direction)
    ids = string_array(heads.take("id", nodes))
    parts: list[Found] = []
    size = 0
    for number, (near, far) in enumerate(COLUMNS[direction]):
        for begin in range(0, len(ids), KEY_PROBE_CHUNK_ROWS):
            wanted = ids.slice(begin, KEY_PROBE_CHUNK_ROWS)
            rows = tables.edges.storage.read(
                tables.edges.handle,
                columns=["src", "dst"],
                filter=filter_text(has_text(near, wanted.to_pylist())),
                with_row_address=True,
            )
            size += rows.num_rows
            claim(size)
            if rows.num_rows == 0:
                continue
            asked = pc.index_in(rows.column(near), value_set=ids)
            at = np.asarray(asked.to_numpy(), np.int64)
            ends = tails.find(string_array(rows.column(far)))
            edges = tables.edges.from_addresses(addresses_in(rows))
            keep = ends >= 0
            if number:
                keep &= nodes[at] != ends  # the other side of a self-loop is the same edge again
            parts.append((at[keep], ends[keep], edges[keep]))
    if not parts:
        return _NONE, _NONE, _NONE
    at, ends, edges = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(edges, kind="stable")
    return at[order], ends[order], edges[order]


@dataclass(slots=True, eq=False)
class _Probed:
    """Lookups until they cost more than an index; then the index, for the rest of the query."""

    tables: EdgeTables
    direction: Direction
    nodes_max: int | None
    """Nodes looked up before the index is used; None: all are looked up."""
    nodes_seen: int = field(default=0, init=False)

    def lengths(self, _: Ordinals) -> None:
        """See `traverse.lengths_of`: that would take the lookups themselves."""

    def _asked(self, nodes: Ordinals) -> Ordinals | None:
        """The distinct nodes to look up; None when the index is due."""
        asked = distinct(nodes[nodes >= 0])
        self.nodes_seen += len(asked)
        if self.nodes_max is not None and self.nodes_seen > self.nodes_max:
            return None
        return asked


def _places(asked: Ordinals, nodes: Ordinals) -> Ordinals:
    """Where each node is among the asked ones; -1 for -1."""
    return np.where(nodes >= 0, np.searchsorted(asked, nodes), -1)


@dataclass(slots=True, eq=False)
class ProbedNeighbours(_Probed):
    """Neighbours by lookups (`traverse.FollowedNeighbours`). One per step of a run."""

    index: Callable[[], AnyNeighbours]

    def expand(self, nodes: Ordinals, claim: Claim) -> tuple[Ordinals, Ordinals]:
        """See `traverse.expand`."""
        asked = self._asked(nodes)
        if asked is None:
            return expand(self.index(), nodes, claim)
        heads, tails, _ = look_up(self.tables, self.direction, asked, claim)
        return expand(neighbours(heads, tails, len(asked)), _places(asked, nodes), claim)

    def connected(self, heads: Ordinals, tails: Ordinals) -> Mask:
        """See `traverse.connected`."""
        asked = self._asked(heads)
        if asked is None:
            return connected(self.index(), heads, tails)
        found_heads, found_tails, _ = look_up(self.tables, self.direction, asked, _no_claim)
        small = neighbours(found_heads, found_tails, len(asked))
        return connected(small, _places(asked, heads), tails)


@dataclass(slots=True, eq=False)
class ProbedIncidence(_Probed):
    """Edges by lookups (`traverse.FollowedIncidence`). One per step of a run."""

    index: Callable[[], AnyIncidence]

    def expand_edges(self, nodes: Ordinals, claim: Claim) -> tuple[Ordinals, Ordinals, Ordinals]:
        """See `traverse.expand_edges`."""
        asked = self._asked(nodes)
        if asked is None:
            return expand_edges(self.index(), nodes, claim)
        heads, tails, edges = look_up(self.tables, self.direction, asked, claim)
        small = incidence(heads, tails, edges, len(asked))
        return expand_edges(small, _places(asked, nodes), claim)


def _no_claim(_: int) -> None:
    """The rows of a test of bound ends were claimed when they were made."""
