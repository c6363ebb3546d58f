"""The largest and smallest numbers of each kind are kept, compared and added up."""

import pytest

import graphs
from omnigraph.core.errors import ConstraintViolation

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


def test_sums_and_averages_round_integers_beyond_double_precision(graph):
    (answer,) = rows(graph, "match { $n: N } return { sum($n.u) as s, avg($n.u) as a, max($n.u) as m }")
    assert answer == {"s": 4.0 * 2**64, "a": float(2**64), "m": 2**64 - 1}


def test_grouped_sums_round_them_too(graph):
    answer = rows(graph, "match { $n: N } return { $n.k, sum($n.u) as s } order { $n.k }")
    assert [(row["n.k"], row["s"]) for row in answer] == [(key, float(2**64)) for key in KEYS]


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
