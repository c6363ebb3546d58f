"""JSON values of one property, as Arrow arrays, to the array that is stored.

Pure and vectorised. A value that does not fit becomes null and its row is reported; nothing raises for data.
"""

import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.catalog.schema import Property
from omnigraph.catalog.types import FLOAT_KINDS, PropertyType, ScalarKind, arrow_type

TEMPORAL_KINDS: Final = frozenset({ScalarKind.DATE, ScalarKind.DATETIME})
_DATE_FORM: Final = r"^\d{4}-\d{2}-\d{2}$"
_DATETIME_FORM: Final = r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})?)?$"
_ZONE: Final = r"T.*(Z|[+-]\d{2}:\d{2})$"
_BASE64_PREFIX: Final = "base64:"
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
    if not bad.any():
        return Converted(stored)

    def describe(row: int) -> str:
        return f"{prop.name}: {shown(values[row].as_py())} is not {expectation(prop.type)}"

    return Converted(stored, (Refusal("format", np.flatnonzero(bad), describe),))


def scalar_values(values: pa.Array, kind: ScalarKind) -> tuple[pa.Array, NDArray[np.bool_]]:
    """The stored scalars and a mask of those that do not fit; a list gives its flattened elements here."""
    target = arrow_type(PropertyType(kind))
    if kind is ScalarKind.DATE:
        if values.type == target:  # elements of a list column that holds dates already
            return values, _none_bad(values)
        return _dates(values) if pa.types.is_string(values.type) else _day_numbers(values)
    if kind is ScalarKind.DATETIME:
        if pa.types.is_string(values.type):
            return _datetimes(values)
        return values.cast(pa.int64()).cast(pa.timestamp("ms")).cast(target), _none_bad(values)
    if kind in FLOAT_KINDS:
        return _floats(values, target)
    return (values if values.type == target else values.cast(target)), _none_bad(values)


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


def _day_numbers(values: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    low, high = -(2**31), 2**31 - 1
    bad = _mask(pc.or_(pc.less(values, low), pc.greater(values, high)))
    return _without(values, bad).cast(pa.int32()).cast(pa.date32()), bad


def _dates(values: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    bad = _mask(pc.invert(pc.match_substring_regex(values, _DATE_FORM)))
    return _parsed(values, bad, lambda texts: texts.cast(pa.date32()), pa.date32())


def _datetimes(values: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    target = pa.timestamp("ms", tz="UTC")
    bad = _mask(pc.invert(pc.match_substring_regex(values, _DATETIME_FORM)))
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


def _with_time(texts: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(texts, r"^(\d{4}-\d{2}-\d{2})$", r"\1T00:00:00")


def _parsed(
    texts: pa.Array, bad: NDArray[np.bool_], parse: Callable[[pa.Array], pa.Array], target: pa.DataType
) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Parse all at once; only when one of them is no real date, look at them one by one."""
    fit = _without(texts, bad) if bad.any() else texts
    try:
        return parse(fit), bad
    except pa.ArrowInvalid:
        bad = bad.copy()
        for row in np.flatnonzero(~bad).tolist():
            try:
                parse(fit.slice(row, 1))
            except pa.ArrowInvalid:
                bad[row] = True
        return parse(_without(texts, bad)).cast(target), bad


def _list(values: pa.Array, prop: Property) -> Converted:
    target = arrow_type(prop.type)
    elements = values.flatten()
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
    wrong = {int(parents[at]): elements[int(at)].as_py() for at in np.flatnonzero(bad)[::-1]}

    def describe(row: int) -> str:
        return (
            f"{prop.name}: the element {shown(wrong[row])} is not {expectation(PropertyType(prop.type.kind))}"
        )

    refused = np.zeros(len(values), np.bool_)
    refused[rows] = True
    return Converted(_without(column, refused), (Refusal("format", rows, describe),))


def _vector(values: pa.Array, prop: Property) -> Converted:
    dim = prop.type.vector_dim or 0
    present = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False))
    bad = present & (lengths != dim)
    elements = values.flatten()
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
    """Bytes from `base64:` texts. There is no Arrow kernel for base64: one call per value."""
    decoded: list[bytes | None] = []
    bad: list[int] = []
    external: list[int] = []
    for row, text in enumerate(values.to_pylist()):
        content: bytes | None = None
        if text is not None and not text.startswith(_BASE64_PREFIX):
            external.append(row)
        elif text is not None:
            content = decode_base64(text[len(_BASE64_PREFIX) :])
            if content is None:
                bad.append(row)
        decoded.append(content)
    column = pa.array(decoded, arrow_type(prop.type))
    refusals: list[Refusal] = []
    if bad:
        refusals.append(
            Refusal(
                "format", np.array(bad, np.int64), lambda _row: f"{prop.name}: not padded standard base64"
            )
        )
    if external:
        message = f"{prop.name}: external blob references are not allowed here"
        refusals.append(Refusal("blob_policy", np.array(external, np.int64), lambda _row: message))
    return Converted(column, tuple(refusals))


def decode_base64(text: str) -> bytes | None:
    """The bytes of standard, padded base64; None when it is anything else."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        return None


def expectation(type_: PropertyType) -> str:
    """What a record may hold for a property of this type, as the end of a sentence."""
    match type_.kind:
        case ScalarKind.DATE:
            return "a date (YYYY-MM-DD or days since 1970-01-01)"
        case ScalarKind.DATETIME:
            return "a date and time (ISO 8601 or milliseconds since 1970-01-01)"
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


def shown(value: Any) -> str:
    """A value for a message, quoted when it is text and cut when it is long."""
    text = f"'{value}'" if isinstance(value, str) else _json_word(value)
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= _VALUE_SHOWN_CHARS_MAX else text[: _VALUE_SHOWN_CHARS_MAX - 1] + "…"


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
