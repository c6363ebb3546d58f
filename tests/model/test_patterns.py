"""Patterns with cycles, in any order of their clauses and in the smallest pieces, against the naive evaluator."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import omnigraph
from graphs import make_graph
from model.programs import SCHEMA, graphs, queries, seed, seed_in_parts
from model.reference import run_reference
from model.test_queries import compare
from omnigraph.catalog.build import compile_schema
from omnigraph.core.errors import ResourceLimit
from omnigraph.core.settings import Settings
from omnigraph.engine.read import aggregate, flow, match, prepared, threads
from omnigraph.planning.compile import as_read, compile_query

CATALOG = compile_schema(SCHEMA)
FAST = Settings(durability="os")
numbers = itertools.count()


@pytest.fixture
def smallest_pieces(monkeypatch):
    """Every step is cut wherever it can be, its pieces run side by side, and equal rows are put together
    wherever they can be.
    """
    monkeypatch.setattr(threads, "THREADS", 3)
    monkeypatch.setattr(flow, "FLOW_ROWS", 2)
    monkeypatch.setattr(flow, "UNKNOWN_ROWS", 1)
    monkeypatch.setattr(flow, "UNCUT_ROWS", 0)
    monkeypatch.setattr(flow, "MERGED_ROWS_MIN", 1)
    monkeypatch.setattr(flow, "SKEW", 1000)
    monkeypatch.setattr(aggregate, "FEW_ROWS", 0)
    monkeypatch.setattr(aggregate, "BLOCK_ROWS", 2)
    monkeypatch.setattr(match, "FEW_ROWS", 0)


hops = st.tuples(st.sampled_from("xyz"), st.sampled_from(["e", "<e>", "e", "e{1,2}"]), st.sampled_from("xyz"))


@st.composite
def cycles(draw) -> list[str]:
    """The clauses of a pattern over three variables, with more edges than a tree has."""
    clauses = [f"${name}: A {draw(st.sampled_from(['', '', '{ n: 1 }']))}" for name in "xyz"]
    clauses += [f"${a} {edge} ${b}" for a, edge, b in draw(st.lists(hops, min_size=2, max_size=5))]
    if draw(st.booleans()):
        clauses.append("$z f $b")
    if draw(st.booleans()):
        clauses.append(f"${draw(st.sampled_from('xyz'))}.n {draw(st.sampled_from(['=', '!=', '<']))} $y.n")
    if draw(st.integers(0, 2)) == 0:
        clauses.append("not { $x e $z }")
    if draw(st.integers(0, 2)) == 0:
        clauses.append("not { $x f $w $z f $w }")
    return clauses


WARM = (
    "query q() { match { $x e $y $z e $y $x f $b } return { $x, $y, $z, $b } }",
    "query q() { match { $x <e> $y $y f $b } return { $x, $y, $b } }",
)
"""What makes indexes in all directions, which the next commits are then followed from."""

RETURNS = (
    "{ count($x) as c }",
    "{ $y.n, count($x) as c, sum($z.n) as s, max($x.n) as m }",
    "{ $x, $y, $z }",
    "distinct { $y.n, $z }",
)


@pytest.mark.model
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    graph=graphs(),
    patterns=st.lists(st.tuples(cycles(), st.sampled_from(RETURNS)), min_size=2, max_size=4),
    order=st.integers(0, 1000),
    at_once=st.booleans(),
)
def test_the_answer_does_not_depend_on_the_order_of_clauses(
    tmp_path, smallest_pieces, graph, patterns, order, at_once
) -> None:
    """Over indexes of one state, over those that later commits corrected, and by probes."""
    shuffle = random.Random(order)
    asked: list[tuple[str, Counter]] = []
    for clauses, shown in patterns:
        nodes, rest = clauses[:3], clauses[3:]  # a variable is bound before a condition mentions it
        orders = [clauses, *(shuffle.sample(nodes, 3) + shuffle.sample(rest, len(rest)) for _ in range(2))]
        texts = [f"query q() {{ match {{ {' '.join(each)} }} return {shown} }}" for each in orders]
        expected = Counter(run_reference(as_read(compile_query(texts[0], CATALOG)), graph, {}))
        asked += [(text, expected) for text in texts]
    path = tmp_path / str(next(numbers))
    with omnigraph.init(path, schema=SCHEMA, settings=FAST) as opened:
        for part in [seed(graph)] if at_once else seed_in_parts(graph):
            opened.mutate(part)
            for each in WARM:
                opened.query(each)
        for text, expected in asked:
            assert rows_of(opened, text) == expected, text
    with omnigraph.open(path, settings=Settings(durability="os", expand_access="probe")) as probing:
        for text, expected in asked:
            assert rows_of(probing, text) == expected, text


def rows_of(graph, text) -> Counter:
    columns = graph.query(text).table.columns
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


@pytest.mark.model
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(graph=graphs(), texts=st.lists(queries(), min_size=3, max_size=6))
def test_pieces_and_weights_change_no_answer(tmp_path, smallest_pieces, graph, texts) -> None:
    with omnigraph.init(tmp_path / str(next(numbers)), schema=SCHEMA, settings=FAST) as opened:
        opened.mutate(seed(graph))
        for text in texts:
            compare(opened, graph, text)


EXCLUDING = (
    "$x e $y $y e $z $x.k != $z.k",
    "$x e $y $y <e> $z $z f $b $z.k != $x.k not { $x e $z }",
    "$x e $y $y e $z $z e $w $x.k != $z.k $w.k != $y.k not { $x <e> $w }",
    "$x e $y $y e $z $x.k != $z.k $x.k != $y.k not { $z e $x } not { $x f $b }",
    "$x e{1,2} $y $y e $x $x.k != $y.k not { $y $d:e $y }",
)


@pytest.mark.model
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(graph=graphs(), shown=st.sampled_from(["", "$x.n, ", "$z, ", "$x, $y.n, "]))
def test_what_is_excluded_is_counted_away(tmp_path, monkeypatch, graph, shown) -> None:
    """However much that costs here: rows are those of the match that looks at all of them."""
    monkeypatch.setattr(prepared, "TERMS_COST_MIN", -1.0)
    monkeypatch.setattr(prepared, "TERMS_SHARE_MAX", float("inf"))
    with omnigraph.init(tmp_path / str(next(numbers)), schema=SCHEMA, settings=FAST) as opened:
        opened.mutate(seed(graph))
        for number, clauses in enumerate(EXCLUDING):
            if "$z" in shown and "$z" not in clauses:
                continue
            match = f"$x: A $y: A {'{ n: 1 }' if number == 1 else ''} {clauses}"
            text = f"query q() {{ match {{ {match} }} return {{ {shown}count($y) as n }} }}"
            told = str(opened.explain(text))
            assert "is counted and taken away" in told or number == len(EXCLUDING) - 1, told
            compare(opened, graph, text)


COUNTED = """
query q() { match { $a: P $b: P $c: P $d: P $a k $x $b k $y $c k $z } return { count($a) as n, count($y) as m } }
"""


def test_a_product_that_nobody_could_unroll_is_counted_and_never_returned(tmp_path) -> None:
    """A thousand nodes, and three times a thousand edges: 10^12 rows."""
    schema = "node P { k: String @key }\nedge K: P -> P"
    chosen = random.Random(3)
    nodes = [f'insert P {{ k: "p{n}" }}' for n in range(1000)]
    pairs = {(chosen.randrange(1000), chosen.randrange(1000)) for _ in range(1001)}
    edges = [f'insert K {{ from: "p{a}", to: "p{b}" }}' for a, b in sorted(pairs)]
    with make_graph(tmp_path / "g", schema) as opened:
        opened.mutate("query q() {" + "\n".join(nodes + edges) + "}")
        expected = len(pairs) ** 3 * 1000
        assert expected > 10**12 * 0.99
        assert opened.query(COUNTED).to_dicts() == [{"n": expected, "m": expected}]
        with pytest.raises(ResourceLimit, match="scan P as") as caught:
            opened.query(COUNTED.replace("count($a) as n, count($y) as m", "$a, $b, $x, $y, $z"))
        assert caught.value.details["resource_limit"]["resource"] == "query_memory_bytes"
        assert opened.query(COUNTED).to_dicts() == [{"n": expected, "m": expected}]
