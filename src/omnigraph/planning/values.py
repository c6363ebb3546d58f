"""Values of the query language, and how a value comes to fit a property.

Python values stand for language values everywhere above the parser: str, bool, int, float, `datetime.date`,
an aware `datetime.datetime` in UTC cut to milliseconds, a tuple for lists and vectors, None for null.
"""

import datetime as dt
from typing import TypeAlias

from omnigraph.catalog.scalars import Misfit, finite
from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_BOUNDS, PropertyType, ScalarKind

Value: TypeAlias = "str | bytes | bool | int | float | dt.date | dt.datetime | tuple[Value, ...] | None"


def fit(value: Value, type_: PropertyType) -> Value:
    """The value as one of this property type, for assignment; Misfit when it does not fit.

    None fits every type; the caller decides about nullability. Integers fit floats, decimals fit integers
    only when integral, and a list fits a vector of its length. Enum membership is checked here as well.
    """
    if value is None:
        return None
    if type_.vector_dim is not None:
        return _fit_vector(value, type_.vector_dim)
    if type_.is_list:
        if not isinstance(value, tuple):
            raise Misfit("a list is expected")
        if any(item is None for item in value):
            raise Misfit("a list cannot hold null")
        return tuple(fit_scalar(item, type_.kind) for item in value)
    fitted = fit_scalar(value, type_.kind)
    if type_.enum_values is not None and fitted not in type_.enum_values:
        raise Misfit(f"the value is not one of {', '.join(type_.enum_values)}")
    return fitted


def _fit_vector(value: Value, dimensions: int) -> Value:
    if not isinstance(value, tuple):
        raise Misfit("a list of numbers is expected")
    if len(value) != dimensions:
        raise Misfit(f"{dimensions} numbers are expected, not {len(value)}")
    if any(item is None for item in value):
        raise Misfit("a vector cannot hold null")
    return tuple(fit_scalar(item, ScalarKind.F32) for item in value)


def fit_scalar(value: Value, kind: ScalarKind) -> Value:
    """A value other than null as one of this scalar kind, or Misfit."""
    if kind in INTEGER_BOUNDS:
        return _fit_integer(value, kind)
    if kind in FLOAT_KINDS:
        return _fit_float(value, kind)
    if isinstance(value, dt.datetime):
        fits = kind is ScalarKind.DATETIME
    elif isinstance(value, dt.date):
        fits = kind is ScalarKind.DATE
    elif isinstance(value, bool):
        fits = kind is ScalarKind.BOOL
    else:
        fits = isinstance(value, str) and kind in {ScalarKind.STRING, ScalarKind.BLOB}
    if not fits:
        raise Misfit(f"the value is not a {kind}")
    return value


def _fit_integer(value: Value, kind: ScalarKind) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Misfit(f"the value is not an integer of type {kind}")
    low, high = INTEGER_BOUNDS[kind]
    if not low <= value <= high:
        raise Misfit(f"{value} does not fit {kind}")
    return value


def _fit_float(value: Value, kind: ScalarKind) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misfit("the value is not a number")
    return finite(value, kind)
