"""Staged writes, exact commits and reads of one table, on every store that holds tables."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.fragment import FragmentMetadata

from omnigraph.core.errors import (
    ConflictError,
    InternalError,
    RecoveryRequired,
    StorageNotFound,
    StoragePrecondition,
)
from omnigraph.storage.failures import CommitConflict, ForeignCommit
from omnigraph.storage.handles import NO_NUMBER, Fragment, SnapshotHandle, StagedHandle, lance_dataset
from omnigraph.storage.indexes import IndexKind, IndexPlan
from stores import PERSON, PLACE, SCHEMA, STAMP, Store, content, filled, rows


def test_a_created_table_is_empty_and_can_be_opened(table_store: Store) -> None:
    tables = table_store.tables()
    made = tables.create_table(PERSON, PLACE, SCHEMA, STAMP)
    assert (made.version, made.row_count, made.schema) == (1, 0, SCHEMA)
    other = table_store.tables()
    assert other.open_head(PERSON, PLACE, None).version == 1
    assert other.open_version(PERSON, PLACE, None, 1).row_count == 0


def test_every_table_has_the_pinned_format(table_store: Store) -> None:
    filled(table_store.tables(), ["a"])
    raw = lance.dataset(
        table_store.root.dataset_uri(PLACE), storage_options=table_store.storage_options or None
    )
    assert raw.data_storage_version == "2.2"
    assert not raw.has_stable_row_ids
    assert [key for key in raw.config() if "auto_cleanup" in key] == []
    (file,) = raw.get_fragments()[0].metadata.files
    assert (file.file_major_version, file.file_minor_version) == (2, 2)


def test_of_many_creators_of_a_table_one_wins(table_store: Store) -> None:
    racers = 4
    stores = [table_store.tables() for _ in range(racers)]
    for attempt in range(10):
        place, barrier = f"nodes/{attempt:016x}", Barrier(racers)

        def create(number: int, place: str = place, barrier: Barrier = barrier) -> bool:
            barrier.wait()
            try:
                stores[number].create_table(PERSON, place, SCHEMA, STAMP)
            except StoragePrecondition:
                return False
            return True

        with ThreadPoolExecutor(racers) as pool:
            wins = list(pool.map(create, range(racers)))
        assert wins.count(True) == 1
        assert table_store.tables().head_version(place, None) == 1


def test_a_missing_table_or_version_is_not_found(table_store: Store) -> None:
    tables = table_store.tables()
    with pytest.raises(StorageNotFound):
        tables.open_head(PERSON, PLACE, None)
    filled(tables, ["a"])
    with pytest.raises(StorageNotFound, match="version 9"):
        tables.open_version(PERSON, PLACE, None, 9)
    with pytest.raises(StorageNotFound):
        tables.open_head(PERSON, PLACE, "nobranch")
    assert tables.transaction_of(PLACE, None, 9) is None


def test_append_adds_and_says_what_it_staged(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])
    staged = tables.stage_append(base, rows(["b", "c"], 1), STAMP)
    assert (staged.rows, staged.rows_removed, staged.base_version) == (2, 0, base.version)
    assert staged.bytes > 0
    after = tables.commit_staged(base, staged)
    assert after.version == base.version + 1
    assert content(tables, after) == {"a": 0, "b": 1, "c": 1}
    assert content(tables, base) == {"a": 0}, "a handle keeps showing its version"
    assert tables.head_version(PLACE, None) == after.version


def test_merge_replaces_by_id_and_adds_the_rest(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a", "b"], ["c"])
    staged = tables.stage_merge_insert(base, rows(["b", "c", "new"], 7), STAMP)
    assert (staged.rows, staged.rows_removed) == (3, 2)
    after = tables.commit_staged(base, staged)
    assert content(tables, after) == {"a": 0, "b": 7, "c": 7, "new": 7}


def test_merge_takes_addresses_from_who_knows_them(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a", "b"], ["c"])
    where = tables.addresses_of(base, pa.array(["c", "a", "unknown"]))
    assert where.tolist() == [0, 1 << 32]
    staged = tables.stage_merge_insert(base, rows(["a", "c"], 7), STAMP, addresses=pa.array(where))
    assert content(tables, tables.commit_staged(base, staged)) == {"a": 7, "b": 0, "c": 7}


def test_merge_asks_for_addresses_while_it_writes(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a", "b"], ["c"])
    where = tables.addresses_of(base, pa.array(["c", "a"]))
    staged = tables.stage_merge_insert(base, rows(["a", "c"], 7), STAMP, addresses=lambda: where)
    assert (staged.rows, staged.rows_removed) == (2, 2)
    assert content(tables, tables.commit_staged(base, staged)) == {"a": 7, "b": 0, "c": 7}


def test_merge_whose_addresses_cannot_be_found_changes_nothing(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])

    def lost() -> None:
        raise InternalError("no address")

    with pytest.raises(InternalError, match="no address"):
        tables.stage_merge_insert(base, rows(["a"], 7), STAMP, addresses=lost)
    assert tables.head_version(PLACE, None) == base.version
    assert content(tables, base) == {"a": 0}


def test_merge_of_a_stream_and_of_many_keys(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, (f"k{n}" for n in range(5_000)))
    many = rows((f"k{n}" for n in range(2_500, 7_500)), 1)
    staged = tables.stage_merge_insert(base, many.to_reader(max_chunksize=700), STAMP)
    assert (staged.rows, staged.rows_removed) == (5_000, 2_500)
    after = content(tables, tables.commit_staged(base, staged))
    assert after == {f"k{n}": int(n >= 2_500) for n in range(7_500)}


def test_merge_with_awkward_ids(table_store: Store) -> None:
    tables = table_store.tables()
    ids = ["it's", 'say "x"', "back`tick", "läng\n", "", "' OR '1'='1"]
    base = filled(tables, ids)
    after = tables.commit_staged(base, tables.stage_merge_insert(base, rows(ids, 3), STAMP))
    assert content(tables, after) == dict.fromkeys(ids, 3)


def test_merge_refuses_a_source_that_names_an_id_twice(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])
    with pytest.raises(InternalError, match="twice"):
        tables.stage_merge_insert(base, rows(["b", "b"]), STAMP)
    assert tables.head_version(PLACE, None) == base.version


def test_merge_that_replaces_every_row_of_a_fragment(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a", "b"], ["c"])
    after = tables.commit_staged(base, tables.stage_merge_insert(base, rows(["a", "b"], 2), STAMP))
    assert content(tables, after) == {"a": 2, "b": 2, "c": 0}
    assert [fragment.id for fragment in tables.fragments(after)] == [1, 2]


def test_overwrite_replaces_everything(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a", "b"])
    after = tables.commit_staged(base, tables.stage_overwrite(base, rows(["x"], 1), STAMP))
    assert content(tables, after) == {"x": 1}
    emptied = tables.commit_staged(after, tables.stage_overwrite(after, None, STAMP))
    assert (emptied.version, emptied.row_count, emptied.schema) == (after.version + 1, 0, SCHEMA)
    refilled = tables.commit_staged(emptied, tables.stage_append(emptied, rows(["y"]), STAMP))
    assert content(tables, refilled) == {"y": 0}


def test_overwrite_may_change_the_schema(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])
    wider = pa.schema([*SCHEMA, pa.field("s", pa.string(), metadata={"k": "v"})], metadata={"note": "kept"})
    data = pa.table({"id": ["a"], "n": [1], "s": ["text"]}, schema=wider)
    after = tables.commit_staged(base, tables.stage_overwrite(base, data, STAMP, schema=wider))
    assert after.schema.equals(wider, check_metadata=True)
    assert tables.read(after).to_pylist() == [{"id": "a", "n": 1, "s": "text"}]


def test_overwrite_keeps_the_annotations_of_the_schema(table_store: Store) -> None:
    tables = table_store.tables()
    annotated = pa.schema(
        [pa.field("id", pa.string(), nullable=False, metadata={"role": "key"}), pa.field("n", pa.int64())],
        metadata={"stamp": "3"},
    )
    base = tables.create_table(PERSON, PLACE, annotated, STAMP)
    after = tables.commit_staged(base, tables.stage_overwrite(base, rows(["x"]), STAMP))
    assert after.schema.equals(annotated, check_metadata=True)
    emptied = tables.commit_staged(after, tables.stage_overwrite(after, None, STAMP))
    assert emptied.schema.equals(annotated, check_metadata=True)


@pytest.mark.slow
def test_threads_share_one_store(table_store: Store) -> None:
    """Writers of different tables and readers of all of them, through one TableStorage."""
    tables = table_store.tables()
    writers, commits = 4, 6
    places = [f"nodes/{number:016x}" for number in range(writers)]
    for place in places:
        tables.create_table(PERSON, place, SCHEMA, STAMP)

    def work(number: int) -> None:
        for turn in range(commits):
            head = tables.open_head(PERSON, places[number], None)
            tables.commit_staged(head, tables.stage_append(head, rows([f"{number}-{turn}"]), STAMP))
            for place in places:
                seen = tables.open_head(PERSON, place, None)
                assert len(content(tables, seen)) == seen.version - 1

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(work, range(writers)))
    for place in places:
        assert tables.head_version(place, None) == commits + 1


def test_delete_by_predicate_and_by_address(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a", "b", "c"], ["d"])
    staged = tables.stage_delete(base, STAMP, predicate="id IN ('b', 'd')")
    assert staged is not None
    assert (staged.rows, staged.rows_removed) == (0, 2)
    after = tables.commit_staged(base, staged)
    assert content(tables, after) == {"a": 0, "c": 0}
    assert tables.stage_delete(after, STAMP, predicate="id = 'b'") is None, "a deleted row matches nothing"
    assert tables.stage_delete(after, STAMP, addresses=np.empty(0, np.uint64)) is None
    again = tables.stage_delete(after, STAMP, addresses=tables.addresses_of(after, pa.array(["c"])))
    assert again is not None
    assert content(tables, tables.commit_staged(after, again)) == {"a": 0}


def test_rewritten_fragments_hold_the_same_rows_in_one(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a", "b"], ["c"], ["d"], ["e"])
    dead = tables.stage_delete(base, STAMP, predicate="id = 'b'")
    assert dead is not None
    base = tables.commit_staged(base, dead)
    first, second, _, last = base.fragment_ids
    staged = tables.stage_rewrite(base, [first, second, last], STAMP)
    assert (staged.rows, staged.rows_removed) == (3, 3)
    assert content(tables, tables.open_head(PERSON, PLACE, None)) == dict.fromkeys("acde", 0), "staged only"
    after = tables.commit_staged(base, staged)
    assert content(tables, after) == dict.fromkeys("acde", 0)
    assert sorted(info.physical_rows for info in tables.fragments(after)) == [1, 3]
    assert not set(after.fragment_ids) & {first, second, last}, "an address never means two rows"
    whole = tables.read(after, columns=["id"], fragments=[max(after.fragment_ids)])
    assert whole.column("id").to_pylist() == ["a", "c", "e"]


def test_segments_that_know_no_living_fragment_go_with_the_next_build(table_store: Store) -> None:
    tables = table_store.tables()
    handle = filled(tables, ["a"], ["b"])
    for name in ("c", "d"):
        built = tables.stage_indexes(handle, [IndexPlan(IndexKind.BTREE, "id")], STAMP)
        assert built is not None
        handle = tables.commit_staged(handle, built)
        handle = tables.commit_staged(handle, tables.stage_append(handle, rows([name]), STAMP))
    assert [found.segments for found in tables.index_coverage(handle, "id")] == [2]
    folded = tables.stage_rewrite(handle, handle.fragment_ids[2:], STAMP)
    handle = tables.commit_staged(handle, folded)
    built = tables.stage_indexes(handle, [IndexPlan(IndexKind.BTREE, "id")], STAMP)
    assert built is not None
    handle = tables.commit_staged(handle, built)
    (found,) = tables.index_coverage(handle, "id")
    assert (found.segments, found.uncovered) == (2, frozenset())
    for name in "abcd":
        assert tables.read(handle, filter=f"id = '{name}'").num_rows == 1


def outside(written: FragmentMetadata) -> Fragment:
    """A fragment that nobody points at, as whoever wrote it describes it."""
    return Fragment(NO_NUMBER, (), written.physical_rows, metadata=json.dumps(written.to_json()))


def test_fragments_written_elsewhere_are_adopted(table_store: Store) -> None:
    elsewhere = table_store.tables()
    base = filled(elsewhere, ["a", "b"])
    raw = lance.fragment.write_fragments(
        rows(["b", "c"], 5),
        table_store.root.dataset_uri(PLACE),
        storage_options=table_store.storage_options or None,
    )
    described = [outside(fragment) for fragment in raw]
    tables = table_store.tables()
    base = tables.open_version(PERSON, PLACE, None, base.version)
    where = tables.addresses_of(base, pa.array(["b"]))
    staged = tables.stage_fragments(base, described, "merge", STAMP, addresses=where)
    assert (staged.rows, staged.rows_removed) == (2, 1)
    after = tables.commit_staged(base, staged)
    assert content(tables, after) == {"a": 0, "b": 5, "c": 5}


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_adopted_fragments_append_and_overwrite(table_store: Store, mode: str) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])
    raw = lance.fragment.write_fragments(
        rows(["x"]), table_store.root.dataset_uri(PLACE), storage_options=table_store.storage_options or None
    )
    staged = tables.stage_fragments(base, [outside(fragment) for fragment in raw], mode, STAMP)
    after = tables.commit_staged(base, staged)
    assert content(tables, after) == ({"a": 0, "x": 0} if mode == "append" else {"x": 0})


def test_every_commit_carries_its_stamp(table_store: Store) -> None:
    tables = table_store.tables()
    handle = filled(tables, ["a", "b", "c"])
    stages = [
        ("Append", lambda h: tables.stage_append(h, rows(["d"]), STAMP)),
        ("Update", lambda h: tables.stage_merge_insert(h, rows(["a"], 1), STAMP)),
        ("Delete", lambda h: tables.stage_delete(h, STAMP, predicate="id = 'b'")),
        ("CreateIndex", lambda h: tables.stage_indexes(h, [IndexPlan(IndexKind.BTREE, "id")], STAMP)),
        ("Overwrite", lambda h: tables.stage_overwrite(h, None, STAMP)),
    ]
    for operation, stage in stages:
        staged = stage(handle)
        assert isinstance(staged, StagedHandle)
        handle = tables.commit_staged(handle, staged)
        read = table_store.tables().transaction_of(PLACE, None, handle.version)
        assert read is not None
        assert (read.operation, read.uuid) == (operation, staged.transaction_uuid)
        assert read.properties == {
            "omnigraph.operation_id": STAMP.operation_id,
            "omnigraph.table_key": "node:Person",
        }
    assert tables.transaction_of(PLACE, None, 1).properties["omnigraph.table_key"] == "node:Person"


def test_restore_appends_a_version_that_names_its_operation(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"], ["b"])
    restored = tables.restore(base, base.version - 1, operation_id="01JRECOVERY")
    assert restored.version == base.version + 1
    assert content(tables, restored) == {"a": 0}
    read = tables.transaction_of(PLACE, None, restored.version)
    assert read is not None
    assert read.operation == "Restore"
    assert read.properties == {
        "omnigraph.recovery_of": "01JRECOVERY",
        "omnigraph.restore_to": str(base.version - 1),
        "omnigraph.table_key": "node:Person",
    }


def test_a_stale_delete_conflicts_and_lands_nothing(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a", "b", "c"])
    stale = tables.stage_delete(base, STAMP, predicate="id = 'a'")
    assert stale is not None
    winner = tables.commit_staged(base, tables.stage_merge_insert(base, rows(["b"], 1), STAMP))
    with pytest.raises(CommitConflict) as caught:
        tables.commit_staged(base, stale)
    assert isinstance(caught.value, ConflictError)
    assert (caught.value.kind, caught.value.table_key, caught.value.retryable) == (
        "commit_conflict",
        PERSON,
        True,
    )
    assert ".rs" not in str(caught.value)
    assert tables.head_version(PLACE, None) == winner.version


def test_a_commit_over_an_unknown_version_is_foreign(table_store: Store) -> None:
    tables, stranger = table_store.tables(), table_store.tables()
    base = filled(tables, ["a"])
    staged = tables.stage_append(base, rows(["ours"]), STAMP)
    theirs = stranger.open_head(PERSON, PLACE, None)
    stranger.commit_staged(theirs, stranger.stage_append(theirs, rows(["theirs"]), STAMP))
    with pytest.raises(ForeignCommit) as caught:
        tables.commit_staged(base, staged)
    assert isinstance(caught.value, RecoveryRequired)
    assert (caught.value.expected, caught.value.actual) == (base.version + 1, base.version + 2)
    assert caught.value.operation_id == STAMP.operation_id
    head = tables.open_head(PERSON, PLACE, None)
    assert content(tables, head) == {"a": 0, "ours": 0, "theirs": 0}, "it landed: recovery has to settle it"


def test_a_staged_write_is_committed_on_its_own_base_only(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])
    staged = tables.stage_append(base, rows(["b"]), STAMP)
    after = tables.commit_staged(base, tables.stage_append(base, rows(["c"]), STAMP))
    with pytest.raises(InternalError, match="rebase"):
        tables.commit_staged(after, staged)
    moved = tables.commit_staged(after, tables.rebase(staged, after))
    assert content(tables, moved) == {"a": 0, "b": 0, "c": 0}


def test_a_merge_moves_to_a_newer_base_only_with_new_addresses(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a", "b"])
    staged = tables.stage_merge_insert(base, rows(["b", "new"], 9), STAMP)
    between = tables.commit_staged(base, tables.stage_merge_insert(base, rows(["b", "new"], 1), STAMP))
    with pytest.raises(InternalError):
        tables.rebase(staged, between)
    where = tables.addresses_of(between, pa.array(["b", "new"]))
    moved = tables.rebase(staged, between, addresses=where)
    assert moved.transaction_uuid == staged.transaction_uuid
    assert content(tables, tables.commit_staged(between, moved)) == {"a": 0, "b": 9, "new": 9}


def test_scan_reads_what_it_is_asked_for(table_store: Store) -> None:
    tables = table_store.tables()
    handle = filled(tables, ["a", "b"], ["c", "d"])
    assert tables.scan(handle).read_all().to_pylist() == [{"id": i, "n": 0} for i in "abcd"]
    only = tables.scan(handle, columns=["id"], filter="id > 'a'", fragments=[1], with_row_address=True)
    assert only.schema.names == ["id", "_rowaddr"]
    assert only.read_all().to_pylist() == [
        {"id": "c", "_rowaddr": 1 << 32},
        {"id": "d", "_rowaddr": (1 << 32) + 1},
    ]
    assert [batch.num_rows for batch in tables.scan(handle, fragments=[0], batch_rows=1)] == [1, 1]
    assert tables.read(handle, columns=["id"], limit=3).num_rows == 3
    assert tables.count_rows(handle) == 4
    assert tables.count_rows(handle, filter="id = 'c'") == 1


def test_take_gives_rows_in_the_order_asked(table_store: Store) -> None:
    tables = table_store.tables()
    handle = filled(tables, ["a", "b"], ["c"])
    wanted = [1 << 32, 1, 0]
    assert tables.take(handle, wanted, ["id"])["id"].to_pylist() == ["c", "b", "a"]
    assert tables.take(handle, pa.array(wanted[:1], pa.uint64()))["id"].to_pylist() == ["c"]
    assert tables.take(handle, np.array([0], np.uint64)).column_names == ["id", "n"]


def test_fragments_of_two_versions_share_what_did_not_change(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a", "b"], ["c", "d"])
    after = tables.commit_staged(base, tables.stage_merge_insert(base, rows(["c"], 1), STAMP))
    old, new = tables.fragments(base), tables.fragments(after)
    assert new[0] == old[0]
    assert new[1].files == old[1].files
    assert (old[1].deletions, new[1].deleted_rows, new[1].live_rows) == (None, 1, 1)
    assert new[1].deletions is not None
    assert new[2].physical_rows == 1
    adapter = table_store.adapter()
    assert all(
        adapter.exists(name) for f in new for name in [*f.files, *([f.deletions] if f.deletions else [])]
    )


@pytest.mark.slow
def test_a_stream_is_written_as_it_is_read(table_store: Store) -> None:
    tables = table_store.tables()
    schema = pa.schema(
        [pa.field("id", pa.string(), nullable=False), pa.field("v", pa.list_(pa.float32(), 1024))]
    )
    base = tables.create_table(PERSON, PLACE, schema, STAMP)
    batches, rows_each = 48, 256
    peak, start = 0, pa.total_allocated_bytes()

    def source() -> Iterator[pa.RecordBatch]:
        nonlocal peak
        for number in range(batches):
            values = pa.array(np.random.default_rng(number).random(rows_each * 1024, np.float32))
            column = pa.FixedSizeListArray.from_arrays(values, 1024)
            ids = pa.array([f"{number}-{n}" for n in range(rows_each)])
            peak = max(peak, pa.total_allocated_bytes() - start)
            yield pa.record_batch([ids, column], schema=schema)

    staged = tables.stage_append_stream(base, pa.RecordBatchReader.from_batches(schema, source()), STAMP)
    assert staged.rows == batches * rows_each
    assert staged.bytes > 48 * 1024 * 1024
    assert peak < staged.bytes / 2, "the source was collected before it was written"


def test_a_failing_source_surfaces_its_own_error(table_store: Store) -> None:
    tables = table_store.tables()
    base = filled(tables, ["a"])

    def source() -> Iterator[pa.RecordBatch]:
        yield rows(["b"]).to_batches()[0]
        raise ConflictError("the source has a reason of its own")

    for stage in (tables.stage_append_stream, tables.stage_merge_insert):
        with pytest.raises(ConflictError, match="a reason of its own"):
            stage(base, pa.RecordBatchReader.from_batches(SCHEMA, source()), STAMP)
    assert content(tables, tables.open_head(PERSON, PLACE, None)) == {"a": 0}


def test_writes_fit_a_table_whose_columns_changed(table_store: Store) -> None:
    """Field ids have gaps after a drop; a fragment that ignores them would be read under wrong names."""
    wide = pa.schema(
        [pa.field("id", pa.string(), nullable=False), pa.field("x", pa.string()), pa.field("n", pa.int64())]
    )
    tables = table_store.tables()
    base = tables.create_table(PERSON, PLACE, wide, STAMP)
    first = pa.table({"id": ["a", "b"], "x": ["1", "2"], "n": [1, 2]}, schema=wide)
    tables.commit_staged(base, tables.stage_append(base, first, STAMP))
    options = table_store.storage_options or None
    raw = lance.dataset(table_store.root.dataset_uri(PLACE), storage_options=options)
    raw.drop_columns(["x"])
    raw.add_columns({"m": "n * 2"})
    tables = table_store.tables()
    base = tables.open_head(PERSON, PLACE, None)
    narrow = base.schema

    def data(ids: list[str]) -> pa.Table:
        return pa.table({"id": ids, "n": [7] * len(ids), "m": [8] * len(ids)}, schema=narrow)

    def all_of(handle: SnapshotHandle) -> list[tuple[str, int, int]]:
        return sorted((row["id"], row["n"], row["m"]) for row in tables.read(handle).to_pylist())

    merged = tables.commit_staged(base, tables.stage_merge_insert(base, data(["a", "c"]), STAMP))
    assert all_of(merged) == [("a", 7, 8), ("b", 2, 4), ("c", 7, 8)]
    replaced = tables.commit_staged(merged, tables.stage_overwrite(merged, data(["o"]), STAMP))
    assert all_of(replaced) == [("o", 7, 8)]
    uri = table_store.root.dataset_uri(PLACE)
    written = lance.fragment.write_fragments(data(["f"]), uri, storage_options=options)
    described = [outside(fragment) for fragment in written]
    adopted = tables.commit_staged(replaced, tables.stage_fragments(replaced, described, "overwrite", STAMP))
    assert all_of(adopted) == [("f", 7, 8)]
    foreign = json.loads(described[0].metadata)
    foreign["files"][0]["fields"] = [0, 1, 2]
    wrong = replace(described[0], metadata=json.dumps(foreign))
    with pytest.raises(InternalError, match="another schema"):
        tables.stage_fragments(adopted, [wrong], "append", STAMP)


def test_file_names_are_those_of_the_substrate(table_store: Store) -> None:
    """We read a member of Lance's that is not public; this fails when it moves."""
    tables = table_store.tables()
    handle = filled(tables, ["a"], ["b"])
    shown = [
        str(file.path)
        for fragment in lance_dataset(handle).get_fragments()
        for file in fragment.metadata.files
    ]
    assert [name.rsplit("/", 1)[-1] for info in tables.fragments(handle) for name in info.files] == shown
