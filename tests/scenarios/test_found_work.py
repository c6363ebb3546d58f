"""Whoever builds on what another process left makes it durable first: that one may have died before its sync."""

from contextlib import contextmanager

import pytest

import omnigraph
from crash.people import SCHEMA, seed
from omnigraph.core.events import DurableOperation, listen
from omnigraph.core.failpoints import Raise, Window, activate
from omnigraph.core.settings import Settings
from omnigraph.storage import durability
from omnigraph.storage.durability import DurabilityMode, FileLedger, make_durable, make_found_durable

FULL = Settings(durability="full")
INSERT = "query q($n: String) { insert Person { name: $n } }"


@pytest.fixture
def path(tmp_path):
    with omnigraph.init(tmp_path / "graph", schema=SCHEMA, settings=FULL) as graph:
        seed(graph)
        graph.branches.create("b")
        graph.mutate(INSERT, {"n": "on b"}, branch="b")
        graph.branches.create("fresh")
    return tmp_path / "graph"


@pytest.fixture
def another_process(monkeypatch):
    """From here on nothing is known to be durable, as in a process that has just begun."""

    def begin():
        monkeypatch.setattr(durability, "_synced", FileLedger())

    return begin


@contextmanager
def durable_steps():
    """The durable operations, each as (what, path), when they were done."""
    steps = []

    def hear(event):
        if isinstance(event, DurableOperation) and event.moment == "after":
            steps.append((event.kind, event.path))

    with listen(hear, everywhere=True):
        yield steps


def newest_state(path, branch=None):
    """The file of the newest state of a branch."""
    directory = path / "__manifest" / ("_versions" if branch is None else f"tree/{branch}/_versions")
    return str(min(directory.glob("*.manifest")))


def reference(path, branch):
    return str(path / f"__manifest/_refs/branches/{branch}.json")


def synced_before(steps, visible):
    """The files that were synced before the step that makes the new thing visible."""
    until = next(number for number, (kind, _) in enumerate(steps) if kind == visible)
    return {where for kind, where in steps[:until] if kind == "sync_file"}


def test_a_file_is_synced_once_while_it_is_the_same_file(tmp_path, another_process):
    another_process()
    file = tmp_path / "d/file"
    file.parent.mkdir()
    file.write_text("1")

    def syncs(call):
        with durable_steps() as steps:
            call([str(file)], DurabilityMode.FULL, root=str(tmp_path))
        return len(steps)

    assert syncs(make_found_durable) > 0
    assert syncs(make_found_durable) == 0
    file.unlink()
    file.write_text("2")
    assert syncs(make_found_durable) > 0
    assert syncs(make_durable) > 0, "what is known to be new is always synced"
    assert syncs(make_found_durable) == 0


def test_the_ledger_forgets_the_oldest_first(tmp_path):
    ledger = FileLedger(known_max=2)
    files = [tmp_path / name for name in "abc"]
    for file in files:
        file.write_text("")
        found = file.stat()
        ledger.record([(str(file), (found.st_ino, found.st_mtime_ns, found.st_ctime_ns))])
    assert [ledger.knows(str(file)) for file in files] == [False, True, True]


@pytest.mark.parametrize("branch", ["main", "b", "fresh"])
def test_a_publish_syncs_the_state_it_follows(path, another_process, branch):
    named = None if branch == "main" else branch
    with omnigraph.open(path, settings=FULL) as graph:
        found = newest_state(path, named)
        another_process()
        with durable_steps() as steps:
            graph.mutate(INSERT, {"n": "next"}, branch=branch)
        expected = {found} if named is None else {found, reference(path, branch)}
        assert expected <= synced_before(steps, "commit_control")
        with durable_steps() as steps:
            graph.mutate(INSERT, {"n": "and one more"}, branch=branch)
        assert not expected & {where for _, where in steps}, "once per process"


def test_a_branch_is_made_from_a_state_that_is_durable(path, another_process):
    with omnigraph.open(path, settings=FULL) as graph:
        another_process()
        with durable_steps() as steps:
            graph.branches.create("child", from_branch="b")
        assert {newest_state(path, "b"), reference(path, "b")} <= synced_before(steps, "create_branch")


def test_a_tag_names_a_state_that_is_durable(path, another_process):
    with omnigraph.open(path, settings=FULL) as graph:
        another_process()
        with durable_steps() as steps:
            graph.tags.create("t", at="b")
        assert {newest_state(path, "b"), reference(path, "b")} <= synced_before(steps, "create_tag")


@pytest.mark.parametrize(("source", "target"), [("b", "main"), ("main", "b"), ("main", "fresh")])
def test_a_merge_syncs_the_head_it_names_as_its_second_parent(path, another_process, source, target):
    with omnigraph.open(path, settings=FULL) as graph:
        graph.mutate(INSERT, {"n": "on main"})
        found = newest_state(path, None if source == "main" else source)
        another_process()
        with durable_steps() as steps:
            graph.branches.merge(source, into=target)
        assert found in synced_before(steps, "commit_control")


@pytest.mark.slow
@pytest.mark.parametrize(
    "window",
    [Window.MUTATION_POST_TABLE_COMMIT, Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER],
    ids=["rolled back", "rolled forward"],
)
def test_recovery_syncs_the_fork_of_a_dead_writer(path, another_process, window):
    """Both outcomes show the table on its new fork, so both need its reference and its first version."""
    graph = omnigraph.open(path, settings=FULL)
    entries = graph.session.manifest.current("fresh").entries
    first = "edge:Knows"
    place, version = entries[first].location, entries[first].version
    with activate(window, Raise(OSError("the writer dies here"))), pytest.raises(omnigraph.OmnigraphError):
        graph.mutate(
            'query q() { insert Person { name: "x" } insert Knows { from: "x", to: "x" } }', branch="fresh"
        )
    another_process()
    with durable_steps() as steps:
        again = omnigraph.open(path, settings=FULL)
    assert len(again.recoveries()) == 1
    tree = path / place / "tree/fresh/_versions"
    made = {str(file) for file in tree.glob("*.manifest")}
    assert len(made) >= 2, version
    wanted = {str(path / place / "_refs/branches/fresh.json"), *made}
    assert wanted <= synced_before(steps, "commit_control")
    assert again.verify().ok
    again.close()
