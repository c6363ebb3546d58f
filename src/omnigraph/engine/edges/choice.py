"""How an edge is followed: over the adjacency in memory, or by looking edges up; chosen by cost.

The choice never changes an answer. It is a value, so that `explain` can say what was chosen and why.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from omnigraph.core import limits
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import KEY_PROBE_CHUNK_ROWS
from omnigraph.engine.edges.lookups import COLUMNS, ProbedIncidence, ProbedNeighbours
from omnigraph.planning.access import Choice

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnigraph.core.settings import ExpandAccess
    from omnigraph.engine.edges.adjacency import AdjacencyCache
    from omnigraph.engine.edges.endpoints import EdgeTables
    from omnigraph.engine.edges.traverse import AnyIncidence, AnyNeighbours
    from omnigraph.planning.steps import Direction

    GaveWay = Callable[[], None]

# Costs in milliseconds, measured on a million nodes and five million edges; only their proportion matters.
PROBE_CALL_MS: Final = 1.5
PROBE_NODE_MS: Final = 0.015
PROBE_EDGE_MS: Final = 0.003
SCAN_ROW_MS: Final = 0.00005
BUILD_EDGE_MS: Final = 0.0003
BUILD_NODE_MS: Final = 0.0003

INDEX_ENTRY_BYTES: Final = 14
"""Memory of one edge in the ends and in an index of one direction."""


class Path(StrEnum):
    """The ways to follow an edge."""

    ADJACENCY = "adjacency"
    PROBE = "index probes"


class Kind(StrEnum):
    """What a step asks of an adjacency."""

    NEIGHBOURS = "neighbours"
    INCIDENCE = "incidence"


@dataclass(frozen=True, slots=True)
class Access:
    """One way to follow an edge."""

    path: Path
    why: str
    nodes_max: int | None = None
    """Nodes that are looked up before the adjacency is used after all; None: no bound."""
    builds: bool = False
    """Whether the adjacency is made in the background meanwhile."""

    @property
    def how(self) -> str:
        """Its name."""
        return self.path.value


IN_MEMORY: Final = Choice.of(Access(Path.ADJACENCY, "it is in memory for this state of the tables"))


def choose(
    adjacency: AdjacencyCache,
    tables: EdgeTables,
    direction: Direction,
    kind: Kind,
    *,
    hops: int = 1,
    forced: ExpandAccess = "auto",
) -> Choice[Access]:
    """The cheaper way to follow an edge over up to `hops` hops, by the number of nodes that are asked
    (`nodes_asked`).

    Cost: nothing when the adjacency is in memory; else metadata of the tables.
    """
    if forced == "probe":
        return Choice.of(Access(Path.PROBE, "the settings ask for it"))
    if forced == "adjacency":
        return Choice.of(Access(Path.ADJACENCY, "the settings ask for it"))
    if adjacency.is_ready(tables, direction, kind):
        return IN_MEMORY
    edges = tables.edges.row_count
    if edges < limits.CACHED_ROWS_MIN:
        return Choice.of(Access(Path.ADJACENCY, f"it is made from {edges} edges at once"))
    if adjacency.is_near(tables, direction, kind):
        why = "an earlier state of it is in memory, or a file has it"
        return Choice.of(Access(Path.ADJACENCY, why))
    degree = edges / max(tables.heads(direction).row_count, 1)
    call_ms, scans = _probe_call_ms(tables, direction)
    node_ms = PROBE_NODE_MS + degree * PROBE_EDGE_MS + call_ms / KEY_PROBE_CHUNK_ROWS
    build_ms = _build_ms(tables)
    how = "scans of the edges" if scans else "index probes"
    nodes_max = int((build_ms - hops * call_ms) / node_ms)
    if nodes_max < 1:
        why = f"making it takes about {build_ms:.0f} ms, one round of {how} {hops * call_ms:.0f} ms"
        return Choice.of(Access(Path.ADJACENCY, why))
    few = f"{how} cost less than making the adjacency, about {build_ms:.0f} ms"
    more = f"making it, about {build_ms:.0f} ms, costs less than {how}"
    fits = edges * INDEX_ENTRY_BYTES <= adjacency.bytes_max
    probe = Access(Path.PROBE, few, nodes_max=nodes_max, builds=fits)
    return Choice(((nodes_max, probe), (None, Access(Path.ADJACENCY, more))))


def nodes_asked(tables: EdgeTables, direction: Direction, nodes: int, hops: int) -> float:
    """About how many nodes are expanded over all hops, starting from this many."""
    most = float(max(tables.heads(direction).row_count, 1))
    degree = tables.edges.row_count / most
    total = front = min(nodes, most)
    for _ in range(hops - 1):
        front = min(front * degree, most)
        total = min(total + front, most)
    return total


def _probe_call_ms(tables: EdgeTables, direction: Direction) -> tuple[float, bool]:
    """What one lookup costs beside its nodes, and whether it scans for want of an index."""
    rows = tables.edges.fragment_rows()
    cost, scans = 0.0, False
    for near, _ in COLUMNS[direction]:
        ordered = [
            index
            for index in tables.edges.indexes(near)
            if index.kind.upper() == "BTREE" and index.columns == (near,)
        ]
        unknown = [sum(rows[each] for each in index.uncovered) for index in ordered]
        uncovered = min(unknown, default=sum(rows.values()))
        cost += PROBE_CALL_MS + uncovered * SCAN_ROW_MS
        scans = scans or not ordered
    return cost, scans


def _build_ms(tables: EdgeTables) -> float:
    cost = tables.edges.row_count * BUILD_EDGE_MS
    for nodes in {id(each): each for each in (tables.sources, tables.targets)}.values():
        if not nodes.keys.is_ready(nodes.identity, nodes.handle):
            cost += nodes.row_count * BUILD_NODE_MS
    return cost


def follow_neighbours(
    adjacency: AdjacencyCache, tables: EdgeTables, direction: Direction, access: Access, gave_way: GaveWay
) -> AnyNeighbours:
    """The neighbours in this way. `gave_way` is called when lookups leave the rest to the adjacency."""
    if access.path is Path.ADJACENCY:
        return adjacency.neighbours(tables, direction)
    if access.builds:
        adjacency.build_later(tables, direction, Kind.NEIGHBOURS)

    def rest() -> AnyNeighbours:
        gave_way()
        return adjacency.neighbours(tables, direction)

    return ProbedNeighbours(tables, direction, access.nodes_max, rest)


def follow_edges(
    adjacency: AdjacencyCache, tables: EdgeTables, direction: Direction, access: Access, gave_way: GaveWay
) -> AnyIncidence:
    """The edges in this way; see `follow_neighbours`."""
    if access.path is Path.ADJACENCY:
        return adjacency.incidence(tables, direction)
    if access.builds:
        adjacency.build_later(tables, direction, Kind.INCIDENCE)

    def rest() -> AnyIncidence:
        gave_way()
        return adjacency.incidence(tables, direction)

    return ProbedIncidence(tables, direction, access.nodes_max, rest)
