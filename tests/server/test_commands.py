"""Every command over a server: the same JSON and the same exit status as on the storage itself."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from cli.conftest import clean_environment
from graphs import FAST
from omnigraph.api.graph import Graph
from omnigraph.cli import credentials, running
from omnigraph.cli.arguments import COMMANDS
from server.conftest import ADD, BY_IMO, RENAME, SEED, SHIPS, Running, Serve

VOLATILE = {"uri", "created_at", "updated_at", "authored_at", "seconds", "load_id", "cursor", "resume_cursor"}
ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
LINE = '{"type":"Ship","data":{"imo":"%s","name":"Load"}}\n'

# In this order, on two graphs that began alike; a branch, a tag or a row of one step is there for the next.
STEPS: tuple[tuple[str, ...], ...] = (
    ("query", "-e", BY_IMO, "-p", "imo=S1"),
    ("query", "-e", "query q() { match { $x: Nope } return { $x.a } }"),
    ("query", "-e", BY_IMO, "-p", "imo=S1", "--branch", "nope"),
    ("explain", "-e", BY_IMO, "-p", "imo=S1"),
    ("mutate", "-e", ADD, "-p", "imo=S9", "-p", "name=Nine", "--idempotency-key", "k"),
    ("mutate", "-e", ADD, "-p", "imo=S9", "-p", "name=Nine", "--idempotency-key", "k"),
    ("mutate", "-e", ADD, "-p", "imo=S9", "-p", "name=Nine", "--idempotency-key", "other"),
    ("mutate", "-e", ADD, "-p", "imo=S8", "-p", "name=8", "--if-commit", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    ("load", "--data", "ships.jsonl", "--mode", "merge", "--engine", "local"),
    ("load", "--data", "ships.jsonl", "--mode", "append", "--engine", "local"),
    ("load", "--data", "missing.jsonl", "--mode", "merge", "--engine", "local"),
    ("load", "--data", "ships.jsonl", "--mode", "merge", "--branch", "nope", "--engine", "local"),
    ("branch", "create", "topic"),
    ("branch", "create", "topic"),
    ("branch", "list"),
    ("mutate", "-e", RENAME, "-p", "imo=S1", "-p", "name=Theirs", "--branch", "topic"),
    ("mutate", "-e", RENAME, "-p", "imo=S1", "-p", "name=Ours"),
    ("branch", "merge", "topic", "--dry-run"),
    ("branch", "merge", "topic"),
    ("diff", "main", "topic"),
    ("diff", "main", "topic", "--stat"),
    ("blame", "Ship", "S1"),
    ("branch", "merge", "topic", "--on-conflict", "theirs", "--delete-branch"),
    ("tag", "create", "v1"),
    ("tag", "create", "v1"),
    ("tag", "list"),
    ("commit", "list"),
    ("log",),
    ("commit", "show", "v1"),
    ("commit", "show", "nope"),
    ("commit", "changes", "v1"),
    ("changes", "poll", "--start", "beginning"),
    ("changes", "baseline", "--out", "base.jsonl"),
    ("revert", "main"),
    ("branch", "restore", "main", "--to", "v1"),
    ("branch", "delete", "nope", "--yes"),
    ("tag", "delete", "v1"),
    ("schema", "show"),
    ("schema", "apply", "--schema", "wanted.pg", "--dry-run"),
    ("schema", "apply", "--schema", "wanted.pg"),
    ("schema", "apply", "--schema", "broken.pg"),
    ("snapshot",),
    ("blob", "stat", "node", "Ship", "S1", "name"),
    ("export",),
)
WITHOUT_ACTOR = {("branch", "create"), ("branch", "delete"), ("tag", "create"), ("tag", "delete")}
"""They make no commit that says who it was; only the server knows whom a token stands for."""
ONE_SIDED = {("blob", "get")}
"""Bytes, not JSON; `blob stat` goes the same way."""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ships.jsonl").write_text("".join(LINE % f"L{number}" for number in range(3)))
    (tmp_path / "wanted.pg").write_text(SHIPS.replace("name: String", "name: String  flag: String?", 1))
    (tmp_path / "broken.pg").write_text("node Ship {")
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if each.startswith("OMNIGRAPH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMNIGRAPH_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def server(serve: Serve, harbor: Graph, files: Path) -> Iterator[Running]:
    with omnigraph.init(files / "twin.omni", schema=SHIPS, settings=FAST) as twin:
        twin.mutate(SEED)
    return serve({"act-ines": "t1"})


Ran = tuple[int, str, str]


@pytest.fixture
def ran(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command in this process: what it starts is not what is looked at here."""

    def go(*arguments: str) -> Ran:
        capfd.readouterr()
        status = running.run(arguments)
        out, err = capfd.readouterr()
        return status, out, err

    return go


def plain(text: str) -> Any:
    """What was said, with ids in the order they appear, and without what differs from run to run."""
    seen: dict[str, str] = {}
    text = ULID.sub(lambda found: seen.setdefault(found[0], f"<{len(seen)}>"), text)
    if text.startswith(("{\n", "[\n")):
        return _without(json.loads(text))
    return [_without(json.loads(line)) for line in text.splitlines()]


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(each) for name, each in value.items() if name not in VOLATILE}
    return [_without(each) for each in value] if isinstance(value, list) else value


def test_every_command_that_a_server_can_do_is_a_step() -> None:
    steps = {step[:2] if step[:2] in COMMANDS else step[:1] for step in STEPS}
    remote = {path for path, (_, flags) in COMMANDS.items() if "--server" in flags and "--store" in flags}
    assert steps | ONE_SIDED == remote


@pytest.mark.slow
def test_every_command_says_the_same_both_ways(
    server: Running, files: Path, ran: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIGRAPH_BEARER_TOKEN", "t1")
    for step in STEPS:
        form = () if step[0] == "export" else ("--json",)
        who = ("--as", "act-ines") if "--as" in COMMANDS.get(step[:2], COMMANDS.get(step[:1]))[1] else ()
        here = ran(*step, "--store", str(files / "twin.omni"), *who, *form)
        there = ran(*step, "--server", server.url, "--graph", "harbor", *form)
        assert there[0] == here[0], (step, here, there)
        mine, told = plain(here[1]), plain(there[1])
        if step[:2] in WITHOUT_ACTOR and not here[0]:
            assert (mine.pop("actor_id"), told.pop("actor_id")) == ("act-ines", None)
        assert told == mine, step
        if here[0] and not here[1]:
            mine, told = (plain(each[2].splitlines()[-1])[0] for each in (here, there))
            assert (told["kind"], told["retry"]) == (mine["kind"], mine["retry"]), step


@pytest.mark.slow
def test_c46_c47_c48_a_server_is_named_once_and_its_token_goes_nowhere_else(
    server: Running, files: Path, ran: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = files / "home"
    home.mkdir()
    port = server.url.rpartition(":")[2]
    (home / "config.yaml").write_text(
        f"servers: {{ quay: {{ url: '{server.url}' }}, deep: {{ url: '{server.url}/graphs' }} }}\n"
        "operator: { actor: somebody }\n"
        "profiles: { sea: { server: quay, default_graph: harbor } }\n"
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b" t1 \n")))
    assert json.loads(ran("login", "quay", "--json")[1]) == {
        "server": "quay",
        "credentials_path": str(home / "credentials"),
        "declared": True,
    }
    kept = home / "credentials"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert json.loads(ran("graphs", "list", "--server", "quay", "--json")[1]) == {
        "graphs": [{"graph_id": "harbor", "uri": f"{server.url}/graphs/harbor"}]
    }
    # One graph needs no name; a profile names it; an actor of the personal file is not sent.
    for named in (("--server", "quay"), ("--profile", "sea"), ("--server", server.url)):
        assert ran("branch", "list", *named)[:2] == (0, "main\n")
    assert ran("mutate", "-e", ADD, "-p", "imo=Q1", "-p", "name=Quay", "--profile", "sea")[0] == 0
    assert credentials.token_for(server.url) == "t1"
    assert credentials.token_for(f"{server.url}/graphs/harbor") is None
    assert credentials.token_for(f"{server.url}0") is None
    assert credentials.token_for(f"http://127.0.0.1.example:{port}") is None
    monkeypatch.setenv("OMNIGRAPH_TOKEN_DEEP", "t2")
    assert credentials.token_for(f"{server.url}/graphs/harbor") == "t2"
    assert ran("mutate", "-e", ADD, "--profile", "sea", "--as", "me", "--json")[0] == 5
    kept.chmod(0o644)
    status, _, told = ran("branch", "list", "--server", "quay", "--json")
    assert (status, json.loads(told.splitlines()[-1])["kind"]) == (5, "credentials_insecure")
    assert f"chmod 600 {kept}" in told
    kept.chmod(0o600)
    for token in ("t8", "t9"):  # the second replaces the first
        assert ran("login", "other", "--token", token)[0] == 0
    for _ in range(2):
        assert ran("logout", "quay")[0] == 0
    assert credentials.read() == {"other": "t9"}
    assert ran("branch", "list", "--server", "quay", "--json")[0] == 5
    assert ran("branch", "list", "--server", "nowhere", "--json")[0] == 6
    assert ran("graphs", "list", "--json")[0] == 2


@pytest.mark.slow
def test_a_command_over_a_server_imports_no_table_format_and_no_engine(server: Running) -> None:
    heavy = (
        "lance",
        "obstore",
        "pyspark",
        "pandas",
        "starlette",
        "omnigraph.api.graph",
        "omnigraph.storage.tables",
    )
    program = (
        "import sys\n"
        "from omnigraph.cli.running import run\n"
        "status = run(sys.argv[1:])\n"
        f"print([status, *(name for name in {heavy!r} if name in sys.modules)], file=sys.stderr)\n"
    )
    env = clean_environment({"OMNIGRAPH_BEARER_TOKEN": "t1"})
    for step in (
        ("query", "-e", BY_IMO, "-p", "imo=S1"),
        ("mutate", "-e", ADD, "-p", "imo=I1", "-p", "name=x"),
        ("branch", "list"),
        ("commit", "list"),
        ("tag", "list"),
        ("schema", "show"),
        ("export",),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *step, "--server", server.url, "--graph", "harbor"],
            capture_output=True,
            text=True,
            check=True,
            env={**env, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )
        assert done.stderr.splitlines()[-1] == "[0]", (step, done.stderr)
