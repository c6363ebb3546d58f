"""query and load through the command: formats, targets, statuses, streams."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import omnigraph as og
from cli.conftest import Run
from omnigraph.cli.tables import display_width, jsonl_lines, kv_lines, table_lines
from omnigraph.engine.read.result import Rows

HARBOR = """node Ship { imo: String @key   name: String   tonnage: I32? }
node Port { code: String @key  city: String }
edge CallsAt: Ship -> Port { berth: String? }
edge SisterOf: Ship -> Ship
"""
QUERIES = """query ship_by_imo($imo: String) { match { $s: Ship { imo: $imo } } return { $s.name, $s.tonnage } }
query ships() { match { $s: Ship } return { $s.imo, $s.name, $s.tonnage } order { $s.imo asc } }
"""
RECORDS = """{"type":"Ship","data":{"imo":"S1","name":"Aurora","tonnage":900}}
{"type":"Ship","data":{"imo":"S2","name":"A \\"B\\", C","tonnage":1200}}

{"type":"Ship","data":{"imo":"S3","name":"Corvid"}}
{"type":"Port","data":{"code":"LIS","city":"Lisbon"}}
{"type":"Port","data":{"code":"OSL","city":"Oslo"}}
{"edge":"CallsAt","from":"S1","to":"LIS","data":{"berth":"4B"}}
{"edge":"CallsAt","from":"S2","to":"OSL"}
{"edge":"SisterOf","from":"S1","to":"S2"}
"""
STORE = ("--store", "harbor.omni")
LOCAL = ("--engine", "local", *STORE)
LOAD = ("load", "--data", "harbor.jsonl", "--mode", "merge", *LOCAL)


@pytest.fixture(scope="module")
def harbor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The harbor graph with its eight entities, made once."""
    base = tmp_path_factory.mktemp("harbor")
    (base / "harbor.jsonl").write_text(RECORDS)
    with og.init(base / "harbor.omni", schema=HARBOR) as graph:
        graph.load(base / "harbor.jsonl", mode="overwrite", engine="local")
    return base / "harbor.omni"


@pytest.fixture
def place(harbor: Path, tmp_path: Path) -> Path:
    shutil.copytree(harbor, tmp_path / "harbor.omni")
    (tmp_path / "harbor.pg").write_text(HARBOR)
    (tmp_path / "harbor.gq").write_text(QUERIES)
    (tmp_path / "harbor.jsonl").write_text(RECORDS)
    return tmp_path


@pytest.mark.slow
def test_the_read_envelope(run: Run, place: Path) -> None:
    ran = run("query", "ship_by_imo", "--query", "harbor.gq", "--params", '{"imo":"S1"}', *STORE, "--json")
    assert ran.err == ""
    answer = ran.json
    assert answer["columns"] == ["s.name", "s.tonnage"]
    assert answer["rows"] == [{"s.name": "Aurora", "s.tonnage": 900}]
    assert answer["row_count"] == 1
    assert answer["target"] == {"branch": "main", "snapshot": None}
    head = run("commit", "list", "--limit", "1", *STORE, "--json").json["commits"][0]["graph_commit_id"]
    assert answer["graph_commit_id"] == head


@pytest.mark.parametrize(
    ("arguments", "rc", "kind"),
    [
        (["ship_by_imo", "--query", "harbor.gq"], 1, "missing_parameter"),
        (["ship_by_imo", "--query", "harbor.gq", "-p", "imo=S1", "-p", "imoo=S1"], 1, "unknown_parameter"),
        (["--query", "harbor.gq"], 1, "query_not_selected"),
        (["ship_by_imo"], 2, "usage"),
        (["-e", ""], 2, "usage"),
        (["ships", "--query", "harbor.gq", "--branch", "main", "--snapshot", "x"], 2, "ambiguous_target"),
        (
            ["ships", "--query", "harbor.gq", "--snapshot", "01ARZ3NDEKTSV4RRFFQ69G5FAV"],
            6,
            "commit_not_found",
        ),
        (["-e", 'query q() { delete Ship where imo = "S1" }'], 1, "wrong_query_kind"),
        (["ships", "--query", "harbor.gq", "--format", "csv"], 2, "usage"),
    ],
)
def test_a_refused_read(here: Run, place: Path, arguments: list[str], rc: int, kind: str) -> None:
    ran = here("query", *arguments, *STORE, "--json", rc=rc)
    assert ran.out == ""
    assert ran.error["kind"] == kind


def test_text_formats(here: Run, place: Path) -> None:
    def shown(form: str, *more: str) -> str:
        return here("query", "ships", "--query", "harbor.gq", *STORE, "--format", form, *more).out

    assert shown("csv") == ('s.imo,s.name,s.tonnage\nS1,Aurora,900\nS2,"A ""B"", C",1200\nS3,Corvid,null\n')
    assert shown("csv", "--csv-null", "").endswith("S3,Corvid,\n")
    assert next(json.loads(line) for line in shown("jsonl").splitlines()) == {
        "s.imo": "S1",
        "s.name": "Aurora",
        "s.tonnage": 900,
    }
    first = json.loads(shown("jsonl", "--with-metadata").splitlines()[0])
    assert (first["kind"], first["row_count"], first["query_name"]) == ("metadata", 3, "ships")
    assert shown("table").splitlines()[:3] == [
        "3 rows from branch main via ships",
        "s.imo  s.name    s.tonnage",
        "-----  --------  ---------",
    ]
    assert shown("kv").startswith("3 rows from branch main via ships\nrow 1\ns.imo: S1\n")


@pytest.mark.slow
def test_the_arrow_format_is_a_stream(run: Run, place: Path) -> None:
    import subprocess

    from cli.conftest import COMMAND, clean_environment

    done = subprocess.run(
        [COMMAND, "query", "ships", "--query", "harbor.gq", *STORE, "--format", "arrow"],
        cwd=place,
        env=clean_environment(),
        capture_output=True,
        check=True,
    )
    table = pa.ipc.open_stream(done.stdout).read_all()
    assert table.column("s.imo").to_pylist() == ["S1", "S2", "S3"]


def rows(table: pa.Table, *, branch: str | None = "main", snapshot: str | None = None) -> Rows:
    arrays = tuple(column.combine_chunks() for column in table.columns)
    return Rows(arrays, table.schema, "q", branch, snapshot, "01")


def test_a_table_counts_display_columns_and_cuts_long_cells() -> None:
    assert display_width("日本") == 4
    assert display_width("e\u0301") == 1
    lines = list(table_lines(rows(pa.table({"名前": ["日本", "x" * 100, "a\nb"], "n": [1, None, 3]}))))
    assert lines[3].startswith("日本" + " " * 76 + "  1")
    assert lines[4].startswith("x" * 79 + "…  null")
    assert lines[5].startswith("a\\nb ")


def test_an_empty_result() -> None:
    empty = rows(pa.table({"a": pa.array([], pa.string())}), branch=None, snapshot="01C")
    assert list(table_lines(empty)) == ["0 rows from snapshot 01C via q", "a", "-"]
    assert list(kv_lines(empty)) == ["0 rows from snapshot 01C via q", "(no rows)"]
    assert list(jsonl_lines(empty)) == []


@pytest.mark.slow
def test_reading_an_older_commit(here: Run, place: Path) -> None:
    head = here("commit", "list", "--limit", "1", *STORE, "--json").json["commits"][0]["graph_commit_id"]
    here("mutate", "-e", 'query d() { delete Ship where imo = "S1" }', *STORE)
    assert (
        "3 rows from snapshot"
        in here("query", "ships", "--query", "harbor.gq", *STORE, "--snapshot", head).out
    )
    assert "2 rows from branch" in here("query", "ships", "--query", "harbor.gq", *STORE).out


@pytest.mark.slow
def test_load_reports_what_it_did(run: Run, tmp_path: Path) -> None:
    (tmp_path / "harbor.pg").write_text(HARBOR)
    (tmp_path / "harbor.jsonl").write_text(RECORDS)
    run("init", "--schema", "harbor.pg", "harbor.omni")
    ran = run("load", "--data", "harbor.jsonl", "--mode", "overwrite", *LOCAL, "--json")
    assert ran.err == "load -> harbor.omni (direct, local store; engine local)\n"
    report = ran.json
    assert report["total_entities"] == 8
    assert [(one["name"], one["entities_loaded"]) for one in report["nodes"]] == [("Port", 2), ("Ship", 3)]
    assert [(one["name"], one["entities_loaded"]) for one in report["edges"]] == [
        ("CallsAt", 2),
        ("SisterOf", 1),
    ]
    assert "base_branch" not in report
    newest = run("commit", "list", "--limit", "1", *STORE, "--json").json["commits"][0]
    assert report["commit"]["graph_commit_id"] == newest["graph_commit_id"]


@pytest.mark.parametrize(
    ("records", "arguments", "rc", "kind"),
    [
        ('{"type":"Ship","data":{"imo":"S1","name":"X"}}', ["--mode", "append"], 3, "key_conflict"),
        ('{"type":"Ship","data":{"imo":"S9"}}', ["--mode", "merge"], 1, "constraint_violation"),
        (
            '{"type":"Ship","data":{"imo":"S9","name":"X"},"branch":"x"}',
            ["--mode", "merge"],
            1,
            "load_record",
        ),
        ('{"edge":"CallsAt","from":"S1","to":"NIX"}', ["--mode", "merge"], 1, "constraint_violation"),
        ("{not json", ["--mode", "merge"], 1, "load_record"),
        (
            '{"type":"Ship","data":{"imo":"S9","name":"X"}}',
            ["--mode", "merge", "--branch", "topic"],
            6,
            "branch_not_found",
        ),
        ('{"type":"Ship","data":{"imo":"S9","name":"X"}}', [], 2, "usage"),
        ('{"type":"Ship","data":{"imo":"S9","name":"X"}}', ["--mode", "sideways"], 2, "usage"),
    ],
)
def test_a_refused_load_changes_nothing(
    here: Run, place: Path, records: str, arguments: list[str], rc: int, kind: str
) -> None:
    before = here("export", *STORE).out
    (place / "d.jsonl").write_text(records + "\n")
    ran = here("load", "--data", "d.jsonl", *arguments, *LOCAL, "--json", rc=rc)
    assert ran.out == ""
    assert ran.error["kind"] == kind
    assert here("export", *STORE).out == before
    assert here("branch", "list", *STORE).out == "main\n"


@pytest.mark.slow
def test_load_onto_a_new_branch(here: Run, place: Path) -> None:
    (place / "d.jsonl").write_text('{"type":"Ship","data":{"imo":"S9","name":"X"}}\n')
    arguments = [
        "load",
        "--data",
        "d.jsonl",
        "--mode",
        "merge",
        "--branch",
        "topic",
        "--from",
        "main",
        *LOCAL,
    ]
    report = here(*arguments, "--json").json
    assert (report["branch_created"], report["base_branch"]) == (True, "main")
    assert '"S9"' not in here("export", *STORE).out
    assert '"S9"' in here("export", "--branch", "topic", *STORE).out


def test_load_from_stdin_and_rejects(here: Run, place: Path) -> None:
    records = '{"type":"Ship","data":{"imo":"S8","name":"X"}}\n{"type":"Shp","data":{}}\n'
    ran = here("load", "--data", "-", "--mode", "merge", "--rejects", "aside", *LOCAL, stdin=records)
    assert "1 new" in ran.out
    assert "refused 1 record: see aside" in ran.out
    assert list((place / "aside").iterdir())


@pytest.mark.slow
def test_export_and_load_again_gives_the_same_graph(here: Run, place: Path) -> None:
    exported = here("export", "--out", "e.jsonl", *STORE)
    assert exported.out == ""
    here("init", "--schema", "harbor.pg", "copy.omni")
    here("load", "--data", "e.jsonl", "--mode", "overwrite", "--engine", "local", "--store", "copy.omni")
    assert here("export", "--store", "copy.omni").out == here("export", *STORE).out


def test_a_destructive_load_on_a_remote_graph_needs_consent(here: Run, place: Path) -> None:
    arguments = ["load", "--data", "harbor.jsonl", "--mode", "overwrite", "--store", "s3://nowhere/g.omni"]
    ran = here(*arguments, "--json", rc=5)
    assert ran.error["kind"] == "confirmation_required"
    assert "--yes" in ran.error["hint"]
    assert "--yes" in here(*arguments, rc=5).err


def test_progress_as_lines_of_json(here: Run, place: Path) -> None:
    ran = here("--progress", "json", *LOAD, "--quiet")
    said = [json.loads(line)["progress"] for line in ran.err.splitlines()]
    assert said
    assert {one["operation"] for one in said} <= {"load", "index"}
    assert all({"stage", "done", "total", "unit", "rate", "seconds_left"} <= one.keys() for one in said)


@pytest.mark.parametrize("form", ["auto", "bar", "none"])
def test_progress_says_nothing_in_a_pipe(here: Run, place: Path, form: str) -> None:
    assert here(*LOAD, "--quiet", "--progress", form).err == ""


def test_an_unknown_form_of_progress_is_refused(here: Run, place: Path) -> None:
    assert "--progress takes auto, bar, json, none" in here(*LOAD, "--progress", "loud", rc=2).err


@pytest.mark.slow
def test_a_tag_names_what_is_read(here: Run, place: Path) -> None:
    here("tag", "create", "v1", *STORE)
    here("mutate", "-e", 'query q() { delete Ship where imo = "S1" }', *STORE)
    count = ("query", "-e", "query n() { match { $s: Ship } return { count($s) as ships } }", *STORE)
    assert here(*count, "--at", "v1", "--json").json["rows"] == [{"ships": 3}]
    assert here(*count, "--json").json["rows"] == [{"ships": 2}]
    assert here("export", "--type", "Ship", "--at", "v1", *STORE).out.count("\n") == 3
    assert here(*count, "--at", "v2", "--json", rc=6).error["kind"] == "commit_not_found"


def test_a_load_that_refused_everything_does_not_succeed(here: Run, place: Path) -> None:
    ran = here("load", "--data", "-", "--mode", "merge", "--rejects", "aside", *LOCAL, stdin="oops\n", rc=1)
    assert "refused 1 record" in ran.out
