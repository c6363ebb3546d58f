"""The largest and smallest numbers of each kind are kept, compared and added up."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphs
from omnigraph.core.errors import ConstraintViolation, SumOverflow
from omnigraph.engine.read import sums
from omnigraph.language.query_tree import Function
from omnigraph.planning import ir

SCHEMA = "node N { k: I64 @key  u: U64? }"
KEYS = (-(2**63), -1, 0, 2**63 - 1)


@pytest.fixture
def graph(tmp_path):
    with graphs.make_graph(tmp_path / "g", SCHEMA) as made:
        for key in KEYS:
            made.mutate(
                "query add($k: I64, $u: U64) { insert N { k: $k, u: $u } }",
                params={"k": key, "u": 2**64 - 1 - (key == 0)},
            )
        yield made


def rows(graph, body):
    return list(graph.query(f"query q() {{ {body} }}"))


def test_averages_of_the_largest_numbers_do_not_overflow(graph):
    (answer,) = rows(graph, "match { $n: N } return { avg($n.u) as a, max($n.u) as m, avg($n.k) as k }")
    assert answer == {"a": float(2**64), "m": 2**64 - 1, "k": -0.5}


@pytest.mark.parametrize(
    "body", ["sum($n.u) as s", "$n.k, sum($n.u) as s", "$n.k as k, $n.u as u, sum($n.u) as s"]
)
def test_a_sum_that_does_not_fit_is_an_error_that_names_it(graph, body):
    with pytest.raises(SumOverflow, match=r"the sum of \$n\.u does not fit I64") as caught:
        rows(graph, f"match {{ $n: N }} return {{ {body} }}")
    assert (caught.value.argument, caught.value.kind) == ("$n.u", "query_execution")


@pytest.mark.slow
def test_sums_are_exact_up_to_the_ends(tmp_path):
    """Beyond 2^53, at both ends of I64, in one group and in many, in blocks and in one go."""
    values = [2**53 + 1, 2**62, 2**62 - 1 - 2**53 - 1, -1, 1]
    with graphs.make_graph(
        tmp_path / "g", "node N { k: String @key  n: I64?  u: U64?  tags: [String]? }"
    ) as made:
        add = 'query q($k: String, $n: I64, $u: U64) { insert N { k: $k, n: $n, u: $u, tags: ["t"] } }'
        for number, value in enumerate(values):
            made.mutate(add, {"k": f"k{number}", "n": value, "u": max(value, 0) // 2})
        made.mutate('query q() { insert N { k: "null" } }')
        for group in ("", "$n.k, ", "$n.tags, "):
            answer = rows(made, f"match {{ $n: N }} return {{ {group}sum($n.n) as s, sum($n.u) as u }}")
            assert sum(row["s"] or 0 for row in answer) == sum(values) == 2**63 - 1
            assert sum(row["u"] or 0 for row in answer) == sum(max(value, 0) // 2 for value in values)
            assert {type(row["s"]) for row in answer} <= {int, type(None)}
        made.mutate(add, {"k": "more", "n": 1, "u": 0})
        with pytest.raises(SumOverflow):
            rows(made, "match { $n: N } return { sum($n.n) as s }")
        low = "match { $n: N } return { sum($n.n) as s }"
        made.mutate('query q() { delete N where k != "null" }')
        for number, value in enumerate([-(2**62), -(2**62)]):
            made.mutate(add, {"k": f"k{number}", "n": value, "u": 0})
        assert rows(made, low) == [{"s": -(2**63)}]
        made.mutate(add, {"k": "less", "n": -1, "u": 0})
        with pytest.raises(SumOverflow):
            rows(made, low)


@given(values=st.lists(st.tuples(st.integers(0, 3), st.integers(-(2**63), 2**63 - 1)), max_size=40))
@settings(deadline=None)
@pytest.mark.slow
def test_sums_of_groups_are_those_of_whole_numbers(values):
    """Against Python's integers, added in pieces of any size."""
    argument = ir.Literal(0, ir.I64)
    with mock.patch.object(sums, "EXACT_ROWS", 3):
        made = sums.Sums(ir.Aggregate(Function.SUM, argument, ir.I64), 4)
        codes, numbers = (np.array([pair[at] for pair in values], np.int64) for at in (0, 1))
        made.add(codes, numbers, None)
    for group in range(4):
        mine = [value for code, value in values if code == group]
        if -(2**63) <= sum(mine) < 2**63:
            assert made.result(np.array([group])).to_pylist() == [sum(mine) if mine else None]
        else:
            with pytest.raises(SumOverflow):
                made.result(np.array([group]))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("$n.k < -9223372036854775807", [-(2**63)]),
        ("$n.k > 9223372036854775806", [2**63 - 1]),
        ("$n.u > 9223372036854775807", list(KEYS)),
    ],
)
def test_comparisons_at_the_ends_are_exact(graph, condition, expected):
    answer = rows(graph, f"match {{ $n: N  {condition} }} return {{ $n.k }} order {{ $n.k }}")
    assert [row["n.k"] for row in answer] == expected


def test_a_parameter_reaches_the_largest_unsigned_value(graph):
    source = "query q($u: U64) { match { $n: N  $n.u < $u } return { $n.k } }"
    assert [row["n.k"] for row in graph.query(source, params={"u": 2**64 - 1})] == [0]


@pytest.mark.parametrize(("kind", "value"), [("I64", -(2**63)), ("I64", 2**63 - 1), ("U64", 2**64 - 1)])
def test_a_unique_property_may_hold_them_once(tmp_path, kind, value):
    add = f"query add($k: String, $n: {kind}) {{ insert N {{ k: $k, n: $n }} }}"
    with graphs.make_graph(tmp_path / "unique", f"node N {{ k: String @key  n: {kind}? @unique }}") as made:
        made.mutate(add, params={"k": "a", "n": value})
        with pytest.raises(ConstraintViolation, match=f"'{value}' is held by 'a' and 'b'"):
            made.mutate(add, params={"k": "b", "n": value})


def test_whole_numbers_reach_pandas_as_they_are(tmp_path):
    """A null beside them makes no floats of them."""
    schema = "node N { k: String @key  i: I32?  l: I64?  u: U32?  v: U64?  b: Bool? }"
    with graphs.make_graph(tmp_path / "g", schema) as made:
        graphs.run(made, 'insert N { k: "a", i: -1, l: 9007199254740993, u: 4294967295, b: true }')
        made.mutate('query q($v: U64) { insert N { k: "b", v: $v } }', {"v": 2**64 - 1})
        found = made.query(
            "query q() { match { $n: N } return { $n.i, $n.l, $n.u, $n.v, $n.b } order { $n.k } }"
        ).to_pandas()
        assert [str(kind) for kind in found.dtypes] == ["Int32", "Int64", "UInt32", "UInt64", "boolean"]
        assert found["n.l"][0] == 9007199254740993
        assert found["n.v"][1] == 2**64 - 1
        assert found.isna().to_numpy().tolist() == [[False] * 3 + [True, False], [True] * 3 + [False, True]]
