"""Every crash window that exists is visited by a process that dies in it, and the graph survives."""

import ast
import json
from pathlib import Path

import pytest

import omnigraph
from crash.harness import EXIT_AT_WINDOW, run_child
from crash.people import SCHEMA, WRITERS, Model, prepare, seed
from invariants import assert_healthy
from omnigraph.core.errors import InitializationClaimed
from omnigraph.core.failpoints import Window
from omnigraph.core.ids import BranchName
from omnigraph.recovery.sidecar import WriterKind
from recovery_graph import FAST, RawGraph

pytestmark = pytest.mark.crash

W = Window
BEFORE, AFTER = "before", "after"

WRITES = {
    # window: (writer, action, what the graph shows once recovered)
    W.MUTATION_DELETE_NODE_PRE_PRIMARY_DELETE: ("delete", "exit", BEFORE),
    W.MUTATION_POST_STAGE_PRE_QUEUE: ("insert", "exit", BEFORE),
    W.MUTATION_POST_SIDECAR_PRE_COMMIT: ("insert", "exit", BEFORE),
    W.MUTATION_POST_SIDECAR_PRE_FORK: ("branch_insert", "exit", BEFORE),
    W.MUTATION_POST_FORK_PRE_COMMIT: ("branch_insert", "pass,exit", BEFORE),
    W.MUTATION_POST_TABLE_COMMIT: ("update", "exit", BEFORE),
    W.MUTATION_POST_FINALIZE_PRE_PUBLISHER: ("insert", "exit", AFTER),
    W.PUBLISH_AFTER_STATE_LOAD: ("insert", "exit", None),
    W.PUBLISH_RETRYABLE_CONTENTION: ("insert", "exit", AFTER),
    W.GRAPH_PUBLISH_AFTER_MANIFEST_COMMIT: ("insert", "exit", AFTER),
    W.GRAPH_PUBLISH_BEFORE_COMMIT_APPEND: ("insert", "exit", AFTER),
    W.COMMIT_PROJECTION_BEFORE_APPEND: ("insert", "exit", None),
    W.RECOVERY_SIDECAR_WRITE: ("insert", "exit", BEFORE),
    W.RECOVERY_SIDECAR_DELETE: ("insert", "exit", AFTER),
    W.RECOVERY_SIDECAR_LIST: ("insert", "exit", BEFORE),
    W.OPTIMIZE_POST_COMPACT_PRE_REINDEX: ("reconciled", "pass,exit", AFTER),
    W.OPTIMIZE_POST_PHASE_B_PRE_MANIFEST_COMMIT: ("reconciled", "exit", AFTER),
}
"""Windows on the path of a mutation. None: before or after, depending on where the window is passed first."""

RECOVERIES = {
    # window: (where the writer died before, what the graph shows in the end)
    W.RECOVERY_POST_LIST_PRE_READ: (W.MUTATION_POST_TABLE_COMMIT, BEFORE),
    W.RECOVERY_BEFORE_ROLL_FORWARD_PUBLISH: (W.MUTATION_POST_FINALIZE_PRE_PUBLISHER, AFTER),
    W.RECOVERY_POST_TABLE_RESTORE_PRE_PUBLISH: (W.MUTATION_POST_TABLE_COMMIT, BEFORE),
    W.RECOVERY_POST_ROLLBACK_PUBLISH_PRE_AUDIT: (W.MUTATION_POST_TABLE_COMMIT, BEFORE),
    W.RECOVERY_RECORD_AUDIT: (W.MUTATION_POST_FINALIZE_PRE_PUBLISHER, AFTER),
}
"""Windows on the path of recovery itself."""

OTHERS = {
    W.INIT_AFTER_SCHEMA_PG_WRITTEN: "test_killed_creation_can_be_repeated",
    W.INIT_AFTER_SCHEMA_CONTRACT_WRITTEN: "test_killed_creation_can_be_repeated",
    W.INIT_AFTER_COORDINATOR_INIT: "test_killed_creation_can_be_repeated",
    W.BRANCH_CREATE_AFTER_MANIFEST_BRANCH_CREATE: "test_killed_branch_creation_leaves_a_usable_graph",
    W.ENSURE_INDICES_POST_STAGE_PRE_COMMIT_BTREE: "test_killed_index_build_loses_nothing",
    W.ENSURE_INDICES_POST_PHASE_B_PRE_MANIFEST_COMMIT: "test_killed_index_build_loses_nothing",
    W.RECOVERY_SIDECAR_CONFIRM: "test_killed_confirmation_rolls_back",
    W.RECOVERY_ORPHAN_DISCARD_AUDIT_APPEND: "test_killed_discard_is_finished",
    W.BRANCH_DELETE_BEFORE_TABLE_CLEANUP: "test_killed_branch_deletion_leaves_no_rows_behind",
    W.FORK_BEFORE_CLASSIFY: "test_killed_first_write_over_an_orphan_is_undone",
    W.CLASSIFY_FRESH_READ: "test_killed_first_write_over_an_orphan_is_undone",
    W.FORK_BEFORE_RECLAIM: "test_killed_first_write_over_an_orphan_is_undone",
}


ENDING_PROCESSES = (
    "test_merge_recovery.py",
    "test_merge_pairs.py",
    "test_load_resume.py",
    "test_clone_stopped.py",
    "test_cleanup_stopped.py",
    "test_erase_stopped.py",
    "test_schema_adoption.py",
    "test_schema_apply_recovery.py",
    "test_schema_generations.py",
)
"""Scenarios of merges, loads, clones, cleanups, erasures and schema changes whose windows are those of processes that end in them."""


def _windows_named(tree):
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Window"
    }


def visited_elsewhere():
    """Windows the scenarios name, other than to raise or wait there in the process of the test."""
    names = set()
    for file in ENDING_PROCESSES:
        tree = ast.parse((Path(__file__).parent.parent / "scenarios" / file).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "activate":
                node.args, node.keywords = [], []
        names |= _windows_named(tree)
    return {window for window in Window if window.name in names}


def test_every_window_has_a_scenario():
    covered = {*WRITES, *RECOVERIES, *OTHERS}
    assert set(Window) - covered - visited_elsewhere() == set()
    for name in OTHERS.values():
        assert callable(globals()[name])


@pytest.fixture
def path(tmp_path):
    where = tmp_path / "graph"
    graph = omnigraph.init(where, schema=SCHEMA, settings=FAST)
    seed(graph)
    graph.close()
    return where


def die(command, window, action="exit"):
    status, errors = run_child(command, failpoints=f"{window}={action}")
    assert status == EXIT_AT_WINDOW, f"{window} was not reached: {errors}"


def recovered(path, tmp_path):
    result = tmp_path / "result.json"
    status, errors = run_child({"command": "recover", "path": str(path), "result": str(result)})
    assert status == 0, errors
    return json.loads(result.read_text())


def write_command(path, writer, tag, branch):
    return {"command": "write", "path": str(path), "writer": writer.name, "tag": tag, "branch": branch}


def judge(path, tmp_path, writer, tag, branch, before, expected):
    found = recovered(path, tmp_path)
    assert found["violations"] == []
    now = Model.read(found["exports"][branch])
    after = writer.after(before, tag)
    assert now in {BEFORE: [before], AFTER: [after], None: [before, after]}[expected]
    with omnigraph.open(path, settings=FAST) as graph:
        graph.mutate('query f() { insert Person { name: "next" } }', branch=branch)
        assert graph.verify().ok


@pytest.mark.parametrize("window", WRITES, ids=str)
def test_killed_write_is_all_or_nothing(window, path, tmp_path):
    name, action, expected = WRITES[window]
    writer = WRITERS[name]
    with omnigraph.open(path, settings=FAST) as graph:
        branch = prepare(graph, writer, "5")
        before = Model.read(graph.export(branch=branch))
    die(write_command(path, writer, "5", branch), window, action)
    judge(path, tmp_path, writer, "5", branch, before, expected)


@pytest.mark.parametrize("window", RECOVERIES, ids=str)
def test_killed_recovery_is_finished(window, path, tmp_path):
    died_at, expected = RECOVERIES[window]
    writer = WRITERS["insert"]
    with omnigraph.open(path, settings=FAST) as graph:
        before = Model.read(graph.export())
    die(write_command(path, writer, "5", "main"), died_at)
    die({"command": "recover", "path": str(path), "result": str(tmp_path / "r")}, window)
    judge(path, tmp_path, writer, "5", "main", before, expected)


@pytest.mark.parametrize("window", [each for each in OTHERS if each.value.startswith("init.")], ids=str)
def test_killed_creation_can_be_repeated(window, tmp_path):
    where = tmp_path / "new"
    die({"command": "create", "path": str(where)}, window)
    if window is W.INIT_AFTER_COORDINATOR_INIT:
        graph = omnigraph.open(where, settings=FAST)
    else:
        with pytest.raises(InitializationClaimed):
            omnigraph.init(where, schema=SCHEMA, settings=FAST)
        graph = omnigraph.init(where, schema=SCHEMA, settings=FAST, force=True)
    seed(graph)
    assert graph.verify().ok


def test_killed_branch_creation_leaves_a_usable_graph(path):
    die(
        {"command": "branch_create", "path": str(path), "branch": "b"},
        W.BRANCH_CREATE_AFTER_MANIFEST_BRANCH_CREATE,
    )
    with omnigraph.open(path, settings=FAST) as graph:
        if "b" not in graph.branches.list():
            graph.branches.create("b")
        graph.mutate('query f() { insert Person { name: "next" } }', branch="b")
        assert graph.verify().ok


def orphaned(path, *, earlier, later):
    """A branch whose tables have references of an earlier one of that name, which had `earlier` commits.

    Main has `later` commits since that one was deleted.
    """
    writer = WRITERS["insert"]
    with omnigraph.open(path, settings=FAST) as graph:
        graph.branches.create("b")
        for number in range(earlier):
            writer.run(graph, f"old-{number}", "b")
    command = {"command": "branch_delete", "path": str(path), "branch": "b"}
    die(command, W.BRANCH_DELETE_BEFORE_TABLE_CLEANUP)
    with omnigraph.open(path, settings=FAST) as graph:
        assert graph.branches.list() == ["main"]
        for number in range(later):
            writer.run(graph, f"new-{number}")
        graph.branches.create("b")
        return Model.read(graph.export(branch="b"))


COMMITS_BESIDE = [(1, 0), (1, 1), (1, 3), (4, 2)]
"""So that the newest version of the old reference is after, at and before what main shows, and far after."""


@pytest.mark.parametrize(("earlier", "later"), COMMITS_BESIDE)
def test_killed_branch_deletion_leaves_no_rows_behind(earlier, later, path, tmp_path):
    before = orphaned(path, earlier=earlier, later=later)
    writer = WRITERS["insert"]
    with omnigraph.open(path, settings=FAST) as graph:
        writer.run(graph, "9", "b")
    judge(path, tmp_path, writer, "9", "b", before, AFTER)


@pytest.mark.parametrize(("earlier", "later"), COMMITS_BESIDE)
@pytest.mark.parametrize("window", [W.FORK_BEFORE_CLASSIFY, W.CLASSIFY_FRESH_READ, W.FORK_BEFORE_RECLAIM])
def test_killed_first_write_over_an_orphan_is_undone(window, earlier, later, path, tmp_path):
    before = orphaned(path, earlier=earlier, later=later)
    writer = WRITERS["insert"]
    die(write_command(path, writer, "9", "b"), window)
    judge(path, tmp_path, writer, "9", "b", before, BEFORE)


@pytest.mark.parametrize(
    ("window", "action", "kept"),
    [
        (W.ENSURE_INDICES_POST_STAGE_PRE_COMMIT_BTREE, "exit", False),
        (W.ENSURE_INDICES_POST_STAGE_PRE_COMMIT_BTREE, "pass,exit", False),
        (W.ENSURE_INDICES_POST_PHASE_B_PRE_MANIFEST_COMMIT, "exit", True),
    ],
)
def test_killed_index_build_loses_nothing(window, action, kept, path, tmp_path):
    with omnigraph.open(path, settings=FAST) as graph:
        before = Model.read(graph.export())
    die({"command": "ensure_indices", "path": str(path)}, window, action)
    found = recovered(path, tmp_path)
    assert found["violations"] == []
    assert Model.read(found["exports"]["main"]) == before
    with omnigraph.open(path, settings=FAST) as graph:
        built = {report.type_name for report in graph.indexes() if report.present}
        assert (built == {"Person", "Knows", "Likes"}) is kept
        assert (graph.ensure_indices().commit_id is None) is kept
        graph.mutate('query f() { insert Person { name: "next" } }')
        assert graph.verify().ok


def fragments(path):
    """How many fragments each table has, as shown."""
    session = RawGraph.attach(path).session
    entries = session.manifest.current(None).entries
    return {key: session.open_entry(entry).fragment_count for key, entry in entries.items()}


@pytest.mark.parametrize(
    ("window", "action", "compacted", "outcome"),
    [
        (W.OPTIMIZE_POST_COMPACT_PRE_REINDEX, "exit", 1, "RolledBack"),
        (W.OPTIMIZE_POST_COMPACT_PRE_REINDEX, "pass,exit", 2, "RolledBack"),
        (W.OPTIMIZE_POST_COMPACT_PRE_REINDEX, "pass,pass,exit", 3, "RolledForward"),
        (W.OPTIMIZE_POST_PHASE_B_PRE_MANIFEST_COMMIT, "exit", 3, "RolledForward"),
    ],
)
def test_killed_fold_is_undone_or_kept_as_a_whole(window, action, compacted, outcome, path, tmp_path):
    writer = WRITERS["reconciled"]
    with omnigraph.open(path, settings=FAST) as graph:
        prepare(graph, writer, "5")
        before = Model.read(graph.export())
    die(write_command(path, writer, "5", "main"), window, action)
    dead = RawGraph.attach(path)
    (name,) = dead.sidecars()
    note = dead.context.sidecars.read(name)
    assert note.writer_kind is WriterKind.OPTIMIZE
    assert sum(dead.head(key) > pin for key, pin in dead.pins().items()) == compacted
    many = fragments(path)
    assert all(count > 1 for count in many.values())
    found = recovered(path, tmp_path)
    assert found["violations"] == []
    assert found["recoveries"] == [[note.operation_id, outcome]]
    assert fragments(path) == (many if outcome == "RolledBack" else dict.fromkeys(many, 1))
    assert Model.read(found["exports"]["main"]) == writer.after(before, "5")
    assert_healthy(path)


def test_killed_confirmation_rolls_back(path, tmp_path):
    graph = RawGraph.attach(path)
    before = graph.ids("node:Person")
    note = graph.note("node:Person", kind=WriterKind.BRANCH_MERGE)
    graph.commit("node:Person", ["merged"], operation_id=note.operation_id)
    die({"command": "confirm", "path": str(path), "operation": note.operation_id}, W.RECOVERY_SIDECAR_CONFIRM)
    assert recovered(path, tmp_path)["recoveries"] == [[note.operation_id, "RolledBack"]]
    assert RawGraph.attach(path).ids("node:Person") == before


def test_killed_discard_is_finished(path, tmp_path):
    graph = RawGraph.attach(path)
    branch = BranchName("gone")
    with omnigraph.open(path, settings=FAST) as opened:
        opened.branches.create("gone")
    note = graph.note("node:Person", branch=branch)
    graph.session.manifest.delete_branch(branch)
    die(
        {"command": "recover", "path": str(path), "result": str(tmp_path / "r")},
        W.RECOVERY_ORPHAN_DISCARD_AUDIT_APPEND,
    )
    found = recovered(path, tmp_path)
    assert found["recoveries"] == [[note.operation_id, "OrphanedBranchDiscarded"]]
    assert found["violations"] == []
