"""Sidecars of schema applies, written by hand: what recovery makes of each step they died after."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest

import omnigraph
from invariants import assert_recovered
from omnigraph.catalog.build import compile_schema
from omnigraph.catalog.ir import schema_hash, to_json
from omnigraph.core.failpoints import Raise, Sequence, Window, activate
from omnigraph.core.ids import TableKey
from omnigraph.manifest.recoveries import RecoveryKind
from omnigraph.recovery.heal import heal_pending_sidecars_roll_forward as heal
from omnigraph.recovery.sidecar import SidecarRegistration, WriterKind
from omnigraph.storage.handles import Stamp
from omnigraph.storage.layout import (
    SCHEMA_IR,
    SCHEMA_SOURCE,
    SCHEMA_STATE,
    STAGING_SUFFIX,
    schema_name,
    table_location,
)
from recovery_graph import FAST, SCHEMA, RawGraph

pytestmark = pytest.mark.crash

WIDER = SCHEMA + "\nnode City { name: String @key }\n"
CITY = TableKey("node:City")
PERSON = TableKey("node:Person")


class Apply:
    """A schema apply that adds one type, step by step."""

    def __init__(self, path, *, begun=True):
        self.graph = RawGraph.create(path)
        self.graph.write(PERSON, ["ada"])
        accepted = compile_schema(SCHEMA)
        wider = compile_schema(WIDER, accepted=accepted)
        self.catalog = replace(wider, generation=accepted.generation + 1, parent=schema_hash(accepted))
        self.location = table_location(CITY)
        self.note = self.graph.sidecar(
            kind=WriterKind.SCHEMA_APPLY,
            additional_registrations=(SidecarRegistration(CITY, self.location),),
        )
        if begun:
            self.begin()

    def begin(self):
        self.graph.context.sidecars.write(self.note)
        return self

    def create_table(self):
        stamp = Stamp(self.note.operation_id, CITY)
        schema = self.catalog.nodes["City"].arrow_schema
        self.graph.session.storage.create_table(CITY, self.location, schema, stamp)
        return self

    def stage(self):
        adapter = self.graph.session.adapter
        hashed = schema_hash(self.catalog)
        state = {
            "format": 1,
            "schema_hash": hashed,
            "source_hash": self.catalog.source_hash,
            "operation_id": self.note.operation_id,
        }
        adapter.write_text(schema_name(hashed), to_json(self.catalog))
        adapter.write_text(SCHEMA_SOURCE + STAGING_SUFFIX, WIDER)
        adapter.write_text(SCHEMA_IR + STAGING_SUFFIX, to_json(self.catalog))
        adapter.write_text(SCHEMA_STATE + STAGING_SUFFIX, json.dumps(state))
        return self


@pytest.fixture
def path(tmp_path):
    return tmp_path / "graph"


def assert_new_schema(path, operation_id):
    graph = RawGraph.attach(path)
    assert CITY in graph.pins()
    assert graph.session.schemas.current().source == WIDER
    assert graph.session.manifest.current(None).schema_hash == graph.session.schemas.current().hash
    assert_recovered(path, operation_id, RecoveryKind.ROLLED_FORWARD)
    assert not list(path.glob(f"*{STAGING_SUFFIX}"))


@pytest.mark.parametrize("enter", ["open", "heal"])
def test_a_schema_apply_that_staged_its_files_rolls_forward(path, enter):
    apply = Apply(path).create_table().stage()
    if enter == "open":
        RawGraph.open(path)
    else:
        assert heal(apply.graph.context).schema_changed
    assert_new_schema(path, apply.note.operation_id)


@pytest.mark.parametrize("renamed", [0, 1, 2, 3])
@pytest.mark.parametrize("enter", ["mutate", "refresh", "merge", "load"])
def test_every_writer_completes_a_schema_apply_that_died_between_its_renames(path, tmp_path, enter, renamed):
    apply = Apply(path, begun=False)
    with omnigraph.open(path, settings=FAST) as graph:
        graph.branches.create("review")
        apply.begin().create_table().stage()
        for name in (SCHEMA_SOURCE, SCHEMA_IR, SCHEMA_STATE)[:renamed]:
            (path / (name + STAGING_SUFFIX)).rename(path / name)
        match enter:
            case "mutate":
                graph.mutate('query q() { insert City { name: "Oslo" } }')
            case "refresh":
                graph.refresh()
            case "merge":
                graph.branches.merge("review")
            case "load":
                (tmp_path / "city.jsonl").write_text('{"type":"City","data":{"name":"Oslo"}}\n')
                graph.load(tmp_path / "city.jsonl", mode="append", engine="local")
    assert_new_schema(path, apply.note.operation_id)


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("enter", ["open", "heal"])
def test_a_schema_apply_that_staged_nothing_rolls_back_and_can_be_repeated(path, enter, steps):
    apply = Apply(path)
    if steps:
        apply.create_table()
    if enter == "open":
        RawGraph.open(path)
    else:
        heal(apply.graph.context)
    graph = RawGraph.attach(path)
    assert CITY not in graph.pins()
    assert graph.session.schemas.current().source == SCHEMA
    assert not (path / apply.location).exists(), "the retry could not create the table"
    assert_recovered(path, apply.note.operation_id, RecoveryKind.ROLLED_BACK, outcomes={})


@pytest.mark.parametrize(
    "window",
    [
        Window.RECOVERY_BEFORE_ROLL_FORWARD_PUBLISH,
        Window.RECOVERY_RECORD_AUDIT,
        Window.RECOVERY_SIDECAR_DELETE,
    ],
)
def test_a_recovery_that_dies_after_the_renames_still_rolls_forward(path, window):
    apply = Apply(path).create_table().stage()
    with activate(window, Sequence([Raise(OSError("cut"))])), suppress(OSError):
        RawGraph.open(path)
    RawGraph.open(path)
    assert_new_schema(path, apply.note.operation_id)


def test_tables_of_another_operation_are_not_removed(path):
    apply = Apply(path)
    stamp = Stamp("somebody else", CITY)
    apply.graph.session.storage.create_table(
        CITY, apply.location, apply.catalog.nodes["City"].arrow_schema, stamp
    )
    RawGraph.open(path)
    assert (path / apply.location).exists()
    assert_recovered(path, apply.note.operation_id, RecoveryKind.ROLLED_BACK, outcomes={})
