"""The export command: streams, files, reports and refusals."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import omnigraph as og
from cli.conftest import Run

SCHEMA = """node Ship { imo: String @key  name: String  tonnage: I32? }
node Port { code: String @key }
edge CallsAt: Ship -> Port { berth: String? }
"""
QUERIES = """query all() { match { $s: Ship } return { $s.imo, $s.tonnage } order { $s.imo } }
query one($imo: String) { match { $s: Ship { imo: $imo } } return { $s.name as name } }
"""
STORE = ("--store", "harbor.omni")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with og.init(tmp_path / "harbor.omni", schema=SCHEMA) as graph:
        graph.mutate(
            """query seed() {
              insert Ship { imo: "S1", name: "Aurora, \\"A\\"", tonnage: 900 }
              insert Ship { imo: "S2", name: "" }
              insert Port { code: "LIS" }
              insert CallsAt { from: "S1", to: "LIS", berth: "4B" }
            }"""
        )
    (tmp_path / "q.gq").write_text(QUERIES)
    return tmp_path


@pytest.mark.slow
def test_streams(here: Run, place: Path) -> None:
    cells = here("export", "--type", "Ship", "--format", "csv", *STORE).out
    assert cells == 'id,imo,name,tonnage\n"S1","S1","Aurora, ""A""",900\n"S2","S2","",\n'
    named = here("export", "all", "--query", "q.gq", *STORE).out
    assert [json.loads(line) for line in named.splitlines()] == [
        {"s.imo": "S1", "s.tonnage": 900},
        {"s.imo": "S2", "s.tonnage": None},
    ]
    again = here("export", "--name", "one", "--query", "q.gq", "-p", "imo=S2", "--format", "csv", *STORE)
    assert again.out == 'name\n""\n'
    first = json.loads(here("commit", "list", "--json", *STORE).out)["commits"][-1]["graph_commit_id"]
    assert here("export", "--at", first, *STORE).out == ""


def test_files_and_the_report(here: Run, place: Path) -> None:
    ran = here("export", "--format", "parquet", "--out", "out", "--json", *STORE)
    assert ran.err == ""
    report = ran.json
    assert [(one["name"], one["rows"], one["files"]) for one in report["types"]] == [
        ("Port", 1, ["Port.parquet"]),
        ("Ship", 2, ["Ship.parquet"]),
        ("CallsAt", 1, ["CallsAt.parquet"]),
    ]
    assert (report["rows"], report["engine"], report["format"], report["branch"]) == (
        4,
        "local",
        "parquet",
        "main",
    )
    assert report["bytes"] == sum(one["bytes"] for one in report["types"])
    assert pq.read_metadata(place / "out" / "Ship.parquet").num_rows == 2
    told = here("export", "all", "--query", "q.gq", "--out", "all.csv", *STORE)
    assert told.out == ""
    assert told.err.startswith("exported 2 rows, ")
    assert here("export", "--out", "quiet.jsonl", "--quiet", *STORE).err == ""


@pytest.mark.slow
def test_refusals(here: Run, place: Path) -> None:
    here("export", "--out", "x.jsonl", *STORE)
    again = here("export", "--out", "x.jsonl", "--json", *STORE, rc=1)
    assert again.error["kind"] == "bad_request"
    assert here("export", "--out", "x.jsonl", "--overwrite", *STORE).out == ""
    for arguments in (
        ["--format", "parquet"],
        ["--json"],
        ["--engine", "spark"],
        ["--overwrite"],
        ["all"],
        ["-p", "a=1"],
        ["--type", "Ship", "-e", "query q() { match { $s: Ship } return { $s.imo } }"],
        ["all", "--name", "one", "--query", "q.gq"],
        ["--out", "y", "--spark-conf", "nothing"],
    ):
        refused = here("export", *arguments, *STORE, rc=2)
        assert refused.out == "", arguments
    assert here("export", "--branch", "main", "--at", "x", *STORE, rc=None).rc != 0
    assert not (place / "y").exists()
