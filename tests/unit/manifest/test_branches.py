"""Branches of the manifest: creation, names, deletion, the lock of a schema apply."""

from pathlib import Path

import pytest

from omnigraph.core.errors import (
    BadRequest,
    BranchExists,
    BranchHasChildren,
    BranchNotFound,
    BranchPrefixClash,
    ConflictError,
)
from omnigraph.core.events import DurableOperation, Event, StorageCall, listen
from omnigraph.core.failpoints import Callback, InjectedFailure, Raise, Window, activate
from omnigraph.core.ids import BranchName, TableKey
from omnigraph.manifest.names import SCHEMA_APPLY_LOCK, checked_branch_name
from omnigraph.manifest.publisher import ManifestBatchPublisher, SchemaLock
from unit.manifest.ground import CITY, PERSON, advance, entry, genesis, intent, new_store, open_store, update

REVIEW = BranchName("review")


def test_a_branch_shows_what_its_parent_showed(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    advance(store)
    main = store.current(None)
    made = store.create_branch("review")
    assert (made.branch, made.entries, made.commit) == (REVIEW, main.entries, main.commit)
    assert open_store(tmp_path).current(REVIEW) == made
    advance(store, branch=REVIEW)
    advance(store, CITY)
    assert (store.current(None).pin(PERSON), store.current(None).pin(CITY)) == (2, 2)
    assert (store.current(REVIEW).pin(PERSON), store.current(REVIEW).pin(CITY)) == (3, 1)
    assert open_store(tmp_path).current(REVIEW) == store.current(REVIEW)


def test_a_branch_of_a_branch(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.create_branch("a/b")
    advance(store, branch=BranchName("a/b"))
    made = store.create_branch("c", BranchName("a/b"))
    assert made.entries == store.current(BranchName("a/b")).entries
    assert open_store(tmp_path).current(BranchName("c")) == made
    assert store.branch_reference(BranchName("c")).parent == "a/b"
    assert store.branches() == ["a/b", "c"]
    advance(store, branch=BranchName("c"))
    assert open_store(tmp_path).current(BranchName("c")).pin(PERSON) == 3
    with pytest.raises(BranchHasChildren) as caught:
        store.delete_branch("a/b")
    assert "c" in str(caught.value.to_dict())
    store.delete_branch("c")
    store.delete_branch("a/b")
    assert store.branches() == []


def test_creation_fails_for_taken_clashing_and_unknown_names(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.create_branch("topic/a")
    with pytest.raises(BranchExists):
        store.create_branch(" topic/a ")
    for clash in ("topic", "topic/a/b"):
        with pytest.raises(BranchPrefixClash):
            store.create_branch(clash)
    with pytest.raises(BranchNotFound):
        store.create_branch("x", BranchName("nowhere"))
    store.create_branch("topic/b")
    store.create_branch("topicality")
    assert store.branches() == ["topic/a", "topic/b", "topicality"]


@pytest.mark.parametrize(
    "name",
    ["", "  ", "main", "main/x", "/a", "a/", "a//b", "..", "a/../b", "a..b", "./a", "a b", "a\tb", "a\0b", "a\\b",
     "a%2Fb", "a#1", "x.lock", "a:b", "a" * 181, SCHEMA_APPLY_LOCK],
)  # fmt: skip
def test_bad_names(name: str, tmp_path: Path) -> None:
    store = new_store(tmp_path)
    with pytest.raises(BadRequest):
        store.create_branch(name)
    assert store.all_branches() == []


@pytest.mark.parametrize("name", ["a", "A.b-c_d", "größe", "x/y/z", "-a", "__run__1", "a" * 180])
def test_good_names_work_on_disk(name: str, tmp_path: Path) -> None:
    store = new_store(tmp_path)
    assert checked_branch_name(name) == name
    store.create_branch(name)
    advance(store, branch=BranchName(name))
    assert open_store(tmp_path).branches() == [name]
    assert open_store(tmp_path).current(BranchName(name)).pin(PERSON) == 2


def test_a_failed_creation_leaves_no_branch(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    with (
        activate(Window.BRANCH_CREATE_AFTER_MANIFEST_BRANCH_CREATE, Raise()),
        pytest.raises(InjectedFailure),
    ):
        store.create_branch("review")
    assert open_store(tmp_path).branches() == []
    assert not (tmp_path / "__manifest" / "tree" / "review").exists()
    store.create_branch("review")
    assert open_store(tmp_path).current(REVIEW).pin(PERSON) == 1


def test_storage_without_reference_does_not_block_a_name(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.create_branch("review")
    advance(store, branch=REVIEW)
    (tmp_path / "__manifest" / "_refs" / "branches" / "review.json").unlink()
    assert open_store(tmp_path).branches() == []
    again = open_store(tmp_path)
    assert again.create_branch("review").pin(PERSON) == 1
    assert advance(again, branch=REVIEW).pin(PERSON) == 2


def test_a_reference_without_storage_can_be_removed(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.create_branch("review")
    store.references.remove(REVIEW)
    store.references.remove(REVIEW)
    assert not store.branch_exists(REVIEW)
    with pytest.raises(BranchNotFound):
        store.delete_branch("review")
    with pytest.raises(BadRequest):
        store.delete_branch("main")


def test_creation_costs_the_same_for_many_types(tmp_path: Path) -> None:
    def cost(count: int) -> tuple[list[str], int]:
        keys = tuple(TableKey(f"node:T{number}") for number in range(count))
        store = new_store(tmp_path / str(count), keys=keys)
        files = set((tmp_path / str(count)).rglob("*"))
        calls: list[Event] = []
        with listen(calls.append):
            store.create_branch("review")
        created = set((tmp_path / str(count)).rglob("*")) - files
        return [event.kind for event in calls if isinstance(event, StorageCall)], len(created)

    assert cost(3) == cost(300)


def test_creation_is_durable(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    before = set(tmp_path.rglob("*"))
    synced: set[str] = set()
    with listen(
        lambda e: synced.add(e.path) if isinstance(e, DurableOperation) and e.moment == "after" else None
    ):
        store.create_branch("deep/er/review")
    for new in set(tmp_path.rglob("*")) - before:
        # The transaction is inside the manifest and the hint heals itself: neither needs a sync.
        if new.suffix == ".txn" or new.name in {"latest_version_hint.json", "_transactions"}:
            continue
        assert str(new if new.is_file() else new.parent) in synced, new


def test_a_schema_apply_stops_publishes_and_branches(tmp_path: Path) -> None:
    store, other = new_store(tmp_path), open_store(tmp_path)
    publisher = ManifestBatchPublisher(other)
    prepared = publisher.prepare(None, [update(PERSON, 2)], {PERSON: 1}, intent())
    store.references.take_schema_apply_lock()
    assert (other.branches(), other.schema_apply_in_progress()) == ([], True)
    with pytest.raises(BranchExists):
        other.references.take_schema_apply_lock()
    for action in (
        lambda: advance(other),
        lambda: publisher.publish_prepared(prepared),
        lambda: other.create_branch("review"),
    ):
        with pytest.raises(ConflictError, match="schema apply is in progress"):
            action()
    assert other.current(None).pin(PERSON) == 1
    applied = ManifestBatchPublisher(store).publish(
        None, [], {}, intent("schema_apply", schema_hash="schema-2"), schema_lock=SchemaLock.HELD
    )
    assert applied.schema_hash == "schema-2"
    store.references.release_schema_apply_lock()
    store.references.release_schema_apply_lock()
    assert advance(other).schema_hash == "schema-2"


def test_a_publish_on_a_branch_deleted_under_it_is_not_acknowledged(tmp_path: Path) -> None:
    store, other = new_store(tmp_path), open_store(tmp_path)
    store.create_branch("review")
    delete = Callback(lambda _: other.references.remove(REVIEW))
    with activate(Window.PUBLISH_RETRYABLE_CONTENTION, delete), pytest.raises(ConflictError, match="deleted"):
        advance(store, branch=REVIEW)
    assert store.branches() == []
    assert store.create_branch("review").pin(PERSON) == 1
    assert advance(store, branch=REVIEW).pin(PERSON) == 2


def test_a_new_graph_has_no_branches(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.create([entry(PERSON)], genesis())
    assert store.branches() == []
