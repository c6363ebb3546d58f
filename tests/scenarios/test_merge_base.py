"""What two branches must have in common to be merged."""

import pytest

from graphs import make_graph, rows_of
from omnigraph.core.errors import ConflictError, MergeBaseGone, MergeConflicts

SCHEMA = "node Person { name: String @key  age: I32? }"


@pytest.mark.slow
def test_a_branch_stays_while_two_others_need_it_as_their_merge_base(tmp_path):
    """Topic is merged into left and main: what they have in common is topic's head, and that goes with it."""
    with make_graph(tmp_path / "g", SCHEMA) as graph:
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
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        diverge(graph)
        graph.branches.delete("left")
        graph.branches.delete("topic")
        assert graph.branches.list() == ["main"]
        assert people(graph) == {"ann", "mia"}


@pytest.mark.slow
def test_merge_without_its_base_is_refused(tmp_path):
    """A base that was removed past the front door is not replaced by an older state."""
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        diverge(graph)
        graph.session.manifest.delete_branch("topic")
        before = graph.export()
        with pytest.raises(MergeBaseGone, match="was deleted"):
            graph.branches.merge("left", into="main")
        assert graph.export() == before


@pytest.mark.slow
@pytest.mark.parametrize("source", ["left", "right"])
def test_a_value_taken_back_after_crossed_merges_is_not_lost(tmp_path, source):
    """Left sets 2 and right gets it by a crossed merge, then sets 1 again.

    For the base that has 1 only left changed the row, for the one that has 2 only right did.
    """
    target = {"left": "right", "right": "left"}[source]
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        cross(graph)
        run(graph, 'update Person set { age: 1 } where name = "ann"', "right")
        run(graph, 'insert Person { name: "new" }', "left")
        with pytest.raises(MergeConflicts) as refused:
            graph.branches.merge(source, into=target)
        assert [(each["row_id"], each["kind"]) for each in refused.value.conflicts] == [
            ("ann", "divergent_update")
        ]
        graph.branches.merge(source, into=target, on_conflict="theirs" if source == "right" else "ours")
        merged = rows_of(graph, "Person", branch=target)
        assert {name: row["age"] for name, row in merged.items()} == {
            "ann": 1,
            "bea": 2,
            "cat": 1,
            "new": None,
        }
        assert graph.verify().violations == ()


@pytest.mark.slow
def test_deletions_and_insertions_after_crossed_merges(tmp_path):
    """What the bases agree about is merged; a row that came and went between them is asked about."""
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        cross(graph, 'insert Person { name: "dot", age: 5 }')
        run(graph, 'delete Person where name = "dot"', "right")
        run(graph, 'delete Person where name = "cat"', "right")
        run(graph, 'insert Person { name: "lea" }', "left")
        with pytest.raises(MergeConflicts) as refused:
            graph.branches.merge("right", into="left")
        found = {each["row_id"]: each["kind"] for each in refused.value.conflicts}
        assert found == {"dot": "delete_vs_update"}
        graph.branches.merge("right", into="left", on_conflict="theirs")
        assert people(graph, "left") == {"ann", "bea", "lea"}
        assert graph.branches.merge("left", into="right").outcome == "fast_forward"
        assert graph.export(branch="left") == graph.export(branch="right")


def cross(graph, more_on_left=""):
    """Left sets ann to 2, right sets bea to 2; each gets what the other had then."""
    run(graph, " ".join(f'insert Person {{ name: "{name}", age: 1 }}' for name in ("ann", "bea", "cat")))
    for name in ("left", "right"):
        graph.branches.create(name)
    run(graph, f'insert Person {{ name: "ann", age: 2 }} {more_on_left}', "left")
    run(graph, 'update Person set { age: 2 } where name = "bea"', "right")
    for name in ("left", "right"):
        graph.branches.create(f"{name}-then", from_branch=name)
    graph.branches.merge("right-then", into="left")
    graph.branches.merge("left-then", into="right")


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
