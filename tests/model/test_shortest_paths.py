"""Shortest paths against the naive evaluator, which tries every path there is."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import omnigraph
from graphs import make_graph
from model.reference import ModelGraph, run_reference
from omnigraph.catalog.build import compile_schema
from omnigraph.core.errors import NegativeWeight, ResourceLimit
from omnigraph.core.settings import Settings
from omnigraph.engine.read import flow, paths
from omnigraph.planning.compile import as_read, compile_query

SCHEMA = "node A { k: String @key }\nnode B { k: String @key }\nedge E: A -> A { w: F64? }\nedge F: A -> B { w: I32? }"
CATALOG = compile_schema(SCHEMA)
NODES = [f"a{n}" for n in range(7)]
numbers = itertools.count()


@st.composite
def networks(draw) -> ModelGraph:
    ends = st.sampled_from(NODES)
    weights = st.sampled_from([None, 0.0, 0.5, 1.0, 1.0, 2.0, 3.25])
    rows = draw(st.lists(st.tuples(ends, ends, weights), max_size=16))
    graph = ModelGraph(nodes={"A": {k: {"k": k} for k in NODES}, "B": {"b": {"k": "b"}}})
    graph.edges["E"] = [(a, b, {"w": w}) for a, b, w in rows]
    graph.edges["F"] = [(draw(ends), "b", {"w": draw(st.integers(0, 3))}) for _ in range(2)]
    return graph


def seed(graph: ModelGraph) -> list[str]:
    """Two mutations, so that what the second adds corrects an adjacency that is there."""
    lines = [f'insert {name} {{ k: "{k}" }}' for name, rows in graph.nodes.items() for k in rows]
    edges = [
        f'insert {name} {{ from: "{a}", to: "{b}", w: {"null" if row["w"] is None else row["w"]} }}'
        for name, rows in graph.edges.items()
        for a, b, row in rows
    ]
    parts = [lines + edges[::2], edges[1::2]]
    return ["query seed() {\n" + "\n".join(part) + "\n}" for part in parts if part]


@st.composite
def searches(draw) -> tuple[list[str], str]:
    """The clauses of a match, in any order, and what is returned."""
    edge = draw(st.sampled_from(["e", "e", "<e>"]))
    weight = draw(st.sampled_from(["", " by w"]))
    hop = f"$x $p:shortest {edge}{{1,{draw(st.integers(1, 5))}}}{weight} $y"
    pins = st.sampled_from(["", *(f'{{ k: "{key}" }}' for key in NODES[:4])])
    clauses = [f"${name}: A {draw(pins)}" for name in "xy"]
    match draw(st.integers(0, 4)):
        case 0:
            clauses.append(f"maybe {{ {hop} $p.length > 1 }}")
        case 1:
            return [*clauses, f"not {{ {hop} $p.length < 3 }}"], "{ $x, $y }"
        case 2:
            clauses += [hop, "$x f $b", '$p.nodes contains "a3"']
        case 3:
            clauses += [hop, "$y $q:shortest e{1,2} by w $z"]
            return clauses, "{ $x, $z, $p.nodes, $q.nodes, $q.cost }"
        case _:
            clauses.append(hop)
    shown = ["{ $x, $y, $p.* }", "{ $p.length, count($y) as n }", "distinct { $p.nodes }"]
    return clauses, draw(st.sampled_from(shown))


def answers(opened, text: str) -> Counter:
    rows = zip(*(column.to_pylist() for column in opened.query(text).table.columns), strict=True)
    return Counter(tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in rows)


@pytest.mark.model
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(graph=networks(), asked=st.lists(searches(), min_size=4, max_size=8), order=st.integers(0, 99))
def test_paths_agree_with_the_reference_in_any_order_and_piece(
    tmp_path, monkeypatch, graph, asked, order
) -> None:
    """Searched from both ends and from one, with all rows at once and one by one, over any access."""
    where, chosen = tmp_path / str(next(numbers)), random.Random(order)
    texts = []
    for clauses, shown in asked:
        rest = chosen.sample(clauses[2:], len(clauses) - 2)
        if "contains" in " ".join(rest):
            rest.sort(key=lambda clause: "contains" in clause)  # a path is bound before it is asked
        texts.append(f"query q() {{ match {{ {' '.join(clauses[:2] + rest)} }} return {shown} }}")
    expected = [Counter(run_reference(as_read(compile_query(text, CATALOG)), graph, {})) for text in texts]
    with omnigraph.init(where, schema=SCHEMA, settings=Settings(durability="os")) as opened:
        for part in seed(graph):
            opened.mutate(part)
            opened.query(texts[0])
        for rows, ends in ((1, 0), (1 << 10, 0), (1 << 10, 1 << 10)):
            monkeypatch.setattr(flow, "PATH_ROWS", rows)
            monkeypatch.setattr(flow, "UNCUT_ROWS", 0)
            monkeypatch.setattr(paths, "ENDS_PER_START_MAX", ends)
            for text, answer in zip(texts, expected, strict=True):
                assert answers(opened, text) == answer, text
    with omnigraph.open(where, settings=Settings(durability="os", expand_access="probe")) as probing:
        for text, answer in zip(texts, expected, strict=True):
            assert answers(probing, text) == answer, text


@pytest.fixture
def ring(tmp_path):
    """A ring of nodes with an edge of each weight."""
    size = 120
    nodes = [f'insert A {{ k: "n{n:03}" }}' for n in range(size)]
    edges = [f'insert E {{ from: "n{n:03}", to: "n{(n + 1) % size:03}", w: 1.5 }}' for n in range(size)]
    with make_graph(tmp_path / "g", SCHEMA) as opened:
        opened.mutate("query q() {" + "\n".join(nodes + edges) + "}")
        yield opened


FROM_FIRST = 'query q() { match { $a: A { k: "n000" } $a $p:shortest e{1,1000} by w $b } return { $p.nodes, $p.cost } order { $p.cost desc } limit 1 }'


@pytest.mark.slow
def test_a_long_path_is_found_whole(ring) -> None:
    [row] = ring.query(FROM_FIRST).to_dicts()
    assert row["p.nodes"] == [f"n{n:03}" for n in range(120)]
    assert row["p.cost"] == 119 * 1.5


def test_a_negative_weight_is_refused_by_name(ring) -> None:
    ring.mutate('query q() { insert E { from: "n001", to: "n000", w: -2 } }')
    with pytest.raises(NegativeWeight, match=r"weighed by E\.w, and that is -2") as caught:
        ring.query(FROM_FIRST)
    assert caught.value.details == {"type_name": "E", "property_name": "w", "least": -2.0}


def test_paths_beyond_the_memory_limit_are_refused_by_their_step(ring, tmp_path) -> None:
    small = Settings(durability="os", query_memory_bytes=32 * 1024)
    every = "query q() { match { $a: A $a $p:shortest e{1,1000} $b } return { $p.nodes } }"
    with omnigraph.open(tmp_path / "g", settings=small) as opened:
        with pytest.raises(ResourceLimit) as caught:
            opened.query(every)
        assert caught.value.limit == 32 * 1024
        assert opened.query("query q() { match { $a: A } return { count($a) as n } }").to_dicts() == [
            {"n": 120}
        ]
