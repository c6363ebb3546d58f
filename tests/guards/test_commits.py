"""What the write protocol assumes about Lance commits."""

from pathlib import Path

import pyarrow as pa
import pytest
from lance import LanceDataset, LanceOperation
from lance.commit import CommitConflictError
from lance.fragment import write_fragments

from guards.substrate import SCHEMA, append, commit, dataset, head, hide, ids_of, rows

STAMP = {"omnigraph.operation_id": "01J", "omnigraph.table_key": "node:Person"}


def publish(base: LanceDataset, ids: list[str]) -> LanceDataset:
    """Overwrite from the version `base` was read at, as the publisher does."""
    return commit(base, LanceOperation.Overwrite(SCHEMA, write_fragments(rows(ids), base, mode="overwrite")))


def assert_stale_overwrite_conflicts(base: LanceDataset) -> None:
    publish(base, ["first"])
    with pytest.raises(CommitConflictError) as caught:
        publish(base, ["second"])
    assert caught.value.retryable
    assert ids_of(head(base)) == ["first"]


def test_guard_stale_overwrite_conflicts(tmp_path: Path) -> None:
    assert_stale_overwrite_conflicts(dataset(tmp_path, ["old"]))


def test_guard_stale_overwrite_conflicts_on_branch(tmp_path: Path) -> None:
    main = dataset(tmp_path, ["old"])
    assert_stale_overwrite_conflicts(main.create_branch("review/one"))
    assert ids_of(head(main)) == ["old"]


def merge(base: LanceDataset, data: pa.Table) -> LanceDataset:
    builder = base.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    transaction, _ = builder.execute_uncommitted(data)
    return LanceDataset.commit(base, transaction, max_retries=0)


def test_guard_disjoint_keys_do_not_conflict(tmp_path: Path) -> None:
    base = dataset(tmp_path, ["a"])
    merge(base, rows(["b"]))
    merge(base, rows(["c"]))
    assert ids_of(head(base)) == ["a", "b", "c"]


def test_guard_two_step_merge_insert_loses_key_filter(tmp_path: Path) -> None:
    base = dataset(tmp_path, ["a"])
    merge(base, rows(["new"]))
    merge(base, rows(["new"]))
    assert ids_of(head(base)) == ["a", "new", "new"]


def test_guard_commit_conflict_error_typed(tmp_path: Path) -> None:
    base = dataset(tmp_path, ["a", "b", "c"])
    update = LanceOperation.Update(
        updated_fragments=[hide(base, 0, [0])],
        new_fragments=write_fragments(rows(["a"], 1), base),
        update_mode="rewrite_rows",
    )
    stale = LanceOperation.Delete([hide(base, 0, [1])], [], "id = 'b'")
    commit(base, update)
    with pytest.raises(CommitConflictError) as caught:
        commit(base, stale)
    assert caught.value.retryable
    assert ids_of(head(base)) == ["a", "b", "c"]


def test_guard_zero_retry_commit_still_rebases(tmp_path: Path) -> None:
    base = dataset(tmp_path, ["a"])
    foreign = append(base, rows(["foreign"]))
    ours = append(base, rows(["ours"]))
    assert foreign.version == base.version + 1
    assert ours.version == base.version + 2
    assert ids_of(ours) == ["a", "foreign", "ours"]


def test_guard_staged_append_does_not_move_head(tmp_path: Path) -> None:
    base = dataset(tmp_path, ["a"])
    before = set(tmp_path.rglob("*"))
    staged = write_fragments(rows(["b"]), base, return_transaction=True)
    new = [path for path in tmp_path.rglob("*") if path not in before]
    assert [path.parent.name for path in new] == ["data"]
    assert head(base).version == base.version
    assert ids_of(head(base)) == ["a"]
    assert ids_of(LanceDataset.commit(base, staged, max_retries=0)) == ["a", "b"]


def test_guard_staged_delete_via_fragments(tmp_path: Path) -> None:
    base = append(dataset(tmp_path, ["a", "b"]), rows(["c"]))
    before = set(tmp_path.rglob("*"))
    updated, emptied = hide(base, 0, [1]), hide(base, 1, [0])
    new = {path.parent.name for path in tmp_path.rglob("*.*") if path not in before}
    assert new == {"_deletions"}
    assert emptied is None
    assert head(base).version == base.version
    assert ids_of(head(base)) == ["a", "b", "c"]
    after = commit(base, LanceOperation.Delete([updated], [1], "by row address"))
    assert after.version == base.version + 1
    assert ids_of(after) == ["a"]


def test_guard_empty_overwrite(tmp_path: Path) -> None:
    base = dataset(tmp_path, ["a"])
    after = commit(base, LanceOperation.Overwrite(base.schema, []))
    assert (after.version, after.count_rows()) == (base.version + 1, 0)
    assert after.schema == base.schema
    assert ids_of(append(after, rows(["b"]))) == ["b"]


def test_guard_transaction_properties_round_trip(tmp_path: Path) -> None:
    base = dataset(tmp_path, ["a", "b", "c"])

    def properties(at: LanceDataset) -> dict[str, str]:
        return dict(head(base).read_transaction(at.version).transaction_properties)

    appended = commit(base, LanceOperation.Append(write_fragments(rows(["d"]), base)), **STAMP)
    assert properties(appended) == STAMP
    update = LanceOperation.Update(
        updated_fragments=[hide(appended, 0, [0])],
        new_fragments=write_fragments(rows(["a"], 1), appended),
        update_mode="rewrite_rows",
    )
    updated = commit(appended, update, **STAMP)
    assert properties(updated) == STAMP
    deleted = commit(updated, LanceOperation.Delete([hide(updated, 0, [1])], [], "id = 'b'"), **STAMP)
    assert properties(deleted) == STAMP
    restored = commit(deleted, LanceOperation.Restore(base.version), **STAMP)
    assert properties(restored) == STAMP
    assert ids_of(restored) == ["a", "b", "c"]


def test_guard_restore_orphans_concurrent_append(tmp_path: Path) -> None:
    base = append(dataset(tmp_path, ["a"]), rows(["b"]))
    append(base, rows(["concurrent"]))
    restored = commit(base, LanceOperation.Restore(2))
    assert restored.version == base.version + 2
    assert ids_of(head(base)) == ["a"], "the concurrent append is gone from the newest version"


def test_guard_restore_appends_one_version(tmp_path: Path) -> None:
    base = append(dataset(tmp_path, ["a"]), rows(["b"]))
    restored = commit(base, LanceOperation.Restore(2))
    assert restored.version == base.version + 1
    assert ids_of(restored) == ["a"]
    assert ids_of(restored.checkout_version(base.version)) == ["a", "b"]


def test_guard_overwrite_carries_schema_metadata(tmp_path: Path) -> None:
    annotated = pa.schema(
        [
            pa.field(
                "id", pa.string(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}
            ),
            pa.field("n", pa.int64()),
        ],
        metadata={"omnigraph:internal_schema_version": "3"},
    )
    base = dataset(tmp_path, schema=annotated)
    base.update_config({"table_version_management": "true"})
    base = head(base)
    complete = write_fragments(rows(["a"]).cast(annotated), base, schema=annotated, mode="overwrite")
    kept = commit(base, LanceOperation.Overwrite(annotated, complete))
    assert kept.schema.metadata == annotated.metadata
    assert kept.schema.field("id").metadata == annotated.field("id").metadata
    bare = write_fragments(rows(["b"]), kept, mode="overwrite")
    dropped = commit(kept, LanceOperation.Overwrite(SCHEMA, bare))
    assert not dropped.schema.metadata
    assert not dropped.schema.field("id").metadata
    assert dropped.config()["table_version_management"] == "true"


def test_guard_fragment_set_identity(tmp_path: Path) -> None:
    base = append(dataset(tmp_path, ["a", "b"]), rows(["c", "d"]))

    def shape(at: LanceDataset) -> dict[int, tuple[tuple[str, ...], object]]:
        return {
            f.fragment_id: (
                tuple(file.path for file in f.metadata.files),
                f.metadata.to_json()["deletion_file"],
            )
            for f in at.get_fragments()
        }

    first = shape(base)
    appended = append(base, rows(["e"]))
    assert {number: shape(appended)[number] for number in first} == first
    updated = commit(
        appended,
        LanceOperation.Update(
            updated_fragments=[hide(appended, 1, [0])],
            new_fragments=write_fragments(rows(["c"], 1), appended),
            update_mode="rewrite_rows",
        ),
    )
    assert shape(updated)[0] == first[0]
    assert shape(updated)[1][0] == first[1][0]
    assert shape(updated)[1][1] is not None
    deleted = commit(updated, LanceOperation.Delete([], [1], "id = 'd'"))
    assert shape(deleted)[0] == first[0]
    assert 1 not in shape(deleted)
