"""What one run of a read query has at hand: tables at one snapshot, parameter values, and its limits."""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.catalog.types import arrow_type
from omnigraph.core.cancel import NEVER, Cancellation
from omnigraph.core.errors import Cancelled, DeadlineExceeded, ResourceLimit, TypeAbsentAtSnapshot
from omnigraph.core.ids import TableKey
from omnigraph.engine.edges.adjacency import AdjacencyCache, EdgeTables
from omnigraph.engine.edges.choice import Access, Kind, choose, follow_edges, follow_neighbours
from omnigraph.engine.edges.overlay import OverlaidIncidence, OverlaidNeighbours
from omnigraph.engine.edges.traverse import Neighbours
from omnigraph.engine.plans import PLANS_KEPT_MAX, TEXT_KEPT_CHARS_MAX
from omnigraph.engine.read.chains import Chain, chain_of
from omnigraph.engine.read.formulas import PLAIN_KINDS, formula_mask
from omnigraph.engine.read.frame import entities_of
from omnigraph.engine.read.pieces import PIECE_ROWS, pieces
from omnigraph.engine.tables.column_cache import ColumnCache
from omnigraph.engine.tables.derived import DerivedCache
from omnigraph.engine.tables.images import TableImage
from omnigraph.engine.tables.layout import load_layout
from omnigraph.planning import filters, ir, predicate
from omnigraph.planning.explain import title_of
from omnigraph.planning.params import binder
from omnigraph.planning.steps import needed_after, steps_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Mask, Ordinals
    from omnigraph.catalog.schema import Catalog, EdgeType, NodeType
    from omnigraph.engine.edges.traverse import AnyIncidence, AnyNeighbours
    from omnigraph.engine.read.explain import Trace
    from omnigraph.engine.search.evaluate import Fused
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.tables.layout import Layout
    from omnigraph.manifest.state import Snapshot, TableEntry
    from omnigraph.planning.steps import Direction, Expand, Scan, Step
    from omnigraph.planning.values import Value

COLUMN_SHARE: Final = 0.25
DERIVED_SHARE: Final = 0.25
"""Shares of the cache budget; the key indexes have the rest."""
IMAGES_KEPT_MAX: Final = 512
PREPARED_KEPT_MAX: Final = 512
VIEWS_KEPT_MAX: Final = 16
"""Snapshots whose queries are found without looking anything up; they hold on to images of their tables."""

INDEX_AT_HAND_SECONDS: Final = 1.0
"""How long a view uses an index without telling the cache."""

ORDINAL_BYTES: Final = 8
PAIR_ORDINALS: Final = 2
"""What one pair of a hop takes while it is being made: the row and the node."""

SCANNED_IN_MEMORY_ROWS_MAX: Final = 200_000
"""Up to this size a filter runs over columns in memory; above it only when they are there already."""


References: TypeAlias = "tuple[tuple[str, NodeType | EdgeType, str], ...]"

NO_ORDINALS: Final[Ordinals] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What follows from a plan alone, made once: the steps of its match and the form of its result."""

    plan: ir.ReadPlan
    steps: tuple[Step, ...]
    schema: pa.Schema
    names: tuple[str, ...]
    """The name of each result column."""
    kinds: tuple[pa.DataType, ...]
    """The Arrow type of each result column."""
    needed: tuple[frozenset[str], ...]
    """For each step the variables that are wanted after it."""
    as_set: bool
    """Whether the result is the same however often equal working rows occur."""
    references: References | None
    """Variable, type and column of each result column, when the result is nothing but plain values of the
    working rows, in their order."""
    chain: Chain | None
    """The steps that run over lists while the rows are few."""
    bind: Callable[[Mapping[str, Any] | None], Mapping[str, Value]]
    """What turns the caller's parameters into values."""
    embedded: tuple[ir.Nearest, ...]
    """The comparisons of vectors with a text."""


def prepare(plan: ir.ReadPlan) -> Prepared:
    """Everything about a run of this plan that does not depend on data or parameters."""
    kinds = tuple(arrow_type(column.type) for column in plan.columns)
    fields = [
        pa.field(column.name, kind, nullable=column.nullable)
        for column, kind in zip(plan.columns, kinds, strict=True)
    ]
    steps = steps_of(plan.match)
    needed = needed_after(steps, _returned(plan))
    as_set = plan.distinct and not plan.is_aggregate
    return Prepared(
        plan,
        steps,
        pa.schema(fields),
        tuple(column.name for column in plan.columns),
        kinds,
        needed=needed,
        as_set=as_set,
        references=_references(plan),
        chain=chain_of(steps, needed, as_set=as_set),
        bind=binder(plan),
        embedded=ir.embedded_by(plan),
    )


def _returned(plan: ir.ReadPlan) -> frozenset[str]:
    """The variables that the result is made from."""
    wanted = frozenset[str]().union(*(ir.variables_of(column.expression) for column in plan.columns))
    for key in plan.order:
        if not isinstance(key.expression, ir.ColumnRef):
            wanted |= ir.variables_of(key.expression)
    if plan.ranking is not None:
        wanted |= ir.variables_of(plan.ranking)
    if plan.order or plan.ranking is not None:
        wanted |= frozenset(plan.ties)
    return wanted


def _references(plan: ir.ReadPlan) -> References | None:
    if plan.is_aggregate or plan.order or plan.ranking is not None:
        return None
    if plan.distinct and not (len(plan.columns) == 1 and isinstance(plan.columns[0].expression, ir.NodeRef)):
        return None  # two nodes may have the same values
    found: list[tuple[str, NodeType | EdgeType, str]] = []
    for column in plan.columns:
        match column.expression:
            case ir.NodeRef() as node:
                found.append((node.variable, node.node, "id"))
            case ir.PropertyRef() as reference if (
                reference.type.is_scalar and reference.type.kind in PLAIN_KINDS
            ):
                found.append((reference.variable, reference.owner, reference.prop.name))
            case _:
                return None
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """A column as small numbers, equal exactly where the values are, null being a value."""

    codes: NDArray[np.int32]
    width: int
    """One more than the greatest code."""
    samples: NDArray[np.int64]
    """For each code an ordinal that has it; -1 for null where no row is null."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.codes.nbytes + self.samples.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """A column of numbers as floats; zero where `known` is false."""

    values: NDArray[np.float64]
    known: Mask

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.values.nbytes + self.known.nbytes


def encode(column: Any) -> Codes:
    """The codes of a scalar column and, in one more slot at the end, that of null."""
    if pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))  # both zeros are one value
    encoded = column.dictionary_encode(null_encoding="encode")
    indices = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int32)
    nulls = np.flatnonzero(np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False), dtype=np.bool_))
    width = len(encoded.dictionary)
    null = int(indices[nulls[0]]) if len(nulls) else width
    width = max(width, null + 1)
    samples = np.full(width, -1, np.int64)
    samples[indices[::-1]] = np.arange(len(indices) - 1, -1, -1)  # backwards, so that the first one stays
    return Codes(np.append(indices, np.int32(null)), width, samples)


@dataclass(slots=True)
class Limits:
    """The bounds of one run. `claim` is asked before working rows are made."""

    memory_bytes_max: int
    deadline: float | None = None
    cancellation: Cancellation = NEVER
    peak_bytes: int = 0
    step: Step | None = None
    """The step that runs: a refusal names it."""
    width: int = PAIR_ORDINALS
    """Ordinals that each working row of this step takes, what it is made from included."""
    held_bytes: int = 0
    """What is held while values are fetched: the working rows of a step, the columns of a result."""

    def claim(self, pairs: int) -> None:
        """Refuse working rows beyond the memory limit; notice cancellation and the time limit."""
        size = pairs * ORDINAL_BYTES * self.width
        if size > self.peak_bytes:
            self.claim_bytes(size)
        if self.deadline is not None or self.cancellation is not NEVER:
            self.check()

    def claim_bytes(self, size: int) -> None:
        """Refuse to hold so many bytes at once beyond the memory limit; the refusal says where."""
        if size > self.memory_bytes_max:
            raise ResourceLimit(
                resource="query_memory_bytes",
                limit=self.memory_bytes_max,
                actual=size,
                place="the result" if self.step is None else " ".join(title_of(self.step)),
                hint="narrow the match, or raise OMNIGRAPH_QUERY_MEMORY_BYTES",
            )
        self.peak_bytes = max(self.peak_bytes, size)

    def claim_values(self, size: int) -> None:
        """Refuse values that exceed the memory limit beside what is held; `check` otherwise."""
        self.claim_bytes(self.held_bytes + size)
        self.check()

    def hold(self, size: int) -> None:
        """As `claim_values`, for values that stay until the end of the run."""
        self.claim_values(size)
        self.held_bytes += size

    def check(self) -> None:
        """Notice cancellation and the time limit."""
        if self.cancellation.requested:
            raise Cancelled("the query was cancelled")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise DeadlineExceeded(
                "the query ran longer than its time limit",
                writing=False,
                hint="narrow the match, or raise OMNIGRAPH_QUERY_SECONDS",
            )


@dataclass(slots=True, eq=False)
class View:
    """What the queries of one handle at one snapshot share: found once, right as long as it is kept.

    Thread-safety: may be shared; two threads may find the same thing twice.
    """

    session: GraphSession
    snapshot: Snapshot
    catalog: Catalog
    images: dict[str, TableImage] = field(default_factory=dict[str, TableImage])
    """By table key."""
    queries: dict[tuple[str, str | None], Prepared] = field(
        default_factory=dict[tuple[str, str | None], Prepared]
    )
    """By text and name."""
    indexes: dict[tuple[str, Direction], tuple[weakref.ref[Neighbours], float]] = field(
        default_factory=dict[tuple[str, "Direction"], "tuple[weakref.ref[Neighbours], float]"]
    )
    """Indexes in memory, by edge table and direction, and until when they may be used unasked: the cache must
    hear from time to time that they are in use. They are not held here."""


class ReadCaches:
    """What reads of a process share, all named by the contents of the tables."""

    def __init__(self, cache_bytes: int) -> None:
        self.columns = ColumnCache(int(cache_bytes * COLUMN_SHARE))
        self.derived = DerivedCache(int(cache_bytes * DERIVED_SHARE))
        self.adjacency = AdjacencyCache(self.derived)
        self._images: OrderedDict[tuple[str, str, str], TableImage] = OrderedDict()
        self._prepared: OrderedDict[int, Prepared] = OrderedDict()
        self._layouts: dict[tuple[str, str], Layout] = {}
        self._views: OrderedDict[int, View] = OrderedDict()
        self._lock = threading.Lock()

    def view(self, session: GraphSession, snapshot: Snapshot) -> View:
        """What queries of a handle at a snapshot share. Found by identity: an unchanged branch shows the
        same object again.
        """
        found = self._views.get(id(snapshot))
        if found is not None and found.snapshot is snapshot and found.session is session:
            return found
        made = View(session, snapshot, session.catalog_of(snapshot))
        with self._lock:
            self._views[id(snapshot)] = made
            while len(self._views) > VIEWS_KEPT_MAX:
                self._views.popitem(last=False)
        return made

    def query(self, view: View, text: str, name: str | None) -> Prepared:
        """A query of a text, ready to run at the view's snapshot. Raises as compiling does."""
        found = view.queries.get((text, name))
        if found is None:
            session, snapshot = view.session, view.snapshot
            found = self.prepared(session.plans.read(text, name, view.catalog, snapshot.schema_hash))
            if len(text) <= TEXT_KEPT_CHARS_MAX and len(view.queries) < PLANS_KEPT_MAX:
                view.queries[text, name] = found
        return found

    def prepared(self, plan: ir.ReadPlan) -> Prepared:
        """What follows from a plan. Found by identity: the plan cache hands out one object per query."""
        found = self._prepared.get(id(plan))
        if found is not None and found.plan is plan:
            return found
        made = prepare(plan)
        with self._lock:
            self._prepared[id(plan)] = made
            while len(self._prepared) > PREPARED_KEPT_MAX:
                self._prepared.popitem(last=False)
        return made

    def image(self, session: GraphSession, entry: TableEntry) -> TableImage:
        """The image of one table version; the same object while it is in use."""
        key = (session.root.identity, entry.location, entry.transaction_uuid)
        with self._lock:
            found = self._images.get(key)
            if found is not None and found.handle.version == entry.version:
                self._images.move_to_end(key)
                return found
        place = (session.root.identity, entry.location)
        layout = self._layouts.get(place)
        if layout is None:
            layout = load_layout(session.cache_files, entry.location)
        made = TableImage(
            identity=session.root.identity,
            storage=session.storage,
            handle=session.open_entry(entry),
            keys=session.keys,
            cache=self.columns,
            layout=layout,
        )
        with self._lock:
            self._layouts[place] = made.layout
            self._images[key] = made
            while len(self._images) > IMAGES_KEPT_MAX:
                self._images.popitem(last=False)
        return made


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
        return columns_of(formula), filters.filter_text(formula)

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
        needed = sorted(columns_of(formula)) or ["id"]
        mask = np.empty(len(ordinals), dtype=np.bool_)
        for part in pieces(self, len(ordinals), [(image, name, ordinals) for name in needed]):
            rows = image.table(needed, ordinals[part])
            mask[part] = predicate.evaluate_formula(formula, rows).to_numpy(zero_copy_only=False)
        return mask & (ordinals >= 0)

    def codes(self, reference: ir.PropertyRef) -> Codes:
        """The values of a property as small numbers, by ordinal; the last slot stands for no entity."""
        image = self.image(reference.owner)

        def build() -> Codes:
            column = image.take(reference.prop.name, np.arange(image.extent, dtype=np.int64))
            return encode(column)

        return self.caches.derived.get((image.contents, "codes", reference.prop.name), Codes, build)

    def numbers(self, reference: ir.PropertyRef) -> Numbers:
        """The values of a number property as floats, by ordinal; the last slot stands for no entity."""
        image = self.image(reference.owner)

        def build() -> Numbers:
            ordinals = np.append(np.arange(image.extent, dtype=np.int64), -1)
            column: Any = image.take(reference.prop.name, ordinals)
            known = np.asarray(pc.is_valid(column).to_numpy(zero_copy_only=False), dtype=np.bool_)
            # An integer above 2^53 is rounded, not refused.
            filled = pc.fill_null(column.cast(pa.float64(), safe=False), 0.0)
            return Numbers(np.asarray(filled.to_numpy(zero_copy_only=False)), known)

        return self.caches.derived.get((image.contents, "numbers", reference.prop.name), Numbers, build)


def columns_of(formula: filters.Formula) -> frozenset[str]:
    """The columns a formula reads."""
    match formula:
        case filters.Constant():
            return frozenset()
        case filters.Every() | filters.Some():
            return frozenset[str]().union(*(columns_of(part) for part in formula.parts))
        case _:
            return frozenset({formula.column})
