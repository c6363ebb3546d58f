"""Arrays kept in files between processes: written once, mapped into memory, believed only when whole.

A file is a cache of something that can be made again, so nothing here is durable and nothing here may fail a
caller. It is written beside its name and renamed, never changed afterwards; whoever has it mapped keeps it
when it is removed. Its name says what it holds (`place`) and of which state; its head says so again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import numpy as np

from omnigraph.core.clock import boot_id
from omnigraph.core.formats import CACHE_FORMAT
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import CACHED_GENERATIONS_MAX
from omnigraph.core.settings import CACHE_DIR_OFF, Settings
from omnigraph.storage.layout import CACHE, GraphRoot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

SUFFIX: Final = ".cache"
SEEN_SUFFIX: Final = ".seen"
PAGE_BYTES: Final = 4096
UNFINISHED_S_MAX: Final = 3600
"""An unfinished file of this age has no writer any more."""

SETTLED_S: Final = 0.02
"""Several steps of the kernel's clock: two changes of a file this far apart have different times."""

_MAGIC: Final = b"omnicach"
_HEAD: Final = struct.Struct("<8sIIQ16s")


def name_of(*parts: object) -> str:
    """A short name for a combination of values: equal exactly where they are."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def mark(*parts: object) -> str:
    """What the names of the files of a table, or of a column of it, end with before their state."""
    return name_of(*parts)[:16]


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """The content of one file. The arrays are mapped: they take memory while they are looked at."""

    state: str
    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


def directory_of(root: GraphRoot, settings: Settings) -> Path | None:
    """Where the caches of a graph are; None when it keeps none."""
    if root.uri.startswith("memory://") or str(settings.cache_dir) == CACHE_DIR_OFF:
        return None
    if settings.cache_dir is not None:
        return settings.cache_dir / name_of(root.identity)
    if root.is_local:
        return Path(root.local_path(CACHE))
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - may have no home
    return Path(home) / "omnigraph" / name_of(root.identity)


class CacheFiles:
    """The cache files of one graph, bounded in bytes; the oldest go first.

    Safe beside other processes that use the same directory. Thread-safe. No method raises for what it finds
    on disk or cannot write there.
    """

    def __init__(self, directory: Path | None, bytes_max: int, *, writable: bool = True) -> None:
        self.directory = directory
        self.writable = writable and directory is not None
        self._bytes_max = bytes_max
        self._lock = threading.Lock()

    @staticmethod
    def of(root: GraphRoot, settings: Settings, *, read_only: bool) -> CacheFiles:
        """The cache files of a graph. A read-only handle writes none below the graph itself."""
        directory = directory_of(root, settings)
        inside = root.is_local and settings.cache_dir is None
        return CacheFiles(directory, settings.cache_bytes, writable=not (read_only and inside))

    def load(self, place: str, state: str) -> Stored | None:
        """What was saved of a place at a state; None when there is no whole file of it."""
        if self.directory is None:
            return None
        return self._read(self.directory / f"{place}-{state}{SUFFIX}", place, state)

    def newest(self, place: str) -> Iterator[Stored]:
        """What was saved of a place at any state, the latest first."""
        for path in self._of_place(place):
            found = self._read(path, place, path.name[len(place) + 1 : -len(SUFFIX)])
            if found is not None:
                yield found

    def save(
        self,
        place: str,
        state: str,
        facts: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        *,
        settle: bool = True,
    ) -> bool:
        """Keep arrays and facts (JSON) of a place at a state; other generations of it leave.

        False when they were not written: no directory, no room, no permission. For background threads: it
        waits a moment until the file's times have settled. Without `settle` it does not, and whoever reads
        the file first checks all of it.
        """
        directory = self.directory
        if directory is None or not self.writable:
            return False
        if sum(array.nbytes for array in arrays.values()) > self._bytes_max:
            return False
        target = directory / f"{place}-{state}{SUFFIX}"
        unfinished = directory / f"{target.name}.{os.getpid()}-{threading.get_ident()}.new"
        try:
            self._make_directory(directory)
            with unfinished.open("wb") as file:
                digest = _write(file, place, state, facts, arrays)
                unfinished.replace(target)
                # Nothing happens that could be waited for: the note needs a time that lies behind. Only the
                # thread that works on caches comes here; without the note the next process reads all of it.
                if settle:
                    time.sleep(SETTLED_S)
                    _mark_seen(target, os.fstat(file.fileno()), digest)
            self._tidy(place)
        except OSError:
            # No room, no permission, a graph that is being removed: a later process makes its own.
            self.writable = False
            _discard(unfinished)
            return False
        return True

    def damaged(self) -> list[str]:
        """The names of the files that do not hold what was written; of this program's format only."""
        found: list[str] = []
        for path, size, _ in self._listing():
            place, _, state = path.name.removesuffix(SUFFIX).rpartition("-")
            if path.name.endswith(SUFFIX) and size and self._read(path, place, state, again=True) is None:
                with contextlib.suppress(OSError), path.open("rb") as file:
                    head = file.read(_HEAD.size)
                    if len(head) < _HEAD.size or _HEAD.unpack(head)[1] == CACHE_FORMAT:
                        found.append(path.name)
        return found

    def clear(self) -> list[str]:
        """Remove every file; the names of those that could not be removed. What goes can be made again."""
        for path, _, _ in self._listing():
            _discard(path)
        return [path.name for path, _, _ in self._listing()]

    def sizes(self) -> dict[str, int]:
        """Bytes of all files, by the mark in their names. Cost: one listing."""
        found: dict[str, int] = {}
        for path, size, _ in self._listing():
            place = path.name.partition(SUFFIX)[0].rpartition("-")[0]
            found[place.rpartition("-")[2]] = found.get(place.rpartition("-")[2], 0) + size
        return found

    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes().values())

    # --- inside ------------------------------------------------------------------------------------------

    def _make_directory(self, directory: Path) -> None:
        if self.directory is not None and directory.name == CACHE:
            # Only below a graph that is still there: a removed one must not come back as a directory.
            directory.mkdir(exist_ok=True)
        else:
            directory.mkdir(parents=True, exist_ok=True)

    def _listing(self) -> list[tuple[Path, int, float]]:
        """Every file with its size and its time, the newest first."""
        found: list[tuple[Path, int, float]] = []
        try:
            with os.scandir(cast("Path", self.directory)) as entries:
                for entry in entries:
                    status = entry.stat()
                    found.append((Path(entry.path), status.st_size, status.st_mtime))
        except (OSError, TypeError):
            return found
        return sorted(found, key=lambda each: each[2], reverse=True)

    def _of_place(self, place: str) -> list[Path]:
        return [
            path
            for path, _, _ in self._listing()
            if path.name.startswith(f"{place}-") and path.name.endswith(SUFFIX)
        ]

    def _tidy(self, place: str) -> None:
        """Remove older generations of a place, the oldest files beyond the bound, and what writers left."""
        with self._lock:
            for path in self._of_place(place)[CACHED_GENERATIONS_MAX:]:
                _remove(path)
            total = 0
            now = time.time()
            for path, size, changed in self._listing():
                if path.name.endswith(SUFFIX):
                    total += size
                    if total > self._bytes_max:
                        _remove(path)
                elif path.name.endswith(".new") and now - changed > UNFINISHED_S_MAX:
                    _discard(path)

    def _read(self, path: Path, place: str, state: str, *, again: bool = False) -> Stored | None:
        """`again`: every byte is compared, also of a file that was checked since the machine started."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return self._believed(path, status, mapped, place, state, again=again)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # absent, empty, or a head that says nothing we know

    def _believed(
        self,
        path: Path,
        status: os.stat_result,
        mapped: mmap.mmap,
        place: str,
        state: str,
        *,
        again: bool,
    ) -> Stored | None:
        """The content of a mapped file when every byte is what was written."""
        if len(mapped) < _HEAD.size:
            return None
        magic, version, head_bytes, size, head_digest = _HEAD.unpack_from(mapped)
        if magic != _MAGIC or version != CACHE_FORMAT or size != len(mapped) or size != status.st_size:
            return None
        text = mapped[_HEAD.size : _HEAD.size + head_bytes]
        if hashlib.blake2b(text, digest_size=16).digest() != head_digest:
            return None
        head = json.loads(text)
        if head["place"] != place or head["state"] != state:
            return None
        begin = _aligned(_HEAD.size + head_bytes)
        digest = str(head["digest"])
        if again or not _is_seen(path, status, digest):
            if _digest([memoryview(mapped)[begin:]]) != digest:
                return None
            if self.writable:
                _mark_seen(path, status, digest)
        arrays = {
            name: np.frombuffer(mapped, np.dtype(kind), count, begin + offset)
            for name, kind, count, offset in head["arrays"]
        }
        return Stored(state, head["facts"], arrays)


def _aligned(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def _digest(parts: Iterable[Any]) -> str:
    """A checksum of buffers in order, near the speed of memory.

    It depends on the place of every bit: words that changed places, within a page too, change it.
    """
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return f"{crc:08x}"


def _write(
    file: BinaryIO, place: str, state: str, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> str:
    """Write a whole file; gives back its checksum. Each array begins on a page."""
    table: list[tuple[str, str, int, int]] = []
    begin = 0
    parts: list[NDArray[np.uint64]] = []
    for name, array in arrays.items():
        table.append((name, array.dtype.str, len(array), begin))
        begin += _aligned(array.nbytes)
        parts.extend(words for words in _pages(array) if len(words))
    digest = _digest(words.data for words in parts)
    head = {"place": place, "state": state, "digest": digest, "facts": facts, "arrays": table}
    text = json.dumps(head, separators=(",", ":")).encode()
    start = _aligned(_HEAD.size + len(text))
    head_digest = hashlib.blake2b(text, digest_size=16).digest()
    file.write(_HEAD.pack(_MAGIC, CACHE_FORMAT, len(text), start + begin, head_digest))
    file.write(text)
    file.write(bytes(start - _HEAD.size - len(text)))
    file.writelines(words.data for words in parts)
    file.flush()
    return digest


def _pages(array: NDArray[Any]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The whole pages of an array, and what is left filled up to a page."""
    raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    whole = len(raw) // PAGE_BYTES * PAGE_BYTES
    rest = np.zeros(PAGE_BYTES if whole < len(raw) else 0, np.uint8)
    rest[: len(raw) - whole] = raw[whole:]
    return raw[:whole].view(np.uint64), rest.view(np.uint64)


# --- what was checked already ----------------------------------------------------------------------------
#
# Checking a file reads all of it. A note beside it says that this very file was checked since the machine
# started: any later write, truncation or replacement gives it another number, size or time. The times of a
# file have the step of the kernel's clock, so a file is noted only when its last change lies well behind.
# Power cuts can leave a file of the right size without its bytes; that is why the note names the start.


def _note(status: os.stat_result, digest: str) -> dict[str, Any] | None:
    boot = boot_id()
    if boot is None:
        return None
    return {
        "boot": boot,
        "device": status.st_dev,
        "inode": status.st_ino,
        "size": status.st_size,
        "modified_ns": status.st_mtime_ns,
        "changed_ns": status.st_ctime_ns,
        "digest": digest,
    }


def _is_seen(path: Path, status: os.stat_result, digest: str) -> bool:
    try:
        note = json.loads(path.with_name(path.name + SEEN_SUFFIX).read_bytes())
    except (OSError, ValueError):
        return False
    return note is not None and note == _note(status, digest)


def _mark_seen(path: Path, status: os.stat_result, digest: str) -> None:
    note = _note(status, digest)
    if note is None or time.time() - max(status.st_mtime, status.st_ctime) < SETTLED_S:
        return
    target = path.with_name(path.name + SEEN_SUFFIX)
    unfinished = path.with_name(f"{target.name}.{os.getpid()}-{threading.get_ident()}.new")
    try:
        unfinished.write_text(json.dumps(note), encoding="ascii")
        unfinished.replace(target)
    except OSError:
        _discard(unfinished)


def _remove(path: Path) -> None:
    _discard(path)
    _discard(path.with_name(path.name + SEEN_SUFFIX))


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
