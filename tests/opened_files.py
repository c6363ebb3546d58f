"""Which files a command opens below a directory: told by strace, or by the kernel where that may not be used."""

import ctypes
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

_CALLS = "open,openat,creat,link,linkat,rename,renameat,renameat2,unlink,unlinkat,truncate,mkdir,mkdirat"
_PATH = re.compile(rb'"((?:[^"\\\\]|\\\\.)*)"')
_IN_OPEN, _IN_NONBLOCK = 0x20, 0x800


def strace_works() -> bool:
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(["strace", "-f", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return tried.returncode == 0


def run_told(
    command: Sequence[str], place: Path, log: Path
) -> tuple["subprocess.CompletedProcess[str]", set[str]]:
    """Run the command; what it did, and every path below `place` that it opened, made or removed."""
    if strace_works():
        return _with_strace(command, place, log)
    return _with_inotify(command, place)


def _with_strace(
    command: Sequence[str], place: Path, log: Path
) -> tuple["subprocess.CompletedProcess[str]", set[str]]:
    told = ["strace", "-f", "-qq", "-s", "4096", "-e", f"trace={_CALLS}", "-o", str(log), *command]
    done = subprocess.run(told, capture_output=True, text=True, check=False, timeout=280)
    named = {match.decode() for match in _PATH.findall(log.read_bytes())}
    return done, {path for path in named if path == str(place) or path.startswith(f"{place}/")}


def _with_inotify(command: Sequence[str], place: Path) -> tuple["subprocess.CompletedProcess[str]", set[str]]:
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.inotify_init1(_IN_NONBLOCK)
    assert queue >= 0, os.strerror(ctypes.get_errno())
    try:
        directories: dict[int, Path] = {}
        for directory in (place, *(path for path in place.rglob("*") if path.is_dir())):
            watch = libc.inotify_add_watch(queue, os.fsencode(directory), _IN_OPEN)
            assert watch >= 0, os.strerror(ctypes.get_errno())
            directories[watch] = directory
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
        opened: set[str] = set()
        while True:
            try:
                data = os.read(queue, 1 << 20)
            except BlockingIOError:
                return done, opened
            at = 0
            while at < len(data):
                watch, _, _, length = struct.unpack_from("iIII", data, at)
                name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
                opened.add(str(directories[watch] / name))
                at += 16 + length
    finally:
        os.close(queue)
