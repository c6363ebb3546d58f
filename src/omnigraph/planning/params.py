"""Parameter values: a JSON-like object against the declarations of a query."""

import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from omnigraph.catalog.scalars import Misfit, as_instant, finite, parse_date, parse_datetime
from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_BOUNDS, PropertyType, ScalarKind
from omnigraph.core.errors import BadRequest, MissingParameter, ParameterTypeError, UnknownParameter
from omnigraph.language.diagnostics import near_names
from omnigraph.planning import ir
from omnigraph.planning.values import Value

JAVASCRIPT_INTEGER_MAX: Final = 2**53 - 1
_INTEGER_TEXT: Final = re.compile(r"-?[0-9]{1,25}")
_SPELLED_MAX: Final = 10**30


def bind_params(
    plan: ir.Plan, given: Mapping[str, Any] | None, *, javascript_safe: bool = False
) -> dict[str, Value]:
    """A typed value for every declared parameter; an omitted nullable one is None.

    Raises MissingParameter, UnknownParameter or ParameterTypeError before anything runs. `javascript_safe`
    refuses integers a JavaScript host cannot have meant exactly, and takes integral floats for integers.
    """
    if given is None:
        given = {}
    if not isinstance(cast("object", given), Mapping):  # a caller may hand over anything
        raise BadRequest("parameters are an object of names and values")
    declared = {param.name: param for param in plan.params}
    for name in given:
        if name not in declared:
            raise UnknownParameter(str(name), candidates=near_names(str(name), declared))
    bound: dict[str, Value] = {}
    for param in plan.params:
        value = given.get(param.name)
        if value is None:
            if not param.nullable:
                raise _missing(param, present=param.name in given)
            bound[param.name] = None
            continue
        try:
            bound[param.name] = _convert(value, param.type, javascript_safe=javascript_safe)
        except Misfit as misfit:
            raise ParameterTypeError(param.name, expected=param.type.text(), reason=str(misfit)) from None
    _check_search_numbers(plan, bound)
    return bound


def binder(plan: ir.Plan) -> Callable[[Mapping[str, Any] | None], Mapping[str, Value]]:
    """`bind_params` of one plan, made once.

    Values that are already what their declaration says are taken as they are, without looking at each
    possibility; anything else, errors included, is left to `bind_params`.
    """
    kinds = {param.name: param.type.kind for param in plan.params if param.type.is_scalar}
    plain = len(kinds) == len(plan.params) and all(kind in _TAKEN for kind in kinds.values())
    if not plain or (isinstance(plan, ir.ReadPlan) and plan.number_params):
        return lambda given: bind_params(plan, given)
    checks = tuple((name, _TAKEN[kind]) for name, kind in kinds.items())

    def bind(given: Mapping[str, Any] | None) -> Mapping[str, Value]:
        if given is not None and given.__class__ is dict:
            values = dict(given)
            for name, taken in checks:
                if name not in values or not taken(values[name]):
                    break
            else:
                if len(values) == len(checks):
                    return values
        return bind_params(plan, given)

    return bind


def _taken_integer(kind: ScalarKind) -> Callable[[Any], bool]:
    low, high = INTEGER_BOUNDS[kind]
    return lambda value: type(value) is int and low <= value <= high


_TAKEN: Final[Mapping[ScalarKind, Callable[[Any], bool]]] = {
    # A lone surrogate is not text; ASCII has none.
    ScalarKind.STRING: lambda value: type(value) is str and value.isascii(),
    ScalarKind.BOOL: lambda value: type(value) is bool,
    ScalarKind.F64: lambda value: type(value) is float and math.isfinite(value),
    **{kind: _taken_integer(kind) for kind in INTEGER_BOUNDS},
}
"""For each kind a test for values that need no conversion."""


def _missing(param: ir.Parameter, *, present: bool) -> MissingParameter:
    if present:
        return MissingParameter(
            param.name, message=f"parameter '${param.name}' is required and cannot be null"
        )
    return MissingParameter(param.name)


def _check_search_numbers(plan: ir.Plan, bound: Mapping[str, Value]) -> None:
    """Numbers that steer a search: the k of rrf is at least 1, the edits of fuzzy at least 0."""
    if not isinstance(plan, ir.ReadPlan):
        return
    for param, least, what in plan.number_params:
        value = bound[param]
        if value is None:
            raise ParameterTypeError(param, expected="an integer", reason=f"{what} cannot be null")
        if isinstance(value, int) and value < least:
            raise ParameterTypeError(param, expected="an integer", reason=f"{what} must be at least {least}")


def _convert(value: Any, type_: PropertyType, *, javascript_safe: bool) -> Value:
    if type_.vector_dim is not None:
        items = _items(value)
        if len(items) != type_.vector_dim:
            raise Misfit(f"{type_.vector_dim} numbers are needed, {len(items)} were given")
        return _plain_floats(items) or tuple(_number(item, ScalarKind.F32) for item in items)
    if type_.is_list:
        items = _items(value)
        if any(item is None for item in items):
            raise Misfit("a list cannot hold null")
        return tuple(_scalar(item, type_.kind, javascript_safe=javascript_safe) for item in items)
    return _scalar(value, type_.kind, javascript_safe=javascript_safe)


def _plain_floats(items: Sequence[Any]) -> tuple[float, ...] | None:
    """Floats in single precision, all at once; None when one of them needs a closer look."""
    if {type(item) for item in items} != {float}:
        return None
    form = f"<{len(items)}f"
    try:
        rounded = struct.unpack(form, struct.pack(form, *items))
    except OverflowError:
        return None
    return rounded if all(map(math.isfinite, rounded)) else None


def _items(value: Any) -> Sequence[Any]:
    if hasattr(value, "tolist"):  # numpy and Arrow arrays, without importing either
        value = value.tolist()
    if isinstance(value, list | tuple):
        return cast("Sequence[Any]", value)
    raise Misfit("an array is needed")


def _scalar(value: Any, kind: ScalarKind, *, javascript_safe: bool) -> Value:
    if hasattr(value, "item"):
        value = value.item()
    if kind in INTEGER_BOUNDS:
        return _integer(value, kind, javascript_safe=javascript_safe)
    if kind in FLOAT_KINDS:
        return _number(value, kind)
    match kind:
        case ScalarKind.BOOL:
            if isinstance(value, bool):
                return value
            raise Misfit("true or false is needed")
        case ScalarKind.DATE:
            if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
                return value
            return parse_date(_text(value))
        case ScalarKind.DATETIME:
            return as_instant(value) if isinstance(value, dt.datetime) else parse_datetime(_text(value))
        case _:
            return _text(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Misfit("a string is needed")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Misfit("a lone surrogate is not text") from None
    return value


def _integer(value: Any, kind: ScalarKind, *, javascript_safe: bool) -> int:
    if isinstance(value, str):
        if not _INTEGER_TEXT.fullmatch(value):
            raise Misfit("the text is not a decimal integer")
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
        if javascript_safe and abs(number) > JAVASCRIPT_INTEGER_MAX:
            raise Misfit("a number beyond 2^53 - 1 is passed as a decimal string")
    elif javascript_safe and isinstance(value, float) and value.is_integer():
        number = int(value)
    else:
        raise Misfit("an integer is needed")
    low, high = INTEGER_BOUNDS[kind]
    if not low <= number <= high:
        # Python refuses to spell numbers of thousands of digits.
        raise Misfit(f"{number if abs(number) < _SPELLED_MAX else 'the number'} does not fit {kind}")
    return number


def _number(value: Any, kind: ScalarKind) -> float:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misfit("a number is needed")
    return finite(value, kind)
