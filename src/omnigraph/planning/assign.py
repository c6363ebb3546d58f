"""The value an assignment stores in one run."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace

from omnigraph.catalog.scalars import Misfit
from omnigraph.catalog.schema import EdgeType, NodeType, Property
from omnigraph.core.errors import PropertyValueError
from omnigraph.planning import ir
from omnigraph.planning.values import Value, fit


def assigned_value(
    expr: ir.ValueExpr,
    prop: Property,
    owner: NodeType | EdgeType,
    *,
    params: Mapping[str, Value],
    now: dt.datetime | None,
) -> Value:
    """The value of an assignment, fitted to its property; None is null.

    Raises PropertyValueError when a number is out of range or a list does not fit. Whether null is allowed
    and whether a parameter is one of the enum's values is for the validator of the whole write.
    """
    value = ir.value_of(expr, params, now)
    if isinstance(expr, ir.Literal):
        return value  # fitted when the query was checked
    unrestricted = prop.type if prop.type.enum_values is None else replace(prop.type, enum_values=None)
    try:
        return fit(value, unrestricted)
    except Misfit as misfit:
        raise PropertyValueError(
            entity_kind=owner.kind.value,
            type_name=owner.name,
            property_name=prop.name,
            message=f"{owner.name}.{prop.name}: {misfit}",
        ) from None
