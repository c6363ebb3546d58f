"""What changes of columns rest on: files of single columns that nobody points at, and how fields are numbered."""

import json

import lance
import pyarrow as pa
from lance import LanceOperation
from lance.fragment import FragmentMetadata


def made(path):
    """Two fragments of which one has a deleted row, and a column that was dropped."""
    rows = pa.table(
        {"id": [str(n) for n in range(10)], "n": pa.array(range(10), pa.int32()), "gone": ["x"] * 10}
    )
    dataset = lance.write_dataset(rows, path, max_rows_per_file=5)
    dataset.create_scalar_index("n", "BTREE")
    dataset.drop_columns(["gone"])
    lance.dataset(path).delete("n = 3")
    return lance.dataset(path)


def wider(batch):
    return pa.RecordBatch.from_arrays([batch.column("n").cast(pa.int64())], names=["__new_0"])


def test_a_column_file_is_written_and_no_version_moves(tmp_path):
    dataset = made(tmp_path / "t")
    before = {file.name for file in (tmp_path / "t" / "data").iterdir()}
    written = [each.merge_columns(wider, columns=["n"], batch_size=2)[0] for each in dataset.get_fragments()]
    assert lance.dataset(tmp_path / "t").version == dataset.version
    assert len({file.name for file in (tmp_path / "t" / "data").iterdir()} - before) == 2
    assert [each.files[-1].fields for each in written] == [[dataset.max_field_id + 1]] * 2
    assert all(each.files[-1].file_size_bytes for each in written)


def test_a_merge_of_such_files_shows_them_under_any_name_and_drops_the_index_of_what_they_replace(tmp_path):
    dataset = made(tmp_path / "t")
    parts = [each.merge_columns(wider, columns=["n"]) for each in dataset.get_fragments()]
    make, (metadata, *fields) = parts[0][1].__reduce__()
    renamed = [field.replace(b"__new_0", b"nnnnnnn") for field in fields if b"\x12\x01n" not in field]
    kept = [FragmentMetadata.from_json(json.dumps(each.to_json())) for each, _ in parts]
    operation = LanceOperation.Merge(kept, make(metadata, *renamed))
    after = lance.LanceDataset.commit(str(tmp_path / "t"), operation, read_version=dataset.version)
    assert after.schema.field("nnnnnnn").type == pa.int64()
    assert after.to_table()["nnnnnnn"].to_pylist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert after.to_table(filter="nnnnnnn = 7")["id"].to_pylist() == ["7"]
    assert list(after.describe_indices()) == []
