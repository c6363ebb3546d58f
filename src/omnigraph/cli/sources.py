"""Reading and writing the files a user names."""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from omnigraph.cli import output
from omnigraph.core.errors import IoFailure, UsageError
from omnigraph.core.limits import SOURCE_BYTES_MAX

STDIN: Final = "-"
STDIN_NAME: Final = "<stdin>"


def shown(path: str) -> str:
    """The name of a source in messages."""
    return STDIN_NAME if path == STDIN else path


def read_bytes(path: str) -> bytes:
    """The bytes of a source file, or of stdin for `-`; never more than one byte over the limit."""
    try:
        if path == STDIN:
            return sys.stdin.buffer.read(SOURCE_BYTES_MAX + 1)
        with Path(path).open("rb") as file:
            return file.read(SOURCE_BYTES_MAX + 1)
    except OSError as error:
        raise IoFailure(f"'{path}' cannot be read: {error.strerror or error}") from error


def expand(paths: Iterable[str], suffix: str) -> list[str]:
    """The files meant: a directory stands for every file below it with the suffix, in order of name."""
    found: list[str] = []
    for path in paths:
        if path != STDIN and Path(path).is_dir():
            inside = sorted(str(file) for file in Path(path).rglob(f"*{suffix}"))
            if not inside:
                raise UsageError(f"the directory '{path}' has no {suffix} file")
            found += inside
        else:
            found.append(path)
    return found


def replace_text(path: str, text: str) -> None:
    """Put `text` in place of the file at once; on any failure the old file stays as it was."""
    import tempfile  # few commands write a file

    output.begin()
    target = Path(path)
    try:
        # A link stays a link, and a file keeps its permissions.
        target = target.resolve(strict=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise IoFailure(f"'{path}' cannot be written: {error.strerror or error}") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(target.stat().st_mode & 0o7777)
        Path(name).replace(target)
    except BaseException as error:
        with suppress(OSError):
            Path(name).unlink()
        if isinstance(error, OSError):
            raise IoFailure(f"'{path}' cannot be written: {error.strerror or error}") from error
        raise
