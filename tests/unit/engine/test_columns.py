"""Columns read without Arrow arrays give what `take` gives: numbers by numpy, few values by Python."""

import math
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.catalog.types import ScalarKind
from omnigraph.engine.read.formulas import formula_mask
from omnigraph.engine.read.frame import FEW_ROWS, first_places
from omnigraph.engine.tables import columns as engine_columns
from omnigraph.engine.tables.columns import JOINED_ROWS_MAX, NUMBER_TYPES, Numbers, Picker
from omnigraph.language.query_tree import Operator
from omnigraph.planning import filters as p
from omnigraph.planning.predicate import evaluate_formula

VALUES = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=6),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.list_(pa.int32()): st.lists(st.integers(0, 9), max_size=3),
}


@st.composite
def columns(draw, kinds=tuple(VALUES)):
    """Chunks of one type, some of them slices of larger arrays, and ordinals over them."""
    kind = draw(st.sampled_from(list(kinds)))
    items = st.lists(st.one_of(st.none(), VALUES[kind]) if draw(st.booleans()) else VALUES[kind], max_size=6)
    chunks = []
    for values in draw(st.lists(items, min_size=1, max_size=4)):
        whole = pa.array([*values[:1], *values, *values[:2]], kind)
        chunks.append(whole.slice(len(values[:1]), len(values)))
    total = sum(map(len, chunks))
    ordinals = draw(st.lists(st.integers(-1, total - 1), max_size=8))
    return chunks, ordinals


def bases_of(chunks):
    return np.concatenate([[0], np.cumsum([len(chunk) for chunk in chunks])]).astype(np.int64)


def taken(chunks, ordinals):
    values = pa.chunked_array(chunks).to_pylist()
    return [None if ordinal < 0 else values[ordinal] for ordinal in ordinals]


def same(left, right):
    return all(
        a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.slow
@given(columns())
def test_picked_values_are_those_taken(column):
    chunks, ordinals = column
    assert same(Picker(chunks, bases_of(chunks)).pick(ordinals), taken(chunks, ordinals))


@given(columns(tuple(NUMBER_TYPES)), st.sampled_from([0, 2, JOINED_ROWS_MAX]))
@pytest.mark.slow
def test_gathered_numbers_are_those_taken(column, joined):
    chunks, ordinals = column
    with patch.object(engine_columns, "JOINED_ROWS_MAX", joined):
        numbers = Numbers(chunks, bases_of(chunks), chunks[0].type)
    values, known = numbers.gather(np.array(ordinals, dtype=np.int64))
    known = np.ones(len(ordinals), np.bool_) if known is None else known
    got = [value if there else None for value, there in zip(values.tolist(), known.tolist(), strict=True)]
    assert same(got, taken(chunks, ordinals))


def test_a_table_without_rows_gathers_nothing() -> None:
    numbers = Numbers([], np.zeros(1, np.int64), pa.int32())
    values, known = numbers.gather(np.array([-1, -1]))
    assert values.tolist() == [0, 0]
    assert known is not None
    assert not known.any()


class Image:
    """A table of one column, as formulas read it."""

    def __init__(self, chunks) -> None:
        self.chunks = chunks

    def numbers(self, column):
        kind = self.chunks[0].type
        return Numbers(self.chunks, bases_of(self.chunks), kind) if kind in NUMBER_TYPES else None

    def pick(self, column, ordinals):
        return Picker(self.chunks, bases_of(self.chunks)).pick(ordinals)


KINDS = {
    pa.int32(): ScalarKind.I32,
    pa.int64(): ScalarKind.I64,
    pa.uint64(): ScalarKind.U64,
    pa.float32(): ScalarKind.F32,
    pa.float64(): ScalarKind.F64,
    pa.string(): ScalarKind.STRING,
}
ORDERINGS = [Operator.EQ, Operator.NE, Operator.LT, Operator.LE, Operator.GT, Operator.GE]


@given(columns(tuple(KINDS)), st.sampled_from(ORDERINGS), st.data())
@pytest.mark.slow
def test_formulas_without_arrow_agree_with_arrow(column, op, data):
    chunks, ordinals = column
    kind = chunks[0].type
    value = data.draw(VALUES[kind].filter(lambda item: not isinstance(item, float) or not math.isnan(item)))
    more = data.draw(VALUES[kind].filter(lambda item: not isinstance(item, float) or not math.isnan(item)))
    test = p.Test("value", op, value, KINDS[kind])
    other = p.Test("value", Operator.LT, more, KINDS[kind])
    rows = pa.table({"value": pa.array(taken(chunks, ordinals), kind)})
    for formula in (test, p.Every((test, other)), p.Some((test, other)), p.Every((test, p.ALWAYS))):
        mask = formula_mask(formula, Image(chunks), np.array(ordinals, dtype=np.int64))
        assert mask is not None
        assert mask.tolist() == evaluate_formula(formula, rows).to_pylist()


@pytest.mark.slow
@given(columns(tuple(NUMBER_TYPES)), st.booleans())
def test_the_presence_of_a_number_is_known_without_arrow(column, wanted):
    chunks, ordinals = column
    mask = formula_mask(p.HasValue("value", wanted=wanted), Image(chunks), np.array(ordinals, dtype=np.int64))
    assert mask is not None
    assert mask.tolist() == [(value is not None) == wanted for value in taken(chunks, ordinals)]


def test_what_needs_arrow_is_left_to_it() -> None:
    image = Image([pa.array(["a"] * (FEW_ROWS + 1))])
    many = np.arange(FEW_ROWS + 1)
    assert formula_mask(p.Test("v", Operator.EQ, "a", ScalarKind.STRING), image, many) is None
    assert formula_mask(p.TextTest("v", Operator.CONTAINS, "a", wanted=True), image, many[:1]) is None
    assert formula_mask(p.HasValue("v", wanted=True), image, many[:1]) is None


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1, 7, 100_000], ids=["dense", "sparse", "very sparse"])
@given(st.lists(st.integers(-1, 30), max_size=3 * FEW_ROWS))
def test_first_places_keep_the_order_of_first_occurrences(scale, items):
    ordinals = np.array([item * scale if item > 0 else item for item in items], dtype=np.int64)
    expected: dict[int, int] = {}
    for place, ordinal in enumerate(ordinals.tolist()):
        expected.setdefault(ordinal, place)
    assert first_places(ordinals).tolist() == list(expected.values())
