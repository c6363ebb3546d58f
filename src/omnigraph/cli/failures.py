"""How a failure looks on the terminal and to a script."""

import json
import os
import re
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from omnigraph.cli import config, output
from omnigraph.core.errors import (
    ConstraintViolation,
    InternalError,
    MergeConflicts,
    OmnigraphError,
    PreconditionFailed,
    QueryError,
    SourceFailure,
    UsageError,
)
from omnigraph.core.settings import is_set

if TYPE_CHECKING:
    import typer

CONFLICTS_SHOWN_MAX: Final = 20
ROWS_SHOWN_MAX: Final = 10
"""Entities that the terminal names when they break rules; the error counts all, JSON lists more."""
VALUE_SHOWN_MAX: Final = 60
"""Characters of a value that a conflict shows on the terminal."""


def debugging() -> bool:
    """Whether the user asked for tracebacks: by the environment, else by the personal file."""
    said = os.environ.get("OMNIGRAPH_DEBUG", "").strip()
    if not said:
        with suppress(OmnigraphError):  # perhaps the file is what is wrong
            said = config.load().settings.get("debug")
    return is_set(said)


def from_parser(error: "typer.TyperException") -> UsageError:
    """The usage error behind a complaint of the argument parser."""
    message = error.format_message().strip().rstrip(".").replace(": Value error, ", ": ")
    text = message[:1].lower() + message[1:].partition(" (Possible option")[0]
    text = text.replace(": Input should be ", ": it should be ").partition(", unable to parse")[0]
    if "--uri" in text:
        return UsageError(text, hint="a graph is addressed with --store")
    context = getattr(error, "ctx", None)
    extra = re.fullmatch(r"got unexpected extra arguments?(?:\(s\))? \((.*)\)", text)
    if extra is not None:
        return UsageError(text, hint=_place_of(extra[1], context))
    path = getattr(context, "command_path", "omnigraph")
    if text == "no such option: --branch" and path.endswith(" schema apply"):
        return UsageError(
            text,
            hint="a schema is that of the whole graph: leave --branch out; branches adopt it as they go on",
        )
    near = _near(text, context)
    if near:
        return UsageError(text, hint=f"did you mean {near[0]}?", details={"candidates": list(near)})
    return UsageError(text, hint=f"`{path} --help` shows how the command is used")


def _flags(context: Any) -> set[str]:
    """The flags of the command that was parsed."""
    params: list[Any] = getattr(getattr(context, "command", None), "params", [])
    return {name for each in params for name in each.opts if name.startswith("--")}


def _place_of(extra: str, context: Any) -> str:
    """Where an argument belongs that the command does not take: a graph, or a file by its ending."""
    known, first = _flags(context), extra.partition(" ")[0]
    if Path(first).is_dir() or "://" in first or first.endswith(".omni"):
        return "a graph is addressed with --store"
    ending = {".gq": "--query", ".pg": "--schema"}.get(Path(first).suffix, "--data")
    if ending in known:
        return f"a file is named with its flag: {ending} {first}"
    return f"`{getattr(context, 'command_path', 'omnigraph')} --help` shows how the command is used"


def _near(text: str, context: Any) -> tuple[str, ...]:
    """Flags or values like the one the parser did not know; its complaint is all that names them."""
    from omnigraph.language.diagnostics import near_names

    flag = re.fullmatch(r"no such option: (\S+)", text)
    if flag is not None:
        return near_names(flag[1], sorted(_flags(context)))
    value = re.search(r"'([^']*)' is not one of (.*)$", text)
    return () if value is None else near_names(value[1], re.findall(r"'([^']*)'", value[2]))


def from_anything(error: Exception) -> InternalError:
    """The error shown for a failure nobody foresaw."""
    return InternalError(
        f"unexpected failure: {type(error).__name__}: {error}",
        hint="please report it; OMNIGRAPH_DEBUG=1 shows where it happened",
    )


def show(error: OmnigraphError, *, as_json: bool) -> int:
    """Print the failure where it belongs and return the exit status."""
    if debugging():
        traceback.print_exception(error, file=sys.stderr)
    if as_json and isinstance(error, PreconditionFailed):
        # A lost compare-and-swap is an answer a script acts on, so it is the result.
        output.document(error.to_dict())
    elif as_json:
        output.note(json.dumps(error.to_dict(), ensure_ascii=False))
    else:
        _show_text(error)
    return error.exit_status


def conflict_lines(conflict: Mapping[str, Any]) -> list[str]:
    """A conflict for people: the type, what happened to which entity, the kind, and the values behind it."""
    type_name = conflict["table_key"].partition(":")[2]
    what = conflict["message"]
    if what.startswith(f"{type_name}: ") and conflict["row_id"] is not None:
        what = f"{conflict['row_id']}{what.removeprefix(type_name)}"  # a broken rule names the type itself
    lines = [f"conflict: {type_name} {what} ({conflict['kind']})"]
    for each in conflict.get("properties", ()):
        sides = [f"{role} {_value(each[role])}" for role in ("base", "ours", "theirs") if role in each]
        lines.append(f"  {each['property']}: {', '.join(sides)}")
    return lines


def _value(value: Any) -> str:
    """A value in one line, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_SHOWN_MAX else text[: VALUE_SHOWN_MAX - 1] + "…"


def _show_text(error: OmnigraphError) -> None:
    message, hint = error.message, error.hint
    if isinstance(error, SourceFailure) and error.diagnostics:
        from omnigraph.language.diagnostics import Severity, render

        for finding in error.diagnostics:
            output.note(render(finding))
        wrong = [each for each in error.diagnostics if each.severity is Severity.ERROR]
        if any(each.message in message for each in wrong):  # it was printed with its place
            text = "query" if isinstance(error, QueryError) else "schema"
            message, hint = f"the {text} has {len(wrong)} error{'' if len(wrong) == 1 else 's'}", None
    if isinstance(error, ConstraintViolation) and "problem_totals" not in error.details:
        # A single edge is told by its ends, in the message; its id was drawn a moment ago, if it is new.
        told = error.total == 1 and error.violations[0].entity_kind == "edge"
        for each in error.violations[: 0 if told else ROWS_SHOWN_MAX]:
            if each.entity_id is not None:
                output.note(f"{each.type_name} {each.entity_id}: {each.message or each.rule} ({each.rule})")
    if isinstance(error, MergeConflicts):
        for conflict in error.conflicts[:CONFLICTS_SHOWN_MAX]:
            for line in conflict_lines(conflict):
                output.note(line)
    output.note(f"error: {message}")
    if hint:
        output.note(f"hint: {hint}")
