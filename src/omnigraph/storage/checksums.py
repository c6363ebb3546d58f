"""Checksums of the files a commit makes: how they are computed, and the record that keeps them.

The table format has none, so a bit that flips on a disk changes what is read. Every publish carries the sums
of the files it adds, as a property of its transaction: the cost follows what changed, and no file is added.
"""

import os
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import orjson

from omnigraph.core.late_dataclass import dataclass
from omnigraph.storage.failures import os_failure

PROPERTY: Final = "omnigraph.checksums"
"""The transaction property that holds the record of a commit."""
_SMALL_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 256 * 1024
"""What a core's own cache holds, so that each piece is summed before it leaves it."""
_SEAL: Final = 8
"""Hexadecimal digits in front of a record: its own sum."""
OWN_SUM: Final = "crc"
"""The member of a sealed object that holds the sum of the others."""


@dataclass(frozen=True, slots=True)
class FileSum:
    """What a file held when it was written. `name` is relative to the graph root; `crc` is a CRC-32."""

    name: str
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class FileRecord:
    """The sums that one commit keeps."""

    files: tuple[FileSum, ...] = ()
    """The files the commit made."""
    before: tuple[FileSum, ...] = ()
    """Files of the state it follows that could not hold their own sums."""
    rows: int | None = None
    """The sum of the rows that show the new state."""
    commit: str = ""
    """The commit; empty for what no commit of the graph names."""


NO_RECORD: Final = FileRecord()


class DamagedRecordError(ValueError):
    """The text is no record, or not the one that was written."""


class Summing:
    """The running sum of a file that is read in pieces."""

    __slots__ = ("crc", "size")

    def __init__(self) -> None:
        self.crc = 0
        self.size = 0

    def add(self, piece: "bytes | memoryview") -> None:
        """The next bytes of the file."""
        self.crc = zlib.crc32(piece, self.crc)
        self.size += len(piece)

    def named(self, name: str) -> FileSum:
        """The sum of what was added so far."""
        return FileSum(name, self.size, self.crc)


def sum_file(path: str, name: str) -> FileSum:
    """The sum of a local file. Cost: one read of it, which finds a new file in memory; a piece at a time."""
    running = Summing()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            piece = os.read(descriptor, _SMALL_BYTES)
            running.add(piece)
            if len(piece) == _SMALL_BYTES:
                _add_rest(descriptor, running)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise os_failure(error, path) from error
    return running.named(name)


def _add_rest(descriptor: int, running: Summing) -> None:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    while got := os.readv(descriptor, [buffer]):
        running.add(buffer[:got])


def record_text(record: FileRecord) -> str:
    """The record as the text of a property, with its own sum in front."""
    members: dict[str, Any] = {"files": _members(record.files)}
    if record.before:
        members["before"] = _members(record.before)
    if record.rows is not None:
        members["rows"] = record.rows
    if record.commit:
        members["commit"] = record.commit
    body = orjson.dumps(members)
    return f"{zlib.crc32(body):08x}{body.decode()}"


def record_of(text: str) -> FileRecord:
    """The record a property holds. Raises DamagedRecordError."""
    body = text[_SEAL:].encode()
    if text[:_SEAL] != f"{zlib.crc32(body):08x}":
        raise DamagedRecordError("the record of checksums is not the one that was written")
    try:
        members = cast("dict[str, Any]", orjson.loads(body))
        return FileRecord(
            _sums(members["files"]),
            _sums(members.get("before", {})),
            members.get("rows"),
            str(members.get("commit", "")),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedRecordError(
            "the record of checksums has another form than this program knows"
        ) from error


def sealed(body: str) -> str:
    """The text of a JSON object with its own sum as one more member, the last one."""
    return f'{body[:-1]},"{OWN_SUM}":{zlib.crc32(body.encode())}}}'


def is_whole(text: str) -> bool:
    """Whether a sealed object is what was written. One that an older program wrote has no seal and passes."""
    body, found, own = text.rpartition(f',"{OWN_SUM}":')
    return not found or own == f"{zlib.crc32(f'{body}}}'.encode())}}}"


def _members(sums: Iterable[FileSum]) -> dict[str, tuple[int, int]]:
    return {each.name: (each.size, each.crc) for each in sums}


def _sums(members: Mapping[str, Any]) -> tuple[FileSum, ...]:
    return tuple(FileSum(name, int(size), int(crc)) for name, (size, crc) in members.items())
