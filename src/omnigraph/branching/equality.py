"""Typed equality of rows: what makes a rewritten row the same row.

Null differs from every value. Floats are compared by their bits, so that a change of the sign of zero is a
change, except that every NaN equals every other. Lists are compared by structure. Nothing is turned into
text.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.arrays.types import Addresses, Mask
from omnigraph.branching.rows_in_memory import HeldRows
from omnigraph.core.limits import MERGE_STAGE_BATCH_ROWS, MIB
from omnigraph.storage.handles import SnapshotHandle
from omnigraph.storage.tables import TableStorage

CHUNK_BYTES: Final = 16 * MIB
"""Rows are read in pieces of about this size, whatever a row weighs."""

_VARIABLE_BYTES: Final = 256
"""What a text, list or blob is taken to weigh when a piece is measured."""
_BIT_TYPES: Final = {pa.float32(): np.uint32, pa.float64(): np.uint64}


def chunk_rows(fields: Sequence[pa.Field]) -> int:
    """How many rows of these columns are read at a time."""
    return max(64, min(MERGE_STAGE_BATCH_ROWS, CHUNK_BYTES // row_bytes(fields)))


def row_bytes(fields: Iterable[pa.Field]) -> int:
    """What a row of these columns is taken to weigh."""
    return max(1, sum(_width(field.type) for field in fields))


def _width(kind: Any) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    try:
        return max(1, kind.bit_width // 8)
    except ValueError:
        # A blob may weigh anything: few of them at a time.
        return CHUNK_BYTES // 256 if pa.types.is_large_binary(kind) else _VARIABLE_BYTES


def rows_differ(
    storage: TableStorage,
    left: SnapshotHandle,
    left_at: Addresses,
    right: SnapshotHandle,
    right_at: Addresses,
) -> Mask:
    """Which of the paired rows differ in some property.

    A column that one side does not have reads as null there. Cost: the paired rows, in bounded pieces; heavy
    columns only for the rows that are still equal.
    """
    differ = np.zeros(len(left_at), np.bool_)
    if len(left_at) == 0:
        return differ
    for fields in column_groups(left.schema, right.schema):
        step = chunk_rows(fields)
        undecided = np.flatnonzero(~differ)
        for start in range(0, len(undecided), step):
            chosen = undecided[start : start + step]
            mine = read_rows(storage, left, left_at[chosen], fields)
            theirs = read_rows(storage, right, right_at[chosen], fields)
            differ[chosen] |= tables_differ(mine, theirs)
    return differ


def tables_differ(left: pa.Table, right: pa.Table) -> Mask:
    """Which rows of two tables with the same columns differ in some of them, position by position."""
    differ = np.zeros(left.num_rows, np.bool_)
    for mine, other in zip(left.columns, right.columns, strict=True):
        differ |= values_differ(one_array(mine), one_array(other))
    return differ


def columns_differ(left: pa.Table, right: pa.Table) -> NDArray[np.bool_]:
    """As `tables_differ`, for each column by itself: a row per row, a column per column."""
    found = np.zeros((left.num_rows, left.num_columns), np.bool_)
    for number, (mine, other) in enumerate(zip(left.columns, right.columns, strict=True)):
        found[:, number] = values_differ(one_array(mine), one_array(other))
    return found


def read_rows(
    storage: TableStorage,
    handle: SnapshotHandle,
    addresses: Addresses,
    fields: Sequence[pa.Field],
    held: HeldRows | None = None,
) -> pa.Table:
    """The rows at these addresses with exactly these columns; one the table does not have is null.

    Rows that are `held` of this version are not read again.
    """
    rows = None if held is None else held.take(addresses)
    if rows is None:
        # Asking a table for its schema, or for a column by name, costs as much as the table is wide.
        known = set(handle.schema.names)
        present = [field.name for field in fields if field.name in known]
        rows = storage.take(handle, addresses, present) if present else pa.table({})
    return in_fields(rows, len(addresses), fields)


def in_fields(rows: pa.Table, count: int, fields: Sequence[pa.Field]) -> pa.Table:
    """These columns of `count` rows; one that is not there is null."""
    found = dict(zip(rows.column_names, rows.columns, strict=True))

    def column(field: pa.Field) -> Any:
        have = found.get(field.name)
        if have is None:
            return pa.nulls(count, field.type)
        return have if have.type.equals(field.type) else have.cast(field.type)

    return pa.table([column(field) for field in fields], schema=pa.schema(list(fields)))


def column_groups(left: pa.Schema, right: pa.Schema) -> Iterator[list[pa.Field]]:
    """The columns of either side: all light ones at once, then the heavy ones one by one."""
    fields = {field.name: pa.field(field.name, field.type) for field in (*right, *left)}
    heavy = [field for field in fields.values() if _is_heavy(field.type)]
    light = [field for field in fields.values() if not _is_heavy(field.type)]
    if light:
        yield light
    for field in heavy:
        yield [field]


def _is_heavy(kind: Any) -> bool:
    return pa.types.is_fixed_size_list(kind) or pa.types.is_large_binary(kind)


def one_array(column: Any) -> pa.Array:
    """A column as one array."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    return column


def values_differ(left: pa.Array, right: pa.Array) -> Mask:
    """Position by position, whether two arrays of one type hold different values."""
    if not left.type.equals(right.type):
        raise TypeError(f"{left.type} and {right.type} cannot be compared")
    count = len(left)
    left_valid, right_valid = _valid(left), _valid(right)
    differ = left_valid != right_valid
    both = left_valid & right_valid
    if not both.any():
        return differ
    if not both.all():
        at = pa.array(np.flatnonzero(both))
        left, right = left.take(at), right.take(at)
    found = _present_values_differ(left, right)
    if len(found) == count:
        return differ | found
    differ[both] |= found
    return differ


def same_value(left: Any, right: Any) -> bool:
    """As `values_differ`, the other way round, for two Python values of one property."""
    if isinstance(left, float) and isinstance(right, float):
        return math.isnan(left) == math.isnan(right) and (
            math.isnan(left) or (left == right and math.copysign(1, left) == math.copysign(1, right))
        )
    if isinstance(left, list) and isinstance(right, list):
        mine, theirs = cast("list[Any]", left), cast("list[Any]", right)
        return len(mine) == len(theirs) and all(map(same_value, mine, theirs))
    return bool(left == right)


def _present_values_differ(left: pa.Array, right: pa.Array) -> Mask:
    """As `values_differ` for arrays without nulls."""
    kind = left.type
    if kind in _BIT_TYPES:
        return _floats_differ(left, right, _BIT_TYPES[kind])
    if pa.types.is_fixed_size_list(kind):
        inner = values_differ(pc.list_flatten(left), pc.list_flatten(right))
        return np.asarray(np.any(inner.reshape(len(left), kind.list_size), axis=1), np.bool_)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists_differ(left, right)
    return np.asarray(pc.not_equal(left, right).to_numpy(zero_copy_only=False), np.bool_)


def _floats_differ(left: pa.Array, right: pa.Array, bits: Any) -> Mask:
    mine = np.ascontiguousarray(left.to_numpy(zero_copy_only=False))
    theirs = np.ascontiguousarray(right.to_numpy(zero_copy_only=False))
    bits_differ: Mask = np.asarray(mine.view(bits) != theirs.view(bits), np.bool_)
    return bits_differ & ~(np.isnan(mine) & np.isnan(theirs))


def _lists_differ(left: pa.Array, right: pa.Array) -> Mask:
    left_lengths = np.asarray(pc.list_value_length(left).to_numpy(zero_copy_only=False), np.int64)
    right_lengths = np.asarray(pc.list_value_length(right).to_numpy(zero_copy_only=False), np.int64)
    differ = left_lengths != right_lengths
    same = np.flatnonzero(~differ)
    if len(same) == 0:
        return differ
    at = pa.array(same)
    inner = values_differ(pc.list_flatten(left.take(at)), pc.list_flatten(right.take(at)))
    owners = np.repeat(same, left_lengths[same])
    differ[owners[inner]] = True
    return differ


def _valid(array: pa.Array) -> Mask:
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
