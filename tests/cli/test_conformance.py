"""The conformance cases of the command line, each on the installed command in a child process.

A test is named after its case; those of servers are in `server/test_commands.py`.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import omnigraph as og
from cli.conftest import Run
from omnigraph.core.settings import Settings

pytestmark = pytest.mark.slow  # a process for each of a hundred commands

CASES = {f"C{number}" for number in range(1, 51)}

SCHEMA = """node Ship { imo: String @key   name: String   tonnage: I32?   papers: Blob? }
node Port { code: String @key  city: String }
edge CallsAt: Ship -> Port { berth: String? }
edge SisterOf: Ship -> Ship
"""
QUERIES = """query ship_by_imo($imo: String) { match { $s: Ship { imo: $imo } } return { $s.name, $s.tonnage } }
query heavy_ships($min: I32) {
  match { $s: Ship  $s.tonnage >= $min }
  return { $s.name, $s.tonnage }
  order { $s.tonnage desc }
}
query add_ship($imo: String, $name: String) { insert Ship { imo: $imo, name: $name } }
query set_tonnage($imo: String, $tonnage: I32) { update Ship set { tonnage: $tonnage } where imo = $imo }
query scrap($imo: String) { delete Ship where imo = $imo }
"""
RECORDS = """{"type":"Ship","data":{"imo":"S1","name":"Aurora","tonnage":900}}
{"type":"Ship","data":{"imo":"S2","name":"Borealis","tonnage":1200}}
{"type":"Ship","data":{"imo":"S3","name":"Corvid"}}
{"type":"Port","data":{"code":"LIS","city":"Lisbon"}}
{"type":"Port","data":{"code":"OSL","city":"Oslo"}}
{"edge":"CallsAt","from":"S1","to":"LIS","data":{"berth":"4B"}}
{"edge":"CallsAt","from":"S2","to":"OSL"}
{"edge":"SisterOf","from":"S1","to":"S2"}
"""
STORE = ("--store", "harbor.omni")
LOCAL = ("--engine", "local", "--quiet")
FAST = {"OMNIGRAPH_DURABILITY": "os"}
BY_IMO = ("query", "ship_by_imo", "--query", "harbor.gq", "--params", '{"imo":"S1"}')


@pytest.fixture(scope="module")
def harbor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph of the cases with its eight entities, made once; every test works on its own copy."""
    base = tmp_path_factory.mktemp("harbor")
    (base / "harbor.jsonl").write_text(RECORDS)
    with og.init(base / "harbor.omni", schema=SCHEMA, settings=Settings(durability="os")) as graph:
        graph.load(base / "harbor.jsonl", mode="overwrite", engine="local")
    return base / "harbor.omni"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The input files alone."""
    (tmp_path / "harbor.pg").write_text(SCHEMA)
    (tmp_path / "harbor.gq").write_text(QUERIES)
    (tmp_path / "harbor.jsonl").write_text(RECORDS)
    return tmp_path


@pytest.fixture
def place(files: Path, harbor: Path) -> Path:
    """The input files and the graph."""
    shutil.copytree(harbor, files / "harbor.omni")
    return files


@pytest.fixture
def go(run: Run) -> Run:
    """The command without syncs: durability is not the subject here."""

    def command(*arguments: str, env: dict[str, str] | None = None, **more: Any) -> Any:
        return run(*arguments, env={**FAST, **(env or {})}, **more)

    return command


def config(place: Path, text: str) -> dict[str, str]:
    """A personal configuration, and the variable that points at it."""
    (place / "home").mkdir(exist_ok=True)
    (place / "home" / "config.yaml").write_text(text)
    return {"OMNIGRAPH_HOME": str(place / "home")}


def head(go: Run, *more: str) -> str:
    return go("commit", "list", "--limit", "1", *more, *STORE, "--json").json["commits"][0]["graph_commit_id"]


def tonnage(go: Run, *more: str) -> int:
    return go(*BY_IMO, *more, *STORE, "--json").json["rows"][0]["s.tonnage"]


def names_in(place: Path) -> dict[str, int]:
    return {str(path.relative_to(place)): path.stat().st_size for path in place.rglob("*") if path.is_file()}


def test_every_case_is_run() -> None:
    over_a_server = Path(__file__).parents[1] / "server" / "test_commands.py"
    text = Path(__file__).read_text() + over_a_server.read_text()
    names = re.findall(r"^def test_((?:c\d+_)+)", text, re.MULTILINE)
    assert {label.upper() for name in names for label in name.strip("_").split("_")} == CASES


def test_c1_init_once(go: Run, files: Path) -> None:
    assert "harbor.omni" in go("init", "--schema", "harbor.pg", "harbor.omni").out
    before = names_in(files / "harbor.omni")
    again = go("init", "--schema", "harbor.pg", "harbor.omni", "--json", rc=3)
    assert again.error["kind"] == "already_initialized"
    assert names_in(files / "harbor.omni") == before


def test_c2_init_takes_no_store(go: Run, files: Path) -> None:
    assert "--store" in go("init", "--schema", "harbor.pg", "--store", "x.omni", "y.omni", rc=2).err
    assert not list(files.glob("*.omni"))


def test_c3_load_reports_what_it_did(go: Run, files: Path) -> None:
    go("init", "--schema", "harbor.pg", "harbor.omni")
    done = go("load", "--data", "harbor.jsonl", "--mode", "overwrite", *LOCAL, *STORE, "--json").json
    assert done["total_entities"] == 8
    assert {each["name"]: each["entities_loaded"] for each in done["nodes"]} == {"Port": 2, "Ship": 3}
    assert {each["name"]: each["entities_loaded"] for each in done["edges"]} == {"CallsAt": 2, "SisterOf": 1}
    assert done["commit"]["graph_commit_id"] == head(go)


def test_c4_load_needs_a_mode_and_a_store(go: Run, place: Path) -> None:
    assert "--mode" in go("load", "--data", "harbor.jsonl", *STORE, rc=2).err
    positional = go("load", "--data", "harbor.jsonl", "--mode", "append", "harbor.omni", rc=2)
    assert "hint: a graph is addressed with --store" in positional.err
    assert "hint: a file is named with its flag: --data harbor.jsonl" in go("load", "harbor.jsonl", rc=2).err
    assert "hint: a file is named with its flag: --query harbor.gq" in go("query", "q", "harbor.gq", rc=2).err


def test_c5_append_refuses_an_existing_key(go: Run, place: Path) -> None:
    (place / "one.jsonl").write_text('{"type":"Ship","data":{"imo":"S1","name":"Other","tonnage":1}}\n')
    refused = go("load", "--data", "one.jsonl", "--mode", "append", *LOCAL, *STORE, "--json", rc=3)
    assert refused.out == ""
    assert refused.error["kind"] == "key_conflict"
    assert refused.error["key_conflict"]["entity_id"] == "S1"
    assert tonnage(go) == 900


def test_c6_c7_a_missing_branch_is_made_only_from_a_base(go: Run, place: Path) -> None:
    (place / "d.jsonl").write_text('{"type":"Ship","data":{"imo":"S4","name":"Dunlin"}}\n')
    load = ("load", "--mode", "merge", "--branch", "topic", "--data", "d.jsonl", *LOCAL, *STORE)
    assert "topic" in go(*load, rc=6).err
    assert go("branch", "list", *STORE, "--json").json["branches"] == ["main"]
    made = go(*load, "--from", "main", "--json").json
    assert made["branch_created"] is True
    assert made["base_branch"] == "main"


def test_c8_a_foreign_member_is_refused_with_its_line(go: Run, place: Path) -> None:
    (place / "bad.jsonl").write_text(
        '{"type":"Ship","data":{"imo":"S8","name":"X"}}\n{"type":"Ship","branch":"x","data":{"imo":"S9","name":"Y"}}\n'
    )
    refused = go("load", "--data", "bad.jsonl", "--mode", "append", *LOCAL, *STORE, rc=None)
    assert refused.rc != 0
    assert "bad.jsonl:2: " in refused.err
    assert "branch" in refused.err
    assert go("export", "--type", "Ship", *STORE).out.count("\n") == 3


def test_c9_the_read_envelope(go: Run, place: Path) -> None:
    answer = go(*BY_IMO, *STORE, "--json").json
    assert answer["columns"] == ["s.name", "s.tonnage"]
    assert answer["rows"] == [{"s.name": "Aurora", "s.tonnage": 900}]
    assert answer["target"]["branch"] == "main"
    assert answer["graph_commit_id"] == head(go)


def test_c10_a_missing_parameter_is_an_error(go: Run, place: Path) -> None:
    refused = go("query", "ship_by_imo", "--query", "harbor.gq", *STORE, "--json", rc=1)
    assert refused.error["kind"] == "missing_parameter"
    assert "imo" in refused.error["error"]


def test_c11_c12_c13_which_query(go: Run, place: Path) -> None:
    assert go("query", "--query", "harbor.gq", *STORE, "--json", rc=1).error["kind"] == "query_not_selected"
    stored = go("query", "ship_by_imo", *STORE, rc=2)
    assert "stored quer" in stored.err
    assert "-e" in stored.err
    assert "--query" in stored.err
    assert "empty" in go("query", "-e", "", *STORE, rc=2).err


def test_c14_c15_c16_text_formats(go: Run, place: Path) -> None:
    add = ("mutate", "add_ship", "--query", "harbor.gq", "-p", "imo=S9", "-p", 'name=A "B", C', *STORE)
    go(*add)
    named = ("query", "ship_by_imo", "--query", "harbor.gq", "-p", "imo=S9", *STORE, "--format")
    assert go(*named, "csv").out.splitlines() == ["s.name,s.tonnage", '"A ""B"", C",null']
    row = {"s.name": 'A "B", C', "s.tonnage": None}
    assert [json.loads(line) for line in go(*named, "jsonl").out.splitlines()] == [row]
    about, *rows = map(json.loads, go(*named, "jsonl", "--with-metadata").out.splitlines())
    assert about["kind"] == "metadata"
    assert rows == [row]
    assert go(*named, "csv", "--json", rc=2).out == ""


def test_c17_two_mutations_make_a_chain(go: Run, place: Path) -> None:
    def add(imo: str) -> dict[str, Any]:
        values = ("-p", f"imo={imo}", "-p", "name=New")
        return go("mutate", "add_ship", "--query", "harbor.gq", *values, *STORE, "--json").json["commit"]

    first, second = add("S8"), add("S9")
    assert first["graph_commit_id"] != second["graph_commit_id"]
    assert second["parent_commit_id"] == first["graph_commit_id"]


def test_c18_nothing_selected_makes_no_commit(go: Run, place: Path) -> None:
    before = go("commit", "list", *STORE, "--json").json
    text = 'query n() { update Ship set { tonnage: 1 } where imo = "none" }'
    done = go("mutate", "-e", text, *STORE, "--json").json
    assert (done["affected_nodes"], done["affected_edges"], done["commit"]) == (0, 0, None)
    assert go("commit", "list", *STORE, "--json").json == before


def test_c19_a_lost_condition(go: Run, place: Path) -> None:
    read = go(*BY_IMO, *STORE, "--json").json["graph_commit_id"]
    change = ("mutate", "set_tonnage", "--query", "harbor.gq", "-p", "imo=S1", *STORE, "--json")
    go(*change, "-p", "tonnage=1")
    lost = go(*change, "-p", "tonnage=2", "--if-commit", read, rc=4)
    assert lost.json["precondition_failure"]["expected"] == read
    assert tonnage(go) == 1


def test_c20_c21_c22_c25_branches(go: Run, place: Path) -> None:
    go("branch", "create", "topic", *STORE)
    assert go("branch", "list", *STORE, "--json").json["branches"] == ["main", "topic"]
    clash = go("branch", "create", "topic/a", *STORE, "--json", rc=3)
    assert clash.error["code"] == "conflict"
    assert go("branch", "delete", "main", *STORE, rc=None).rc != 0
    same = go("branch", "merge", "main", "--into", "main", *STORE, rc=None)
    assert same.rc != 0
    assert "two different branches" in same.err
    assert go("branch", "list", *STORE, "--json").json["branches"] == ["main", "topic"]


def test_c23_c26_a_merge_fast_forwards_and_keeps_a_parent_branch(go: Run, place: Path) -> None:
    go("branch", "create", "topic", *STORE)
    change = ("mutate", "set_tonnage", "--query", "harbor.gq", "-p", "imo=S1", "-p", "tonnage=5", *STORE)
    go(*change, "--branch", "topic")
    merged = go("branch", "merge", "topic", "--into", "main", *STORE, "--json").json
    assert merged["outcome"] == "fast_forward"
    assert tonnage(go) == 5
    go("branch", "create", "kid", "--from", "topic", *STORE)
    kept = go("branch", "merge", "topic", "--delete-branch", *STORE, "--json")
    assert kept.json["branch_deleted"] is False
    assert "kid" in kept.json["branch_delete_error"]
    assert "warning: " in kept.err


def test_c24_a_conflict_changes_nothing(go: Run, place: Path) -> None:
    go("branch", "create", "topic", *STORE)
    change = ("mutate", "set_tonnage", "--query", "harbor.gq", "-p", "imo=S1", *STORE)
    go(*change, "-p", "tonnage=5", "--branch", "topic")
    go(*change, "-p", "tonnage=6")
    refused = go("branch", "merge", "topic", *STORE, "--json", rc=3)
    assert refused.error["kind"] == "merge_conflicts"
    [conflict] = refused.error["merge_conflicts"]
    assert (conflict["kind"], conflict["table_key"], conflict["row_id"]) == (
        "divergent_update",
        "node:Ship",
        "S1",
    )
    assert tonnage(go) == 6


def test_c27_a_remote_deletion_asks_first(go: Run, files: Path) -> None:
    refused = go("branch", "delete", "topic", "--store", "s3://nowhere/g.omni", "--json", rc=5)
    assert refused.error["kind"] == "confirmation_required"
    assert "--yes" in refused.error["hint"]


def test_c28_the_target_of_a_write_is_named(go: Run, place: Path) -> None:
    (place / "d.jsonl").write_text('{"type":"Ship","data":{"imo":"S4","name":"Dunlin"}}\n')
    load = ("load", "--mode", "append", "--data", "d.jsonl", "--engine", "local", *STORE, "--json")
    named = go(*load)
    assert [line for line in named.err.splitlines() if "direct, local" in line] == [
        "load -> harbor.omni (direct, local store; engine local)"
    ]
    assert named.json["total_entities"] == 1
    (place / "d.jsonl").write_text('{"type":"Ship","data":{"imo":"S5","name":"Eider"}}\n')
    assert "direct" not in go(*load, "--quiet").err


def test_c30_c31_c32_addressing(go: Run, place: Path) -> None:
    text = "query n() { match { $s: Ship } return { $s.name } }"
    assert "single graph" in go("query", *STORE, "--graph", "harbor", "-e", text, rc=2).err
    assert "--server" in go("query", "--store", "https://localhost:1", "-e", text, rc=2).err
    served = go("mutate", "--server", "https://localhost:1", "--as", "act-ines", "-e", text, rc=5)
    assert "token" in served.err


def test_c33_c34_c35_the_personal_file(go: Run, place: Path) -> None:
    both = config(place, "defaults: {server: a, store: b}\n")
    assert "one thing only" in go(*BY_IMO, env=both, rc=1).err
    text = "profiles:\n  local: {store: harbor.omni}\n  torn: {server: a, store: b}\n"
    personal = config(place, text)
    listed = {each["name"]: each for each in go("profile", "list", "--json", env=personal).json}
    assert (listed["torn"]["valid"], listed["local"]["valid"]) == (False, True)
    assert "torn" in go("profile", "show", "torn", env=personal, rc=1).err
    local = go(*BY_IMO, "--json", env={**personal, "OMNIGRAPH_PROFILE": "local"}).json
    assert local == go(*BY_IMO, *STORE, "--json").json


def test_c36_export_of_one_type(go: Run, place: Path) -> None:
    lines = go("export", "--type", "Ship", *STORE).out.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["Ship"] * 3
    unknown = go("export", "--type", "Nope", *STORE, rc=6)
    assert unknown.out == ""


def test_c37_an_export_loads_back(go: Run, place: Path) -> None:
    exported = go("export", *STORE).out
    (place / "e.jsonl").write_text(exported)
    go("init", "--schema", "harbor.pg", "new.omni")
    go("load", "--mode", "overwrite", "--data", "e.jsonl", *LOCAL, "--store", "new.omni")
    assert sorted(go("export", "--store", "new.omni").out.splitlines()) == sorted(exported.splitlines())


def test_c38_schema_plan(go: Run, place: Path) -> None:
    (place / "next.pg").write_text(SCHEMA.replace("tonnage: I32?", "tonnage: I32?  flag: String?"))
    planned = go("schema", "plan", "--schema", "next.pg", *STORE, "--json").json
    assert planned["supported"] is True
    assert [step["kind"] for step in planned["steps"]] == ["add_property"]
    (place / "ends.pg").write_text(SCHEMA.replace("CallsAt: Ship -> Port", "CallsAt: Port -> Ship"))
    refused = go("schema", "plan", "--schema", "ends.pg", *STORE, "--json").json
    assert refused["supported"] is False
    assert "unsupported_change" in [step["kind"] for step in refused["steps"]]


def test_c39_a_drop_is_soft_unless_data_may_be_lost(go: Run, place: Path) -> None:
    (place / "next.pg").write_text(SCHEMA.replace("tonnage: I32?   ", ""))
    shutil.copytree(place / "harbor.omni", place / "other.omni")
    soft = go("schema", "apply", "--schema", "next.pg", *STORE, "--json").json
    assert [(step["kind"], step["mode"]) for step in soft["steps"]] == [("drop_property", "soft")]
    arguments = ("schema", "apply", "--schema", "next.pg", "--allow-data-loss", "--store", "other.omni")
    hard = go(*arguments, "--json").json
    assert [(step["kind"], step["mode"]) for step in hard["steps"]] == [("drop_property", "hard")]


def test_c40_branches_stand_in_the_way_of_a_drop(go: Run, place: Path) -> None:
    (place / "less.pg").write_text(SCHEMA.replace("tonnage: I32?   ", ""))
    (place / "more.pg").write_text(SCHEMA.replace("tonnage: I32?", "tonnage: I32?  flag: String?"))
    go("branch", "create", "topic", *STORE)
    assert go("schema", "plan", "--schema", "less.pg", *STORE, "--json").json["blocking_branches"] == [
        "topic"
    ]
    refused = go("schema", "apply", "--schema", "less.pg", *STORE, "--json", rc=3)
    assert refused.error["kind"] == "branches_block_schema_apply"
    assert "topic" in refused.err
    nowhere = go("schema", "apply", "--schema", "more.pg", "--branch", "topic", *STORE, rc=2)
    assert "a schema is that of the whole graph" in nowhere.err
    go("schema", "apply", "--schema", "more.pg", *STORE)
    listed = go("branch", "list", *STORE, "--json").json["details"]
    assert {each["name"]: each["schema_generation"] for each in listed} == {"main": 2, "topic": 1}


def test_c41_c42_lint(go: Run, files: Path) -> None:
    (files / "bad.gq").write_text("query q() { match { $s: Ship } return { $s.tonage } }\n")
    found = go("lint", "--query", "bad.gq", "--schema", "harbor.pg", "--json", rc=1).json
    assert found["status"] == "error"
    assert "operation" not in found["results"][0]
    go("lint", "--query", "harbor.gq", "--schema", "harbor.pg")
    assert "lint" in go("check", "--query", "harbor.gq", "--schema", "harbor.pg", rc=2).err.split("hint:")[1]


def test_c49_a_blob_of_no_length_is_refused_before_anything_is_opened(go: Run, place: Path) -> None:
    wanted = ("blob", "get", "node", "Ship", "S1", "papers", "--length", "0")
    assert go(*wanted, *STORE, "--json", rc=2).error["kind"] == "usage"
    assert go(*wanted, "--store", "nowhere.omni", "--json", rc=2).error["kind"] == "usage"
    overflow = ("blob", "get", "node", "Ship", "S1", "papers", "--offset", "1", "--length", str(2**64 - 1))
    assert go(*overflow, "--store", "nowhere.omni", "--json", rc=2).error["kind"] == "usage"


def test_c50_a_baseline_that_fails_leaves_the_old_one(go: Run, place: Path) -> None:
    (place / "b.jsonl").write_text("the one before\n")
    before = names_in(place)
    refused = go("changes", "baseline", "--branch", "nope", "--out", "b.jsonl", *STORE, "--json", rc=6)
    assert refused.error["kind"] == "branch_not_found"
    assert (place / "b.jsonl").read_text() == "the one before\n"
    assert names_in(place) == before


def test_c29_upkeep_works_on_storage_only(go: Run, place: Path) -> None:
    refused = go("optimize", "--server", "quay", rc=2)
    assert "storage" in refused.err
    assert "--cluster" in refused.err


def test_an_optimization_speaks_of_fragments_only_where_some_were_rewritten(go: Run, place: Path) -> None:
    first = go("optimize", *STORE).out
    assert "0 fragments" not in first
    assert "indexes up to date" in first
    assert "nothing to do" in go("optimize", *STORE).out


def test_c43_cleanup_previews_unless_confirmed(go: Run, place: Path) -> None:
    go("mutate", "-e", 'query q() { insert Ship { imo: "S4", name: "Dawn" } }', *STORE)
    files = sorted(str(each) for each in (place / "harbor.omni").rglob("*.manifest"))
    assert "--confirm removes them" in go("cleanup", "--keep", "1", *STORE).out
    assert sorted(str(each) for each in (place / "harbor.omni").rglob("*.manifest")) == files
    done = go("cleanup", "--keep", "1", "--confirm", *STORE, "--json").json
    types = {each["type_key"] for each in done["datasets"]}
    assert {"node:Ship", "node:Port", "edge:CallsAt", "edge:SisterOf"} <= types
    assert sum(each["old_versions_removed"] for each in done["datasets"]) > 0
    assert len(list((place / "harbor.omni").rglob("*.manifest"))) < len(files)


def test_c44_cleanup_needs_a_bound(go: Run, place: Path) -> None:
    refused = go("cleanup", *STORE, "--confirm", rc=2)
    assert "--keep" in refused.err
    assert "--older-than" in refused.err
    assert "digits" in go("cleanup", "--older-than", "9" * 5_000 + "d", *STORE, rc=2).err


def test_c45_commits_for_people(go: Run, place: Path) -> None:
    go("mutate", "add_ship", "--query", "harbor.gq", "-p", "imo=S8", "-p", "name=X", *STORE)
    lines = go("commit", "list", *STORE).out.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert re.match(r"[0-9A-Z]{26}  main v\d+  \d{4}-\d\d-\d\dT[\d:.]+Z  ", line)
    ids = [line.split()[0] for line in lines]
    assert ids == sorted(ids, reverse=True)
