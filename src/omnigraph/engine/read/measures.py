"""What is known of the data when a query is planned: rows, degrees, values, from the structures that exist.

Nothing is built for it. Numbers of rows are those of the snapshot. How the edges are distributed over the
nodes is known where their adjacency is in memory; what values a property has, where its column is, or where
the table is so small that a filter reads the column anyway. Elsewhere shares are guessed.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.edges.overlay import OverlaidNeighbours
from omnigraph.engine.edges.traverse import Neighbours
from omnigraph.engine.read.access import SCANNED_IN_MEMORY_ROWS_MAX
from omnigraph.engine.read.encoded import Codes, codes_of
from omnigraph.language.query_tree import Operator
from omnigraph.planning import ir
from omnigraph.planning.mentions import columns_in
from omnigraph.planning.order import by_cost
from omnigraph.planning.steps import Direction, Expand, Scan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.catalog.schema import EdgeType, NodeType
    from omnigraph.engine.read.reading import Reading
    from omnigraph.planning.steps import Move, Step

EQUAL_SHARE: Final = 0.1
OTHER_SHARE: Final = 0.33
"""Shares of rows that a test is guessed to keep where nothing is known of its values."""
GUESSED_MEMBERS: Final = 8
"""How many values a list in a parameter is guessed to have."""
_LESS: Final = frozenset({Operator.LT, Operator.LE})
_MORE: Final = frozenset({Operator.GT, Operator.GE})


def _uncounted(_: int) -> None:
    """Takes the size of what is counted here."""


@dataclass(frozen=True, slots=True, eq=False)
class Degrees:
    """How the edges of one type are distributed over the nodes they start from, in one direction."""

    pairs: int
    """Distinct pairs of connected nodes."""
    heads: int
    """Nodes with an edge."""
    most: int
    """The most neighbours of one node."""
    reached: float
    """The mean over edges: how many neighbours a node has that an edge led to."""
    nbytes: int = 64

    @staticmethod
    def of(index: Neighbours | OverlaidNeighbours) -> Degrees:
        """Those of an index, and of what was committed since it was made. Cost: one pass over its nodes."""
        base = index.base if isinstance(index, OverlaidNeighbours) else index
        lengths = np.diff(base.offsets)
        if isinstance(index, OverlaidNeighbours):
            nodes = index.touched.nodes
            before = index.heads.to_base(nodes)
            lengths[before[before >= 0]] = 0
            lengths[index.heads.old[index.heads.new < 0]] = 0
            rows, _ = index.expand(nodes, _uncounted)
            lengths = np.concatenate([lengths, np.bincount(rows, minlength=len(nodes))])
        pairs = int(lengths.sum())
        # A product of vectors would wake the threads of a linear algebra library, which costs far more.
        reached = float(np.square(lengths, dtype=np.float64).sum()) / pairs if pairs else 0.0
        most = int(lengths.max()) if len(lengths) else 0
        return Degrees(pairs, int(np.count_nonzero(lengths)), most, reached)


def most_of(reading: Reading, step: Expand) -> int | None:
    """The most that one node leads to over an edge, where somebody has counted it at this snapshot."""
    key = (reading.edge_tables(step.edge).key(), "degrees", step.direction)
    found = None if step.edge_variable is not None else reading.caches.derived.peek(key, Degrees)
    return None if found is None else found.most


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """The values of one property."""

    distinct: int
    nulls: float
    """The share of rows without a value."""
    low: float | None
    high: float | None
    """The least and the greatest value, of numbers."""
    nbytes: int = 64


@dataclass(frozen=True, slots=True, eq=False)
class TableMeasures:
    """What is known of the tables at the snapshot of one run."""

    reading: Reading
    reasons: list[str] = field(default_factory=list[str])
    """Why each block was given its order; the outermost first."""

    def rows(self, node: NodeType) -> float:
        """How many nodes of a type there are."""
        return float(self.reading.image(node).row_count)

    def degree(self, edge: EdgeType, direction: Direction, *, reached: bool = False) -> float:
        """How many neighbours a node has; `reached`: a node that an edge of the same type led to."""
        known = self.degrees(edge, direction)
        if known is not None and reached:
            return known.reached
        tables = self.reading.edge_tables(edge)
        pairs = float(tables.edges.row_count) if known is None else float(known.pairs)
        if direction is Direction.EITHER and known is None:
            pairs *= 2
        return pairs / max(tables.heads(direction).row_count, 1)

    def degrees(self, edge: EdgeType, direction: Direction) -> Degrees | None:
        """How the edges are distributed at this snapshot, where their adjacency is in memory."""
        tables, caches = self.reading.edge_tables(edge), self.reading.caches
        key = (tables.key(), "degrees", direction)
        found = caches.derived.peek(key, Degrees)
        if found is not None:
            return found
        index: Any = caches.adjacency.ready_neighbours(tables, direction)
        if not isinstance(index, Neighbours | OverlaidNeighbours):
            return None
        return caches.derived.get(key, Degrees, lambda: Degrees.of(index))

    def share(self, node: NodeType | EdgeType, test: ir.Predicate | None) -> float:
        """The share of the entities of a type for which a test is true."""
        match test:
            case None:
                return 1.0
            case ir.And():
                return float(np.prod([self.share(node, part) for part in test.parts]))
            case ir.Or():
                return min(sum(self.share(node, part) for part in test.parts), 1.0)
            case ir.Not():
                return 1.0 - self.share(node, test.part)
            case ir.Compare():
                return self._compared(node, test)
            case ir.OneOf():
                spread = self.spread(node, test.property)
                each = EQUAL_SHARE if spread is None else 1.0 / max(spread.distinct, 1)
                # A list may have another length in the next run of the same plan.
                members = GUESSED_MEMBERS if isinstance(test.values, ir.Param) else len(test.values)
                return min(members * each, 1.0)
            case ir.IsNull():
                spread = self.spread(node, test.property)
                nulls = EQUAL_SHARE if spread is None else spread.nulls
                return 1.0 - nulls if test.negated else nulls

    def _compared(self, node: NodeType | EdgeType, test: ir.Compare) -> float:
        if test.op is Operator.EQ and getattr(node, "key", None) == (test.property,):
            return 1.0 / max(self.reading.image(node).row_count, 1)
        spread = self.spread(node, test.property)
        if spread is None:
            return EQUAL_SHARE if test.op is Operator.EQ else OTHER_SHARE
        if test.op is Operator.EQ:
            return (1.0 - spread.nulls) / max(spread.distinct, 1)
        if test.op is Operator.NE:
            return (1.0 - spread.nulls) * (1.0 - 1.0 / max(spread.distinct, 1))
        # A parameter may be another value in the next run of the same plan.
        value = test.value.value if isinstance(test.value, ir.Literal) else None
        if spread.low is None or spread.high is None or not isinstance(value, int | float):
            return OTHER_SHARE
        width = max(spread.high - spread.low, 1e-9)
        below = min(max((value - spread.low) / width, 0.0), 1.0)
        if test.op in _LESS:
            return below
        return 1.0 - below if test.op in _MORE else OTHER_SHARE

    def spread(self, owner: NodeType | EdgeType, column: str) -> Spread | None:
        """The values of a property, where looking at them costs little."""
        kind = owner.by_name[column].type if column in owner.by_name else None
        image = self.reading.image(owner)
        if kind is None or not kind.is_scalar or not image.row_count:
            return None
        derived, name = self.reading.caches.derived, image.handle.column_identity(column)
        key = (image.contents, "spread", name)
        found = derived.peek(key, Spread)
        if found is not None:
            return found
        if image.row_count > SCANNED_IN_MEMORY_ROWS_MAX and column not in image.cached:
            return None

        def make() -> Spread:
            codes = derived.get((image.contents, "codes", name), Codes, lambda: codes_of(image, column))
            live = image.live()
            mine = codes.codes[live]
            known = mine[mine != codes.codes[-1]]
            nulls = 1.0 - len(known) / max(len(live), 1)
            distinct = int(np.count_nonzero(np.bincount(known)))  # rows that are gone have codes as well
            numbers = image.numbers(column) if kind.is_numeric else None
            low = high = None
            if numbers is not None and len(live):
                values, present = numbers.gather(live)
                values = values if present is None else values[present]
                low, high = (float(values.min()), float(values.max())) if len(values) else (None, None)
            return Spread(distinct, nulls, low, high)

        return derived.get(key, Spread, make)

    def known_of(self, step: Step) -> list[str]:
        """What an estimate of a step is made from, in words; nothing where it is a guess."""
        match step:
            case Expand():
                return self._known_degrees(step)
            case Scan() if step.key is None and step.test is not None:
                return [
                    known
                    for column in sorted(columns_in(step.test))
                    if (known := self._known_values(step.node, column)) is not None
                ]
            case _:
                return []

    def _known_degrees(self, step: Expand) -> list[str]:
        known, tables = self.degrees(step.edge, step.direction), self.reading.edge_tables(step.edge)
        nodes = tables.heads(step.direction).row_count
        if known is None:
            return [f"{step.edge.name}: {tables.edges.row_count:,} edges, {nodes:,} nodes"]
        named = f"{step.edge.name}: {tables.edges.row_count:,} edges, {known.pairs:,} pairs"
        mean = f"{known.pairs / max(nodes, 1):.1f} each, {known.most:,} at most"
        return [f"{named} from {known.heads:,} of {nodes:,} nodes, {mean}"]

    def _known_values(self, node: NodeType, column: str) -> str | None:
        spread = self.spread(node, column)
        if spread is None:
            return None
        span = "" if spread.low is None else f" from {spread.low:g} to {spread.high:g}"
        nulls = f", {spread.nulls:.0%} null" if spread.nulls else ""
        return f"{node.name}.{column}: {spread.distinct:,} values{span}{nulls}"

    def order(self, block: ir.Block, bound: frozenset[str], wanted: frozenset[str] | None) -> Sequence[Move]:
        """The moves of a block in the cheapest order."""
        chosen = by_cost(block, bound, wanted, self)
        self.reasons.append(chosen.why)
        return chosen.moves

    def cost(self, block: ir.Block, wanted: frozenset[str]) -> float:
        """About how many rows and pairs the cheapest order of a match makes."""
        return by_cost(block, frozenset(), wanted, self).cost

    def state(self, plan: ir.ReadPlan) -> tuple[int, ...]:
        """What an order depends on, coarsely: it is found again when this changes."""
        found: list[int] = []
        for block in plan.match.walk():
            found += [self.reading.image(node.type).row_count.bit_length() for node in block.nodes]
            for hop in block.traversals:
                tables = self.reading.edge_tables(hop.edge)
                adjacency = self.reading.caches.adjacency
                found.append(tables.edges.row_count.bit_length())
                found += [adjacency.is_ready(tables, each, "neighbours") for each in _DIRECTIONS]
        return tuple(found)


_DIRECTIONS: Final = (Direction.FORWARD, Direction.BACKWARD)
