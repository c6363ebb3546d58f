"""What each step of a schema plan does to the rows of a graph: nothing, one column, a look at every row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnigraph.catalog.plan import (
    AddConstraint,
    AddProperty,
    ChangeCardinality,
    NarrowEnum,
    RequireProperty,
    SchemaPlan,
    SchemaStep,
    StepWork,
    WidenProperty,
    work_of,
)
from omnigraph.catalog.schema import ConstraintKind
from omnigraph.catalog.table_changes import catalog_change
from omnigraph.core.ids import TableKey
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.evolve.rows import bytes_of, is_large

if TYPE_CHECKING:
    from omnigraph.catalog.schema import Catalog
    from omnigraph.engine.evolve.request import SchemaRequest
    from omnigraph.engine.session import GraphSession


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step does to a table, and who does it."""

    work: StepWork
    rows: int = 0
    bytes: int = 0
    """About how much is read or written; 0 for metadata."""
    engine: str = "local"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"work": self.work.value, "rows": self.rows, "bytes": self.bytes, "engine": self.engine}


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """The plan of a change of a graph, with what every step costs there."""

    plan: SchemaPlan
    costs: tuple[StepCost, ...]
    blocking: tuple[str, ...]
    """The branches that stand in the way of the plan."""


def plan_on_graph(session: GraphSession, request: SchemaRequest) -> GraphPlan:
    """What a change would do to main. Reads metadata only. Raises the schema error of an invalid text."""
    accepted = session.contract().catalog
    plan, _ = request.plan(session, accepted)
    blocking = () if plan.is_additive else tuple(session.manifest.branches())
    return GraphPlan(plan, step_costs(session, accepted, plan), blocking)


def step_costs(session: GraphSession, accepted: Catalog, plan: SchemaPlan) -> tuple[StepCost, ...]:
    """The cost of each step, in order. Cost: metadata only."""
    entries = session.manifest.current(None).entries
    stored = {
        each.new_key: entries[each.key].row_count
        for each in catalog_change(accepted, plan.desired).kept
        if each.key in entries
    }

    def cost(step: SchemaStep) -> StepCost:
        work, read = work_of(step), _columns(step, plan.desired)
        if work is StepWork.METADATA or read is None:
            return StepCost(StepWork.METADATA)
        key, names = read
        rows = stored.get(key, 0)
        size = bytes_of(plan.desired.type_of(key).arrow_schema, names, rows)
        engine = "spark" if is_large(session.settings, rows, size) else "local"
        return StepCost(work, rows, size, engine)

    return tuple(cost(step) for step in plan.steps)


def _columns(step: SchemaStep, desired: Catalog) -> tuple[TableKey, list[str]] | None:
    """The table and the columns that a step writes or looks at; None for a step about neither."""
    match step:
        case AddProperty() | WidenProperty() | RequireProperty() | NarrowEnum():
            return TableKey(f"{step.type_kind.value}:{step.type_name}"), [step.property_name]
        case AddConstraint():
            keyed = ["id"] if step.constraint.kind is ConstraintKind.KEY else []
            key = TableKey(f"{step.type_kind.value}:{step.type_name}")
            return key, [*keyed, *step.constraint.properties]
        case ChangeCardinality():
            return TableKey(desired.edges[step.name].table_key), ["src"]
        case _:
            return None
