"""Every code block of the README and of docs/start does what the page says.

A page is read from top to bottom in a fresh directory. Its fences say what a block is:

- `sh`: run line by line with the installed command on the path; a non-zero exit fails the page unless the line ends
  in `# exit N`. Targets of make are only resolved: running the suite inside the suite would never end.
- `pg NAME`, `gq NAME`, `json NAME`, `toml NAME`: the block is the file NAME.
- `python`: executed; the blocks of one page share their names.
- `text`: what the block before it printed. `...` stands for any run of characters.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "start").glob("*.md"))]
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

    def __init__(self, place: Path) -> None:
        self.place = place
        self.names: dict[str, Any] = {"__name__": "page"}
        self.printed = ""

    def read(self, block: Block) -> None:
        match block.language:
            case "sh":
                self.printed = "".join(self.shell(line) for line in joined_lines(block.text))
            case "python":
                self.printed = self.python(block)
            case "text":
                assert_printed(block.text, self.printed)
            case "pg" | "gq" | "json" | "jsonl" | "toml":
                assert block.name, f"line {block.line}: a {block.language} block names its file"
                (self.place / block.name).write_text(block.text, encoding="utf-8")
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
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.place,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == int(expected[1] if expected else 0), f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def python(self, block: Block) -> str:
        captured = io.StringIO()
        with contextlib.redirect_stdout(captured), contextlib.chdir(self.place):
            exec(compile(block.text, f"line {block.line}", "exec"), self.names)
        return captured.getvalue()


def joined_lines(text: str) -> list[str]:
    """The commands of a shell block: continued lines joined, comments and blank lines left out."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def assert_printed(expected: str, printed: str) -> None:
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("..."))
    assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"expected:\n{expected}\nprinted:\n{printed}"


@pytest.mark.timeout(900)  # a page starts many processes, one after the other
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_works(page: Path, tmp_path: Path) -> None:
    found = blocks(page)
    reading = Page(tmp_path)
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
