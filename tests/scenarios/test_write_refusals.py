"""What refuses a write at the last moment, in which order, and what does not."""

from pathlib import Path

import pytest

from graphs import hear, make_graph, run, unchanged
from omnigraph.api.graph import Graph
from omnigraph.core.errors import ConflictError, ConstraintViolation
from omnigraph.core.events import DurableOperation
from omnigraph.core.failpoints import Callback, Window, activate
from omnigraph.core.ids import BranchName
from omnigraph.manifest.branches import BranchStore


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g") as made:
        yield made


@pytest.mark.slow
def test_schema_apply_lock_blocks_writes(graph: Graph, tmp_path: Path) -> None:
    branches = BranchStore(graph.session.manifest)
    run(graph, 'insert Person { name: "first" }')
    graph.branches.create("dev")
    run(graph, 'insert Person { name: "there" }', branch="dev")
    source = tmp_path / "people.jsonl"
    source.write_text('{"type":"Person","data":{"name":"b"}}\n')
    writes = {
        "mutation": lambda: run(graph, 'insert Person { name: "a" }'),
        "mutation on a branch": lambda: run(graph, 'insert Person { name: "a" }', branch="dev"),
        "load": lambda: graph.load(source, mode="append", engine="local"),
        "merge": lambda: graph.branches.merge("dev"),
        "revert": lambda: graph.revert("main"),
        "index build": graph.ensure_indices,
        "new branch": lambda: graph.branches.create("other"),
        "deletion of a branch": lambda: graph.branches.delete("dev"),
    }
    branches.take_schema_apply_lock()
    for what, write in writes.items():
        refused = pytest.raises(ConflictError, match="schema apply is in progress")
        with unchanged(graph), unchanged(graph, BranchName("dev")), hear(everywhere=True) as heard, refused:
            write()
        # An index build looks again only when its files are there; nobody points at them.
        assert {each.kind for each in heard.of(DurableOperation)} <= {"stage_index"}, what
    assert graph.branches.list() == ["main", "dev"]
    branches.release_schema_apply_lock()
    for write in writes.values():
        write()


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


@pytest.mark.slow
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
