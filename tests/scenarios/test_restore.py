"""Taking back and going back: reverts pass over upkeep, and a branch can show an earlier state again."""

import pytest

import omnigraph
from graphs import rows_of
from omnigraph.core.errors import BadRequest

SCHEMA = "node P { k: String @key  a: I32? }\nedge R: P -> P\n"


def people(graph, branch="main"):
    return {key: row["a"] for key, row in rows_of(graph, "P", branch=branch).items()}


@pytest.fixture
def graph(tmp_path):
    with omnigraph.init(tmp_path / "g", schema=SCHEMA) as graph:
        graph.mutate(
            'query q() { insert P { k: "x", a: 1 } insert P { k: "y", a: 1 } insert R { from: "x", to: "y" } }'
        )
        yield graph


def change(graph, value, branch="main"):
    return graph.mutate(f'query q() {{ update P set {{ a: {value} }} where k = "x" }}', branch=branch).commit


def test_reverting_a_branch_by_name_passes_over_upkeep(graph):
    change(graph, 2)
    assert graph.ensure_indices().commit_id is not None
    assert graph.commits.head().is_upkeep
    graph.revert("main")
    assert people(graph) == {"x": 1, "y": 1}


def test_reverting_upkeep_is_an_error_that_names_the_change_before_it(graph):
    changed = change(graph, 2)
    upkeep = graph.ensure_indices().commit_id
    with pytest.raises(BadRequest, match="changed no row") as refused:
        graph.revert(upkeep)
    assert changed.id in refused.value.hint
    assert graph.commits.head().id == upkeep


def test_reverting_a_commit_twice_is_an_error(graph):
    changed = change(graph, 2)
    graph.revert(changed.id)
    head = graph.commits.head().id
    with pytest.raises(BadRequest, match="shows nothing of what commit"):
        graph.revert(changed.id)
    assert graph.commits.head().id == head


def test_upkeep_can_be_left_out_of_the_history(graph):
    change(graph, 2)
    graph.ensure_indices()
    assert "ensure_indices" in [each.operation for each in graph.commits.list()]
    assert [each.operation for each in graph.commits.list(upkeep=False)] == ["mutation", "mutation", "init"]
    assert [each.operation for each in graph.commits.list(upkeep=False, limit=1)] == ["mutation"]


def test_a_branch_shows_a_tag_again_as_a_new_commit(graph):
    graph.tags.create("v1")
    change(graph, 2)
    graph.mutate('query q() { delete P where k = "y" }')
    graph.mutate('query q() { insert P { k: "z", a: 9 } }')
    before = graph.commits.head()
    report = graph.branches.restore("main", to="v1", actor="ines")
    assert (people(graph), len(rows_of(graph, "R"))) == ({"x": 1, "y": 1}, 1)
    assert (report.commit.parents, report.commit.actor) == ((before.id,), "ines")
    assert report.stats["node:P"] == {"inserted": 1, "updated": 1, "deleted": 1}
    graph.branches.restore("main", to=before.id)
    assert people(graph) == {"x": 2, "z": 9}
    assert graph.verify().violations == ()


def test_restoring_what_a_branch_shows_already_writes_nothing(graph):
    head = graph.commits.head().id
    assert graph.branches.restore("main", to=head).commit is None
    assert graph.commits.head().id == head


def test_a_branch_is_restored_to_another_branch_and_goes_on(graph):
    graph.branches.create("f")
    change(graph, 5, branch="f")
    change(graph, 2)
    graph.branches.restore("f", to="main")
    assert people(graph, "f") == {"x": 2, "y": 1}
    change(graph, 7, branch="f")
    graph.branches.merge("f", on_conflict="theirs")
    assert people(graph) == {"x": 7, "y": 1}
