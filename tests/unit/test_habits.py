"""The routine jobs: make targets, hooks, the message of a commit, the list of changes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))


def hooks() -> list[dict[str, object]]:
    written = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    return [hook | {"repo": repo["repo"]} for repo in written["repos"] for hook in repo["hooks"]]


def test_every_phony_target_is_there() -> None:
    declared = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert declared is not None
    assert set(declared.group(1).split()) == targets()


def test_hooks_fetch_nothing_and_call_what_is_there() -> None:
    for hook in hooks():
        assert (hook["repo"], hook["language"]) == ("local", "system")
        program, *words = str(hook["entry"]).split()
        if program == "make":
            assert set(words) <= targets()
        else:
            assert program == ".venv/bin/python"
            assert (ROOT / words[0]).is_file()


def test_quick_leaves_out_markers_that_exist() -> None:
    left_out = re.search(r"^NOT_QUICK := (.*)$", MAKEFILE, re.MULTILINE)
    assert left_out is not None
    assert left_out.group(1).split(" or ") == ["spark", "s3", "crash", "model", "slow", "torture"]


def judged(message: str, place: Path) -> tuple[int, str]:
    written = place / "COMMIT_EDITMSG"
    written.write_text(message, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "commit_message.py"), str(written)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("Loads read tabs\n\nFiles of spreadsheets have them.\n", ""),
        ("# a note of git\n\nLoads read tabs\n\nFiles of spreadsheets have them.\n# more\n", ""),
        ("Merge branch 'tabs'\n", ""),
        ("Loads read tabs\n", "the body is missing"),
        ("Loads read tabs\n\n# only notes of git\n", "the body is missing"),
        ("Loads read tabs\nFiles of spreadsheets have them.\n", "a blank line is missing"),
        ("x" * 73 + "\n\nA reason.\n", "the subject has 73 characters"),
    ],
)
def test_a_message_has_a_short_subject_and_a_reason(message: str, complaint: str, tmp_path: Path) -> None:
    status, said = judged(message, tmp_path)
    assert status == (1 if complaint else 0)
    assert complaint in said
    assert bool(said) == bool(complaint)


def test_the_changelog_has_a_place_for_the_next_line() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert len(headings) == len(set(headings))
