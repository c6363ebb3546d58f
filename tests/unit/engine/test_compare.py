"""Comparisons of columns and constants against Python's exact numbers and three-valued logic."""

import operator
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.catalog.types import PropertyType, ScalarKind, arrow_type
from omnigraph.engine.read.compare import Column, Constant, as_array, compare
from omnigraph.language.query_tree import Operator

OPERATORS = {
    Operator.EQ: operator.eq,
    Operator.NE: operator.ne,
    Operator.LT: operator.lt,
    Operator.LE: operator.le,
    Operator.GT: operator.gt,
    Operator.GE: operator.ge,
}
NUMBERS = {
    ScalarKind.I32: st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-2, 2)),
    ScalarKind.I64: st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-2, 2), st.just(2**53 + 1)),
    ScalarKind.U64: st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 2), st.just(2**63)),
    ScalarKind.F64: st.one_of(
        st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.5, -0.0, 2.0**53, 2.0**63])
    ),
}


@st.composite
def sides(draw, rows):
    kind = draw(st.sampled_from(list(NUMBERS)))
    values = draw(
        st.lists(st.one_of(st.none(), NUMBERS[kind]), min_size=rows, max_size=rows), label=str(kind)
    )
    return kind, values


def column(kind, values):
    type_ = PropertyType(kind)
    return Column(pa.array(values, arrow_type(type_)), type_)


def expected(left, op, right):
    pairs = zip(left, right, strict=True)
    return [a is not None and b is not None and OPERATORS[op](Fraction(a), Fraction(b)) for a, b in pairs]


@given(sides(4), sides(4), st.sampled_from(list(OPERATORS)))
@pytest.mark.slow
def test_columns_of_any_number_types_compare_exactly(left, right, op):
    found = compare(column(*left), op, column(*right), 4)
    assert found.tolist() == expected(left[1], op, right[1])


@pytest.mark.slow
@given(sides(3), sides(1), st.sampled_from(list(OPERATORS)))
def test_a_constant_compares_as_a_column_of_it(side, other, op):
    kind, (value,) = other
    constant = Constant(value, PropertyType(kind))
    assert compare(column(*side), op, constant, 3).tolist() == expected(side[1], op, [value] * 3)
    assert compare(constant, op, column(*side), 3).tolist() == expected([value] * 3, op, side[1])


texts = st.lists(st.one_of(st.none(), st.sampled_from(["", "a", "ab", "b", "ä"])), min_size=3, max_size=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "test"),
    [(Operator.CONTAINS, lambda text, part: part in text), (Operator.STARTS_WITH, str.startswith)],
)
@given(texts, texts)
def test_text_tests_take_another_text_on_every_row(op, test, left, right):
    found = compare(column(ScalarKind.STRING, left), op, column(ScalarKind.STRING, right), 3)
    pairs = zip(left, right, strict=True)
    assert found.tolist() == [a is not None and b is not None and test(a, b) for a, b in pairs]


@pytest.mark.slow
@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, 3), max_size=3)), min_size=3, max_size=3))
def test_a_list_contains_what_equals_one_of_its_elements(lists):
    type_ = PropertyType(ScalarKind.I32, is_list=True)
    left = Column(pa.array(lists, arrow_type(type_)), type_)
    right = column(ScalarKind.I64, [0, 1, None])
    expected_rows = [
        items is not None and item in items for items, item in zip(lists, [0, 1, None], strict=True)
    ]
    assert compare(left, Operator.CONTAINS, right, 3).tolist() == expected_rows


def test_a_constant_as_an_array_has_its_own_type() -> None:
    assert as_array(Constant(None, PropertyType(ScalarKind.F32)), 2).equals(pa.nulls(2, pa.float32()))
    assert as_array(Constant(3, PropertyType(ScalarKind.I64)), 2).equals(pa.array([3, 3], pa.int64()))
