"""The page about explain names every member of its JSON."""

import re
from pathlib import Path

from omnigraph.engine.read.explain import Explanation, Operator

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "explain.md").read_text(encoding="utf-8")


def members(heading: str) -> set[str]:
    """The names in the first column of a table."""
    rows = PAGE.split(f"| {heading} | meaning |\n|---|---|\n", 1)[1].split("\n\n", 1)[0].splitlines()
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_the_page_lists_the_members_of_an_operator() -> None:
    full = Operator(
        "scan",
        "x",
        access="a",
        why="b",
        ways=[{"access": "a"}],
        folded=True,
        estimated_rows=1,
        statistics=["s"],
        actual_rows=10,
        seconds=1.0,
        requests=1,
        bytes=1,
        exact=True,
        coverage={},
        recall=1.0,
        embedding="e",
        inner=[Operator("scan", "y")],
    )
    assert members("member of an operator") == set(full.to_dict())


def test_the_page_lists_the_members_of_an_explanation() -> None:
    analyzed = Explanation("q", "c", (), "as written", analyzed=True).to_dict()
    assert members("member") == set(analyzed)
    assert [name for name in analyzed["analyze"] if f"`{name}`" not in PAGE] == []
