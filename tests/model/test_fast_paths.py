"""Every way the engine has to run a plan gives the same rows: lists or arrays, blocks or the whole."""

import itertools
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import omnigraph
from model.programs import SCHEMA, graphs, queries, seed
from model.test_queries import compare
from omnigraph.core.settings import Settings
from omnigraph.engine.edges import traverse
from omnigraph.engine.read import aggregate, chains, frame, match, project, query

numbers = itertools.count()
FAST = Settings(durability="os")

WAYS = {
    # Every hop of a chain is left to the operators, and no rows are few.
    "arrays": [(chains, "FEW_LINKS", 0), (traverse, "FEW_NODES", 0)]
    + [(module, "FEW_ROWS", 0) for module in (frame, match, project, query)],
    # One row that a match begins with at a time; the last hop is always made.
    "single blocks": [(aggregate, "BLOCK_ROWS", 1), (aggregate, "_EXACT_SUMS", frozenset())],
    # No codes: groups are made from all working rows at once.
    "whole groups": [(aggregate, "DENSE_CODES_MAX", 0)],
}


@pytest.mark.model
@pytest.mark.parametrize("way", WAYS)
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(graph=graphs(), texts=st.lists(queries(), min_size=4, max_size=8))
def test_every_way_agrees_with_the_reference(tmp_path, way, graph, texts) -> None:
    with omnigraph.init(tmp_path / str(next(numbers)), schema=SCHEMA, settings=FAST) as opened:
        opened.mutate(seed(graph))
        with pytest.MonkeyPatch.context() as patch:
            for module, name, value in WAYS[way]:
                patch.setattr(module, name, value)
            for text in texts:
                compare(opened, graph, text)


CHAINS = [
    'match { $a: A { k: "n0" } $a e $b } return { $b.k, $b.n }',
    'match { $a: A { k: "n0" } $a e $b $b e $c } return { $c.k }',
    'match { $a: A { k: "n0" } $a e $b $b e $c } return distinct { $c }',
    'match { $a: A { k: "n0" } $a e $b $b e $c $c e $d $d.n > 1 } return distinct { $d }',
    'match { $a: A { k: "n1" } $a e $b $b.s = "x" $b e $c } return { $c.n, $c.s } limit 7',
    'match { $a: A { k: "n1" } $b e $a $b.n >= 0 } return { $b.k, $a.k }',
    'match { $a: A { k: "n0" } $a <e> $b $b.n is not null } return { $b.k, $b.n } order { $b.n desc } limit 5',
    'match { $a: A { k: "n2" } $a e $b not { $b e $a } } return { $b }',
    'match { $a: A { k: "nobody" } $a e $b } return { $b }',
    "match { $a: A $a e $b } return { $a.s, sum($b.n) as t, count($b) as c, avg($a.n) as m }",
    "match { $a: A $a $e: e $b } return { $a.n, sum($e.w) as t, count($b.n) as c, count($e.w) as w }",
    "match { $a: A $a e $b $b e $c } return { $a, count($c) as n, avg($c.n) as m } order { m desc } limit 9",
    "match { $a: A maybe { $a e $b } } return { $a.s, count($b) as n, sum($b.n) as t }",
    "match { $a: A maybe { $a e $b $b e $c } } return { count($c) as n, sum($a.n) as t, max($c.s) as m }",
]


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """Sixty people of whom three are busy, with parallel ties, ties to oneself, nulls and deleted rows."""
    with omnigraph.init(tmp_path_factory.mktemp("crowd") / "g", schema=SCHEMA, settings=FAST) as graph:
        people = [
            f'insert A {{ k: "n{n}", n: {"null" if n % 7 == 0 else n % 5 - 1}, s: "{"xy"[n % 2]}" }}'
            for n in range(60)
        ]
        ends = [(n, (n * 7 + 3) % 60) for n in range(60)] + [(h, n) for h in range(3) for n in range(60)]
        ties = [
            f'insert E {{ from: "n{a}", to: "n{b}", w: {"null" if b % 3 == 0 else a} }}'
            for a, b in [*ends, *ends[:20]]
        ]
        for lines in (people, ties[:150], ties[150:]):
            graph.mutate("query q() { " + "\n".join(lines) + " }")
        graph.mutate('query q() { delete A where k = "n17" }')
        graph.mutate('query q() { insert A { k: "n18", n: 4, s: "z" } }')
        yield graph


def rows_of(graph, body):
    found = graph.query(f"query q() {{ {body} }}")
    return [tuple(row.values()) for row in found.to_dicts()]


@pytest.mark.model
@pytest.mark.parametrize("body", CHAINS)
def test_busy_and_quiet_starts_answer_alike_on_every_way(crowd, body) -> None:
    plain = rows_of(crowd, body)
    for way, changes in WAYS.items():
        with pytest.MonkeyPatch.context() as patch:
            for module, name, value in changes:
                patch.setattr(module, name, value)
            other = rows_of(crowd, body)
        if "order" in body or "limit" in body or "count(" not in body:
            assert other == plain, way
        else:
            assert Counter(other) == Counter(plain), way


@pytest.mark.model
def test_arrow_and_python_rows_are_the_same(crowd) -> None:
    found = crowd.query('query q() { match { $a: A { k: "n5" } } return { $a.k, $a.n, $a.s } }')
    assert len(found) == 1
    assert found[0] == found.to_dicts()[0]
    assert found.table.to_pylist() == found.to_dicts()
    assert [str(field.type) for field in found.table.schema] == ["string", "int32", "string"]
