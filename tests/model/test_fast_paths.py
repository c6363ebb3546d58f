"""Every way the engine has to run a plan gives the same rows: lists or arrays, blocks or the whole."""

import itertools
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import omnigraph
from model.crowd import CHAINS, gather
from model.programs import SCHEMA, graphs, queries, seed
from model.test_queries import compare
from omnigraph.core.settings import Settings
from omnigraph.engine.edges import traverse
from omnigraph.engine.read import aggregate, chains, frame, match, project, query
from omnigraph.planning import steps

numbers = itertools.count()
FAST = Settings(durability="os")

WAYS = {
    # Every hop of a chain is left to the operators, and no rows are few.
    "arrays": [(chains, "FEW_LINKS", 0), (traverse, "FEW_NODES", 0)]
    + [(module, "FEW_ROWS", 0) for module in (frame, match, project, query)],
    # One row that a match begins with at a time; the last hop is always made.
    "single blocks": [(aggregate, "BLOCK_ROWS", 1), (steps, "EXACT_SUMS", frozenset())],
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


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    with omnigraph.init(tmp_path_factory.mktemp("crowd") / "g", schema=SCHEMA, settings=FAST) as graph:
        gather(graph)
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
