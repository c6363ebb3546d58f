"""What a shell is offered, and that the scripts are scripts."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cli.conftest import COMMAND, Run, clean_environment
from omnigraph.cli.arguments import COMMANDS
from omnigraph.cli.completion import SCRIPTS, candidates


def test_commands_and_their_parts() -> None:
    assert set(candidates([""])) == {path[0] for path in COMMANDS}
    assert candidates(["bra"]) == ["branch"]
    assert candidates(["branch", "m"]) == ["merge"]
    assert "--version" in candidates(["--"])


def test_flags_not_given_yet() -> None:
    offered = candidates(["load", "--mode", "merge", "--"])
    assert "--data" in offered
    assert "--mode" not in offered
    assert "--data" in candidates(["load", "--data", "a", "--d"])


@pytest.mark.slow
def test_values_that_are_known() -> None:
    assert candidates(["load", "--mode", ""]) == ["append", "merge", "overwrite", "patch"]
    assert candidates(["query", "--format", "j"]) == ["jsonl", "json"]
    assert candidates(["completion", "z"]) == ["zsh"]
    # A file or a free text: the shell offers what it has.
    assert candidates(["load", "--data", ""]) == []
    assert candidates(["query", ""]) == []


def test_profiles_of_the_personal_file(here: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "profiles: {local: {store: a}, lab: {store: b}, prod: {store: c}}\n"
    )
    personal = {"OMNIGRAPH_HOME": str(tmp_path)}
    assert here("__complete", "query", "--profile", "l", env=personal).out == "lab\nlocal\n"
    (tmp_path / "config.yaml").write_text("{")
    assert here("__complete", "query", "--profile", "l", env=personal, rc=1).err == ""


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_the_script_of_a_shell_parses(here: Run, tmp_path: Path, shell: str) -> None:
    script = tmp_path / "script"
    script.write_text(here("completion", shell).out)
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n", str(script)], check=True, capture_output=True)
    assert "__complete" in script.read_text()


@pytest.mark.slow
def test_bash_completes_a_line(tmp_path: Path) -> None:
    program = (
        'eval "$(omnigraph completion bash)"\n'
        "COMP_WORDS=(omnigraph branch merg); COMP_CWORD=2; _omnigraph\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    environment = clean_environment({"PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"})
    done = subprocess.run(
        ["bash", "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "merge\n"
