"""The failures of the error specification that a user of one graph can meet, each by its number."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import omnigraph as og
from cli.conftest import COMMAND, Run, clean_environment
from omnigraph.core.settings import Settings

SCHEMA = """node Ship { imo: String @key  name: String  tonnage: I32? }
edge SisterOf: Ship -> Ship
"""
STORE = ("--store", "g.omni")
LOAD = ("load", "--mode", "append", "--engine", "local", "--quiet", *STORE, "--data")
SHIPS = 20_000
ALL = "query q() { match { $s: Ship } return { $s.imo, $s.name } }"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("made")
    rows = (
        json.dumps({"type": "Ship", "data": {"imo": f"S{number}", "name": "x" * 60}})
        for number in range(1, SHIPS + 1)
    )
    (base / "in.jsonl").write_text("\n".join(rows))
    with og.init(base / "g.omni", schema=SCHEMA, settings=Settings(durability="os")) as graph:
        graph.load(base / "in.jsonl", mode="append", engine="local")
    return base / "g.omni"


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "g.omni")
    return tmp_path


def query(body: str) -> tuple[str, ...]:
    return ("query", "-e", body, *STORE, "--json")


@pytest.mark.slow
def test_e4_to_e8_a_query_that_is_wrong(here: Run, place: Path) -> None:
    unclosed = here(*query("query q() {\n  match { $s: Ship }\n  return { $s.name }\n"), rc=1).error
    assert unclosed["kind"] == "query_syntax"
    assert unclosed["source_error"]["line"] >= 3
    unknown = here(*query("query q() { match { $s: Ship } return { $s.tonage } }"), rc=1).error
    assert (unknown["kind"], unknown["candidates"]) == ("query_type", ["tonnage"])
    by_imo = query("query q($imo: String) { match { $s: Ship { imo: $imo } } return { $s.name } }")
    missing = here(*by_imo, rc=1)
    assert (missing.error["kind"], missing.out) == ("missing_parameter", "")
    extra = here(*by_imo, "-p", "imo=S1", "-p", "imoo=S1", rc=1).error
    assert (extra["kind"], extra["candidates"]) == ("unknown_parameter", ["imo"])
    both = 'query q() { insert Ship { imo: "N", name: "N" } delete Ship where imo = "S1" }'
    assert here("mutate", "-e", both, *STORE, "--json", rc=1).error["kind"] == "mixed_mutation"
    assert here("verify", *STORE, "--json").json["entities"] == SHIPS


def refused_load(here: Run, place: Path, records: str, rc: int) -> dict[str, Any]:
    """The JSON error of a load that changes nothing; the text of the same failure begins with its place."""
    (place / "in.jsonl").write_text(records + "\n")
    refused = here(*LOAD, "in.jsonl", "--json", rc=rc)
    assert refused.out == ""
    assert here(*LOAD, "in.jsonl", rc=rc).err.removeprefix("error: ").startswith("in.jsonl:1: ")
    assert here("verify", *STORE, "--json").json["entities"] == SHIPS
    return refused.error


@pytest.mark.slow
def test_e10_an_edge_to_nowhere(here: Run, place: Path) -> None:
    error = refused_load(here, place, '{"edge":"SisterOf","from":"S1","to":"nowhere"}', 1)
    assert (error["kind"], error["constraint"]["rule"]) == ("constraint_violation", "endpoint")
    assert error["source_error"] == {"file": "in.jsonl", "line": 1, "column": 1}


def test_e11_an_id_that_exists(here: Run, place: Path) -> None:
    error = refused_load(here, place, '{"type":"Ship","data":{"imo":"S1","name":"again"}}', 3)
    assert (error["kind"], error["retry"]) == ("key_conflict", "never")
    assert error["key_conflict"]["entity_id"] == "S1"


def test_e12_an_id_that_comes_twice(here: Run, place: Path) -> None:
    """The rules of a load say which kind this is: a broken rule, because neither record came first."""
    twice = '{"type":"Ship","data":{"imo":"N","name":"a"}}\n{"type":"Ship","data":{"imo":"N","name":"b"}}'
    error = refused_load(here, place, twice, 1)
    assert (error["kind"], error["constraint"]["rule"]) == ("constraint_violation", "unique")
    assert error["constraint"]["entity_id"] == "N"


def test_e19_a_branch_with_children_stays(here: Run, place: Path) -> None:
    here("branch", "create", "topic", "--quiet", *STORE)
    here("branch", "create", "kid", "--from", "topic", "--quiet", *STORE)
    refused = here("branch", "delete", "topic", *STORE, "--json", rc=3).error
    assert (refused["kind"], refused["blocking_branches"]) == ("branch_has_children", ["kid"])


@pytest.mark.slow
def test_e20_a_drop_names_the_branches_in_its_way(here: Run, place: Path) -> None:
    (place / "less.pg").write_text(SCHEMA.replace("  tonnage: I32?", ""))
    here("branch", "create", "topic", "--quiet", *STORE)
    apply = ("schema", "apply", "--schema", "less.pg", *STORE, "--json")
    refused = here(*apply, rc=3).error
    assert refused["kind"] == "branches_block_schema_apply"
    assert "topic" in refused["error"]
    assert here(*query("query q() { match { $s: Ship } return { $s.tonnage } limit 1 }")).json["rows"]
    here("branch", "delete", "topic", "--quiet", *STORE)
    assert here(*apply).json["applied"]


def test_e32_a_graph_without_its_manifest_is_no_graph_and_no_place_for_one(here: Run, place: Path) -> None:
    (place / "g.omni" / "__manifest").rename(place / "aside")
    (place / "s.pg").write_text(SCHEMA)
    assert here("verify", *STORE, "--json", rc=6).error["kind"] == "graph_not_found"
    # The schema is there, so this may also be a creation that is under way: nothing is taken over unasked.
    again = here("init", "--schema", "s.pg", "g.omni", "--json", rc=3)
    assert again.error["kind"] == "initialization_claimed"
    (place / "aside").rename(place / "g.omni" / "__manifest")
    assert here("verify", *STORE, "--json").json["entities"] == SHIPS


def test_e33_a_graph_without_its_schema_wants_it_back(here: Run, place: Path) -> None:
    (place / "g.omni" / "_schema.pg").unlink()
    (place / "g.omni" / "_schema.ir.json").unlink()
    refused = here("verify", *STORE, "--json", rc=6).error
    assert refused["kind"] == "schema_contract_missing"
    assert "restore" in refused["hint"]


def test_e37_a_damaged_cursor(here: Run, place: Path) -> None:
    cursor = here("changes", "poll", *STORE, "--json").json["cursor"]
    middle = len(cursor) // 2
    damaged = cursor[:middle] + ("A" if cursor[middle] != "A" else "B") + cursor[middle + 1 :]
    refused = here("changes", "poll", "--cursor", damaged, *STORE, "--json", rc=1).error
    assert refused["kind"] == "change_cursor_rejected"


@pytest.mark.slow
def test_e47_ctrl_c_ends_a_read_whose_reader_does_not_read(place: Path) -> None:
    with subprocess.Popen(
        [COMMAND, "query", "-e", ALL, "--format", "csv", *STORE],
        cwd=place,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.read(1) == b"s"
        # The pipe is full by now, or soon will be: the command waits for a reader, with more in its buffer.
        time.sleep(1)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=30) == 130
        assert child.stderr.read() == b"interrupted\n"
