"""Scalars as every text of this system spells them: dates, moments, numbers of limited precision."""

import datetime as dt
import math
import re
import struct
from typing import Final, cast

from omnigraph.catalog.types import ScalarKind

_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_DATETIME: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})"
    r"(?:[Tt ](\d{2}:\d{2})(?::(\d{2})(?:[.,](\d+))?)?(?:([Zz])|([+-]\d{2})(?::?([0-5]\d))?)?)?",
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
    offset = f"{hours_off}:{minutes_off or '00'}" if hours_off else "+00:00"
    try:
        moment = dt.datetime.fromisoformat(
            f"{day}T{minutes or '00:00'}:{seconds or '00'}.{milliseconds}{offset}"
        )
        return moment.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise Misfit("the text is not a date and time that exists") from None


def as_instant(moment: dt.datetime) -> dt.datetime:
    """A moment as a language value: UTC, cut to milliseconds; without a zone it is taken for UTC."""
    if not isinstance(cast("object", moment.year), int):  # pandas has a moment that is none, NaT
        raise Misfit("it is not a moment")
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


def finite(value: float, kind: ScalarKind) -> float:
    """A number as one of a float kind, in the precision of that kind, or Misfit."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if kind is ScalarKind.F32:
        number = round_f32(number)
    if not math.isfinite(number):
        raise Misfit(f"the number is not a finite {kind}")
    return number
