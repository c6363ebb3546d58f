"""One entity by its id."""

from pathlib import Path

import pytest

from graphs import make_graph, run
from omnigraph.core.errors import EntityNotFound, TypeNotFound
from omnigraph.engine.tables import key_cache, keys


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g") as made:
        yield made


def test_nodes_and_edges(graph) -> None:
    made = run(graph, 'insert Person { name: "a", age: 3 } insert Knows { from: "a", to: "a" }')
    person = graph.entity("Person", "a")
    assert (person.id, person.source, person.properties["age"]) == ("a", None, 3)
    edge = graph.entity("knows", made.inserted[1].id)
    assert (edge.type_name, edge.source, edge.target) == ("Knows", "a", "a")


def test_what_is_not_there(graph) -> None:
    with pytest.raises(EntityNotFound) as caught:
        graph.entity("Person", "a")
    assert caught.value.http_status == 404
    with pytest.raises(TypeNotFound) as unknown:
        graph.entity("Persn", "a")
    assert unknown.value.details["candidates"] == ["Person"]


def test_each_branch_has_its_own(graph) -> None:
    run(graph, 'insert Person { name: "a", age: 1 }')
    graph.branches.create("dev")
    run(graph, 'update Person set { age: 2 } where name = "a"', branch="dev")
    run(graph, 'insert Person { name: "b" }', branch="dev")
    assert graph.entity("Person", "a").properties["age"] == 1
    assert graph.entity("Person", "a", branch="dev").properties["age"] == 2
    with pytest.raises(EntityNotFound):
        graph.entity("Person", "b")


def test_the_first_lookup_in_a_large_table_asks_the_table(graph, monkeypatch: pytest.MonkeyPatch) -> None:
    run(graph, 'insert Note { text: "x" } insert Company { name: "c" } insert Company { name: "d" }')
    monkeypatch.setattr(key_cache, "UNINDEXED_ROWS_MIN", 1)
    graph.session.keys = key_cache.KeyIndexCache(1 << 20)
    asked: list[str] = []
    for name, function in (("probe", keys.probe), ("build", keys.build)):
        monkeypatch.setattr(
            key_cache,
            name,
            lambda *args, f=function, n=name, **named: (asked.append(n), f(*args, **named))[1],
        )
    for _ in range(3):
        assert graph.entity("Company", "d").id == "d"
    assert asked == ["probe", "build"]
