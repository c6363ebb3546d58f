"""What opening costs, in calls of the storage: flat over history, no listing while nothing surprising happened."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omnigraph.core.errors import StorageNotFound
from omnigraph.core.events import Event, StorageCall, listen
from omnigraph.storage import datasets
from omnigraph.storage.layout import branch_directory
from stores import PERSON, PLACE, SCHEMA, STAMP, Store, content, filled, local_store, rows

pytestmark = pytest.mark.cost


@contextmanager
def counted() -> Iterator[Counter[str]]:
    calls: Counter[str] = Counter()

    def hear(event: Event) -> None:
        if isinstance(event, StorageCall):
            calls[event.kind] += 1

    with listen(hear):
        yield calls


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return local_store(tmp_path)


def grow(store: Store, commits: int) -> None:
    """Commits of another process."""
    tables = store.tables()
    for number in range(commits):
        head = tables.open_head(PERSON, PLACE, None)
        tables.commit_staged(head, tables.stage_append(head, rows([f"g{head.version}-{number}"]), STAMP))


def test_opening_a_known_version_is_one_probe(store: Store) -> None:
    tables = store.tables()
    handle = filled(tables, ["a"])
    with counted() as calls:
        again = tables.open_version(PERSON, PLACE, None, handle.version)
    assert calls == {"probe": 1}
    assert again.version == handle.version


def test_opening_an_unknown_version_never_lists(store: Store) -> None:
    version = filled(store.tables(), ["a"]).version
    with counted() as calls:
        store.tables().open_version(PERSON, PLACE, None, version)
    assert calls == {"probe": 1, "open_dataset": 1}


@pytest.mark.parametrize("history", [3, 60])
def test_the_known_head_is_confirmed_without_a_listing(store: Store, history: int) -> None:
    tables = store.tables()
    filled(tables, ["a"])
    grow(store, history)
    tables.open_head(PERSON, PLACE, None)
    with counted() as calls:
        tables.open_head(PERSON, PLACE, None)
    assert calls == {"probe": 3}
    with counted() as calls:
        tables.head_version(PLACE, None)
    assert calls == {"probe": 2}


@pytest.mark.parametrize("history", [3, 60])
def test_a_one_row_write_costs_the_same_at_any_age(store: Store, history: int) -> None:
    filled(store.tables(), ["a"])
    grow(store, history)
    tables = store.tables()
    head = tables.open_head(PERSON, PLACE, None)
    with counted() as calls:
        after = tables.commit_staged(head, tables.stage_append(head, rows(["x"]), STAMP))
        tables.open_version(PERSON, PLACE, None, after.version)
    assert calls == {"write_fragments": 1, "commit": 1, "probe": 2}


def test_foreign_commits_are_seen_at_once(store: Store) -> None:
    tables = store.tables()
    handle = filled(tables, ["a"])
    grow(store, 2)
    with counted() as calls:
        seen = tables.open_head(PERSON, PLACE, None)
    assert seen.version == handle.version + 2
    assert calls == {"probe": 5, "open_dataset": 1}
    assert len(content(tables, seen)) == 3


def test_many_foreign_commits_are_found_by_one_listing(store: Store) -> None:
    tables = store.tables()
    handle = filled(tables, ["a"])
    grow(store, datasets.WALK_STEPS_MAX + 5)
    with counted() as calls:
        assert tables.head_version(PLACE, None) == handle.version + datasets.WALK_STEPS_MAX + 5
    assert calls["list_dir"] == 1


def test_a_head_that_was_removed_is_looked_for_again(store: Store) -> None:
    tables = store.tables()
    handle = filled(tables, ["a"], ["b"])
    newest = Path(store.uri) / datasets.manifest_object(PLACE, None, handle.version)
    newest.rename(newest.with_suffix(".aside"))
    assert content(tables, tables.open_head(PERSON, PLACE, None)) == {"a": 0}
    with pytest.raises(StorageNotFound):
        tables.open_version(PERSON, PLACE, None, handle.version)


def test_a_graph_made_again_at_the_same_place_is_read_anew(store: Store) -> None:
    tables = store.tables()
    filled(tables, ["old"])
    Path(store.uri).rename(Path(store.uri).with_name("aside"))
    Path(store.uri).mkdir()
    filled(store.tables(), ["new", "newer"])
    assert content(tables, tables.open_head(PERSON, PLACE, None)) == {"new": 0, "newer": 0}


def test_open_handles_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "HANDLES_KEPT_MAX", 4)
    tables = store.tables()
    handle = filled(tables, *([f"k{n}"] for n in range(8)))
    assert len(tables._pool._opened) == 4
    assert content(tables, tables.open_version(PERSON, PLACE, None, 2)) == {"k0": 0}
    assert len(tables._pool._opened) == 4
    assert tables.open_head(PERSON, PLACE, None).version == handle.version


def test_a_branch_lies_where_lance_keeps_it(store: Store) -> None:
    tables = store.tables()
    handle = filled(tables, ["a"])
    tables.create_branch(PERSON, PLACE, "feature/x", None, handle.version)
    assert (Path(store.uri) / branch_directory(PLACE, "feature/x") / "_versions").is_dir()
    assert handle.schema == SCHEMA
