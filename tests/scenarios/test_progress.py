"""Every long operation says how far it is: what is done only grows, and ends at the total."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from graphs import Heard, hear, make_graph, run
from omnigraph.api.graph import Graph
from omnigraph.core.events import Progress

Stages = dict[tuple[str, str], list[Progress]]


def stages_of(heard: Heard) -> Stages:
    stages: Stages = defaultdict(list)
    for event in heard.of(Progress):
        stages[event.operation, event.stage].append(event)
    for events in stages.values():
        done = [event.done for event in events]
        assert done == sorted(done)
        assert done[-1] == events[-1].total
        assert len({(event.total, event.unit) for event in events}) == 1
    return stages


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """A file of more than three chunks, which is one piece of work."""
    file = tmp_path / "people.csv"
    note = "x" * 4_000
    file.write_text("name,age\n" + "".join(f"{note}{n},{n % 90}\n" for n in range(3_500)))
    return file


@pytest.mark.slow
def test_a_load_in_this_process_counts_bytes_inside_a_piece(graph: Graph, people: Path) -> None:
    with hear(everywhere=True) as heard:
        graph.load(people, mode="append", engine="local", type_name="Person")
    staged = stages_of(heard)["load", "stage"]
    size = people.stat().st_size
    assert (staged[0].done, staged[-1].total, staged[-1].unit) == (0, size, "bytes")
    assert len([event for event in staged if 0 < event.done < size]) >= 3


@pytest.mark.spark
def test_a_load_on_spark_counts_tasks(graph: Graph, people: Path) -> None:
    with hear(everywhere=True) as heard:
        graph.load(people, mode="append", engine="spark", type_name="Person")
    staged = stages_of(heard)["load", "stage"]
    assert (staged[-1].done, staged[-1].unit) == (1, "tasks")


def test_an_index_build_counts_indexes(tmp_path: Path) -> None:
    schema = "node Person { name: String @key  age: I32? @index  city: String? @index }\n"
    records = "".join(
        json.dumps({"type": "Person", "data": {"name": f"n{n}", "age": n, "city": "x"}}) + "\n"
        for n in range(50)
    )
    (tmp_path / "people.jsonl").write_text(records)
    with make_graph(tmp_path / "g", schema) as graph:
        graph.load(tmp_path / "people.jsonl", mode="append", engine="local")
        with hear(everywhere=True) as heard:
            graph.ensure_indices()
        built = stages_of(heard)["index", "build node:Person"]
        assert built[-1].unit == "indexes"
        assert built[-1].total is not None
        assert built[-1].total >= 3


def test_a_merge_counts_tables(graph: Graph) -> None:
    graph.branches.create("dev")
    run(graph, 'insert Person { name: "a" } insert Company { name: "c" }', branch="dev")
    run(graph, 'insert Person { name: "b" }')
    with hear(everywhere=True) as heard:
        graph.branches.merge("dev")
    stages = stages_of(heard)
    assert stages["merge", "compare"][-1].total == 2
    assert stages["merge", "write"][-1].total is not None
    assert {event.unit for key in (("merge", "compare"), ("merge", "write")) for event in stages[key]} == {
        "tables"
    }


def test_a_verification_counts_rows_and_tables(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a" } insert Person { name: "b" } insert Company { name: "c" }')
    graph.branches.create("dev")
    with hear(everywhere=True) as heard:
        assert graph.verify().ok
    stages = stages_of(heard)
    for branch in ("main", "dev"):
        read, checked = stages["verify", f"read {branch}"], stages["verify", f"check {branch}"]
        assert (read[-1].done, read[-1].unit) == (3, "rows")
        assert checked[-1].unit == "tables"
        assert checked[-1].done >= 3


def test_an_export_counts_rows(graph: Graph, tmp_path: Path) -> None:
    run(graph, 'insert Person { name: "a" } insert Person { name: "b" }')
    with hear(everywhere=True) as heard:
        graph.export_to(tmp_path / "out", format="jsonl", types=["Person"])
    assert stages_of(heard)["export", "Person"][-1].done == 2
