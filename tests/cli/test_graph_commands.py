"""Commands on a graph through the installed command: shapes, statuses, streams."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import omnigraph as og
from cli.conftest import COMMAND, Run, clean_environment

pytestmark = pytest.mark.slow

HARBOR = """node Ship { imo: String @key   name: String   tonnage: I32? }
node Port { code: String @key  city: String }
edge CallsAt: Ship -> Port { berth: String? }
edge SisterOf: Ship -> Ship
"""
QUERIES = """query add_ship($imo: String, $name: String) { insert Ship { imo: $imo, name: $name } }
query set_tonnage($imo: String, $tonnage: I32) { update Ship set { tonnage: $tonnage } where imo = $imo }
query scrap($imo: String) { delete Ship where imo = $imo }
query seed() {
  insert Ship { imo: "S1", name: "Aurora", tonnage: 900 }
  insert Ship { imo: "S2", name: "Borealis", tonnage: 1200 }
  insert Port { code: "LIS", city: "Lisbon" }
  insert CallsAt { from: "S1", to: "LIS", berth: "4B" }
  insert SisterOf { from: "S1", to: "S2" }
}
"""
ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


@pytest.fixture(scope="module")
def harbor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small graph, made once; every test works on its own copy."""
    place = tmp_path_factory.mktemp("harbor") / "harbor.omni"
    with og.init(place, schema=HARBOR) as graph:
        graph.mutate(QUERIES, name="seed", actor="act-ines")
    return place


@pytest.fixture
def place(harbor: Path, tmp_path: Path) -> Path:
    shutil.copytree(harbor, tmp_path / "harbor.omni")
    (tmp_path / "harbor.pg").write_text(HARBOR)
    (tmp_path / "harbor.gq").write_text(QUERIES)
    return tmp_path


STORE = ("--store", "harbor.omni")


def test_init_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "harbor.pg").write_text(HARBOR)
    ran = run("init", "--schema", "harbor.pg", "deep/er/new.omni", "--json")
    assert ran.err == ""
    assert ran.json["uri"] == "deep/er/new.omni"
    assert ULID.fullmatch(ran.json["graph_commit_id"])
    again = run("init", "--schema", "harbor.pg", "deep/er/new.omni", "--json", rc=3)
    assert again.out == ""
    assert again.error["kind"] == "already_initialized"
    assert run("export", "--store", "deep/er/new.omni").out == ""


def test_init_takes_no_store(here: Run, tmp_path: Path) -> None:
    (tmp_path / "harbor.pg").write_text(HARBOR)
    assert "--store" in here("init", "--schema", "harbor.pg", "--store", "x.omni", "y.omni", rc=2).err
    assert not (tmp_path / "x.omni").exists()
    assert not (tmp_path / "y.omni").exists()


def test_init_with_a_broken_schema_creates_nothing(here: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.pg").write_text("node A { x: Strin }\n")
    ran = here("init", "--schema", "bad.pg", "new.omni", rc=1)
    assert "error: " in ran.err
    assert not list(tmp_path.glob("new.omni/_*"))


def test_two_mutations_make_a_chain(run: Run, place: Path) -> None:
    def add(imo: str) -> dict:
        ran = run(
            "mutate",
            "add_ship",
            "--query",
            "harbor.gq",
            "-p",
            f"imo={imo}",
            "-p",
            "name=New",
            *STORE,
            "--json",
        )
        assert ran.err == "mutate -> harbor.omni (direct, local)\n"
        return ran.json

    first, second = add("S8"), add("S9")
    assert (first["affected_nodes"], first["affected_edges"], first["query_name"]) == (1, 0, "add_ship")
    assert second["commit"]["parent_commit_id"] == first["commit"]["graph_commit_id"]


def test_quiet_and_actor(here: Run, place: Path) -> None:
    ran = here(
        "--quiet", "--as", "bo", "mutate", "scrap", "--query", "harbor.gq", "-p", "imo=S2", *STORE, "--json"
    )
    assert ran.err == ""
    assert ran.json["actor_id"] == "bo"
    assert (ran.json["affected_nodes"], ran.json["affected_edges"]) == (1, 1)
    listed = here("commit", "list", "--filter", "actor=bo", *STORE, "--json").json["commits"]
    assert [one["graph_commit_id"] for one in listed] == [ran.json["commit"]["graph_commit_id"]]
    assert here("commit", "list", "--actor", "nobody", *STORE).out == ""


def test_a_mutation_that_selects_nothing_makes_no_commit(here: Run, place: Path) -> None:
    before = here("commit", "list", *STORE, "--json").json
    text = 'query n() { update Ship set { tonnage: 1 } where imo = "none" }'
    ran = here("mutate", "-e", text, *STORE, "--json")
    assert (ran.json["affected_nodes"], ran.json["commit"]) == (0, None)
    assert here("commit", "list", *STORE, "--json").json == before


def test_a_lost_condition_exits_four_with_its_body_on_stdout(run: Run, place: Path) -> None:
    head = run("commit", "list", "--limit", "1", *STORE, "--json").json["commits"][0]["graph_commit_id"]
    arguments = [
        "mutate",
        "set_tonnage",
        "--query",
        "harbor.gq",
        "-p",
        "imo=S1",
        *STORE,
        "--if-commit",
        head,
        "--json",
    ]
    run(*arguments, "-p", "tonnage=1")
    lost = run(*arguments, "-p", "tonnage=2", rc=4)
    assert lost.json["precondition_failure"]["expected"] == head
    assert '"tonnage":1' in run("export", "--type", "Ship", *STORE).out


@pytest.mark.parametrize(
    ("arguments", "rc", "kind"),
    [
        (["add_ship", "--query", "harbor.gq", "-p", "imo=S8"], 1, "missing_parameter"),
        (
            ["add_ship", "--query", "harbor.gq", "-p", "imoo=S8", "-p", "imo=S8", "-p", "name=X"],
            1,
            "unknown_parameter",
        ),
        (["--query", "harbor.gq"], 1, "query_not_selected"),
        (["add_ship"], 2, "usage"),
        (["-e", "  "], 2, "usage"),
        (["-e", "query q() {", "--query", "harbor.gq"], 2, "usage"),
        (["-e", "query q() {"], 1, "query_syntax"),
        (["-e", 'query q() { insert Shp { imo: "x" } }'], 1, "query_type"),
        (
            ["-e", 'query q() { insert Port { code: "x", city: "y" } delete Ship where imo = "S1" }'],
            1,
            "mixed_mutation",
        ),
        (["-e", "query q() { match { $s: Ship } return { $s.name } }"], 1, "wrong_query_kind"),
        (["-e", 'query q() { insert CallsAt { from: "S1", to: "NIX" } }'], 1, "constraint_violation"),
        (["-e", 'query q() { insert new Ship { imo: "S1", name: "x" } }'], 3, "key_conflict"),
        (["add_ship", "--query", "harbor.gq", "--params", "[1]"], 2, "usage"),
        (
            ["add_ship", "--query", "harbor.gq", "--branch", "nope", "-p", "imo=a", "-p", "name=b"],
            6,
            "branch_not_found",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refused_mutation_has_its_kind_and_changes_nothing(
    here: Run, place: Path, arguments: list[str], rc: int, kind: str
) -> None:
    before = (place / "harbor.omni" / "__manifest").stat().st_mtime_ns
    ran = here("mutate", *arguments, *STORE, "--json", rc=rc)
    assert ran.out == ""
    assert ran.error["kind"] == kind
    assert (place / "harbor.omni" / "__manifest").stat().st_mtime_ns == before


def test_export_of_everything_and_of_one_type(here: Run, place: Path) -> None:
    lines = [json.loads(line) for line in here("export", *STORE).out.splitlines()]
    assert [line.get("type", line.get("edge")) for line in lines] == [
        "Port",
        "Ship",
        "Ship",
        "CallsAt",
        "SisterOf",
    ]
    assert here("export", "--type", "Ship", *STORE).out.count("\n") == 2
    unknown = here("export", "--type", "Shp", *STORE, rc=6)
    assert unknown.out == ""
    assert "did you mean 'Ship'?" in unknown.err
    here("export", "--out", "all.jsonl", *STORE)
    assert (place / "all.jsonl").read_text().count("\n") == 5
    (place / "all.jsonl").write_text("old")
    here("export", "--type", "Shp", "--out", "all.jsonl", *STORE, rc=6)
    assert (place / "all.jsonl").read_text() == "old"


def test_snapshot(here: Run, place: Path) -> None:
    state = here("snapshot", *STORE, "--json").json
    assert state["graph_branch"] == "main"
    assert [(one["entity_kind"], one["type_name"], one["entity_count"]) for one in state["datasets"]] == [
        ("edge", "CallsAt", 1),
        ("edge", "SisterOf", 1),
        ("node", "Port", 1),
        ("node", "Ship", 2),
    ]
    assert "node Ship" in here("snapshot", *STORE).out


def test_branches(here: Run, place: Path) -> None:
    assert here("branch", "create", "topic", *STORE, "--json").json["name"] == "topic"
    assert here("branch", "list", *STORE, "--json").json["branches"] == ["main", "topic"]
    clash = here("branch", "create", "topic/a", *STORE, "--json", rc=3)
    assert clash.error["kind"] == "branch_prefix_clash"
    assert here("branch", "create", "topic", *STORE, "--json", rc=3).error["kind"] == "branch_exists"
    assert (
        here("branch", "create", "x", "--from", "nope", *STORE, "--json", rc=6).error["kind"]
        == "branch_not_found"
    )
    here("mutate", "scrap", "--query", "harbor.gq", "-p", "imo=S2", "--branch", "topic", *STORE)
    assert here("export", "--type", "Ship", "--branch", "topic", *STORE).out.count("\n") == 1
    assert here("export", "--type", "Ship", *STORE).out.count("\n") == 2


def test_commit_list_and_show(here: Run, place: Path) -> None:
    lines = here("commit", "list", *STORE).out.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert re.fullmatch(
            rf"{ULID.pattern}  main v\d+  \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}Z  \w+  \S+", line
        )
    newest = lines[0].split()[0]
    shown = here("commit", "show", newest, *STORE, "--json").json
    assert shown["graph_commit_id"] == newest
    assert shown["actor_id"] == "act-ines"
    assert shown["parent_commit_id"] == lines[1].split()[0]
    assert f"commit    {newest}" in here("commit", "show", newest, *STORE).out
    unknown = here("commit", "show", "01ARZ3NDEKTSV4RRFFQ69G5FAV", *STORE, "--json", rc=6)
    assert unknown.error["kind"] == "commit_not_found"


def test_commit_filters(here: Run, place: Path) -> None:
    def ids(*filters: str) -> list[str]:
        return [
            one["graph_commit_id"]
            for one in here("commit", "list", *filters, *STORE, "--json").json["commits"]
        ]

    newest, oldest = ids()
    assert ids("--before", newest) == [oldest]
    assert ids("--before", oldest) == []
    assert ids("--since", "2000-01-01", "--until", "2001-01-01T00:00:00Z") == []
    assert ids("--since", "2000-01-01T00:00:00+02:00", "--limit", "1") == [newest]
    assert ids("--since", "2000-01-01", "--actor", "act-ines") == [newest]
    assert "--since" in here("commit", "list", "--since", "yesterday", *STORE, rc=2).err
    unknown = here("commit", "list", "--before", "01ARZ3NDEKTSV4RRFFQ69G5FAV", *STORE, "--json", rc=6)
    assert unknown.error["kind"] == "commit_not_found"


def test_log_names_what_a_merge_took(here: Run, place: Path) -> None:
    here("branch", "create", "topic", *STORE)
    for branch, imo in (("main", "S8"), ("topic", "S9")):
        here(
            "mutate",
            "add_ship",
            "--query",
            "harbor.gq",
            "-p",
            f"imo={imo}",
            "-p",
            "name=X",
            "--branch",
            branch,
            *STORE,
        )
    here("branch", "merge", "topic", *STORE)
    lines = here("log", *STORE).out.splitlines()
    merged = here("commit", "list", "--branch", "topic", "--limit", "1", *STORE, "--json").json["commits"][0]
    marks = [line.split("  ")[0] for line in lines]
    assert marks[marks.index("|\\") :][:4] == ["|\\", "| *", "* |", "|/"]
    assert set(marks[: marks.index("|\\")] + marks[marks.index("|/") + 1 :]) == {"*"}
    [merge] = [line for line in lines if "  merge  " in line]
    assert merge.endswith(f"merges {merged['graph_commit_id']}")
    [other] = [line for line in lines if line.startswith("| *")]
    assert merged["graph_commit_id"] in other
    listed = here("log", *STORE, "--json").json["commits"]
    assert [each["graph_commit_id"] for each in listed] == [
        found[0] for line in lines if (found := ULID.findall(line))
    ]
    assert merged["graph_commit_id"] in {each["merged_parent_commit_id"] for each in listed}
    assert here("log", "--limit", "2", *STORE, "--json").json["commits"] == listed[:2]


def test_branches_say_how_far_they_are_from_main(here: Run, place: Path) -> None:
    here("branch", "create", "topic", *STORE)
    add = ("mutate", "add_ship", "--query", "harbor.gq", "-p", "name=X", *STORE)
    for branch, imo in (("main", "S8"), ("topic", "S9"), ("topic", "S10")):
        here(*add, "-p", f"imo={imo}", "--branch", branch)
    told = here("branch", "list", *STORE, "--json").json
    assert told["branches"] == ["main", "topic"]
    main, topic = told["details"]
    assert (main["name"], main["ahead"], main["behind"]) == ("main", 0, 0)
    assert (topic["name"], topic["ahead"], topic["behind"]) == ("topic", 2, 1)
    head = here("commit", "show", "topic", *STORE, "--json").json
    assert (topic["head_commit_id"], topic["updated_at"]) == (head["graph_commit_id"], head["created_at"])
    assert here("branch", "list", *STORE).out == "main\ntopic\n"
    last = here("branch", "list", "--verbose", *STORE).out.splitlines()[1]
    assert last.startswith(f"topic  {head['graph_commit_id']}  ")
    assert last.endswith("  2 ahead, 1 behind")


def test_schema_of_a_graph(here: Run, place: Path) -> None:
    assert here("schema", "show", *STORE).out == HARBOR
    assert here("schema", "show", *STORE, "--json").json == {"schema_source": HARBOR}
    (place / "next.pg").write_text(HARBOR.replace("tonnage: I32?", "tonnage: I32?  flag: String?"))
    planned = here("schema", "plan", "--schema", "next.pg", *STORE, "--json").json
    assert [step["kind"] for step in planned["steps"]] == ["add_property"]
    assert here("lint", "--query", "harbor.gq", *STORE, "--json").json["schema_source"]["kind"] == "graph"


def test_verify_and_recoveries_of_a_healthy_graph(here: Run, place: Path) -> None:
    report = here("verify", *STORE, "--json").json
    assert report["ok"] is True
    assert report["entities"] == 5
    assert here("verify", *STORE).out.startswith("ok: ")
    assert here("recoveries", *STORE, "--json").json == {"recoveries": [], "pending": []}


@pytest.mark.crash
def test_a_killed_writer_is_seen_and_settled(run: Run, place: Path) -> None:
    arguments = ["mutate", "add_ship", "--query", "harbor.gq", "-p", "imo=S7", "-p", "name=Corvid", *STORE]
    died = run(*arguments, env={"OMNIGRAPH_FAILPOINTS": "mutation.post_finalize_pre_publisher=exit"}, rc=86)
    assert died.out == ""
    assert len(run("recoveries", *STORE, "--json").json["pending"]) == 1
    assert "S7" not in run("export", "--type", "Ship", *STORE).out
    run("mutate", "scrap", "--query", "harbor.gq", "-p", "imo=S2", *STORE)
    settled = run("recoveries", *STORE, "--json").json
    assert settled["pending"] == []
    assert [one["recovery_kind"] for one in settled["recoveries"]] == ["RolledForward"]
    assert "S7" in run("export", "--type", "Ship", *STORE).out
    commits = run("commit", "list", "--filter", "actor=omnigraph:recovery", *STORE, "--json").json["commits"]
    assert len(commits) == 1
    assert run("verify", *STORE, "--json").json["ok"] is True


def test_no_graph_addressed(here: Run, place: Path) -> None:
    assert "--store" in here("commit", "list", rc=2).err
    a_server = here("commit", "list", "--store", "https://host/graph", rc=2).err
    assert "'https://host/graph' is a server" in a_server
    assert "pass --server URL --graph ID" in a_server
    assert here("commit", "list", env={"OMNIGRAPH_STORE": "harbor.omni"}).out
    assert (
        here("commit", "list", "--store", "nowhere.omni", "--json", rc=6).error["kind"] == "graph_not_found"
    )
    assert not (place / "nowhere.omni").exists()


def test_a_reader_that_goes_away_ends_an_export_quietly(place: Path) -> None:
    child = subprocess.Popen(
        [COMMAND, "export", *STORE],
        cwd=place,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    error = child.stderr.read()
    child.stderr.close()
    assert (child.wait(timeout=60), error) == (141, b"")


def test_commands_without_spark_never_load_pandas(place: Path) -> None:
    code = (
        "import sys\nfrom omnigraph.cli.startup import spare\nfrom omnigraph.cli.running import run\n"
        "spare()\nassert run(['export', '--store', 'harbor.omni']) == 0\n"
        "assert 'pandas' not in sys.modules and 'pyspark' not in sys.modules\n"
        "import pyarrow\nassert pyarrow.table({'a': [1]}).to_pandas().shape == (1, 1)\n"
    )
    python = COMMAND.with_name("python")
    done = subprocess.run(
        [python, "-c", code], cwd=place, env=clean_environment(), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_mutate_runs_once_for_each_line_of_a_file_of_parameters(run: Run, place: Path) -> None:
    (place / "ships.jsonl").write_text('{"imo": "S8", "name": "Eight"}\n\n{"imo": "S9", "name": "Nine"}\n')
    ask = ("mutate", "add_ship", "--query", "harbor.gq", "--params-file", "ships.jsonl", *STORE)
    before = run("commit", "list", *STORE, "--json").json
    done = run(*ask, "--json").json
    assert done["affected_nodes"] == 2
    assert [each["id"] for each in done["inserted"]] == ["S8", "S9"]
    listed = run("commit", "list", *STORE, "--json").json["commits"]
    assert len(listed) == len(before["commits"]) + 1
    (place / "ships.jsonl").write_text('{"imo": "S10"}\n\n{"imo": "S11", "name": 5}\n')
    same_name = run(*ask, "-p", "name=Same", "--json").json
    assert same_name["affected_nodes"] == 2


def test_a_wrong_line_of_a_file_of_parameters_is_named_and_nothing_happens(run: Run, place: Path) -> None:
    ask = ("mutate", "add_ship", "--query", "harbor.gq", "--params-file", "ships.jsonl", *STORE)
    (place / "ships.jsonl").write_text('{"imo": "S8", "name": "Eight"}\n\n{"imo": "S9", "name": 5}\n')
    told = json.loads(run(*ask, "--quiet", "--json", rc=1).err.splitlines()[-1])
    assert told["error"].startswith("ships.jsonl:3: ")
    assert (told["file"], told["line"]) == ("ships.jsonl", 3)
    (place / "ships.jsonl").write_text('{"imo": "S8", "name": "Eight"}\nnonsense\n')
    assert "line 2" in run(*ask, rc=2).err
    exported = run("export", *STORE).out
    assert "S8" not in exported
