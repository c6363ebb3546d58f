"""The two streams. Only results go to stdout; a pipe nobody reads any more ends the program quietly."""

import io
import json
import os
import sys
from contextvars import ContextVar
from typing import Any, Final

PIPE_CLOSED_STATUS: Final = 141
INTERRUPTED_STATUS: Final = 130
NOT_BEGUN: Final = "the command had not begun: nothing was changed"

_begun: ContextVar[bool] = ContextVar("begun")
_told: ContextVar[bool] = ContextVar("told")


class PipeClosed(BaseException):
    """Whoever read our stdout is gone. Not an Exception: nothing on the way may turn it into a failure."""


def start() -> None:
    """A command is about to be parsed and run."""
    _begun.set(False)
    _told.set(False)


def begin() -> None:
    """From here on the command may have done something."""
    _begun.set(True)


def tell_interrupt(outcome: str | None = None) -> None:
    """Say once that the command was interrupted, and what became of it, as far as that is known."""
    if _told.get():
        return
    _told.set(True)
    outcome = outcome or (None if _begun.get() else NOT_BEGUN)
    note("interrupted" if outcome is None else f"interrupted: {outcome}")


def prepare_streams() -> None:
    """Text is UTF-8 whatever the locale says; what cannot be encoded is shown escaped, never a crash."""
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        # PYTHONUNBUFFERED: a raw stream may take a part of what it is given, and nobody reads that number.
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(sys.stdout.buffer), line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace")


def write(text: str) -> None:
    """Put text on stdout as it is."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError as error:
        raise PipeClosed from error


def write_bytes(data: bytes) -> None:
    """Put bytes on stdout as they are."""
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError as error:
        raise PipeClosed from error


def line(text: str) -> None:
    """Put one line on stdout."""
    write(text + "\n")


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def document(value: Any) -> None:
    """Put one JSON document on stdout: two-space indent, final newline, characters as they are."""
    write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def json_line(value: Any) -> None:
    """Put one JSON object on one line of stdout."""
    write(json.dumps(value, ensure_ascii=False) + "\n")


def note(text: str) -> None:
    """Put one line on stderr."""
    _to_stderr(text + "\n")


def finish() -> None:
    """Hand everything written to whoever reads it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise PipeClosed from error


def abandon_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's own last flush cannot complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _to_stderr(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except BrokenPipeError:
        # Nobody reads our notes; the result and the exit status still count.
        return
