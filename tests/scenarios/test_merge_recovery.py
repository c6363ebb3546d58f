"""Merges whose process died: a real child process ends in the window, the next open settles what it left."""

import json
import shutil
from dataclasses import dataclass

import pytest

import omnigraph
from crash.harness import EXIT_AT_WINDOW, run_child
from graphs import FAST, make_graph, rows_of, run
from invariants import assert_healthy
from omnigraph.core.errors import RecoveryRequired
from omnigraph.core.failpoints import Callback, InjectedFailure, Raise, Sequence, Window, activate
from omnigraph.core.ids import BranchName, TableKey
from omnigraph.manifest.recoveries import RecoveryKind
from recovery_graph import PERSON, RawGraph

pytestmark = pytest.mark.crash

SCHEMA = """
node Company { name: String @key }
node Person { name: String @key  age: I32? }
edge Knows: Person -> Person { since: I32? }
"""
COMPANY = TableKey("node:Company")


def content(graph, branch="main"):
    return {
        "people": {name: row["age"] for name, row in rows_of(graph, "Person", branch=branch).items()},
        "companies": sorted(rows_of(graph, "Company", branch=branch)),
        "knows": sorted((row["from"], row["to"]) for row in rows_of(graph, "Knows", branch=branch).values()),
    }


def mixed_delta(graph, branch):
    run(graph, 'insert Person { name: "new", age: 1 } insert Company { name: "Biz" }', branch=branch)
    run(graph, 'update Person set { age: 99 } where name = "bob"', branch=branch)
    run(graph, 'delete Person where name = "cat"', branch=branch)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A graph whose branch `topic` is ahead of main, and one where both sides moved, also on `target`."""
    home = tmp_path_factory.mktemp("merges")
    for name in ("ahead", "both"):
        with make_graph(home / name, SCHEMA) as graph:
            run(
                graph,
                """insert Person { name: "ada", age: 1 } insert Person { name: "bob", age: 2 }
                   insert Person { name: "cat", age: 3 } insert Person { name: "dot", age: 4 }
                   insert Company { name: "Acme" } insert Knows { from: "ada", to: "bob" }""",
            )
            graph.branches.create("topic")
            graph.branches.create("target")
            mixed_delta(graph, "topic")
            if name == "both":
                for branch in ("main", "target"):
                    run(graph, 'update Person set { age: 50 } where name = "ada"', branch=branch)
                    run(graph, 'insert Company { name: "Own" }', branch=branch)
    return home


@pytest.fixture
def copy(originals, tmp_path):
    def make(name):
        path = tmp_path / name
        if not path.exists():
            shutil.copytree(originals / name, path)
        return path

    return make


def die(path, window, *, target="main", action="exit", in_turn=False):
    """A child merges `topic` and ends in the window; returns the sidecar it left.

    `in_turn`: tables are committed one after the other, so that it is known how far the child came.
    """
    command = {"command": "merge", "path": str(path), "source": "topic", "target": target, "in_turn": in_turn}
    status, errors = run_child(command, failpoints=f"{window}={action}")
    assert status == EXIT_AT_WINDOW, errors
    graph = RawGraph.attach(path)
    names = graph.sidecars()
    return graph.context.sidecars.read(names[0]) if names else None


def shown(path, branch="main"):
    with omnigraph.open_read_only(path, settings=FAST) as graph:
        return content(graph, branch)


def merged_content(before, name):
    people = {**before["people"], "new": 1, "bob": 99}
    del people["cat"]
    return {
        "people": people,
        "companies": sorted({*before["companies"], "Biz"}),
        "knows": before["knows"],
    }


def assert_rolled_back(path, name, before, *, target="main"):
    with omnigraph.open(path, settings=FAST) as graph:
        assert content(graph, target) == before
        record = graph.recoveries()[-1]
        assert record.recovery_kind is RecoveryKind.ROLLED_BACK
        assert (record.recovery_for_actor, record.sidecar_writer_kind) == ("ana", "BranchMerge")
        assert graph.pending() == ()
        report = graph.branches.merge("topic", into=target, actor="ana")
        assert report.outcome == "merged"  # the recovery commit is on the target
        assert content(graph, target) == merged_content(before, name)
        assert graph.branches.merge("topic", into=target).outcome == "already_up_to_date"
        assert report.commit.merged_parent == graph.commits.head(branch="topic").id
    assert_healthy(path)


def assert_rolled_forward(path, name, before, source_head, *, target="main"):
    branch = None if target == "main" else BranchName(target)
    with omnigraph.open(path, settings=FAST) as graph:
        assert content(graph, target) == merged_content(before, name)
        record = graph.recoveries()[-1]
        assert record.recovery_kind is RecoveryKind.ROLLED_FORWARD
        commit = graph.session.manifest.current(branch).commit
        assert commit.id == record.graph_commit_id
        assert commit.merged_parent == source_head
        assert graph.branches.merge("topic", into=target).outcome == "already_up_to_date"
    assert_healthy(path)


@dataclass(frozen=True)
class Partial:
    """Where a merge dies, and what its commits have done to the people by then."""

    graph: str
    window: Window
    action: str
    commits: int
    """Of the people's own table: one for new rows, one for changed ones, one for deleted ones."""
    appended: bool = True
    upserted: bool = True
    deleted: bool = True


PARTIAL = {
    "merge_partial_after_append_rolls_back": Partial(
        "ahead",
        Window.BRANCH_MERGE_ADOPT_AFTER_APPEND_PRE_UPSERT,
        "pass,exit",
        commits=1,
        upserted=False,
        deleted=False,
    ),
    "merge_partial_after_upsert_rolls_back": Partial(
        "ahead", Window.BRANCH_MERGE_ADOPT_AFTER_UPSERT_PRE_DELETE, "exit", commits=2, deleted=False
    ),
    "merge_partial_rewrite_after_merge_rolls_back": Partial(
        "both", Window.BRANCH_MERGE_REWRITE_AFTER_MERGE_PRE_DELETE, "pass,exit", commits=1, deleted=False
    ),
    "merge_partial_rewrite_after_delete_rolls_back": Partial(
        "both", Window.BRANCH_MERGE_REWRITE_AFTER_DELETE_PRE_INDEX, "exit", commits=2
    ),
    "merge_crash_between_tables_rolls_back": Partial(
        "ahead",
        Window.BRANCH_MERGE_BETWEEN_TABLES,
        "exit",
        commits=0,
        appended=False,
        upserted=False,
        deleted=False,
    ),
    "merge_crash_before_confirm_rolls_back": Partial(
        "ahead", Window.BRANCH_MERGE_POST_EFFECTS_PRE_CONFIRM, "exit", commits=3
    ),
    "merge_crash_in_confirm_rolls_back": Partial("both", Window.RECOVERY_SIDECAR_CONFIRM, "exit", commits=2),
}


def at_heads(path):
    """What the newest versions of main's tables hold, shown or not, and how many commits hide there."""
    session = RawGraph.attach(path).session
    entries = session.manifest.current(None).entries
    heads = {key: session.storage.open_head(key, entries[key].location, None) for key in (PERSON, COMPANY)}
    people = {row["name"]: row["age"] for row in session.storage.read(heads[PERSON]).to_pylist()}
    companies = sorted(session.storage.read(heads[COMPANY])["name"].to_pylist())
    return people, companies, [heads[key].version - entries[key].version for key in (PERSON, COMPANY)]


def partial(scenario, copy):
    where = PARTIAL[scenario]
    path = copy(where.graph)
    before = shown(path)
    note = die(path, where.window, action=where.action, in_turn=True)
    assert all(pin.confirmed_version is None for pin in note.tables)
    assert shown(path) == before
    people = {
        **before["people"],
        **({"new": 1} if where.appended else {}),
        **({"bob": 99} if where.upserted else {}),
    }
    if where.deleted:
        del people["cat"]
    assert at_heads(path) == (people, sorted({*before["companies"], "Biz"}), [where.commits, 1])
    assert_rolled_back(path, where.graph, before)


def test_merge_partial_after_append_rolls_back(copy):
    partial("merge_partial_after_append_rolls_back", copy)


def test_merge_partial_after_upsert_rolls_back(copy):
    partial("merge_partial_after_upsert_rolls_back", copy)


def test_merge_partial_rewrite_after_merge_rolls_back(copy):
    partial("merge_partial_rewrite_after_merge_rolls_back", copy)


def test_merge_partial_rewrite_after_delete_rolls_back(copy):
    partial("merge_partial_rewrite_after_delete_rolls_back", copy)


def test_merge_crash_between_tables_rolls_back(copy):
    partial("merge_crash_between_tables_rolls_back", copy)


def test_merge_crash_before_confirm_rolls_back(copy):
    partial("merge_crash_before_confirm_rolls_back", copy)


def test_merge_crash_in_confirm_rolls_back(copy):
    partial("merge_crash_in_confirm_rolls_back", copy)


@pytest.mark.parametrize("name", ["ahead", "both"])
def test_merge_crash_after_confirm_rolls_forward(name, copy):
    path = copy(name)
    before, source = shown(path), RawGraph.attach(path).session.manifest.current(BranchName("topic")).head
    note = die(path, Window.BRANCH_MERGE_POST_PHASE_B_PRE_MANIFEST_COMMIT)
    assert all(pin.confirmed_version is not None for pin in note.tables)
    assert shown(path) == before
    assert_rolled_forward(path, name, before, source)


@pytest.mark.parametrize(
    ("name", "window", "finished"),
    [
        ("both", Window.BRANCH_MERGE_POST_EFFECTS_PRE_CONFIRM, False),
        ("both", Window.BRANCH_MERGE_POST_PHASE_B_PRE_MANIFEST_COMMIT, True),
        ("both", Window.BRANCH_MERGE_BETWEEN_TABLES, False),
    ],
)
def test_merge_into_non_main_target_and_recovery(name, window, finished, copy):
    path = copy(name)
    main, before = shown(path), shown(path, "target")
    source = RawGraph.attach(path).session.manifest.current(BranchName("topic")).head
    unmoved = RawGraph.attach(path).session.manifest.current(None)
    die(path, window, target="target")
    omnigraph.open(path, settings=FAST).close()
    recovered = RawGraph.attach(path)
    assert recovered.session.manifest.current(None) == unmoved
    assert all(recovered.head(key) == pin for key, pin in recovered.pins().items())
    assert len(recovered.audit()) == 1
    if finished:
        assert_rolled_forward(path, name, before, source, target="target")
    else:
        assert_rolled_back(path, name, before, target="target")
    found = shown(path)
    assert {key: found[key] for key in ("companies", "knows")} == {
        key: main[key] for key in ("companies", "knows")
    }
    assert main["people"].items() <= found["people"].items()


def test_a_confirmed_merge_shows_its_switched_tables_too(tmp_path):
    """One table gets rows, another one only another version: recovery must finish both or neither."""
    path = tmp_path / "graph"
    with make_graph(path, SCHEMA) as graph:
        run(graph, 'insert Person { name: "ada" } insert Company { name: "Acme" }')
        graph.branches.create("target")
        run(graph, 'insert Person { name: "bob" }')
        graph.branches.create("topic")
        run(graph, 'insert Company { name: "Own" }', branch="target")
        run(graph, 'insert Company { name: "Biz" }', branch="topic")
    note = die(path, Window.BRANCH_MERGE_POST_PHASE_B_PRE_MANIFEST_COMMIT, target="target")
    assert [pin.table_key for pin in note.tables] == [COMPANY]
    assert [each.table_key for each in note.switches] == [PERSON]
    with omnigraph.open(path, settings=FAST) as graph:
        found = content(graph, "target")
        assert set(found["people"]) == {"ada", "bob"}
        assert found["companies"] == ["Acme", "Biz", "Own"]
        assert graph.branches.merge("topic", into="target").outcome == "already_up_to_date"
    assert_healthy(path)


def test_a_confirmed_merge_whose_switched_table_moved_meanwhile_rolls_back(tmp_path):
    """A writer that looked for pending writes before the merge died writes the table the merge only switches."""
    path = tmp_path / "graph"
    with make_graph(path, SCHEMA) as graph:
        run(graph, 'insert Person { name: "ada" } insert Company { name: "Acme" }')
        graph.branches.create("target")
        run(graph, 'insert Person { name: "bob" }')
        graph.branches.create("topic")
        run(graph, 'insert Company { name: "Own" }', branch="target")
        run(graph, 'insert Company { name: "Biz" }', branch="topic")
        dies = Callback(
            lambda _: die(path, Window.BRANCH_MERGE_POST_PHASE_B_PRE_MANIFEST_COMMIT, target="target")
        )
        with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Sequence([dies])):
            run(graph, 'insert Person { name: "cat" }', branch="target")
    with omnigraph.open(path, settings=FAST) as graph:
        assert [each.recovery_kind for each in graph.recoveries()] == [RecoveryKind.ROLLED_BACK]
        found = content(graph, "target")
        assert set(found["people"]) == {"ada", "cat"}
        assert found["companies"] == ["Acme", "Own"]
        graph.branches.merge("topic", into="target")
        assert set(content(graph, "target")["people"]) == {"ada", "bob", "cat"}
        assert content(graph, "target")["companies"] == ["Acme", "Biz", "Own"]
    assert_healthy(path)


def test_v1_merge_sidecar_of_completed_merge_rolls_forward(copy):
    path = copy("ahead")
    before, source = shown(path), RawGraph.attach(path).session.manifest.current(BranchName("topic")).head
    note = die(path, Window.BRANCH_MERGE_POST_EFFECTS_PRE_CONFIRM)
    RawGraph.attach(path).downgrade(note)
    assert_rolled_forward(path, "ahead", before, source)


def test_v2_unconfirmed_merge_rolls_back(copy):
    path = copy("ahead")
    before = shown(path)
    die(path, Window.BRANCH_MERGE_POST_EFFECTS_PRE_CONFIRM)
    assert_rolled_back(path, "ahead", before)


def test_confirmed_merge_whose_head_moved_rolls_back(copy):
    path = copy("ahead")
    before = shown(path)
    die(path, Window.BRANCH_MERGE_POST_PHASE_B_PRE_MANIFEST_COMMIT)
    RawGraph.attach(path).commit(PERSON, ["foreign"])
    assert_rolled_back(path, "ahead", before)


@pytest.mark.parametrize("target", ["main", "target"])
def test_merge_dead_before_its_first_effect(target, copy):
    path = copy("both")
    before = shown(path, target)
    with omnigraph.open(path, settings=FAST) as graph:
        graph.branches.create("fresh", from_branch=target)
    die(path, Window.BRANCH_MERGE_POST_SIDECAR_PRE_FORK, target="fresh")
    with omnigraph.open(path, settings=FAST) as graph:
        assert content(graph, "fresh") == before
        assert graph.recoveries()[-1].recovery_kind is RecoveryKind.ROLLED_BACK
        graph.branches.merge("topic", into="fresh")
        assert content(graph, "fresh") == merged_content(before, "both")
    assert_healthy(path)


def test_branch_merge_after_finalize_publisher_failure_heals_without_reopen(copy):
    path = copy("ahead")
    with omnigraph.open(path, settings=FAST) as graph:
        with (
            activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Raise()),
            pytest.raises(RecoveryRequired),
        ):
            run(graph, 'insert Company { name: "Late" }', actor="bob")
        graph.branches.merge("topic", actor="ana")
        found = content(graph)
        assert found["companies"] == ["Acme", "Biz", "Late"]
        assert "new" in found["people"]
        record = graph.recoveries()[-1]
        assert (record.recovery_kind, record.recovery_for_actor) == (RecoveryKind.ROLLED_FORWARD, "bob")
    assert_healthy(path)


def test_sidecar_write_failure_aborts_a_merge_before_heads_move(copy):
    path = copy("ahead")
    with omnigraph.open(path, settings=FAST) as graph:
        before = content(graph)
        with activate(Window.RECOVERY_SIDECAR_WRITE, Raise()), pytest.raises(InjectedFailure):
            graph.branches.merge("topic")
        assert graph.pending() == ()
        assert content(graph) == before
        raw = RawGraph(graph.session)
        assert all(raw.head(key) == pin for key, pin in raw.pins().items())
        graph.branches.merge("topic")
        assert content(graph) == merged_content(before, "ahead")
    assert_healthy(path)


def test_sidecar_delete_failure_keeps_the_merge(copy):
    path = copy("ahead")
    with omnigraph.open(path, settings=FAST) as graph:
        before = content(graph)
        with activate(Window.RECOVERY_SIDECAR_DELETE, Raise()):
            report = graph.branches.merge("topic")
        assert len(graph.pending()) == 1
        assert content(graph) == merged_content(before, "ahead")
        run(graph, 'insert Company { name: "Next" }')
        assert graph.pending() == ()
        assert report.commit.id in [each.id for each in graph.commits.list()]
    assert_healthy(path)


def test_a_failed_merge_says_that_recovery_is_needed(copy):
    path = copy("ahead")
    with omnigraph.open(path, settings=FAST) as graph:
        before = content(graph)
        with (
            activate(Window.BRANCH_MERGE_BETWEEN_TABLES, Raise()),
            pytest.raises(RecoveryRequired) as stopped,
        ):
            graph.branches.merge("topic")
        assert content(graph) == before
        assert graph.pending() == (stopped.value.operation_id,)
        note = json.loads(graph.session.adapter.read_text(f"__recovery/{stopped.value.operation_id}.json"))
        assert note["writer_kind"] == "BranchMerge"
        assert note["merge_source_commit_id"] == graph.commits.head(branch="topic").id
        with pytest.raises(RecoveryRequired, match="reopen"):
            run(graph, 'insert Company { name: "Next" }')
