"""Branches: creation, deletion, lazy forks and what is left of dead ones."""

import threading

import pyarrow as pa
import pytest

from graphs import hear, make_graph, reopen, rows_of, run, state_of, unchanged
from omnigraph.core.errors import (
    BadRequest,
    BranchExists,
    BranchHasChildren,
    BranchNotFound,
    BranchPrefixClash,
    ConflictError,
    ExpectedVersionMismatch,
)
from omnigraph.core.events import StorageCall, Warned, listen
from omnigraph.core.failpoints import Callback, InjectedFailure, Raise, Sequence, Window, activate
from omnigraph.core.ids import BranchName, CommitId, OperationId, TableKey, new_ulid
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.manifest.forks import ForkStatus, classify_fork
from omnigraph.manifest.names import SCHEMA_APPLY_LOCK
from omnigraph.recovery.queues import queues_of
from omnigraph.storage.handles import Stamp
from omnigraph.storage.layout import branch_directory
from stores import branches_of

PERSON = TableKey("node:Person")
TOPIC = BranchName("topic")


@pytest.fixture
def graph(tmp_path):
    with make_graph(tmp_path / "graph") as made:
        run(
            made,
            """insert Person { name: "ada", age: 1 } insert Person { name: "bob", age: 2 }
               insert Company { name: "Acme" } insert Knows { from: "ada", to: "bob" }
               insert WorksAt { from: "ada", to: "Acme" }""",
        )
        made.branches.create("topic")
        yield made


def people(graph, branch="main"):
    return sorted(rows_of(graph, "Person", branch=branch))


def entry_of(graph, key=PERSON, branch=None):
    return graph.session.manifest.current(branch).entries[key]


def forks(graph, key=PERSON):
    return set(branches_of(graph.session.storage, entry_of(graph, key).location))


def forge_fork(graph, key=PERSON, name=TOPIC, rows=("ghost",)):
    """What a dead writer leaves: a reference with a commit of its own that no manifest shows."""
    session = graph.session
    entry = entry_of(graph, key)
    handle = session.storage.create_branch(key, entry.location, name, entry.branch, entry.version)
    columns = {field: [None] * len(rows) for field in handle.schema.names} | {
        "id": list(rows),
        "name": list(rows),
    }
    staged = session.storage.stage_append(
        handle, pa.table(columns, schema=handle.schema), Stamp(new_ulid(), key)
    )
    return session.storage.commit_staged(handle, staged)


def test_branch_create_list_delete(graph):
    assert graph.branches.list() == ["main", "topic"]
    graph.session.manifest.references.take_schema_apply_lock()
    assert graph.branches.list() == ["main", "topic"]
    graph.session.manifest.references.release_schema_apply_lock()
    graph.branches.create("a/b")
    for name, error in (
        ("topic", BranchExists),
        ("main", BadRequest),
        ("", BadRequest),
        ("a", BranchPrefixClash),
        ("a/b/c", BranchPrefixClash),
        (SCHEMA_APPLY_LOCK, BadRequest),
        ("x/../y", BadRequest),
    ):
        with pytest.raises(error):
            graph.branches.create(name)
    for name, error in (
        ("main", BadRequest),
        (SCHEMA_APPLY_LOCK, BadRequest),
        ("nowhere", BranchNotFound),
    ):
        with pytest.raises(error):
            graph.branches.delete(name)
    assert graph.branches.delete("topic").unreclaimed == ()
    assert graph.branches.list() == ["main", "a/b"]
    with pytest.raises(BranchNotFound):
        graph.export(branch="topic")


def test_branch_delete_removes_its_forks(graph):
    run(graph, 'insert Person { name: "eve" }', branch="topic")
    assert forks(graph) == {"topic"}
    graph.branches.delete("topic")
    assert forks(graph) == set()
    assert people(graph) == ["ada", "bob"]
    assert graph.verify().violations == ()


@pytest.mark.slow
def test_lazy_fork_only_on_first_write(tmp_path):
    graph = make_graph(tmp_path / "lazy")
    run(graph, 'insert Person { name: "a", age: 1 } insert Company { name: "c" }')
    main = state_of(graph)
    graph.branches.create("feat/x")
    session = graph.session
    entries = session.manifest.current(None).entries
    assert all(not branches_of(session.storage, e.location) for e in entries.values())
    run(graph, 'update Person set { age: 2 } where name = "a"', branch="feat/x")
    forked = {k for k, e in entries.items() if branches_of(session.storage, e.location)}
    assert forked == {PERSON}
    shown = session.manifest.current("feat/x").entries
    assert {k: e.branch for k, e in shown.items() if e.branch} == {PERSON: "feat/x"}
    run(graph, 'insert Person { name: "b" }', branch="feat/x")
    run(graph, 'delete Person where name = "a"', branch="feat/x")
    assert set(rows_of(graph, "Person", branch="feat/x")) == {"b"}
    assert state_of(graph) == main
    assert graph.verify().ok


@pytest.mark.slow
def test_branch_of_branch_inherits(graph):
    run(graph, 'insert Person { name: "eve" }', branch="topic")
    graph.branches.create("child", from_branch="topic")
    assert entry_of(graph, branch=BranchName("child")).branch == "topic"
    run(graph, 'insert Person { name: "kid" }', branch="child")
    assert people(graph, "child") == ["ada", "bob", "eve", "kid"]
    assert people(graph, "topic") == ["ada", "bob", "eve"]
    assert people(graph) == ["ada", "bob"]
    assert graph.verify().violations == ()


@pytest.mark.slow
def test_fork_collision_live_writer_is_retryable(graph):
    """While one writer looks at a reference that is in its way, the writer that made it publishes."""
    forged = forge_fork(graph)
    session = graph.session

    def other_writer_publishes(_window):
        storage = session.storage
        update = SubTableUpdate(
            PERSON,
            forged.version,
            TOPIC,
            forged.row_count,
            storage.transaction_of(forged.location, TOPIC, forged.version).uuid,
            storage.branch_identifier(forged.location, TOPIC),
        )
        intent = CommitIntent(CommitId(new_ulid()), "mutation", None, OperationId(new_ulid()))
        session.publisher.publish(TOPIC, [update], {}, intent)

    with (
        activate(Window.FORK_BEFORE_CLASSIFY, Sequence([Callback(other_writer_publishes)])),
        pytest.raises(ExpectedVersionMismatch),
    ):
        run(graph, 'insert Person { name: "eve" }', branch="topic")
    assert people(graph, "topic") == ["ada", "bob", "ghost"]
    run(graph, 'insert Person { name: "eve" }', branch="topic")
    assert people(graph, "topic") == ["ada", "bob", "eve", "ghost"]
    assert graph.verify().violations == ()


def test_first_write_self_heals_unreferenced_fork(graph):
    forge_fork(graph)
    run(graph, 'insert Person { name: "eve" }', branch="topic")
    assert people(graph, "topic") == ["ada", "bob", "eve"]
    assert graph.verify().violations == ()


def test_killed_reclaim_is_repeated(graph):
    forge_fork(graph)
    with activate(Window.FORK_BEFORE_RECLAIM, Raise()), pytest.raises(InjectedFailure):
        run(graph, 'insert Person { name: "eve" }', branch="topic")
    assert forks(graph) == {"topic"}
    run(graph, 'insert Person { name: "eve" }', branch="topic")
    assert people(graph, "topic") == ["ada", "bob", "eve"]


@pytest.mark.slow
def test_recreate_branch_does_not_resurrect_rows(graph):
    run(graph, 'insert Person { name: "old" }', branch="topic")
    with activate(Window.BRANCH_DELETE_BEFORE_TABLE_CLEANUP, Raise()):
        assert graph.branches.delete("topic").unreclaimed == (PERSON,)
    assert forks(graph) == {"topic"}
    run(graph, 'insert Person { name: "cat" }')
    graph.branches.create("topic")
    assert people(graph, "topic") == ["ada", "bob", "cat"]
    run(graph, 'insert Person { name: "new" }', branch="topic")
    assert people(graph, "topic") == ["ada", "bob", "cat", "new"]
    assert graph.verify().violations == ()


def test_indeterminate_authority_leaves_fork(graph):
    forge_fork(graph)
    unreadable = Raise(BranchNotFound("topic"))
    with (
        activate(Window.CLASSIFY_FRESH_READ, unreadable),
        pytest.raises(ConflictError, match="verified") as refused,
    ):
        run(graph, 'insert Person { name: "eve" }', branch="topic")
    assert not isinstance(refused.value, ExpectedVersionMismatch)
    assert "manifest_conflict" not in refused.value.to_dict()
    assert forks(graph) == {"topic"}
    run(graph, 'insert Person { name: "eve" }', branch="topic")
    assert people(graph, "topic") == ["ada", "bob", "eve"]


def test_a_reference_another_branch_reads_is_no_orphan(graph):
    run(graph, 'insert Person { name: "eve" }', branch="topic")
    graph.branches.create("child", from_branch="topic")
    manifest = graph.session.manifest
    assert classify_fork(manifest, PERSON, TOPIC) is ForkStatus.LEGITIMATE
    assert classify_fork(manifest, PERSON, BranchName("child")) is ForkStatus.ORPHAN


@pytest.mark.slow
def test_branch_delete_refuses_descendants_and_dependents(graph):
    def blocking(name):
        with unchanged(graph, BranchName(name)), pytest.raises(BranchHasChildren) as refused:
            graph.branches.delete(name)
        assert all(each in str(refused.value) for each in refused.value.children)
        return refused.value.to_dict()["blocking_branches"]

    # A descendant: it was made from a branch that has no table of its own.
    graph.branches.create("child", from_branch="topic")
    assert blocking("topic") == ["child"]
    # A dependent: it was made from the child, and shows a table of the branch above that.
    graph.branches.delete("child")
    run(graph, 'insert Person { name: "eve" }', branch="topic")
    graph.branches.create("child", from_branch="topic")
    graph.branches.create("grandchild", from_branch="child")
    assert entry_of(graph, branch=BranchName("grandchild")).branch == "topic"
    assert blocking("topic") == ["child", "grandchild"]
    assert blocking("child") == ["grandchild"]
    assert people(graph, "grandchild") == ["ada", "bob", "eve"]
    for name in ("grandchild", "child", "topic"):
        graph.branches.delete(name)
    assert graph.branches.list() == ["main"]
    assert graph.verify().violations == ()


def test_branch_delete_survives_reclaim_failure(graph):
    run(graph, 'insert Person { name: "eve" } insert Company { name: "Biz" }', branch="topic")
    warned = []
    with listen(warned.append), activate(Window.BRANCH_DELETE_BEFORE_TABLE_CLEANUP, Sequence([Raise()])):
        left = graph.branches.delete("topic").unreclaimed
    assert left == ("node:Company",)
    assert [each.detail for each in warned if isinstance(each, Warned)] != []
    assert graph.branches.list() == ["main"]
    assert forks(graph, TableKey("node:Company")) == {"topic"}
    assert forks(graph) == set()
    assert graph.verify().violations == ()
    graph.cleanup(keep=100)
    assert forks(graph, TableKey("node:Company")) == set()
    assert graph.verify().violations == ()


def test_branch_create_rolls_back_on_commit_branch_failure(graph):
    with (
        activate(Window.BRANCH_CREATE_AFTER_MANIFEST_BRANCH_CREATE, Raise()),
        pytest.raises(InjectedFailure),
    ):
        graph.branches.create("other")
    assert graph.branches.list() == ["main", "topic"]
    graph.branches.create("other")
    assert people(graph, "other") == ["ada", "bob"]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["manifest", "table"])
def test_zombie_tree_reclaimed_on_create(graph, place):
    location = "__manifest" if place == "manifest" else entry_of(graph).location
    directory = branch_directory(location, BranchName("zombie"))
    graph.session.adapter.write_text(f"{directory}/_versions/leftover", "x")
    graph.branches.create("zombie")
    run(graph, 'insert Person { name: "eve" }', branch="zombie")
    assert people(graph, "zombie") == ["ada", "bob", "eve"]
    assert graph.verify().violations == ()


@pytest.mark.slow
def test_branch_cascade_delete_holds_all_queues(graph, monkeypatch):
    """A delete that forks three tables holds all their queues at every fork, and others wait for all of it."""
    line = queues_of(graph.session.root.identity)._line
    touched = {(TableKey(key), TOPIC) for key in ("node:Person", "edge:Knows", "edge:WorksAt")}
    # It writes the table that is forked last, so it could go ahead if the queues were taken one by one.
    insert = 'insert WorksAt { from: "bob", to: "Acme" }'
    writing = threading.Thread(target=lambda: run(graph, insert, branch="topic"))
    waiting = threading.Event()
    join = line.join

    def noted_join(place):
        join(place)
        if threading.current_thread() is writing:
            waiting.set()

    monkeypatch.setattr(line, "join", noted_join)
    first_in_line = []

    def at_a_fork(_window):
        first = line.places()[0]
        first_in_line.append((first.thread, set(first.keys)))
        if not writing.is_alive():
            writing.start()
            assert waiting.wait(60)

    with activate(Window.MUTATION_POST_SIDECAR_PRE_FORK, Callback(at_a_fork)):
        run(graph, 'delete Person where name = "ada"', branch="topic")
        writing.join(60)
    assert first_in_line == [(threading.get_ident(), touched)] * 3
    assert [set(each.summary) for each in graph.commits.list(branch="topic")[:2]] == [
        {"edge:WorksAt"},
        {key for key, _ in touched},
    ]
    assert people(graph, "topic") == ["bob"]
    assert rows_of(graph, "Knows", branch="topic") == {}
    assert [row["from"] for row in rows_of(graph, "WorksAt", branch="topic").values()] == ["bob"]
    assert people(graph) == ["ada", "bob"]
    assert graph.verify().violations == ()


@pytest.mark.slow
def test_recreated_branch_same_version_detected(graph):
    run(graph, 'insert Person { name: "old" }', branch="topic")
    with reopen(graph) as reader:
        assert people(reader, "topic") == ["ada", "bob", "old"]
        before = entry_of(graph, branch=TOPIC)
        graph.branches.delete("topic")
        graph.branches.create("topic")
        run(graph, 'insert Person { name: "new" }', branch="topic")
        after = entry_of(graph, branch=TOPIC)
        assert (before.version, before.branch) == (after.version, after.branch)
        assert people(reader, "topic") == ["ada", "bob", "new"]
        run(reader, 'insert Person { name: "more" }', branch="topic")
        assert people(graph, "topic") == ["ada", "bob", "more", "new"]
    assert graph.verify().violations == ()


def test_creation_touches_no_table(graph):
    with hear(everywhere=True) as heard:
        graph.branches.create("other")
    tables = [
        each.target for each in heard.of(StorageCall) if "nodes/" in each.target or "edges/" in each.target
    ]
    assert tables == []


def test_deleted_branch_with_a_pending_sidecar(graph):
    """The interrupted write of a deleted branch is discarded by the next write."""
    with activate(Window.MUTATION_POST_TABLE_COMMIT, Raise()), pytest.raises(Exception, match="recovered"):
        run(graph, 'insert Person { name: "eve" } insert Company { name: "Biz" }', branch="topic")
    assert len(graph.pending()) == 1
    graph.branches.delete("topic")
    assert graph.branches.list() == ["main"]
    run(graph, 'insert Person { name: "next" }')
    assert graph.pending() == ()
    assert [str(each.recovery_kind) for each in graph.recoveries()] == ["OrphanedBranchDiscarded"]
    assert graph.verify().violations == ()
