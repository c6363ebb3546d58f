"""The page of threats says what is so: its files, functions, limits and tests exist."""

import re
from pathlib import Path

import pytest

from docs.test_architecture import ROOMS, ROOT, SOURCES, definitions
from omnigraph.core import limits
from omnigraph.core.settings import Settings
from omnigraph.pipeline.input import records
from omnigraph.pipeline.load import frames

PAGE = (ROOT / "docs" / "internals" / "threats.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_check_is_a_function_of_the_file_that_is_named() -> None:
    named = re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w/]+): ([\w.]+)`", PAGE)
    assert len(named) > 20
    for file, name in named:
        assert (SOURCES / f"{file}.py").is_file(), file
        assert name in definitions(file), f"{file} does not define {name}"


def test_every_limit_is_shown_by_a_test_that_exists() -> None:
    rows = re.findall(r"^\| .* \| (.*) \| `(tests/[\w/]+\.py)::(\w+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 15
    for limit, file, test in rows:
        assert f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {test}"
        for name in re.findall(r"`([A-Z_]+)`", limit):
            assert any(isinstance(getattr(place, name, None), int) for place in (limits, records, frames)), (
                name
            )
        for name in re.findall(r"setting `(\w+)`", limit):
            assert hasattr(Settings(), name), name


def test_the_page_speaks_of_a_server_because_there_is_one() -> None:
    assert ("## A server" in PAGE) is (SOURCES / "server").exists()
    security = Path(ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "no server" not in PAGE + security
