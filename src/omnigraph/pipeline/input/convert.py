"""JSON values of one property, as Arrow arrays, to the array that is stored.

Pure and vectorised. A value that does not fit becomes null and its row is reported; nothing raises for data.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.catalog.blobs import ASKED, PREFIX, decode_base64, stored_content
from omnigraph.catalog.schema import Property
from omnigraph.catalog.types import FLOAT_KINDS, PropertyType, ScalarKind, arrow_type

TEMPORAL_KINDS: Final = frozenset({ScalarKind.DATE, ScalarKind.DATETIME})
_DATE_FORM: Final = r"^\d{4}-\d{2}-\d{2}$"
_DATETIME_FORM: Final = r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:[0-5]\d)?)?$"
_SPELLINGS: Final = (
    (r"^(.{10})[t ]", r"\1T"),
    (",", "."),
    ("z$", "Z"),
    (r"(T.*[+-]\d{2})(\d{2})$", r"\1:\2"),
    (r"(T.*[+-]\d{2})$", r"\1:00"),
)
"""What else `catalog.scalars.parse_datetime` takes, and the one form Arrow reads."""
_ZONE: Final = r"T.*(Z|[+-]\d{2}:\d{2})$"
_DAY_MS: Final = 86_400_000
_PER_DAY: Final = {"D": 1, "s": 86_400, "ms": _DAY_MS, "us": _DAY_MS * 1_000, "ns": _DAY_MS * 1_000_000}
"""How many of a unit make a day."""
_UNITS_PER_DAY: Final = {ScalarKind.DATE: 1, ScalarKind.DATETIME: _DAY_MS}
_DAYS: Final = (-719_162, 2_932_897)
"""The first day of the year 1 and that of the year 10000, counted from 1970-01-01."""
_VALUE_SHOWN_CHARS_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Refusal:
    """Rows whose value of one property does not fit, and the sentence for one of them."""

    kind: str
    rows: NDArray[np.int64]
    describe: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Converted:
    """The stored column and what was refused on the way."""

    column: pa.Array
    refusals: tuple[Refusal, ...] = ()


def wire_type(type_: PropertyType, *, temporal_numbers: bool = False) -> pa.DataType:
    """The Arrow type a JSON value of this property is parsed as, before conversion."""
    if type_.is_vector:
        return pa.list_(pa.float64())
    if type_.kind in TEMPORAL_KINDS:
        scalar = pa.int64() if temporal_numbers else pa.string()
    elif type_.kind in FLOAT_KINDS:
        scalar = pa.float64()
    elif type_.is_blob:
        scalar = pa.string()
    else:
        scalar = arrow_type(PropertyType(type_.kind))
    return pa.list_(scalar) if type_.is_list else scalar


def convert(values: pa.Array, prop: Property) -> Converted:
    """The stored form of parsed JSON values of one property."""
    type_ = prop.type
    if type_.is_vector:
        return _vector(values, prop)
    if type_.is_list:
        return _list(values, prop)
    return _scalar(values, prop)


def _scalar(values: pa.Array, prop: Property) -> Converted:
    kind = prop.type.kind
    if kind is ScalarKind.BLOB:
        return _blob(values, prop)
    stored, bad = scalar_values(values, kind)
    return Converted(stored, misfits(values, prop, bad))


def misfits(values: pa.Array, prop: Property, bad: NDArray[np.bool_]) -> tuple[Refusal, ...]:
    """The refusal of the rows in `bad`, each with its value; nothing when there are none."""
    if not bad.any():
        return ()

    def describe(row: int) -> str:
        return f"{prop.name}: {shown(_one_value(values, row))} is not {expectation(prop.type)}"

    return (Refusal("format", np.flatnonzero(bad), describe),)


def scalar_values(values: pa.Array, kind: ScalarKind) -> tuple[pa.Array, NDArray[np.bool_]]:
    """The stored scalars and a mask of those that do not fit; a list gives its flattened elements here."""
    target = arrow_type(PropertyType(kind))
    if kind in TEMPORAL_KINDS:
        stored, bad = _moments(values, kind)
        outside = _outside_years(stored, _UNITS_PER_DAY[kind])
        return (_without(stored, outside), bad | outside) if outside.any() else (stored, bad)
    if kind in FLOAT_KINDS:
        return _floats(values, target)
    if values.type == target:
        return values, _none_bad(values)
    try:
        return values.cast(target), _none_bad(values)
    except pa.ArrowInvalid:  # a whole number of a wider type that does not fit
        bad = refused_by(lambda numbers: numbers.cast(target), values)
        return _without(values, bad).cast(target), bad


def _none_bad(values: pa.Array) -> NDArray[np.bool_]:
    return np.zeros(len(values), np.bool_)


def _mask(condition: Any) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(condition, False).to_numpy(zero_copy_only=False), np.bool_)


def _without(values: pa.Array, bad: NDArray[np.bool_]) -> pa.Array:
    return pc.if_else(pa.array(bad), pa.scalar(None, values.type), values)


def _floats(values: pa.Array, target: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
    narrowed = values.cast(target, safe=False)
    bad = _mask(pc.invert(pc.is_finite(narrowed)))
    return (_without(narrowed, bad) if bad.any() else narrowed), bad


def _moments(values: pa.Array, kind: ScalarKind) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Texts, numbers or moments as moments."""
    if pa.types.is_string(values.type):
        return _dates(values) if kind is ScalarKind.DATE else _datetimes(values)
    target = arrow_type(PropertyType(kind))
    if not pa.types.is_integer(values.type):
        return _in_units(values, target)
    bad = _outside_years(values, _UNITS_PER_DAY[kind])
    numbers = _without(values, bad) if bad.any() else values
    if kind is ScalarKind.DATE:
        return numbers.cast(pa.int32()).cast(target), bad
    return numbers.cast(pa.int64()).cast(pa.timestamp("ms")).cast(target), bad


def _in_units(values: pa.Array, target: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Dates and moments of any unit; cut to the unit of storage, without a zone taken for UTC."""
    kind = values.type
    if not pa.types.is_timestamp(kind):
        bad = _outside_years(values, 1 if pa.types.is_date32(kind) else _DAY_MS)
        return (_without(values, bad) if bad.any() else values).cast(target), bad
    bad = _outside_years(values, _PER_DAY[kind.unit])
    fit = _without(values, bad) if bad.any() else values
    if kind.unit in {"us", "ns"}:
        fit = pc.floor_temporal(fit, unit="millisecond")
    return fit.cast(pa.timestamp("ms", tz=kind.tz), safe=False).cast(target), bad


def _outside_years(moments: pa.Array, per_day: int) -> NDArray[np.bool_]:
    """Which moments, or numbers of units since 1970, lie outside the years 1 to 9999.

    No text of this system spells them, and a Python date cannot hold them.
    """
    kind = moments.type
    if not pa.types.is_integer(kind):
        moments = moments.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    numbers = np.asarray(pc.fill_null(moments, 0))
    return (numbers < _DAYS[0] * per_day) | (numbers >= _DAYS[1] * per_day)


def _dates(values: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    bad = _mask(pc.invert(pc.match_substring_regex(values, _DATE_FORM)))
    return _parsed(values, bad, lambda texts: texts.cast(pa.date32()), pa.date32())


def _datetimes(values: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    target = pa.timestamp("ms", tz="UTC")
    bad = _not_datetimes(values)
    if bad.any():
        for form, read in _SPELLINGS:
            values = pc.replace_substring_regex(values, form, read)
        bad = _not_datetimes(values)
    # Arrow refuses more digits than its unit holds; the rule is to cut them off.
    texts = pc.replace_substring_regex(values, r"(\.\d{3})\d+", r"\1")
    texts = pc.replace_substring_regex(texts, r"T(\d{2}:\d{2})(Z|[+-]|$)", r"T\1:00\2")
    zoned = _mask(pc.match_substring_regex(texts, _ZONE))
    if not zoned.any():
        return _parsed(texts, bad, lambda t: t.cast(pa.timestamp("ms")).cast(target), target)
    if zoned.all():
        return _parsed(texts, bad, lambda t: t.cast(target), target)
    texts = pc.if_else(pa.array(zoned), texts, pc.binary_join_element_wise(_with_time(texts), "Z", ""))
    return _parsed(texts, bad, lambda t: t.cast(target), target)


def _not_datetimes(texts: pa.Array) -> NDArray[np.bool_]:
    return _mask(pc.invert(pc.match_substring_regex(texts, _DATETIME_FORM)))


def _with_time(texts: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(texts, r"^(\d{4}-\d{2}-\d{2})$", r"\1T00:00:00")


def _parsed(
    texts: pa.Array, bad: NDArray[np.bool_], parse: Callable[[pa.Array], pa.Array], target: pa.DataType
) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Parse all at once; only when one of them is no real date, find which."""
    fit = _without(texts, bad) if bad.any() else texts
    try:
        return parse(fit), bad
    except pa.ArrowInvalid:
        bad = bad | refused_by(parse, fit)
        return parse(_without(texts, bad)).cast(target), bad


def refused_by(parse: Callable[[pa.Array], object], values: pa.Array) -> NDArray[np.bool_]:
    """Which values `parse` refuses, by halving what it refuses.

    Cost: a few calls for each refused value, whatever the number of the others.
    """
    refused = np.zeros(len(values), np.bool_)
    pieces = [(0, len(values))]
    while pieces:
        begin, end = pieces.pop()
        try:
            parse(values.slice(begin, end - begin))
        except pa.ArrowInvalid:
            middle = (begin + end) // 2
            if middle == begin:
                refused[begin] = True
            else:
                pieces += [(begin, middle), (middle, end)]
    return refused


def _list(values: pa.Array, prop: Property) -> Converted:
    target = arrow_type(prop.type)
    elements = pc.list_flatten(values)
    parents = np.asarray(pc.list_parent_indices(values).to_numpy(zero_copy_only=False), np.int64)
    stored, bad = scalar_values(elements, prop.type.kind)
    bad = bad | np.asarray(elements.is_null().to_numpy(zero_copy_only=False), np.bool_)
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]).astype(np.int32)
    mask = values.is_null() if values.null_count else None
    column = pa.ListArray.from_arrays(pa.array(offsets), stored, type=target, mask=mask)
    if not bad.any():
        return Converted(column)
    rows = np.unique(parents[bad])
    _, firsts = np.unique(parents[bad], return_index=True)
    wrong = dict(zip(rows.tolist(), np.flatnonzero(bad)[firsts].tolist(), strict=True))

    def describe(row: int) -> str:
        element = shown(_one_value(elements, wrong[row]))
        return f"{prop.name}: the element {element} is not {expectation(PropertyType(prop.type.kind))}"

    refused = np.zeros(len(values), np.bool_)
    refused[rows] = True
    return Converted(_without(column, refused), (Refusal("format", rows, describe),))


def _vector(values: pa.Array, prop: Property) -> Converted:
    dim = prop.type.vector_dim or 0
    present = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False))
    bad = present & (lengths != dim)
    elements = pc.list_flatten(values)
    stored, not_finite = _floats(elements, pa.float32())
    not_finite = not_finite | np.asarray(elements.is_null().to_numpy(zero_copy_only=False), np.bool_)
    if not_finite.any():
        parents = np.asarray(pc.list_parent_indices(values).to_numpy(zero_copy_only=False), np.int64)
        bad[parents[not_finite]] = True
    full = np.zeros((len(values), dim), np.float32)
    fit = present & ~bad
    if fit.all():
        flat: pa.Array = stored
    else:
        keep = np.repeat(fit, lengths.astype(np.int64))
        full[fit] = np.asarray(stored.to_numpy(zero_copy_only=False))[keep].reshape(-1, dim)
        flat = pa.array(full.reshape(-1), pa.float32())
    mask = None if fit.all() else pa.array(~fit)
    column = pa.FixedSizeListArray.from_arrays(flat, type=arrow_type(prop.type), mask=mask)
    if not bad.any():
        return Converted(column)

    def describe(row: int) -> str:
        if lengths[row] != dim:
            return f"{prop.name}: a vector of {lengths[row]} numbers, expected {dim}"
        return f"{prop.name}: every member of a vector is a number that is finite in single precision"

    return Converted(column, (Refusal("format", np.flatnonzero(bad), describe),))


def _blob(values: pa.Array, prop: Property) -> Converted:
    """Cells from texts. There is no Arrow kernel for base64: one call per value. Addresses are only noted."""
    cells: list[bytes | None] = []
    bad: list[int] = []
    for row, text in enumerate(values.to_pylist()):
        cell: bytes | None = None
        if text is not None and not text.startswith(PREFIX):
            cell = ASKED + text.encode()
        elif text is not None:
            content = decode_base64(text[len(PREFIX) :])
            if content is None:
                bad.append(row)
            else:
                cell = stored_content(content)
        cells.append(cell)
    column = pa.array(cells, arrow_type(prop.type))
    if not bad:
        return Converted(column)

    def describe(_row: int) -> str:
        return f"{prop.name}: not padded standard base64"

    return Converted(column, (Refusal("format", np.array(bad, np.int64), describe),))


def expectation(type_: PropertyType) -> str:
    """What a record may hold for a property of this type, as the end of a sentence."""
    if type_.is_vector:
        return f"a JSON array of {type_.vector_dim} numbers"
    if type_.is_list:
        return f"a JSON array of {type_.kind.value}"
    match type_.kind:
        case ScalarKind.DATE:
            return "a date of the years 1 to 9999 (YYYY-MM-DD or days since 1970-01-01)"
        case ScalarKind.DATETIME:
            return "a date and time of the years 1 to 9999 (ISO 8601 or milliseconds since 1970-01-01)"
        case ScalarKind.F32 | ScalarKind.F64:
            return f"a finite {type_.kind.value} number"
        case ScalarKind.BLOB:
            return "a Blob (base64:… or a URI)"
        case ScalarKind.BOOL:
            return "true or false"
        case ScalarKind.STRING:
            return "a string"
        case ScalarKind.I32 | ScalarKind.I64 | ScalarKind.U32 | ScalarKind.U64:
            return f"an integer of {type_.kind.value}"


def _one_value(values: pa.Array, row: int) -> Any:
    """One value for a message. A moment outside the years that have a text is shown as its number."""
    one = values.slice(row, 1)
    unit = _unit(one.type)
    if unit is None:
        found = one[0].as_py()
        return str(found) if pa.types.is_temporal(one.type) else found
    number = one.cast(pa.int32() if pa.types.is_date32(one.type) else pa.int64())[0].as_py()
    if number is None or _outside_years(one, _PER_DAY[unit]).any():
        return number
    zone = "Z" if getattr(one.type, "tz", None) else ""
    text, _, fraction = str(np.datetime64(number, unit)).partition(".")
    fraction = fraction.rstrip("0")
    return (f"{text}.{fraction}" if fraction else text) + zone


def _unit(type_: pa.DataType) -> Any:
    """What a moment of this type counts; None where it is no moment but a time or a duration."""
    if pa.types.is_date32(type_):
        return "D"
    if str(type_) == "date64[ms]":
        return "ms"
    return type_.unit if pa.types.is_timestamp(type_) else None


def shown(value: Any) -> str:
    """A value for a message, quoted when it is text and cut when it is long."""
    return shown_text(f"'{value}'" if isinstance(value, str) else _json_word(value), _VALUE_SHOWN_CHARS_MAX)


def shown_text(text: str, chars_max: int = 200) -> str:
    """A text for a message: one line, cut when it is long."""
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def _json_word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return str(value)
