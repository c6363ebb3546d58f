"""Comparisons between columns and constants, exact between all number types, three-valued about null.

Every comparison answers with the rows for which it is *true*; unknown counts as not true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.catalog.types import FLOAT_KINDS, PropertyType, ScalarKind, arrow_type
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import ARRAY_BYTES_MAX
from omnigraph.engine.tables.columns import outgrown
from omnigraph.language.query_tree import TEXT_TESTS, Operator
from omnigraph.planning import filters, predicate
from omnigraph.planning.steps import MIRRORED

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Mask
    from omnigraph.planning.values import Value


_NAME = "value"
_TWO_63 = 2.0**63
_TWO_64 = 2.0**64


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One value per row."""

    array: pa.Array
    type: PropertyType


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value on every row."""

    value: Value
    type: PropertyType


Values: TypeAlias = Column | Constant


def compare(left: Values, op: Operator, right: Values, rows: int) -> Mask:
    """The rows for which `left op right` is true."""
    if isinstance(left, Column) and isinstance(right, Constant):
        return _with_constant(left, op, right)
    match op:
        case Operator.CONTAINS:
            if left.type.is_list:
                return _list_contains(left, right, rows)
            return _text_test(left, right, rows, lambda text, part: part in text)
        case Operator.STARTS_WITH:
            return _text_test(left, right, rows, lambda text, part: text.startswith(part))
        case Operator.ENDS_WITH:
            return _text_test(left, right, rows, lambda text, part: text.endswith(part))
        case _ if isinstance(left, Constant) and isinstance(right, Column):
            return _with_constant(right, MIRRORED[op], left)
        case _:
            return _ordered(left, op, right, rows)


def _with_constant(column: Column, op: Operator, constant: Constant) -> Mask:
    """The one definition of a filter, run on one column."""
    value = constant.value
    if value is None:
        return np.zeros(len(column.array), dtype=np.bool_)
    formula: filters.Formula
    if op is Operator.CONTAINS and column.type.is_list:
        member = predicate.exact(value, column.type.kind)
        formula = (
            filters.NEVER
            if member is None
            else filters.HasMember(_NAME, member, column.type.kind, wanted=True)
        )
    elif op in TEXT_TESTS:
        formula = filters.TextTest(_NAME, op, str(value), wanted=True)
    else:
        formula = predicate.ordering(_NAME, column.type.kind, op, value)
    return true_rows(predicate.evaluate_formula(formula, pa.table({_NAME: column.array})))


def true_rows(array: pa.Array) -> Mask:
    """The rows where a boolean column is true."""
    return np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def as_array(values: Values, rows: int) -> pa.Array:
    """The values as one Arrow array of their own type. Raises ResourceLimit when they outgrow it."""
    if isinstance(values, Column):
        return values.array
    if values.value is None:
        return pa.nulls(rows, arrow_type(values.type))
    value: Any = list(values.value) if isinstance(values.value, tuple) else values.value
    one = pa.array([value], arrow_type(values.type))
    if one.nbytes * rows > ARRAY_BYTES_MAX and not pa.types.is_primitive(one.type):
        raise outgrown("a constant on every row", one.nbytes * rows)
    return one.take(pa.array(np.zeros(rows, dtype=np.int64)))


def _ordered(left: Values, op: Operator, right: Values, rows: int) -> Mask:
    if left.type.is_numeric and right.type.is_numeric:
        (a, known_a), (b, known_b) = numbers(left), numbers(right)
        less, equal = _exact_order(a, b)
    else:
        (a, known_a), (b, known_b) = _plain(left), _plain(right)
        less, equal = _true(pc.less(a, b), rows), _true(pc.equal(a, b), rows)
    return _decide(op, less, equal) & known_a & known_b & np.ones(rows, dtype=np.bool_)


def _decide(op: Operator, less: Mask, equal: Mask) -> Mask:
    match op:
        case Operator.EQ:
            return equal
        case Operator.NE:
            return ~equal
        case Operator.LT:
            return less
        case Operator.LE:
            return less | equal
        case Operator.GT:
            return ~(less | equal)
        case Operator.GE:
            return ~less
        case Operator.CONTAINS | Operator.STARTS_WITH | Operator.ENDS_WITH:
            raise AssertionError(op)
        case _:
            assert_never(op)


def numbers(values: Values) -> tuple[Any, Mask]:
    """The numbers as int64, uint64 or float64, and which are known. Null reads as zero."""
    if isinstance(values, Constant):
        known = np.array([values.value is not None])
        number: Any = 0 if values.value is None else values.value
        if isinstance(number, float):
            return np.array([number], dtype=np.float64), known
        wide = np.uint64 if number > np.iinfo(np.int64).max else np.int64
        return np.array([number], dtype=wide), known
    array = values.array
    known = np.asarray(pc.is_valid(array).to_numpy(zero_copy_only=False), dtype=np.bool_)
    filled = pc.fill_null(array, 0) if array.null_count else array
    if values.type.kind in FLOAT_KINDS:
        return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.float64), known
    wide = np.uint64 if values.type.kind is ScalarKind.U64 else np.int64
    return np.asarray(filled.to_numpy(zero_copy_only=False)).astype(wide), known


def _exact_order(a: Any, b: Any) -> tuple[Mask, Mask]:
    """`a < b` and `a == b` without rounding either side."""
    if a.dtype == b.dtype:
        return a < b, a == b
    if a.dtype == np.float64:
        less, equal = _exact_order(b, a)
        return ~(less | equal), equal
    if b.dtype == np.float64:
        return _integer_to_float(a, b)
    if a.dtype == np.uint64:
        less, equal = _exact_order(b, a)
        return ~(less | equal), equal
    negative = a < 0
    unsigned = np.where(negative, 0, a).astype(np.uint64)
    return negative | (unsigned < b), ~negative & (unsigned == b)


def _integer_to_float(a: Any, b: Any) -> tuple[Mask, Mask]:
    low, high = (0.0, _TWO_64) if a.dtype == np.uint64 else (-_TWO_63, _TWO_63)
    above, below = b >= high, b < low
    inside = ~(above | below)
    floor = np.floor(np.where(inside, b, 0.0))
    whole = floor.astype(a.dtype)
    fraction = np.where(inside, b, 0.0) > floor
    equal = inside & (a == whole) & ~fraction
    less = above | (inside & ((a < whole) | ((a == whole) & fraction)))
    return less, equal


def _plain(values: Values) -> tuple[Any, Mask]:
    if isinstance(values, Constant):
        kind = arrow_type(values.type)
        return pa.scalar(values.value, kind), np.array([values.value is not None])
    known = np.asarray(pc.is_valid(values.array).to_numpy(zero_copy_only=False), dtype=np.bool_)
    return values.array, known


def _true(result: Any, rows: int) -> Mask:
    if isinstance(result, pa.Scalar):
        return np.full(rows, result.as_py() is True, dtype=np.bool_)
    return true_rows(result)


def _text_test(left: Values, right: Values, rows: int, test: Callable[[str, str], bool]) -> Mask:
    # The sought text differs from row to row, which no kernel takes: ask once per distinct pair.
    texts = as_array(left, rows).dictionary_encode()
    parts = as_array(right, rows).dictionary_encode()
    known = true_rows(pc.and_(pc.is_valid(texts), pc.is_valid(parts)))
    code = np.zeros(rows, dtype=np.int64)
    width = max(len(parts.dictionary), 1)
    code[known] = _codes(texts)[known] * width + _codes(parts)[known]
    pairs, place = np.unique(code[known], return_inverse=True)
    words, sought = texts.dictionary.to_pylist(), parts.dictionary.to_pylist()
    answers = np.array([test(words[p // width], sought[p % width]) for p in pairs.tolist()], dtype=np.bool_)
    result = np.zeros(rows, dtype=np.bool_)
    if len(pairs):
        result[known] = answers[place]
    return result


def _codes(encoded: pa.DictionaryArray) -> NDArray[np.int64]:
    return np.asarray(pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _list_contains(left: Values, right: Values, rows: int) -> Mask:
    if isinstance(left, Constant):
        found = np.zeros(rows, dtype=np.bool_)
        items = left.value if isinstance(left.value, tuple) else ()
        for item in items:
            found |= compare(right, Operator.EQ, Constant(item, _item_type(left.type, item)), rows)
        return found
    array = left.array
    parents = np.asarray(pc.list_parent_indices(array).to_numpy(zero_copy_only=False), dtype=np.int64)
    element = PropertyType(left.type.kind)
    flat = Column(pc.list_flatten(array), element)
    sought: Values = right
    if isinstance(right, Column):
        sought = Column(right.array.take(pa.array(parents)), right.type)
    hit = compare(flat, Operator.EQ, sought, len(parents))
    found = np.zeros(rows, dtype=np.bool_)
    found[parents[hit]] = True
    return found


def _item_type(list_type: PropertyType, item: Value) -> PropertyType:
    if isinstance(item, float):
        return PropertyType(ScalarKind.F64)
    if isinstance(item, int) and not isinstance(item, bool):
        return PropertyType(ScalarKind.I64)
    return PropertyType(list_type.kind)
