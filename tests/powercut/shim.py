"""The shim that sees, fails or kills the file-system calls of a process: built here, armed in a child."""

import ctypes
import errno
import functools
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
_HEADER = struct.Struct("<IIIIQQQ")


class Kind(IntEnum):
    """What a call does; the numbers of `shim.c`."""

    OPEN = 1
    WRITE = 2
    RENAME = 3
    LINK = 4
    UNLINK = 5
    MKDIR = 6
    RMDIR = 7
    TRUNCATE = 8
    SYNC = 9
    SYNC_ALL = 10
    UNKNOWN = 11
    MARK = 12


@dataclass(frozen=True, slots=True)
class Call:
    """One call that succeeded, in the order in which they were made."""

    kind: Kind
    path: str
    other: str
    flags: int
    inode: int
    offset: int
    data: bytes


class CannotShow(Exception):
    """Why a test cannot be run on this machine."""


@functools.cache
def built() -> Path:
    """The shim for this machine. Raises CannotShow."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise CannotShow("there is no C compiler")
    directory = Path(tempfile.mkdtemp(prefix="omnigraph-shim-"))
    made = directory / "shim.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-pthread", "-o", str(made), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotShow(f"the shim cannot be compiled: {done.stderr.strip().splitlines()[-1:]}")
    return made


class Shim:
    """The shim inside the process that it watches. There is no way back: arm it in a child."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.shim_arm.argtypes = [ctypes.c_char_p, ctypes.c_int, *[ctypes.c_long] * 3]
        self._library.shim_mark.argtypes = [ctypes.c_char_p]

    def arm(self, root: str, log: str, *, fail_at: int = 0, error: int = errno.EIO, kill_at: int = 0) -> None:
        """Note every call that changes something below `root`; the k-th fails, or the process dies at it."""
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        number = self._library.shim_arm(root.encode(), descriptor, fail_at, error, kill_at)
        if number:
            raise CannotShow(f"the kernel refuses a filter of calls: {os.strerror(number)}")

    def mark(self, text: str) -> None:
        """Note a step of the test."""
        self._library.shim_mark(text.encode())


def calls(log: Path) -> Iterator[Call]:
    """What a log holds."""
    data = memoryview(log.read_bytes())
    at = 0
    while at < len(data):
        kind, path_bytes, other_bytes, flags, inode, offset, data_bytes = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        parts = []
        for size in (path_bytes, other_bytes, data_bytes):
            parts.append(bytes(data[at : at + size]))
            at += size
        path, other, content = parts
        yield Call(Kind(kind), os.fsdecode(path), os.fsdecode(other), flags, inode, offset, content)
