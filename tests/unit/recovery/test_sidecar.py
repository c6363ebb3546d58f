"""The sidecar format: what we write, what we read, and what we refuse."""

import json

import pytest

from omnigraph.core.errors import SidecarSchemaError
from omnigraph.core.failpoints import Raise, Window, activate
from omnigraph.core.formats import SIDECAR_SCHEMA_VERSION
from omnigraph.core.ids import BranchName, CommitId, OperationId, TableKey
from omnigraph.recovery.sidecar import (
    Sidecar,
    SidecarPin,
    SidecarRead,
    SidecarRegistration,
    SidecarStore,
    SidecarSwitch,
    SidecarTombstone,
    WriterKind,
    parse_sidecar,
    to_text,
)
from omnigraph.storage.objects import open_adapter

OPERATION = OperationId("01J0ZV3N6Q8R2K5T7W9XABCDEF")
NAME = f"{OPERATION}.json"
PERSON = TableKey("node:Person")


def mutation(**changes) -> Sidecar:
    values = {
        "operation_id": OPERATION,
        "started_at_us": 1781820906000000,
        "branch": None,
        "actor": "ana",
        "writer_kind": WriterKind.MUTATION,
        "tables": (SidecarPin(PERSON, "nodes/3f", 7, 8),),
    }
    return Sidecar(**(values | changes))


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    uri = str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"
    return SidecarStore(open_adapter(uri))


def test_version_2_has_exactly_the_members_of_the_specification():
    assert json.loads(to_text(mutation())) == {
        "schema_version": 2,
        "operation_id": OPERATION,
        "started_at": "1781820906000000",
        "branch": None,
        "actor_id": "ana",
        "writer_kind": "Mutation",
        "tables": [
            {
                "table_key": "node:Person",
                "table_path": "nodes/3f",
                "expected_version": 7,
                "post_commit_pin": 8,
            }
        ],
    }


@pytest.mark.parametrize(
    "sidecar",
    [
        mutation(),
        mutation(actor=None, branch=BranchName("feature/x"), tables=()),
        mutation(
            writer_kind=WriterKind.BRANCH_MERGE,
            merge_source_commit_id=CommitId("01J"),
            tables=(SidecarPin(PERSON, "nodes/3f", 7, 8, 10, BranchName("b")),),
        ),
        mutation(
            writer_kind=WriterKind.SCHEMA_APPLY,
            additional_registrations=(
                SidecarRegistration(TableKey("node:City"), "nodes/1a"),
                SidecarRegistration(TableKey("edge:In"), "edges/2b", BranchName("b")),
            ),
            tombstones=(SidecarTombstone(TableKey("edge:Knows"), 5),),
        ),
        mutation(reads=(SidecarRead(TableKey("node:City"), 3),)),
        mutation(switches=(SidecarSwitch(TableKey("node:City"), "nodes/1a", 3, 4, BranchName("b")),)),
    ],
)
def test_what_is_written_is_read_back(sidecar, store):
    store.write(sidecar)
    assert store.list() == (NAME,)
    assert store.read(NAME) == sidecar
    store.delete(OPERATION)
    assert store.list() == ()
    assert store.read(NAME) is None
    store.delete(OPERATION)


def test_version_1_is_read_with_its_own_rules():
    text = json.loads(to_text(mutation(writer_kind=WriterKind.BRANCH_MERGE)))
    text["schema_version"] = 1
    text["tables"][0]["confirmed_version"] = 9
    parsed = parse_sidecar(NAME, json.dumps(text))
    assert parsed.schema_version == 1
    assert parsed.tables[0].confirmed_version is None


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "written",
    ["/g/nodes/3f", "/nodes/nodes/3f", "s3://bucket/deep/prefix/nodes/3f", "nodes/3f"],
)
def test_full_addresses_of_earlier_programs_are_read_wherever_the_graph_lies_now(version, written):
    text = json.loads(to_text(mutation())) | {"schema_version": version}
    text["tables"][0]["table_path"] = written
    assert parse_sidecar(NAME, json.dumps(text)).tables[0].table_path == "nodes/3f"


def test_unknown_members_are_ignored():
    text = json.loads(to_text(mutation())) | {"later": {"a": 1}}
    text["tables"][0]["later"] = 1
    assert parse_sidecar(NAME, json.dumps(text)) == mutation()


def test_a_newer_version_is_refused_by_number():
    text = json.dumps({"schema_version": 99, "operation_id": 3})
    with pytest.raises(SidecarSchemaError) as caught:
        parse_sidecar(NAME, text)
    assert (caught.value.object, caught.value.found) == (NAME, 99)
    assert caught.value.max_supported_version == SIDECAR_SCHEMA_VERSION


def changed(member, value):
    text = json.loads(to_text(mutation()))
    text[member] = value
    return json.dumps(text)


def without(member):
    text = json.loads(to_text(mutation()))
    del text[member]
    return json.dumps(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "{}",
        '{"schema_version": "2"}',
        '{"schema_version": true}',
        '{"schema_version": 0}',
        '{"schema_version": 2}',
        "[" * 100_000,
        without("operation_id"),
        without("started_at"),
        without("writer_kind"),
        without("tables"),
        changed("tables", {}),
        changed("tables", [3]),
        changed("tables", [{"table_key": "node:Person"}]),
        changed(
            "tables", [{"table_key": "a", "table_path": "b", "expected_version": -1, "post_commit_pin": 1}]
        ),
        changed("writer_kind", "Gardening"),
        changed("started_at", "soon"),
        changed("operation_id", "01OTHER"),
        changed("branch", 7),
        changed("tombstones", [{"table_key": "a"}]),
        changed("reads", [{"table_key": "a"}]),
    ],
)
def test_a_malformed_sidecar_names_its_object(text):
    with pytest.raises(SidecarSchemaError) as caught:
        parse_sidecar(NAME, text)
    assert caught.value.object == NAME
    assert NAME in str(caught.value)


@pytest.mark.parametrize(
    ("member", "led_out"),
    [("table_path", "nodes/.."), ("table_path", "../nodes"), ("table_branch", "../../elsewhere")],
)
def test_a_note_that_leads_out_of_the_graph_is_malformed(member, led_out):
    text = json.loads(to_text(mutation()))
    text["tables"][0][member] = led_out
    with pytest.raises(SidecarSchemaError, match="is not below the graph"):
        parse_sidecar(NAME, json.dumps(text))


def test_listing_is_sorted_and_takes_only_notes(store):
    for operation in ("01C", "01A", "01B"):
        store.write(mutation(operation_id=OperationId(operation)))
    store._adapter.write_text("__recovery/readme.txt", "x")
    assert store.list() == ("01A.json", "01B.json", "01C.json")
    assert [each.operation_id for each in store.pending()] == ["01A", "01B", "01C"]


def test_a_sidecar_that_vanished_after_the_listing_is_skipped(store):
    store.write(mutation())
    store.write(mutation(operation_id=OperationId("01Z")))

    def finish(window):
        store.delete(OPERATION)

    with activate(Window.RECOVERY_POST_LIST_PRE_READ, finish):
        assert [each.operation_id for each in store.pending()] == ["01Z"]


def test_a_confirmation_has_the_version_of_every_table(store):
    company = TableKey("node:Company")
    merge = mutation(
        writer_kind=WriterKind.BRANCH_MERGE,
        tables=(SidecarPin(PERSON, "nodes/3f", 7, 8), SidecarPin(company, "nodes/4f", 2, 3)),
    )
    store.write(merge)
    confirmed = store.confirm_sidecar_phase_b(merge, {PERSON: 9, company: 4})
    assert [pin.confirmed_version for pin in confirmed.tables] == [9, 4]
    assert store.read(NAME) == confirmed


def test_a_failed_confirmation_leaves_the_unconfirmed_sidecar(store):
    merge = mutation(writer_kind=WriterKind.BRANCH_MERGE)
    store.write(merge)
    with (
        activate(Window.RECOVERY_SIDECAR_CONFIRM, Raise(OSError("full"))),
        pytest.raises(OSError, match="full"),
    ):
        store.confirm_sidecar_phase_b(merge, {PERSON: 9})
    assert store.read(NAME) == merge


def test_a_sidecar_covers_its_tables_on_their_branch_only():
    sidecar = mutation(tables=(SidecarPin(PERSON, "nodes/3f", 7, 8, table_branch=BranchName("b")),))
    assert sidecar.covers(PERSON, BranchName("b"))
    assert not sidecar.covers(PERSON, None)
    assert not sidecar.covers(TableKey("node:Company"), BranchName("b"))
    assert sidecar.queue_keys() == ((PERSON, "b"),)


def test_a_note_with_a_flipped_bit_is_not_followed(tmp_path):
    note = mutation()
    SidecarStore(open_adapter(str(tmp_path))).write(note)
    path = tmp_path / "__recovery" / note.name
    whole = path.read_text()
    path.write_text(whole.replace('"post_commit_pin": 8', '"post_commit_pin": 9'))
    assert path.read_text() != whole
    with pytest.raises(SidecarSchemaError, match="other bytes than were written"):
        parse_sidecar(note.name, path.read_text())
    path.write_text(whole)
    assert parse_sidecar(note.name, path.read_text()) == note
