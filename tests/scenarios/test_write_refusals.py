"""What refuses a write at the last moment, in which order, and what does not."""

from pathlib import Path

import pytest

from graphs import make_graph, run, unchanged
from omnigraph.api.graph import Graph
from omnigraph.core.errors import ConflictError, ConstraintViolation
from omnigraph.core.failpoints import Callback, Window, activate
from omnigraph.manifest.branches import BranchStore


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g") as made:
        yield made


def test_schema_apply_lock_blocks_writes(graph: Graph) -> None:
    branches = BranchStore(graph.session.manifest)
    branches.take_schema_apply_lock()
    with unchanged(graph), pytest.raises(ConflictError, match="schema apply is in progress"):
        run(graph, 'insert Person { name: "a" }')
    branches.release_schema_apply_lock()
    run(graph, 'insert Person { name: "a" }')


def test_an_update_that_changes_no_value_is_a_commit(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a", age: 1 }')
    before = len(graph.commits.list())
    result = run(graph, 'update Person set { age: 1 } where name = "a"')
    assert (result.affected_nodes, len(graph.commits.list())) == (1, before + 1)


def test_the_first_violation_is_about_a_value(tmp_path: Path) -> None:
    schema = "node P { k: String @key  nick: String @unique  age: I32  @range(age, 0..9) }"
    with make_graph(tmp_path / "v", schema) as graph:
        run(graph, 'insert P { k: "a", nick: "n", age: 1 }')
        with pytest.raises(ConstraintViolation) as caught:
            run(graph, 'insert P { k: "b", nick: "n", age: 2 } insert P { k: "c", nick: "m", age: 99 }')
    assert [violation.rule for violation in caught.value.violations] == ["range", "unique"]


def test_a_schema_apply_that_begins_during_a_write_lets_no_table_move(graph: Graph) -> None:
    branches = BranchStore(graph.session.manifest)
    lock = Callback(lambda _: branches.take_schema_apply_lock())
    run(graph, 'insert Person { name: "first" }')
    graph.branches.create("dev")
    run(graph, 'insert Person { name: "there" }', branch="dev")
    for branch in ("main", "dev"):
        refused = pytest.raises(ConflictError, match="schema apply is in progress")
        with unchanged(graph), activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, lock), refused:
            run(graph, 'insert Person { name: "a" }', branch=branch)
        branches.release_schema_apply_lock()
    branches.take_schema_apply_lock()
    with unchanged(graph), pytest.raises(ConflictError, match="schema apply is in progress"):
        graph.ensure_indices()
    branches.release_schema_apply_lock()
    assert graph.pending() == ()
    run(graph, 'insert Person { name: "a" }')
