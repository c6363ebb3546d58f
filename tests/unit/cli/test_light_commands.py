"""What short commands do not load: modules are most of what they cost."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "lance",
    "pyarrow",
    "numpy",
    "typer",
    "pydantic",
    "rich",
    "click",
    "asyncio",
    "ssl",
    "http",
    "pandas",
)
SCHEMA = "node Ship { imo: String @key }\n"
QUERIES = "query q($imo: String) { match { $s: Ship { imo: $imo } } return { $s.imo } }\n"


def loaded(place: Path, *words: str) -> set[str]:
    program = (
        "import sys\n"
        "from omnigraph.cli.startup import spare\n"
        "spare()\n"
        "from omnigraph.cli.running import run\n"
        f"assert run({list(words)!r}) == 0\n"
        "print(chr(0) + chr(10).join(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.partition("\0")[2].split())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "s.pg").write_text(SCHEMA)
    (tmp_path / "q.gq").write_text(QUERIES)
    return tmp_path


def test_version_loads_the_command_line_and_the_errors(place: Path) -> None:
    found = loaded(place, "version", "--json")
    assert not found.intersection(HEAVY)
    own = {name.removeprefix("omnigraph.") for name in found if name.startswith("omnigraph.")}
    assert {name.partition(".")[0] for name in own} == {"cli", "core"}
    assert len(own) <= 26, sorted(own)


@pytest.mark.slow
def test_lint_loads_no_table_and_no_parser_of_arguments(place: Path) -> None:
    found = loaded(place, "lint", "--schema", "s.pg", "--query", "q.gq")
    assert not found.intersection(HEAVY)
    rooms = {name.split(".")[1] for name in found if name.startswith("omnigraph.")}
    assert rooms <= {"api", "catalog", "cli", "core", "language", "planning"}


@pytest.mark.slow
def test_a_query_and_a_mutation_load_no_parser_of_arguments(place: Path) -> None:
    assert "typer" in loaded(place, "init", "--schema", "s.pg", "g.omni")
    words = ("-e", 'query m() { insert Ship { imo: "1" } }', "--store", "g.omni", "--quiet")
    for found in (
        loaded(place, "mutate", *words),
        loaded(place, "query", "q", "--query", "q.gq", "-p", "imo=a", "--store", "g.omni", "--format", "csv"),
    ):
        assert not found.intersection({"typer", "pydantic", "rich", "pandas", "pyspark", "asyncio"})
