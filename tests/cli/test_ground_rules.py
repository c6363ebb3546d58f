"""Streams, exit statuses and errors that hold for every command."""

import resource
import subprocess
from pathlib import Path

import pytest

from cli.conftest import COMMAND, Run, clean_environment
from omnigraph import __version__
from omnigraph.cli.arguments import COMMANDS
from omnigraph.core.formats import FORMATS, INTERNAL_SCHEMA_VERSION


def test_version_prints_two_lines(run: Run) -> None:
    assert run("version").out == f"omnigraph {__version__}\ninternal-schema {INTERNAL_SCHEMA_VERSION}\n"
    assert run("version", "--json").json == {
        "version": __version__,
        "internal_schema_version": INTERNAL_SCHEMA_VERSION,
        "formats": dict(FORMATS),
    }


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_the_version_flag_prints_the_first_line_only(run: Run, flag: str) -> None:
    assert run(flag).out == f"omnigraph {__version__}\n"


def test_the_command_starts_quickly(run: Run) -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run("version")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Time of the processor and not of the wall, and several tries: other tests may be using the machine.
    assert any(seconds() < 0.4 for _ in range(12))


@pytest.mark.slow
def test_without_a_command_help_is_shown_and_nothing_is_done(run: Run) -> None:
    ran = run(rc=2)
    assert ran.out == ""
    assert "Commands:" in ran.err


@pytest.mark.slow
def test_the_table_of_commands_is_the_tree_of_commands(run: Run) -> None:
    def listed(*group: str) -> set[str]:
        after = run(*group, "--help").out.split("Commands:\n", 1)[1]
        return {
            line.split()[0]
            for line in after.splitlines()
            if line.startswith("  ") and not line.startswith("   ")
        }

    groups = {path[0] for path in COMMANDS if len(path) == 2}
    tree = {(name,) for name in listed() - groups} | {
        (group, name) for group in groups for name in listed(group)
    }
    assert tree == set(COMMANDS)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["check"], "lint"),
        (["read"], "query"),
        (["change"], "mutate"),
        (["ingest"], "load"),
        (["schema", "get"], "schema show"),
        (["verfy"], "verify"),
        (["schema", "plam"], "schema plan"),
        (["restore", "main"], "branch restore"),
        (["merge", "review"], "branch merge"),
    ],
)
def test_an_unknown_command_names_the_near_one(run: Run, given: list[str], meant: str) -> None:
    ran = run(*given, rc=2)
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert f"hint: did you mean `omnigraph {meant}`?" in ran.err


@pytest.mark.slow
def test_a_usage_error_is_json_when_json_was_asked_for(run: Run) -> None:
    ran = run("version", "--json", "--nonsense", rc=2)
    assert ran.out == ""
    assert ran.error["kind"] == "usage"
    assert ran.error["retry"] == "never"
    assert "--nonsense" in ran.error["error"]


@pytest.mark.slow
def test_a_flag_the_command_cannot_use_is_refused(run: Run) -> None:
    ran = run("version", "--store", "g.omni", rc=2)
    assert "`version`" in ran.err
    assert "--store" in ran.err
    ran = run("lint", "--server", "quay", rc=2)
    assert "works on storage directly" in ran.err
    assert "hint: pass the graph's storage URI as --store" in ran.err


@pytest.mark.slow
def test_a_stray_argument_says_how_a_graph_is_addressed(run: Run) -> None:
    assert "--store" in run("version", "harbor.omni", rc=2).err
    assert "--store" in run("version", "--uri", "harbor.omni", rc=2).err


@pytest.mark.slow
def test_a_global_flag_may_come_first(run: Run) -> None:
    assert run("--json", "version").json["version"] == __version__
    assert "--store" in run("--store", "g.omni", "version", rc=2).err


def run_with_closed_pipe(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Start the command with a stdout nobody reads."""
    child = subprocess.Popen(
        [COMMAND, *arguments],
        cwd=cwd,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    error = child.stderr.read().decode()
    child.stderr.close()
    return child.wait(timeout=60), error


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["version"], ["version", "--help"], ["version", "--json"]], ids=" ".join
)
def test_a_closed_pipe_ends_the_program_silently(tmp_path: Path, arguments: list[str]) -> None:
    assert run_with_closed_pipe(*arguments, cwd=tmp_path) == (141, "")
