"""How a failure looks on the terminal and to a script."""

import json
import os
import sys
import traceback
from typing import Final

import typer

from omnigraph.cli import output
from omnigraph.core.errors import (
    InternalError,
    MergeConflicts,
    OmnigraphError,
    PreconditionFailed,
    UsageError,
)

CONFLICTS_SHOWN_MAX: Final = 20


def debugging() -> bool:
    """Whether the user asked for tracebacks."""
    return os.environ.get("OMNIGRAPH_DEBUG", "").lower() not in {"", "0", "false"}


def from_parser(error: typer.TyperException) -> UsageError:
    """The usage error behind a complaint of the argument parser."""
    message = error.format_message().strip().rstrip(".")
    text = message[:1].lower() + message[1:]
    if "--uri" in text or text.startswith("got unexpected extra argument"):
        return UsageError(text, hint="a graph is addressed with --store")
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "omnigraph")
    return UsageError(text, hint=f"`{path} --help` shows how the command is used")


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


def _show_text(error: OmnigraphError) -> None:
    findings = getattr(error, "diagnostics", ())
    if findings:
        from omnigraph.language.diagnostics import render

        for finding in findings:
            output.note(render(finding))
    if isinstance(error, MergeConflicts):
        for conflict in error.conflicts[:CONFLICTS_SHOWN_MAX]:
            output.note(f"conflict: {conflict.get('message')} ({conflict.get('kind')})")
    output.note(f"error: {error.message}")
    if error.hint:
        output.note(f"hint: {error.hint}")
