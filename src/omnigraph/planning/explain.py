"""A query plan in words. Pure: it reads the plan and its steps, never a table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, assert_never

from omnigraph.planning import ir, steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omnigraph.planning.values import Value


def title_of(step: steps.Step) -> tuple[str, str]:
    """The name of a step's operator and what it works on."""
    match step:
        case steps.Scan():
            return "scan", f"{step.node.name} as ${step.variable}{_where(step.test)}"
        case steps.Expand():
            name = "connect" if step.closes else "expand"
            return name, f"{_arrow(step)}{_where(step.test)}"
        case steps.Intersect():
            arms = ", ".join("$" + name for name in dict.fromkeys(arm.start for arm in step.arms))
            return "intersect", f"${step.end} beside {arms}{_where(step.test)}"
        case steps.Filter():
            return "filter", condition_text(step.condition)
        case steps.Test():
            return "filter", f"${step.variable}{_where(step.test)}"
        case steps.Paths():
            by = "" if step.weight is None else f" by {step.weight}"
            return "path", f"${step.variable}: shortest {_arrow(step.forward)}{by}"
        case steps.Nothing():
            return "nothing", "no path can have that many hops"
        case steps.Maybe():
            return "maybe", f"binds {', '.join('$' + name for name in step.binds)}"
        case steps.Without():
            return "not", f"for each {', '.join('$' + name for name in step.mentions) or 'row'}"
        case _:
            assert_never(step)


def result_titles(plan: ir.ReadPlan) -> Iterator[tuple[str, str]]:
    """What happens to the working rows once the match is done, in order."""
    if plan.ranking is not None:
        yield "rank", operand_text(plan.ranking)
    names = ", ".join(column.name for column in plan.columns)
    if plan.is_aggregate:
        keys = ", ".join(plan.columns[index].name for index in plan.grouping)
        yield "aggregate", f"{names} by {keys}" if keys else names
    else:
        yield "project", f"distinct {names}" if plan.distinct else names
    if plan.having:
        yield "having", " and ".join(map(condition_text, plan.having))
    if plan.order:
        yield "order", f"{len(plan.order)} keys"
    if plan.limit is not None or plan.offset:
        limit = "all" if plan.limit is None else str(plan.limit)
        yield "limit", f"{limit} from {plan.offset}" if plan.offset else limit


def _arrow(step: steps.Expand) -> str:
    hops = "" if step.single else f"{{{step.low},{step.high}}}"
    named = step.edge_variable is not None and step.edge_variable != steps.EDGE_OF_PATH
    edge = f"{f'${step.edge_variable}: ' if named else ''}{step.edge.name}{hops}"
    match step.direction:
        case steps.Direction.FORWARD:
            return f"${step.start} -{edge}-> ${step.end}"
        case steps.Direction.BACKWARD:
            return f"${step.start} <-{edge}- ${step.end}"
        case steps.Direction.EITHER:
            return f"${step.start} -{edge}- ${step.end}"


def _where(test: ir.Predicate | None) -> str:
    return "" if test is None else f" where {predicate_text(test)}"


def predicate_text(test: ir.Predicate) -> str:
    """A predicate as a reader would write it."""
    match test:
        case ir.And():
            return " and ".join(predicate_text(part) for part in test.parts)
        case ir.Or():
            return f"({' or '.join(predicate_text(part) for part in test.parts)})"
        case ir.Not():
            return f"not ({predicate_text(test.part)})"
        case ir.Compare():
            return f"{test.property} {test.op.value} {operand_text(test.value)}"
        case ir.OneOf():
            if isinstance(test.values, ir.Param):
                return f"{test.property} in {operand_text(test.values)}"
            return f"{test.property} in [{', '.join(_value_text(value) for value in test.values)}]"
        case ir.IsNull():
            return f"{test.property} is {'not ' if test.negated else ''}null"
        case _:
            assert_never(test)


def condition_text(condition: ir.Condition) -> str:
    """A condition of the match as a reader would write it."""
    match condition:
        case ir.Comparison():
            return f"{operand_text(condition.left)} {condition.op.value} {operand_text(condition.right)}"
        case ir.NullCheck():
            return f"{operand_text(condition.operand)} is {'not ' if condition.negated else ''}null"
        case ir.SearchTest():
            return f"{'' if condition.wanted else 'not '}{operand_text(condition.search)}"
        case ir.Either():
            return f"({' or '.join(map(condition_text, condition.parts))})"
        case ir.Both():
            return f"({' and '.join(map(condition_text, condition.parts))})"
        case _:
            assert_never(condition)


def operand_text(operand: ir.Operand | ir.KeyText) -> str:
    """An expression as a reader would write it; literals as JSON."""
    match operand:
        case ir.Literal():
            return _value_text(operand.value)
        case ir.Param():
            return f"${operand.name}"
        case ir.KeyText():
            return operand_text(operand.value)
        case ir.Now():
            return "now()"
        case ir.NodeRef():
            return f"${operand.variable}"
        case ir.PropertyRef():
            return f"${operand.variable}.{operand.prop.name}"
        case ir.PathRef():
            return f"${operand.variable}.{operand.part}"
        case ir.Search():
            name = operand.function.value
            return f"{name}({operand_text(operand.property)}, {operand_text(operand.query)})"
        case ir.Nearest():
            return f"nearest({operand_text(operand.property)}, {operand_text(operand.query)})"
        case ir.Bm25():
            return f"bm25({operand_text(operand.property)}, {operand_text(operand.query)})"
        case ir.Rrf():
            return f"rrf({operand_text(operand.first)}, {operand_text(operand.second)})"
        case ir.Arithmetic():
            return f"({operand_text(operand.left)} {operand.op} {operand_text(operand.right)})"
        case ir.Aggregate():
            apart = "distinct " if operand.distinct else ""
            return f"{operand.function}({apart}{operand_text(operand.argument)})"
        case _:
            assert_never(operand)


def _value_text(value: Value) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
