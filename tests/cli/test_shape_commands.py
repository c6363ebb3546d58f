"""`stats` and `indexes` on the command line."""

from pathlib import Path

import pytest

import graphs
from cli.conftest import Run

SCHEMA = "node P { name: String @key  n: I32? @index  place: Vector(2)? @index }\nedge Knows: P -> P"
STORE = ("--store", "g.omni")


@pytest.mark.slow
def test_the_commands_print_tables_and_json(tmp_path: Path, here: Run) -> None:
    with graphs.make_graph(tmp_path / "g.omni", SCHEMA) as graph:
        graphs.run(graph, " ".join(f'insert P {{ name: "p{n}", n: {n} }}' for n in range(10)))
        graph.ensure_indices()
    lines = here("stats", *STORE).out.splitlines()
    assert lines[0].split()[:4] == ["branch", "type", "owner", "rows"]
    assert ["main", "node:P", "main", "10"] in [line.split()[:4] for line in lines]
    answer = here("stats", "--branch", "main", "--json", *STORE).json
    (people,) = [each for each in answer["branches"][0]["datasets"] if each["type_key"] == "node:P"]
    assert (people["rows"], people["uncovered_fragments"]) == (10, 0)
    lines = here("indexes", "P", *STORE).out.splitlines()
    assert ["P", "n", "n_btree", "BTREE", "complete"] in [line.split()[:5] for line in lines]
    assert any("not needed: exact search" in line for line in lines)
    answer = here("indexes", "--json", *STORE).json
    assert {each["column"] for each in answer["columns"]} == {"id", "name", "n", "place", "src", "dst"}
    here("stats", "--branch", "b", "--at", "x", *STORE, rc=2)
    assert here("indexes", "Q", "--json", *STORE, rc=None).error["kind"] == "type_not_found"
