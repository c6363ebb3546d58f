"""What forks assume about Lance branches."""

import json
import shutil
from datetime import timedelta
from pathlib import Path

import lance
import pytest
from lance import LanceDataset, LanceOperation
from lance.fragment import FragmentMetadata, write_fragments

from guards.substrate import append, commit, dataset, head, ids_of, numbers, rows


def test_guard_branch_identifier_changes_on_recreate(tmp_path: Path) -> None:
    main = dataset(tmp_path, ["a"])
    main.create_branch("review")
    first = main.branches.list()["review"]["branch_identifier"]
    main.branches.delete("review")
    again = main.create_branch("review")
    second = main.branches.list()["review"]["branch_identifier"]
    assert again.version == main.version
    assert first != second
    assert [version for version, _ in first] == [version for version, _ in second]


def test_guard_duplicate_branch_create_error(tmp_path: Path) -> None:
    main = dataset(tmp_path, ["a"])
    main.create_branch("review")
    with pytest.raises((OSError, ValueError)) as caught:
        main.create_branch("review")
    assert not isinstance(caught.value, FileExistsError), "untyped: only the list of branches can decide"
    assert list(main.branches.list()) == ["review"]


def test_guard_zombie_tree_needs_prefix_delete(tmp_path: Path) -> None:
    main = dataset(tmp_path, ["a"])
    append(main.create_branch("review"), rows(["b"]))
    (reference,) = (tmp_path / "table" / "_refs" / "branches").iterdir()
    reference.unlink()
    assert main.branches.list() == {}, "a directory without a reference is invisible"
    with pytest.raises((OSError, ValueError)):
        main.branches.delete("review")
    with pytest.raises((OSError, ValueError)):
        main.create_branch("review")
    shutil.rmtree(tmp_path / "table" / "tree" / "review")
    for leftover in (tmp_path / "table" / "_refs" / "branches").iterdir():
        leftover.unlink()
    assert ids_of(main.create_branch("review")) == ["a"]


def test_guard_second_generation_branch_index_read(tmp_path: Path) -> None:
    main = dataset(tmp_path, [f"k{n}" for n in range(200)])
    index = main.create_index_uncommitted("id", "BTREE", name="id_idx", fragment_ids=numbers(main))
    main = commit(main, LanceOperation.CreateIndex([index], []))
    child = append(main.create_branch("child"), rows(["c"]))
    grandchild = append(child.create_branch("grandchild"), rows(["g"]))
    grandchild = lance.dataset(grandchild.uri)
    assert "ScalarIndexQuery" in grandchild.scanner(filter="id = 'k7'").explain_plan()
    for wanted in ("k7", "c", "g"):
        assert grandchild.to_table(filter=f"id = '{wanted}'")["id"].to_pylist() == [wanted]


def test_guard_cleanup_keeps_branch_base(tmp_path: Path) -> None:
    main = dataset(tmp_path, ["a"])
    branch = main.create_branch("review")
    for number in range(3):
        main = commit(
            main, LanceOperation.Overwrite(main.schema, write_fragments(rows([f"m{number}"]), main))
        )
    main.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert ids_of(lance.dataset(branch.uri)) == ["a"]
    assert ids_of(head(main)) == ["m2"]


def staged_under_root(main: LanceDataset, ids: list[str]) -> list[FragmentMetadata]:
    """Fragments written before the branch exists, named as the branch will have to name them."""
    described = [fragment.to_json() for fragment in write_fragments(rows(ids), main)]
    for fragment in described:
        for file in fragment["files"]:
            file["base_id"] = 0
    return [FragmentMetadata.from_json(json.dumps(fragment)) for fragment in described]


def test_guard_root_staged_fragment_commits_on_branch(tmp_path: Path) -> None:
    main = dataset(tmp_path, ["a"])
    appended, replaced = staged_under_root(main, ["b"]), staged_under_root(main, ["only"])
    one = main.create_branch("one")
    two = main.create_branch("two")
    one = commit(one, LanceOperation.Append(appended))
    two = commit(two, LanceOperation.Overwrite(main.schema, replaced))
    assert ids_of(one) == ["a", "b"]
    assert ids_of(two) == ["only"]
    assert not (tmp_path / "table" / "tree" / "one" / "data").exists()
    assert ids_of(head(main)) == ["a"]
    main = append(main, rows(["later"]))
    main.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert ids_of(lance.dataset(one.uri)) == ["a", "b"]
    assert ids_of(lance.dataset(two.uri)) == ["only"]
