"""Sidecars that cannot be written, deleted, listed or read, and what drift without one asks of a user."""

import shutil

import pytest

import omnigraph
from crash.people import INSERT, Model
from invariants import assert_healthy, assert_recovered, state_of
from omnigraph.core.errors import (
    DRIFT_WAY_OUT,
    DriftError,
    IoFailure,
    RecoveryRequired,
    SidecarSchemaError,
)
from omnigraph.core.events import DurableOperation, StorageCall, listen
from omnigraph.core.failpoints import Callback, Pass, Raise, Sequence, Window, activate
from omnigraph.manifest.recoveries import RecoveryKind
from omnigraph.manifest.state import manifest_schema
from recovering import ADD, crash, opened, pending, people_at, raw_drift, shown
from recovery_graph import FAST, RawGraph

pytestmark = pytest.mark.crash


@pytest.fixture
def path(tmp_path):
    return people_at(tmp_path / "graph")


def test_sidecar_write_failure_aborts_before_head_moves(path):
    graph = opened(path)
    before = state_of(RawGraph.attach(path))
    with activate(Window.RECOVERY_SIDECAR_WRITE, Raise(IoFailure("disk full"))), pytest.raises(IoFailure):
        INSERT.run(graph, "1")
    assert state_of(RawGraph.attach(path)) == before
    INSERT.run(graph, "2")
    assert_healthy(path)


def test_sidecar_delete_failure_keeps_success(path):
    graph = opened(path)
    before = shown(path)
    with activate(Window.RECOVERY_SIDECAR_DELETE, Raise(IoFailure("read-only"))):
        INSERT.run(graph, "1")
    assert shown(path) == INSERT.after(before, "1")
    (operation,) = pending(path)
    INSERT.run(graph, "2")
    assert shown(path) == INSERT.after(INSERT.after(before, "1"), "2")
    assert_recovered(path, operation, RecoveryKind.ROLLED_FORWARD)


def test_sidecar_list_failure_is_loud(path):
    graph = opened(path)
    before = state_of(RawGraph.attach(path))
    with activate(Window.RECOVERY_SIDECAR_LIST, Raise(IoFailure("no listing"))):
        with pytest.raises(IoFailure, match="no listing"):
            INSERT.run(graph, "1")
        with pytest.raises(IoFailure, match="no listing"):
            opened(path)
    assert state_of(RawGraph.attach(path)) == before
    INSERT.run(graph, "2")
    assert_healthy(path)


def test_sidecar_list_failure_in_drift_guard_names_both_paths(path):
    graph = opened(path)
    accept = raw_drift(path)
    fails = Raise(IoFailure("no second listing"))
    failing = Sequence([Pass(), fails, Pass(), fails])  # a mutation settles what waits and tries once more
    with activate(Window.RECOVERY_SIDECAR_LIST, failing), pytest.raises(RecoveryRequired) as caught:
        graph.mutate(ADD, {"n": "new"})
    for part in ("none explains it", "reopen the graph read-write", "no second listing"):
        assert part in str(caught.value)
    for part in ("reopen the graph read-write", DRIFT_WAY_OUT):
        assert part in str(caught.value.hint)
    with pytest.raises(DriftError, match="no recovery note explains it"):
        graph.mutate(ADD, {"n": "new"})
    accept()
    assert_healthy(path)


TIE = 'query tie() { insert Knows { from: "ada", to: "bob", since: 77 } }'
TIED = ("ada", "bob", 77)


def beside_a_stopped_write(path, window):
    """While this holds, the next write meets one of another handle that stops at `window`."""

    def stop(_window):
        with activate(window, Raise(IoFailure("stopped"))), pytest.raises(RecoveryRequired):
            INSERT.run(opened(path), "other")

    return activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Sequence([Callback(stop)]))


def met_a_stopped_write(path, window, write):
    """The refusal of a write that meets one of another handle that stops at `window`."""
    with beside_a_stopped_write(path, window), pytest.raises(RecoveryRequired) as caught:
        write()
    assert caught.value.operation_id == pending(path)[0]
    return caught.value


def test_a_write_that_meets_a_finished_one_is_told_to_come_again(path, tmp_path):
    graph = opened(path)
    before = shown(path)
    lines = tmp_path / "tie.jsonl"
    lines.write_text('{"edge": "Knows", "from": "ada", "to": "bob", "data": {"since": 77}}\n')
    told = met_a_stopped_write(
        path,
        Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER,
        lambda: graph.load(lines, mode="append", engine="local"),
    )
    assert "rolled forward by the next write — send the write again" in str(told)
    assert "rollback" not in str(told)
    assert "send it again" in told.hint
    assert shown(path) == before
    graph.mutate(TIE)
    after = INSERT.after(before, "other")
    after.knows[TIED] += 1
    assert shown(path) == after
    assert_recovered(path, told.operation_id, RecoveryKind.ROLLED_FORWARD)


def test_a_mutation_that_meets_a_finished_one_completes_it_and_goes_on(path):
    graph = opened(path)
    before = shown(path)
    with beside_a_stopped_write(path, Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER):
        graph.mutate(TIE)
    after = INSERT.after(before, "other")
    after.knows[TIED] += 1
    assert shown(path) == after
    assert pending(path) == []
    (settled,) = graph.recoveries()
    assert_recovered(path, settled.operation_id, RecoveryKind.ROLLED_FORWARD)


def test_a_write_that_meets_a_half_finished_one_is_told_to_reopen(path):
    graph = opened(path)
    before = shown(path)
    told = met_a_stopped_write(path, Window.MUTATION_POST_TABLE_COMMIT, lambda: graph.mutate(TIE))
    assert "a pending recovery sidecar requires rollback — reopen the graph read-write" in str(told)
    assert "reopen the graph read-write" in told.hint
    with pytest.raises(RecoveryRequired, match="requires rollback"):
        graph.mutate(TIE)
    assert shown(path) == before
    graph.close()
    opened(path).mutate(TIE)
    after = before.copy()
    after.knows[TIED] += 1
    assert shown(path) == after
    assert_recovered(path, told.operation_id, RecoveryKind.ROLLED_BACK)


def test_the_way_out_of_drift_is_one(path, tmp_path):
    """Both parts of the advice work: a branch goes on from what is published, an export makes a new graph."""
    graph = opened(path)
    raw_drift(path)
    with pytest.raises(DriftError) as caught:
        graph.mutate(ADD, {"n": "new"})
    assert caught.value.hint == DRIFT_WAY_OUT
    published = graph.export()
    assert "foreign" not in published
    graph.branches.create("onwards")
    graph.mutate(ADD, {"n": "new"}, branch="onwards")
    assert sorted(graph.export(branch="onwards").splitlines()) == sorted(
        [*published.splitlines(), '{"type":"Person","data":{"id":"new","age":null,"name":"new"}}']
    )
    (tmp_path / "rows.jsonl").write_text(published, encoding="utf-8")
    copy = omnigraph.init(tmp_path / "copy.omni", schema=graph.schema_source(), settings=FAST)
    copy.load(tmp_path / "rows.jsonl", mode="append", engine="local")
    copy.mutate(ADD, {"n": "new"})
    assert (
        copy.export().splitlines().count('{"type":"Person","data":{"id":"new","age":null,"name":"new"}}') == 1
    )


def test_corrupt_sidecar_refused_read_only_works(path):
    graph = opened(path)
    bad = path / "__recovery/01BAD.json"
    bad.write_text("{ not json")
    with pytest.raises(SidecarSchemaError, match="01BAD"):
        opened(path)
    with pytest.raises(SidecarSchemaError, match="01BAD"):
        graph.mutate(ADD, {"n": "new"})
    with omnigraph.open_read_only(path, settings=FAST) as reader:
        assert "ada" in Model.read(reader.export()).people
        assert [each.rule for each in reader.verify().violations] == ["nothing_pending"]
    assert bad.read_text() == "{ not json"
    bad.unlink()
    assert_healthy(path)


def test_heal_steady_state_costs_one_listing(path):
    graph = opened(path)
    INSERT.run(graph, "1")
    calls = []
    with listen(
        lambda event: calls.append(event) if isinstance(event, StorageCall) else None, everywhere=True
    ):
        INSERT.run(graph, "2")
    listings = [each.target for each in calls if each.kind == "list_dir"]
    assert listings == [str(path / "__recovery")]


def test_read_only_open_writes_nothing(path):
    operation = crash(path, Window.MUTATION_POST_TABLE_COMMIT)
    for name in ("_schema.pg", "_schema.ir.json", "__schema_state.json"):
        shutil.copy(path / name, path / f"{name}.staging")
    manifest = RawGraph.attach(path).session.manifest
    older = manifest_schema(2)
    head = manifest.head(None).handle
    written = manifest.dataset.write_rows(head, None, manifest.dataset.read(head).cast(older), replacing=True)
    assert manifest.dataset.commit_overwrite(head, None, older, written) is not None
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    durable = []
    hear = listen(lambda event: durable.append(event) if isinstance(event, DurableOperation) else None)
    with hear, omnigraph.open_read_only(path, settings=FAST) as reader:
        reader.export()
        reader.commits.list()
        assert reader.verify().pending == (operation,)
    assert durable == []
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
    assert RawGraph.attach(path).session.manifest.head(None).stamp == 2
    opened(path).close()
    assert RawGraph.attach(path).session.manifest.head(None).stamp == 3
    assert not list(path.glob("*.staging"))
    assert_recovered(path, operation, RecoveryKind.ROLLED_BACK)


@pytest.mark.parametrize(
    "window",
    [
        Window.MUTATION_POST_SIDECAR_PRE_COMMIT,
        Window.MUTATION_POST_TABLE_COMMIT,
        Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER,
        Window.RECOVERY_SIDECAR_DELETE,
    ],
)
def test_recovery_idempotent_reopen(path, window):
    operation = crash(path, window)
    opened(path).close()
    once = state_of(RawGraph.attach(path))
    opened(path).close()
    opened(path).close()
    assert state_of(RawGraph.attach(path)) == once
    assert [each.operation_id for each in once["audit"]] == [operation]
    assert_healthy(path)
