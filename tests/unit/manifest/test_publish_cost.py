"""What one publish costs, and that it is durable when it returns."""

from collections import Counter
from pathlib import Path

import pytest

from omnigraph.core.errors import ExpectedVersionMismatch, InternalError, IoFailure, StorageError
from omnigraph.core.events import DurableOperation, Event, StorageCall, Warned, listen
from omnigraph.core.ids import BranchName
from omnigraph.manifest.publisher import ManifestBatchPublisher
from omnigraph.manifest.store import ManifestStore
from unit.manifest.ground import CITY, PERSON, advance, intent, new_store, open_store, update


def everything(path: Path) -> set[Path]:
    return set(path.rglob("*"))


def substrate_requests(store: ManifestStore) -> tuple[int, int]:
    """Reads and writes Lance made since the last call, through the handles a publish used."""
    stats = store.head(None).handle.io_stats_incremental()
    return stats.read_iops, stats.write_iops


def one_publish(path: Path, store: ManifestStore) -> tuple[Counter, Counter, tuple[int, int]]:
    """Calls, new files per directory, and substrate requests of one publish."""
    before = everything(path)
    substrate_requests(store)
    heard: list[Event] = []
    with listen(heard.append):
        advance(store)
    calls = Counter(event.kind for event in heard if isinstance(event, StorageCall))
    created = Counter(new.parent.name for new in everything(path) - before)
    return calls, created, substrate_requests(store)


@pytest.mark.cost
@pytest.mark.slow
def test_a_publish_costs_the_same_after_10_and_300_commits(tmp_path: Path) -> None:
    store = new_store(tmp_path, durability="os")
    # Numbers of commits that leave room in the queue for the commit tables: their batch is not the publish.
    while store.current(None).manifest_version < 10:
        advance(store)
    young = one_publish(tmp_path, store)
    while store.current(None).manifest_version < 300:
        advance(store)
    old = one_publish(tmp_path, store)
    assert young == old
    assert young[1] == {"data": 1, "_versions": 1, "_transactions": 1}
    assert (young[0]["write"], young[0]["commit"]) == (1, 1)
    assert {kind for kind in young[0] if kind != "probe"} == {"write", "commit"}


@pytest.mark.cost
@pytest.mark.slow
def test_reading_a_foreign_publish_costs_the_same_after_10_and_300_commits(tmp_path: Path) -> None:
    store, other = new_store(tmp_path, durability="os"), open_store(tmp_path, durability="os")

    def one_read() -> Counter:
        advance(other)
        heard: list[Event] = []
        with listen(heard.append):
            store.current(None)
        return Counter(event.kind for event in heard if isinstance(event, StorageCall))

    while store.current(None).manifest_version < 10:
        advance(other)
    young = one_read()
    while store.current(None).manifest_version < 300:
        advance(other)
    assert one_read() == young
    assert (young["open_version"], young["read"]) == (1, 1)


@pytest.mark.parametrize("branch", [None, BranchName("deep/review")])
def test_everything_new_is_synced_before_success_and_in_order(
    tmp_path: Path, branch: BranchName | None
) -> None:
    store = new_store(tmp_path)
    if branch is not None:
        store.create_branch(branch)
    before = everything(tmp_path)
    heard: list[Event] = []
    with listen(heard.append):
        advance(store, branch=branch)
    synced = [
        event.path for event in heard if isinstance(event, DurableOperation) and event.moment == "after"
    ]
    for new in everything(tmp_path) - before:
        # The transaction is inside the manifest: the file beside it is never needed.
        if new.suffix != ".txn":
            assert str(new if new.is_file() else new.parent) in synced, new
            assert str(new.parent) in synced, new.parent
    steps = [
        "commit" if isinstance(event, StorageCall) else Path(event.path).suffix or Path(event.path).name
        for event in heard
        if (isinstance(event, StorageCall) and event.kind == "commit")
        or (isinstance(event, DurableOperation) and event.moment == "after")
    ]
    swap = steps.index("commit")
    assert {".lance", "data"} <= set(steps[:swap]), "a durable state points at durable rows"
    assert {".manifest", "_versions"} <= set(steps[swap:])


def test_the_os_mode_syncs_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path, durability="os")
    heard: list[Event] = []
    with listen(heard.append):
        advance(store)
    assert not any(isinstance(event, DurableOperation) and event.kind.startswith("sync") for event in heard)


def test_a_prepared_publish_is_invisible_until_it_is_published(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    publisher = ManifestBatchPublisher(store)
    prepared = publisher.prepare(None, [update(PERSON, 2, rows=1)], {PERSON: 1}, intent())
    assert open_store(tmp_path).current(None).pin(PERSON) == 1
    assert [(tmp_path / name).exists() for name in prepared.files] == [True]
    heard: list[Event] = []
    with listen(heard.append):
        made = publisher.publish_prepared(prepared, files_synced=True)
    assert "write" not in {event.kind for event in heard if isinstance(event, StorageCall)}
    assert not any(isinstance(event, DurableOperation) and event.path.endswith(".lance") for event in heard)
    assert made == prepared.snapshot
    assert open_store(tmp_path).current(None) == made


def test_a_prepared_publish_syncs_its_own_files_unless_told(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    publisher = ManifestBatchPublisher(store)
    prepared = publisher.prepare(None, [update(PERSON, 2)], {PERSON: 1}, intent())
    heard: list[Event] = []
    with listen(heard.append):
        publisher.publish_prepared(prepared)
    assert any(isinstance(event, DurableOperation) and event.path.endswith(".lance") for event in heard)


def test_a_prepared_publish_starts_over_when_the_branch_moved(tmp_path: Path) -> None:
    store, other = new_store(tmp_path), open_store(tmp_path)
    publisher = ManifestBatchPublisher(store)
    prepared = publisher.prepare(None, [update(PERSON, 2)], {PERSON: 1}, intent())
    theirs = advance(other, CITY)
    made = publisher.publish_prepared(prepared)
    assert (made.pin(PERSON), made.pin(CITY), made.commit.parent) == (2, 2, theirs.head)
    assert not any((tmp_path / name).exists() for name in prepared.files)
    assert [record.id for record in store.commits.list()][:2] == [made.head, theirs.head]


def test_a_prepared_publish_loses_against_its_own_table(tmp_path: Path) -> None:
    store, other = new_store(tmp_path), open_store(tmp_path)
    publisher = ManifestBatchPublisher(store)
    prepared = publisher.prepare(None, [update(PERSON, 2)], {PERSON: 1}, intent())
    advance(other)
    with pytest.raises(ExpectedVersionMismatch):
        publisher.publish_prepared(prepared)
    assert not any((tmp_path / name).exists() for name in prepared.files)


def test_preparing_checks_first_and_discarding_leaves_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    publisher = ManifestBatchPublisher(store)
    before = everything(tmp_path)
    with pytest.raises(ExpectedVersionMismatch):
        publisher.prepare(None, [update(PERSON, 2)], {PERSON: 7}, intent())
    with pytest.raises(InternalError):
        publisher.publish(None, [update(PERSON, 2)], {PERSON: 1}, None)
    publisher.discard(publisher.prepare(None, [update(PERSON, 2)], {PERSON: 1}, intent()))
    assert everything(tmp_path) == before
    assert store.current(None).pin(PERSON) == 1


def test_a_publish_that_cannot_write_is_a_typed_error_and_changes_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    before = store.current(None)
    data = tmp_path / "__manifest" / "data"
    data.rename(tmp_path / "aside")
    data.write_text("in the way")
    with pytest.raises((StorageError, IoFailure)):
        advance(store)
    data.unlink()
    (tmp_path / "aside").rename(data)
    assert open_store(tmp_path).current(None) == before
    assert advance(store).pin(PERSON) == 2


def test_a_missing_history_is_reported_not_invented(tmp_path: Path) -> None:
    store = new_store(tmp_path, durability="os")
    middle = [advance(store) for _ in range(3)][1]
    (tmp_path / store.dataset.version_file(None, middle.manifest_version)).unlink()
    heard: list[Event] = []
    with listen(heard.append):
        history = open_store(tmp_path).commits.list()
    assert [record.manifest_version for record in history] == [middle.manifest_version + 1]
    assert any(isinstance(event, Warned) and middle.head in (event.detail or "") for event in heard)
