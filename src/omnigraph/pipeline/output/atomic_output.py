"""Output that appears whole or not at all: written to a hidden sibling, renamed at the end."""

import errno
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from omnigraph.core.errors import BadRequest, IoFailure
from omnigraph.core.ids import new_ulid

ABOUT: Final = "_export.json"
"""The file of an exported directory that says what it holds. Only a directory with it is ever replaced."""


@contextmanager
def appearing(target: Path, *, directory: bool, overwrite: bool, sync: bool) -> Generator[Path]:
    """A new hidden directory beside `target`; what the block made in it becomes the target at the end.

    A file is what the block wrote under the target's own name. An existing target raises `BadRequest` unless
    it is to be overwritten. A failure leaves what was there; a killed process leaves the hidden directory.
    """
    _refuse(target, directory=directory, overwrite=overwrite)
    made = target.with_name(f".{target.name}.{new_ulid()}.partial")
    try:
        made.mkdir()
        yield made
        if sync:
            _sync_directory(made)
        if directory:
            _publish_directory(made, target, overwrite=overwrite)
        else:
            _publish_file(made / target.name, target, overwrite=overwrite)
        if sync:
            _sync_directory(target.parent)
    except OSError as error:
        raise IoFailure(f"'{target}' cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _refuse(target: Path, *, directory: bool, overwrite: bool) -> None:
    if not target.exists() and not target.is_symlink():
        return
    if not overwrite:
        raise _exists(target)
    if target.is_dir() != directory:
        found, wanted = ("a directory", "a file") if target.is_dir() else ("a file", "a directory")
        raise BadRequest(f"'{target}' is {found}; the export would be {wanted}", hint="name another place")
    if directory and any(target.iterdir()) and not (target / ABOUT).is_file():
        raise BadRequest(
            f"'{target}' is not an export and is not replaced", hint="remove it, or name another place"
        )


def _exists(target: Path) -> BadRequest:
    return BadRequest(f"'{target}' exists already", hint="name another place, or ask to overwrite it")


def _publish_file(made: Path, target: Path, *, overwrite: bool) -> None:
    if overwrite:
        made.replace(target)
        return
    try:
        os.link(made, target)  # unlike a rename it refuses a name that somebody took meanwhile
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}:
            raise
        if target.exists():
            raise _exists(target) from None
        made.rename(target)


def _publish_directory(made: Path, target: Path, *, overwrite: bool) -> None:
    if not overwrite or not target.exists():
        try:
            made.rename(target)
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise _exists(target) from None
            raise
        return
    old = made.with_suffix(".replaced")
    target.rename(old)
    try:
        made.rename(target)
    except BaseException:
        with suppress(OSError):
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
