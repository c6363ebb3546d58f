"""How a schema plan looks: one line per step, and the JSON form."""

from typing import TYPE_CHECKING, Any, assert_never

from omnigraph.catalog.plan import (
    AddConstraint,
    AddProperty,
    AddType,
    AllowNull,
    ChangeCardinality,
    DropProperty,
    DropType,
    ExtendEnum,
    NarrowEnum,
    RemoveConstraint,
    RenameProperty,
    RenameType,
    RequireProperty,
    SchemaPlan,
    SchemaStep,
    StepWork,
    UnsupportedChange,
    UpdatePropertyMetadata,
    UpdateTypeMetadata,
    WidenProperty,
    class_of,
    constraint_text,
    work_of,
)
from omnigraph.cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.engine.evolve.costs import StepCost


def step_line(step: SchemaStep) -> str:
    """The step for people: `+` adds, `~` changes, `-` drops, `!` is refused."""
    match step:
        case RemoveConstraint():
            return f"- {step.type_name} {constraint_text(step.constraint)}"
        case RequireProperty():
            return f"~ {step.type_name}.{step.property_name} is required"
        case AllowNull():
            return f"~ {step.type_name}.{step.property_name} may be null"
        case WidenProperty():
            return f"~ {step.type_name}.{step.property_name}: {step.from_} becomes {step.to}"
        case NarrowEnum():
            also = f", also allows {', '.join(step.added_values)}" if step.added_values else ""
            gone = ", ".join(step.removed_values)
            return f"~ {step.type_name}.{step.property_name} no longer allows {gone}{also}"
        case ChangeCardinality():
            return f"~ {step.type_kind.value} {step.name}: @card({step.from_}) becomes @card({step.to})"

        case AddType():
            return f"+ {step.type_kind.value} {step.name}"
        case RenameType():
            return f"~ {step.type_kind.value} {step.from_} is renamed to {step.to}"
        case AddProperty():
            filled = "" if step.backfill is None else ", existing rows get the default"
            filled = filled if step.fill is None else f", existing rows get {step.fill}"
            return f"+ {step.type_name}.{step.property_name}: {step.property_type}{filled}"
        case RenameProperty():
            return f"~ {step.type_name}.{step.from_} is renamed to {step.to}"
        case AddConstraint():
            return f"+ {step.type_name} {constraint_text(step.constraint)}"
        case ExtendEnum():
            return f"~ {step.type_name}.{step.property_name} also allows {', '.join(step.added_values)}"
        case UpdateTypeMetadata():
            return f"~ {step.type_kind.value} {step.name}: {_names(step.annotations)}"
        case UpdatePropertyMetadata():
            return f"~ {step.type_name}.{step.property_name}: {_names(step.annotations)}"
        case DropProperty():
            return f"- {step.type_name}.{step.property_name} ({step.mode.value})"
        case DropType():
            return f"- {step.type_kind.value} {step.name} ({step.mode.value})"
        case UnsupportedChange():
            return f"! {step.entity}: {step.message}"
        case _:
            assert_never(step)


def _names(annotations: dict[str, Any]) -> str:
    changed = (f"@{name}{' removed' if value is None else ' changed'}" for name, value in annotations.items())
    return ", ".join(changed)


def summary(plan: SchemaPlan) -> str:
    """The last line of a plan."""
    if plan.is_empty:
        return "no change"
    steps = output.counted(len(plan.steps), "step")
    unchecked = any(work_of(step) is StepWork.CHECK for step in plan.steps)
    refused = sum(isinstance(step, UnsupportedChange) for step in plan.steps)
    if refused:
        return f"{steps}, not supported: {refused} refused"
    return f"{steps}, supported if the rows keep the new rules" if unchecked else f"{steps}, supported"


def cost_line(cost: "StepCost") -> str:
    """What a step does to rows, behind its line."""
    if not cost.rows:
        return f"  [{cost.work.value}]"
    rows, size = output.counted(cost.rows, "row"), output.counted(cost.bytes, "byte")
    return f"  [{cost.work.value} of {rows}, about {size}, {cost.engine}]"


def to_json(plan: SchemaPlan, costs: "Sequence[StepCost]" = ()) -> dict[str, Any]:
    """`supported`, `step_count` and the steps, each with its class and, on a graph, what it costs."""
    told = [cost.to_dict() for cost in costs] or [{"work": work_of(step).value} for step in plan.steps]
    return {
        "supported": plan.supported,
        "step_count": len(plan.steps),
        "steps": [
            {**step.to_dict(), "class": class_of(step).value, **each}
            for step, each in zip(plan.steps, told, strict=True)
        ],
    }
