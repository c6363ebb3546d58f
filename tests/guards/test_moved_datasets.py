"""What moving a graph assumes about the manifests of Lance branches."""

from pathlib import Path

import lance
import pytest
from lance import LanceDataset, LanceOperation
from lance.dataset import Session

from guards.substrate import append, commit, dataset, ids_of, numbers, rows
from omnigraph.storage.manifest_files import manifest_message, manifest_name, with_base_paths


def file_of(base: LanceDataset) -> Path:
    return Path(base.uri) / "_versions" / manifest_name(base.version)


def bases_of(base: LanceDataset) -> dict[int, str]:
    return {number: each.path for number, each in base.base_paths().items()}


def grown(place: Path) -> LanceDataset:
    """A branch of a branch, with an index of main and deleted rows of its parent."""
    main = dataset(place, [f"k{n}" for n in range(200)])
    index = main.create_index_uncommitted("id", "BTREE", name="id_idx", fragment_ids=numbers(main))
    main = commit(main, LanceOperation.CreateIndex([index], []))
    child = append(main.create_branch("some/child"), rows(["c"]))
    hidden = child.get_fragment(0).delete_rows([3])
    child = commit(child, LanceOperation.Delete([hidden], [], "id = 'k3'"))
    return append(child.create_branch("grandchild"), rows(["g"]))


def moved(base: LanceDataset, old: Path, new: Path, session: Session | None = None) -> LanceDataset:
    """The dataset at its place below the new directory, with base paths of that place."""
    uri = base.uri.replace(str(old), str(new))
    message = manifest_message((Path(uri) / "_versions" / manifest_name(base.version)).read_bytes())
    assert message is not None
    patched = with_base_paths(message, lambda path: path.replace(str(old), str(new)))
    return LanceDataset(uri, base.version, serialized_manifest=patched, session=session)


def test_guard_branch_manifests_hold_full_base_paths(tmp_path: Path) -> None:
    found = grown(tmp_path)
    table = str(tmp_path / "table")
    assert bases_of(found) == {0: table, 1: f"{table}/tree/some/child"}


def test_guard_base_paths_are_written_as_they_were_given(tmp_path: Path) -> None:
    place = tmp_path / "a b#c%41 é"
    found = dataset(place, ["a"]).create_branch("review")
    assert bases_of(found) == {0: f"{place}/table"}


def test_guard_manifest_file_ends_with_its_message(tmp_path: Path) -> None:
    found = grown(tmp_path)
    whole = file_of(found).read_bytes()
    message = manifest_message(whole)
    assert message is not None
    assert message in whole
    assert with_base_paths(message, lambda path: path) == message
    seen: list[str] = []
    with_base_paths(message, lambda path: (seen.append(path), path)[1])
    assert sorted(seen) == sorted(bases_of(found).values())
    assert [manifest_message(whole[:cut]) for cut in (0, 3, 15, len(whole) // 2, len(whole) - 1)] == [
        None
    ] * 5


def test_guard_base_paths_lead_back_to_the_old_place(tmp_path: Path) -> None:
    found = grown(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    stale = lance.dataset(found.uri.replace("/old/", "/new/"))
    assert bases_of(stale)[0] == str(tmp_path / "old" / "table"), "opening it works and corrects nothing"
    with pytest.raises((OSError, ValueError)):
        stale.to_table()


@pytest.mark.parametrize("shared", [True, False])
def test_guard_serialized_manifest_decides_the_bases(tmp_path: Path, *, shared: bool) -> None:
    found = grown(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    session = Session() if shared else None
    lance.dataset(found.uri.replace("/old/", "/new/"), version=found.version, session=session)
    here = moved(found, tmp_path / "old", tmp_path / "new", session)
    assert here.version == found.version
    assert all(path.startswith(str(tmp_path / "new")) for path in bases_of(here).values())
    assert len(ids_of(here)) == 201
    assert "ScalarIndexQuery" in here.scanner(filter="id = 'k7'").explain_plan()
    assert [here.count_rows(f"id = '{wanted}'") for wanted in ("k7", "k3", "c", "g")] == [1, 0, 1, 1]

    after = append(here, rows(["later"]))
    hidden = after.get_fragment(0).delete_rows([7])
    after = commit(after, LanceOperation.Delete([hidden], [], "id = 'k7'"))
    index = after.create_index_uncommitted("n", "BTREE", name="n_idx", fragment_ids=numbers(after))
    after = commit(after, LanceOperation.CreateIndex([index], []))
    assert bases_of(lance.dataset(after.uri)) == bases_of(here), "new manifests carry the new paths"
    assert [after.count_rows(f"id = '{wanted}'") for wanted in ("k7", "k8", "later")] == [0, 1, 1]


def test_guard_restore_and_fork_copy_bases_from_disk(tmp_path: Path) -> None:
    found = grown(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    here = moved(found, tmp_path / "old", tmp_path / "new")
    after = append(here, rows(["later"]))
    restored = commit(after, LanceOperation.Restore(found.version))
    assert bases_of(restored)[0] == str(tmp_path / "old" / "table"), "so they are corrected after a commit"
    fork = here.create_branch("fork", reference=("grandchild", found.version))
    assert bases_of(fork)[0] == str(tmp_path / "old" / "table")
    assert bases_of(fork)[2] == here.uri
