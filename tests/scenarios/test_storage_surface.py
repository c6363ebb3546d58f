"""The storage surface: no side door, no hidden commit, honest probes."""

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import omnigraph
from omnigraph.catalog.table_changes import ColumnMap
from omnigraph.core.errors import OmnigraphError
from omnigraph.core.events import Event, TableStaged, listen
from omnigraph.core.limits import MIB
from omnigraph.storage.handles import NO_NUMBER, Fragment, SnapshotHandle
from omnigraph.storage.indexes import IndexKind, IndexPlan
from omnigraph.storage.residual import InlineCommitResidual
from omnigraph.storage.tables import TableStorage
from stores import PERSON, PLACE, STAMP, local_store

SOURCES = Path(omnigraph.__file__).parent

# -- no member of the surface commits on the side ---------------------------------------------------------

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("v", pa.list_(pa.float32(), 4)),
    ]
)


def some(first: int, count: int) -> pa.Table:
    flat = np.arange(first * 4, (first + count) * 4, dtype=np.float32)
    return pa.table(
        {
            "id": [f"k{n}" for n in range(first, first + count)],
            "text": [f"word{n}" for n in range(first, first + count)],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(flat), 4),
        },
        schema=SCHEMA,
    )


@pytest.fixture
def tables(tmp_path: Path) -> TableStorage:
    return local_store(tmp_path).tables()


@pytest.fixture
def base(tables: TableStorage) -> SnapshotHandle:
    made = tables.create_table(PERSON, PLACE, SCHEMA, STAMP)
    return tables.commit_staged(made, tables.stage_append(made, some(0, 64), STAMP))


def outside_fragments(tables: TableStorage, base: SnapshotHandle) -> list[Fragment]:
    written = lance.fragment.write_fragments(some(900, 1), tables._root.dataset_uri(base.location))
    return [
        Fragment(NO_NUMBER, (), each.physical_rows, metadata=json.dumps(each.to_json())) for each in written
    ]


def look_ahead(tables: TableStorage, handle: SnapshotHandle) -> tuple[int, ...]:
    rewritten = tables.stage_rewrite(handle, handle.fragment_ids, STAMP)
    with tables.previewed(handle, rewritten) as ahead:
        assert ahead.row_count == handle.row_count
        return ahead.fragment_ids


QUIET: dict[str, Callable[[TableStorage, SnapshotHandle], object]] = {
    "open_version": lambda t, h: t.open_version(PERSON, PLACE, None, h.version),
    "open_head": lambda t, h: t.open_head(PERSON, PLACE, None),
    "head_version": lambda t, h: t.head_version(PLACE, None),
    "has_version": lambda t, h: t.has_version(PLACE, None, h.version),
    "list_branches": lambda t, h: t.list_branches(PLACE),
    "seen_as": lambda t, h: t.seen_as(h, ColumnMap(SCHEMA, {"id": "id", "text": "text"})),
    "scan": lambda t, h: t.scan(h).read_all(),
    "read": lambda t, h: t.read(h),
    "count_rows": lambda t, h: t.count_rows(h, filter="id = 'k1'"),
    "take": lambda t, h: t.take(h, [0, 1]),
    "addresses_of": lambda t, h: t.addresses_of(h, pa.array(["k1"])),
    "fragments": lambda t, h: t.fragments(h),
    "outlived_fragments": lambda t, h: t.outlived_fragments(h),
    "rows_with": lambda t, h: t.rows_with(t.fragments(h)[0].files[0], ["id"], "k1"),
    "used_files": lambda t, h: t.used_files(PLACE, None, h.version),
    "dead_rows": lambda t, h: t.dead_rows(h, t.fragments(h)[0]),
    "transaction_of": lambda t, h: t.transaction_of(PLACE, None, h.version),
    "stage_append": lambda t, h: t.stage_append(h, some(100, 2), STAMP),
    "stage_append_stream": lambda t, h: t.stage_append_stream(h, some(100, 2).to_reader(), STAMP),
    "stage_merge_insert": lambda t, h: t.stage_merge_insert(h, some(1, 100), STAMP),
    "stage_overwrite": lambda t, h: t.stage_overwrite(h, some(0, 1), STAMP),
    "stage_delete": lambda t, h: t.stage_delete(h, STAMP, predicate="id = 'k1'"),
    "stage_rewrite": lambda t, h: t.stage_rewrite(h, h.fragment_ids, STAMP),
    "stage_columns": lambda t, h: t.stage_columns(h, ColumnMap(SCHEMA, {"id": "id", "text": "text"}), STAMP),
    "since": lambda t, h: t.since(h, h),
    "write_columns": lambda t, h: t.write_columns(
        h, h.fragment_ids[0], ["text"], lambda batch: batch.rename_columns(["again"])
    ),
    "compact": lambda t, h: t.compact(h, h.fragment_ids, bytes_max=MIB),
    "stage_compaction": lambda t, h: t.stage_compaction(
        h, [t.compact(h, h.fragment_ids, bytes_max=MIB)], STAMP
    ),
    "previewed": look_ahead,
    "stage_fragments": lambda t, h: t.stage_fragments(h, outside_fragments(t, h), "append", STAMP),
    "stage_indexes": lambda t, h: [
        t.stage_indexes(h, [IndexPlan(kind, column)], STAMP)
        for kind, column in ((IndexKind.BTREE, "id"), (IndexKind.INVERTED, "text"), (IndexKind.VECTOR, "v"))
    ],
    "rebase": lambda t, h: t.rebase(t.stage_append(h, some(100, 2), STAMP), h),
    "followed": lambda t, h: t.followed(t.stage_rewrite(h, h.fragment_ids, STAMP), h, h),
    "new_files": lambda t, h: t.new_files(h),
    "files_of": lambda t, h: t.files_of(h),
    "sums": lambda t, h: t.sums([h]),
    "summed": lambda t, h: t.summed(t.stage_append(h, some(100, 2), STAMP)),
    "sum_of": lambda t, h: t.sum_of(min(t.files_of(h))),
    "make_durable": lambda t, h: t.make_durable([h]),
    "branch_identifier": lambda t, h: t.branch_identifier(PLACE, None),
    "create_branch": lambda t, h: t.create_branch(PERSON, PLACE, "review", None, h.version),
    "delete_branch": lambda t, h: t.delete_branch(PLACE, "review"),
    "index_coverage": lambda t, h: t.index_coverage(h),
    "storage_inline_residual": lambda t, h: t.storage_inline_residual(),
}
COMMITTING = {"create_table", "commit_staged", "restore"}
"""Members whose whole purpose is to make or move a HEAD."""


def members(surface: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(surface, callable) if not name.startswith("_")}


def test_storage_surface_has_no_inline_commit(tables: TableStorage, base: SnapshotHandle) -> None:
    assert set(QUIET) | COMMITTING == members(TableStorage)
    uri = tables._root.dataset_uri(PLACE)
    content = lance.dataset(uri).to_table()
    for name, call in QUIET.items():
        assert call(tables, base) is not None or name in {"make_durable", "delete_branch"}
        head = lance.dataset(uri)
        assert head.version == base.version, f"{name} moved the HEAD"
    assert lance.dataset(uri).to_table() == content


def test_the_surface_is_sealed() -> None:
    with pytest.raises(TypeError, match=r"TableStorage of omnigraph\.storage\.tables has no subclass"):
        type("Other", (TableStorage,), {"__module__": __name__})
    with pytest.raises(TypeError, match="has no subclass"):
        type("Own", (TableStorage,), {"__module__": TableStorage.__module__})
    for name in members(TableStorage):
        assert getattr(TableStorage, name).__doc__, f"{name} has no contract"


# -- the residual members do move HEAD, and say so --------------------------------------------------------


def test_residual_members_move_head(tables: TableStorage, base: SnapshotHandle) -> None:
    residual = tables.storage_inline_residual()
    assert members(InlineCommitResidual) == {"delete_where", "create_vector_index", "optimize_indices"}
    for name in members(InlineCommitResidual):
        assert "HEAD moves" in (getattr(InlineCommitResidual, name).__doc__ or "")

    deleted = residual.delete_where(base, "id = 'k1'")
    assert deleted.version == base.version + 1 == tables.head_version(PLACE, None)
    assert (deleted.row_count, base.row_count) == (63, 64)
    indexed = residual.create_vector_index(deleted, "v", num_partitions=2)
    assert indexed.version == deleted.version + 1 == tables.head_version(PLACE, None)
    assert [c.name for c in tables.index_coverage(indexed)] == ["v_vec"]
    grown = tables.commit_staged(indexed, tables.stage_append(indexed, some(100, 64), STAMP))
    folded = residual.optimize_indices(grown)
    assert folded.version > grown.version
    assert [c.uncovered for c in tables.index_coverage(folded)] == [frozenset()]
    assert tables.open_head(PERSON, PLACE, None).version == folded.version


# -- probes count what succeeded --------------------------------------------------------------------------


def failing_source() -> Iterator[pa.RecordBatch]:
    yield some(100, 1).to_batches()[0]
    raise RuntimeError("the source broke")


def test_probe_counts_only_after_success(tables: TableStorage, base: SnapshotHandle) -> None:
    def broken() -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(SCHEMA, failing_source())

    twice = pa.concat_tables([some(100, 1), some(100, 1)])
    heard: list[Event] = []

    def staged() -> list[tuple[str, int]]:
        return [(e.primitive, e.rows) for e in heard if isinstance(e, TableStaged)]

    failures: list[Callable[[], object]] = [
        lambda: tables.stage_append(base, pa.table({"other": [1]}), STAMP),
        lambda: tables.stage_append_stream(base, broken(), STAMP),
        lambda: tables.stage_merge_insert(base, broken(), STAMP),
        lambda: tables.stage_merge_insert(base, twice, STAMP),
        lambda: tables.stage_overwrite(base, broken(), STAMP),
        lambda: tables.stage_delete(base, STAMP, predicate="nosuch = 1"),
        lambda: tables.stage_indexes(base, [IndexPlan(IndexKind.VECTOR, "text")], STAMP),
        lambda: tables.stage_indexes(base, [IndexPlan(IndexKind.BTREE, "nosuch")], STAMP),
    ]
    with listen(heard.append):
        for fails in failures:
            with pytest.raises((OmnigraphError, RuntimeError, KeyError, TypeError)):
                fails()
            assert staged() == []
        tables.stage_append(base, some(100, 2), STAMP)
        tables.stage_append_stream(base, some(100, 3).to_reader(), STAMP)
        tables.stage_merge_insert(base, some(0, 4), STAMP)
        tables.stage_indexes(base, [IndexPlan(IndexKind.VECTOR, "v")], STAMP)
    assert staged() == [
        ("stage_append", 2),
        ("stage_append_stream", 3),
        ("stage_merge_insert", 4),
        ("stage_indexes", 0),
    ]
    heard.clear()
    tables.stage_append(base, some(100, 2), STAMP)
    assert heard == [], "nobody listened"
