"""Staged index builds: one commit, growing coverage, right answers with and without."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from omnigraph.storage.handles import SnapshotHandle, lance_dataset
from omnigraph.storage.indexes import IndexKind, IndexPlan
from omnigraph.storage.tables import TableStorage
from stores import PERSON, PLACE, STAMP, Store, local_store

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("v", pa.list_(pa.float32(), 4)),
    ]
)
ORDERED = IndexPlan(IndexKind.BTREE, "id")
TEXT = IndexPlan(IndexKind.INVERTED, "text")
VECTOR = IndexPlan(IndexKind.VECTOR, "v", {"metric": "L2", "num_partitions": 2})
ALL = [ORDERED, TEXT, VECTOR]


def some(first: int, count: int, mark: str = "plain") -> pa.Table:
    numbers = range(first, first + count)
    flat = np.arange(first * 4, (first + count) * 4, dtype=np.float32)
    return pa.table(
        {
            "id": [f"k{n}" for n in numbers],
            "text": [f"{mark} word{n}" for n in numbers],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(flat), 4),
        },
        schema=SCHEMA,
    )


def add(tables: TableStorage, handle: SnapshotHandle, data: pa.Table) -> SnapshotHandle:
    return tables.commit_staged(handle, tables.stage_append(handle, data, STAMP))


def index(
    tables: TableStorage, handle: SnapshotHandle, plans: list[IndexPlan] = ALL, **how: bool
) -> SnapshotHandle:
    staged = tables.stage_indexes(handle, plans, STAMP, **how)
    assert staged is not None
    return tables.commit_staged(handle, staged)


def answers(handle: SnapshotHandle, number: int) -> list[list[str]]:
    dataset = lance_dataset(handle)
    query = np.arange(number * 4, number * 4 + 4, dtype=np.float32)
    near = {"column": "v", "q": query, "k": 1, "nprobes": 8}
    return [
        dataset.to_table(columns=["id"], filter=f"id = 'k{number}'")["id"].to_pylist(),
        dataset.to_table(columns=["id", "_score"], full_text_query=f"word{number}")["id"].to_pylist(),
        dataset.to_table(columns=["id", "_distance"], nearest=near)["id"].to_pylist(),
    ]


def test_several_indexes_are_one_commit_and_all_answer(table_store: Store) -> None:
    tables = table_store.tables()
    base = add(tables, tables.create_table(PERSON, PLACE, SCHEMA, STAMP), some(0, 64))
    staged = tables.stage_indexes(base, ALL, STAMP)
    assert staged is not None
    assert tables.head_version(PLACE, None) == base.version
    assert staged.bytes > 0
    after = tables.commit_staged(base, staged)
    assert after.version == base.version + 1
    assert {c.name: c.covered for c in tables.index_coverage(after)} == {
        "id_btree": {0},
        "text_fts": {0},
        "v_vec": {0},
    }
    assert answers(after, 7) == [["k7"]] * 3
    plan = lance_dataset(after).scanner(filter="id = 'k7'").explain_plan()
    assert "ScalarIndexQuery" in plan


def test_coverage_grows_by_segments_and_a_rebuild_folds_them(tmp_path: Path) -> None:
    tables = local_store(tmp_path).tables()
    handle = index(tables, add(tables, tables.create_table(PERSON, PLACE, SCHEMA, STAMP), some(0, 64)))
    handle = add(tables, handle, some(64, 64))
    (ordered,) = tables.index_coverage(handle, "id")
    assert (ordered.covered, ordered.uncovered) == ({0}, {1})
    handle = index(tables, handle)
    assert {c.uncovered for c in tables.index_coverage(handle)} == {frozenset()}
    assert {c.segments for c in tables.index_coverage(handle)} == {2}
    assert tables.stage_indexes(handle, ALL, STAMP) is None
    for number in (7, 100):
        assert answers(handle, number) == [[f"k{number}"]] * 3
    handle = index(tables, handle, rebuild=True)
    assert {c.segments for c in tables.index_coverage(handle)} == {1}
    for number in (7, 100):
        assert answers(handle, number) == [[f"k{number}"]] * 3


def test_a_replaced_row_is_found_by_its_new_value_only(tmp_path: Path) -> None:
    tables = local_store(tmp_path).tables()
    handle = index(tables, add(tables, tables.create_table(PERSON, PLACE, SCHEMA, STAMP), some(0, 64)))
    handle = tables.commit_staged(handle, tables.stage_merge_insert(handle, some(7, 1, "fresh"), STAMP))
    dataset = lance_dataset(handle)
    assert answers(handle, 7) == [["k7"]] * 3
    assert dataset.to_table(columns=["id", "_score"], full_text_query="fresh")["id"].to_pylist() == ["k7"]
    assert len(dataset.to_table(columns=["id", "_score"], full_text_query="plain")) == 63
    (ordered,) = tables.index_coverage(handle, "id")
    assert (ordered.covered, ordered.uncovered) == ({0}, {1})


def test_an_empty_table_gets_its_text_index_at_once(tmp_path: Path) -> None:
    tables = local_store(tmp_path).tables()
    made = tables.create_table(PERSON, PLACE, SCHEMA, STAMP, indexes=ALL)
    assert [c.name for c in tables.index_coverage(made)] == ["text_fts"]
    assert not any(c.uncovered for c in tables.index_coverage(made))
    filled = add(tables, made, some(0, 64))
    assert lance_dataset(filled).to_table(columns=["id", "_score"], full_text_query="word9")[
        "id"
    ].to_pylist() == ["k9"]
    assert all(c.uncovered for c in tables.index_coverage(filled))
    handle = index(tables, filled)
    assert {c.segments for c in tables.index_coverage(handle)} == {1}
    assert answers(handle, 9) == [["k9"]] * 3


@pytest.mark.parametrize(
    ("kind", "column", "name"),
    [
        (IndexKind.BTREE, "id", "id_btree"),
        (IndexKind.INVERTED, "text", "text_fts"),
        (IndexKind.VECTOR, "v", "v_vec"),
    ],
)
def test_single_builds(tmp_path: Path, kind: IndexKind, column: str, name: str) -> None:
    tables = local_store(tmp_path).tables()
    base = add(tables, tables.create_table(PERSON, PLACE, SCHEMA, STAMP), some(0, 64))
    staged = tables.stage_indexes(base, [IndexPlan(kind, column)], STAMP)
    assert staged is not None
    assert all(Path(file).is_file() for file in staged.files)
    after = tables.commit_staged(base, staged)
    assert [c.name for c in tables.index_coverage(after)] == [name]


def test_a_fork_uses_the_indexes_it_inherited(table_store: Store) -> None:
    tables = table_store.tables()
    base = index(tables, add(tables, tables.create_table(PERSON, PLACE, SCHEMA, STAMP), some(0, 64)))
    made = tables.create_branch(PERSON, PLACE, "review", None, base.version)
    made = index(tables, add(tables, made, some(64, 64)))
    assert {frozenset(c.covered) for c in tables.index_coverage(made)} == {frozenset({0, 1})}
    for number in (7, 100):
        assert answers(made, number) == [[f"k{number}"]] * 3


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("count", [3, 700, 6_000])
def test_keys_are_found_by_every_way_of_looking(tmp_path: Path, count: int, *, indexed: bool) -> None:
    """Few and many keys, with and without an index, in covered and uncovered fragments, deleted rows left out."""
    tables = local_store(tmp_path).tables()
    total = 40_000
    ids = pa.array([f"key-{n}" for n in range(total)])
    schema = pa.schema([pa.field("id", pa.string(), nullable=False)])
    handle = tables.create_table(PERSON, PLACE, schema, STAMP)
    handle = add(tables, handle, pa.table([ids.slice(0, 30_000)], schema=schema))
    if indexed:
        handle = index(tables, handle, [ORDERED])
    handle = add(tables, handle, pa.table([ids.slice(30_000)], schema=schema))
    staged = tables.stage_delete(handle, STAMP, predicate="id IN ('key-0', 'key-39999')")
    assert staged is not None
    handle = tables.commit_staged(handle, staged)
    chosen = np.linspace(0, total - 1, count).astype(int)
    wanted = pa.array([f"key-{n}" for n in chosen] + ["absent", None])
    where = tables.addresses_of(handle, wanted)
    expected = [n if n < 30_000 else (1 << 32) + n - 30_000 for n in chosen.tolist()[1:-1]]
    assert where.tolist() == sorted(expected)
