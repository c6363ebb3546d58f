"""Branches of a table: forks, writes staged before the fork, and what a crash leaves."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from omnigraph.core.errors import InternalError, StorageNotFound, StoragePrecondition
from omnigraph.core.ids import BranchName
from omnigraph.storage.branches import UNREADABLE
from omnigraph.storage.handles import SnapshotHandle
from omnigraph.storage.indexes import IndexKind, IndexPlan
from omnigraph.storage.layout import branch_reference
from omnigraph.storage.tables import TableStorage
from stores import PERSON, PLACE, SCHEMA, STAMP, Store, branches_of, content, filled, local_store, rows

REVIEW = BranchName("review/one")
CHILD = BranchName("child")


def fork(tables: TableStorage, base: SnapshotHandle, name: BranchName = REVIEW) -> SnapshotHandle:
    return tables.create_branch(PERSON, PLACE, name, base.branch, base.version)


def test_a_fork_starts_at_exactly_the_version_named(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"], ["b"])
    made = tables.create_branch(PERSON, PLACE, REVIEW, None, base.version - 1)
    assert (made.branch, made.version) == (REVIEW, base.version - 1)
    assert content(tables, made) == {"a": 0}
    after = tables.commit_staged(made, tables.stage_append(made, rows(["x"]), STAMP))
    assert content(tables, after) == {"a": 0, "x": 0}
    assert content(tables, tables.open_head(PERSON, PLACE, None)) == {"a": 0, "b": 0}
    assert table_store.tables().head_version(PLACE, REVIEW) == base.version


def test_a_reference_is_made_once(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])
    fork(tables, base)
    with pytest.raises(StoragePrecondition, match="exists"):
        fork(tables, base)
    with pytest.raises(StorageNotFound):
        tables.create_branch(PERSON, PLACE, CHILD, None, 77)
    assert list(branches_of(tables, PLACE)) == [REVIEW]


def test_a_branch_made_again_has_another_identity(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])
    assert tables.branch_identifier(PLACE, None) == ()
    assert tables.branch_identifier(PLACE, REVIEW) is None
    fork(tables, base)
    first = tables.branch_identifier(PLACE, REVIEW)
    tables.delete_branch(PLACE, REVIEW)
    fork(tables, base)
    second = tables.branch_identifier(PLACE, REVIEW)
    assert first
    assert second
    assert first != second


def test_a_branch_made_again_is_never_read_through_an_old_handle(table_store: Store) -> None:
    tables, stranger = table_store.tables(), table_store.tables()
    base = filled(tables, ["a"])
    made = fork(tables, base)
    tables.commit_staged(made, tables.stage_append(made, rows(["old"]), STAMP))
    reached = tables.open_head(PERSON, PLACE, REVIEW).version
    stranger.delete_branch(PLACE, REVIEW)
    again = stranger.create_branch(PERSON, PLACE, REVIEW, None, base.version)
    stranger.commit_staged(again, stranger.stage_append(again, rows(["new", "newer"]), STAMP))
    assert content(tables, tables.open_head(PERSON, PLACE, REVIEW)) == {"a": 0, "new": 0, "newer": 0}
    assert content(tables, tables.open_version(PERSON, PLACE, REVIEW, reached)) == {
        "a": 0,
        "new": 0,
        "newer": 0,
    }


def test_writes_staged_before_the_fork_commit_on_it(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a", "b"], ["c"])
    writes = [
        (tables.stage_append(base, rows(["x"]), STAMP), {"a": 0, "b": 0, "c": 0, "x": 0}),
        (tables.stage_overwrite(base, rows(["only"]), STAMP), {"only": 0}),
        (tables.stage_overwrite(base, None, STAMP), {}),
        (
            tables.stage_merge_insert(base, rows(["b", "y"], 4), STAMP, before_fork=True),
            {"a": 0, "b": 4, "c": 0, "y": 4},
        ),
        (tables.stage_delete(base, STAMP, predicate="id = 'a'", before_fork=True), {"b": 0, "c": 0}),
    ]
    for number, (staged, expected) in enumerate(writes):
        assert staged is not None
        made = fork(tables, base, BranchName(f"b{number}"))
        after = tables.commit_staged(made, tables.rebase(staged, made))
        assert content(table_store.tables(), after) == expected
        assert after.version == base.version + 1
        assert tables.transaction_of(PLACE, made.branch, after.version).uuid == staged.transaction_uuid
    assert content(tables, tables.open_head(PERSON, PLACE, None)) == {"a": 0, "b": 0, "c": 0}
    assert tables.head_version(PLACE, None) == base.version


def test_a_write_that_waits_for_its_fork_cannot_be_committed_without(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])
    staged = tables.stage_merge_insert(base, rows(["a"], 1), STAMP, before_fork=True)
    with pytest.raises(InternalError, match="fork"):
        tables.commit_staged(base, staged)
    assert tables.head_version(PLACE, None) == base.version


def test_a_fork_of_a_fork_takes_writes_staged_on_its_parent(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])
    parent = fork(tables, base)
    parent = tables.commit_staged(parent, tables.stage_append(parent, rows(["p"]), STAMP))
    staged = tables.stage_append(parent, rows(["c"]), STAMP)
    merged = tables.stage_merge_insert(parent, rows(["a", "p"], 2), STAMP, before_fork=True)
    child = fork(tables, parent, CHILD)
    child = tables.commit_staged(child, tables.rebase(staged, child))
    other = fork(tables, parent, BranchName("other"))
    other = tables.commit_staged(other, tables.rebase(merged, other))
    assert content(table_store.tables(), child) == {"a": 0, "p": 0, "c": 0}
    assert content(table_store.tables(), other) == {"a": 2, "p": 2}
    fresh = table_store.tables().open_head(PERSON, PLACE, CHILD)
    assert {name.split("/data/")[0] for f in tables.fragments(fresh) for name in f.files} == {
        PLACE,
        f"{PLACE}/tree/{REVIEW}",
    }


def test_clean_up_of_main_keeps_what_a_fork_took(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    tables = store.tables()
    base = filled(tables, ["a"])
    staged = tables.stage_append(base, rows(["x"]), STAMP)
    made = fork(tables, base)
    after = tables.commit_staged(made, tables.rebase(staged, made))
    tables.commit_staged(base, tables.stage_overwrite(base, rows(["m"]), STAMP))
    lance.dataset(store.root.dataset_uri(PLACE)).cleanup_old_versions(
        older_than=timedelta(0), delete_unverified=True
    )
    assert content(store.tables(), store.tables().open_version(PERSON, PLACE, REVIEW, after.version)) == {
        "a": 0,
        "x": 0,
    }


def test_delete_is_idempotent_and_clears_what_a_crash_left(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])
    tables.delete_branch(PLACE, REVIEW)
    made = fork(tables, base)
    tables.commit_staged(made, tables.stage_append(made, rows(["x"]), STAMP))
    adapter = table_store.adapter()
    adapter.delete(branch_reference(PLACE, REVIEW))
    assert branches_of(tables, PLACE) == {}
    assert adapter.exists(f"{PLACE}/tree/{REVIEW}")
    tables.delete_branch(PLACE, REVIEW)
    tables.delete_branch(PLACE, REVIEW)
    assert not adapter.exists(f"{PLACE}/tree/{REVIEW}")
    assert content(tables, fork(tables, base)) == {"a": 0}


def test_references_are_read_as_lance_reads_them(table_store: Store) -> None:
    tables = table_store.tables()
    parent = fork(tables, filled(tables, ["a"]))
    parent = tables.commit_staged(parent, tables.stage_append(parent, rows(["p"]), STAMP))
    fork(tables, parent, BranchName("Odd.name_1-x/y"))
    raw = lance.dataset(
        table_store.root.dataset_uri(PLACE), storage_options=table_store.storage_options or None
    )
    listed = {
        name: tuple(map(tuple, facts["branch_identifier"])) for name, facts in raw.branches.list().items()
    }
    assert branches_of(tables, PLACE) == listed
    assert len(listed) == 2
    tables.delete_branch(PLACE, BranchName("Odd.name_1-x/y"))
    assert list(raw.branches.list()) == [REVIEW]


def test_a_reference_cut_short_can_be_listed_and_reclaimed(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    tables = store.tables()
    base = filled(tables, ["a"])
    fork(tables, base)
    reference = Path(store.uri) / branch_reference(PLACE, REVIEW)
    reference.write_bytes(reference.read_bytes()[:20])
    assert branches_of(tables, PLACE) == {REVIEW: UNREADABLE}
    with pytest.raises(StoragePrecondition):
        fork(tables, base)
    tables.delete_branch(PLACE, REVIEW)
    assert content(tables, fork(tables, base)) == {"a": 0}


def test_delete_keeps_a_branch_that_others_grew_from(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])
    parent = fork(tables, base)
    parent = tables.commit_staged(parent, tables.stage_append(parent, rows(["p"]), STAMP))
    fork(tables, parent, CHILD)
    with pytest.raises(StoragePrecondition, match="child"):
        tables.delete_branch(PLACE, REVIEW)
    assert content(tables, tables.open_head(PERSON, PLACE, CHILD)) == {"a": 0, "p": 0}
    tables.delete_branch(PLACE, CHILD)
    tables.delete_branch(PLACE, REVIEW)
    assert branches_of(tables, PLACE) == {}


def test_delete_never_takes_a_branch_that_lies_below(table_store: Store) -> None:
    tables = table_store.tables()
    fork(tables, filled(tables, ["a"]))
    with pytest.raises(StoragePrecondition, match="review/one"):
        tables.delete_branch(PLACE, BranchName("review"))
    assert content(tables, tables.open_head(PERSON, PLACE, REVIEW)) == {"a": 0}


def test_forks_beside_readers_and_writers(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])
    names = [BranchName(f"b{number}") for number in range(6)]

    def make(name: BranchName) -> None:
        made = fork(tables, base, name)
        after = tables.commit_staged(made, tables.stage_append(made, rows([name]), STAMP))
        assert content(tables, after) == {"a": 0, name: 0}
        assert content(tables, tables.open_head(PERSON, PLACE, None)) == {"a": 0}
        tables.delete_branch(PLACE, name)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(make, names))
    assert branches_of(tables, PLACE) == {}


def test_rebase_refuses_files_the_branch_cannot_reach(tmp_path: Path) -> None:
    tables = local_store(tmp_path).tables()
    base = filled(tables, ["a"])
    one, two = fork(tables, base, BranchName("one")), fork(tables, base, BranchName("two"))
    staged = tables.stage_append(one, rows(["x"]), STAMP)
    with pytest.raises(InternalError, match="reached"):
        tables.rebase(staged, two)
    index = tables.stage_indexes(base, [IndexPlan(IndexKind.BTREE, "id")], STAMP)
    assert index is not None
    with pytest.raises(InternalError, match="cannot move"):
        tables.rebase(index, two)
    assert pa.schema(SCHEMA) == two.schema
