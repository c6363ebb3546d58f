"""Ctrl-C during a write: a real process, a real signal at a window, one line about the outcome."""

import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

import omnigraph as og
from cli.conftest import Ran, Run, clean_environment

pytestmark = pytest.mark.slow  # a process for each interrupt, some of them with a JVM

SCHEMA = "node Ship { name: String @key }\nnode Port { name: String @key }\n"
STORE = ("--store", "g.omni")
QUIET = (*STORE, "--quiet")
INSERT = 'query q() { insert Ship { name: "new" } insert Port { name: "new" } }'
NOTHING = "interrupted: the {} was interrupted before its first effect: nothing was changed\n"
DONE = "interrupted: the {} was interrupted after its commit: it is complete and visible\n"
HALF_WAY = (
    r"interrupted: the {} was interrupted half-way and may have moved tables: the next opening for writing"
    r" settles it, then `omnigraph recoveries` and `omnigraph commit list` show the outcome"
    r" \(operation ([0-9A-Z]{{26}})\)\n"
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A graph whose branch `topic` has two entities more. Main has moved too: a merge writes rows of its own."""
    with og.init(tmp_path / "g.omni", schema=SCHEMA) as graph:
        graph.branches.create("topic")
        graph.mutate(INSERT, branch="topic")
        graph.mutate(INSERT.replace("new", "other"))
    lines = [f'{{"type": "{each}", "data": {{"name": "new"}}}}\n' for each in ("Ship", "Port")]
    (tmp_path / "new.jsonl").write_text("".join(lines))
    return tmp_path


COMMANDS = {
    "mutation": ("mutate", "-e", INSERT),
    "merge": ("branch", "merge", "topic"),
    "load": ("load", "--data", "new.jsonl", "--mode", "append", "--engine", "local"),
}


def interrupted(run: Run, what: str, window: str, action: str = "interrupt") -> Ran:
    failpoints = {"OMNIGRAPH_FAILPOINTS": f"{window}={action}", "OMNIGRAPH_DURABILITY": "os"}
    ran = run(*COMMANDS[what], *QUIET, env=failpoints, rc=130)
    assert ran.out == ""
    return ran


def arrived(here: Run) -> bool:
    """Whether main shows both new entities; one alone would be half a write."""
    shown = here("export", *STORE).out.count('"name":"new"')
    assert shown in {0, 2}
    return shown == 2


@pytest.mark.parametrize(
    ("what", "window", "action"),
    [
        ("mutation", "recovery.sidecar_list", "pass,pass,interrupt"),  # the open lists twice
        ("mutation", "mutation.post_stage_pre_queue", "interrupt"),
        ("merge", "recovery.sidecar_list", "pass,pass,interrupt"),
        ("merge", "branch_merge.post_classify_pre_queue", "interrupt"),
        ("load", "load.split_staged", "interrupt"),
        ("load", "load.between_checks", "interrupt"),
        ("load", "mutation.post_stage_pre_queue", "interrupt"),
    ],
)
def test_ctrl_c_before_the_first_effect(
    run: Run, here: Run, place: Path, what: str, window: str, action: str
) -> None:
    assert interrupted(run, what, window, action).err == NOTHING.format(what)
    assert list((place / "g.omni" / "__recovery").iterdir()) == []
    assert not arrived(here)
    assert here("verify", *STORE).rc == 0


@pytest.mark.parametrize(
    ("what", "window", "completed"),
    [
        ("mutation", "mutation.post_sidecar_pre_commit", False),
        ("mutation", "mutation.post_table_commit", False),
        ("mutation", "mutation.post_finalize_pre_publisher", True),
        ("mutation", "graph_publish.after_manifest_commit", True),
        ("load", "mutation.post_table_commit", False),
        ("merge", "branch_merge.post_effects_pre_confirm", False),
        ("merge", "branch_merge.post_phase_b_pre_manifest_commit", True),
    ],
)
def test_ctrl_c_half_way_names_the_operation_recovery_settles(
    run: Run, here: Run, place: Path, what: str, window: str, *, completed: bool
) -> None:
    said = re.fullmatch(HALF_WAY.format(what), interrupted(run, what, window).err)
    assert said is not None
    pending = here("recoveries", *STORE, "--json").json["pending"]
    assert pending == [said[1]]
    here("branch", "create", "settled", *QUIET)
    assert here("recoveries", *STORE, "--json").json["pending"] == []
    assert arrived(here) is completed
    assert here("verify", *STORE).rc == 0


@pytest.mark.parametrize("what", COMMANDS)
def test_ctrl_c_after_the_commit_says_that_it_is_there(run: Run, here: Run, place: Path, what: str) -> None:
    assert interrupted(run, what, "recovery.sidecar_delete").err == DONE.format(what)
    assert arrived(here)


def test_ctrl_c_while_the_graph_is_opened(run: Run, here: Run, place: Path) -> None:
    ran = interrupted(run, "mutation", "recovery.sidecar_list")
    assert ran.err == "interrupted: the command had not begun: nothing was changed\n"
    assert not arrived(here)


NOT_BEGUN = "interrupted: the command had not begun: nothing was changed\n"
STOPPED = """
import sys
def stop(event, given):
    if event == "import" and given[0] == {module!r}:
        raise KeyboardInterrupt
sys.addaudithook(stop)
sys.argv = ["omnigraph", *{arguments!r}]
from omnigraph.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("typing", NOT_BEGUN),  # what nearly every module imports first
        ("omnigraph.cli.running", NOT_BEGUN),
        ("typer", NOT_BEGUN),
        ("omnigraph.cli.progress", NOT_BEGUN),  # the command itself is about to start
        ("omnigraph.pipeline.spark.session", NOT_BEGUN),  # the JVM comes up before the graph is opened
        ("omnigraph.api.graph", NOT_BEGUN),
        (
            "omnigraph.pipeline.load.load",
            "interrupted: the load was interrupted before its first effect: nothing was changed\n",
        ),
    ],
)
def test_ctrl_c_while_something_is_imported(place: Path, module: str, said: str) -> None:
    """Importing takes longer than most of what a command does, so that is where Ctrl-C arrives."""
    arguments = ["load", "--data", "new.jsonl", "--mode", "append", *QUIET]
    done = subprocess.run(
        [sys.executable, "-c", STOPPED.format(module=module, arguments=arguments)],
        cwd=place, env=clean_environment({"OMNIGRAPH_DURABILITY": "os"}), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


def test_ctrl_c_of_a_command_that_only_reads(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STOPPED.format(module="omnigraph.api.graph", arguments=["export", *STORE])],
        cwd=place, env=clean_environment(), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_ctrl_c_while_spark_comes_up(place: Path) -> None:
    with (
        og.open(place / "g.omni") as graph,
        patch("omnigraph.pipeline.load.load._executor", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt) as stopped,
    ):
        graph.load(place / "new.jsonl", mode="append")
    assert [f"interrupted: {note}\n" for note in stopped.value.__notes__] == [NOTHING.format("load")]


WATCHED = """
import os, signal, sys
calls = 0
def watch(frame, event, given):
    global calls
    if event != "call":
        return
    calls += 1
    if calls == {at}:
        os.kill(os.getpid(), signal.SIGINT)
from omnigraph.cli.main import main
sys.argv = ["omnigraph", "version"]
leave = os._exit
def told(status):
    sys.setprofile(None)
    sys.stderr.write(f"calls {{calls}}\\n")
    leave(status)
if {at} == 0:
    os._exit = told
sys.setprofile(watch)
main()
"""


def test_ctrl_c_at_any_moment_of_a_command_leaves_no_traceback(tmp_path: Path) -> None:
    def version(at: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", WATCHED.format(at=at)],
            cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    whole = version(0)
    count = int(re.findall(r"calls (\d+)", whole.stderr)[0])
    told = set()
    for at in (*range(2, 12), *range(20, count, max(1, count // 12)), *range(count - 4, count)):
        done = version(at)
        told.add((done.returncode, done.stderr))
        assert (done.returncode, done.stderr) in {(130, NOT_BEGUN), (130, "interrupted\n"), (0, "")}, at
        assert done.stdout == (whole.stdout if done.returncode == 0 else ""), at
    assert (130, NOT_BEGUN) in told
