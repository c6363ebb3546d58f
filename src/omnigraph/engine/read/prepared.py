"""What follows from a plan alone: made once, whatever the data and the parameters of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from omnigraph.catalog.types import arrow_type
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.read.chains import Chain, chain_of
from omnigraph.engine.read.formulas import PLAIN_KINDS
from omnigraph.language.query_tree import Function
from omnigraph.planning import ir, mentions
from omnigraph.planning.exclusion import counts_rows, terms_of
from omnigraph.planning.params import binder
from omnigraph.planning.steps import EXACT_SUMS, needed_after, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from omnigraph.catalog.schema import EdgeType, NodeType
    from omnigraph.engine.read.measures import TableMeasures
    from omnigraph.planning.steps import Order, Step
    from omnigraph.planning.values import Value

TERMS_COST_MIN: Final = 200_000.0
TERMS_SHARE_MAX: Final = 0.5
"""What is excluded is counted apart where a match makes so many rows and pairs, and that a share at most."""
_ADDED_UP: Final = frozenset({Function.SUM, Function.AVG})

References: TypeAlias = "tuple[tuple[str, NodeType | EdgeType, str], ...]"


class CountedTerm(NamedTuple):
    """A match whose rows are added, or taken away."""

    sign: int
    told: str
    prepared: Prepared


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What follows from a plan alone, made once: the steps of its match and the form of its result."""

    plan: ir.ReadPlan
    steps: tuple[Step, ...]
    schema: pa.Schema
    names: tuple[str, ...]
    """The name of each result column."""
    kinds: tuple[pa.DataType, ...]
    """The Arrow type of each result column."""
    needed: tuple[frozenset[str], ...]
    """For each step the variables that are wanted after it."""
    weighed: tuple[frozenset[str], ...] | None
    """As `needed`, when equal working rows may be one row with a weight: of a variable that is only counted
    and never null nothing is wanted. None when each row counts by itself."""
    as_set: bool
    """Whether the result is the same however often equal working rows occur."""
    references: References | None
    """Variable, type and column of each result column, when the result is nothing but plain values of the
    working rows, in their order."""
    chain: Chain | None
    """The steps that can run over lists while the rows are few."""
    has_choice: bool
    """Whether the clauses can be run in another order that may be cheaper."""
    bind: Callable[[Mapping[str, Any] | None], Mapping[str, Value]]
    """What turns the caller's parameters into values."""
    searches: tuple[ir.SearchExpr, ...]
    embedded: tuple[ir.Nearest, ...]
    """The comparisons of vectors with a text."""
    aggregates: tuple[ir.Aggregate, ...]
    """What the query returns, orders by or keeps groups by, each once."""
    places: tuple[int, ...] | None
    """For each result column its place among the group key and then the aggregates, when the groups are
    nothing but these, in no order and under no condition."""
    terms: tuple[CountedTerm, ...] = ()
    """What is counted instead, when that costs less: matches whose rows are added and taken away."""
    order: str = ""
    """In which order the clauses are run and why, when they could be run in another one."""


def prepare(plan: ir.ReadPlan, order: Order | None = None) -> Prepared:
    """Everything about a run of this plan that does not depend on parameters; without an order of its
    clauses, neither on data.
    """
    kinds = tuple(arrow_type(column.type) for column in plan.columns)
    fields = [
        pa.field(column.name, kind, nullable=column.nullable)
        for column, kind in zip(plan.columns, kinds, strict=True)
    ]
    weighed = _weighed(plan)
    steps = steps_of(plan.match, order=order, wanted=weighed)
    needed = needed_after(steps, _returned(plan))
    as_set = plan.distinct and not plan.is_aggregate
    chain = chain_of(steps, needed, as_set=as_set)
    searches = mentions.searches_by(plan)
    aggregates = mentions.aggregates_by(plan)
    return Prepared(
        plan,
        steps,
        pa.schema(fields),
        tuple(column.name for column in plan.columns),
        kinds,
        needed=needed,
        weighed=None if weighed is None else needed_after(steps, weighed),
        as_set=as_set,
        references=_references(plan),
        chain=chain,
        has_choice=_has_choice(plan, steps, chain),
        bind=binder(plan),
        searches=searches,
        embedded=mentions.embedded(searches),
        aggregates=aggregates,
        places=_places(plan, aggregates),
    )


def _places(plan: ir.ReadPlan, aggregates: Sequence[ir.Aggregate]) -> tuple[int, ...] | None:
    """See `Prepared.places`."""
    if not plan.is_aggregate or plan.having or plan.order:
        return None
    known = [*(plan.columns[at].expression for at in plan.grouping), *aggregates]
    wanted = [column.expression for column in plan.columns]
    return tuple(map(known.index, wanted)) if all(each in known for each in wanted) else None


def counted_terms(plan: ir.ReadPlan, measures: TableMeasures) -> tuple[CountedTerm, ...]:
    """What to count instead of the rows of a query, where that makes far fewer rows."""
    wanted = _weighed(plan)
    if wanted is None or not counts_rows(plan):
        return ()
    terms = terms_of(plan.match, wanted)
    direct = measures.cost(plan.match, wanted) if terms else 0.0
    apart = sum(measures.cost(each.match, wanted) for each in terms)
    if not terms or direct < TERMS_COST_MIN or apart > direct * TERMS_SHARE_MAX:
        return ()
    return tuple(
        # What a chain would do is done by the steps themselves.
        CountedTerm(sign, told, replace(prepare(replace(plan, match=match), measures.order), chain=None))
        for sign, match, told in terms
    )


def _returned(plan: ir.ReadPlan) -> frozenset[str]:
    """The variables that the result is made from."""
    wanted = frozenset[str]().union(*(mentions.variables_of(column.expression) for column in plan.columns))
    for key in plan.order:
        if not isinstance(key.expression, ir.ColumnRef):
            wanted |= mentions.variables_of(key.expression)
    wanted = wanted.union(*map(mentions.variables_of, plan.having))
    if plan.ranking is not None:
        wanted |= mentions.variables_of(plan.ranking)
    if plan.order or plan.ranking is not None:
        wanted |= frozenset(plan.ties)
    return wanted


def _weighed(plan: ir.ReadPlan) -> frozenset[str] | None:
    """The variables whose entities the result is made from, when nothing else of the rows matters but how
    many they are.
    """
    if not plan.is_aggregate or plan.ranking is not None:
        return None
    wanted = frozenset[str]().union(
        *(mentions.variables_of(plan.columns[at].expression) for at in plan.grouping)
    )
    present = {node.name for node in plan.match.nodes} | {name for name, _ in plan.match.edges}
    for aggregate in mentions.aggregates_by(plan):
        argument = aggregate.argument
        if aggregate.function in _ADDED_UP and argument.type.kind not in EXACT_SUMS:
            return None
        counted = aggregate.function is Function.COUNT and not aggregate.distinct
        if isinstance(argument, ir.NodeRef) and counted:
            wanted |= {argument.variable} - present
        else:
            wanted |= mentions.variables_of(argument)
    return wanted


def _has_choice(plan: ir.ReadPlan, steps: Sequence[Step], chain: Chain | None) -> bool:
    """Whether another order may be cheaper: not when everything follows from one node, one hop after the
    other.
    """
    if chain is not None and chain.steps == len(steps):
        return False
    return any(len(block.nodes) + len(block.traversals) > 1 for block in plan.match.walk())


def _references(plan: ir.ReadPlan) -> References | None:
    if plan.is_aggregate or plan.order or plan.ranking is not None:
        return None
    if plan.distinct and not (len(plan.columns) == 1 and isinstance(plan.columns[0].expression, ir.NodeRef)):
        return None  # two nodes may have the same values
    found: list[tuple[str, NodeType | EdgeType, str]] = []
    for column in plan.columns:
        match column.expression:
            case ir.NodeRef() as node:
                found.append((node.variable, node.node, "id"))
            case ir.PropertyRef() as reference if (
                reference.type.is_scalar and reference.type.kind in PLAIN_KINDS
            ):
                found.append((reference.variable, reference.owner, reference.prop.name))
            case _:
                return None
    return tuple(found)
