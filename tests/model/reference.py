"""A naive evaluator of read plans: every assignment of entities to variables is tried, one value at a time.

It shares no code with the engine beyond the plan; it is slow on purpose.
"""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

from omnigraph.catalog.types import ScalarKind
from omnigraph.language.query_tree import ArithmeticOperator, Function, Operator
from omnigraph.planning import ir, mentions

COMPARE = {
    Operator.EQ: lambda a, b: a == b,
    Operator.NE: lambda a, b: a != b,
    Operator.LT: lambda a, b: a < b,
    Operator.LE: lambda a, b: a <= b,
    Operator.GT: lambda a, b: a > b,
    Operator.GE: lambda a, b: a >= b,
    Operator.CONTAINS: lambda a, b: b in a,
    Operator.STARTS_WITH: lambda a, b: a.startswith(b),
    Operator.ENDS_WITH: lambda a, b: a.endswith(b),
}


@dataclass
class ModelGraph:
    """Nodes by type and id; edges by type as (source, target, properties)."""

    nodes: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    edges: dict[str, list[tuple[str, str, dict[str, Any]]]] = field(default_factory=dict)


def run_reference(plan: ir.ReadPlan, graph: ModelGraph, params: dict[str, Any]) -> list[tuple]:
    """The result rows, in order when the query orders them."""
    plan = ir.cut_by(plan, params)
    envs = Matching(graph, params).block(plan.match, {})
    values = Matching(graph, params)
    if plan.is_aggregate:
        rows = _grouped(plan, envs, values)
    else:
        rows = [(tuple(values.of(c.expression, env) for c in plan.columns), env) for env in envs]
    if plan.distinct:
        rows = list({row: (row, env) for row, env in rows}.values())
    if plan.order:
        rows.sort(key=lambda pair: _tie(plan, pair, values))
        for key in reversed(plan.order):
            rows.sort(key=lambda pair, key=key: _rank(_sort_value(key, pair, values)), reverse=key.descending)
    end = None if plan.limit is None else plan.offset + plan.limit
    return [row for row, _ in rows][plan.offset : end]


def _grouped(plan, envs, values):
    groups: dict[tuple, list] = {}
    for env in envs:
        key = tuple(values.of(plan.columns[i].expression, env) for i in plan.grouping)
        groups.setdefault(key, []).append(env)
    if not plan.grouping:
        groups.setdefault((), [])
    rows = []
    for key, members in groups.items():
        named = {plan.columns[i].expression: value for i, value in zip(plan.grouping, key, strict=True)}
        group = Group(values, named, members)
        if all(group.holds(condition, {}) for condition in plan.having):
            rows.append((tuple(group.of(c.expression, {}) for c in plan.columns), members))
    return rows


def _aggregate(aggregate, members, values):
    known = [v for v in (values.of(aggregate.argument, env) for env in members) if v is not None]
    match aggregate.function:
        case Function.COUNT:
            return len(set(known) if aggregate.distinct else known)
        case Function.SUM:
            return sum(known) if known else None
        case Function.AVG:
            return sum(known) / len(known) if known else None
        case Function.MIN:
            return min(known, default=None)
        case Function.MAX:
            return max(known, default=None)
    raise AssertionError(aggregate.function)


def _sort_value(key, pair, values):
    row, env = pair
    match key.expression:
        case ir.ColumnRef():
            return row[key.expression.index]
        case ir.Aggregate():
            return _aggregate(key.expression, env, values)
        case _:
            return values.of(key.expression, env)


def _rank(value):
    return (0,) if value is None else (1, value)


def _tie(plan, pair, values):
    row, env = pair
    if plan.is_aggregate or plan.distinct:
        return tuple(_rank(v) for v in row)
    return tuple(_rank(None if env[v] is None else env[v][-1]) for v in plan.ties if v in env)


class Matching:
    def __init__(self, graph: ModelGraph, params: dict[str, Any]) -> None:
        self.graph = graph
        self.params = params

    def block(self, block: ir.Block, env: dict) -> list[dict]:
        """Every way to extend `env` by the block. A variable is None or (type, …, id)."""
        for node in block.nodes:
            if node.outer and (env[node.name] is None or not self.matches(node, env[node.name])):
                return []
        fresh = [node for node in block.nodes if not node.outer]
        choices = [
            [
                (node.type.name, key)
                for key in self.graph.nodes[node.type.name]
                if self.matches(node, (node.type.name, key))
            ]
            for node in fresh
        ]
        found = []
        for chosen in itertools.product(*choices):
            found += self.edges(
                block.traversals, env | {n.name: c for n, c in zip(fresh, chosen, strict=True)}
            )
        later = {name for inner in block.optionals for name in inner.binds}
        early = [c for c in block.conditions if not mentions.variables_of(c) & later]
        late = [c for c in block.conditions if mentions.variables_of(c) & later]
        found = [e for e in found if all(self.holds(c, e) for c in early)]
        for inner in block.optionals:
            found = [
                joined for e in found for joined in (self.block(inner, e) or [e | dict.fromkeys(inner.binds)])
            ]
        found = [e for e in found if all(self.holds(c, e) for c in late)]
        for inner in block.negations:
            found = [e for e in found if not self.block(inner, e)]
        return found

    def edges(self, traversals, env):
        envs = [env]
        for hop in traversals:
            envs = [joined for e in envs for joined in self.hop(hop, e)]
        return envs

    def hop(self, hop: ir.Traversal, env: dict) -> list[dict]:
        source, target = env[hop.source], env[hop.target]
        if source is None or target is None:
            return []
        rows = list(enumerate(self.graph.edges[hop.edge.name]))
        if hop.path is not None:
            found = shortest([row for _, row in rows], hop, source, target)
            return [] if found is None else [env | {hop.path: found}]
        if hop.edge_variable is not None:
            ends = [(source[-1], target[-1])]
            if hop.undirected and source != target:
                ends.append((target[-1], source[-1]))
            return [
                env | {hop.edge_variable: ("edge", hop.edge.name, number)}
                for number, (a, b, _) in rows
                if (a, b) in ends
            ]
        pairs = {(a, b) for _, (a, b, _) in rows}
        if hop.undirected:
            pairs |= {(b, a) for a, b in pairs}
        if hop.edge.source != hop.edge.target:
            hit = hop.low == 1 and (source[-1], target[-1]) in pairs
        else:
            hit = target[-1] in reachable(pairs, source[-1], hop.low, hop.high)
        return [env] if hit else []

    def matches(self, node: ir.NodeVariable, entity) -> bool:
        return (
            node.matches is None or self.test(node.matches, self.graph.nodes[entity[0]][entity[-1]]) is True
        )

    def test(self, predicate: ir.Predicate, row: dict) -> bool | None:
        match predicate:
            case ir.And():
                results = [self.test(p, row) for p in predicate.parts]
                return False if False in results else None if None in results else True
            case ir.Or():
                results = [self.test(p, row) for p in predicate.parts]
                return True if True in results else None if None in results else False
            case ir.Not():
                inner = self.test(predicate.part, row)
                return None if inner is None else not inner
            case ir.IsNull():
                return (row[predicate.property] is None) != predicate.negated
            case ir.OneOf():
                value = row[predicate.property]
                values = predicate.values
                if isinstance(values, ir.Param):
                    values = ir.value_of(values, self.params, None)
                return None if value is None or values is None else value in values
            case ir.Compare():
                left, right = row[predicate.property], ir.value_of(predicate.value, self.params, None)
                return None if left is None or right is None else COMPARE[predicate.op](left, right)
        raise AssertionError(predicate)

    def holds(self, condition: ir.Condition, env: dict) -> bool:
        match condition:
            case ir.Comparison():
                left, right = self.of(condition.left, env), self.of(condition.right, env)
                return left is not None and right is not None and COMPARE[condition.op](left, right)
            case ir.NullCheck():
                return (self.of(condition.operand, env) is None) != condition.negated
            case ir.Either():
                return any(self.holds(part, env) for part in condition.parts)
            case ir.Both():
                return all(self.holds(part, env) for part in condition.parts)
        raise AssertionError(condition)

    def of(self, expression, env: dict) -> Any:
        match expression:
            case ir.Literal() | ir.Param():
                return ir.value_of(expression, self.params, None)
            case ir.Arithmetic():
                return compute(expression, self.of(expression.left, env), self.of(expression.right, env))
            case ir.PathRef():
                return None if env[expression.variable] is None else env[expression.variable][expression.part]
            case ir.NodeRef():
                return None if env[expression.variable] is None else env[expression.variable][-1]
            case ir.PropertyRef():
                entity = env[expression.variable]
                if entity is None:
                    return None
                if expression.of_edge:
                    return self.graph.edges[entity[1]][entity[2]][2][expression.prop.name]
                return self.graph.nodes[entity[0]][entity[-1]][expression.prop.name]
        raise AssertionError(expression)


class Group(Matching):
    """One group: its key, and the rows that its aggregates are taken of."""

    def __init__(self, values: Matching, key: dict, members: list) -> None:
        super().__init__(values.graph, values.params)
        self.values, self.key, self.members = values, key, members

    def of(self, expression, env: dict) -> Any:
        if expression in self.key:
            return self.key[expression]
        if isinstance(expression, ir.Aggregate):
            return _aggregate(expression, self.members, self.values)
        return super().of(expression, env)


def compute(expression: ir.Arithmetic, a: Any, b: Any) -> Any:
    """Exact where both are whole, in floats otherwise; None where the result does not fit."""
    if a is None or b is None:
        return None
    whole = expression.type.kind is ScalarKind.I64
    a, b = (a, b) if whole else (float(a), float(b))
    match expression.op:
        case ArithmeticOperator.PLUS:
            result = a + b
        case ArithmeticOperator.MINUS:
            result = a - b
        case ArithmeticOperator.TIMES:
            result = a * b
        case ArithmeticOperator.DIVIDE:
            result = a / b if b else math.inf
    if whole:
        return result if -(2**63) <= result < 2**63 else None
    return result if math.isfinite(result) else None


def shortest(edges, hop: ir.Traversal, source, target) -> dict | None:
    """The path between two nodes: least cost, then fewest edges, then least ids from the end. All are tried."""
    if source == target:
        return None
    steps: dict[str, list] = {}
    for a, b, row in edges:
        weight = 1 if hop.weight is None else row[hop.weight]
        if weight is not None:
            steps.setdefault(a, []).append((b, weight))
            if hop.undirected:
                steps.setdefault(b, []).append((a, weight))
    found, front = [], [((source[-1],), 0.0)]
    for _ in range(hop.high):
        front = [
            ((*nodes, b), cost + weight)
            for nodes, cost in front
            for b, weight in steps.get(nodes[-1], [])
            if b not in nodes
        ]
        found += [each for each in front if each[0][-1] == target[-1]]
    if not found:
        return None
    nodes, cost = min(found, key=lambda each: (each[1], len(each[0]), each[0][::-1]))
    return {"length": len(nodes) - 1, "nodes": nodes, "cost": cost}


def reachable(pairs, start, lo, hi):
    """Section 7.4 of the query language."""
    visited, front, emitted = {start}, {start}, set()
    for hop in range(1, hi + 1):
        fresh = {b for a, b in pairs if a in front} - visited
        loops = {a for a, b in pairs if a == b and a in front}
        if lo <= hop:
            emitted |= fresh | loops
        visited |= fresh
        front = fresh
    return emitted
