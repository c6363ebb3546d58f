"""What one run of a read query has at hand: tables at one snapshot, parameter values, and its limits."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from omnigraph.core.errors import TypeAbsentAtSnapshot
from omnigraph.core.ids import TableKey
from omnigraph.engine.edges.adjacency import EdgeTables
from omnigraph.engine.edges.choice import Access, Kind, choose, follow_edges, follow_neighbours
from omnigraph.engine.edges.overlay import OverlaidIncidence, OverlaidNeighbours
from omnigraph.engine.edges.traverse import Neighbours
from omnigraph.engine.read.encoded import Codes, Numbers, codes_of, numbers_of
from omnigraph.engine.read.formulas import formula_mask
from omnigraph.engine.read.frame import entities_of
from omnigraph.engine.read.pieces import PIECE_ROWS, pieces
from omnigraph.planning import filters, ir, predicate

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Mask, Ordinals
    from omnigraph.catalog.schema import EdgeType, NodeType
    from omnigraph.engine.edges.traverse import AnyIncidence, AnyNeighbours
    from omnigraph.engine.read.caches import ReadCaches, View
    from omnigraph.engine.read.explain import Trace
    from omnigraph.engine.read.limits import Limits
    from omnigraph.engine.search.evaluate import Fused
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.tables.images import TableImage
    from omnigraph.manifest.state import Snapshot
    from omnigraph.planning.steps import Direction, Expand, Scan
    from omnigraph.planning.values import Value

INDEX_AT_HAND_SECONDS: Final = 1.0
"""How long a view uses an index without telling the cache."""

SCANNED_IN_MEMORY_ROWS_MAX: Final = 200_000
"""Up to this size a filter runs over columns in memory; above it only when they are there already."""


NO_ORDINALS: Final[Ordinals] = np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Reading:
    """One run of one query."""

    view: View
    params: Mapping[str, Value]
    now: dt.datetime | None
    limits: Limits
    caches: ReadCaches
    rank_depth: int | None = None
    """How many nodes the vector arm of a fused ranking looks at; None: all."""
    trace: Trace | None = None
    """Told about each step when the run is being explained."""
    accesses: dict[int, Access] = field(default_factory=dict[int, Access])
    """How the steps that follow edges got their rows, by the identity of the step. Those that found the
    adjacency in memory are here only when the run is being explained."""
    fused: dict[ir.Rrf, Fused] = field(default_factory=dict[ir.Rrf, "Fused"])
    """The fused rankings of this run, over the rows before any is cut off."""
    vectors: Mapping[tuple[str, int], NDArray[np.float32]] = field(
        default_factory=dict[tuple[str, int], "NDArray[np.float32]"]
    )
    """The embedded texts of this run, by text and dimension."""

    @property
    def session(self) -> GraphSession:
        """The handle that is read through."""
        return self.view.session

    @property
    def snapshot(self) -> Snapshot:
        """What is read."""
        return self.view.snapshot

    def image(self, owner: NodeType | EdgeType) -> TableImage:
        """The table of a type at this snapshot."""
        key = owner.table_key
        found = self.view.images.get(key)
        if found is None:
            entry = self.snapshot.entries.get(TableKey(key))
            if entry is None:
                raise TypeAbsentAtSnapshot(owner.name)
            # Of two threads that come first one image counts: ordinals of two need not agree.
            found = self.view.images.setdefault(key, self.caches.image(self.session, entry))
        return found

    def edge_tables(self, edge: EdgeType, catalog_nodes: Mapping[str, NodeType]) -> EdgeTables:
        """An edge table with its endpoint tables."""
        return EdgeTables(
            edges=self.image(edge),
            sources=self.image(catalog_nodes[edge.source]),
            targets=self.image(catalog_nodes[edge.target]),
        )

    def value(self, expression: ir.ValueExpr) -> Value:
        """What a constant expression stands for in this run."""
        return ir.value_of(expression, self.params, self.now)

    def scan(self, step: Scan) -> Ordinals:
        """The ordinals of the live nodes that a scan binds, ascending."""
        image = self.image(step.node)
        if step.test is None:
            return image.live()
        key = None if step.key is None else self.value(step.key)
        if isinstance(key, str):
            ordinal = image.find_one(key)
            if ordinal < 0:
                return NO_ORDINALS
            found = np.array([ordinal], dtype=np.int64)
            return found if step.rest is None else found[self.holds(step.node, step.rest, found)]
        needed, filter_text = self.pushed(step)
        if self.runs_in_memory(image, needed):
            live = image.live()
            return live[self.holds(step.node, step.test, live)]
        return image.select(filter_text)

    def pushed(self, step: Scan) -> tuple[frozenset[str], filters.FilterText]:
        """The columns a scan's test reads, and the test as a filter of the table format."""
        assert step.test is not None  # noqa: S101 - only tests are pushed
        formula = predicate.normalize(step.test, step.node, self.params, self.now)
        return filters.columns_of(formula), filters.filter_text(formula)

    def runs_in_memory(self, image: TableImage, needed: frozenset[str]) -> bool:
        """Whether a test runs over columns in memory instead of in the table format."""
        return image.row_count <= SCANNED_IN_MEMORY_ROWS_MAX or needed <= image.cached

    def neighbours(self, tables: EdgeTables, step: Expand, nodes: int) -> AnyNeighbours:
        """The distinct neighbours of nodes, for a step that follows an edge from this many of them."""
        adjacency = self.caches.adjacency
        found: AnyNeighbours | None = None
        if self.trace is None and self.session.settings.expand_access != "probe":
            found = adjacency.ready_neighbours(tables, step.direction)
        if found is None:
            access = self._access_now(tables, step, nodes)
            found = follow_neighbours(adjacency, tables, step.direction, access)
        if isinstance(found, OverlaidNeighbours):
            adjacency.followed_from(tables, step.direction, nodes)
        return found

    def index_at_hand(self, edge: EdgeType, direction: Direction) -> AnyNeighbours | None:
        """The neighbours if they are in memory; finding them costs next to nothing."""
        if self.session.settings.expand_access == "probe":
            return None
        key = (edge.table_key, direction)
        found = self.view.indexes.get(key)
        if found is not None and time.monotonic() < found[1] and (index := found[0]()) is not None:
            return index
        tables = self.edge_tables(edge, self.view.catalog.nodes)
        index = self.caches.adjacency.ready_neighbours(tables, direction)
        if isinstance(index, Neighbours):
            self.view.indexes[key] = (weakref.ref(index), time.monotonic() + INDEX_AT_HAND_SECONDS)
        return index

    def incidence(self, tables: EdgeTables, step: Expand, nodes: int) -> AnyIncidence:
        """The edges of nodes, for a step that follows them from this many nodes."""
        adjacency = self.caches.adjacency
        found = follow_edges(adjacency, tables, step.direction, self._access_now(tables, step, nodes))
        if isinstance(found, OverlaidIncidence):
            adjacency.followed_from(tables, step.direction, nodes)
        return found

    def access(self, tables: EdgeTables, step: Expand, nodes: float) -> Access:
        """How a step that follows an edge from about this many nodes gets its rows, and why."""
        return choose(
            self.caches.adjacency,
            tables,
            step.direction,
            Kind.NEIGHBOURS if step.edge_variable is None else Kind.INCIDENCE,
            nodes=nodes,
            hops=step.high,
            forced=self.session.settings.expand_access,
        )

    def _access_now(self, tables: EdgeTables, step: Expand, nodes: int) -> Access:
        chosen = self.access(tables, step, nodes)
        self.accesses.setdefault(id(step), chosen)
        return chosen

    def holds(self, owner: NodeType | EdgeType, test: ir.Predicate, ordinals: Ordinals) -> Mask:
        """For which of these entities the predicate is true; never for -1."""
        formula = predicate.normalize(test, owner, self.params, self.now)
        image = self.image(owner)
        if len(ordinals) <= PIECE_ROWS:
            return self._holds(formula, image, ordinals)
        mask = np.empty(len(ordinals), dtype=np.bool_)
        for part in pieces(self, len(ordinals), ()):
            mask[part] = self._holds(formula, image, ordinals[part])
        return mask

    def _holds(self, formula: filters.Formula, image: TableImage, ordinals: Ordinals) -> Mask:
        plain = formula_mask(formula, image, ordinals)
        if plain is not None:
            return plain if not len(ordinals) or ordinals.min() >= 0 else plain & (ordinals >= 0)
        if len(ordinals) > image.extent:
            # Rows share entities. Each is asked once, so that no text is repeated for each of its rows.
            entities = entities_of(ordinals, image.extent)
            by_ordinal = np.zeros(image.extent + 1, dtype=np.bool_)
            by_ordinal[entities] = self._holds(formula, image, entities)
            return by_ordinal[ordinals]
        needed = sorted(filters.columns_of(formula)) or ["id"]
        mask = np.empty(len(ordinals), dtype=np.bool_)
        for part in pieces(self, len(ordinals), [(image, name, ordinals) for name in needed]):
            rows = image.table(needed, ordinals[part])
            mask[part] = predicate.evaluate_formula(formula, rows).to_numpy(zero_copy_only=False)
        return mask & (ordinals >= 0)

    def codes(self, reference: ir.PropertyRef) -> Codes:
        """See `codes_of`; made once for each content of the table."""
        image, column = self.image(reference.owner), reference.prop.name
        key = (image.contents, "codes", column)
        return self.caches.derived.get(key, Codes, lambda: codes_of(image, column))

    def numbers(self, reference: ir.PropertyRef) -> Numbers:
        """See `numbers_of`; made once for each content of the table."""
        image, column = self.image(reference.owner), reference.prop.name
        key = (image.contents, "numbers", column)
        return self.caches.derived.get(key, Numbers, lambda: numbers_of(image, column))
