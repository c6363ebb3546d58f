"""The order in which a match is run: a list of steps for each block, from its clauses alone.

What is bound when decides everything here, never the data, so the steps of a query are made once and kept
with its plan; `explain` prints them and the engine runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, assert_never

from omnigraph.catalog.types import ScalarKind
from omnigraph.language.query_tree import Function, Operator
from omnigraph.planning import ir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.catalog.schema import EdgeType, NodeType

MIRRORED = {
    Operator.EQ: Operator.EQ,
    Operator.NE: Operator.NE,
    Operator.LT: Operator.GT,
    Operator.LE: Operator.GE,
    Operator.GT: Operator.LT,
    Operator.GE: Operator.LE,
}
"""`a op b` is `b MIRRORED[op] a`."""
EXACT_SUMS = frozenset({ScalarKind.I32, ScalarKind.U32})
"""Kinds whose sums are the same in any order: floats hold them exactly."""
_ADDED = frozenset({Function.COUNT, Function.SUM, Function.AVG})


class Direction(StrEnum):
    """Which way an edge is followed."""

    FORWARD = "forward"
    BACKWARD = "backward"
    EITHER = "either"


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """Bind a variable to the nodes of its type for which `test` is true, with every working row.

    `key` is the value that the test pins the node's id to, if it does; `rest` what it asks beside that.
    """

    variable: str
    node: NodeType
    test: ir.Predicate | None
    key: ir.ValueExpr | None = None
    rest: ir.Predicate | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Expand:
    """Follow an edge from a bound variable: one working row for each distinct node within the hops.

    With `edge_variable` one for each edge. `closes`: the end is bound as well, so rows are kept or dropped.
    """

    edge: EdgeType
    start: str
    end: str
    direction: Direction
    low: int
    high: int
    edge_variable: str | None
    closes: bool
    backward: bool
    """Whether it starts where the paths of the pattern end."""
    node: NodeType | None
    """The type of the end variable when this step binds and tests it."""
    test: ir.Predicate | None

    @property
    def single(self) -> bool:
        """Whether it is exactly one hop."""
        return self.low == 1 and self.high == 1

    @property
    def binds(self) -> tuple[str, ...]:
        """The variables that rows have once it has run."""
        return (self.end,) if self.edge_variable is None else (self.end, self.edge_variable)


@dataclass(frozen=True, slots=True, eq=False)
class Nothing:
    """No path can have that many hops: no row survives, the variables are bound."""

    binds: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Test:
    """Keep the rows whose node, bound outside this block, satisfies the inline matches."""

    variable: str
    node: NodeType
    test: ir.Predicate


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """Keep the rows for which a condition is true."""

    condition: ir.Condition


@dataclass(frozen=True, slots=True, eq=False)
class Maybe:
    """Join the inner steps where they match; elsewhere the new variables are null."""

    steps: tuple[Step, ...]
    binds: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Without:
    """Drop the rows for which the inner steps match, asked once per combination of what they mention."""

    steps: tuple[Step, ...]
    mentions: tuple[str, ...]


_BLOCKS = (Maybe, Without)
Step: TypeAlias = Scan | Expand | Nothing | Test | Filter | Maybe | Without


def inner_steps(step: Step) -> tuple[Step, ...]:
    """The steps inside an optional or negated block."""
    return step.steps if isinstance(step, _BLOCKS) else ()


def steps_of(block: ir.Block, bound: frozenset[str] = frozenset()) -> tuple[Step, ...]:
    """The steps of a block whose enclosing rows have the variables `bound`."""
    return tuple(_Maker(block, set(bound)).make())


def needed_after(steps: Sequence[Step], at_end: frozenset[str]) -> tuple[frozenset[str], ...]:
    """For each step, the variables that a later step reads, or that are wanted at the end."""
    needed: list[frozenset[str]] = []
    for step in reversed(steps):
        needed.append(at_end)
        at_end |= _read_by(step)
    return tuple(reversed(needed))


def _read_by(step: Step) -> frozenset[str]:
    match step:
        case Scan() | Nothing():
            return frozenset()
        case Expand():
            return frozenset({step.start, step.end} if step.closes else {step.start})
        case Test():
            return frozenset({step.variable})
        case Filter():
            return ir.variables_of(step.condition)
        case Maybe():
            return frozenset[str]().union(*(_read_by(inner) for inner in step.steps))
        case Without():
            return frozenset(step.mentions)
        case _:
            assert_never(step)


def folded_hop(plan: ir.ReadPlan, steps: Sequence[Step]) -> Expand | None:
    """The last hop, when the entries of its index are counted and summed instead of becoming rows.

    Holds when the end and the edge are only counted, or summed as 32-bit integers, whose sums do not depend
    on the order.
    """
    step = steps[-1] if steps else None
    if not isinstance(step, Expand) or step.closes or not step.single or step.test is not None:
        return None
    made = {step.end, step.edge_variable}
    for shown in (*plan.columns, *plan.order):
        expression = shown.expression
        if isinstance(expression, ir.Aggregate):
            if not _adds_up(expression):
                return None
        elif not isinstance(expression, ir.ColumnRef) and ir.variables_of(expression) & made:
            return None
    return step


def _adds_up(aggregate: ir.Aggregate) -> bool:
    """Whether it is a count, or an exact sum in any order."""
    argument = aggregate.argument
    if aggregate.function is Function.COUNT and isinstance(argument, ir.NodeRef):
        return True
    if not isinstance(argument, ir.PropertyRef) or not argument.type.is_scalar:
        return False
    return argument.type.kind in EXACT_SUMS and aggregate.function in _ADDED


class _Maker:
    """Collects the steps of one block while its variables become bound."""

    def __init__(self, block: ir.Block, bound: set[str]) -> None:
        self.block = block
        self.bound = bound
        self.steps: list[Step] = []
        self.waiting: list[ir.Condition] = []

    def make(self) -> list[Step]:
        block = self.block
        for node in block.nodes:
            if node.outer and node.matches is not None:
                self.steps.append(Test(node.name, node.type, node.matches))
        later = frozenset[str]().union(*(inner.binds for inner in block.optionals))
        self.waiting = [c for c in block.conditions if not (ir.variables_of(c) & later)]
        self._filter()
        pending = list(block.traversals)
        while pending or any(node.name not in self.bound for node in block.nodes):
            ready = next((t for t in pending if t.source in self.bound or t.target in self.bound), None)
            if ready is None:
                self._scan(pending)
            else:
                pending.remove(ready)
                self._expand(ready)
            self._filter()
        for inner in block.optionals:
            self.steps.append(Maybe(steps_of(inner, frozenset(self.bound)), inner.binds))
            self.bound.update(inner.binds)
        self.waiting = [c for c in block.conditions if ir.variables_of(c) & later]
        self._filter()
        for inner in block.negations:
            mentions = tuple(sorted(name for name in inner.outer if name in self.bound))
            self.steps.append(Without(steps_of(inner, frozenset(mentions)), mentions))
        return self.steps

    def _filter(self) -> None:
        """Apply the conditions whose variables are all bound."""
        for condition in list(self.waiting):
            if ir.variables_of(condition) <= self.bound:
                self.waiting.remove(condition)
                self.steps.append(Filter(condition))

    def _scan(self, pending: Sequence[ir.Traversal]) -> None:
        """Bind one more variable where no traversal leads on, with all that the scan can answer itself."""
        root = self._root(pending)
        pushed, self.waiting = _pushable(root, self.waiting)
        parts = _flat([*([root.matches] if root.matches is not None else []), *pushed])
        self.bound.add(root.name)
        self.steps.append(_scan_of(root, parts))

    def _root(self, pending: Sequence[ir.Traversal]) -> ir.NodeVariable:
        """The variable to scan next: the most selective declared one, else the source of a traversal."""
        unbound = [node for node in self.block.nodes if node.name not in self.bound]
        declared = [node for node in unbound if node.declared]
        if declared:
            return min(declared, key=lambda node: _selectivity(node, self.waiting))
        for traversal in pending:
            found = next((node for node in unbound if node.name == traversal.source), None)
            if found is not None:
                return found
        return unbound[0]

    def _expand(self, hop: ir.Traversal) -> None:
        if hop.is_empty:
            self.steps.append(Nothing(hop.ends))
            self.bound.update(hop.ends)
            return
        both = hop.source in self.bound and hop.target in self.bound
        high = hop.high if hop.edge.source == hop.edge.target else 1
        forward = hop.source in self.bound
        start, end = (hop.source, hop.target) if forward else (hop.target, hop.source)
        node = None if both else self.block.node(end)
        one_way = Direction.FORWARD if forward else Direction.BACKWARD
        self.steps.append(
            Expand(
                edge=hop.edge,
                start=start,
                end=end,
                direction=Direction.EITHER if hop.undirected else one_way,
                low=hop.low,
                high=high,
                edge_variable=hop.edge_variable,
                closes=both,
                backward=not forward,
                node=None if node is None else node.type,
                test=None if node is None else node.matches,
            )
        )
        self.bound.update(hop.ends)
        if hop.edge_variable is not None:
            self.bound.add(hop.edge_variable)


def _scan_of(root: ir.NodeVariable, parts: list[ir.Predicate]) -> Scan:
    test = _all_of(parts)
    position = next((at for at, part in enumerate(parts) if _pins_key(root.type, part)), None)
    if position is None:
        return Scan(root.name, root.type, test)
    pin = parts[position]
    assert isinstance(pin, ir.Compare)  # noqa: S101 - only a comparison pins
    return Scan(root.name, root.type, test, pin.value, _all_of(parts[:position] + parts[position + 1 :]))


def _all_of(parts: list[ir.Predicate]) -> ir.Predicate | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else ir.And(tuple(parts))


def _pins_key(node: NodeType, test: ir.Predicate) -> bool:
    """Whether the test is an equality with a String key, whose text is the node's id."""
    return (
        isinstance(test, ir.Compare)
        and test.op is Operator.EQ
        and node.key == (test.property,)
        and node.by_name[test.property].type.kind is ScalarKind.STRING
    )


def _pushable(
    node: ir.NodeVariable, conditions: Sequence[ir.Condition]
) -> tuple[list[ir.Predicate], list[ir.Condition]]:
    """The conditions that a scan of this variable can answer itself, as predicates; and the others."""
    pushed: list[ir.Predicate] = []
    rest: list[ir.Condition] = []
    for condition in conditions:
        test = as_predicate(node.name, condition)
        if test is None:
            rest.append(condition)
        else:
            pushed.append(test)
    return pushed, rest


def as_predicate(variable: str, condition: ir.Condition) -> ir.Predicate | None:
    """A condition that compares one property of the variable with a constant, as a predicate on its type."""
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


def constant_test(condition: ir.Comparison) -> tuple[ir.PropertyRef, ir.Predicate] | None:
    """A comparison of a property with a constant, as the property and the predicate on its type."""
    for operand in (condition.left, condition.right):
        if isinstance(operand, ir.PropertyRef):
            test = as_predicate(operand.variable, condition)
            return None if test is None else (operand, test)
    return None


def _flat(tests: list[ir.Predicate]) -> list[ir.Predicate]:
    return [part for test in tests for part in (test.parts if isinstance(test, ir.And) else (test,))]


def _selectivity(node: ir.NodeVariable, waiting: Sequence[ir.Condition]) -> int:
    """How early to scan a variable: its key is pinned, it is restricted at all, it is not."""
    pushed, _ = _pushable(node, waiting)
    tests = _flat([*([node.matches] if node.matches is not None else []), *pushed])
    for test in tests:
        if not isinstance(test, ir.Compare) or test.op is not Operator.EQ:
            continue
        if node.type.key == (test.property,):
            return 0
    return 1 if tests else 2
