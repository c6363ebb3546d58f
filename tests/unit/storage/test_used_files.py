"""The files of a version, exactly: nothing of the table is left over and nothing is missing."""

from pathlib import Path

import pytest
from lance.fragment import LanceFragment

from omnigraph.core.errors import InternalError
from omnigraph.core.ids import BranchName
from omnigraph.storage.indexes import IndexKind, IndexPlan
from omnigraph.storage.layout import branch_directory
from omnigraph.storage.manifest_files import manifest_object, version_of
from omnigraph.storage.tables import TableStorage
from stores import PERSON, PLACE, STAMP, Store, filled, local_store, rows

REVIEW = BranchName("review/one")
CHILD = BranchName("child")


def grown(tables: TableStorage) -> None:
    """Main, a fork and a fork of it: rows, deletions, indexes and a restore on each of them."""
    head = filled(tables, ["a", "b"], ["c", "d"])
    for fork in (None, REVIEW, CHILD):
        if fork is not None:
            head = tables.create_branch(PERSON, PLACE, fork, head.branch, head.version)
        mark = f"{fork}".replace("/", "")
        head = tables.commit_staged(head, tables.stage_append(head, rows([f"{mark}1", f"{mark}2"]), STAMP))
        staged = tables.stage_delete(head, STAMP, predicate=f"id = '{mark}1'")
        assert staged is not None
        head = tables.commit_staged(head, staged)
        indexes = tables.stage_indexes(head, [IndexPlan(IndexKind.BTREE, "id")], STAMP)
        assert indexes is not None
        head = tables.commit_staged(head, indexes)
        head = tables.commit_staged(head, tables.stage_merge_insert(head, rows(["c"], 7), STAMP))
        tables.restore(head, head.version - 1, operation_id=STAMP.operation_id)
        head = tables.open_head(PERSON, PLACE, fork)


def used(store: Store, tables: TableStorage, sizes: dict[str, int]) -> set[str]:
    """Every file that some version of some branch names."""
    found: set[str] = set()
    for branch in (None, REVIEW, CHILD):
        for name in store.adapter().list_dir(f"{branch_directory(PLACE, branch)}/_versions"):
            version = version_of(name)
            if version is None:
                continue
            files = tables.used_files(PLACE, branch, version)
            assert all(sizes[file] == size for file, size in files.data.items())
            found |= {manifest_object(PLACE, branch, version), *files.data, *files.deletions}
            found |= {file for file in sizes for index in files.indexes if file.startswith(f"{index}/")}
            found |= {files.transaction} - {None}
    return found


def test_versions_use_every_file_of_a_table_and_no_other(table_store: Store) -> None:
    tables = table_store.tables()
    grown(tables)
    sizes = table_store.adapter().sizes(PLACE)
    beside = {name for name in sizes if "/_refs/" in name or name.endswith("latest_version_hint.json")}
    assert used(table_store, tables, sizes) == set(sizes) - beside
    orphan = tables.stage_append(tables.open_head(PERSON, PLACE, CHILD), rows(["never"]), STAMP)
    later = table_store.adapter().sizes(PLACE)
    assert set(later) - set(sizes)
    assert used(table_store, tables, later) == set(sizes) - beside
    assert orphan.rows == 1


def test_files_of_an_unknown_kind_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = local_store(tmp_path).tables()
    head = filled(tables, ["a"])
    described = LanceFragment.metadata.fget
    assert described is not None

    def with_overlays(fragment: LanceFragment) -> object:
        metadata = described(fragment)
        metadata.overlays = ["something"]
        return metadata

    monkeypatch.setattr(LanceFragment, "metadata", property(with_overlays))
    with pytest.raises(InternalError, match="not known"):
        tables.used_files(PLACE, None, head.version)
