"""A small load into a large table asks for what it names; it does not read the table again each time."""

import json

import pytest

from graphs import make_graph
from omnigraph.core.errors import ConstraintViolation
from omnigraph.core.events import TableRead, listen
from omnigraph.pipeline.checks import probe

SCHEMA = """
node Person { name: String @key  age: I32? }
edge Knows: Person -> Person
"""
PEOPLE = 30_000


def name(number):
    return f"person-{number:07d}"


def person(number, age):
    return {"type": "Person", "data": {"name": name(number), "age": age}}


def knows(source, target):
    return {"edge": "Knows", "from": name(source), "to": name(target)}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads records; returns the graph and the bytes that were read of the committed people."""
    monkeypatch.setattr(probe, "PROBED_ROWS_MIN", PEOPLE)
    graph = make_graph(tmp_path / "g", SCHEMA)
    source = tmp_path / "input.jsonl"

    def run(*records, mode="merge"):
        source.write_text("".join(json.dumps(each) + "\n" for each in records))
        read = []

        def hear(event):
            if isinstance(event, TableRead) and event.table_key == "node:Person":
                read.append(event.bytes)

        with listen(hear, everywhere=True):
            graph.load(source, mode=mode, engine="local")
        return graph, sum(read)

    run(*(person(number, 1) for number in range(PEOPLE)), mode="append")
    yield run
    graph.close()


@pytest.mark.slow
def test_key_index_of_one_load_serves_the_next(load):
    _, whole = load(*(person(number, 2) for number in range(400)))
    assert whole > PEOPLE
    graph, read = load(person(5, 3), person(PEOPLE, 3), *(person(number, 4) for number in range(100, 500)))
    assert read < whole / 10
    shown = [
        graph.entity("Person", name(number)).properties["age"] for number in (4, 5, 100, 499, 500, PEOPLE)
    ]
    assert shown == [2, 3, 4, 4, 1, 3]
    assert graph.verify().ok


def test_endpoints_of_a_small_load_are_found_by_the_key_index(load):
    load(*(person(number, 2) for number in range(400)))
    graph, read = load(*(knows(number, PEOPLE - 1 - number) for number in range(200)), mode="append")
    assert read < PEOPLE
    with pytest.raises(ConstraintViolation, match=name(PEOPLE)):
        load(knows(1, PEOPLE), mode="append")
    assert graph.snapshot().entries["edge:Knows"].row_count == 200


@pytest.mark.slow
def test_few_records_make_no_index_of_a_large_table(load, monkeypatch):
    monkeypatch.setattr(probe, "INDEXED_ROWS_MAX", PEOPLE - 1)
    graph, _ = load(*(person(number, 2) for number in range(300)))
    assert not graph.session.keys.is_ready(
        graph.session.root.identity,
        graph.session.open_entry(graph.snapshot().entries["node:Person"]),
    )
    assert [graph.entity("Person", name(number)).properties["age"] for number in (299, 300)] == [2, 1]
