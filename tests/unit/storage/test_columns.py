"""Columns that come, go and change their names without a row being written."""

from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph.catalog.table_changes import ColumnMap
from omnigraph.catalog.types import PropertyType, ScalarKind, arrow_type
from omnigraph.core.errors import InternalError
from omnigraph.core.events import StorageCall, listen
from omnigraph.storage.handles import SnapshotHandle, lance_dataset
from omnigraph.storage.indexes import IndexKind, IndexPlan
from omnigraph.storage.tables import TableStorage
from stores import PERSON, PLACE, STAMP, local_store

ID = pa.field("id", pa.string(), nullable=False)
AGE = pa.field("age", pa.int32())
TAGS = pa.field("tags", pa.list_(pa.field("item", pa.string())))
START = pa.schema([ID, AGE, TAGS])
ROWS = pa.table(
    {"id": ["a", "b"], "age": pa.array([1, None], pa.int32()), "tags": [["x"], None]}, schema=START
)


@pytest.fixture
def tables(tmp_path: Path) -> TableStorage:
    return local_store(tmp_path).tables()


@pytest.fixture
def base(tables: TableStorage) -> SnapshotHandle:
    made = tables.create_table(PERSON, PLACE, START, STAMP)
    return tables.commit_staged(made, tables.stage_append(made, ROWS, STAMP))


def changed(
    tables: TableStorage, handle: SnapshotHandle, fields: list[pa.Field], **sources: str
) -> SnapshotHandle:
    """`sources`: new name to old name, where they differ; None for a column that is new."""
    there = set(handle.schema.names)
    kept = {field.name: sources.get(field.name, field.name) for field in fields}
    change = ColumnMap(pa.schema(fields), {new: old for new, old in kept.items() if old in there})
    return tables.commit_staged(handle, tables.stage_columns(handle, change, STAMP))


def rows(tables: TableStorage, handle: SnapshotHandle) -> list[dict[str, object]]:
    return tables.read(handle).to_pylist()


EVERY_TYPE = [
    *(PropertyType(kind) for kind in ScalarKind),
    PropertyType(ScalarKind.STRING, is_list=True),
    PropertyType(ScalarKind.DATETIME, is_list=True),
    PropertyType(ScalarKind.F32, vector_dim=8),
]


@pytest.mark.parametrize("kind", EVERY_TYPE, ids=lambda kind: kind.text(nullable=True))
def test_a_new_column_of_every_type_is_null_and_can_be_written(
    tables: TableStorage, base: SnapshotHandle, kind: PropertyType
) -> None:
    new = pa.field("new", arrow_type(kind))
    after = changed(tables, base, [ID, AGE, new, TAGS])
    assert after.schema.equals(pa.schema([ID, AGE, new, TAGS]))
    assert [row["new"] for row in rows(tables, after)] == [None, None]
    more = pa.table([["c"], pa.array([3], pa.int32()), pa.nulls(1, new.type), [[]]], schema=after.schema)
    grown = tables.commit_staged(after, tables.stage_append(after, more, STAMP))
    assert [row["id"] for row in rows(tables, grown)] == ["a", "b", "c"]


def test_a_change_writes_no_data_file_and_reads_no_row(tables: TableStorage, base: SnapshotHandle) -> None:
    before = tables.fragments(base)
    heard: list[StorageCall] = []
    with listen(lambda event: heard.append(event) if isinstance(event, StorageCall) else None):
        after = changed(
            tables, base, [ID, pa.field("note", pa.string()), pa.field("years", pa.int32())], years="age"
        )
    assert {call.kind for call in heard} <= {"commit", "probe"}
    assert [each.files for each in tables.fragments(after)] == [each.files for each in before]
    assert after.version == base.version + 1


def test_a_renamed_column_keeps_its_values_and_its_index(tables: TableStorage, base: SnapshotHandle) -> None:
    built = tables.stage_indexes(base, [IndexPlan(IndexKind.BTREE, "age")], STAMP)
    assert built is not None
    base = tables.commit_staged(base, built)
    after = changed(tables, base, [ID, TAGS, pa.field("years", pa.int32())], years="age")
    assert [row["years"] for row in rows(tables, after)] == [1, None]
    assert tables.read(after, filter="years = 1").num_rows == 1
    (index,) = tables.index_coverage(after, "years")
    assert not index.uncovered
    assert [row["age"] for row in rows(tables, base)] == [1, None], "the past reads as before"


def test_a_dropped_column_that_comes_back_is_null(tables: TableStorage, base: SnapshotHandle) -> None:
    gone = changed(tables, base, [ID, TAGS])
    assert rows(tables, gone)[0] == {"id": "a", "tags": ["x"]}
    back = changed(tables, gone, [ID, AGE, TAGS])
    assert [row["age"] for row in rows(tables, back)] == [None, None]
    numbers = {field.name(): field.id() for field in lance_dataset(back).lance_schema.fields()}
    assert numbers["age"] > lance_dataset(base).max_field_id


def test_two_columns_may_swap_their_names(tables: TableStorage) -> None:
    left, right = pa.field("left", pa.int32()), pa.field("right", pa.int32())
    made = tables.create_table(PERSON, PLACE, pa.schema([ID, left, right]), STAMP)
    data = pa.table([["a"], pa.array([1], pa.int32()), pa.array([2], pa.int32())], schema=made.schema)
    made = tables.commit_staged(made, tables.stage_append(made, data, STAMP))
    after = changed(tables, made, [ID, left, right], left="right", right="left")
    assert rows(tables, after) == [{"id": "a", "left": 2, "right": 1}]


def test_a_column_may_become_required_and_nullable_again(tables: TableStorage, base: SnapshotHandle) -> None:
    full = tables.stage_delete(base, STAMP, predicate="id = 'b'")
    assert full is not None
    base = tables.commit_staged(base, full)
    strict = changed(tables, base, [ID, AGE.with_nullable(False), TAGS])
    assert not strict.schema.field("age").nullable
    loose = changed(tables, strict, [ID, AGE, TAGS])
    assert loose.schema.field("age").nullable
    assert rows(tables, loose) == [{"id": "a", "age": 1, "tags": ["x"]}]


def test_an_empty_table_is_overwritten_by_nothing(tables: TableStorage) -> None:
    made = tables.create_table(PERSON, PLACE, START, STAMP)
    after = changed(tables, made, [ID, AGE, pa.field("note", pa.string()), TAGS])
    found = tables.transaction_of(PLACE, None, after.version)
    assert found is not None
    assert found.operation == "Overwrite"
    assert (after.version, after.row_count, after.fragment_ids) == (made.version + 1, 0, ())
    more = pa.table([["c"], pa.array([3], pa.int32()), ["n"], [[]]], schema=after.schema)
    grown = tables.commit_staged(after, tables.stage_append(after, more, STAMP))
    assert rows(tables, grown) == [{"id": "c", "age": 3, "note": "n", "tags": []}]


def test_a_fork_changes_its_columns_alone(tables: TableStorage, base: SnapshotHandle) -> None:
    fork = tables.create_branch(PERSON, PLACE, "review", None, base.version)
    after = changed(tables, fork, [ID, AGE, pa.field("note", pa.string())])
    assert [row["note"] for row in rows(tables, after)] == [None, None]
    assert tables.open_head(PERSON, PLACE, None).schema.equals(START)


def test_a_source_that_is_not_there_is_refused(tables: TableStorage, base: SnapshotHandle) -> None:
    change = ColumnMap(START, {"id": "id", "age": "nosuch", "tags": "tags"})
    with pytest.raises(InternalError, match="no column 'nosuch' to become 'age'"):
        tables.stage_columns(base, change, STAMP)


def test_a_column_cannot_change_its_type_by_its_name_alone(
    tables: TableStorage, base: SnapshotHandle
) -> None:
    change = ColumnMap(pa.schema([ID, pa.field("age", pa.int64())]), {"id": "id", "age": "age"})
    with pytest.raises(InternalError, match="the columns would be"):
        tables.stage_columns(base, change, STAMP)


def test_fragments_that_hold_dropped_columns_are_known_until_they_are_written_anew(
    tables: TableStorage, base: SnapshotHandle
) -> None:
    assert tables.outlived_fragments(base) == []
    renamed = changed(tables, base, [ID, pa.field("years", pa.int32()), TAGS], years="age")
    assert tables.outlived_fragments(renamed) == []
    gone = changed(tables, renamed, [ID, TAGS])
    later = tables.commit_staged(gone, tables.stage_append(gone, ROWS.drop(["age"]), STAMP))
    first, second = later.fragment_ids
    assert tables.outlived_fragments(later) == [first]
    rewritten = tables.commit_staged(later, tables.stage_rewrite(later, [first], STAMP))
    assert second in rewritten.fragment_ids
    assert tables.outlived_fragments(rewritten) == []
