"""Files that a power cut left empty or cut off: repaired, or a clear error that names the file."""

from pathlib import Path

import pytest

from omnigraph.core.errors import OmnigraphError, StoragePermanent
from omnigraph.core.events import Event, StorageCall, Warned, listen
from omnigraph.core.ids import BranchName
from omnigraph.storage.manifest_files import HINT, hint_text, manifest_object
from omnigraph.storage.torn_files import find_torn_manifest, has_versions, may_be_torn, remove_torn_manifests
from stores import PERSON, PLACE, STAMP, Store, content, filled, local_store, rows, s3_store

REVIEW = BranchName("review")


def cut(path: Path, share: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return local_store(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
@pytest.mark.parametrize("branch", [None, REVIEW])
def test_a_torn_newest_manifest_is_found_and_removed(
    store: Store, share: float, branch: BranchName | None
) -> None:
    tables = store.tables()
    head = filled(tables, ["a"])
    if branch is not None:
        head = tables.create_branch(PERSON, PLACE, branch, None, head.version)
    after = tables.commit_staged(head, tables.stage_append(head, rows(["b"]), STAMP))
    assert find_torn_manifest(store.root, PLACE, branch) is None
    path = Path(store.uri) / manifest_object(PLACE, branch, after.version)
    cut(path, share)
    with pytest.raises(OmnigraphError):
        store.tables().open_head(PERSON, PLACE, branch)
    heard: list[Event] = []
    with listen(heard.append):
        (removed,) = remove_torn_manifests(store.root, PLACE, branch)
    assert (removed.version, removed.path, removed.branch) == (after.version, str(path), branch)
    assert [event.detail for event in heard if isinstance(event, Warned)] == [str(path)]
    assert remove_torn_manifests(store.root, PLACE, branch) == ()
    fresh = store.tables()
    head = fresh.open_head(PERSON, PLACE, branch)
    assert content(fresh, head) == {"a": 0}
    again = fresh.commit_staged(head, fresh.stage_append(head, rows(["c"]), STAMP))
    assert again.version == after.version
    assert content(store.tables(), again) == {"a": 0, "c": 0}


@pytest.mark.parametrize("hint", ["right", "behind", "far behind", "ahead", "gone", "", '{"vers', "\0\0\0\0"])
@pytest.mark.parametrize("branch", [None, REVIEW])
def test_a_torn_newest_version_is_suspected_whatever_the_hint_says(
    store: Store, hint: str, branch: BranchName | None
) -> None:
    tables = store.tables()
    head = filled(tables, *([f"a{number}"] for number in range(20)))
    if branch is not None:
        head = tables.create_branch(PERSON, PLACE, branch, None, head.version)
        head = tables.commit_staged(head, tables.stage_append(head, rows(["b"]), STAMP))
    newest = Path(store.uri) / manifest_object(PLACE, branch, head.version)
    told = {"right": 0, "behind": -1, "far behind": -head.version + 1, "ahead": 1}
    file = newest.parent / HINT
    if hint == "gone":
        file.unlink()
    else:
        file.write_text(hint_text(head.version + told[hint]) if hint in told else hint)
    heard: list[Event] = []
    with listen(heard.append):
        assert not may_be_torn(store.root, PLACE, branch)
    listed = [each for each in heard if isinstance(each, StorageCall) and each.kind == "list_dir"]
    assert bool(listed) == (hint != "right")
    cut(newest, 0.5)
    assert may_be_torn(store.root, PLACE, branch)
    assert len(remove_torn_manifests(store.root, PLACE, branch)) == 1
    assert not may_be_torn(store.root, PLACE, branch)


@pytest.mark.parametrize("taken", [1, 5, 15])
def test_a_torn_version_behind_a_gap_is_suspected(store: Store, taken: int) -> None:
    """A power cut took versions, left a later one torn, and the hint as it was before all of them."""
    newest = filled(store.tables(), *([f"a{number}"] for number in range(20))).version
    directory = Path(store.uri) / manifest_object(PLACE, None, newest)
    for number in range(1, taken + 1):
        (Path(store.uri) / manifest_object(PLACE, None, newest - number)).unlink()
    (directory.parent / HINT).write_text(hint_text(newest - taken - 1))
    assert not may_be_torn(store.root, PLACE, None)
    cut(directory, 0.0)
    assert may_be_torn(store.root, PLACE, None)


def test_versions_are_counted_only_as_far_as_asked(store: Store) -> None:
    assert not has_versions(store.root, PLACE, None)
    newest = filled(store.tables(), ["a"]).version
    assert has_versions(store.root, PLACE, None, at_least=newest)
    assert not has_versions(store.root, PLACE, None, at_least=newest + 1)
    (Path(store.uri) / PLACE / "_versions" / "18446744073709551000.manifest#1").write_bytes(b"")
    assert not has_versions(store.root, PLACE, None, at_least=newest + 1)


def test_a_table_of_one_torn_version_loses_it(store: Store) -> None:
    filled(store.tables())
    cut(Path(store.uri) / manifest_object(PLACE, None, 1), 0.0)
    assert len(remove_torn_manifests(store.root, PLACE, None)) == 1
    assert content(store.tables(), filled(store.tables(), ["a"])) == {"a": 0}


def test_what_is_not_there_is_not_torn(store: Store) -> None:
    assert find_torn_manifest(store.root, PLACE, None) is None
    filled(store.tables(), ["a"])
    assert find_torn_manifest(store.root, PLACE, REVIEW) is None
    (Path(store.uri) / PLACE / "_versions" / "18446744073709551000.manifest#1").write_bytes(b"")
    assert find_torn_manifest(store.root, PLACE, None) is None


@pytest.mark.s3
def test_object_stores_show_objects_whole() -> None:
    store = s3_store()
    filled(store.tables(), ["a"])
    assert find_torn_manifest(store.root, PLACE, None) is None


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_torn_version_hint_is_harmless(store: Store, share: float) -> None:
    tables = store.tables()
    filled(tables, ["a"])
    cut(Path(store.uri) / PLACE / "_versions" / "latest_version_hint.json", share)
    fresh = store.tables()
    head = fresh.open_head(PERSON, PLACE, None)
    after = fresh.commit_staged(head, fresh.stage_append(head, rows(["b"]), STAMP))
    assert content(store.tables(), after) == {"a": 0, "b": 0}


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_torn_data_file_is_named(store: Store, share: float) -> None:
    tables = store.tables()
    handle = filled(tables, ["a"], ["b"])
    damaged = tables.fragments(handle)[1].files[0]
    cut(Path(store.uri) / damaged, share)
    fresh = store.tables()
    with pytest.raises(StoragePermanent, match="damaged") as caught:
        fresh.read(fresh.open_head(PERSON, PLACE, None))
    assert damaged in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_torn_deletion_file_is_named(store: Store, share: float) -> None:
    tables = store.tables()
    base = filled(tables, ["a", "b"])
    staged = tables.stage_delete(base, STAMP, predicate="id = 'a'")
    assert staged is not None
    damaged = tables.fragments(tables.commit_staged(base, staged))[0].deletions
    assert damaged is not None
    cut(Path(store.uri) / damaged, share)
    fresh = store.tables()
    with pytest.raises(StoragePermanent, match="damaged") as caught:
        fresh.read(fresh.open_head(PERSON, PLACE, None))
    assert damaged in str(caught.value)


def test_the_first_look_finds_a_version_behind_one_that_a_power_cut_took(store: Store) -> None:
    newest = filled(store.tables(), ["a"], ["b"], ["c"]).version
    (Path(store.uri) / manifest_object(PLACE, None, newest - 1)).unlink()
    shown = newest - 2
    assert store.tables().head_version(PLACE, None, at_least=shown) == newest
