"""Rows of the manifest and the snapshots they describe."""

import dataclasses

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.core.errors import InternalError
from omnigraph.core.ids import BranchName, CommitId, OperationId, TableKey
from omnigraph.manifest.commit_record import CommitRecord, record_from_json, record_to_json
from omnigraph.manifest.state import (
    Snapshot,
    build_snapshot,
    columns_of,
    decode,
    encode,
    manifest_schema,
    tombstone_object_id,
    version_object_id,
)
from unit.manifest.ground import CITY, KNOWS, PERSON, entry, genesis


def snapshot(**changes) -> Snapshot:
    entries = [entry(PERSON, 7, rows=3), entry(KNOWS, 2, branch=BranchName("review"))]
    values = {
        "branch": None,
        "manifest_version": 5,
        "entries": entries,
        "registrations": {PERSON: "nodes/p", KNOWS: "edges/k", CITY: "nodes/c"},
        "tombstones": {CITY: 4},
        "commit": dataclasses.replace(genesis(), manifest_version=5),
    }
    values["entries"] = [
        dataclasses.replace(e, location=values["registrations"][e.table_key]) for e in values["entries"]
    ]
    return build_snapshot(**(values | changes))


def edited(rows: pa.Table, object_id: str, column: str, value: object) -> pa.Table:
    listed = rows.to_pylist()
    (row,) = [row for row in listed if row["object_id"] == object_id]
    row[column] = value
    return pa.Table.from_pylist(listed, schema=rows.schema)


def without(rows: pa.Table, object_id: str) -> pa.Table:
    return pa.Table.from_pylist(
        [r for r in rows.to_pylist() if r["object_id"] != object_id], schema=rows.schema
    )


def read(rows: pa.Table) -> Snapshot:
    return decode(rows, branch=None, manifest_version=5)


def test_a_snapshot_survives_its_rows() -> None:
    before = snapshot()
    assert read(encode(columns_of(before))) == before


def test_rows_have_the_forms_of_the_specification() -> None:
    rows = encode(columns_of(snapshot()))
    assert rows.schema.equals(manifest_schema(), check_metadata=True)
    by_id = {row["object_id"]: row for row in rows.to_pylist()}
    assert by_id["node:Person"]["location"] == "nodes/p"
    assert by_id["node:Person$00000000000000000007"]["table_version"] == 7
    assert by_id["edge:Knows$00000000000000000002"]["table_branch"] == "review"
    assert by_id["node:City$tombstone$00000000000000000004"]["object_type"] == "table_tombstone"
    assert [row["object_type"] for row in by_id.values()].count("graph_commit") == 1
    assert all(row["base_objects"] is None for row in by_id.values())


def test_pins_of_visible_hidden_and_unknown_tables() -> None:
    state = snapshot()
    unknown = TableKey("node:Nobody")
    assert [state.pin(key) for key in (PERSON, CITY, unknown)] == [7, 0, 0]
    assert [state.latest_version(key) for key in (PERSON, CITY, unknown)] == [7, 4, 0]
    assert list(state.entries) == sorted(state.entries)
    assert {key: entry.version for key, entry in state.entries.items()} == {KNOWS: 2, PERSON: 7}


def test_the_greatest_version_counts_and_a_tombstone_hides_up_to_its_own() -> None:
    rows = encode(columns_of(snapshot())).to_pylist()
    newer = next(row for row in rows if row["object_id"] == version_object_id(PERSON, 7)).copy()
    newer |= {"object_id": version_object_id(PERSON, 12), "table_version": 12}
    equal = {"object_id": tombstone_object_id(KNOWS, 2), "object_type": "table_tombstone", "table_key": KNOWS}
    older = {
        "object_id": tombstone_object_id(PERSON, 11),
        "object_type": "table_tombstone",
        "table_key": PERSON,
    }
    rows += [newer, equal | {"table_version": 2}, older | {"table_version": 11}]
    state = read(pa.Table.from_pylist(rows[::-1], schema=manifest_schema()))
    assert state.pin(PERSON) == 12
    assert state.pin(KNOWS) == 0
    assert dict(state.tombstones) == {CITY: 4, KNOWS: 2}


@pytest.mark.parametrize(
    ("object_id", "column", "value", "problem"),
    [
        (version_object_id(PERSON, 7), "metadata", None, "missing"),
        (version_object_id(PERSON, 7), "metadata", "{", "not JSON"),
        (version_object_id(PERSON, 7), "metadata", "[]", "not a JSON object"),
        (version_object_id(PERSON, 7), "metadata", '{"branch_identifier": []}', "transaction_uuid"),
        (version_object_id(PERSON, 7), "metadata", '{"transaction_uuid": "u"}', "branch_identifier"),
        (
            version_object_id(PERSON, 7),
            "metadata",
            '{"transaction_uuid":"u","branch_identifier":[1]}',
            "pairs",
        ),
        (version_object_id(PERSON, 7), "row_count", None, "row count"),
        (version_object_id(PERSON, 7), "table_version", None, "version"),
        (tombstone_object_id(CITY, 4), "table_version", None, "version"),
        (PERSON, "location", None, "location"),
        (PERSON, "location", "nodes/../../elsewhere", "not below the graph"),
        (PERSON, "location", "/elsewhere/nodes/p", "not below the graph"),
        (PERSON, "object_type", "tabel", "tabel"),
    ],
)
def test_a_damaged_row_is_named(object_id: str, column: str, value: object, problem: str) -> None:
    with pytest.raises(InternalError) as caught:
        read(edited(encode(columns_of(snapshot())), object_id, column, value))
    assert object_id in str(caught.value)
    assert problem in str(caught.value)


def test_a_version_without_registration_is_named() -> None:
    with pytest.raises(InternalError, match=r"node:Person\$0+7.*never registered"):
        read(without(encode(columns_of(snapshot())), PERSON))


def test_a_newer_format_may_have_rows_of_unknown_kinds() -> None:
    rows = edited(
        encode(columns_of(snapshot())), tombstone_object_id(CITY, 4), "object_type", "something_new"
    )
    with pytest.raises(InternalError, match="something_new"):
        read(rows)
    assert read(rows.cast(manifest_schema(9))).pin(PERSON) == 7


def test_exactly_one_commit_row() -> None:
    rows = encode(columns_of(snapshot()))
    only = rows.filter(pa.compute.not_equal(rows["object_type"], "graph_commit"))
    with pytest.raises(InternalError, match="0 commits"):
        read(only)
    twice = pa.concat_tables([rows, rows.filter(pa.compute.equal(rows["object_type"], "graph_commit"))])
    with pytest.raises(InternalError, match="2 commits"):
        read(twice)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "missing"),
        ("x", "not JSON"),
        ("{}", "'id'"),
        ('{"id":"a","parents":"b"}', "'parents'"),
        ('{"id":"a","parents":[1]}', "'parents'"),
        ('{"id":"a","parents":[],"operation":"m","time_us":-1}', "'time_us'"),
        ('{"id":"a","parents":[],"operation":"m","time_us":true}', "'time_us'"),
        (
            '{"id":"a","parents":[],"operation":"m","time_us":1,"manifest_version":1,"schema_hash":"h","summary":3}',
            "'summary'",
        ),
        ('{"id":"a","parents":[],"actor":3}', "'actor'"),
    ],
)
def test_a_damaged_commit_record_is_named(text: str | None, problem: str) -> None:
    with pytest.raises(InternalError) as caught:
        record_from_json(text, row="commit$a")
    assert "commit$a" in str(caught.value)
    assert problem in str(caught.value)


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
numbers = st.integers(0, 2**63 - 1)


@pytest.mark.slow
@given(
    st.builds(
        CommitRecord,
        id=names.map(CommitId),
        parents=st.lists(names.map(CommitId), max_size=2).map(tuple),
        actor=st.none() | names,
        operation=names,
        time_us=numbers,
        home=st.none() | names.map(BranchName),
        manifest_version=numbers,
        schema_hash=names,
        operation_id=st.none() | names.map(OperationId),
        recovers=st.none() | names.map(OperationId),
        summary=st.dictionaries(names, st.dictionaries(names, numbers, max_size=2), max_size=3),
    )
)
def test_a_commit_record_survives_its_text(record: CommitRecord) -> None:
    assert record_from_json(record_to_json(record), row="r") == record
