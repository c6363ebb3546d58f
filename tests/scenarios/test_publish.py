"""The publisher under contention, with wrong requests, and on manifests of other formats."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from lance.commit import CommitConflictError

import omnigraph
from graphs import FAST, make_graph, rows_of, run
from omnigraph.core.errors import (
    ExpectedVersionMismatch,
    FormatTooNew,
    InternalError,
    PreconditionFailed,
    RowLevelCasContention,
)
from omnigraph.core.events import Published, StorageCall, listen
from omnigraph.core.failpoints import Callback, Pass, Raise, Sequence, Window, activate
from omnigraph.core.ids import BranchName, CommitId, TableKey
from omnigraph.core.limits import PUBLISHER_RETRY_BUDGET
from omnigraph.manifest.changes import genesis_snapshot
from omnigraph.manifest.migrations import migrate
from omnigraph.manifest.publisher import ManifestBatchPublisher, RegisterTable
from omnigraph.manifest.state import columns_of, encode, manifest_schema
from omnigraph.manifest.store import ManifestStore
from unit.manifest import publishing_child
from unit.manifest.ground import (
    CITY,
    KNOWS,
    PERSON,
    advance,
    entry,
    genesis,
    intent,
    new_store,
    open_store,
    update,
)


def contention(times: int) -> Sequence:
    return Sequence([Raise(CommitConflictError("injected", retryable=True)) for _ in range(times)])


def publish(store: ManifestStore, changes, expected, commit=None):
    return ManifestBatchPublisher(store).publish(None, changes, expected, commit or intent())


def data_files(path: Path) -> int:
    return len(list((path / "__manifest" / "data").iterdir()))


def test_publish_contention_retries_then_succeeds(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    commits: list[StorageCall] = []
    with (
        activate(Window.PUBLISH_RETRYABLE_CONTENTION, contention(3)),
        listen(lambda e: commits.append(e) if isinstance(e, StorageCall) and e.kind == "write" else None),
    ):
        made = publish(store, [update(PERSON, 2)], {PERSON: 1})
    assert made.pin(PERSON) == 2
    assert len(commits) == 4
    assert open_store(tmp_path).current(None).entries == made.entries
    assert open_store(tmp_path).current(None).commit == made.commit


def test_publish_contention_exhausted(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    before, files = store.current(None), data_files(tmp_path)
    with (
        activate(Window.PUBLISH_RETRYABLE_CONTENTION, contention(PUBLISHER_RETRY_BUDGET + 1)),
        pytest.raises(RowLevelCasContention) as caught,
    ):
        publish(store, [update(PERSON, 2)], {PERSON: 1})
    assert caught.value.attempts == PUBLISHER_RETRY_BUDGET + 1
    assert open_store(tmp_path).current(None).commit == before.commit
    assert data_files(tmp_path) == files
    assert publish(store, [update(PERSON, 2)], {PERSON: 1}).pin(PERSON) == 2


def test_publish_rechecks_expectations_each_attempt(tmp_path: Path) -> None:
    store, other = new_store(tmp_path), open_store(tmp_path)
    loads = []
    interfere = Sequence([Callback(lambda _: other_publish(other)), Pass()])
    with (
        activate(Window.PUBLISH_RETRYABLE_CONTENTION, interfere),
        activate(Window.PUBLISH_AFTER_STATE_LOAD, Callback(loads.append)),
        pytest.raises(ExpectedVersionMismatch) as caught,
    ):
        publish(store, [update(PERSON, 2)], {PERSON: 1, CITY: 1})
    # One load of the loser, one of the other, one of the loser again; no further attempt after the mismatch.
    assert len(loads) == 3
    assert (caught.value.table_key, caught.value.expected, caught.value.actual) == (PERSON, 1, 2)
    assert store.current(None).pin(PERSON) == 2


def other_publish(other: ManifestStore) -> None:
    """A publish of another process: the coordinator lock of this one must not stand in its way."""
    publish(other, [update(PERSON, 2, rows=7)], {PERSON: 1})


def test_publish_same_table_different_versions_collide(tmp_path: Path) -> None:
    store, other = new_store(tmp_path), open_store(tmp_path)
    one, two = ManifestBatchPublisher(store), ManifestBatchPublisher(other)
    first = one.prepare(None, [update(PERSON, 2, rows=2)], {PERSON: 1}, intent())
    second = two.prepare(None, [update(PERSON, 3, rows=3)], {PERSON: 1}, intent())
    assert one.publish_prepared(first).pin(PERSON) == 2
    with pytest.raises(ExpectedVersionMismatch):
        two.publish_prepared(second)
    assert open_store(tmp_path).current(None).entries[PERSON].row_count == 2


def test_publish_refuses_existing_version(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    publish(store, [update(PERSON, 2, rows=5)], {PERSON: 1})
    head = store.current(None).head
    with pytest.raises(InternalError, match="shown already"):
        publish(store, [update(PERSON, 2, rows=5)], {PERSON: 2})
    with pytest.raises(InternalError, match="older than"):
        publish(store, [update(PERSON, 1, rows=5)], {PERSON: 2})
    with pytest.raises(InternalError, match="twice"):
        publish(store, [update(PERSON, 3), update(PERSON, 3)], {PERSON: 2})
    assert store.current(None).head == head
    handed = publish(store, [update(PERSON, 2, rows=5, branch=BranchName("review"))], {PERSON: 2})
    assert (handed.entries[PERSON].branch, handed.pin(PERSON)) == ("review", 2)


def test_publish_unknown_table_refused(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    ghost = TableKey("node:Ghost")
    with pytest.raises(InternalError, match="node:Ghost"):
        publish(store, [update(ghost, 1)], {ghost: 0})
    assert publish(store, [RegisterTable(ghost, "nodes/0"), update(ghost, 1)], {ghost: 0}).pin(ghost) == 1
    with pytest.raises(InternalError, match="cannot move"):
        publish(store, [RegisterTable(ghost, "nodes/1")], {ghost: 1})


def test_publish_names_the_first_mismatch_in_key_order(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    with pytest.raises(ExpectedVersionMismatch) as caught:
        publish(store, [update(PERSON, 2)], {PERSON: 9, CITY: 8, KNOWS: 1})
    assert (caught.value.table_key, caught.value.expected, caught.value.actual) == (CITY, 8, 1)


def test_publish_is_conditional_on_the_expected_head(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    head = store.current(None).head
    advance(store)
    with pytest.raises(PreconditionFailed) as caught:
        publish(store, [update(CITY, 2)], {CITY: 1}, intent(expected_head=head))
    assert store.current(None).head in str(caught.value.to_dict())
    assert store.current(None).pin(CITY) == 1
    now = store.current(None).head
    assert publish(store, [update(CITY, 2)], {CITY: 1}, intent(expected_head=now)).pin(CITY) == 2


def test_publish_of_a_commit_alone_and_of_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    before = store.current(None)
    calls: list[StorageCall] = []
    with listen(lambda e: calls.append(e) if isinstance(e, StorageCall) and e.kind != "probe" else None):
        assert ManifestBatchPublisher(store).publish(None, [], {}, None) is before
    assert calls == []
    with pytest.raises(ExpectedVersionMismatch):
        ManifestBatchPublisher(store).publish(None, [], {PERSON: 4}, None)
    merged = CommitId("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    alone = publish(store, [], {}, intent("merge", merged_parent=merged))
    assert alone.commit.parents == (before.head, merged)
    assert alone.entries == before.entries


def test_parent_is_the_newest_commit_in_storage_not_a_cached_one(tmp_path: Path) -> None:
    store, other = new_store(tmp_path), open_store(tmp_path)
    store.current(None)
    theirs = advance(other, CITY)
    assert publish(store, [update(PERSON, 2)], {PERSON: 1}).commit.parent == theirs.head


@pytest.mark.slow
def test_four_processes_publish_without_losing_an_update(tmp_path: Path) -> None:
    times, children = 20, 4
    store = new_store(tmp_path)
    start = store.current(None).manifest_version
    command = [sys.executable, publishing_child.__file__, str(tmp_path), PERSON, str(times)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(children)]
    assert [child.wait(120) for child in running] == [0] * children
    for child in running:
        assert child.stdout is not None
        child.stdout.close()
    now = store.current(None)
    assert now.pin(PERSON) == 1 + times * children
    assert now.manifest_version == start + times * children
    history = store.commits.list()
    assert len(history) == 1 + times * children
    assert [r.parent for r in history[:-1]] == [r.id for r in history[1:]]
    assert sorted(r.id for r in history) == sorted(store.commits.lineage()["graph_commit_id"].to_pylist())


def test_publish_reports_what_became_visible(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    heard: list = []
    with listen(heard.append):
        made = advance(store)
    published = [event for event in heard if isinstance(event, Published)]
    assert published == [Published(None, made.manifest_version, made.head)]


# ---- formats


def manifest_with_stamp(path: Path, stamp: int) -> None:
    """A manifest as a program of that format would have left it."""
    store = open_store(path)
    made = store.dataset.create(manifest_schema(stamp))
    snapshot = genesis_snapshot([entry(PERSON)], genesis_record(made.version + 1))
    rows = encode(columns_of(snapshot)).cast(manifest_schema(stamp))
    written = store.dataset.write_rows(made, None, rows, replacing=True)
    store.dataset.commit_overwrite(made, None, manifest_schema(stamp), written)


def genesis_record(version: int):
    import dataclasses

    return dataclasses.replace(genesis(), manifest_version=version)


def stored_schema(path: Path) -> pa.Schema:
    return open_store(path).dataset.open_head(None).schema


def make_legacy_branch(path: Path, name: str) -> None:
    store = open_store(path)
    head = store.head(None)
    store.dataset.create_branch(head.handle, name, from_branch=None, from_version=head.version)


def restamped(path: Path, stamp: int) -> None:
    """The graph at this place as a program of that format would have left it."""
    dataset = open_store(path).dataset
    head = dataset.open_head(None)
    rows = dataset.read(head).cast(manifest_schema(stamp))
    written = dataset.write_rows(head, None, rows, replacing=True)
    assert dataset.commit_overwrite(head, None, manifest_schema(stamp), written) is not None


@pytest.mark.parametrize("stamp", [1, 2])
@pytest.mark.slow
def test_legacy_run_branches_swept_on_open(tmp_path: Path, stamp: int) -> None:
    with make_graph(tmp_path) as graph:
        run(graph, 'insert Person { name: "ann" }')
        graph.branches.create("keep")
    restamped(tmp_path, stamp)
    runs = ["__run__1", "__run__2"]
    for name in runs:
        make_legacy_branch(tmp_path, name)

    with omnigraph.open_read_only(tmp_path) as reader:
        assert set(rows_of(reader, "Person")) == {"ann"}
    assert open_store(tmp_path).head(None).stamp == stamp
    assert sorted(open_store(tmp_path).all_branches()) == [*runs, "keep"]

    with omnigraph.open(tmp_path, settings=FAST) as graph:
        assert open_store(tmp_path).head(None).stamp == 3
        assert open_store(tmp_path).all_branches() == ["keep"]
        assert not any((tmp_path / "__manifest" / "tree" / name).exists() for name in runs)
        assert graph.branches.list() == ["main", "keep"]
        graph.session.manifest.references.take_schema_apply_lock()
        graph.session.manifest.references.release_schema_apply_lock()
        run(graph, 'insert Person { name: "bob" }')
        run(graph, 'insert Person { name: "eve" }', branch="keep")
        assert set(rows_of(graph, "Person")) == {"ann", "bob"}
        assert set(rows_of(graph, "Person", branch="keep")) == {"ann", "eve"}
        assert graph.verify().ok
        version = open_store(tmp_path).current(None).manifest_version
    omnigraph.open(tmp_path, settings=FAST).close()
    assert open_store(tmp_path).current(None).manifest_version == version


@pytest.mark.parametrize("stamp", [1, 2])
def test_a_migration_keeps_rows_and_other_branches(tmp_path: Path, stamp: int) -> None:
    manifest_with_stamp(tmp_path, stamp)
    make_legacy_branch(tmp_path, "__run__1")
    make_legacy_branch(tmp_path, "__run__2")
    make_legacy_branch(tmp_path, "keep")
    reader = open_store(tmp_path, read_only=True)
    assert reader.current(None).pin(PERSON) == 1
    assert reader.branches() == ["__run__1", "__run__2", "keep"]

    writer = open_store(tmp_path)
    migrate(writer, writer.head(None))
    assert writer.branches() == ["keep"]
    assert not (tmp_path / "__manifest" / "tree" / "__run__1").exists()
    schema = stored_schema(tmp_path)
    assert schema.metadata == manifest_schema().metadata
    assert schema.field("object_id").metadata == manifest_schema().field("object_id").metadata
    assert writer.current(None).commit == reader.current(None).commit
    writer.references.take_schema_apply_lock()
    writer.references.release_schema_apply_lock()
    assert advance(writer).pin(PERSON) == 2
    version = writer.current(None).manifest_version
    again = open_store(tmp_path)
    migrate(again, again.head(None))
    assert writer.current(None).manifest_version == version


def test_publish_migrates_a_branch_of_an_older_format(tmp_path: Path) -> None:
    manifest_with_stamp(tmp_path, 2)
    make_legacy_branch(tmp_path, "old")
    store = open_store(tmp_path)
    made = advance(store, branch=BranchName("old"))
    assert made.pin(PERSON) == 2
    assert store.head(BranchName("old")).stamp == 3
    assert store.head(None).stamp == 2


def bytes_of(graph: Path) -> dict[Path, bytes]:
    """The files of a graph, without the projections of its commits, which follow in their own time."""
    found = {file.relative_to(graph): file for file in graph.rglob("*") if file.is_file()}
    return {
        name: file.read_bytes()
        for name, file in found.items()
        if not name.parts[0].startswith("_graph_commit")
    }


def test_manifest_stamp_above_refused_for_write(tmp_path: Path) -> None:
    with make_graph(tmp_path) as open_before:
        run(open_before, 'insert Person { name: "ann" }')
        restamped(tmp_path, 9)
        before = bytes_of(tmp_path)
        with pytest.raises(FormatTooNew):
            run(open_before, 'insert Person { name: "bob" }')
    with pytest.raises(FormatTooNew) as caught:
        omnigraph.open(tmp_path, settings=FAST)
    assert (caught.value.found, caught.value.supported) == (9, 3)
    with omnigraph.open_read_only(tmp_path) as reader:
        assert set(rows_of(reader, "Person")) == {"ann"}
    after = bytes_of(tmp_path)
    assert {name: after.get(name) for name in before} == before
    assert not [name for name in after if name.parts[0] == "__recovery"]


def test_a_newer_stamp_is_refused_by_everything_that_publishes(tmp_path: Path) -> None:
    manifest_with_stamp(tmp_path, 9)
    reader = open_store(tmp_path, read_only=True)
    assert reader.current(None).pin(PERSON) == 1
    assert reader.commits.list()[0].operation == "init"
    store = open_store(tmp_path)
    files = data_files(tmp_path)
    with pytest.raises(FormatTooNew):
        publish(store, [update(PERSON, 2)], {PERSON: 1})
    with pytest.raises(FormatTooNew):
        migrate(store, store.head(None))
    with pytest.raises(FormatTooNew):
        store.create_branch("review")
    assert data_files(tmp_path) == files
    assert open_store(tmp_path).current(None).pin(PERSON) == 1
