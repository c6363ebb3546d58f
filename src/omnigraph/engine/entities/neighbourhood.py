"""The surroundings of one node: what a picture of a part of the graph is drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnigraph.catalog.schema import NodeType
from omnigraph.core.errors import BadRequest, TypeNotFound
from omnigraph.core.ids import TableKey
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.entities.lookup import find_entity, named_type
from omnigraph.planning.filters import filter_text, has_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from omnigraph.catalog.schema import Catalog, EdgeType, TableType
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot
    from omnigraph.planning.keys import EntityKey

LABELS: Final = ("name", "title", "label")
"""Properties that tell people what a node is, in this order; without them its id does."""
EDGES_READ_MAX: Final = 2_000
"""How many edges of one type and direction are read for one hop: a picture of more would be black."""


@dataclass(frozen=True, slots=True)
class PictureNode:
    """One node of a picture."""

    type_name: str
    id: str
    label: str
    hops: int
    """Its distance from the node the picture is about."""


@dataclass(frozen=True, slots=True)
class PictureEdge:
    """One edge of a picture, between nodes of it."""

    type_name: str
    source: tuple[str, str]
    """Type and id."""
    target: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Nodes by distance, then type, then id; the edges among them. `left_out`: nodes beyond the limit."""

    nodes: tuple[PictureNode, ...]
    edges: tuple[PictureEdge, ...]
    left_out: int


def neighbourhood(
    session: GraphSession,
    snapshot: Snapshot,
    type_name: str,
    entity_id: EntityKey,
    *,
    hops: int,
    nodes_max: int,
) -> Neighbourhood:
    """What lies within some hops of a node, whatever the direction of its edges.

    Raises `TypeNotFound`, `EntityNotFound`. Cost: two filtered reads per edge type and hop, one per node
    type.
    """
    catalog = session.catalog_of(snapshot)
    start = named_type(catalog, type_name)
    if not isinstance(start, NodeType):
        raise TypeNotFound(type_name, candidates=tuple(catalog.nodes)[:3])
    if hops < 0 or nodes_max < 1:
        raise BadRequest("a picture has at least one node and no negative number of hops")
    found = find_entity(session, snapshot, start.name, entity_id)
    reader = _Reader(session, snapshot, catalog)
    distance = {(start.name, found.id): 0}
    edges: set[tuple[str, tuple[str, str], tuple[str, str]]] = set()
    frontier = [(start.name, found.id)]
    left_out: set[tuple[str, str]] = set()
    for hop in range(1, hops + 1):
        if not frontier:
            break
        touched = reader.edges_at(frontier)
        edges |= touched
        fresh = sorted({end for _, *ends in touched for end in ends if end not in distance})
        room = max(0, nodes_max - len(distance))
        left_out.update(fresh[room:])
        frontier = fresh[:room]
        distance |= dict.fromkeys(frontier, hop)
    kept = sorted(edge for edge in edges if edge[1] in distance and edge[2] in distance)
    labels = reader.labels(distance)
    nodes = sorted((hop, kind, id_) for (kind, id_), hop in distance.items())
    return Neighbourhood(
        tuple(PictureNode(kind, id_, labels.get((kind, id_), id_), hop) for hop, kind, id_ in nodes),
        tuple(PictureEdge(*edge) for edge in kept),
        len(left_out - set(distance)),
    )


class _Reader:
    def __init__(self, session: GraphSession, snapshot: Snapshot, catalog: Catalog) -> None:
        self._session = session
        self._snapshot = snapshot
        self._catalog = catalog

    def edges_at(self, nodes: Sequence[tuple[str, str]]) -> set[tuple[str, tuple[str, str], tuple[str, str]]]:
        """The edges that begin or end at one of these nodes."""
        found: set[tuple[str, tuple[str, str], tuple[str, str]]] = set()
        for edge in self._catalog.edges.values():
            for column, kind in (("src", edge.source), ("dst", edge.target)):
                ids = [id_ for type_name, id_ in nodes if type_name == kind]
                if ids:
                    found.update(self._edges(edge, column, ids))
        return found

    def _edges(
        self, edge: EdgeType, column: str, ids: Sequence[str]
    ) -> Iterable[tuple[str, tuple[str, str], tuple[str, str]]]:
        for row in self._rows(edge, ["src", "dst"], column, ids):
            yield edge.name, (edge.source, str(row["src"])), (edge.target, str(row["dst"]))

    def labels(self, nodes: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """What people call these nodes, where a property says it."""
        by_type: dict[str, list[str]] = {}
        for kind, id_ in nodes:
            by_type.setdefault(kind, []).append(id_)
        told: dict[tuple[str, str], str] = {}
        for kind, ids in by_type.items():
            node = self._catalog.nodes[kind]
            names = {prop.name for prop in node.properties}
            label = next((name for name in LABELS if name in names), None)
            if label is not None:
                rows = self._rows(node, ["id", label], "id", ids)
                told |= {(kind, str(row["id"])): str(row[label]) for row in rows if row[label] is not None}
        return told

    def _rows(
        self, table: TableType, columns: list[str], column: str, ids: Sequence[str]
    ) -> list[dict[str, str | None]]:
        entry = self._snapshot.entries.get(TableKey(table.table_key))
        if entry is None:
            return []
        wanted = filter_text(has_text(column, ids))
        handle = self._session.open_entry(entry)
        found = self._session.storage.read(handle, columns=columns, filter=wanted, limit=EDGES_READ_MAX)
        return found.to_pylist()
