"""Where workloads write."""

import fcntl
import os
import shutil
import struct
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

_GET_FLAGS = 0x80086601
_SET_FLAGS = 0x40086602
_SPREAD_SUBDIRECTORIES = 0x00020000
"""The attribute `T` of ext4: directories below are not laid out near each other."""


@contextmanager
def work_directory(prefix: str, parent: str | None = None) -> Generator[Path]:
    """A new directory for one run, removed at its end. What makes many files does so in an `area` of it."""
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with suppress(OSError):
            _spread_subdirectories(place)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def area(place: Path, name: str) -> Path:
    """A new subdirectory that lies where nothing was deleted a moment ago, most probably.

    An ext4 without a journal does not give out an inode again for some minutes after it was freed, and looks
    at each such inode whenever a file is made in the same block group. So a mass deletion (an earlier run, a
    test suite) makes every creation nearby several times as slow. With the attribute the group follows from
    the name, which is a new one each time. Other file systems do not have it and need no such care.
    """
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))


def _spread_subdirectories(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        (flags,) = struct.unpack("l", fcntl.ioctl(descriptor, _GET_FLAGS, struct.pack("l", 0)))
        fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("l", flags | _SPREAD_SUBDIRECTORIES))
    finally:
        os.close(descriptor)
