"""Values of the query language: their text forms, and how a value comes to fit a property.

Python values stand for language values everywhere above the parser: str, bool, int, float, `datetime.date`,
an aware `datetime.datetime` in UTC cut to milliseconds, a tuple for lists and vectors, None for null.
"""

import datetime as dt
import math
import re
import struct
from typing import Final, TypeAlias

from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_BOUNDS, PropertyType, ScalarKind

Value: TypeAlias = "str | bool | int | float | dt.date | dt.datetime | tuple[Value, ...] | None"

_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_DATETIME: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})"
    r"(?:[Tt ](\d{2}:\d{2})(?::(\d{2})(?:[.,](\d+))?)?(?:([Zz])|([+-]\d{2}):?(\d{2}))?)?",
    re.ASCII,
)


class Misfit(Exception):  # noqa: N818 - a signal; callers turn it into a diagnostic or a typed error
    """A value does not fit a type. The message is the reason, without the value."""


def parse_date(text: str) -> dt.date:
    """The date of `YYYY-MM-DD`, or Misfit."""
    if _DATE.fullmatch(text):
        try:
            return dt.date.fromisoformat(text)
        except ValueError:
            pass
    raise Misfit("the text is not a date of the form YYYY-MM-DD")


def parse_datetime(text: str) -> dt.datetime:
    """The instant of an ISO 8601 text in UTC, cut to milliseconds, or Misfit.

    No offset means UTC, a date alone means midnight.
    """
    found = _DATETIME.fullmatch(text)
    if found is None:
        raise Misfit("the text is not a date and time of the form YYYY-MM-DDTHH:MM:SSZ")
    day, minutes, seconds, fraction, _, hours_off, minutes_off = found.groups()
    milliseconds = ((fraction or "") + "000")[:3]
    offset = f"{hours_off}:{minutes_off}" if hours_off else "+00:00"
    try:
        moment = dt.datetime.fromisoformat(
            f"{day}T{minutes or '00:00'}:{seconds or '00'}.{milliseconds}{offset}"
        )
        return moment.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise Misfit("the text is not a date and time that exists") from None


def as_instant(moment: dt.datetime) -> dt.datetime:
    """A moment as a language value: UTC, cut to milliseconds; without a zone it is taken for UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    try:
        moment = moment.astimezone(dt.UTC)
    except OverflowError:
        raise Misfit("the moment is outside the years 1 to 9999") from None
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def round_f32(value: float) -> float:
    """The nearest single-precision number; infinite when there is none."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


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
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if kind is ScalarKind.F32:
        number = round_f32(number)
    if not math.isfinite(number):
        raise Misfit(f"the number is not a finite {kind}")
    return number
