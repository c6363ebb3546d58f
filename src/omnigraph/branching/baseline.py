"""A baseline: the whole state of a branch in one file, and the cursor that goes on from exactly there."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnigraph.branching.tokens import FeedFilter, Place, write_token
from omnigraph.core.errors import ConflictError, IoFailure
from omnigraph.core.ids import new_ulid
from omnigraph.engine.entities.export import export_lines, select_types

if TYPE_CHECKING:
    from collections.abc import Generator

    from omnigraph.core.ids import Branch, CommitId
    from omnigraph.engine.session import GraphSession


@dataclass(frozen=True, slots=True)
class Baseline:
    """A state that was written to a file, and where its feed goes on."""

    snapshot_commit_id: CommitId
    resume_cursor: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"snapshot_commit_id": self.snapshot_commit_id, "resume_cursor": self.resume_cursor}


def baseline_lines(
    session: GraphSession, branch: Branch, *, chosen: FeedFilter
) -> Generator[bytes, None, Baseline]:
    """What a branch shows as chunks of JSON lines; behind the last one, the cursor that goes on from it."""
    snapshot = session.manifest.current(branch)
    names = [
        each.name
        for each in select_types(session.catalog_of(snapshot), chosen.types)
        if chosen.kinds is None or each.table_key.partition(":")[0] in chosen.kinds
    ]
    if names:
        yield from export_lines(session, snapshot, types=names)
    return Baseline(snapshot.head, write_token(session, branch, chosen, Place(snapshot.head)))


def write_baseline(path: str | os.PathLike[str], lines: Generator[bytes, None, Baseline]) -> Baseline:
    """Write a state to a file, durably and whole, then give the cursor behind it.

    The cursor is never in the file: whoever has one has a complete file. Raises `ConflictError` when the file
    was replaced meanwhile; the former file and nothing else is there then.
    """
    target = Path(path)
    try:
        with _alone(target.with_name(target.name + ".lock")):
            before = _identity(target)
            fresh = target.with_name(f".{target.name}.{new_ulid()}")
            try:
                made = _write(fresh, lines)
                if _identity(target) != before:
                    raise ConflictError(
                        f"'{target}' was replaced while the baseline was written",
                        hint="let one program write the file",
                    )
                fresh.replace(target)
            finally:
                fresh.unlink(missing_ok=True)
            _sync_directory(target.parent)
    except OSError as error:
        raise IoFailure(f"'{target}' cannot be written: {error.strerror}") from error
    return made


def _write(path: Path, lines: Generator[bytes, None, Baseline]) -> Baseline:
    with path.open("xb") as file:
        while True:
            try:
                file.write(next(lines))
            except StopIteration as end:
                made = end.value
                break
        file.flush()
        os.fsync(file.fileno())
    return made


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _alone(path: Path) -> Generator[None]:
    """Hold an exclusive lock on a file that exists only meanwhile."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The one who held it before may have removed the file: then this lock guards nothing.
            if os.fstat(descriptor).st_nlink:
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
        os.close(descriptor)
