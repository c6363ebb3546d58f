"""A plain call of a command means what the parser makes of it; everything else is left to the parser."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.cli.app import plain_command, tree
from omnigraph.cli.declared import for_parser, plain_call

COMMANDS = {name: plain_command((name,)) for name in ("version", "lint", "query", "mutate")}
WORDS = [
    "name", "q.gq", "-", "--", "", "a=b", "3", "csv", "table", "nothing", "-x", "--json", "--json=yes", "--help",
    "--query", "--query=q.gq", "-e", "-equery", "-p", "-pa=1", "-p=1", "--params", "--params-file", "--store",
    "--store=g", "--branch", "--snapshot", "--at", "--format", "--format=jsonl", "--csv-null", "--with-metadata",
    "--schema", "--max-warnings", "--max-warnings=3", "--as", "--as=me", "--quiet", "--if-commit", "--unknown",
]  # fmt: skip


def parsed(command: Callable[..., Any], words: list[str]) -> dict[str, Any] | None:
    """What the parser makes of the words; None where it prints help or refuses them."""
    found: list[dict[str, Any]] = []

    def recorded(**named: Any) -> None:
        found.append(named)

    declared = for_parser(command)
    parameters = [
        each.replace(annotation=declared.__annotations__[each.name])
        for each in inspect.signature(declared).parameters.values()
    ]
    recorded.__annotations__ = dict(declared.__annotations__)
    recorded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(recorded)
    try:
        typer.main.get_command(app).main(args=words, standalone_mode=False)
    except (typer.TyperException, typer.Exit):
        return None
    return found[0] if found else None


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.sampled_from(sorted(COMMANDS)), st.lists(st.sampled_from(WORDS), max_size=6))
def test_a_plain_call_is_what_the_parser_makes_of_it(name: str, words: list[str]) -> None:
    command = COMMANDS[name]
    assert command is not None
    call = plain_call(command, words)
    if call is not None:
        assert call == parsed(command, words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("version", ["--json"]),
        ("lint", ["--schema", "s.pg", "--query", "a.gq", "--query=b.gq"]),
        (
            "query",
            ["friends", "--query", "q.gq", "-p", "a=1", "-p", "b=x=y", "--format", "csv", "--store", "g"],
        ),
        ("query", ["-e", "query q() {}", "--at", "v1", "--json"]),
        ("mutate", ["-e", "query q() {}", "--as", "me", "--branch", "b", "--quiet"]),
    ],
)
def test_usual_calls_are_plain(name: str, words: list[str]) -> None:
    command = COMMANDS[name]
    assert command is not None
    call = plain_call(command, words)
    assert call is not None
    assert call == parsed(command, words)


@pytest.mark.parametrize(
    "words", [["--help"], ["--jsn"], ["a", "b"], ["--format", "none"], ["--format"], ["--", "a"], ["-pa=1"]]
)
def test_what_is_not_plain_is_left_to_the_parser(words: list[str]) -> None:
    command = COMMANDS["query"]
    assert command is not None
    assert plain_call(command, words) is None


def test_a_call_is_plain_also_after_the_parser_was_built() -> None:
    tree()
    command = plain_command(("query",))
    assert command is not None
    assert plain_call(command, ["name", "--query", "q.gq", "--store", "g"]) is not None
