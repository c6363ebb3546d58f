"""Bytes that call themselves text: Arrow and Parquet take them as they come, a stored text is valid UTF-8."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.pipeline.input.convert import refused_by

IN_UTF8: Final = "write the file as UTF-8, for example with `iconv -f LATIN1 -t UTF-8`"
"""What to do about an input that is not."""


def not_utf8(column: pa.Array) -> NDArray[np.bool_] | None:
    """Which rows of a column of texts, or of lists of texts, are not UTF-8; None when all are.

    Cost: one look at the bytes of the column; rows are told apart only when one of them is wrong.
    """
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    if _is_list(column.type):
        elements = not_utf8(pc.list_flatten(column))
        if elements is None:
            return None
        wrong = np.zeros(len(column), np.bool_)
        wrong[np.asarray(pc.list_parent_indices(column).to_numpy(zero_copy_only=False))[elements]] = True
        return wrong
    if not is_text(column.type):
        return None
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return refused_by(lambda texts: texts.validate(full=True), column)
    return None


def showable(rows: pa.Table) -> pa.Table:
    """The rows with every text that is not UTF-8 put so that it can be shown; few rows, for a message."""
    for at, name in enumerate(rows.column_names):
        column = rows.column(name).combine_chunks()
        column = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
        wrong = not_utf8(column)
        if wrong is not None:
            rows = rows.set_column(at, name, _shown(column))
    return rows


def _shown(column: pa.Array) -> pa.Array:
    if _is_list(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        mask = column.is_null() if column.null_count else None
        return pa.ListArray.from_arrays(pa.array(offsets), _shown(pc.list_flatten(column)), mask=mask)
    raw = column.cast(pa.string()).cast(pa.binary()).to_pylist()
    return pa.array([None if each is None else each.decode("utf-8", "replace") for each in raw], pa.string())


def is_text(type_: pa.DataType) -> bool:
    """Whether the type is one of Arrow's three for text."""
    return pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)


def _is_list(type_: pa.DataType) -> bool:
    return pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)
