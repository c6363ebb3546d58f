"""What index builds, searches and compaction assume about Lance."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance import LanceDataset, LanceOperation
from lance.fragment import write_fragments
from lance.optimize import Compaction

from guards.substrate import append, commit, dataset, head, numbers, rows

DIMENSION = 4
TEXTS = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("text", pa.string())])
VECTORS = pa.schema(
    [pa.field("id", pa.string(), nullable=False), pa.field("v", pa.list_(pa.float32(), DIMENSION))]
)


def texts(words: list[str]) -> pa.Table:
    return pa.table({"id": words, "text": [f"the {word} text" for word in words]}, schema=TEXTS)


def vectors(first: int, count: int) -> pa.Table:
    flat = np.arange(first * DIMENSION, (first + count) * DIMENSION, dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(flat), DIMENSION)
    return pa.table({"id": [f"v{first + n}" for n in range(count)], "v": column}, schema=VECTORS)


def filled(place: Path, data: pa.Table) -> LanceDataset:
    return append(dataset(place, schema=data.schema), data)


def build(
    base: LanceDataset, column: str, kind: str, fragments: list[int] | None = None, **options: Any
) -> Any:
    chosen = numbers(base) if fragments is None else fragments
    return base.create_index_uncommitted(
        column, kind, name=f"{column}_idx", replace=True, fragment_ids=chosen, **options
    )


def searched(base: LanceDataset, word: str) -> list[str]:
    return base.to_table(columns=["id", "_score"], full_text_query=word)["id"].to_pylist()


def nearest(base: LanceDataset, number: int) -> tuple[list[str], str]:
    query = np.arange(number * DIMENSION, (number + 1) * DIMENSION, dtype=np.float32)
    wanted = {"column": "v", "q": query, "k": 1, "nprobes": 10}
    scanner = base.scanner(columns=["id", "_distance"], nearest=wanted)
    return scanner.to_table()["id"].to_pylist(), scanner.explain_plan()


def plan_of(base: LanceDataset, wanted: str) -> str:
    return base.scanner(filter=wanted).explain_plan()


def test_guard_index_segments_commit(tmp_path: Path) -> None:
    keyed = dataset(tmp_path / "keyed", ["a", "b", "c"])
    keyed = commit(keyed, LanceOperation.CreateIndex([build(keyed, "id", "BTREE")], []))
    assert "ScalarIndexQuery" in plan_of(keyed, "id = 'b'")
    assert keyed.to_table(filter="id = 'b'").num_rows == 1

    written = filled(tmp_path / "written", texts(["red", "blue"]))
    finalised = written.merge_existing_index_segments([build(written, "text", "INVERTED")])
    written = commit(written, LanceOperation.CreateIndex([finalised], []))
    assert searched(written, "blue") == ["blue"]

    placed = filled(tmp_path / "placed", vectors(0, 64))
    index = build(placed, "v", "IVF_FLAT", num_partitions=2)
    assert head(placed).version == placed.version, "building moves no HEAD"
    placed = commit(placed, LanceOperation.CreateIndex([index], []))
    found, plan = nearest(placed, 7)
    assert found == ["v7"]
    assert "ANN" in plan


def test_guard_bare_create_index_inverted_broken(tmp_path: Path) -> None:
    written = filled(tmp_path, texts(["red", "blue"]))
    written = commit(written, LanceOperation.CreateIndex([build(written, "text", "INVERTED")], []))
    with pytest.raises((OSError, ValueError)):
        searched(written, "blue")


def test_guard_vector_delta_segments(tmp_path: Path) -> None:
    placed = filled(tmp_path, vectors(0, 64))
    placed = commit(
        placed, LanceOperation.CreateIndex([build(placed, "v", "IVF_FLAT", num_partitions=2)], [])
    )
    placed = append(placed, vectors(64, 64))
    segment = build(placed, "v", "IVF_FLAT", fragments=[1], num_partitions=2)
    placed = commit(placed, LanceOperation.CreateIndex([segment], []))
    (index,) = placed.describe_indices()
    covered = sorted(number for part in index.segments for number in part.fragment_ids)
    assert (index.name, len(index.segments), covered) == ("v_idx", 2, [0, 1])
    assert nearest(placed, 7)[0] == ["v7"]
    assert nearest(placed, 100)[0] == ["v100"]


def test_guard_several_indexes_in_one_commit(tmp_path: Path) -> None:
    written = filled(tmp_path, texts(["red", "blue"]))
    ordered = written.create_index_uncommitted("id", "BTREE", name="id_idx", fragment_ids=[0])
    finalised = written.merge_existing_index_segments([build(written, "text", "INVERTED")])
    after = commit(written, LanceOperation.CreateIndex([ordered, finalised], []), stamp="01J")
    assert after.version == written.version + 1
    assert searched(after, "red") == ["red"]
    assert "ScalarIndexQuery" in plan_of(after, "id = 'red'")
    assert after.read_transaction(after.version).transaction_properties == {"stamp": "01J"}


def test_guard_double_quoted_identifier_is_literal(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("repoName", pa.string())])
    base = append(dataset(tmp_path, schema=schema), pa.table({"id": ["a"], "repoName": ["x"]}, schema=schema))
    assert base.to_table(filter="\"repoName\" = 'x'").num_rows == 0, "silently empty: a string literal"
    assert base.to_table(filter="repoName = 'x'").num_rows == 1
    assert base.to_table(filter="`repoName` = 'x'").num_rows == 1


def test_guard_index_used_for_typed_literal(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("age", pa.int32())])
    data = pa.table({"id": [str(n) for n in range(50)], "age": list(range(50))}, schema=schema)
    base = append(dataset(tmp_path, schema=schema), data)
    base = commit(base, LanceOperation.CreateIndex([build(base, "age", "BTREE")], []))
    for wanted in ("age = 5", "age = cast(5 as bigint)", "age IN (5)"):
        assert "ScalarIndexQuery" in plan_of(base, wanted)
        assert base.to_table(filter=wanted)["id"].to_pylist() == ["5"]


def test_guard_timestamp_literal_uses_index(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("id", pa.string(), nullable=False), pa.field("at", pa.timestamp("ms", tz="UTC"))]
    )
    moments = [datetime(2024, 3, day, 9, 30, 0, 250_000, tzinfo=UTC) for day in range(1, 20)]
    data = pa.table({"id": [str(n) for n in range(19)], "at": moments}, schema=schema)
    base = append(dataset(tmp_path, schema=schema), data)
    base = commit(base, LanceOperation.CreateIndex([build(base, "at", "BTREE")], []))
    wanted = "at = timestamp '2024-03-05T09:30:00.250'"
    assert "ScalarIndexQuery" in plan_of(base, wanted)
    assert base.to_table(filter=wanted)["id"].to_pylist() == ["4"]


def test_guard_text_search_needs_some_index(tmp_path: Path) -> None:
    plain = filled(tmp_path / "plain", texts(["red"]))
    with pytest.raises((OSError, ValueError)):
        searched(plain, "red")
    prepared = dataset(tmp_path / "prepared", schema=TEXTS)
    prepared.create_scalar_index("text", "INVERTED", name="text_idx")
    prepared = append(head(prepared), texts(["red", "blue"]))
    assert searched(prepared, "blue") == ["blue"]


def test_guard_compaction_plan_execute_no_head_move(tmp_path: Path) -> None:
    base = dataset(tmp_path, ["a"])
    for word in ("b", "c", "d"):
        base = append(base, rows([word]))
    results = [task.execute(base) for task in Compaction.plan(base, {"target_rows_per_fragment": 100}).tasks]
    assert results
    assert head(base).version == base.version, "planning and executing move no HEAD"
    assert len(numbers(head(base))) == 4
    groups = [LanceOperation.RewriteGroup(r.original_fragments, r.new_fragments) for r in results]
    after = commit(base, LanceOperation.Rewrite(groups, []))
    assert len(numbers(after)) == 1
    assert sorted(after.to_table()["id"].to_pylist()) == ["a", "b", "c", "d"]
    base = append(after, rows(["e"]))
    results = [task.execute(base) for task in Compaction.plan(base, {"target_rows_per_fragment": 100}).tasks]
    Compaction.commit(base, results)
    assert head(base).version == after.version + 3, "the append, the reservation of fragment ids, the rewrite"


def test_guard_rewrite_leaves_its_fragment_uncovered(tmp_path: Path) -> None:
    """Folding writes rows anew and remaps no index: the index must not be taken to know where they are now."""
    base = dataset(tmp_path, schema=TEXTS)
    for word in ("red", "blue", "green"):
        base = append(base, texts([word]))
    base.create_scalar_index("text", "INVERTED", name="text_idx")
    base = head(base)
    base = commit(base, LanceOperation.CreateIndex([build(base, "id", "BTREE")], []))
    folded = [base.get_fragment(number) for number in numbers(base)[1:]]
    written = write_fragments(
        base.scanner(fragments=folded, scan_in_order=True).to_table(), base, mode="append"
    )
    group = LanceOperation.RewriteGroup([fragment.metadata for fragment in folded], written)
    after = commit(base, LanceOperation.Rewrite([group], []))
    (new,) = set(numbers(after)) - set(numbers(base))
    for index in after.describe_indices():
        assert all(new not in segment.fragment_ids for segment in index.segments)
    for word in ("red", "blue", "green"):
        assert after.to_table(filter=f"id = '{word}'")["id"].to_pylist() == [word]
        assert searched(after, word) == [word]


def test_guard_blob_compaction_bytes(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        ]
    )
    values = [b"bytes", None, b"", bytes(range(256)) * 400]
    base = dataset(tmp_path, schema=schema)
    for number, value in enumerate(values):
        base = append(base, pa.table({"id": [number], "blob": [value]}, schema=schema))
    assert len(numbers(base)) == 4
    base.optimize.compact_files(target_rows_per_fragment=100)
    base = head(base)
    assert len(numbers(base)) == 1
    present = [number for number, value in enumerate(values) if value is not None]
    read = [blob.readall() for blob in base.take_blobs("blob", indices=present)]
    assert read == [value for value in values if value is not None]
    assert base.to_table(columns=["id"], filter="blob IS NULL")["id"].to_pylist() == [1]
