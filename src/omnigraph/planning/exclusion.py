"""Counting what a match excludes instead of looking at all that it keeps. Pure.

The rows with `$a.key != $c.key` are all rows without those where both are one node; the rows with
`not { $a knows $c }` are all without those that have the edge. What is excluded is a closed pattern, which
intersections count quickly; and without the condition nobody needs both variables at once, so that counts
multiply. With several such conditions the rows of each combination are added or taken away in turn.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from omnigraph.catalog.schema import NodeType
from omnigraph.catalog.types import FLOAT_KINDS
from omnigraph.language.query_tree import Function, Operator
from omnigraph.planning import ir, mentions

if TYPE_CHECKING:
    from collections.abc import Iterator

EXCLUDED_MAX: Final = 3
"""So many conditions are counted away at most; each doubles the number of patterns."""


class Term(NamedTuple):
    """Rows that are added, or taken away where the sign is -1."""

    sign: int
    match: ir.Block
    told: str
    """Which rows they are."""


class _Same(NamedTuple):
    """`$kept` and `$gone` are not one node."""

    condition: ir.Condition
    kept: str
    gone: str


_Excluded: TypeAlias = "_Same | ir.Block"
"""What no row may be: with two variables on one node, or with an edge between two."""


def counts_rows(plan: ir.ReadPlan) -> bool:
    """Whether a query asks for nothing but how many rows its groups have."""
    present = {node.name for node in plan.match.nodes} | {name for name, _ in plan.match.edges}
    aggregates = mentions.aggregates_by(plan)
    return bool(aggregates) and all(
        each.function is Function.COUNT
        and not each.distinct
        and isinstance(each.argument, ir.NodeRef)
        and each.argument.variable in present
        for each in aggregates
    )


def terms_of(block: ir.Block, wanted: frozenset[str]) -> tuple[Term, ...]:
    """What to count instead of a match whose rows are read for `wanted` alone; empty: nothing is excluded."""
    if block.optionals or block.paths:
        return ()
    found = tuple(_excluded(block, wanted))
    if not 0 < len(found) <= EXCLUDED_MAX:
        return ()
    conditions = {id(each.condition) for each in found if isinstance(each, _Same)}
    denied = {id(each) for each in found if isinstance(each, ir.Block)}
    rest = replace(
        block,
        conditions=tuple(each for each in block.conditions if id(each) not in conditions),
        negations=tuple(each for each in block.negations if id(each) not in denied),
    )
    return tuple(
        _term(rest, chosen)
        for count in range(len(found) + 1)
        for chosen in itertools.combinations(found, count)
    )


def _excluded(block: ir.Block, wanted: frozenset[str]) -> Iterator[_Excluded]:
    edges = [inner for inner in block.negations if _is_edge(inner)]
    others = [inner for inner in block.negations if inner not in edges]
    taken: set[str] = set()
    for condition in block.conditions:
        ends = _nodes_apart(condition)
        if ends is None or taken & {*ends}:
            continue
        asked = [mentions.variables_of(each) for each in block.conditions if each is not condition]
        asked += [wanted, *(inner.outer for inner in others)]
        free = [name for name in reversed(ends) if not any(name in each for each in asked)]
        if free:
            taken.update(ends)
            kept = ends[0] if free[0] == ends[1] else ends[1]
            yield _Same(condition, kept, free[0])
    yield from edges


def _nodes_apart(condition: ir.Condition) -> tuple[str, str] | None:
    """The variables of `$a.key != $b.key` of one type."""
    match condition:
        case ir.Comparison(
            ir.PropertyRef(owner=NodeType() as owner) as left, Operator.NE, ir.PropertyRef() as right
        ):
            same = owner.table_key == right.owner.table_key and owner.key == (left.prop.name,)
            if same and left.prop.name == right.prop.name and left.type.kind not in FLOAT_KINDS:
                return (left.variable, right.variable) if left.variable != right.variable else None
        case _:
            pass
    return None


def _is_edge(inner: ir.Block) -> bool:
    """Whether a negation denies one edge between two variables from outside."""
    if inner.nodes or inner.edges or inner.conditions or inner.optionals or inner.negations:
        return False
    return len(inner.traversals) == 1 and (hop := inner.traversals[0]).high == 1 and hop.path is None


def _term(rest: ir.Block, chosen: tuple[_Excluded, ...]) -> Term:
    """The rows that are all that is chosen."""
    hops = [*rest.traversals]
    same: dict[str, str] = {}
    told: list[str] = []
    for each in chosen:
        if isinstance(each, _Same):
            same[each.gone] = each.kept
            told.append(f"${each.gone} is ${each.kept}")
        else:
            hops += each.traversals
            told += [f"${hop.source} {hop.edge.name} ${hop.target}" for hop in each.traversals]
    moved = (
        replace(hop, source=same.get(hop.source, hop.source), target=same.get(hop.target, hop.target))
        for hop in hops
    )
    nodes = tuple(_merged(rest, node, same) for node in rest.nodes if node.name not in same)
    block = replace(rest, nodes=nodes, traversals=tuple(moved))
    return Term((-1) ** len(chosen), block, f"where {' and '.join(told)}" if told else "all rows")


def _merged(block: ir.Block, node: ir.NodeVariable, same: dict[str, str]) -> ir.NodeVariable:
    """A variable with what is asked of those that are the same node."""
    others = [block.node(gone) for gone, kept in same.items() if kept == node.name]
    matches = [each.matches for each in (node, *others) if each is not None and each.matches is not None]
    joined = None if not matches else matches[0] if len(matches) == 1 else ir.And(tuple(matches))
    return replace(node, matches=joined)
