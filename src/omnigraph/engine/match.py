"""The match of a query: bindings, traversals, conditions, optional and negated blocks, over working rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from omnigraph.engine.adjacency import Direction, EdgeTables
from omnigraph.engine.compare import MIRRORED
from omnigraph.engine.frame import Frame, distinct_rows
from omnigraph.engine.operands import condition_holds
from omnigraph.engine.traverse import connected, expand, expand_edges, reach
from omnigraph.language.query_tree import Operator
from omnigraph.planning import ir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnigraph.catalog.schema import NodeType
    from omnigraph.engine.images import Ordinals
    from omnigraph.engine.reading import Reading


def _numbered(frame: Frame) -> tuple[str, Frame]:
    """The rows with a hidden variable that numbers them, and its name.

    No query can spell the name, and a block inside a block gets another one.
    """
    name = f"#row{len(frame.columns)}"
    return name, frame.bind(name, np.arange(frame.rows, dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Matcher:
    """Runs blocks of one query over working rows."""

    reading: Reading
    nodes: Mapping[str, NodeType]
    """The node types of the schema, by name."""

    def run(self, block: ir.Block, frame: Frame) -> Frame:
        """The rows of `frame` joined with every way to match the block."""
        for node in block.nodes:
            if node.outer and node.matches is not None:
                frame = frame.keep(self.reading.holds(node.type, node.matches, frame[node.name]))
        later = frozenset[str]().union(*(inner.binds for inner in block.optionals))
        waiting = [c for c in block.conditions if not (ir.variables_of(c) & later)]
        frame, waiting = self._conditions(frame, waiting)
        pending = list(block.traversals)
        unbound = [node for node in block.nodes if node.name not in frame]
        while pending or any(node.name not in frame for node in unbound):
            ready = next((t for t in pending if t.source in frame or t.target in frame), None)
            if ready is None:
                frame, waiting = self._enter(block, frame, waiting, pending)
                continue
            pending.remove(ready)
            frame = self._traverse(block, ready, frame)
            frame, waiting = self._conditions(frame, waiting)
        for inner in block.optionals:
            frame = self._optional(inner, frame)
        frame, _ = self._conditions(frame, [c for c in block.conditions if ir.variables_of(c) & later])
        for inner in block.negations:
            frame = self._negation(inner, frame)
        return frame

    def _conditions(self, frame: Frame, conditions: list[ir.Condition]) -> tuple[Frame, list[ir.Condition]]:
        """Apply the conditions whose variables are all bound; give back the others."""
        waiting: list[ir.Condition] = []
        for condition in conditions:
            if all(variable in frame for variable in ir.variables_of(condition)):
                frame = frame.keep(condition_holds(self.reading, condition, frame))
            else:
                waiting.append(condition)
        return frame, waiting

    def _enter(
        self, block: ir.Block, frame: Frame, waiting: list[ir.Condition], pending: list[ir.Traversal]
    ) -> tuple[Frame, list[ir.Condition]]:
        """Bind one more variable by a scan, where no traversal leads on."""
        root = self._root(block, frame, waiting, pending)
        pushed, rest = _pushable(root, waiting)
        tests = [*([root.matches] if root.matches is not None else []), *pushed]
        test = None if not tests else tests[0] if len(tests) == 1 else ir.And(tuple(_flat(tests)))
        ordinals = self.reading.select(root.type, test)
        self.reading.limits.claim(frame.rows * max(len(ordinals), 1))
        return self._conditions(frame.product(root.name, ordinals), rest)

    def _root(
        self, block: ir.Block, frame: Frame, waiting: list[ir.Condition], pending: list[ir.Traversal]
    ) -> ir.NodeVariable:
        """The variable to scan next: the most selective declared one, else the source of a traversal."""
        unbound = [node for node in block.nodes if node.name not in frame]
        declared = [node for node in unbound if node.declared]
        if declared:
            return min(declared, key=lambda node: _selectivity(node, waiting))
        for traversal in pending:
            found = next((node for node in unbound if node.name == traversal.source), None)
            if found is not None:
                return found
        return unbound[0]

    def _traverse(self, block: ir.Block, hop: ir.Traversal, frame: Frame) -> Frame:
        if hop.is_empty:
            return self._bind_nothing(hop, frame)
        if hop.edge_variable is not None:
            return self._traverse_edges(block, hop, frame)
        if hop.source in frame and hop.target in frame:
            return self._close(hop, frame)
        start, end, direction = _orientation(hop, forward=hop.source in frame)
        index = self.reading.caches.adjacency.neighbours(self._tables(hop), direction)
        claim = self.reading.limits.claim
        high = hop.high if hop.edge.source == hop.edge.target else 1
        if hop.low == 1 and high == 1:
            rows, found = expand(index, frame[start], claim)
        else:
            rows, found = reach(index, frame[start], hop.low, high, claim)
        return self._restrict(block, end, frame.take(rows).bind(end, found))

    def _traverse_edges(self, block: ir.Block, hop: ir.Traversal, frame: Frame) -> Frame:
        assert hop.edge_variable is not None  # noqa: S101 - the caller asked
        forward = hop.source in frame
        both = forward and hop.target in frame
        start, end, direction = _orientation(hop, forward=forward)
        index = self.reading.caches.adjacency.incidence(self._tables(hop), direction)
        rows, found, edges = expand_edges(index, frame[start], self.reading.limits.claim)
        wide = frame.take(rows).bind(hop.edge_variable, edges)
        if both:
            return wide.keep(frame[end][rows] == found)
        return self._restrict(block, end, wide.bind(end, found))

    def _close(self, hop: ir.Traversal, frame: Frame) -> Frame:
        """Both ends are bound: keep the rows where the second is reached from the first."""
        tables = self._tables(hop)
        high = hop.high if hop.edge.source == hop.edge.target else 1
        if hop.low == 1 and high == 1:
            direction = Direction.EITHER if hop.undirected else Direction.FORWARD
            index = self.reading.caches.adjacency.neighbours(tables, direction)
            return frame.keep(connected(index, frame[hop.source], frame[hop.target]))
        start, end, direction = _orientation(hop, forward=hop.from_left)
        index = self.reading.caches.adjacency.neighbours(tables, direction)
        rows, found = reach(index, frame[start], hop.low, high, self.reading.limits.claim)
        mask = np.zeros(frame.rows, dtype=np.bool_)
        mask[rows[found == frame[end][rows]]] = True
        return frame.keep(mask)

    def _bind_nothing(self, hop: ir.Traversal, frame: Frame) -> Frame:
        empty = frame.take(np.empty(0, dtype=np.int64))
        for end in hop.ends:
            if end not in empty:
                empty = empty.bind(end, np.empty(0, dtype=np.int64))
        return empty

    def _restrict(self, block: ir.Block, variable: str, frame: Frame) -> Frame:
        node = block.node(variable)
        if node is None or node.matches is None:
            return frame
        return frame.keep(self.reading.holds(node.type, node.matches, frame[variable]))

    def _tables(self, hop: ir.Traversal) -> EdgeTables:
        return self.reading.edge_tables(hop.edge, self.nodes)

    def _optional(self, block: ir.Block, frame: Frame) -> Frame:
        """Join the block where it matches; elsewhere its new variables are null."""
        row, numbered = _numbered(frame)
        matched = self.run(block, numbered)
        missing = np.ones(frame.rows, dtype=np.bool_)
        missing[matched[row]] = False
        rest = numbered.keep(missing) if missing.any() else numbered.take(np.empty(0, dtype=np.int64))
        order = np.argsort(np.concatenate([matched[row], rest[row]]), kind="stable")
        names = [*frame.columns, *block.binds]
        nothing = np.full(rest.rows, -1, dtype=np.int64)
        columns: dict[str, Ordinals] = {
            name: np.concatenate([matched[name], rest.columns.get(name, nothing)])[order] for name in names
        }
        return Frame(len(order), columns)

    def _negation(self, block: ir.Block, frame: Frame) -> Frame:
        """Drop the rows for which the block matches; asked once per combination of what it mentions."""
        mentioned = sorted(name for name in block.outer if name in frame)
        first, member = distinct_rows([frame[name] for name in mentioned], frame.rows)
        asked = frame.only(mentioned).take(first)
        row, numbered = _numbered(asked)
        hit = np.zeros(asked.rows, dtype=np.bool_)
        hit[self.run(block, numbered)[row]] = True
        return frame.keep(~hit[member])


def _orientation(hop: ir.Traversal, *, forward: bool) -> tuple[str, str, Direction]:
    """Where a hop starts, where it ends, and which way the edge is followed."""
    start, end = (hop.source, hop.target) if forward else (hop.target, hop.source)
    if hop.undirected:
        return start, end, Direction.EITHER
    return start, end, Direction.FORWARD if forward else Direction.BACKWARD


def _pushable(
    node: ir.NodeVariable, conditions: list[ir.Condition]
) -> tuple[list[ir.Predicate], list[ir.Condition]]:
    """The conditions that a scan of this variable can answer itself, as predicates; and the others."""
    pushed: list[ir.Predicate] = []
    rest: list[ir.Condition] = []
    for condition in conditions:
        test = _as_predicate(node.name, condition)
        if test is None:
            rest.append(condition)
        else:
            pushed.append(test)
    return pushed, rest


def _as_predicate(variable: str, condition: ir.Condition) -> ir.Predicate | None:
    match condition:
        case ir.Comparison(ir.PropertyRef(variable=owner) as left, op, right) if owner == variable:
            if isinstance(right, ir.Literal | ir.Param | ir.Now):
                return ir.Compare(left.prop.name, op, right)
        case ir.Comparison(left, op, ir.PropertyRef(variable=owner) as right) if owner == variable:
            if isinstance(left, ir.Literal) and isinstance(left.value, tuple) and op is Operator.CONTAINS:
                return ir.OneOf(right.prop.name, left.value)
            if isinstance(left, ir.Literal | ir.Param | ir.Now) and op in MIRRORED:
                return ir.Compare(right.prop.name, MIRRORED[op], left)
        case ir.NullCheck(ir.PropertyRef(variable=owner) as operand, negated) if owner == variable:
            return ir.IsNull(operand.prop.name, negated)
        case _:
            pass
    return None


def _flat(tests: list[ir.Predicate]) -> list[ir.Predicate]:
    return [part for test in tests for part in (test.parts if isinstance(test, ir.And) else (test,))]


def _selectivity(node: ir.NodeVariable, waiting: list[ir.Condition]) -> int:
    """How early to scan a variable: its key is pinned, it is restricted at all, it is not."""
    pushed, _ = _pushable(node, waiting)
    tests = _flat([*([node.matches] if node.matches is not None else []), *pushed])
    for test in tests:
        if not isinstance(test, ir.Compare) or test.op is not Operator.EQ:
            continue
        if node.type.key == (test.property,):
            return 0
    return 1 if tests else 2
