"""The same room on every store that can hold tables."""

import contextlib
import threading
from pathlib import Path

import pytest

from omnigraph.core.errors import BranchNotFound, GraphNotFound, RowLevelCasContention, SnapshotNotFound
from omnigraph.core.ids import BranchName
from omnigraph.core.settings import Settings
from omnigraph.manifest.store import ManifestStore
from stores import TABLE_STORES, Store, StoreCase
from unit.manifest.ground import CITY, PERSON, advance, entry, genesis

REVIEW = BranchName("review")


@pytest.fixture(params=TABLE_STORES, ids=str)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    case: StoreCase = request.param
    return case.make(tmp_path)


def opened(place: Store) -> ManifestStore:
    return ManifestStore(place.root, Settings(), place.adapter())


def test_publish_branch_and_history(place: Store) -> None:
    with pytest.raises(GraphNotFound):
        opened(place).current(None)
    store, other = opened(place), opened(place)
    store.create([entry(PERSON), entry(CITY)], genesis())
    advance(store, actor="ana")
    assert other.current(None).pin(PERSON) == 2
    other.create_branch("review")
    advance(store, branch=REVIEW)
    advance(other, CITY)
    assert (store.current(None).pin(CITY), other.current(REVIEW).pin(PERSON)) == (2, 3)
    assert [record.branch for record in store.commits.list(REVIEW)] == ["review", "main", "main"]
    assert opened(place).at_commit(store.commits.list()[1].id).pin(PERSON) == 2
    with pytest.raises(SnapshotNotFound):
        store.at_version(None, 99)
    store.delete_branch("review")
    with pytest.raises(BranchNotFound):
        other.current(REVIEW)
    store.create_branch("review")
    assert other.current(REVIEW).pin(CITY) == 2
    assert len(opened(place).commits.lineage()) == 4


def test_racing_stores_lose_nothing(place: Store) -> None:
    first = opened(place)
    first.create([entry(PERSON), entry(CITY)], genesis())
    failures: list[BaseException] = []

    def publish(key) -> None:
        # Each thread works as a process of its own would: with its own store, and the swap as the judge.
        mine = opened(place)
        mine.coordinator = lambda _: threading.RLock()
        try:
            while mine.current(None).pin(key) < 6:
                with contextlib.suppress(RowLevelCasContention):
                    advance(mine, key)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=publish, args=(key,)) for key in (PERSON, CITY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert (first.current(None).pin(PERSON), first.current(None).pin(CITY)) == (6, 6)
    assert len(first.commits.list()) == 11
