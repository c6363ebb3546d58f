"""The history: what the commit tables repeat, and that they lose and double nothing."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import lance
import pytest

from graphs import make_graph, run
from omnigraph.core.errors import CommitNotFound
from omnigraph.core.events import Event, StorageCall, Warned, listen
from omnigraph.core.failpoints import EXIT_STATUS, InjectedFailure, Raise, Window, activate
from omnigraph.core.ids import BranchName, CommitId, OperationId, new_ulid
from omnigraph.core.limits import COMMIT_PROJECTION_BATCH
from omnigraph.manifest.changes import CommitIntent
from omnigraph.manifest.commit_record import CommitRecord
from omnigraph.manifest.publisher import ManifestBatchPublisher
from omnigraph.manifest.store import ManifestStore
from unit.manifest import publishing_child
from unit.manifest.ground import CITY, PERSON, advance, intent, new_store, open_store, update

REVIEW = BranchName("review")


def stored(path: Path, name: str = "_graph_commits.lance") -> list[dict]:
    place = path / name
    return lance.dataset(str(place)).to_table().to_pylist() if place.exists() else []


def stored_ids(path: Path, name: str = "_graph_commits.lance") -> list[str]:
    return sorted(row["graph_commit_id"] for row in stored(path, name))


def files(path: Path) -> set[Path]:
    return set(path.rglob("*"))


def test_history_is_linear_newest_first(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    made = [store.current(None), *(advance(store, actor="ana") for _ in range(5))]
    history = store.commits.list()
    assert history == [state.commit for state in reversed(made)]
    assert history[-1].parents == ()
    assert store.commits.head(None) == made[-1].commit
    assert store.commits.list(limit=2) == history[:2]
    assert store.commits.list(before=history[1].id) == history[2:]
    assert store.commits.list(since_us=history[2].time_us) == history[:3]
    assert store.commits.list(until_us=history[3].time_us) == history[3:]
    assert store.commits.list(limit=0) == []
    with pytest.raises(CommitNotFound):
        store.commits.list(before=CommitId("01ARZ3NDEKTSV4RRFFQ69G5FAV"))


def test_history_is_filtered_by_actor(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    for actor in ("ana", "bo", "ana", None):
        advance(store, actor=actor)
    assert [record.actor for record in store.commits.list(actor="ana")] == ["ana", "ana"]
    assert store.commits.list(actor="cy") == []
    actors = stored(tmp_path, "_graph_commit_actors.lance")
    assert sorted(row["actor_id"] for row in actors) == ["ana", "ana", "bo"]


def test_rows_have_the_columns_of_the_specification(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    merged = CommitId(new_ulid())
    made = advance(store, merged_parent=merged, operation="merge", summary={PERSON: {"inserted": 3}})
    assert store.commits.show(made.head).summary == {PERSON: {"inserted": 3}}
    store.commits.close()
    row = next(row for row in stored(tmp_path) if row["graph_commit_id"] == made.head)
    assert (row["manifest_branch"], row["manifest_version"]) == (None, made.manifest_version)
    assert (row["parent_commit_id"], row["merged_parent_commit_id"]) == made.commit.parents
    assert int(row["created_at"].timestamp() * 1_000_000) == pytest.approx(made.commit.time_us, abs=1)


def test_a_branch_lists_inherited_and_own_commits(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    inherited = advance(store)
    store.create_branch("review")
    own = advance(store, branch=REVIEW)
    later = advance(store, CITY)
    assert [record.id for record in store.commits.list(REVIEW)][:2] == [own.head, inherited.head]
    assert own.head not in {record.id for record in store.commits.list()}
    assert store.commits.list()[0].id == later.head
    assert store.commits.show(own.head).branch == REVIEW
    assert set(store.commits.lineage()["graph_commit_id"].to_pylist()) >= {own.head, later.head}


@pytest.mark.slow
def test_the_tables_are_extended_in_batches(tmp_path: Path) -> None:
    store = new_store(tmp_path, durability="os")
    assert len(stored(tmp_path)) == 1
    for _ in range(COMMIT_PROJECTION_BATCH - 1):
        advance(store, actor="ana")
    assert len(stored(tmp_path)) == 1
    advance(store, actor="ana")
    assert len(stored(tmp_path)) == 1 + COMMIT_PROJECTION_BATCH
    assert len(stored(tmp_path, "_graph_commit_actors.lance")) == COMMIT_PROJECTION_BATCH
    advance(store)
    store.commits.close()
    assert len(stored(tmp_path)) == 2 + COMMIT_PROJECTION_BATCH


def test_what_a_dead_process_did_not_write_is_completed(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    states = [store.current(None), *(advance(store, actor="ana") for _ in range(7))]
    store.create_branch("review")
    states.append(advance(store, branch=REVIEW))
    # The process that made these commits is gone, with its queue.
    again = open_store(tmp_path)
    again.commits.complete()
    assert stored_ids(tmp_path) == sorted(state.head for state in states)
    assert len(stored(tmp_path, "_graph_commit_actors.lance")) == 7
    before = files(tmp_path)
    again.commits.complete()
    open_store(tmp_path).commits.complete()
    assert files(tmp_path) == before


def test_a_gap_left_by_another_process_is_closed_when_a_later_commit_is_written(tmp_path: Path) -> None:
    first, second = new_store(tmp_path), open_store(tmp_path)
    lost = [advance(first).head for _ in range(3)]
    last = advance(second).head
    second.commits.close()
    assert set(stored_ids(tmp_path)) >= {*lost, last}


def test_commits_of_a_deleted_branch_stay(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.create_branch("review")
    made = advance(store, branch=REVIEW)
    open_store(tmp_path).delete_branch("review")
    assert made.head in stored_ids(tmp_path)
    assert open_store(tmp_path).commits.show(made.head) == made.commit


def test_a_reader_writes_nothing_and_sees_everything(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    heads = [advance(store).head for _ in range(3)]
    before = files(tmp_path)
    reader = open_store(tmp_path, read_only=True)
    assert [record.id for record in reader.commits.list()][:3] == heads[::-1]
    assert reader.commits.show(heads[1]).id == heads[1]
    assert files(tmp_path) == before


def test_lost_tables_are_made_again(tmp_path: Path) -> None:
    import shutil

    store = new_store(tmp_path)
    for _ in range(3):
        advance(store, actor="ana")
    store.commits.close()
    whole = stored_ids(tmp_path)
    shutil.rmtree(tmp_path / "_graph_commits.lance")
    shutil.rmtree(tmp_path / "_graph_commit_actors.lance")
    open_store(tmp_path).commits.complete()
    assert stored_ids(tmp_path) == whole
    assert len(stored(tmp_path, "_graph_commit_actors.lance")) == 3


def test_a_failure_between_actors_and_commits_doubles_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    heads = [advance(store, actor="ana").head for _ in range(3)]
    with activate(Window.COMMIT_PROJECTION_BEFORE_APPEND, Raise()), pytest.raises(InjectedFailure):
        store.commits.flush()
    assert len(stored(tmp_path, "_graph_commit_actors.lance")) == 3
    assert set(stored_ids(tmp_path)).isdisjoint(heads)
    open_store(tmp_path).commits.complete()
    assert len(stored(tmp_path, "_graph_commit_actors.lance")) == 3
    assert set(stored_ids(tmp_path)) >= set(heads)


@pytest.mark.slow
def test_a_write_does_not_fail_because_the_tables_cannot_be_extended(tmp_path: Path) -> None:
    store = new_store(tmp_path, durability="os")
    place = tmp_path / "_graph_commits.lance"
    place.rename(tmp_path / "aside")
    place.write_text("in the way")
    heard: list[Event] = []
    with listen(heard.append):
        heads = [advance(store).head for _ in range(COMMIT_PROJECTION_BATCH)]
    assert any(isinstance(event, Warned) for event in heard)
    place.unlink()
    (tmp_path / "aside").rename(place)
    assert [record.id for record in store.commits.list(limit=3)] == heads[:-4:-1]


@pytest.mark.slow
def test_concurrent_writers_of_the_tables_double_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path, durability="os")
    heads = [advance(store, actor="ana").head for _ in range(10)]
    stores = [open_store(tmp_path, durability="os") for _ in range(6)]
    barrier = threading.Barrier(len(stores))
    failures: list[BaseException] = []

    def complete(each: ManifestStore) -> None:
        try:
            barrier.wait(30)
            each.commits.complete()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=complete, args=(each,)) for each in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert stored_ids(tmp_path) == sorted(record.id for record in store.commits.list())
    assert len(stored_ids(tmp_path, "_graph_commit_actors.lance")) == len(heads)


@pytest.mark.slow
def test_fragments_stay_few_and_full_ones_are_not_rewritten(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("omnigraph.manifest.projection._TAIL_ROWS_MAX", 10)
    store = new_store(tmp_path, durability="os")
    for _ in range(12):
        for _ in range(4):
            advance(store)
        store.commits.flush()
    fragments = lance.dataset(str(tmp_path / "_graph_commits.lance")).get_fragments()
    assert [fragment.count_rows() for fragment in fragments] == [13, 12, 12, 12]
    assert len(set(stored_ids(tmp_path))) == len(stored_ids(tmp_path)) == 49


def test_the_commit_that_settled_an_operation_is_found(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    operation = OperationId(new_ulid())
    assert store.commits.recovering(operation) is None
    made = ManifestBatchPublisher(store).publish(
        None, [], {}, intent("recovery", actor="omnigraph:recovery", recovers=operation)
    )
    assert open_store(tmp_path, read_only=True).commits.recovering(operation) == made.commit
    assert store.commits.recovering(operation) == made.commit


@pytest.mark.slow
def test_nothing_missing_costs_no_walk(tmp_path: Path) -> None:
    store = new_store(tmp_path, durability="os")
    for _ in range(30):
        advance(store)
    store.commits.complete()
    heard: list[Event] = []
    with listen(heard.append):
        store.commits.complete()
    kinds = [event.kind for event in heard if isinstance(event, StorageCall)]
    assert set(kinds) <= {"probe", "list_dir", "read", "read_text"}
    assert kinds.count("read") <= 1


def test_an_open_reads_no_branch_whose_commits_are_all_written(tmp_path: Path) -> None:
    store = new_store(tmp_path, durability="os")
    for name in ("a", "b", "c"):
        store.create_branch(name)
        advance(store, branch=BranchName(name))
    store.create_branch("untouched", BranchName("c"))
    store.commits.complete()
    late = advance(store, branch=BranchName("b"))
    again = open_store(tmp_path)
    heard: list[Event] = []
    with listen(heard.append):
        again.commits.complete()
    opened = [
        event.target
        for event in heard
        if isinstance(event, StorageCall) and event.kind in {"open", "open_version"}
    ]
    # Branch b: its head, and the state before it, whose commit is there.
    assert opened.count("__manifest") == 2
    assert late.head in stored_ids(tmp_path)


def test_a_branch_made_again_with_the_same_versions_is_completed(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    heads = []
    for _ in range(2):
        store.create_branch("review")
        heads.append(advance(store, branch=REVIEW))
        assert heads[-1].manifest_version == heads[0].manifest_version
        open_store(tmp_path).commits.complete()
        assert heads[-1].head in stored_ids(tmp_path)
        store.delete_branch("review")
    assert heads[0].commit.incarnation != heads[1].commit.incarnation


@pytest.mark.crash
@pytest.mark.parametrize(
    ("window", "pin"),
    [
        (Window.PUBLISH_AFTER_STATE_LOAD, 1),
        (Window.PUBLISH_RETRYABLE_CONTENTION, 1),
        (Window.GRAPH_PUBLISH_AFTER_MANIFEST_COMMIT, 2),
        (Window.GRAPH_PUBLISH_BEFORE_COMMIT_APPEND, 2),
        (Window.COMMIT_PROJECTION_BEFORE_APPEND, 2),
    ],
)
def test_a_killed_publisher_leaves_all_or_nothing(tmp_path: Path, window: Window, pin: int) -> None:
    store = new_store(tmp_path)
    before = store.current(None)
    child = subprocess.run(
        [sys.executable, publishing_child.__file__, str(tmp_path), PERSON, "1"],
        env=os.environ | {"OMNIGRAPH_FAILPOINTS": f"{window.value}=exit"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == EXIT_STATUS, child.stderr
    after = open_store(tmp_path)
    now = after.current(None)
    assert (now.pin(PERSON), now.head != before.head) == (pin, pin == 2)
    after.commits.complete()
    assert stored_ids(tmp_path) == sorted({before.head, now.head})
    assert stored_ids(tmp_path, "_graph_commit_actors.lance") == ([now.head] if pin == 2 else [])
    assert advance(after).pin(PERSON) == now.pin(PERSON) + 1
    assert (
        ManifestBatchPublisher(store).publish(None, [update(CITY, 2)], {CITY: 1}, intent()).pin(PERSON)
        == now.pin(PERSON) + 1
    )


def test_rows_are_the_same_over_upkeep_only(tmp_path: Path) -> None:
    with make_graph(tmp_path / "g") as graph:
        log = graph.session.commits
        written = run(graph, 'insert Person { name: "a" }').commit

        def upkeep() -> CommitRecord:
            intent = CommitIntent(CommitId(new_ulid()), "optimize")
            return graph.session.publisher.publish(None, [], {}, intent).commit

        once, twice = upkeep(), upkeep()
        for record in (written, once, twice):
            assert log.shows_rows_of(record, written.id)
        assert not log.shows_rows_of(written, once.id), "not the other way round"
        later = run(graph, 'insert Person { name: "b" }').commit
        assert not log.shows_rows_of(later, written.id)
        assert not log.shows_rows_of(upkeep(), written.id)
        lost = replace(twice, parents=(CommitId(new_ulid()),))
        assert not log.shows_rows_of(lost, written.id), "history that is gone proves nothing"
