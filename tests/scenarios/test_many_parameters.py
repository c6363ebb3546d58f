"""One statement over many sets of parameters: one commit, all or nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import omnigraph
from graphs import make_graph, rows_of
from omnigraph.api.graph import Graph
from omnigraph.core.errors import (
    ConstraintViolation,
    KeyConflict,
    MissingParameter,
    OmnigraphError,
    PreconditionFailed,
)

PERSON = "query p($name: String, $nick: String?) { insert Person { name: $name, nick: $nick } }"
NEW = "query n($name: String) { insert new Person { name: $name } }"
AGE = "query a($name: String, $age: I32) { update Person set { age: $age } where name = $name }"
GONE = "query g($name: String) { delete Person where name = $name }"


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    with make_graph(tmp_path / "g") as made:
        yield made


def test_many_sets_become_one_commit(graph: Graph) -> None:
    done = graph.mutate_many(PERSON, ({"name": f"p{n}"} for n in range(500)), actor="ines")
    assert (done.affected_nodes, done.commit.actor) == (500, "ines")
    assert [each.id for each in done.inserted] == [f"p{n}" for n in range(500)]
    assert len(graph.commits.list()) == 2
    assert len(rows_of(graph, "Person")) == 500


def test_sets_are_run_in_order_and_see_each_other(graph: Graph) -> None:
    graph.mutate_many(PERSON, [{"name": "a", "nick": "x"}, {"name": "a", "nick": "y"}, {"name": "b"}])
    graph.mutate_many(AGE, [{"name": "a", "age": 1}, {"name": "b", "age": 2}, {"name": "a", "age": 3}])
    found = rows_of(graph, "Person")
    assert {name: (row.get("nick"), row.get("age")) for name, row in found.items()} == {
        "a": ("y", 3),
        "b": (None, 2),
    }
    gone = graph.mutate_many(GONE, [{"name": "a"}, {"name": "nobody"}, {"name": "a"}])
    assert gone.affected_nodes == 1
    assert set(rows_of(graph, "Person")) == {"b"}


def test_no_set_at_all_changes_nothing(graph: Graph) -> None:
    done = graph.mutate_many(PERSON, [])
    assert (done.commit, done.affected_nodes) == (None, 0)


@pytest.mark.parametrize(
    ("query", "sets", "guilty", "failure"),
    [
        (PERSON, [{"name": "a"}, {"nick": "x"}, {"name": "c"}], 2, MissingParameter),
        (NEW, [{"name": "a"}, {"name": "b"}, {"name": "a"}, {"name": "d"}], 3, KeyConflict),
        (
            PERSON,
            [{"name": f"p{n}", "nick": "same" if n in {5, 11} else None} for n in range(20)],
            12,
            ConstraintViolation,
        ),
    ],
)
def test_an_error_names_its_set_and_nothing_happens(
    graph: Graph, query: str, sets: list[dict[str, str]], guilty: int, failure: type[OmnigraphError]
) -> None:
    with pytest.raises(failure, match=f"^parameter set {guilty}: ") as caught:
        graph.mutate_many(query, sets)
    assert caught.value.details["parameter_set"] == guilty
    assert rows_of(graph, "Person") == {}
    assert len(graph.commits.list()) == 1
    assert graph.pending() == ()


def test_many_sets_may_have_a_condition(graph: Graph) -> None:
    head = graph.commits.head().id
    graph.mutate_many(PERSON, [{"name": "a"}, {"name": "b"}], if_commit=head)
    with pytest.raises(PreconditionFailed):
        graph.mutate_many(PERSON, [{"name": "c"}, {"name": "d"}], if_commit=head)
    assert set(rows_of(graph, "Person")) == {"a", "b"}


def test_a_text_is_never_taken_for_a_path(graph: Graph, tmp_path: Path, monkeypatch) -> None:
    """What a face was sent is a query, even where a file has that name."""
    (tmp_path / "secret").write_text(PERSON)
    monkeypatch.chdir(tmp_path)
    assert graph.mutate("secret", {"name": "a"}).affected_nodes == 1
    for call in (graph.query, graph.mutate, graph.explain):
        with pytest.raises(OmnigraphError) as caught:
            call(omnigraph.Text("secret"), {})
        assert caught.value.kind not in {"io", "missing_parameter"}, call
