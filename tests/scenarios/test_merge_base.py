"""What two branches must have in common to be merged."""

import pytest

import omnigraph
from graphs import rows_of
from omnigraph.core.errors import ConflictError, MergeBaseGone
from omnigraph.core.settings import Settings

SCHEMA = "node Person { name: String @key  age: I32? }"


def test_a_branch_stays_while_two_others_need_it_as_their_merge_base(tmp_path):
    """Topic is merged into left and main: what they have in common is topic's head, and that goes with it."""
    with omnigraph.init(tmp_path / "g", schema=SCHEMA, settings=Settings(durability="os")) as graph:
        diverge(graph)
        before = graph.export()
        with pytest.raises(ConflictError, match="'topic' was merged into 'main' and 'left'") as refused:
            graph.branches.delete("topic")
        assert refused.value.details["blocking_branches"] == ["main", "left"]
        assert graph.branches.list() == ["main", "left", "topic"]
        assert graph.export() == before
        # Main wrote ann again after the merge that deleted her: the merge of left must not delete her again.
        graph.branches.merge("left", into="main")
        assert people(graph) == {"ann", "lea", "mia"}
        graph.branches.delete("topic")
        assert graph.branches.merge("main", into="left").outcome == "fast_forward"
        assert people(graph, "left") == {"ann", "lea", "mia"}


def test_a_branch_goes_when_one_of_the_two_that_need_it_goes(tmp_path):
    with omnigraph.init(tmp_path / "g", schema=SCHEMA, settings=Settings(durability="os")) as graph:
        diverge(graph)
        graph.branches.delete("left")
        graph.branches.delete("topic")
        assert graph.branches.list() == ["main"]
        assert people(graph) == {"ann", "mia"}


def test_merge_without_its_base_is_refused(tmp_path):
    """A base that was removed past the front door is not replaced by an older state."""
    with omnigraph.init(tmp_path / "g", schema=SCHEMA, settings=Settings(durability="os")) as graph:
        diverge(graph)
        graph.session.manifest.delete_branch("topic")
        before = graph.export()
        with pytest.raises(MergeBaseGone, match="was deleted"):
            graph.branches.merge("left", into="main")
        assert graph.export() == before


def diverge(graph):
    """Topic deletes ann and is merged into both others; main then writes her again."""
    run(graph, 'insert Person { name: "ann", age: 1 }')
    for name in ("left", "topic"):
        graph.branches.create(name)
    run(graph, 'insert Person { name: "lea", age: 1 }', "left")
    run(graph, 'insert Person { name: "mia", age: 1 }')
    run(graph, 'delete Person where name = "ann"', "topic")
    graph.branches.merge("topic", into="left")
    graph.branches.merge("topic", into="main")
    run(graph, 'insert Person { name: "ann", age: 1 }')


def run(graph, statements, branch="main"):
    graph.mutate(f"query m() {{ {statements} }}", branch=branch)


def people(graph, branch="main"):
    return set(rows_of(graph, "Person", branch=branch))
