"""What holds for every command: its help, the shape of its failures, and how little it needs to start."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import omnigraph as og
from cli.conftest import COMMAND, Run, clean_environment
from omnigraph.cli.arguments import COMMANDS
from omnigraph.core.errors import KINDS
from omnigraph.core.settings import Settings

SCHEMA = "node Person { handle: String @key  name: String? }\nedge Knows: Person -> Person\n"
READ = "query q() { match { $p: Person } return { $p.name } }"
COMMIT = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

# Arguments that are right in themselves, on a graph that is not there. An empty list: the command needs no graph and is
# made to fail by its own arguments.
ON_A_MISSING_GRAPH: dict[tuple[str, ...], list[str]] = {
    ("blame",): ["Person", "ada"],
    ("blob", "get"): ["node", "Person", "ada", "photo"],
    ("blob", "stat"): ["node", "Person", "ada", "photo"],
    ("branch", "create"): ["topic"],
    ("branch", "delete"): ["topic"],
    ("branch", "list"): [],
    ("branch", "merge"): ["topic"],
    ("branch", "restore"): ["main", "--to", COMMIT],
    ("changes", "baseline"): ["--out", "out.jsonl"],
    ("changes", "poll"): [],
    ("commit", "changes"): [COMMIT],
    ("commit", "list"): [],
    ("commit", "show"): [COMMIT],
    ("diff",): ["main", "topic"],
    ("explain",): ["-e", READ],
    ("export",): ["--out", "out.jsonl"],
    ("lint",): ["--query", "q.gq"],
    ("load",): ["--data", "in.jsonl", "--mode", "merge", "--engine", "local"],
    ("log",): [],
    ("mutate",): ["-e", 'query q() { insert Person { handle: "ada" } }'],
    ("query",): ["-e", READ],
    ("recoveries",): [],
    ("optimize",): [],
    ("embed",): ["Doc.vec", "--engine", "local"],
    ("repair",): [],
    ("cleanup",): ["--keep", "1"],
    ("erase",): ["Person", "ada"],
    ("indexes",): [],
    ("stats",): [],
    ("revert",): [COMMIT],
    ("schema", "apply"): ["--schema", "s.pg"],
    ("schema", "plan"): ["--schema", "s.pg"],
    ("schema", "show"): [],
    ("snapshot",): [],
    ("tag", "create"): ["v1"],
    ("tag", "delete"): ["v1"],
    ("tag", "list"): [],
    ("verify",): [],
}
WITHOUT_A_GRAPH: dict[tuple[str, ...], tuple[list[str], str]] = {
    ("clone",): (["nowhere.omni", "new.omni"], "graph_not_found"),
    ("completion",): (["tcsh"], "usage"),
    ("config", "path"): (["stray"], "usage"),
    ("config", "show"): (["stray"], "usage"),
    ("fmt",): (["missing.pg"], "io"),
    ("init",): (["--schema", "missing.pg", "new.omni"], "io"),
    ("profile", "list"): (["stray"], "usage"),
    ("profile", "show"): (["nobody"], "profile_not_found"),
    ("graphs", "list"): (["stray"], "usage"),
    ("queries", "list"): (["stray"], "usage"),
    ("login",): (["quay", "--token", " "], "bad_request"),
    ("logout",): ([], "usage"),
    ("policy", "explain"): (["--file", "missing.yaml", "--actor", "a", "--action", "read"], "io"),
    ("policy", "test"): (["--file", "missing.yaml", "--tests", "missing.yaml"], "io"),
    ("policy", "validate"): (["--file", "missing.yaml"], "io"),
    ("serve",): (["nowhere.omni", "--unauthenticated"], "graph_not_found"),
    ("spark", "doctor"): (["stray"], "usage"),
    ("version",): (["stray"], "usage"),
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "s.pg").write_text(SCHEMA)
    (tmp_path / "q.gq").write_text(READ + "\n")
    (tmp_path / "in.jsonl").write_text('{"type":"Person","data":{"handle":"ada"}}\n')
    return tmp_path


def test_every_command_is_looked_at_here() -> None:
    assert set(ON_A_MISSING_GRAPH) | set(WITHOUT_A_GRAPH) == set(COMMANDS)


@pytest.mark.parametrize("path", sorted(COMMANDS), ids=" ".join)
def test_help_has_an_example_that_names_the_command(here: Run, path: tuple[str, ...]) -> None:
    ran = here(*path, "--help")
    assert ran.err == ""
    assert f"omnigraph {' '.join(path)}" in ran.out.split("Example", 1)[1]
    assert "Usage: omnigraph" in ran.out


@pytest.mark.parametrize("path", sorted(COMMANDS), ids=" ".join)
def test_an_unknown_flag_is_a_usage_error_in_json(here: Run, path: tuple[str, ...]) -> None:
    ran = here(*path, "--nonsense", "--json", rc=2)
    assert_shape(ran.out, ran.error, "usage")


@pytest.mark.parametrize("path", sorted(ON_A_MISSING_GRAPH), ids=" ".join)
def test_a_missing_graph_is_an_error_in_json(here: Run, files: Path, path: tuple[str, ...]) -> None:
    arguments = [*path, *ON_A_MISSING_GRAPH[path], "--store", "nowhere.omni"]
    ran = here(*arguments, "--json", rc=6)
    assert_shape(ran.out, ran.error, "graph_not_found")
    assert not (files / "nowhere.omni").exists()
    told = here(*arguments, rc=6)
    assert told.out == ""
    lines = told.err.splitlines()
    assert any(line.startswith("error: ") for line in lines)
    assert lines[-1].startswith("hint: ")


@pytest.mark.parametrize("path", sorted(WITHOUT_A_GRAPH), ids=" ".join)
def test_a_command_without_a_graph_fails_in_json(here: Run, path: tuple[str, ...]) -> None:
    arguments, kind = WITHOUT_A_GRAPH[path]
    ran = here(*path, *arguments, "--json", rc=KINDS[kind].exit_status if path != ("completion",) else 2)
    assert_shape(ran.out, ran.error, kind)


def assert_shape(out: str, error: dict[str, object], kind: str) -> None:
    assert out == ""
    assert error["kind"] == kind
    assert error["retry"] == KINDS[kind].retry
    assert isinstance(error["error"], str)
    assert error["error"]


LIGHT = [
    ["version"],
    ["--help"],
    ["load", "--help"],
    ["query", "--help"],
    ["config", "path"],
    ["profile", "list"],
    ["completion", "bash"],
    ["__complete", "branch", "m"],
    ["fmt", "--check", "s.pg"],
    ["lint", "--schema", "s.pg", "--query", "q.gq"],
    ["schema", "plan", "--from", "s.pg", "--schema", "s.pg"],
    ["query", "-e", READ],
]


@pytest.mark.slow
def test_nothing_heavy_is_imported_before_it_is_needed(files: Path) -> None:
    heavy = {"lance", "pyarrow", "numpy", "pandas", "pyspark", "py4j", "yaml", "rich", "obstore"}
    program = (
        "import sys, json\n"
        "from omnigraph.cli.running import run\n"
        f"for command in {LIGHT!r}:\n"
        "    run(command)\n"
        f"    found = {heavy!r} & set(sys.modules)\n"
        "    assert not found, (command, found)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=files,
        env=clean_environment({"OMNIGRAPH_HOME": str(files / "home")}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "omnigraph export",
        "omnigraph query all --query all.gq --format csv",
        "omnigraph query all --query all.gq --json",
        "omnigraph diff %(first)s main",
    ],
)
@pytest.mark.slow
def test_a_reader_that_leaves_early_ends_the_command_quietly(tmp_path: Path, command: str) -> None:
    """`cmd | head -1`: the first line arrives, nothing is said, the status is that of a broken pipe."""
    with og.init(tmp_path / "g.omni", schema=SCHEMA, settings=Settings(durability="os")) as graph:
        first = graph.commits.head().id
        rows = "".join(
            json.dumps({"type": "Person", "data": {"handle": f"p{n}", "name": "x" * 60}}) + "\n"
            for n in range(12_000)
        )
        (tmp_path / "in.jsonl").write_text(rows)
        graph.load(tmp_path / "in.jsonl", mode="append", engine="local")
    (tmp_path / "all.gq").write_text("query all() { match { $p: Person } return { $p.handle, $p.name } }\n")
    line = command % {"first": first} if "%" in command else command
    # Unbuffered streams take part of a write and say so in a number: they must not look like success.
    unbuffered = {"PYTHONUNBUFFERED": "1"} if "json" in command else {}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line} | head -1"],
        cwd=tmp_path,
        env={
            **clean_environment({"OMNIGRAPH_STORE": "g.omni", **unbuffered}),
            "PATH": f"{COMMAND.parent}:/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    assert done.returncode == 141
