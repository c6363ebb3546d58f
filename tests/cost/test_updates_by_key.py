"""Updates of one query that name their nodes by key share one look-up."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphs
from omnigraph.core.events import StorageCall, listen

SCHEMA = """
node P { k: String @key  n: I64?  m: I64? }
node Q { k: I64 @key  n: I64? }
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    with graphs.make_graph(tmp_path_factory.mktemp("updates") / "g", SCHEMA) as made:
        yield made


def scans_of(graph, statements: list[str]) -> int:
    heard = []
    with listen(heard.append, everywhere=True):
        graphs.run(graph, " ".join(statements))
    return Counter(each.kind for each in heard if isinstance(each, StorageCall))["scan"]


@pytest.mark.cost
@pytest.mark.parametrize(("name", "spelled"), [("P", '"{}"'), ("Q", "{}"), ("Q", "{}.0")])
@pytest.mark.slow
def test_eight_hundred_updates_by_key_read_the_table_once(graph, name, spelled):
    keys = [spelled.format(number) for number in range(800)]
    graphs.run(graph, " ".join(f"insert {name} {{ k: {key.removesuffix('.0')}, n: 0 }}" for key in keys))
    few = scans_of(graph, [f"update {name} set {{ n: 1 }} where k = {key}" for key in keys[:2]])
    many = scans_of(graph, [f"update {name} set {{ n: 2 }} where k = {key}" for key in keys])
    assert many == few
    found = graph.query(f"query q() {{ match {{ $p: {name} {{ n: 2 }} }} return {{ count($p) as n }} }}")
    assert found.to_dicts() == [{"n": 800}]


KEYS = ["a", "b", "c", "d"]
statements = st.lists(
    st.tuples(
        st.sampled_from(["insert", "by key", "by value", "two conditions", "by another key"]),
        st.sampled_from(KEYS),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@given(statements, statements)
@pytest.mark.slow
def test_updates_see_what_the_query_did_before(graph, first, second):
    graphs.run(graph, "delete P where k is not null")
    model: dict[str, tuple[int | None, int | None]] = {}
    for program in (first, second):
        texts = []
        for kind, key, old, new in program:
            match kind:
                case "insert":
                    texts.append(f'insert P {{ k: "{key}", n: {new} }}')
                    model[key] = (new, None)
                case "by key":
                    texts.append(f'update P set {{ n: {new} }} where k = "{key}"')
                    model |= {k: (new, m) for k, (_, m) in model.items() if k == key}
                case "by value":
                    texts.append(f"update P set {{ n: {new}, m: {old} }} where n = {old}")
                    model |= {k: (new, old) for k, (n, _) in model.items() if n == old}
                case "two conditions":
                    texts.append(f'update P set {{ m: {new} }} where k = "{key}" and n = {old}')
                    model |= {k: (n, new) for k, (n, _) in model.items() if k == key and n == old}
                case _:
                    texts.append(
                        f'update P set {{ m: {new} }} where k = "{key}" update P set {{ m: 9 }} where k = "z"'
                    )
                    model |= {k: (n, new) for k, (n, _) in model.items() if k == key}
        graphs.run(graph, " ".join(texts))
    found = graph.query("query q() { match { $p: P } return { $p.k, $p.n, $p.m } }")
    assert {row["p.k"]: (row["p.n"], row["p.m"]) for row in found.to_dicts()} == model
