"""Canonical scalar text over Arrow arrays: the one form of a value in ids and in uniqueness tuples.

Everything here works on whole columns. The text is computed from values as stored, after width conversion.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, cast

from omnigraph.catalog.types import PropertyType, ScalarKind, arrow_type
from omnigraph.core.errors import PropertyValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from omnigraph.catalog.schema import NodeType, TableType

STRING_TYPE: Final = PropertyType(ScalarKind.STRING)
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001  days and milliseconds are counted without a zone

# Short forms first; the rest of the control characters take the \u00xx form.
_JSON_ESCAPES: Final = (
    ("\\", "\\\\"),
    ('"', '\\"'),
    ("\b", "\\b"),
    ("\f", "\\f"),
    ("\n", "\\n"),
    ("\r", "\\r"),
    ("\t", "\\t"),
    *((chr(c), f"\\u{c:04x}") for c in range(0x20) if chr(c) not in "\b\f\n\r\t"),
)


class NonFiniteError(ValueError):
    """A float column holds NaN or an infinity, which has no canonical text. `row` is its position."""

    def __init__(self, row: int) -> None:
        super().__init__(f"the value in row {row} is not finite")
        self.row = row


def canonical_text(array: pa.Array | pa.ChunkedArray, type_: PropertyType) -> pa.StringArray:
    """The canonical text of every value; null stays null.

    `array` has the Arrow type of `type_`, or is cast to it. Raises NonFiniteError for NaN and infinities,
    ValueError for a list, vector or blob.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if not type_.has_canonical_text:
        raise ValueError(f"a {type_.text()} value has no canonical text")
    flat = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    stored = arrow_type(type_)
    if flat.type != stored:
        flat = flat.cast(stored)
    match type_.kind:
        case ScalarKind.STRING:
            return cast("pa.StringArray", flat)
        case ScalarKind.F32 | ScalarKind.F64:
            return _float_text(flat)
        case ScalarKind.DATE:
            return pc.cast(pc.cast(flat, pa.int32()), pa.string())
        case ScalarKind.DATETIME:
            return pc.cast(pc.cast(flat, pa.int64()), pa.string())
        case _:
            return pc.cast(flat, pa.string())


def spelled(text: str, type_: PropertyType) -> str:
    """A canonical text as people write the value: a day and a moment by the calendar, not as a count."""
    match type_.kind:
        case ScalarKind.DATE:
            return (_EPOCH + dt.timedelta(days=int(text))).date().isoformat()
        case ScalarKind.DATETIME:
            moment = _EPOCH + dt.timedelta(milliseconds=int(text))
            return f"{moment.isoformat(timespec='milliseconds')}Z"
        case _:
            return text


def _float_text(array: pa.Array) -> pa.StringArray:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    finite = pc.is_finite(array)
    if pc.all(finite, min_count=0).as_py() is False:
        raise NonFiniteError(pc.index(finite, pa.scalar(False)).as_py())
    # Adding zero turns the negative zero into the positive one and changes nothing else.
    positive_zero = pc.add(array, pa.scalar(0.0, array.type))
    text = pc.cast(positive_zero, pa.string())
    exponents = pc.match_substring(text, "e")
    if not pc.any(exponents, min_count=0).as_py():
        return text
    selected = pc.fill_null(exponents, False)
    return pc.replace_with_mask(text, selected, _without_exponent(text.filter(selected)))


def _without_exponent(text: pa.StringArray) -> pa.StringArray:
    """`1.25e-7` as `0.000000125`. Cost: one pass per distinct exponent; there are at most some 650."""
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    parts = pc.extract_regex(text, r"^(?P<sign>-?)(?P<head>\d)\.?(?P<tail>\d*)e(?P<exponent>[+-]\d+)$")
    sign, head, tail, shift = (parts.field(at).cast(pa.string()) for at in range(4))
    digits = pc.binary_join_element_wise(head, tail, "")
    exponents = pc.cast(pc.replace_substring(shift, "+", ""), pa.int32())
    rows = pa.array(np.arange(len(text)))
    pieces: list[pa.StringArray] = []
    places: list[pa.Array] = []
    shifts: list[int] = pc.unique(exponents).to_pylist()
    for exponent in shifts:
        here = pc.equal(exponents, exponent)
        places.append(rows.filter(here))
        pieces.append(_positional(digits.filter(here), exponent))
    order = pc.sort_indices(pa.concat_arrays(places))
    return pc.binary_join_element_wise(sign, pa.concat_arrays(pieces).take(order), "")


def _positional(digits: pa.StringArray, exponent: int) -> pa.StringArray:
    """Significant digits with the point after the first one shifted by `exponent`."""
    import pyarrow.compute as pc  # noqa: PLC0415

    if exponent < 0:
        return pc.binary_join_element_wise("0." + "0" * (-exponent - 1), digits, "")
    whole = pc.utf8_rpad(pc.utf8_slice_codeunits(digits, 0, exponent + 1), exponent + 1, "0")
    rest = pc.utf8_slice_codeunits(digits, exponent + 1)
    with_point = pc.binary_join_element_wise(whole, rest, ".")
    return pc.if_else(pc.equal(rest, ""), whole, with_point)


def tuple_text(columns: Sequence[pa.StringArray]) -> pa.StringArray:
    """A compact JSON array of the given texts per row; null where any member is null."""
    import pyarrow.compute as pc  # noqa: PLC0415

    members = [pc.binary_join_element_wise('"', _json_escaped(column), '"', "") for column in columns]
    joined = members[0] if len(members) == 1 else pc.binary_join_element_wise(*members, ",")
    return pc.binary_join_element_wise("[", joined, "]", "")


def _json_escaped(text: pa.StringArray) -> pa.StringArray:
    import pyarrow.compute as pc  # noqa: PLC0415

    if not pc.any(pc.match_substring_regex(text, r'[\x00-\x1f"\\]'), min_count=0).as_py():
        return text
    for char, escape in _JSON_ESCAPES:
        text = pc.replace_substring(text, pattern=char, replacement=escape)
    return text


def column_texts(
    table: pa.Table | pa.RecordBatch, names: Sequence[str], type_: TableType
) -> list[pa.StringArray]:
    """The canonical texts of the named columns; `src` and `dst` of an edge count as strings.

    Raises PropertyValueError, naming the property and the entity, for a value that is not finite.
    """
    texts: list[pa.StringArray] = []
    for name in names:
        prop = type_.get(name)
        column_type = STRING_TYPE if prop is None else prop.type
        try:
            texts.append(canonical_text(table.column(name), column_type))
        except NonFiniteError as error:
            raise PropertyValueError(
                entity_kind=type_.kind.value,
                type_name=type_.name,
                property_name=name,
                message=f"{type_.name}.{name}: only finite numbers can be stored (row {error.row})",
            ) from error
    return texts


def unique_tuples(table: pa.Table | pa.RecordBatch, group: Sequence[str], type_: TableType) -> pa.StringArray:
    """One text per row for the uniqueness group; null where the row is exempt because a member is null."""
    return tuple_text(column_texts(table, group, type_))


def node_ids(table: pa.Table | pa.RecordBatch, type_: NodeType) -> pa.StringArray:
    """The ids that the key gives to the rows; null where a key value is null. The type must have a key."""
    if not type_.key:
        raise ValueError(f"node type '{type_.name}' has no key, its ids are not derived")
    texts = column_texts(table, type_.key, type_)
    return texts[0] if len(texts) == 1 else tuple_text(texts)
