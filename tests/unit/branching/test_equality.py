"""Typed equality of values: what the merge calls the same row."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.branching.equality import chunk_rows, values_differ

NAN = math.nan
CASES = [
    (pa.string(), "", None, True),
    (pa.string(), None, None, False),
    (pa.string(), "a\x1fb", "a\x1fc", True),
    (pa.int32(), 0, None, True),
    (pa.int64(), 2**62, 2**62 + 1, True),
    (pa.float64(), NAN, NAN, False),
    (pa.float64(), 0.0, -0.0, True),
    (pa.float32(), 1.5, 1.5, False),
    (pa.bool_(), False, None, True),
    (pa.large_binary(), b"", None, True),
    (pa.large_binary(), b"ab", b"ab", False),
    (pa.list_(pa.string()), [], None, True),
    (pa.list_(pa.string()), ["a", "b"], ["ab"], True),
    (pa.list_(pa.string()), ["a", None], ["a", ""], True),
    (pa.list_(pa.float64()), [NAN, 1.0], [NAN, 1.0], False),
    (pa.list_(pa.list_(pa.int32())), [[1], [2]], [[1, 2]], True),
    (pa.list_(pa.list_(pa.int32())), [[1], []], [[1], []], False),
    (pa.list_(pa.float32(), 2), [1.0, NAN], [1.0, NAN], False),
    (pa.list_(pa.float32(), 2), [1.0, 2.0], [1.0, 3.0], True),
    (pa.list_(pa.float32(), 2), None, [1.0, 3.0], True),
]


@pytest.mark.parametrize(("kind", "left", "right", "differ"), CASES)
def test_values(kind, left, right, differ):
    # Neighbours on both sides show that offsets of slices and nulls do not shift what is compared.
    filler = {"string": "x"}.get(str(kind))
    padding = [None, filler] if filler else [None]
    mine = pa.array([*padding, left, *padding], kind)
    theirs = pa.array([*padding, right, *padding], kind)
    expected = [False] * len(padding) + [differ] + [False] * len(padding)
    assert values_differ(mine, theirs).tolist() == expected
    assert values_differ(mine[len(padding) :], theirs[len(padding) :]).tolist() == expected[len(padding) :]


def same(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or np.float64(left).tobytes() == np.float64(
            right
        ).tobytes()
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return type(left) is type(right) and left == right


nested = st.none() | st.lists(
    st.none() | st.lists(st.none() | st.sampled_from([0.0, -0.0, NAN, 1.0]), max_size=2), max_size=3
)


@pytest.mark.slow
@given(st.lists(st.tuples(nested, nested), max_size=8))
def test_nested_lists_compare_like_python_values(pairs):
    kind = pa.list_(pa.list_(pa.float64()))
    left, right = pa.array([a for a, _ in pairs], kind), pa.array([b for _, b in pairs], kind)
    assert values_differ(left, right).tolist() == [not same(a, b) for a, b in pairs]


def test_pieces_are_bounded_by_what_a_row_weighs():
    wide = pa.field("v", pa.list_(pa.float32(), 3072))
    assert chunk_rows([pa.field("id", pa.string())]) == 8192
    assert chunk_rows([wide]) * 3072 * 4 <= 16 * 1024 * 1024
    assert chunk_rows([pa.field("v", pa.list_(pa.float32(), 10_000_000))]) >= 1
