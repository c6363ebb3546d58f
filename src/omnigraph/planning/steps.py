"""The steps of a match: a list for each block, from its clauses and the order in which they are taken.

The written order follows from the clauses alone. Another one may be given (`planning.order` finds the
cheapest by what is known of the data); the rows are the same. `explain` prints the steps and the engine runs
them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from omnigraph.catalog.types import ScalarKind
from omnigraph.core.late_dataclass import dataclass
from omnigraph.language.query_tree import Function, Operator
from omnigraph.planning import ir, mentions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


@dataclass(frozen=True, slots=True, eq=False)
class Intersect:
    """Bind a variable to the nodes that are neighbours of several bound ones at once.

    Each arm is a single hop that would bind the variable alone. The node of every row with the fewest
    neighbours leads on, the other arms are asked whether they have what it leads to.
    """

    end: str
    arms: tuple[Expand, ...]
    node: NodeType | None
    test: ir.Predicate | None

    @property
    def binds(self) -> tuple[str, ...]:
        """The variable that rows have once it has run."""
        return (self.end,)


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """Keep the rows whose ends, both bound, a path connects, with the shortest one.

    `forward` and `backward` follow its edges from either end. They name each edge where `weight`, a property
    of it, is summed up.
    """

    variable: str
    forward: Expand
    backward: Expand
    weight: str | None

    @property
    def binds(self) -> tuple[str, ...]:
        """The variable that rows have once it has run."""
        return (self.variable,)


EDGE_OF_PATH: Final = "#edge"
"""The variable of an edge that a path may have. No query can spell it."""
_BLOCKS = (Maybe, Without)
Step: TypeAlias = Scan | Expand | Intersect | Paths | Nothing | Test | Filter | Maybe | Without
Move: TypeAlias = ir.NodeVariable | ir.Traversal
"""A variable that is scanned, or a traversal that is followed."""
Order: TypeAlias = "Callable[[ir.Block, frozenset[str], frozenset[str] | None], Sequence[Move]]"
"""The moves of a block with these variables bound, of which these are read after it (None: all may be)."""


def inner_steps(step: Step) -> tuple[Step, ...]:
    """The steps inside an optional or negated block, the arms of an intersection, the two ways of a path."""
    if isinstance(step, Intersect):
        return step.arms
    if isinstance(step, Paths):
        return (step.forward, step.backward)
    return step.steps if isinstance(step, _BLOCKS) else ()


def steps_of(
    block: ir.Block,
    bound: frozenset[str] = frozenset(),
    order: Order | None = None,
    wanted: frozenset[str] | None = None,
) -> tuple[Step, ...]:
    """The steps of a block whose enclosing rows have the variables `bound`.

    `wanted` names what is read of the block once it is done, if equal rows may be counted together.
    """
    return tuple(_Maker(block, set(bound), order or _as_written, wanted).make())


def _as_written(block: ir.Block, bound: frozenset[str], _: frozenset[str] | None) -> Sequence[Move]:
    return written_order(block, bound)


def written_order(block: ir.Block, bound: frozenset[str]) -> tuple[Move, ...]:
    """The order that follows from the clauses: the first traversal that touches what is bound; where none
    does, the variable that is restricted most.
    """
    known = set(bound)
    pending = list(block.traversals)
    moves: list[Move] = []
    while pending or any(node.name not in known for node in block.nodes):
        ready = next((t for t in pending if t.source in known or t.target in known), None)
        if ready is None:
            root = _root(block, known, pending)
            known.add(root.name)
            moves.append(root)
        else:
            pending.remove(ready)
            known.update(ready.ends)
            moves.append(ready)
    return tuple(moves)


def _root(block: ir.Block, bound: set[str], pending: Sequence[ir.Traversal]) -> ir.NodeVariable:
    """The variable to scan next: the most selective declared one, else the source of a traversal."""
    unbound = [node for node in block.nodes if node.name not in bound]
    declared = [node for node in unbound if node.declared]
    if declared:
        return min(declared, key=lambda node: _selectivity(node, block.conditions))
    for traversal in pending:
        found = next((node for node in unbound if node.name == traversal.source), None)
        if found is not None:
            return found
    return unbound[0]


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
        case Intersect():
            return frozenset(arm.start for arm in step.arms)
        case Paths():
            return frozenset({step.forward.start, step.forward.end})
        case Test():
            return frozenset({step.variable})
        case Filter():
            return mentions.variables_of(step.condition)
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
    keys = (plan.columns[index].expression for index in plan.grouping)
    if any(mentions.variables_of(key) & made for key in keys):
        return None
    return step if all(map(_adds_up, mentions.aggregates_by(plan))) else None


def _adds_up(aggregate: ir.Aggregate) -> bool:
    """Whether it is a count, or an exact sum in any order."""
    argument = aggregate.argument
    if aggregate.distinct:
        return False
    if aggregate.function is Function.COUNT and isinstance(argument, ir.NodeRef):
        return True
    if not isinstance(argument, ir.PropertyRef) or not argument.type.is_scalar:
        return False
    return argument.type.kind in EXACT_SUMS and aggregate.function in _ADDED


class _Maker:
    """Collects the steps of one block while its variables become bound."""

    def __init__(self, block: ir.Block, bound: set[str], order: Order, wanted: frozenset[str] | None) -> None:
        self.block = block
        self.bound = bound
        self.order = order
        self.wanted = wanted
        self.steps: list[Step] = []
        self.waiting: list[ir.Condition] = []
        self.denied = list(block.negations)
        optional = (name for inner in block.optionals for name in inner.binds)
        self.names = frozenset({*bound, *block.introduced, *optional})
        """All that rows have in the end."""

    def make(self) -> list[Step]:
        block = self.block
        for node in block.nodes:
            if node.outer and node.matches is not None:
                self.steps.append(Test(node.name, node.type, node.matches))
        later = frozenset[str]().union(*(inner.binds for inner in block.optionals))
        self.waiting = [c for c in block.conditions if not (mentions.variables_of(c) & later)]
        self._filter()
        moves = list(self.order(block, frozenset(self.bound), self._read_later()))
        while moves:
            move = moves.pop(0)
            if isinstance(move, ir.Traversal):
                self._follow(move, moves)
            else:
                self._scan(move)
            self._filter()
        for inner in block.optionals:
            self.steps.append(Maybe(steps_of(inner, frozenset(self.bound), self.order), inner.binds))
            self.bound.update(inner.binds)
        self.waiting = [c for c in block.conditions if mentions.variables_of(c) & later]
        self._filter()
        return self.steps

    def _read_later(self) -> frozenset[str] | None:
        """The variables that are read once the traversals are done."""
        if self.wanted is None:
            return None
        inner = (*self.block.optionals, *self.block.negations)
        return self.wanted.union(*(each.outer for each in inner))

    def _filter(self) -> None:
        """Apply the conditions and negations whose variables are all bound."""
        for condition in list(self.waiting):
            if mentions.variables_of(condition) <= self.bound:
                self.waiting.remove(condition)
                self.steps.append(Filter(condition))
        for inner in list(self.denied):
            asked = inner.outer & self.names
            if asked <= self.bound:
                self.denied.remove(inner)
                inside = steps_of(inner, asked, self.order, asked)
                self.steps.append(Without(inside, tuple(sorted(asked))))

    def _scan(self, root: ir.NodeVariable) -> None:
        """Bind one more variable where no traversal leads on, with all that the scan can answer itself."""
        pushed, self.waiting = pushable(root, self.waiting)
        parts = _flat([*([root.matches] if root.matches is not None else []), *pushed])
        self.bound.add(root.name)
        self.steps.append(_scan_of(root, parts))

    def _follow(self, hop: ir.Traversal, moves: list[Move]) -> None:
        if hop.is_empty:
            self.steps.append(Nothing(hop.ends))
            self.bound.update(hop.ends)
            return
        if hop.source not in self.bound or hop.target not in self.bound:
            self._bind(hop, moves)
        elif hop.path is None:
            self.steps.append(self._expand(hop, None))
        self.bound.update(hop.ends)
        if hop.path is not None:
            self.steps.append(_paths(hop, hop.path))
            self.bound.add(hop.path)
        if hop.edge_variable is not None:
            self.bound.add(hop.edge_variable)

    def _bind(self, hop: ir.Traversal, moves: list[Move]) -> None:
        """Bind the other end of a traversal, with all later ones that lead to it from what is bound."""
        end = hop.target if hop.source in self.bound else hop.source
        node = self.block.node(end)
        arms = [hop]
        if is_plain(hop):
            for move in list(moves):
                if isinstance(move, ir.Traversal) and is_plain(move) and self._leads_to(move, end):
                    moves.remove(move)
                    arms.append(move)
        if len(arms) == 1:
            self.steps.append(self._expand(hop, node))
            return
        expands = tuple(self._expand(arm, None) for arm in arms)
        test = None if node is None else node.matches
        self.steps.append(Intersect(end, expands, None if node is None else node.type, test))

    def _leads_to(self, hop: ir.Traversal, end: str) -> bool:
        return end in hop.ends and any(name in self.bound for name in hop.ends)

    def _expand(self, hop: ir.Traversal, node: ir.NodeVariable | None) -> Expand:
        both = hop.source in self.bound and hop.target in self.bound
        high = hop.high if hop.edge.source == hop.edge.target else 1
        forward = hop.source in self.bound
        start, end = (hop.source, hop.target) if forward else (hop.target, hop.source)
        one_way = Direction.FORWARD if forward else Direction.BACKWARD
        return Expand(
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


def is_plain(hop: ir.Traversal) -> bool:
    """Whether it is one hop without a variable for its edge."""
    named = hop.edge_variable is not None or hop.path is not None
    return hop.low == 1 and hop.high == 1 and not named and not hop.is_empty


def _paths(hop: ir.Traversal, variable: str) -> Paths:
    """The search for a path between two ends that are bound."""

    def way(start: str, end: str, direction: Direction, *, backward: bool) -> Expand:
        return Expand(
            edge=hop.edge,
            start=start,
            end=end,
            direction=Direction.EITHER if hop.undirected else direction,
            low=hop.low,
            high=hop.high,
            edge_variable=None if hop.weight is None else EDGE_OF_PATH,
            closes=True,
            backward=backward,
            node=None,
            test=None,
        )

    forward = way(hop.source, hop.target, Direction.FORWARD, backward=False)
    return Paths(
        variable, forward, way(hop.target, hop.source, Direction.BACKWARD, backward=True), hop.weight
    )


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


def pushable(
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
            if op is Operator.CONTAINS and left.type.is_list:
                if isinstance(left, ir.Literal) and isinstance(left.value, tuple):
                    return ir.OneOf(right.prop.name, left.value)
                return ir.OneOf(right.prop.name, left) if isinstance(left, ir.Param) else None
            if isinstance(left, ir.Literal | ir.Param | ir.Now) and op in MIRRORED:
                return ir.Compare(right.prop.name, MIRRORED[op], left)
        case ir.NullCheck(ir.PropertyRef(variable=owner) as operand, negated) if owner == variable:
            return ir.IsNull(operand.prop.name, negated)
        case ir.Either() | ir.Both():
            parts = [as_predicate(variable, part) for part in condition.parts]
            known = tuple(part for part in parts if part is not None)
            if len(known) < len(parts):
                return None
            return ir.Or(known) if isinstance(condition, ir.Either) else ir.And(known)
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
    pushed, _ = pushable(node, waiting)
    tests = _flat([*([node.matches] if node.matches is not None else []), *pushed])
    for test in tests:
        if not isinstance(test, ir.Compare) or test.op is not Operator.EQ:
            continue
        if node.type.key == (test.property,):
            return 0
    return 1 if tests else 2
