"""Canonical scalar text against plain Python references."""

import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omnigraph.catalog.build import compile_schema
from omnigraph.catalog.canonical import canonical_text, node_ids, tuple_text, unique_tuples
from omnigraph.catalog.types import PropertyType, ScalarKind, arrow_type
from omnigraph.core.errors import PropertyValueError

unhurried = settings(deadline=None, max_examples=100)


def text_of(kind: ScalarKind, values: list) -> list[str]:
    type_ = PropertyType(kind)
    return canonical_text(pa.array(values, arrow_type(type_)), type_).to_pylist()


def reference(value: float) -> str:
    """The shortest round-tripping digits that Python finds, written out."""
    text = format(Decimal(repr(value)), "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in {"0", "-0"} else text


@pytest.mark.slow
@unhurried
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
@example(
    [1e21, 2.0, -0.0, 5e-324, 1.7976931348623157e308, 1234567890123456.7, 1e15, 1e16, -1.25e-7, 123456789.125]
)
def test_doubles_are_shortest_without_exponent(values):
    assert text_of(ScalarKind.F64, values) == [reference(v) for v in values]


@pytest.mark.slow
@unhurried
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
@example([float(np.float32(0.1)), 16777216.0, 3.4028234663852886e38, 1.401298464324817e-45])
def test_singles_are_shortest_at_their_width(values):
    expected = []
    for value in values:
        text = np.format_float_positional(np.float32(value), unique=True, trim="-")
        expected.append("0" if text in {"0", "-0"} else text)
    assert text_of(ScalarKind.F32, values) == expected


@unhurried
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
@pytest.mark.slow
def test_the_text_of_a_double_reads_back_as_the_same_double(values):
    assert [float(text) for text in text_of(ScalarKind.F64, values)] == values


def test_the_other_scalars():
    assert text_of(ScalarKind.STRING, ["", "é", None]) == ["", "é", None]
    assert text_of(ScalarKind.BOOL, [True, False, None]) == ["true", "false", None]
    assert text_of(ScalarKind.I32, [-(2**31), 0]) == ["-2147483648", "0"]
    assert text_of(ScalarKind.I64, [-(2**63), 2**63 - 1]) == [str(-(2**63)), str(2**63 - 1)]
    assert text_of(ScalarKind.U64, [2**64 - 1]) == [str(2**64 - 1)]
    assert text_of(ScalarKind.DATE, [dt.date(1970, 1, 2), dt.date(1969, 12, 31)]) == ["1", "-1"]
    moment = dt.datetime(1970, 1, 1, 0, 0, 1, 5000, tzinfo=dt.UTC)
    assert text_of(ScalarKind.DATETIME, [moment, None]) == ["1005", None]


def test_chunks_slices_and_empty_arrays():
    type_ = PropertyType(ScalarKind.F64)
    chunked = pa.chunked_array([[1e300, 1.0], [None], []], pa.float64())
    assert canonical_text(chunked, type_).to_pylist() == ["1" + "0" * 300, "1", None]
    assert canonical_text(pa.array([0.5, 1e-9, 2.0, 1e30]).slice(1, 2), type_).to_pylist() == [
        "0.000000001",
        "2",
    ]
    assert canonical_text(pa.array([], pa.float64()), type_).to_pylist() == []
    assert canonical_text(pa.chunked_array([], pa.float64()), type_).to_pylist() == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused_by_name(bad):
    node = compile_schema("node T { k: F64 @key }").nodes["T"]
    with pytest.raises(PropertyValueError) as caught:
        node_ids(pa.table({"k": [1.0, bad]}), node)
    detail = caught.value.to_dict()["constraint"]
    assert (detail["type_name"], detail["property"], detail["rule"]) == ("T", "k", "type")


@pytest.mark.parametrize(
    "type_",
    [
        PropertyType(ScalarKind.BLOB),
        PropertyType(ScalarKind.I32, is_list=True),
        PropertyType(ScalarKind.F32, vector_dim=2),
    ],
)
def test_lists_vectors_and_blobs_have_no_text(type_):
    with pytest.raises(ValueError, match="no canonical text"):
        canonical_text(pa.nulls(1, arrow_type(type_)), type_)


@pytest.mark.slow
@unhurried
@given(st.lists(st.tuples(st.text(), st.text()), min_size=1))
@example([("".join(map(chr, range(0x30))) + '\\"\x7f\u2028', "é")])
def test_a_composite_id_is_compact_json(pairs):
    left, right = (pa.array(column, pa.string()) for column in zip(*pairs, strict=True))
    expected = [json.dumps(list(pair), ensure_ascii=False, separators=(",", ":")) for pair in pairs]
    assert tuple_text([left, right]).to_pylist() == expected


def test_a_row_with_a_null_member_is_exempt_from_uniqueness():
    edge = compile_schema("node N {} edge E: N -> N { w: F64? @unique(src, w) }").edges["E"]
    table = pa.table({"src": ["a", "a", "b"], "dst": ["x", "x", "x"], "w": [0.0, None, -0.0]})
    assert unique_tuples(table, edge.unique[0], edge).to_pylist() == ['["a","0"]', None, '["b","0"]']


def test_a_type_without_key_derives_no_ids():
    node = compile_schema("node T { k: F64 }").nodes["T"]
    with pytest.raises(ValueError, match="no key"):
        node_ids(pa.table({"k": [1.0]}), node)


def test_a_record_batch_serves_as_well_as_a_table():
    node = compile_schema("node T { a: I64  b: Bool  @key(a, b) }").nodes["T"]
    batch = pa.record_batch({"b": [True], "a": [7]})
    assert node_ids(batch, node).to_pylist() == ['["7","true"]']
