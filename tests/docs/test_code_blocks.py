"""Every code block of the README and of docs/start does what the page says.

A page is read from top to bottom in a fresh directory. Its fences say what a block is:

- `sh`: run line by line with the installed command on the path; a non-zero exit fails the page unless the line ends
  in `# exit N`; what is exported stays so. Targets of make are only resolved: running the suite inside the suite would
  never end.
- `console`: shown and not run: what belongs on another machine.
- `pg NAME`, `gq NAME`, `json NAME`, `yaml NAME` and so on: the block is the file NAME.
- `python`: executed; the blocks of one page share their names.
- `text`: what the block before it printed. `...` stands for any run of characters.

The directories `scripts` and `examples` are those of the repository.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from omnigraph.cli import running

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(
        page
        for part in ("start", "concepts", "how-to")
        for page in sorted((ROOT / "docs" / part).glob("*.md"))
    ),
]
EXPORT = re.compile(r"export (\w+)=(\S+)$")
FENCE = re.compile(r"^```(\S+)(?: +(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT = re.compile(r"\s+# exit (\d+)$")


@dataclass(frozen=True)
class Block:
    language: str
    name: str | None
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], match[3], text.count("\n", 0, match.start()) + 1)
        for match in FENCE.finditer(text)
    ]


class Page:
    """One page being read."""

    def __init__(self, place: Path, *, in_process: bool) -> None:
        self.place = place
        self.in_process = in_process
        self.names: dict[str, Any] = {"__name__": "page"}
        self.printed = ""
        for shared in ("scripts", "examples"):
            (place / shared).symlink_to(ROOT / shared)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OMNIGRAPH_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # Nothing here is about durability, and a sync costs more than most commands.
        self.environment = {
            **kept,
            "PATH": path,
            "HOME": str(place / "home"),
            "OMNIGRAPH_HOME": str(place / "home" / ".omnigraph"),
            "OMNIGRAPH_DURABILITY": "os",
        }

    def read(self, block: Block) -> None:
        match block.language:
            case "sh":
                self.printed = "".join(self.shell(line) for line in joined_lines(block.text))
            case "python":
                self.printed = self.python(block)
            case "text":
                assert_printed(block.text, self.printed)
            case "console":
                return
            case "pg" | "gq" | "json" | "jsonl" | "csv" | "yaml" | "toml":
                assert block.name, f"line {block.line}: a {block.language} block names its file"
                file = self.place / block.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, encoding="utf-8")
            case _:
                raise AssertionError(f"line {block.line}: no rule for a block of {block.language}")

    def shell(self, line: str) -> str:
        expected = EXIT.search(line)
        command = EXIT.sub("", line)
        if command.startswith("make "):
            subprocess.run(
                ["make", "-n", "-C", str(ROOT), command.split()[1]], check=True, capture_output=True
            )
            return ""
        exported = EXPORT.match(command)
        if exported:
            self.environment[exported[1]] = exported[2]
            return ""
        if self.in_process and plain(command):
            status, printed = self.command(shlex.split(command)[1:])
        else:
            status, printed = self.bash(command)
        assert status == int(expected[1] if expected else 0), f"{line}\n{printed}"
        return printed

    def command(self, arguments: list[str]) -> tuple[int, str]:
        """Run the command in this process, at a tenth of the time."""
        out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.chdir(self.place),
            patch.dict(os.environ, self.environment, clear=True),
            patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO())),
        ):
            status = running.run(arguments)
        out.flush()
        return status, out.buffer.getvalue().decode() + err.getvalue()  # type: ignore[attr-defined]

    def bash(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        # A shell that ran the command in its own place was killed itself; elsewhere it says 128 and the signal.
        status = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return status, done.stdout + done.stderr

    def python(self, block: Block) -> str:
        captured = io.StringIO()
        quick = {**self.environment, "OMNIGRAPH_DURABILITY": "os"}
        with (
            contextlib.redirect_stdout(captured),
            contextlib.chdir(self.place),
            patch.dict(os.environ, quick, clear=True),
        ):
            exec(compile(block.text, f"line {block.line}", "exec"), self.names)
        return captured.getvalue()


def plain(command: str) -> bool:
    """Whether a line is one command and nothing a shell would have to do."""
    return command.startswith("omnigraph ") and not set("|<>$;&`\\") & set(re.sub(r"'[^']*'", "", command))


def joined_lines(text: str) -> list[str]:
    """The commands of a shell block: continued lines joined, comments and blank lines left out."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def assert_printed(expected: str, printed: str) -> None:
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("..."))
    assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"expected:\n{expected}\nprinted:\n{printed}"


@pytest.mark.spark  # most pages load
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_block_of_a_page_works(page: Path, tmp_path: Path) -> None:
    found = blocks(page)
    # The README is read as a user would, a process a line.
    reading = Page(tmp_path, in_process=page.name != "README.md")
    for block in found:
        reading.read(block)
    assert found, "a page without a block is not a page of this kind"


def test_no_block_escapes_the_reader() -> None:
    for page in PAGES:
        fences = sum(line.startswith("```") for line in page.read_text(encoding="utf-8").splitlines())
        assert fences == 2 * len(blocks(page)), page


def test_the_readme_opens_with_the_two_commands() -> None:
    first = blocks(ROOT / "README.md")[0]
    assert [line.split("#")[0].strip() for line in first.text.splitlines()] == ["make demo", "make test"]
