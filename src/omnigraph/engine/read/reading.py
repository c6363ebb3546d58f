"""What one run of a read query has at hand: tables at one snapshot, parameter values, and its limits."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from omnigraph.core.errors import TypeAbsentAtSnapshot
from omnigraph.core.events import PathTaken, emit, listening
from omnigraph.core.ids import TableKey
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.edges.adjacency import EdgeTables
from omnigraph.engine.edges.traverse import Neighbours
from omnigraph.engine.read.chains import ChainAccess
from omnigraph.engine.read.encoded import Codes, codes_of
from omnigraph.engine.read.formulas import formula_mask
from omnigraph.engine.read.frame import entities_of
from omnigraph.engine.read.pieces import PIECE_ROWS, pieces
from omnigraph.planning import filters, ir, predicate
from omnigraph.planning.explain import operand_text, title_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Mask, Ordinals
    from omnigraph.catalog.schema import EdgeType, NodeType
    from omnigraph.engine.edges.traverse import AnyNeighbours
    from omnigraph.engine.read.access import Accesses
    from omnigraph.engine.read.caches import ReadCaches, View
    from omnigraph.engine.read.explain import Trace
    from omnigraph.engine.read.limits import Limits
    from omnigraph.engine.read.paths import PathsFound
    from omnigraph.engine.search.evaluate import Fused
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.tables.images import TableImage
    from omnigraph.manifest.state import Snapshot
    from omnigraph.planning.access import Way
    from omnigraph.planning.steps import Direction, Step
    from omnigraph.planning.values import Value

INDEX_AT_HAND_SECONDS: Final = 1.0
"""How long a view uses an index without telling the cache."""


def _forget(_: int) -> None:
    """Takes a count that nobody asked for."""


_UNMEASURED: Final = nullcontext[Callable[[int], None]](_forget)


def _named(subject: Step | ir.SearchExpr | ChainAccess) -> str:
    match subject:
        case ChainAccess():
            return subject.title
        case ir.Search() | ir.Nearest() | ir.Bm25():
            return operand_text(subject)
        case _:
            return title_of(subject)[1]


@dataclass(slots=True, eq=False)
class Searched:
    """What the searches of one run have found so far."""

    vectors: Mapping[tuple[str, int], NDArray[np.float32]]
    """The embedded texts, by text and dimension."""
    matched: dict[int, tuple[Ordinals, Mask | None]] = field(
        default_factory=dict[int, "tuple[Ordinals, Mask | None]"]
    )
    """The rows of text searches, by the identity of the search."""
    fused: dict[ir.Rrf, Fused] = field(default_factory=dict[ir.Rrf, "Fused"])
    """The fused rankings, over the rows before any is cut off."""


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
    paths: dict[str, PathsFound] | None = None
    """The paths that were found so far, by variable."""
    accesses: Accesses = field(init=False)
    """How the run gets its rows; decided before it begins (`engine.read.access`)."""
    searched: Searched = field(init=False)
    """Only where the query searches."""

    def aside(self, others: int) -> Reading:
        """The same run for a thread of so many, with limits of its own and its share of the memory."""
        beside = copy(self)
        beside.limits = replace(self.limits, memory_bytes_max=self.limits.memory_bytes_max // others)
        return beside

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
            # Two threads may make an image at once; only one of them counts, because their ordinals need not
            # agree.
            found = self.view.images.setdefault(
                key, self.caches.image(self.session, entry, self.view.columns.get(entry.table_key))
            )
        return found

    def edge_tables(self, edge: EdgeType) -> EdgeTables:
        """An edge table with its endpoint tables."""
        key, nodes = edge.table_key, self.view.catalog.nodes
        found = self.view.edge_tables.get(key)
        if found is None:
            found = self.view.edge_tables[key] = EdgeTables(
                edges=self.image(edge),
                sources=self.image(nodes[edge.source]),
                targets=self.image(nodes[edge.target]),
            )
        return found

    def value(self, expression: ir.ValueExpr) -> Value:
        """What a constant expression stands for in this run."""
        return ir.value_of(expression, self.params, self.now)

    def measured(
        self, subject: Step | ir.Ranking | ChainAccess
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Measure a step when the run is being explained; the callable takes the rows that came out."""
        return _UNMEASURED if self.trace is None else self.trace.step(subject)

    def took(self, subject: Step | ir.SearchExpr | ChainAccess, way: Way) -> None:
        """Note how a step, a search or a chain of steps gets its rows."""
        if self.trace is not None:
            self.trace.took(subject, way)
        if listening():
            emit(PathTaken(_named(subject), way.how))

    def index_at_hand(self, edge: EdgeType, direction: Direction) -> AnyNeighbours | None:
        """The neighbours if they are in memory; finding them costs next to nothing."""
        if self.session.settings.expand_access == "probe":
            return None
        key = (edge.table_key, direction)
        found = self.view.indexes.get(key)
        if found is not None and time.monotonic() < found[1] and (index := found[0]()) is not None:
            return index
        tables = self.edge_tables(edge)
        index = self.caches.adjacency.ready_neighbours(tables, direction)
        if isinstance(index, Neighbours):
            self.view.indexes[key] = (weakref.ref(index), time.monotonic() + INDEX_AT_HAND_SECONDS)
        return index

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
        key = (image.contents, "codes", image.handle.column_identity(column))
        return self.caches.derived.get(key, Codes, lambda: codes_of(image, column))
