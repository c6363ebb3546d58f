"""How a run gets its rows: decided once, before anything runs, and kept as a value.

The engine runs the value and `explain` prints it, so that both speak of the same ways. A choice never changes
an answer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from omnigraph.arrays.pair_filter import PairFilter
from omnigraph.core.events import listening
from omnigraph.engine.edges.choice import (
    IN_MEMORY,
    Kind,
    choose,
    follow_edges,
    follow_neighbours,
    nodes_asked,
)
from omnigraph.engine.edges.overlay import OverlaidIncidence, OverlaidNeighbours
from omnigraph.engine.edges.traverse import Neighbours
from omnigraph.engine.search.choice import search_choice
from omnigraph.planning import filters, predicate, steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from omnigraph.arrays.types import Ordinals
    from omnigraph.engine.edges.choice import Access
    from omnigraph.engine.edges.endpoints import EdgeTables
    from omnigraph.engine.edges.traverse import AnyIncidence, AnyNeighbours
    from omnigraph.engine.read.chains import ChainAccess
    from omnigraph.engine.read.prepared import Prepared
    from omnigraph.engine.read.reading import Reading
    from omnigraph.engine.search.choice import Access as SearchAccess
    from omnigraph.planning.access import Choice
    from omnigraph.planning.filters import FilterText

SCANNED_IN_MEMORY_ROWS_MAX: Final = 200_000
"""Up to this size a filter runs over columns in memory; above it only when they are there already."""

FILTERED_SHARE: Final = 8
"""A filter of all pairs is made for one row in so many of them, at least."""

NO_ORDINALS: Final[Ordinals] = np.empty(0, dtype=np.int64)


class ScanPath(StrEnum):
    """The ways to find the nodes that a scan binds."""

    ALL = "all rows"
    KEY = "key index"
    MEMORY = "columns in memory"
    FILTER = "a scan of the columns"


class ScanAccess(NamedTuple):
    """The way of one scan."""

    path: ScanPath
    rows: int = 0
    """The rows of the table."""
    columns: frozenset[str] = frozenset()
    """The columns the test reads."""
    filter: FilterText | None = None
    """The test, for the table format."""
    indexes: tuple[str, ...] = ()
    """The indexes of the table that can answer the test."""

    @property
    def how(self) -> str:
        """Its name."""
        match self.path:
            case ScanPath.ALL | ScanPath.KEY:
                return self.path.value
            case ScanPath.MEMORY:
                return f"{self.path.value} ({', '.join(sorted(self.columns))})"
            case ScanPath.FILTER:
                return "index " + "; ".join(self.indexes) if self.indexes else self.path.value

    @property
    def why(self) -> str:
        """The reason it is taken."""
        match self.path:
            case ScanPath.ALL:
                return "nothing restricts it"
            case ScanPath.KEY:
                return "the key is given"
            case ScanPath.MEMORY:
                return f"{self.rows} rows"
            case ScanPath.FILTER:
                return f"filter {self.filter}"


ALL_ROWS: Final = ScanAccess(ScanPath.ALL)
BY_KEY: Final = ScanAccess(ScanPath.KEY)


class Accesses(NamedTuple):
    """How every step and every search of one run gets its rows. A tuple, for a point read makes one."""

    chain: ChainAccess | None
    """What the run begins with, over lists."""
    folded: steps.Expand | None
    """The last hop, when it is counted and summed without being made."""
    scans: Mapping[steps.Scan, ScanAccess]
    """The ways of scans, except that of a chain, which is by key."""
    expands: Mapping[steps.Expand, Choice[Access]]
    """The ways edges are followed, except in a chain, where they are in memory."""
    searches: Mapping[int, Choice[SearchAccess]]
    """By the identity of the search."""


_NO_SCANS: Final[Mapping[steps.Scan, ScanAccess]] = {}
_NO_EXPANDS: Final[Mapping[steps.Expand, Choice[Access]]] = {}
_NO_SEARCHES: Final[Mapping[int, Choice[SearchAccess]]] = {}


def decide(reading: Reading, prepared: Prepared) -> Accesses:
    """Everything this run will do to get its rows. Cost: metadata of the tables it names, at most."""
    chain = None if prepared.chain is None else prepared.chain.access(reading)
    done = 0 if chain is None else 1 + len(chain.indexes)
    if done == len(prepared.steps) and not prepared.searches:
        return Accesses(chain, None, _NO_SCANS, _NO_EXPANDS, _NO_SEARCHES)
    scans: dict[steps.Scan, ScanAccess] = {}
    expands: dict[steps.Expand, Choice[Access]] = {}
    for step in _walk(prepared.steps[done:]):
        if isinstance(step, steps.Scan):
            scans[step] = _scan_access(reading, step)
        elif isinstance(step, steps.Expand):
            expands[step] = _expand_choice(reading, step)
    folded = steps.folded_hop(prepared.plan, prepared.steps[done:]) if prepared.plan.is_aggregate else None
    searches = {id(search): search_choice(reading, search) for search in prepared.searches}
    return Accesses(chain, folded, scans, expands, searches)


def _walk(sequence: Iterable[steps.Step]) -> Iterator[steps.Step]:
    for step in sequence:
        yield step
        yield from _walk(steps.inner_steps(step))


def run_chain(reading: Reading, prepared: Prepared, access: ChainAccess) -> tuple[int, list[int]]:
    """How many steps a chain did, and the nodes after them."""
    if reading.trace is None:
        counts, nodes = access.chain.run(reading, access.indexes)
    else:
        with reading.measured(access) as done:
            counts, nodes = access.chain.run(reading, access.indexes)
            done(len(nodes))
    if listening():
        _tell(reading, prepared.steps, access, counts)
    return len(counts), nodes


def _tell(reading: Reading, sequence: Sequence[steps.Step], access: ChainAccess, counts: list[int]) -> None:
    """Note what a chain did, and each of its steps that met a node."""
    if reading.trace is not None:
        reading.trace.chained = counts
    if access.steps > 1:
        reading.took(access, access)
    for number, step in enumerate(sequence[: len(counts)]):
        if isinstance(step, steps.Scan):
            reading.took(step, BY_KEY)
        elif isinstance(step, steps.Expand) and counts[number - 1]:
            reading.took(step, IN_MEMORY.at(counts[number - 1]))


# Scans ---------------------------------------------------------------------------------------------------


def _scan_access(reading: Reading, step: steps.Scan) -> ScanAccess:
    if step.test is None:
        return ALL_ROWS
    if step.key is not None and reading.value(step.key) is not None:
        return BY_KEY
    image = reading.image(step.node)
    formula = predicate.normalize(step.test, step.node, reading.params, reading.now)
    needed = filters.columns_of(formula)
    few = image.row_count <= SCANNED_IN_MEMORY_ROWS_MAX
    # A filter of the table format names columns as they are stored.
    if few or image.handle.view is not None or needed <= image.cached:
        return ScanAccess(ScanPath.MEMORY, image.row_count, needed)
    indexes = tuple(
        f"{index.name}, {len(index.uncovered)} fragments uncovered" if index.uncovered else index.name
        for column in sorted(needed)
        for index in image.indexes(column)
        if index.kind.upper() == "BTREE"
    )
    return ScanAccess(ScanPath.FILTER, image.row_count, needed, filters.filter_text(formula), indexes)


def scanned(reading: Reading, step: steps.Scan) -> Ordinals:
    """The ordinals of the live nodes that a scan binds, ascending."""
    access, image = reading.accesses.scans[step], reading.image(step.node)
    reading.took(step, access)
    match access.path:
        case ScanPath.ALL:
            return image.live()
        case ScanPath.KEY:
            assert step.key is not None  # noqa: S101 - it decided so
            ordinal = image.find_one(str(reading.value(step.key)))
            if ordinal < 0:
                return NO_ORDINALS
            found = np.array([ordinal], dtype=np.int64)
            return found if step.rest is None else found[reading.holds(step.node, step.rest, found)]
        case ScanPath.MEMORY:
            assert step.test is not None  # noqa: S101 - without one all rows are taken
            live = image.live()
            return live[reading.holds(step.node, step.test, live)]
        case ScanPath.FILTER:
            assert access.filter is not None  # noqa: S101 - it was made with one
            return image.select(access.filter)


# Edges ---------------------------------------------------------------------------------------------------


def _expand_choice(reading: Reading, step: steps.Expand) -> Choice[Access]:
    return choose(
        reading.caches.adjacency,
        reading.edge_tables(step.edge),
        step.direction,
        Kind.NEIGHBOURS if step.edge_variable is None else Kind.INCIDENCE,
        hops=step.high,
        forced=reading.session.settings.expand_access,
    )


def neighbours(reading: Reading, step: steps.Expand, nodes: int) -> AnyNeighbours:
    """The distinct neighbours of nodes, for a step that follows an edge from this many of them."""
    adjacency, tables = reading.caches.adjacency, reading.edge_tables(step.edge)
    access, beyond = _way(reading, tables, step, nodes)
    found = follow_neighbours(adjacency, tables, step.direction, access, lambda: reading.took(step, beyond))
    if isinstance(found, OverlaidNeighbours):
        adjacency.followed_from(tables, step.direction, nodes)
    return found


def incidence(reading: Reading, step: steps.Expand, nodes: int) -> AnyIncidence:
    """The edges of nodes, for a step that follows them from this many nodes."""
    adjacency, tables = reading.caches.adjacency, reading.edge_tables(step.edge)
    access, beyond = _way(reading, tables, step, nodes)
    found = follow_edges(adjacency, tables, step.direction, access, lambda: reading.took(step, beyond))
    if isinstance(found, OverlaidIncidence):
        adjacency.followed_from(tables, step.direction, nodes)
    return found


def pair_filter(reading: Reading, step: steps.Expand, index: AnyNeighbours, rows: int) -> PairFilter | None:
    """What spares most pairs the search when this many rows ask whether they are connected; None where the
    rows are too few to make it for them.
    """
    if not isinstance(index, Neighbours):
        return None
    tables, derived = reading.edge_tables(step.edge), reading.caches.derived
    key = (tables.key(), "pairs", step.direction)
    if rows * FILTERED_SHARE < len(index.tails) and not derived.has(key):
        return None

    def make() -> PairFilter:
        heads = np.repeat(np.arange(len(index.offsets) - 1, dtype=np.int64), np.diff(index.offsets))
        return PairFilter.of(heads, index.tails, tables.tails(step.direction).extent)

    return derived.get(key, PairFilter, make)


def _way(reading: Reading, tables: EdgeTables, step: steps.Expand, nodes: int) -> tuple[Access, Access]:
    """The way an edge is followed from this many nodes, and the way when more are met than expected."""
    choice = reading.accesses.expands.get(step, IN_MEMORY)
    access = beyond = choice.ways[-1][1]
    if len(choice.ways) > 1:
        access = choice.at(nodes_asked(tables, step.direction, nodes, step.high))
    reading.took(step, access)
    return access, beyond
