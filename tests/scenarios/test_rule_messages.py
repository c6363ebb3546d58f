"""A broken rule reads the same whoever broke it: a mutation, a load or a merge."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphs import make_graph, run
from omnigraph.api.graph import Graph
from omnigraph.core.errors import ConstraintViolation, KeyConflict, MergeConflicts

SCHEMA = """
node Person { name: String @key  nick: String? @unique }
node Slot {
  k: String @key  day: Date? @unique  at: DateTime? @unique  hall: Date?  seat: I32?  @unique(hall, seat)
}
node Day { day: Date @key }
node Visit { at: DateTime  n: I32  @key(at, n) }
node Note { text: String @unique }
edge Likes: Person -> Person @card(0..1)
"""
BEFORE = 'insert Person { name: "ann" } insert Person { name: "bob" } insert Person { name: "cat" }'
LATER = """
insert Slot {
  k: "y", day: date("2026-06-29"), at: datetime("2026-06-29T07:08:09.010Z"), hall: date("1969-12-31"), seat: 7
}
insert Likes { from: "ann", to: "cat" }
"""
CALLS = {"day": "date", "hall": "date", "at": "datetime"}
Write = Callable[[Graph, str], str]
"""Adds the entity of one record; what its refusal says."""


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    """`side` was made before main got what the new entity does not go with."""
    with make_graph(tmp_path / "g", SCHEMA) as made:
        run(made, BEFORE)
        made.branches.create("side")
        run(made, LATER)
        run(made, 'delete Person where name = "bob"')
        yield made


def literal(name: str, value: object) -> str:
    return f"{CALLS[name]}({json.dumps(value)})" if name in CALLS else json.dumps(value)


def by_mutation(graph: Graph, record: str) -> str:
    described = json.loads(record)
    members = described["data"] | {end: described[end] for end in ("from", "to") if end in described}
    said = ", ".join(f"{name}: {literal(name, value)}" for name, value in members.items())
    with pytest.raises(ConstraintViolation) as refused:
        run(graph, f"insert {described.get('type') or described['edge']} {{ {said} }}")
    return str(refused.value)


def by_load(graph: Graph, record: str) -> str:
    source = Path(graph.uri).parent / "in.jsonl"
    source.write_text(record)
    with pytest.raises(ConstraintViolation) as refused:
        graph.load(source, mode="append", engine="local")
    place = f"{source}:1: "
    assert str(refused.value).startswith(place)
    (violation,) = refused.value.violations
    assert (violation.file, violation.line) == (str(source), 1)
    assert violation.message == str(refused.value).removeprefix(place)
    return violation.message


def by_merge(graph: Graph, record: str) -> str:
    source = Path(graph.uri).parent / "side.jsonl"
    source.write_text(record)
    graph.load(source, mode="append", branch="side", engine="local")
    with pytest.raises(MergeConflicts) as refused:
        graph.branches.merge("side")
    (conflict,) = refused.value.conflicts
    return conflict["message"]


@pytest.mark.parametrize("write", [by_mutation, by_load, by_merge])
@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            '{"type":"Slot","data":{"k":"z","day":"2026-06-29"}}',
            "Slot.day: '2026-06-29' is held by 'y' and 'z'",
        ),
        (
            '{"type":"Slot","data":{"k":"z","at":"2026-06-29T09:08:09.01+02:00"}}',
            "Slot.at: '2026-06-29T07:08:09.010Z' is held by 'y' and 'z'",
        ),
        (
            '{"type":"Slot","data":{"k":"x","hall":"1969-12-31","seat":7}}',
            "Slot.(hall, seat): ('1969-12-31', '7') is held by 'x' and 'y'",
        ),
        (
            '{"edge":"Likes","from":"cat","to":"bob","data":{}}',
            "Likes: no Person with id 'bob' (target)",
        ),
        (
            '{"edge":"Likes","from":"ann","to":"ann","data":{}}',
            "Likes: source 'ann' would have 2 edges (at most 1)",
        ),
    ],
    ids=["date", "moment", "tuple", "endpoint", "cardinality"],
)
def test_a_rule_has_one_sentence(graph: Graph, write: Write, record: str, said: str) -> None:
    assert write(graph, record) == said


def loaded(graph: Graph, *records: str, mode: str = "append") -> str:
    source = Path(graph.uri).parent / "in.jsonl"
    source.write_text("".join(f"{record}\n" for record in records))
    with pytest.raises((ConstraintViolation, KeyConflict)) as refused:
        graph.load(source, mode=mode, engine="local")
    return refused.value.message.removeprefix(f"{source}")


def test_a_key_that_occurs_twice_is_written_as_its_records_write_it(graph: Graph) -> None:
    day = '{"type":"Day","data":{"day":"2026-06-29"}}'
    assert loaded(graph, day, day) == ":1: Day.day: '2026-06-29' occurs 2 times in the input"
    visit = '{"type":"Visit","data":{"at":"2026-06-29T01:02:03Z","n":4}}'
    said = "Visit.(at, n): ('2026-06-29T01:02:03.000Z', '4') occurs 2 times in the input"
    assert loaded(graph, visit, visit) == f":1: {said}"


def test_rows_without_an_id_of_their_own_are_new_rows(graph: Graph) -> None:
    note = '{"type":"Note","data":{"text":"x"}}'
    assert loaded(graph, note, note) == ":1: Note.text: 'x' is held by two new rows"
    run(graph, 'insert Note { text: "x" }')
    assert loaded(graph, note).endswith(" and a new row")


@pytest.mark.slow
def test_an_edge_that_loses_its_node_is_named_with_the_write_that_deletes_it(graph: Graph) -> None:
    folder = Path(graph.uri).parent
    (folder / "edge.jsonl").write_text('{"edge":"Likes","from":"cat","to":"ann","data":{"id":"e1"}}')
    (folder / "people.jsonl").write_text('{"type":"Person","data":{"name":"cat"}}')
    graph.branches.create("without", from_branch="side")
    graph.load(folder / "edge.jsonl", mode="append", branch="side", engine="local")
    with pytest.raises(ConstraintViolation) as refused:
        graph.load(folder / "people.jsonl", mode="overwrite", branch="side", engine="local")
    assert str(refused.value) == "Likes 'e1': the load deletes Person 'ann' (target)"
    run(graph, 'delete Person where name = "ann"', branch="without")
    with pytest.raises(MergeConflicts) as conflicting:
        graph.branches.merge("without", into="side")
    (conflict,) = conflicting.value.conflicts
    assert conflict["message"] == "Likes 'e1': the merge deletes Person 'ann' (target)"


def test_an_existing_id_is_said_in_one_sentence_with_a_way_out(graph: Graph) -> None:
    said = "node type 'Person' already has an entity with id 'cat'"
    assert loaded(graph, '{"type":"Person","data":{"name":"cat"}}') == f":1: {said}"
    with pytest.raises(KeyConflict) as refused:
        run(graph, 'insert new Person { name: "cat" }')
    assert str(refused.value) == f"{said}\nhint: {refused.value.hint}"
    assert "`new`" in (refused.value.hint or "")
