"""What changes of columns rest on: files of single columns that nobody points at, and how fields are numbered."""

import json

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.dataset import LanceSchema
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


def fields_of(dataset):
    """The maker of a schema, its metadata, and the message of each field by the name of its column."""
    make, (metadata, *fields) = dataset.lance_schema.__reduce__()
    names = [each.name() for each in dataset.lance_schema.fields()]
    return make, metadata, dict(zip(names, fields, strict=True))


def numbers(dataset):
    return {each.name(): each.id() for each in dataset.lance_schema.fields()}


def files(path):
    return {file.name for file in (path / "data").iterdir()}


def commit(dataset, operation):
    return lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def added(dataset, name):
    """A field message of a new nullable text, numbered past every field that ever was."""
    _, _, (message,) = unpacked(LanceSchema.from_pyarrow(pa.schema([pa.field(name, pa.string())])))
    assert b"\x18" not in message, "the first field has the number 0, which is not written"
    place = message.index(name.encode()) + len(name)
    return message[:place] + bytes([0x18, dataset.max_field_id + 1]) + message[place:]


def unpacked(schema):
    make, (metadata, *fields) = schema.__reduce__()
    return make, metadata, fields


def test_a_schema_goes_through_its_messages_unchanged(tmp_path):
    dataset = made(tmp_path / "t")
    make, metadata, fields = fields_of(dataset)
    again = make(metadata, *fields.values())
    assert again.to_pyarrow().equals(dataset.schema)
    assert [each.id() for each in again.fields()] == [each.id() for each in dataset.lance_schema.fields()]


@pytest.mark.parametrize("branch", [None, "review"])
def test_a_merge_with_one_field_more_adds_a_column_of_nulls_and_no_data_file(tmp_path, branch):
    dataset = made(tmp_path / "t")
    own = dataset.create_branch(branch) if branch else dataset
    before, (make, metadata, fields) = files(tmp_path / "t"), fields_of(dataset)
    schema = make(metadata, *fields.values(), added(dataset, "note"))
    kept = [each.metadata for each in own.get_fragments()]
    after = commit(own, LanceOperation.Merge(kept, schema))
    assert after.to_table()["note"].to_pylist() == [None] * 9
    assert after.to_table(filter="n = 7")["id"].to_pylist() == ["7"]
    assert numbers(after)["note"] == dataset.max_field_id + 1
    assert numbers(after)["note"] == 3, "a dropped column keeps its number 2"
    assert files(tmp_path / "t") == before
    assert len(list(after.describe_indices())) == 1
    if branch:
        assert "note" not in lance.dataset(tmp_path / "t").schema.names


def test_a_projection_renames_drops_and_changes_what_may_be_null(tmp_path):
    dataset = made(tmp_path / "t")
    before, (make, metadata, fields) = files(tmp_path / "t"), fields_of(dataset)
    renamed = fields["n"].replace(b"\x12\x01n", b"\x12\x01m")
    after = commit(dataset, project(make(metadata, fields["id"], renamed)))
    assert after.to_table(filter="m = 7")["id"].to_pylist() == ["7"]
    assert numbers(after)["m"] == numbers(dataset)["n"]
    (index,) = after.describe_indices()
    assert list(index.field_names) == ["m"], "it follows the field"
    assert b"\x30\x01" in renamed, "nullable is member 6"
    strict = commit(after, project(make(metadata, fields["id"], renamed.replace(b"\x30\x01", b""))))
    assert not strict.schema.field("m").nullable
    loose = commit(strict, project(make(metadata, fields["id"], renamed)))
    assert loose.schema.field("m").nullable
    less = commit(loose, project(make(metadata, fields["id"])))
    assert less.schema.names == ["id"]
    assert list(less.describe_indices()) == []
    assert files(tmp_path / "t") == before
    past = lance.dataset(tmp_path / "t", version=dataset.version)
    assert past.to_table(filter="n = 7")["id"].to_pylist() == ["7"], "the past reads as before"


def project(schema):
    return LanceOperation.Project(schema, preserves_nullability=False)


def test_an_overwrite_without_fragments_changes_the_columns_of_an_empty_table(tmp_path):
    dataset = lance.write_dataset(pa.schema([pa.field("id", pa.string())]).empty_table(), tmp_path / "t")
    make, metadata, fields = fields_of(dataset)
    schema = make(metadata, *fields.values(), added(dataset, "note"))
    after = commit(dataset, LanceOperation.Overwrite(schema, []))
    assert (after.version, after.count_rows(), after.schema.names) == (dataset.version + 1, 0, ["id", "note"])


def test_a_schema_that_numbers_its_fields_anew_is_refused(tmp_path):
    """Why the messages are edited: one made from Arrow begins at 0 again, and the dropped column had a number."""
    dataset = made(tmp_path / "t")
    make, metadata, fields = fields_of(dataset)
    less = commit(dataset, project(make(metadata, fields["n"])))
    again = LanceSchema.from_pyarrow(pa.schema([pa.field("n", pa.int32())]))
    assert [each.id() for each in again.fields()] == [0]
    kept = [each.metadata for each in less.get_fragments()]
    with pytest.raises(OSError, match="already used by current or dropped fields"):
        commit(less, LanceOperation.Merge(kept, again))
