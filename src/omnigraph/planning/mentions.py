"""What a plan is made of: its aggregates, its searches, the variables it mentions."""

import itertools
from collections.abc import Iterable, Iterator

from omnigraph.planning import ir


def aggregates_by(plan: ir.ReadPlan) -> tuple[ir.Aggregate, ...]:
    """The aggregates a query returns, orders by or keeps groups by, each once."""
    found: list[ir.Operand] = [column.expression for column in plan.columns]
    found += [key.expression for key in plan.order if not isinstance(key.expression, ir.ColumnRef)]
    found += [operand for condition in plan.having for operand in operands_of(condition)]
    return tuple(dict.fromkeys(each for item in found for each in aggregates_in(item)))


def aggregates_in(expression: ir.Operand) -> tuple[ir.Aggregate, ...]:
    """The aggregates an expression is made of."""
    return tuple(leaf for leaf in leaves_of(expression) if isinstance(leaf, ir.Aggregate))


def leaves_of(expression: ir.Operand) -> Iterator[ir.Operand]:
    """What an expression computes with: itself, unless it is arithmetic."""
    if not isinstance(expression, ir.Arithmetic):
        return iter((expression,))
    return itertools.chain(leaves_of(expression.left), leaves_of(expression.right))


def operands_of(condition: ir.Condition) -> tuple[ir.Operand, ...]:
    """The expressions that a condition looks at."""
    match condition:
        case ir.Comparison():
            return (condition.left, condition.right)
        case ir.NullCheck():
            return (condition.operand,)
        case ir.SearchTest():
            return (condition.search,)
        case ir.Either() | ir.Both():
            return tuple(operand for part in condition.parts for operand in operands_of(part))


def columns_in(test: ir.Predicate) -> frozenset[str]:
    """The properties that a predicate asks for."""
    match test:
        case ir.And() | ir.Or():
            return frozenset[str]().union(*map(columns_in, test.parts))
        case ir.Not():
            return columns_in(test.part)
        case ir.Compare() | ir.OneOf() | ir.IsNull():
            return frozenset({test.property})


def searches_in(item: ir.ColumnExpr | ir.Condition) -> tuple[ir.SearchExpr, ...]:
    """The searches an expression or condition is made of."""
    match item:
        case ir.Search() | ir.Nearest() | ir.Bm25():
            return (item,)
        case ir.Rrf():
            return (item.first, item.second)
        case ir.Comparison() | ir.NullCheck() | ir.SearchTest() | ir.Either() | ir.Both():
            return tuple(search for operand in operands_of(item) for search in searches_in(operand))
        case _:
            return ()


def searches_by(plan: ir.ReadPlan) -> tuple[ir.SearchExpr, ...]:
    """All searches, wherever a query has them."""
    items: list[ir.ColumnExpr | ir.Condition] = [column.expression for column in plan.columns]
    items += [] if plan.ranking is None else [plan.ranking]
    items += [condition for block in plan.match.walk() for condition in block.conditions]
    return tuple(search for item in items for search in searches_in(item))


def embedded(searches: Iterable[ir.SearchExpr]) -> tuple[ir.Nearest, ...]:
    """The comparisons with a text among searches: those need an embedder."""
    return tuple(each for each in searches if isinstance(each, ir.Nearest) and each.needs_embedding)


def variables_of(item: ir.ColumnExpr | ir.Condition) -> frozenset[str]:
    """The variables an expression or condition mentions."""
    match item:
        case ir.Literal() | ir.Param() | ir.Now():
            return frozenset()
        case ir.NodeRef() | ir.PropertyRef() | ir.PathRef():
            return frozenset({item.variable})
        case ir.Search() | ir.Nearest() | ir.Bm25():
            return frozenset({item.property.variable})
        case ir.Rrf():
            return frozenset({item.variable})
        case ir.Aggregate():
            return variables_of(item.argument)
        case ir.Arithmetic():
            return variables_of(item.left) | variables_of(item.right)
        case ir.Comparison() | ir.NullCheck() | ir.SearchTest() | ir.Either() | ir.Both():
            return frozenset[str]().union(*map(variables_of, operands_of(item)))
