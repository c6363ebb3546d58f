"""The two locks between processes a lease can stand on: an OS file lock and an object with an owner.

Taking a lock gives a value, and who has the value has the lock. So nothing that interrupts a thread can leave
a lock behind that nobody knows of: a value that nobody refers to any more gives its lock back by itself.
"""

import fcntl
import json
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol, Self

from omnigraph.core.bounds import check_bounds
from omnigraph.core.clock import Clock
from omnigraph.core.errors import LeaseLost, OmnigraphError
from omnigraph.core.events import Warned, emit
from omnigraph.core.ids import new_ulid
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import (
    LEASE_CLOCK_SKEW_S_MAX,
    LEASE_EXPIRY_S,
    LEASE_FILE_POLL_MS_MAX,
    LEASE_POLL_MS_MAX,
    LEASE_POLL_MS_MIN,
)
from omnigraph.storage.failures import translated
from omnigraph.storage.objects import StorageAdapter


class LockHeld(Protocol):
    """A lock between processes that this one has."""

    def check(self) -> None:
        """Raise `LeaseLost` unless the lock is still this process's."""
        ...

    def release(self) -> None:
        """Give the lock back. A second call does nothing."""
        ...


class ProcessLock(Protocol):
    """A lock between processes."""

    def approach(self, wait_s_max: float) -> LockHeld | None:
        """Be the next who takes the lock: later ones wait behind. None when the wait is over."""
        ...

    def acquire(self, wait_s_max: float, next_one: LockHeld | None = None) -> LockHeld | None:
        """Take the lock, waiting at most `wait_s_max` seconds; None when the wait is over.

        `next_one`: what `approach` gave. It is used up.
        """
        ...

    def contended(self) -> bool:
        """Whether another process may be waiting for the lock this one holds."""
        ...


# --- files -----------------------------------------------------------------------------------------------


class FileHeld:
    """An open lock file. The operating system drops the lock with the process, or with the last descriptor.

    A forked child inherits descriptors and with them the lock, also those of threads that only wait for it.
    So the child closes every one its parent had open.
    """

    def __init__(self, path: str) -> None:
        with _opening:
            _open_files.add(self)
            # A file object closes in one step: no interrupt comes between forgetting and closing it.
            self._file = open(path, "ab", buffering=0)  # noqa: PTH123, SIM115

    def lock(self, deadline: float) -> bool:
        """Lock the file, polling until the deadline at most."""
        for pause in _pauses(LEASE_FILE_POLL_MS_MAX):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                check_bounds()
                if time.monotonic() + pause > deadline:
                    return False
                time.sleep(pause)
            else:
                return True
        return False

    def check(self) -> None:
        """Nothing to ask: the operating system takes the lock from nobody who lives."""

    def release(self) -> None:
        """Give the lock back by closing the file."""
        self._file.close()

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # the file could not be opened, or not be closed
            self._file.close()


_open_files: "weakref.WeakSet[FileHeld]" = weakref.WeakSet()
_opening = threading.Lock()
"""Held while a lock file is opened and noted, and by a fork: no descriptor is unknown to a child."""


def _close_in_child() -> None:
    for each in list(_open_files):
        with suppress(AttributeError, OSError):
            each.release()
    _opening.release()


os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_close_in_child)


class FileLock:
    """An advisory lock on a local file, dropped by the operating system when the process dies.

    Fair between processes: who waits holds a second lock, on `<path>.next`, and who wants the file must pass
    that one first, so a busy process cannot take the file again ahead of a waiting one.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._turnstile_path = f"{path}.next"

    def approach(self, wait_s_max: float) -> FileHeld | None:
        """Take the second lock, polling for at most `wait_s_max` seconds."""
        return self._locked(self._turnstile_path, wait_s_max)

    def acquire(self, wait_s_max: float, next_one: LockHeld | None = None) -> FileHeld | None:
        """Take the lock, polling for at most `wait_s_max` seconds."""
        deadline = time.monotonic() + wait_s_max
        turnstile = self.approach(wait_s_max) if next_one is None else next_one
        if turnstile is None:
            return None
        try:
            return self._locked(self._path, deadline - time.monotonic())
        finally:
            turnstile.release()

    def _locked(self, path: str, wait_s_max: float) -> FileHeld | None:
        with translated(path):
            held = FileHeld(path)
            taken = False
            try:
                taken = held.lock(time.monotonic() + wait_s_max)
            finally:
                if not taken:
                    held.release()
        return held if taken else None

    def contended(self) -> bool:
        """Whether another process waits: it then holds the second lock. Cost: one open and one lock."""
        with translated(self._path):
            turnstile = FileHeld(self._turnstile_path)
            try:
                return not turnstile.lock(deadline=0.0)
            finally:
                turnstile.release()


def _pauses(pause_ms_max: float) -> Iterator[float]:
    pause_ms = float(LEASE_POLL_MS_MIN)
    while True:
        yield pause_ms / 1000
        pause_ms = min(pause_ms * 1.5, pause_ms_max)


# --- objects ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Holder:
    """The content of the lease object. `owner=None` is a free lease."""

    owner: str | None
    expires_at_us: int
    beat: int

    def to_text(self) -> str:
        return json.dumps({"owner": self.owner, "expires_at": self.expires_at_us, "beat": self.beat})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse; whatever is not a lease we wrote counts as held and expires by observation.

        An empty one is the lock file of a graph that was copied here from a local disk: nobody has it.
        """
        if not text:
            return cls(None, 0, 0)
        try:
            value = json.loads(text)
            return cls(value["owner"], int(value["expires_at"]), int(value["beat"]))
        except (ValueError, TypeError, KeyError):
            return cls("unreadable", 2**62, 0)


class ObjectHeld:
    """A lease object that names this hold as its owner, renewed by a thread until it is released.

    The owner is a name of its own for every hold: it is the fencing token. Another process may take a lease
    that was not renewed in time, for instance while this one was stopped; `check` then says so. A hold that
    nobody refers to any more ends its renewal, and the lease expires.
    """

    def __init__(self, adapter: StorageAdapter, name: str, clock: Clock, owner: str) -> None:
        self._adapter = adapter
        self._name = name
        self._clock = clock
        self._owner = owner
        self._token: str | None = None
        self._released = False
        self._beat = 0
        self._stop = threading.Lock()
        self._stop.acquire()
        self._mutex = threading.Lock()
        self._renewal: threading.Thread | None = None

    def content(self) -> str:
        """What the object says while this hold has it."""
        return _Holder(self._owner, self._clock.now_us() + LEASE_EXPIRY_S * 1_000_000, self._beat).to_text()

    def begin(self, token: str) -> Self:
        """Be the holder: `token` is the version of the object that names this owner."""
        self._token = token
        renewal = threading.Thread(
            target=_renew, args=(weakref.ref(self), self._stop), name="omnigraph-lease", daemon=True
        )
        self._renewal = renewal
        renewal.start()
        return self

    @property
    def lost(self) -> bool:
        """Whether this hold has found out that another owner has the object."""
        return not self._released and self._token is None

    def check(self) -> None:
        """Raise `LeaseLost` unless the object names this owner now. Cost: one read of a small object."""
        with self._mutex:
            if self._token is not None:
                current = self._adapter.read_text_versioned(self._name)
                if current is not None and _Holder.from_text(current.text).owner == self._owner:
                    return
                self._token = None
        raise LeaseLost

    def renew(self) -> bool:
        """Write the next heartbeat; False when there is nothing to renew any more."""
        with self._mutex:
            token = self._token
            if token is None:
                return False
            self._beat += 1
            try:
                self._token = self._adapter.write_text_if_match(self._name, self.content(), token)
            except OmnigraphError as error:
                # Not known whether it landed: the next beat or the release settles it by its token.
                emit(Warned("the writer lease could not be renewed", error.message))
        return True

    def release(self) -> None:
        """Mark the lease free, if it is still ours. A failure is a warning: the lease then expires."""
        if self._released:
            return
        self._end_renewal()
        if self._renewal is not None:
            self._renewal.join()
        with self._mutex:
            self._released = True
            token, self._token = self._token, None
        if token is None:
            emit(Warned("the writer lease was taken over before it was released", self._name))
            return
        try:
            self._adapter.write_text_if_match(self._name, _Holder(None, 0, self._beat).to_text(), token)
        except OmnigraphError as error:
            emit(Warned("the writer lease could not be released and will expire", error.message))

    def _end_renewal(self) -> None:
        with suppress(RuntimeError):  # ended already
            self._stop.release()

    def __del__(self) -> None:
        self._end_renewal()


def _renew(held: "weakref.ref[ObjectHeld]", stop: threading.Lock) -> None:
    """Renew for as long as the hold is there; it is not kept by its own renewal."""
    while not stop.acquire(timeout=LEASE_EXPIRY_S / 3):
        holder = held()
        if holder is None or not holder.renew():
            return
        del holder


class _InNoOrder:
    """The next place before a lock that knows no order."""

    def check(self) -> None:
        """Nobody can take it."""

    def release(self) -> None:
        """Nobody waits for it."""


class ObjectLock:
    """A lock kept in one object of an object store: owner token, heartbeat and expiry.

    Every change is a conditional write, so a holder that lost an expired lease cannot take it back or free it
    for its successor; it finds out that it lost by `ObjectHeld.check`, by the exact commit check or by the
    publish. A lease counts as expired when its wall-clock time is over by more than the allowed clock skew,
    or when it was watched unchanged for a whole expiry period.
    """

    def __init__(self, adapter: StorageAdapter, name: str, clock: Clock) -> None:
        self._adapter = adapter
        self._name = name
        self._clock = clock

    def approach(self, wait_s_max: float) -> LockHeld:  # noqa: ARG002  nobody waits for it
        """Nothing to take: whoever polls an object at the right moment has it."""
        return _InNoOrder()

    def acquire(self, wait_s_max: float, next_one: LockHeld | None = None) -> ObjectHeld | None:  # noqa: ARG002
        """Take the lease, polling for at most `wait_s_max` seconds."""
        deadline = time.monotonic() + wait_s_max
        watched: tuple[str, float] | None = None
        owner = new_ulid()
        held = ObjectHeld(self._adapter, self._name, self._clock, owner)
        for pause in _pauses(LEASE_POLL_MS_MAX):
            if self._adapter.write_text_if_absent(self._name, held.content()):
                current = self._adapter.read_text_versioned(self._name)
                # Ours unless a take-over came first; its content names another owner.
                ours = current is not None and _Holder.from_text(current.text).owner == owner
                token = current.token if current is not None and ours else None
            else:
                token, watched = self._take_over(held, watched)
            if token is not None:
                return held.begin(token)
            check_bounds()
            if time.monotonic() + pause > deadline:
                return None
            time.sleep(pause)
        return None

    def contended(self) -> bool:
        """Always: a process that polls an object leaves no trace."""
        return True

    def _take_over(
        self, held: ObjectHeld, watched: tuple[str, float] | None
    ) -> tuple[str | None, tuple[str, float] | None]:
        """Try to take a lease that exists; returns our token if we got it, and what is being watched."""
        current = self._adapter.read_text_versioned(self._name)
        if current is None:
            return None, None
        now = time.monotonic()
        if watched is None or watched[0] != current.token:
            watched = (current.token, now)
        holder = _Holder.from_text(current.text)
        overdue_us = self._clock.now_us() - holder.expires_at_us
        free = (
            holder.owner is None
            or overdue_us > LEASE_CLOCK_SKEW_S_MAX * 1_000_000
            or now - watched[1] > LEASE_EXPIRY_S
        )
        if not free:
            return None, watched
        return self._adapter.write_text_if_match(self._name, held.content(), current.token), watched
