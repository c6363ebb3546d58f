"""Every step of a write stands once: outside recovery no other module makes its records or takes its steps."""

import ast
from pathlib import Path

import pyarrow as pa
import pytest

import omnigraph
from graphs import hear
from omnigraph.core.errors import ExpectedVersionMismatch, InternalError, RecoveryRequired
from omnigraph.core.events import DurableOperation, SidecarWritten
from omnigraph.core.ids import CommitId, OperationId, TableKey, new_ulid
from omnigraph.engine.write.ground import Ground, ReadSetMoved, WhenMoved
from omnigraph.engine.write.parts import LaterPart, StagedPart, TableWrite, WriteIntent
from omnigraph.engine.write.protocol import Staged, carry
from omnigraph.recovery.outcome import WriteCourse
from omnigraph.recovery.sidecar import WriterKind
from omnigraph.storage.handles import Stamp

SOURCES = Path(omnigraph.__file__).parent
BELOW = ("recovery", "manifest", "storage")
"""Rooms that offer the steps, or settle what a dead writer left of them."""
PROTOCOL, RECORDS = "engine/write/protocol.py", "engine/write/records.py"
STEPS = {
    "Sidecar": {RECORDS},
    "SidecarPin": {RECORDS},
    "SidecarSwitch": {RECORDS},
    "SidecarRead": {RECORDS},
    "SubTableUpdate": {RECORDS},
    "RegisterTable": {RECORDS},
    "CommitIntent": {RECORDS},
    "drift_guard": {"engine/write/ground.py"},
    "fork_table": {PROTOCOL},
    "commit_staged": {PROTOCOL},
    "confirm_sidecar_phase_b": {PROTOCOL},
    "left_to_recovery": {PROTOCOL},
    "intends": {PROTOCOL},
    "published": {PROTOCOL},
    "publish": {PROTOCOL},
    "publish_prepared": {PROTOCOL},
    "delete_or_warn": {PROTOCOL},
    "write_prepared": {"engine/write/early.py"},
    "heal_pending_sidecars_roll_forward": {"engine/write/entering.py", "engine/upkeep.py"},
}
PERSON, CITY = TableKey("node:Person"), TableKey("node:City")
SCHEMA = "node Person { name: String @key }\nnode City { name: String @key }"


def callers() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {name: set() for name in STEPS}
    for path in SOURCES.rglob("*.py"):
        module = str(path.relative_to(SOURCES))
        if module.startswith(BELOW):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", None))
                if name in found:
                    found[name].add(module)
    return found


@pytest.mark.slow
def test_no_step_of_the_protocol_stands_twice() -> None:
    assert callers() == STEPS


# --- what a writer may say ------------------------------------------------------------------------------


@pytest.fixture
def graph(tmp_path):
    with omnigraph.init(tmp_path / "g", schema=SCHEMA) as made:
        made.mutate('query q() { insert Person { name: "ada" } insert City { name: "bern" } }')
        yield made


class Hand:
    """A write of derived state, put together by hand: its rows are new, so that a reader can count them."""

    def __init__(self, graph, kind=WriterKind.OPTIMIZE):
        self.session = graph.session
        self.head = self.session.manifest.head(None)
        self.kind = kind
        self.operation_id = OperationId(new_ulid())

    def rows(self, handle, *names):
        """Rows staged on a version of a table."""
        table = pa.table({"id": list(names), "name": list(names)}, schema=handle.schema)
        return self.session.storage.stage_append(handle, table, Stamp(self.operation_id, handle.table_key))

    def table(self, key, *parts):
        """A table with these parts; a part may be names to append now, or a call that stages them later."""
        entry = self.head.snapshot.entries[key]
        handle = self.session.open_entry(entry)
        made = [LaterPart(part) if callable(part) else StagedPart(self.rows(handle, part)) for part in parts]
        return TableWrite(entry, handle, tuple(made))

    def carry(self, *tables, when_moved=WhenMoved.REFUSE, **named):
        intent = WriteIntent(self.kind, "load", self.operation_id, CommitId(new_ulid()))
        ground = Ground(self.head.snapshot, self.head.token or "", when_moved)
        by_key = {table.entry.table_key: table for table in tables}
        course = WriteCourse("the write by hand")
        return carry(self.session, Staged(intent, ground, course, by_key), **named)


def names(graph, type_name):
    found = graph.query(
        f"query q() {{ match {{ $n: {type_name} }} return {{ $n.name }} order {{ $n.name asc }} }}"
    )
    return [row["n.name"] for row in found]


@pytest.mark.slow
def test_the_parts_of_a_table_are_committed_in_turn(graph):
    hand = Hand(graph)
    seen = []

    def later(handle):
        seen.append((handle.version, handle.row_count))
        return hand.rows(handle, "later")

    before = hand.head.snapshot.entries[PERSON]
    table = hand.table(PERSON, "first", "second", later, lambda _handle: None)
    finished = hand.carry(table, hand.table(CITY, "rome"))
    assert seen == [(before.version + 2, before.row_count + 2)]
    shown = finished.snapshot.entries[PERSON]
    assert (shown.version, shown.row_count) == (before.version + 3, before.row_count + 3)
    assert names(graph, "Person") == ["ada", "first", "later", "second"]
    assert names(graph, "City") == ["bern", "rome"]
    assert graph.pending() == ()
    assert graph.verify().ok


@pytest.mark.slow
def test_a_table_that_gets_no_commit_stops_the_write(graph):
    """It is named in the sidecar: a table that never moves would make recovery undo the others."""
    hand = Hand(graph)
    with pytest.raises(RecoveryRequired, match="nothing was written to 'node:Person'"):
        hand.carry(hand.table(PERSON, lambda _handle: None), hand.table(CITY, "rome"))
    assert graph.pending() == (hand.operation_id,)
    with omnigraph.open(graph.uri) as again:
        assert (names(again, "Person"), names(again, "City")) == (["ada"], ["bern"])
        assert again.verify().ok


def test_queues_that_do_not_cover_the_write_are_refused_before_any_effect(graph):
    hand = Hand(graph)
    with (
        graph.session.queues.acquire_many([(PERSON, None)]) as guards,
        pytest.raises(InternalError, match="do not cover: node:City@main"),
    ):
        hand.carry(hand.table(PERSON, "x"), hand.table(CITY, "x"), guards=guards)
    assert graph.pending() == ()
    assert names(graph, "Person") == ["ada"]


@pytest.mark.parametrize(
    ("when_moved", "expected"),
    [
        (WhenMoved.REFUSE, ExpectedVersionMismatch),
        (WhenMoved.REFUSE_OTHER_ROWS, ExpectedVersionMismatch),
        (WhenMoved.PREPARE_AGAIN, ReadSetMoved),
    ],
)
def test_a_table_that_moved_meanwhile_decides_about_the_write(graph, when_moved, expected):
    hand = Hand(graph)
    table = hand.table(PERSON, "x")
    graph.mutate('query q() { insert Person { name: "other" } }')
    with pytest.raises(expected):
        hand.carry(table, when_moved=when_moved)
    assert graph.pending() == ()
    assert names(graph, "Person") == ["ada", "other"]


def test_what_recovery_cannot_judge_is_durable_before_the_sidecar(graph):
    """Recovery publishes whatever an index build left, so the files of its parts are synced first."""
    hand = Hand(graph)
    table = hand.table(PERSON, "x")
    with hear(everywhere=True) as heard:
        hand.carry(table)
    events = [each for each in heard.events if isinstance(each, DurableOperation | SidecarWritten)]
    before = events[: next(n for n, each in enumerate(events) if isinstance(each, SidecarWritten))]
    synced = {each.path for each in before if each.kind == "sync_file" and each.moment == "after"}
    assert table.files
    assert set(table.files) <= synced
