"""Reading states: freshness, older versions, damage; creating the manifest."""

import shutil
import threading
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import LanceDataset, LanceOperation

from omnigraph.core.errors import (
    AlreadyInitialized,
    BranchNotFound,
    CommitNotFound,
    GraphNotFound,
    InternalError,
    SnapshotNotFound,
    StorageNotFound,
)
from omnigraph.core.events import StorageCall, listen
from omnigraph.core.ids import BranchName, CommitId
from omnigraph.manifest.state import manifest_schema
from unit.manifest.ground import CITY, PERSON, advance, entry, genesis, new_store, open_store


def calls_of(action) -> list[str]:
    heard: list = []
    with listen(heard.append):
        action()
    return [event.kind for event in heard if isinstance(event, StorageCall)]


def test_creation_stamps_annotates_and_configures(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    advance(store)
    made = lance.dataset(str(tmp_path / "__manifest"))
    assert made.schema.equals(manifest_schema(), check_metadata=True)
    assert made.config() == {"table_version_management": "true"}
    assert made.data_storage_version == "2.2"
    assert not made.has_stable_row_ids
    for name in ("_graph_commits.lance", "_graph_commit_actors.lance"):
        other = tmp_path / name
        assert not other.exists() or not lance.dataset(str(other)).has_stable_row_ids


def test_creating_twice_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    before = store.current(None)
    with pytest.raises(AlreadyInitialized):
        open_store(tmp_path).create([entry(CITY)], genesis())
    assert open_store(tmp_path).current(None) == before


def test_an_interrupted_creation_is_no_graph_and_can_be_finished(tmp_path: Path) -> None:
    half = open_store(tmp_path)
    half.dataset.create(manifest_schema())
    assert not open_store(tmp_path).exists()
    with pytest.raises(GraphNotFound):
        open_store(tmp_path).current(None)
    assert open_store(tmp_path).create([entry(PERSON)], genesis()).pin(PERSON) == 1
    assert open_store(tmp_path).exists()


def test_of_many_creators_one_wins(tmp_path: Path) -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(6)

    def create() -> None:
        # As a process of its own: without the lock that orders the creators of one process.
        store = open_store(tmp_path)
        store.coordinator = lambda _: threading.RLock()
        barrier.wait(30)
        try:
            store.create([entry(PERSON)], genesis())
            outcomes.append("created")
        except AlreadyInitialized:
            outcomes.append("refused")
        except BaseException as error:
            outcomes.append(repr(error))

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(outcomes) <= {"created", "refused"}, outcomes
    assert outcomes.count("created") <= 1
    if "created" not in outcomes:
        # Every creator saw another one at work and none finished: the next one does.
        open_store(tmp_path).create([entry(PERSON)], genesis())
    assert len(open_store(tmp_path).commits.list()) == 1


def test_a_creator_that_meets_another_one_at_the_configuration_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path).dataset.create(manifest_schema())
    slow, fast = open_store(tmp_path), open_store(tmp_path)
    configure = slow.dataset.update_config

    def late(handle: LanceDataset, values) -> None:
        fast.create([entry(PERSON)], genesis())
        configure(handle, values)

    slow.dataset.update_config = late
    slow.coordinator = lambda _: threading.RLock()
    with pytest.raises(AlreadyInitialized):
        slow.create([entry(CITY)], genesis())
    assert list(open_store(tmp_path).current(None).entries) == [PERSON]


def test_no_graph(tmp_path: Path) -> None:
    store = open_store(tmp_path / "nothing")
    assert not store.exists()
    with pytest.raises(GraphNotFound):
        store.current(None)
    assert not (tmp_path / "nothing").exists()


def test_reading_an_unchanged_branch_only_probes(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.create_branch("review")
    for branch in (None, BranchName("review")):
        first = store.current(branch)
        assert set(calls_of(lambda b=branch: store.current(b))) == {"probe"}
        assert store.current(branch) is first


@pytest.mark.slow
def test_a_publish_of_another_process_is_seen_at_once(tmp_path: Path) -> None:
    store, other = new_store(tmp_path), open_store(tmp_path)
    for step in range(2, 30, 9):
        for _ in range(9):
            advance(other)
        assert store.current(None).pin(PERSON) == step + 8


@pytest.mark.slow
def test_a_store_that_is_far_behind_does_not_probe_every_version(tmp_path: Path) -> None:
    store, other = new_store(tmp_path, durability="os"), open_store(tmp_path, durability="os")
    for _ in range(60):
        advance(other)
    calls = calls_of(lambda: store.current(None))
    assert calls.count("probe") < 30
    assert store.current(None).pin(PERSON) == 61


def test_a_foreign_publish_is_seen_although_the_next_version_was_cleaned_up(tmp_path: Path) -> None:
    store, other = new_store(tmp_path), open_store(tmp_path)
    seen = store.current(None).manifest_version
    raw = lance.dataset(str(tmp_path / "__manifest"))
    raw.tags.create("kept", seen)
    for _ in range(5):
        advance(other)
    next_file = tmp_path / store.dataset.version_file(None, seen + 1)
    next_file.unlink()
    assert (tmp_path / store.dataset.version_file(None, seen)).exists()
    assert store.current(None).pin(PERSON) == 6


def test_a_branch_deleted_and_made_again_is_another_branch(tmp_path: Path) -> None:
    store, other = new_store(tmp_path), open_store(tmp_path)
    store.create_branch("review")
    advance(store, branch=BranchName("review"))
    first = other.branch_incarnation(BranchName("review"))
    assert other.current(BranchName("review")).pin(PERSON) == 2
    store.delete_branch("review")
    with pytest.raises(BranchNotFound):
        other.current(BranchName("review"))
    store.create_branch("review")
    advance(store, CITY, branch=BranchName("review"))
    again = other.current(BranchName("review"))
    assert (again.pin(PERSON), again.pin(CITY)) == (1, 2)
    assert other.branch_incarnation(BranchName("review")) != first
    assert other.branch_incarnation(None) == ()


def test_older_states_by_version_and_by_commit(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    states = [store.current(None), *(advance(store) for _ in range(4))]
    for state in states:
        assert open_store(tmp_path).at_version(None, state.manifest_version) == state
        assert open_store(tmp_path).at_commit(state.head) == state
    with pytest.raises(SnapshotNotFound):
        store.at_version(None, 999)
    with pytest.raises(SnapshotNotFound):
        store.at_version(None, 1)
    for unknown in ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "x' or true or 'x' = '"):
        with pytest.raises(CommitNotFound):
            store.at_commit(CommitId(unknown))


def test_a_commit_of_a_reused_branch_name_is_not_mistaken(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.create_branch("review")
    old = advance(store, branch=BranchName("review"))
    store.delete_branch("review")
    with pytest.raises(SnapshotNotFound):
        store.at_commit(old.head)
    store.create_branch("review")
    advance(store, CITY, branch=BranchName("review"))
    with pytest.raises(SnapshotNotFound):
        store.at_commit(old.head)
    assert store.commits.show(old.head) == old.commit


def test_a_corrupt_manifest_row_is_a_typed_error(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    path = str(tmp_path / "__manifest")
    raw = lance.dataset(path)
    rows = raw.to_table().to_pylist()
    broken = next(row for row in rows if row["object_type"] == "table_version")
    broken["metadata"] = "{"
    table = pa.Table.from_pylist(rows, schema=manifest_schema())
    fragments = lance.fragment.write_fragments(table, raw, mode="overwrite")
    LanceDataset.commit(raw, LanceOperation.Overwrite(manifest_schema(), fragments))
    for reader in (store, open_store(tmp_path)):
        with pytest.raises(InternalError) as caught:
            reader.current(None)
        assert broken["object_id"] in str(caught.value)


def test_a_missing_manifest_file_is_named(tmp_path: Path) -> None:
    new_store(tmp_path)
    shutil.rmtree(tmp_path / "__manifest" / "data")
    with pytest.raises(StorageNotFound, match="__manifest/data/"):
        open_store(tmp_path).current(None)


def test_unknown_branches_get_near_names(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.create_branch("review")
    with pytest.raises(BranchNotFound) as caught:
        store.current(BranchName("reveiw"))
    assert "review" in str(caught.value.to_dict())


@pytest.mark.parametrize(
    "hint", ["right", "behind", "far behind", "ahead", "gone", "", "{", "[]", '{"version": "7"}']
)
def test_a_new_handle_finds_the_newest_state_whatever_the_hint_says(tmp_path: Path, hint: str) -> None:
    store = new_store(tmp_path)
    for _ in range(20):
        advance(store)
    newest = store.current(None)
    file = tmp_path / "__manifest" / "_versions" / "latest_version_hint.json"
    written = {
        "right": newest.manifest_version,
        "behind": newest.manifest_version - 2,
        "far behind": 2,
        "ahead": newest.manifest_version + 1,
    }
    if hint == "gone":
        file.unlink()
    elif hint != "right":
        file.write_text(f'{{"version":{written[hint]}}}' if hint in written else hint)
    again = open_store(tmp_path)
    calls = calls_of(lambda: again.current(None))
    assert again.current(None) == newest
    # A listing grows with the history; only a hint that does not help is worth one.
    assert ("open" in calls) == (hint not in {"right", "behind"})
