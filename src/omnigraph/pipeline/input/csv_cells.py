"""Text cells of a CSV file to the values a JSON record would hold. An empty cell is null."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.catalog.schema import Property
from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_BOUNDS, ScalarKind, arrow_type
from omnigraph.pipeline.input.convert import (
    TEMPORAL_KINDS,
    Converted,
    convert,
    misfits,
    refused_by,
    wire_type,
)
from omnigraph.pipeline.input.record_rules import RecordRefused, decode, value_misfit

_TRUE: Final = ("true", "True", "TRUE")
_FALSE: Final = ("false", "False", "FALSE")
_WHOLE: Final = r"^-?\d+$"
_WHOLE_AS_DECIMAL: Final = r"^(-?\d+)\.0*$"
_DAY_AT_MIDNIGHT: Final = r"^(\d{4}-\d{2}-\d{2})[ T]00:00(:00(\.0+)?)?$"
_DECIMAL: Final = r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$"
_WHOLE_DIGITS_MAX: Final = 20


def from_cells(cells: pa.StringArray, prop: Property) -> Converted:
    """The stored column of text cells. Lists and vectors are JSON arrays inside a cell."""
    kind = prop.type.kind
    if prop.type.is_list or prop.type.is_vector:
        return _arrays(cells, prop)
    if kind in INTEGER_BOUNDS:
        # Programs that know no empty integers write 5 as 5.0.
        return _numbers(pc.replace_substring_regex(cells, _WHOLE_AS_DECIMAL, r"\1"), prop, _WHOLE)
    if kind in FLOAT_KINDS:
        return _numbers(cells, prop, _DECIMAL)
    if kind is ScalarKind.BOOL:
        return _booleans(cells, prop)
    if kind in {ScalarKind.DATE, ScalarKind.DATETIME}:
        return _moments(cells, prop)
    return convert(cells, prop)


def _true(mask: Any) -> Any:
    return np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False), np.bool_)


def _without(cells: pa.StringArray, bad: Any) -> pa.StringArray:
    return pc.if_else(pa.array(bad), pa.scalar(None, pa.string()), cells) if bad.any() else cells


def _numbers(cells: pa.StringArray, prop: Property, form: str) -> Converted:
    bad = _true(pc.invert(pc.match_substring_regex(cells, form)))
    target = wire_type(prop.type)
    try:
        numbers = _without(cells, bad).cast(target)
    except pa.ArrowInvalid:  # a number that does not fit
        bad |= refused_by(lambda texts: texts.cast(target), _without(cells, bad))
        numbers = _without(cells, bad).cast(target)
    converted = convert(numbers, prop)
    return Converted(converted.column, (*misfits(cells, prop, bad), *converted.refusals))


def _booleans(cells: pa.StringArray, prop: Property) -> Converted:
    yes = pc.is_in(cells, value_set=pa.array(_TRUE, pa.string()))
    no = pc.is_in(cells, value_set=pa.array(_FALSE, pa.string()))
    bad = _true(pc.invert(pc.or_(yes, no))) & _true(cells.is_valid())
    unknown = pa.array(bad | _true(cells.is_null()))
    return Converted(pc.if_else(unknown, pa.scalar(None, pa.bool_()), yes), misfits(cells, prop, bad))


def _moments(cells: pa.StringArray, prop: Property) -> Converted:
    """Dates as text, or as the number the record format allows; a day may have a midnight behind it."""
    if prop.type.kind is ScalarKind.DATE:
        cells = pc.replace_substring_regex(cells, _DAY_AT_MIDNIGHT, r"\1")
    numeric = _true(pc.match_substring_regex(cells, _WHOLE))
    if not numeric.any():
        return convert(cells, prop)
    too_long = numeric & _true(pc.greater(pc.utf8_length(cells), _WHOLE_DIGITS_MAX - 2))
    texts = convert(_without(cells, numeric), prop)
    numbers = convert(_without(cells, ~numeric | too_long).cast(pa.int64()), prop)
    column = pc.if_else(pa.array(numeric), numbers.column, texts.column)
    return Converted(column, (*texts.refusals, *numbers.refusals, *misfits(cells, prop, too_long)))


def _arrays(cells: pa.StringArray, prop: Property) -> Converted:
    """JSON arrays: one parse per cell, there is no columnar form of it."""
    values: list[Any] = []
    bad = np.zeros(len(cells), np.bool_)
    temporal = prop.type.kind in TEMPORAL_KINDS
    for row, text in enumerate(cells.to_pylist()):
        value = None
        if text is not None:
            try:
                value = decode(text.encode())
            except RecordRefused:
                value, bad[row] = None, True
            if value is not None and value_misfit(value, prop) is not None:
                value, bad[row] = None, True
            if temporal and value and not all(isinstance(element, str) for element in value):
                value, bad[row] = None, True  # in a list of a cell a date is text
        values.append(value)
    if not any(value for value in values):
        column = pa.array(values, arrow_type(prop.type))
        return Converted(column, misfits(cells, prop, bad))
    converted = convert(pa.array(values, wire_type(prop.type)), prop)
    return Converted(converted.column, (*misfits(cells, prop, bad), *converted.refusals))
