"""How a run gets its rows: decided once, before anything runs, and kept as a value.

The engine runs the value and `explain` prints it, so that both speak of the same ways. A choice never changes
an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

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

NO_ORDINALS: Final[Ordinals] = np.empty(0, dtype=np.int64)


class ScanPath(StrEnum):
    """The ways to find the nodes that a scan binds."""

    ALL = "all rows"
    KEY = "key index"
    MEMORY = "columns in memory"
    FILTER = "filter of the table"


@dataclass(frozen=True, slots=True)
class ScanAccess:
    """The way of one scan."""

    path: ScanPath
    how: str
    why: str
    key: str = ""
    """Of a key index: what is looked up."""
    filter: FilterText | None = None
    """Of a filter: its text, for the table format."""


@dataclass(frozen=True, slots=True, eq=False)
class Accesses:
    """How every step and every search of one run gets its rows."""

    chain: ChainAccess | None = None
    """What the run begins with, over lists."""
    folded: steps.Expand | None = None
    """The last hop, when it is counted and summed without being made."""
    scans: Mapping[steps.Scan, ScanAccess] = field(default_factory=dict[steps.Scan, ScanAccess])
    expands: Mapping[steps.Expand, Choice[Access]] = field(
        default_factory=dict[steps.Expand, "Choice[Access]"]
    )
    searches: Mapping[int, Choice[SearchAccess]] = field(default_factory=dict[int, "Choice[SearchAccess]"])
    """By the identity of the search."""

    def scan(self, step: steps.Scan) -> ScanAccess:
        """The way of a scan. Only that of a chain has none of its own: it begins at a key."""
        found = self.scans.get(step)
        return by_key("" if self.chain is None else self.chain.key) if found is None else found

    def expand(self, step: steps.Expand) -> Choice[Access]:
        """The choice of a step that follows an edge. Those of a chain are in memory."""
        return self.expands.get(step, IN_MEMORY)


def decide(reading: Reading, prepared: Prepared) -> Accesses:
    """Everything this run will do to get its rows. Cost: metadata of the tables it names, at most."""
    chain = None if prepared.chain is None else prepared.chain.access(reading)
    done = 0 if chain is None else chain.steps
    if done == len(prepared.steps) and not prepared.searches:
        return Accesses(chain)
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
    with reading.measured(access) as done:
        counts, nodes = access.chain.run(reading, access)
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
            reading.took(step, by_key(access.key))
        elif isinstance(step, steps.Expand) and counts[number - 1]:
            reading.took(step, IN_MEMORY.at(counts[number - 1]))


# Scans ---------------------------------------------------------------------------------------------------


def _scan_access(reading: Reading, step: steps.Scan) -> ScanAccess:
    if step.test is None:
        return ScanAccess(ScanPath.ALL, ScanPath.ALL, "nothing restricts it")
    key = None if step.key is None else reading.value(step.key)
    if isinstance(key, str):
        return by_key(key)
    image = reading.image(step.node)
    formula = predicate.normalize(step.test, step.node, reading.params, reading.now)
    needed = filters.columns_of(formula)
    if image.row_count <= SCANNED_IN_MEMORY_ROWS_MAX or needed <= image.cached:
        how = f"{ScanPath.MEMORY} ({', '.join(sorted(needed))})"
        return ScanAccess(ScanPath.MEMORY, how, f"{image.row_count} rows")
    indexes = [
        f"{index.name}, {len(index.uncovered)} fragments uncovered" if index.uncovered else index.name
        for column in sorted(needed)
        for index in image.indexes(column)
        if index.kind.upper() == "BTREE"
    ]
    how = "index " + "; ".join(indexes) if indexes else "a scan of the columns"
    text = filters.filter_text(formula)
    return ScanAccess(ScanPath.FILTER, how, f"filter {text}", filter=text)


def by_key(key: str) -> ScanAccess:
    """The way to one node whose key is given."""
    return ScanAccess(ScanPath.KEY, ScanPath.KEY, "the key is given", key)


def scanned(reading: Reading, step: steps.Scan) -> Ordinals:
    """The ordinals of the live nodes that a scan binds, ascending."""
    access, image = reading.accesses.scans[step], reading.image(step.node)
    reading.took(step, access)
    match access.path:
        case ScanPath.ALL:
            return image.live()
        case ScanPath.KEY:
            ordinal = image.find_one(access.key)
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


def _way(reading: Reading, tables: EdgeTables, step: steps.Expand, nodes: int) -> tuple[Access, Access]:
    """The way an edge is followed from so many nodes, and the one where more are met than expected."""
    choice = reading.accesses.expand(step)
    access = beyond = choice.ways[-1][1]
    if len(choice.ways) > 1:
        access = choice.at(nodes_asked(tables, step.direction, nodes, step.high))
    reading.took(step, access)
    return access, beyond
