"""Making new local files survive a power cut.

The substrate never syncs. Everything an acknowledged commit needs is synced here, in rounds: the files of a
round and the directories that name them go to the device side by side, so a round takes about as long as one
flush; where a flush is shorter than a thread takes to begin, they go in turn. A power cut inside a round may
leave a name without its content; that was promised to nobody. On an object store an acknowledged write is
already durable, so nothing here applies to it.
"""

import ctypes
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from omnigraph.core.events import DurableOperation, emit, listening
from omnigraph.storage.failures import os_failure, translated
from omnigraph.storage.parallel import all_waited_for

FILES_KNOWN_MAX: Final = 4096
"""Synced files one process remembers; a forgotten one is synced again, which is cheap when it is clean."""


class DurabilityMode(StrEnum):
    """How far a write has travelled when it is acknowledged."""

    FULL = "full"
    """Files and directories are on the device."""
    OS = "os"
    """The operating system has them; a power cut may lose acknowledged commits."""
    SYNCFS = "syncfs"
    """As FULL, by one sync of the whole file system: fewer waits, but it waits for foreign writes too."""


def _load_libc() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syncfs.argtypes = [ctypes.c_int]
    return libc


_libc: Final = _load_libc()


def sync_files(paths: Sequence[str], mode: DurabilityMode = DurabilityMode.FULL) -> None:
    """Return once the content of every named local file is on the device. Cost: about one flush."""
    if mode is DurabilityMode.OS or not paths:
        return
    if mode is DurabilityMode.SYNCFS and _libc is not None:
        with translated(paths[0]):
            _sync_file_system(paths)
    else:
        all_waited_for(_sync_file, paths)


def sync_directories(paths: Sequence[str], mode: DurabilityMode = DurabilityMode.FULL) -> None:
    """Return once the entries of every named local directory are on the device. Cost: about one flush."""
    if mode is not DurabilityMode.OS:
        all_waited_for(_sync_directory, paths)


def _sync_round(files: Sequence[str], directories: Sequence[str], mode: DurabilityMode) -> None:
    """Files and directories together."""
    if mode is DurabilityMode.SYNCFS:
        # The first has covered the entries already; a directory that appeared since then still needs its own
        # sync, and a clean one costs next to nothing.
        sync_files(files, mode)
        sync_directories(directories, mode)
    else:
        steps = [(_sync_file, path) for path in files] + [(_sync_directory, path) for path in directories]
        all_waited_for(lambda step: step[0](step[1]), steps)


def _sync_directory(path: str) -> None:
    _sync("sync_directory", path, os.O_RDONLY | os.O_DIRECTORY, os.fsync)


def _sync_file(path: str) -> None:
    _sync("sync_file", path, os.O_RDONLY, _sync_descriptor)


def _sync(kind: str, path: str, flags: int, flush: Callable[[int], None]) -> None:
    heard = listening()
    try:
        if heard:
            emit(DurableOperation(kind, path, "before"))
        descriptor = os.open(path, flags)
        try:
            flush(descriptor)
        finally:
            os.close(descriptor)
        if heard:
            emit(DurableOperation(kind, path, "after"))
    except OSError as error:
        raise os_failure(error, path) from error


def _sync_descriptor(descriptor: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def _sync_file_system(paths: Sequence[str]) -> None:
    for path in paths:
        emit(DurableOperation("sync_file", path, "before"))
    devices: dict[int, str] = {}
    for path in paths:
        devices.setdefault(os.stat(path).st_dev, path)
    for path in devices.values():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if _libc.syncfs(descriptor) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(descriptor)
    for path in paths:
        emit(DurableOperation("sync_file", path, "after"))


class DirectoryLedger:
    """Which directories this process has seen made durable in their parents.

    A directory is known by path and inode, so one that was removed and made again counts as new.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._lock = threading.Lock()

    def unnamed(self, directories: Iterable[str], *, below: str) -> dict[str, int]:
        """Those directories, and those above them, whose names may not be durable yet, with their inodes."""
        found: dict[str, int] = {}
        for directory in directories:
            current = directory
            while current != below and current.startswith(below + "/") and current not in found:
                inode = os.stat(current).st_ino
                if self._known.get(current) == inode:
                    break
                found[current] = inode
                current = os.path.dirname(current)
        return found

    def record(self, named: Mapping[str, int]) -> None:
        """Remember that these directories, as they were found before the sync, are named durably."""
        with self._lock:
            self._known.update(named)


class FileLedger:
    """Which files this process has seen made durable, in content and name. Only the last ones are remembered.

    A file is known by path and incarnation, so one that was removed and made again counts as new.
    Thread-safe.
    """

    def __init__(self, known_max: int = FILES_KNOWN_MAX) -> None:
        self._known: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        self._known_max = known_max
        self._lock = threading.Lock()

    def knows(self, path: str) -> bool:
        """Whether this very file is durable. Cost: one probe."""
        known = self._known.get(path)
        return known is not None and known == _incarnation(path)

    def record(self, incarnations: Iterable[tuple[str, tuple[int, int, int] | None]]) -> None:
        """Remember that these files, as they were found before their sync, are durable."""
        with self._lock:
            for path, incarnation in incarnations:
                if incarnation is not None:
                    self._known[path] = incarnation
                    self._known.move_to_end(path)
            while len(self._known) > self._known_max:
                self._known.popitem(last=False)


def _incarnation(path: str) -> tuple[int, int, int] | None:
    """What tells a file from every other one that had or will have its name; None when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


_ledger: Final = DirectoryLedger()
_synced: Final = FileLedger()


def make_durable(paths: Iterable[str], mode: DurabilityMode, *, root: str) -> None:
    """Sync every named new file, the directories that hold them, and new directories above, up to `root`.

    One round, all side by side. Names that are not local paths are skipped: an object store
    has made them durable. `root` itself is synced when a directory directly below it is new.
    """
    if mode is DurabilityMode.OS:
        return
    files = [path for path in dict.fromkeys(paths) if path.startswith("/")]
    if not files:
        return
    directories = list(dict.fromkeys(os.path.dirname(path) for path in files))
    incarnations = [(path, _incarnation(path)) for path in files]
    with translated(files[0]):
        unnamed = _ledger.unnamed(directories, below=root)
    parents = (os.path.dirname(path) for path in unnamed)
    _sync_round(files, list(dict.fromkeys([*directories, *parents])), mode)
    _ledger.record(unnamed)
    _synced.record(incarnations)


def make_found_durable(paths: Iterable[str], mode: DurabilityMode, *, root: str) -> None:
    """As `make_durable` for files that another process made: it may have died before it synced them.

    Whoever builds on something it found calls this first; otherwise what it acknowledges may stand on ground
    that a power cut takes away. Each file is synced once in this process.
    Cost: one probe per file that this process has synced.
    """
    if mode is not DurabilityMode.OS:
        make_durable([path for path in paths if not _synced.knows(path)], mode, root=root)
