"""The one place where an error of the operating system, the object store or Lance becomes one of ours.

Decisions are taken from exception types, error numbers and fresh probes of the storage itself, never from the
text of a message: texts change between releases, and the substrate's carry its own source locations.
"""

import errno
import os
import re
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Final

from omnigraph.core.errors import (
    ConflictError,
    InternalError,
    IoFailure,
    OmnigraphError,
    RecoveryRequired,
    StorageConfiguration,
    StorageError,
    StorageNotFound,
    StoragePermanent,
    StoragePrecondition,
    StorageTransient,
    StorageUnknown,
)
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import MIB

_BY_ERRNO: Final[dict[int, type[StorageError]]] = {
    errno.ENOENT: StorageNotFound,
    errno.ESTALE: StorageTransient,
    errno.EAGAIN: StorageTransient,
    errno.EBUSY: StorageTransient,
    errno.EINTR: StorageTransient,
    errno.ETIMEDOUT: StorageTransient,
    errno.ECONNREFUSED: StorageTransient,
    errno.ECONNRESET: StorageTransient,
    errno.ENETUNREACH: StorageTransient,
    errno.EHOSTUNREACH: StorageTransient,
    errno.EACCES: StorageConfiguration,
    errno.EPERM: StorageConfiguration,
    errno.EROFS: StorageConfiguration,
    errno.EEXIST: StoragePrecondition,
    errno.ENOTEMPTY: StoragePrecondition,
    errno.ENOTDIR: StoragePermanent,
    errno.EISDIR: StoragePermanent,
    errno.ENAMETOOLONG: StoragePermanent,
    errno.ELOOP: StoragePermanent,
    errno.EINVAL: StoragePermanent,
}

_HINTS: Final[dict[type[StorageError], str]] = {
    StorageConfiguration: "check the permissions, credentials and region of the graph's storage",
    StorageTransient: "try again",
    StorageNotFound: "restore the object from a backup; the graph itself was not changed",
}

_NO_ROOM: Final = {
    errno.ENOSPC: "free some space and try again",
    errno.EDQUOT: "free some space and try again",
    errno.EFBIG: "let this process write larger files (`ulimit -f`), or use a file system that takes them",
}

_SOURCE_LOCATION: Final = re.compile(r",?\s*\S+\.rs:\d+(:\d+)?")
_PROBE_BYTES_MIN: Final = 16 * MIB


class CommitConflict(ConflictError):  # noqa: N818  named like the other conflicts of the tree
    """Another commit on the same table was first; nothing of this one landed."""

    def __init__(self, *, table_key: str, base_version: int, retryable: bool) -> None:
        super().__init__(
            f"another writer changed {described(table_key)} first (prepared on version {base_version})",
            hint="read the branch again and repeat the write",
        )
        self.table_key = table_key
        self.base_version = base_version
        self.retryable = retryable


class CommitUncertain(RecoveryRequired):
    """The store answered neither to a commit nor to the question whether it landed."""

    def __init__(self, *, table_key: str, cause: str, operation_id: str | None = None) -> None:
        super().__init__(
            f"nobody can say whether the write to {described(table_key)} landed: {cause}",
            operation_id,
            hint="reopen the graph read-write; recovery settles the write. Then look whether it is there",
        )
        self.table_key = table_key


class UnsyncedCommit(RecoveryRequired):
    """A commit is there for everybody to see, and the device did not confirm that it keeps it."""

    def __init__(self, target: str, *, cause: str) -> None:
        super().__init__(
            f"{target}: the commit is visible, but whether it survives a power cut is not known: {cause}",
            hint="do not repeat the write: it is there; look after the storage device, then verify the graph",
        )
        self.target = target


class ForeignCommit(RecoveryRequired):
    """This commit landed, but on top of one this writer did not know: its result must not be published."""

    def __init__(
        self, *, table_key: str, expected: int, actual: int, operation_id: str | None = None
    ) -> None:
        super().__init__(
            f"a writer outside this graph's protocol changed {described(table_key)} during the write "
            f"(version {actual} was reached where {expected} was expected)",
            operation_id,
            hint="reopen the graph read-write; recovery settles the write",
        )
        self.table_key = table_key
        self.expected = expected
        self.actual = actual


def _nothing() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a failing call was about, so that the cause can be found by asking the storage again.

    `needed` lists the objects the call had to read, `exists` answers for one of them, `damaged` names one
    that is not whole. `directory` is the local directory the call wrote to; None when it only read.
    """

    target: str
    needed: Callable[[], Iterable[str]] = tuple
    exists: Callable[[str], bool] = os.path.exists
    damaged: Callable[[], str | None] = _nothing
    directory: str | None = None
    bytes_written: int = 0


def described(table_key: str) -> str:
    """The table in the user's words."""
    entity, _, name = table_key.partition(":")
    return f"{entity} type '{name}'" if entity in {"node", "edge"} and name else f"'{table_key}'"


def os_failure(error: OSError, target: str) -> OmnigraphError:
    """Our error for one the operating system reported with a number."""
    number = error.errno
    reason = os.strerror(number) if number is not None else "unexpected input/output failure"
    cls = _BY_ERRNO.get(number) if number is not None else None
    if cls is None:
        return IoFailure(f"{target}: {reason}", hint=_NO_ROOM.get(number or 0))
    return cls(f"{target}: {reason}", hint=_HINTS.get(cls))


def object_failure(
    error: BaseException, target: str, reachable: Callable[[], bool] | None = None
) -> OmnigraphError:
    """Our error for one the object store client raised.

    The client has one type for all other failures, so for those `reachable` is asked: a store that cannot be
    reached now could not be reached then.
    """
    from obstore import exceptions as store  # noqa: PLC0415  only a failure needs it

    by_type: tuple[tuple[type[BaseException], type[StorageError], str], ...] = (
        (FileNotFoundError, StorageNotFound, "the object does not exist"),
        (store.AlreadyExistsError, StoragePrecondition, "the object exists already"),
        (store.PreconditionError, StoragePrecondition, "the object changed in between"),
        (store.NotModifiedError, StoragePrecondition, "the object did not change"),
        (store.PermissionDeniedError, StorageConfiguration, "access was denied"),
        (PermissionError, StorageConfiguration, "access was denied"),
        (store.UnauthenticatedError, StorageConfiguration, "the credentials were not accepted"),
        (store.UnknownConfigurationKeyError, StorageConfiguration, "a storage option is not known"),
        (store.InvalidPathError, StoragePermanent, "the name is not allowed"),
        (store.NotSupportedError, StoragePermanent, "the store does not support this request"),
        (NotImplementedError, StoragePermanent, "the store does not support this request"),
        (TimeoutError, StorageTransient, "the store did not answer in time"),
        (ConnectionError, StorageTransient, "the store could not be reached"),
    )
    for raised, cls, reason in by_type:
        if isinstance(error, raised):
            return cls(f"{target}: {reason}", hint=_HINTS.get(cls))
    if reachable is not None and not reachable():
        return StorageTransient(f"{target}: the store could not be reached", hint=_HINTS[StorageTransient])
    return StorageUnknown(f"{target}: the request failed: {tidy(error)}")


def tidy(error: BaseException) -> str:
    """The first line of a foreign message without source locations; for people, never for decisions."""
    lines = _SOURCE_LOCATION.sub("", str(error)).strip().splitlines()
    return lines[0].strip()[:300] if lines else type(error).__name__


@contextmanager
def translated(target: str, reachable: Callable[[], bool] | None = None) -> Generator[None]:
    """Turn errors of the operating system and the object store inside the block into ours."""
    try:
        yield
    except OmnigraphError:
        raise
    except UnicodeDecodeError as error:
        raise StoragePermanent(
            f"{target}: the file is damaged: it is not text", hint=_HINTS[StorageNotFound]
        ) from error
    except OSError as error:
        if error.errno is None:
            raise object_failure(error, target, reachable) from error
        raise os_failure(error, target) from error
    except Exception as error:
        from obstore.exceptions import BaseError  # noqa: PLC0415  only a failure needs it

        raise_if_interrupt(error)

        if isinstance(error, (BaseError, NotImplementedError)):
            raise object_failure(error, target, reachable) from error
        raise


@contextmanager
def substrate(about: Callable[[], Circumstances]) -> Generator[None]:
    """Turn errors of Lance inside the block into ours; `about` is only asked when something failed.

    A commit conflict is left alone: its callers handle it by type.
    """
    try:
        yield
    except OmnigraphError:
        raise
    except (OSError, ValueError, RuntimeError, NotImplementedError) as error:
        if is_commit_conflict(error):
            raise
        raise_if_interrupt(error)
        raise substrate_failure(error, about()) from error
    except BaseException as error:
        # A panic inside the substrate derives from BaseException so that nobody handles it by accident.
        if type(error).__name__ == "PanicException":
            raise InternalError(f"{about().target}: the storage engine failed: {tidy(error)}") from error
        raise


def raise_if_interrupt(error: BaseException) -> None:
    """Raise the interrupt that a call into the substrate swallowed and reported as a failure of its own.

    Lance asks for signals while it waits. The interrupt is taken from the interpreter by that, and nothing
    but the text of the error is left of it: the one place where a text decides.
    """
    if "KeyboardInterrupt" in str(error) and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt from error


def is_commit_conflict(error: BaseException) -> bool:
    """Whether Lance refused a commit because another one was first: the only place that knows its type."""
    from lance.commit import CommitConflictError  # noqa: PLC0415

    return isinstance(error, CommitConflictError)


def substrate_failure(error: BaseException, about: Circumstances) -> OmnigraphError:
    """Our error for one of Lance's: a missing object is named, a full or read-only disk is recognised.

    Lance reports almost everything as OSError or ValueError without a number, so the storage is asked: is an
    object gone that the call needed? can anything be written where the call wrote?
    """
    if isinstance(error, OSError) and error.errno is not None:
        return os_failure(error, about.target)
    try:
        for needed in about.needed():
            if not about.exists(needed):
                return StorageNotFound(f"{needed}: the object does not exist", hint=_HINTS[StorageNotFound])
        damaged = about.damaged()
        if damaged is not None:
            return StoragePermanent(f"{damaged}: the file is damaged", hint=_HINTS[StorageNotFound])
    except OmnigraphError as found:
        return found
    except OSError as found:
        return os_failure(found, about.target)
    if about.directory is not None:
        found = _write_refused(about.directory, about.bytes_written)
        if found is not None:
            return os_failure(found, about.target)
    return StorageUnknown(f"{about.target}: the storage engine failed: {tidy(error)}")


def _write_refused(directory: str, size: int) -> OSError | None:
    """The error a write of this size into the directory meets right now, or None."""
    try:
        import tempfile  # noqa: PLC0415  most processes meet no such failure

        # The nearest existing directory: the call may have failed to make the deeper ones.
        while not os.path.isdir(directory):
            directory = os.path.dirname(directory)
        with tempfile.TemporaryFile(dir=directory) as probe:
            # Reserving blocks asks for the space without writing it.
            os.posix_fallocate(probe.fileno(), 0, max(size, _PROBE_BYTES_MIN))
    except OSError as error:
        return error
    return None
