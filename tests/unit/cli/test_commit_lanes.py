"""Histories drawn as lines."""

from types import SimpleNamespace

import pytest

from omnigraph.cli.commit_lanes import lanes_of


def drawn(history: str) -> str:
    """The drawing of commits written as `child:parent+parent`, children first."""
    commits = []
    for word in history.split():
        name, _, parents = word.partition(":")
        commits.append(SimpleNamespace(id=name, parents=tuple(parents.split("+")) if parents else ()))
    return "\n".join(marks if made is None else f"{marks} {made.id}" for marks, made in lanes_of(commits))


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ("c:b b:a a", ["* c", "* b", "* a"]),
        ("m:b+c c:a b:a a", ["* m", "|\\", "| * c", "* | b", "|/", "* a"]),
        ("m:b+c c:a", ["* m", "|\\", "| * c"]),
        ("m:b+c b:a c:a", ["* m", "|\\", "* | b", "| * c", "|/"]),
        (
            "m:l+r n:l+r r:a l:a a",
            ["* m", "|\\", "| | * n", "|_|/", "| * r", "* | l", "|/", "* a"],
        ),
        (
            "m:x+c x:b+d d:a c:a b:a a",
            ["* m", "|\\", "* | x", "|\\ \\", "| * | d", "| | * c", "| |/", "* | b", "|/", "* a"],
        ),
        ("m:a+b b:a a", ["* m", "|\\", "| * b", "|/", "* a"]),
    ],
    ids=["line", "merge", "cut", "cut below both", "criss-cross", "two merges", "fast-forward"],
)
def test_drawing(history: str, expected: list[str]) -> None:
    assert drawn(history).splitlines() == expected
