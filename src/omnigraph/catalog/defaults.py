"""Values of `@default`: a literal of the schema as a value of the property's type."""

import datetime as dt
from decimal import Decimal
from typing import Final

from omnigraph.catalog.scalars import Misfit, finite, parse_date, parse_datetime
from omnigraph.catalog.schema import Default, DefaultValue
from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_BOUNDS, PropertyType, ScalarKind
from omnigraph.language.schema_tree import Literal, LiteralKind

_DIGITS_MAX: Final = 400  # the largest finite F64 has 309 digits before the point


class DefaultMismatchError(ValueError):
    """The literal is not a value of the type; the text says what is expected."""


def default_value(literal: Literal, type_: PropertyType) -> Default:
    """The value `literal` stands for. Raises DefaultMismatchError when it does not fit `type_`."""
    if not type_.is_scalar or type_.is_blob:
        raise DefaultMismatchError(f"a {type_.text()} property has no default")
    return Default(_value(literal, type_))


def _value(literal: Literal, type_: PropertyType) -> DefaultValue:
    kind = type_.kind
    if type_.enum_values is not None:
        # An enum value is never quoted where it is declared, so the bare form is the natural one here too.
        if (
            literal.kind not in {LiteralKind.STRING, LiteralKind.NAME}
            or literal.value not in type_.enum_values
        ):
            raise DefaultMismatchError(f"one of {', '.join(type_.enum_values)} is expected")
        return literal.value
    if kind in INTEGER_BOUNDS:
        return _integer(literal, kind)
    if kind in FLOAT_KINDS:
        return _float(literal, kind)
    match kind:
        case ScalarKind.STRING if literal.kind is LiteralKind.STRING:
            return literal.value
        case ScalarKind.BOOL if literal.kind is LiteralKind.BOOLEAN:
            return literal.text == "true"
        case ScalarKind.DATE if literal.kind is LiteralKind.STRING:
            return _date(literal.value)
        case ScalarKind.DATETIME if literal.kind is LiteralKind.STRING:
            return _datetime(literal.value)
        case _:
            raise DefaultMismatchError(f"a {kind.value} value is expected")


def _integer(literal: Literal, kind: ScalarKind) -> int:
    low, high = INTEGER_BOUNDS[kind]
    digits = literal.text.lstrip("0") or "0"
    if literal.kind is not LiteralKind.INTEGER or len(digits) > 20 or not low <= int(digits) <= high:
        raise DefaultMismatchError(f"an integer of type {kind.value} is expected")
    return int(digits)


def _float(literal: Literal, kind: ScalarKind) -> float:
    expected = f"a finite number of type {kind.value} is expected"
    if literal.kind not in {LiteralKind.INTEGER, LiteralKind.DECIMAL} or len(literal.text) > _DIGITS_MAX:
        raise DefaultMismatchError(expected)
    try:
        return finite(float(Decimal(literal.text)), kind)
    except Misfit:
        raise DefaultMismatchError(expected) from None


def _date(text: str) -> dt.date:
    try:
        return parse_date(text)
    except Misfit:
        raise DefaultMismatchError('a date is expected, as in "2026-01-31"') from None


def _datetime(text: str) -> dt.datetime:
    try:
        return parse_datetime(text)
    except Misfit:
        raise DefaultMismatchError('a moment is expected, as in "2026-01-31T08:30:00Z"') from None
