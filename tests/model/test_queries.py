"""The engine and the naive evaluator agree on generated graphs and queries."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import given as generated_by
from hypothesis import strategies as st

import omnigraph
from model.programs import SCHEMA, given, graphs, queries, seed, seed_in_parts
from model.reference import run_reference
from omnigraph.catalog.build import compile_schema
from omnigraph.core.errors import QueryTypeError
from omnigraph.core.settings import Settings
from omnigraph.planning import ir
from omnigraph.planning.compile import as_read, compile_query

CATALOG = compile_schema(SCHEMA)
numbers = itertools.count()


INDEXES = ("absent", "stale", "present")


def generated(examples: int, fewest: int, most: int):
    """So many graphs, each with a list of queries, any state of the indexes, one commit or several."""
    slow_is_fine = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    chosen = generated_by(
        graph=graphs(),
        texts=st.lists(queries(), min_size=fewest, max_size=most),
        indexes=st.sampled_from(INDEXES),
        at_once=st.booleans(),
    )
    how = settings(max_examples=examples, deadline=None, suppress_health_check=slow_is_fine)
    return lambda test: how(chosen(test))


@pytest.mark.model
@generated(50, 3, 8)
def test_engine_and_reference_agree(tmp_path, graph, texts, indexes, at_once) -> None:
    """On both access paths of every expand, whatever the indexes know, and after any number of commits."""
    run_example(tmp_path / str(next(numbers)), graph, texts, indexes, at_once=at_once)


@pytest.mark.torture
@pytest.mark.timeout(1200)
@generated(600, 8, 24)
def test_many_queries_agree_with_the_reference(tmp_path, graph, texts, indexes, at_once) -> None:
    run_example(tmp_path / str(next(numbers)), graph, texts, indexes, at_once=at_once)


def run_example(path, graph, texts, indexes, *, at_once) -> None:
    event(f"indexes {indexes}")
    with omnigraph.init(path, schema=SCHEMA, settings=Settings(durability="os")) as opened:
        parts = [seed(graph)] if at_once else seed_in_parts(graph)
        for number, part in enumerate(parts):
            opened.mutate(part)
            if number == 0:
                if indexes == "stale":
                    opened.ensure_indices()
                opened.query("query q() { match { $a: A $a e $b } return { $a, $b } }")
        if indexes == "present":
            opened.ensure_indices()
        for text in texts:
            compare(opened, graph, text)
    with omnigraph.open(path, settings=Settings(durability="os", expand_access="probe")) as probing:
        for text in texts:
            compare(probing, graph, text)


def compare(opened, graph, text) -> None:
    try:
        plan = as_read(compile_query(text, CATALOG))
    except QueryTypeError as refused:
        event(f"refused: {str(refused).split(':')[2][:4]}")
        return
    params = given(text)
    plan = ir.cut_by(plan, params)
    expected = run_reference(plan, graph, params)
    everything = run_reference(replace(plan, limit=None, offset=0), graph, params)
    columns = opened.query(text, params).table.columns
    got = list(zip(*(column.to_pylist() for column in columns), strict=True))
    # Edge ids are generated, so the model cannot know the order of rows that only they tell apart.
    ties_by_edge = any(hop.edge_variable for block in plan.match.walk() for hop in block.traversals)
    if plan.order and not ties_by_edge:
        assert got == expected, text
    elif plan.limit is None and not plan.offset:
        assert Counter(got) == Counter(expected), text
    else:
        # Which of the rows a limit keeps is not said; how many they are, and that they are of the answer, is.
        assert len(got) == len(expected), text
        assert Counter(got) <= Counter(everything), text
    kinds = [tuple(map(type, row)) for row in got]
    assert Counter(kinds) <= Counter(tuple(map(type, row)) for row in everything), text
    event("rows" if got else "no rows")
