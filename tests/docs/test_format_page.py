"""The page about the format names every file of a graph and every number of a format."""

import re
import tarfile
from pathlib import Path

import pytest

from omnigraph.core.formats import FORMATS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "reference" / "format.md").read_text()
NAMES = set(re.findall(r"`([^`\s]+)`", PAGE))
NUMBERED = re.compile(r"^\| `(\w+)` \| ([\d.]+) \|", re.MULTILINE)


def is_named(path: str) -> bool:
    """Whether a row of a table is about the file: its own name, a pattern of it, or a directory above."""
    parts = path.split("/")
    above = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    candidates = {*above, *(f"{name}/" for name in above[:-1])}
    return any(_pattern(name).fullmatch(each) for name in NAMES for each in candidates)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("[^/]+".join(map(re.escape, re.split(r"<[^>]+>", name))))


def test_every_format_number_is_on_the_page() -> None:
    assert dict(NUMBERED.findall(PAGE)) == {name: str(number) for name, number in FORMATS.items()}


@pytest.mark.slow
def test_every_file_of_a_stored_graph_is_on_the_page() -> None:
    (newest, *_) = sorted((ROOT / "tests" / "graphs").glob("*-3.tar.xz"))
    with tarfile.open(newest) as archive:
        files = [each.name.removeprefix("graph/") for each in archive.getmembers() if each.isfile()]
    files.remove("times.json")
    below = [name for name in files if re.match(r"(nodes|edges)/|__manifest/|_graph_commit", name)]
    datasets = re.compile(r"((nodes|edges)/[^/]+|__manifest|_graph_commit\w*\.lance)/(tree/[^/]+/)?")
    inside = [datasets.sub("", name, count=1) for name in below]
    assert {name for name in files if not is_named(name)} == set()
    assert {name for name in inside if not is_named(name)} == set()
    assert not is_named("__something/new.json")
