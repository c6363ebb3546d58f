"""Sidecars and recovery through the public surface. Crashes end a real child process."""

import json
import threading
from contextlib import contextmanager

import pytest
from lance import LanceDataset

from crash.harness import EXIT_AT_WINDOW, popen_child, run_child
from crash.people import DELETE as DELETE_WRITER
from crash.people import INSERT, Model, prepare
from invariants import assert_healthy, assert_recovered, state_of
from omnigraph.core.errors import (
    IoFailure,
    OmnigraphError,
    RecoveryRequired,
    Retry,
    RowLevelCasContention,
    StorageTransient,
)
from omnigraph.core.events import RecoveryPerformed, listen
from omnigraph.core.failpoints import Callback, Pause, Raise, Sequence, Window, activate
from omnigraph.core.ids import TableKey
from omnigraph.manifest.recoveries import RecoveryKind
from omnigraph.recovery.queues import queues_of
from omnigraph.storage import commit as storage_commit
from recovering import ADD, crash, opened, pending, people_at, raw_drift, shown
from recovery_graph import RawGraph

KNOWS = TableKey("edge:Knows")
LIKES = TableKey("edge:Likes")
pytestmark = pytest.mark.crash


@pytest.fixture
def path(tmp_path):
    return people_at(tmp_path / "graph")


def crash_recovery(path, window):
    """A child process opens read-write and dies in the window."""
    command = {"command": "recover", "path": str(path), "result": str(path.parent / "result")}
    status, errors = run_child(command, failpoints=f"{window}=exit")
    assert status == EXIT_AT_WINDOW, errors


# --- roll-forward


def test_recovery_rolls_forward_after_finalize_publisher_failure(path):
    before = shown(path)
    operation = crash(path, Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER)
    assert shown(path) == before
    opened(path).close()
    assert shown(path) == INSERT.after(before, "1")
    assert_recovered(path, operation, RecoveryKind.ROLLED_FORWARD)


def test_mutation_after_finalize_publisher_failure_heals_without_reopen(path):
    graph = opened(path)
    with (
        activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Raise()),
        pytest.raises(RecoveryRequired) as caught,
    ):
        graph.mutate(ADD, {"n": "first"}, actor="ana")
    graph.mutate(ADD, {"n": "second"})
    assert {"first", "second"} <= set(shown(path).people)
    assert [each.recovery_kind for each in graph.recoveries()] == [RecoveryKind.ROLLED_FORWARD]
    assert [each.actor for each in graph.commits.list(actor="omnigraph:recovery")] == ["omnigraph:recovery"]
    assert_recovered(path, caught.value.operation_id, RecoveryKind.ROLLED_FORWARD)


def test_refresh_heals_in_process(path):
    graph = opened(path)
    before = shown(path)
    operation = crash(path, Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER)
    graph.refresh()
    assert Model.read(graph.export()) == INSERT.after(before, "1")
    assert_recovered(path, operation, RecoveryKind.ROLLED_FORWARD)


def test_publish_contention_exhausted(path):
    graph = opened(path)
    from omnigraph.manifest.dataset import is_contention

    conflicts = Sequence([Raise(contention()) for _ in range(6)])
    assert is_contention(contention())
    caught = pytest.raises(RowLevelCasContention)
    with activate(Window.PUBLISH_RETRYABLE_CONTENTION, conflicts), caught as raised:
        graph.mutate(ADD, {"n": "first"}, actor="ana")
    (operation,) = pending(path)
    # Its tables have moved and the next write completes it: sending it again would write twice.
    assert (raised.value.kind, raised.value.retry) == ("recovery_required", Retry.AFTER_RECOVERY)
    assert raised.value.details == {"recovery_required": {"operation_id": operation}}
    assert "do not send it again" in raised.value.hint
    graph.mutate(ADD, {"n": "second"})
    assert {"first", "second"} <= set(shown(path).people)
    assert_recovered(path, operation, RecoveryKind.ROLLED_FORWARD)


def test_contention_of_a_merge_or_of_index_work_is_not_said_to_be_without_effect(path):
    graph = opened(path)
    graph.branches.create("review")
    graph.mutate(ADD, {"n": "first"}, branch="review")
    graph.mutate(ADD, {"n": "other"})
    for work in (graph.branches.merge, graph.ensure_indices):
        chosen = {"source": "review"} if work == graph.branches.merge else {}
        conflicts = Sequence([Raise(contention()) for _ in range(6)])
        caught = pytest.raises(RecoveryRequired)
        with activate(Window.PUBLISH_RETRYABLE_CONTENTION, conflicts), caught as raised:
            work(**chosen, actor="ana")
        (operation,) = pending(path)
        assert raised.value.operation_id == operation
        graph.refresh()
        assert_recovered(path, operation, RecoveryKind.ROLLED_FORWARD)
    assert {"first", "other"} <= set(shown(path).people)


def test_a_failure_right_after_the_first_table_moved_is_not_said_to_be_without_effect(path, monkeypatch):
    graph = opened(path)
    graph.branches.create("review")

    def fails(*_):
        raise StorageTransient("the store does not answer")

    # The identity of the fork is asked for once its table has been committed to.
    monkeypatch.setattr(graph.session.storage, "branch_identifier", fails)
    with pytest.raises(RecoveryRequired) as raised:
        graph.mutate(ADD, {"n": "first"}, branch="review")
    monkeypatch.undo()
    assert pending(path) == [raised.value.operation_id]
    graph.mutate(ADD, {"n": "second"}, branch="review")
    assert {"first", "second"} <= set(shown(path, "review").people)


def test_a_commit_nobody_can_ask_about_is_not_said_to_be_without_effect(path, monkeypatch):
    graph = opened(path)
    commit = LanceDataset.commit

    def unanswered(*args, **options):
        commit(*args, **options)
        monkeypatch.setattr(storage_commit, "transaction_of", fails)
        raise OSError("LanceError(IO): the connection was reset")

    def fails(*_):
        raise StorageTransient("the store does not answer")

    monkeypatch.setattr(LanceDataset, "commit", unanswered)
    with pytest.raises(RecoveryRequired, match="nobody can say") as raised:
        graph.mutate(ADD, {"n": "first"})
    monkeypatch.undo()
    assert pending(path) == [raised.value.operation_id]
    graph.mutate(ADD, {"n": "second"})
    assert {"first", "second"} <= set(shown(path).people)


def contention():
    from lance.commit import CommitConflictError

    return CommitConflictError("injected", retryable=True)


def test_roll_forward_publish_then_audit_failure(path):
    graph = opened(path)
    operation = crash(path, Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER)
    with (
        activate(Window.RECOVERY_RECORD_AUDIT, Raise(OSError("disk full"))),
        pytest.raises(OSError, match="full"),
    ):
        graph.mutate(ADD, {"n": "later"})
    assert pending(path) == [operation]
    graph.mutate(ADD, {"n": "later"})
    assert [each.recovery_kind for each in graph.recoveries()] == [RecoveryKind.ROLLED_FORWARD]
    assert_recovered(path, operation, RecoveryKind.ROLLED_FORWARD)


# --- roll-back


def test_crash_between_two_table_commits_rolls_back(path):
    before = shown(path)
    operation = crash(path, Window.MUTATION_POST_TABLE_COMMIT)
    opened(path).close()
    assert shown(path) == before
    row = assert_recovered(path, operation, RecoveryKind.ROLLED_BACK)
    assert [each.table_key for each in row.per_table_outcomes] == [KNOWS]


def test_crash_after_sidecar_before_commit(path):
    before = shown(path)
    operation = crash(path, Window.MUTATION_POST_SIDECAR_PRE_COMMIT)
    opened(path).close()
    assert shown(path) == before
    assert_recovered(path, operation, RecoveryKind.ROLLED_BACK, outcomes={})


def test_missing_fork_reference_is_no_movement(path):
    with opened(path) as graph:
        graph.branches.create("source")
        graph.mutate(ADD, {"n": "new"}, branch="source")
        # The target inherits a table that has moved since: rows are merged into a fork of it.
        graph.mutate(ADD, {"n": "other"})
        graph.branches.create("target")
    before = shown(path, "target")
    command = {"command": "merge", "path": str(path), "source": "source", "target": "target"}
    status, errors = run_child(command, failpoints=f"{Window.BRANCH_MERGE_POST_SIDECAR_PRE_FORK}=exit")
    assert status == EXIT_AT_WINDOW, errors
    (operation,) = pending(path)
    with opened(path) as graph:
        assert Model.read(graph.export(branch="target")) == before
        assert_recovered(path, operation, RecoveryKind.ROLLED_BACK, branch="target", outcomes={})
        graph.branches.merge("source", into="target", actor="ana")
    assert "new" in shown(path, "target").people
    assert_healthy(path)


def test_restore_then_crash_before_publish(path):
    before = shown(path)
    operation = crash(path, Window.MUTATION_POST_TABLE_COMMIT, action="pass,exit")
    pins = RawGraph.attach(path).pins()
    crash_recovery(path, Window.RECOVERY_POST_TABLE_RESTORE_PRE_PUBLISH)
    assert pending(path) == [operation]
    opened(path).close()
    assert shown(path) == before
    now = RawGraph.attach(path).pins()
    # The first pass restored one table and died; the second recognised that restore.
    assert {key: now[key] - pins[key] for key in (KNOWS, LIKES)} == {KNOWS: 2, LIKES: 2}
    assert_recovered(path, operation, RecoveryKind.ROLLED_BACK)


def test_rollback_publish_then_crash_before_audit(path):
    before = shown(path)
    operation = crash(path, Window.MUTATION_POST_TABLE_COMMIT)
    crash_recovery(path, Window.RECOVERY_POST_ROLLBACK_PUBLISH_PRE_AUDIT)
    assert RawGraph.attach(path).audit() == ()
    opened(path).close()
    assert shown(path) == before
    assert len(RawGraph.attach(path).audit()) == 1
    assert_recovered(path, operation, RecoveryKind.ROLLED_BACK)


def test_delete_only_failure_leaves_no_drift(path):
    graph = opened(path)
    prepare(graph, DELETE_WRITER, "7")
    graph.close()
    before = shown(path)
    operation = crash(path, Window.MUTATION_POST_TABLE_COMMIT, DELETE_WRITER, "7", action="pass,exit")
    opened(path).close()
    assert shown(path) == before
    row = assert_recovered(path, operation, RecoveryKind.ROLLED_BACK)
    assert len(row.per_table_outcomes) == 2


def test_rollback_eligible_sidecar_deferred_in_process(path):
    graph = opened(path)
    before = shown(path)
    operation = crash(path, Window.MUTATION_POST_TABLE_COMMIT)
    heads = state_of(RawGraph.attach(path))["heads"]
    graph.refresh()
    assert state_of(RawGraph.attach(path))["heads"] == heads
    with pytest.raises(RecoveryRequired, match="reopen the graph read-write") as caught:
        INSERT.run(graph, "2")
    assert caught.value.operation_id == operation
    assert (caught.value.http_status, caught.value.exit_status) == (503, 7)
    opened(path).close()
    assert shown(path) == before
    assert_recovered(path, operation, RecoveryKind.ROLLED_BACK)


def test_untouched_tables_unaffected_by_residual(path):
    graph = opened(path)
    operation = crash(path, Window.MUTATION_POST_TABLE_COMMIT)  # edge:Knows drifted
    graph.mutate(ADD, {"n": "new"})
    assert "new" in shown(path).people
    opened(path).close()
    assert_recovered(path, operation, RecoveryKind.ROLLED_BACK)


def test_foreign_commit_between_check_and_commit_detected(path):
    graph = opened(path)
    before = shown(path)
    drifting = Sequence([Callback(lambda _: raw_drift(path))])
    with (
        activate(Window.MUTATION_POST_SIDECAR_PRE_COMMIT, drifting),
        pytest.raises(RecoveryRequired) as caught,
    ):
        graph.mutate(ADD, {"n": "late"}, actor="ana")
    assert pending(path) == [caught.value.operation_id]
    opened(path).close()
    assert shown(path) == before
    assert_recovered(path, caught.value.operation_id, RecoveryKind.ROLLED_BACK)


# --- live writers


def in_thread(work):
    outcome = []

    def run():
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_heal_waits_for_live_writer(path, monkeypatch):
    first, second = opened(path), opened(path)
    before = shown(path)
    with activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Sequence([pause := Pause()])):
        writer, wrote = in_thread(lambda: INSERT.run(first, "1"))
        pause.wait_until_reached()
        line = queues_of(first.session.root.identity)._line
        behind, join = threading.Event(), line.join
        monkeypatch.setattr(line, "join", lambda place: (join(place), behind.set()))
        other, healed = in_thread(lambda: INSERT.run(second, "2"))
        # It stands in line behind the first one, whose write it found pending.
        assert behind.wait(60)
        assert [place.thread for place in line.places()] == [writer.ident, other.ident]
        assert pending(path) == [RawGraph.attach(path).sidecars()[0].removesuffix(".json")]
        assert (wrote, healed) == ([], [])
        pause.release()
        writer.join(30)
        other.join(30)
    assert (wrote, healed) == ([None], [None])
    assert shown(path) == INSERT.after(INSERT.after(before, "1"), "2")
    assert first.recoveries() == ()
    assert_healthy(path)


@contextmanager
def live_writer(path, tag, window=Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER):
    """Another process in the middle of a write; `.stdin` lets it go on."""
    command = {
        "command": "write",
        "path": str(path),
        "writer": "insert",
        "tag": tag,
        "branch": "main",
        "pause": window.value,
    }
    child = popen_child(command)
    try:
        assert child.stdout.readline() == "paused\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def go_on(child):
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "done\n"
    child.wait(30)


def test_a_live_writer_of_another_process_is_neither_rolled_back_nor_forward(path):
    """Paused between its last table commit and its publish, while this process opens and writes."""
    before = shown(path)
    with live_writer(path, "1") as child:
        left = pending(path)
        graph = opened(path)
        assert pending(path) == left, "the open touches no sidecar of a live writer"
        assert graph.recoveries() == ()
        writer, wrote = in_thread(lambda: INSERT.run(graph, "2"))
        writer.join(0.3)
        assert writer.is_alive()
        go_on(child)
        writer.join(60)
    assert wrote == [None]
    assert shown(path) == INSERT.after(INSERT.after(before, "1"), "2")
    assert graph.recoveries() == ()
    assert_healthy(path)


def test_recovery_without_lease_is_roll_forward_only(path):
    graph = opened(path)
    before = shown(path)
    dead = crash(path, Window.MUTATION_POST_TABLE_COMMIT)  # edge:Knows and its siblings need a restore
    heads = state_of(RawGraph.attach(path))["heads"]
    # Held by another process: nothing at all is touched.
    holder = popen_child({"command": "hold_lease", "path": str(path)})
    try:
        assert holder.stdout.readline() == "held\n"
        assert opened(path).pending() == (dead,)
        assert state_of(RawGraph.attach(path))["heads"] == heads
        assert RawGraph.attach(path).audit() == ()
    finally:
        holder.kill()
        holder.communicate()
    # Shared with a writing thread of this process: no restore either.
    with activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Sequence([pause := Pause()])):
        writer, wrote = in_thread(lambda: graph.mutate(ADD, {"n": "new"}))
        pause.wait_until_reached()
        assert dead in opened(path).pending()
        assert state_of(RawGraph.attach(path))["heads"][None, KNOWS] == heads[None, KNOWS]
        pause.release()
        writer.join(30)
    assert not isinstance(wrote[0], BaseException)
    opened(path).close()
    after = before.copy()
    after.people["new"] = None
    assert shown(path) == after
    assert_recovered(path, dead, RecoveryKind.ROLLED_BACK)


def test_two_processes_crash_and_recover(path):
    """Process A dies in Phase B; two others open at once: one recovery, the right result."""
    before = shown(path)
    operation = crash(path, Window.MUTATION_POST_TABLE_COMMIT)
    command = {"command": "recover", "path": str(path)}
    children = [popen_child(command | {"result": str(path.parent / f"r{n}")}) for n in range(2)]
    for child in children:
        _, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors
    for number in range(2):
        found = json.loads((path.parent / f"r{number}").read_text())
        assert found["violations"] == []
        assert found["recoveries"] == [[operation, "RolledBack"]]
        assert Model.read(found["exports"]["main"]) == before
    assert_recovered(path, operation, RecoveryKind.ROLLED_BACK)


def test_recoveries_are_events_and_commits(path):
    operation = crash(path, Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER)
    heard = []
    with listen(lambda event: heard.append(event) if isinstance(event, RecoveryPerformed) else None):
        graph = opened(path)
    assert heard == [RecoveryPerformed(operation, "RolledForward")]
    (commit,) = graph.commits.list(actor="omnigraph:recovery")
    assert commit.recovers == operation
    assert graph.recoveries()[0].recovery_for_actor == "ana"


def test_a_failed_follow_up_of_recovery_does_not_hide_the_error(path):
    """A read-write open that cannot settle a note fails; the note stays for the next one."""
    operation = crash(path, Window.MUTATION_POST_TABLE_COMMIT)
    failing = activate(Window.RECOVERY_POST_TABLE_RESTORE_PRE_PUBLISH, Raise(IoFailure("gone")))
    with failing, pytest.raises(OmnigraphError, match="gone"):
        opened(path)
    assert pending(path) == [operation]
    opened(path).close()
    assert_recovered(path, operation, RecoveryKind.ROLLED_BACK)
