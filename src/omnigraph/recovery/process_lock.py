"""The two locks between processes a lease can stand on: an OS file lock and an object with an owner."""

import fcntl
import json
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from omnigraph.core.clock import Clock
from omnigraph.core.errors import OmnigraphError
from omnigraph.core.events import Warned, emit
from omnigraph.core.ids import new_ulid
from omnigraph.core.limits import LEASE_CLOCK_SKEW_S_MAX, LEASE_EXPIRY_S, LEASE_POLL_MS_MAX, LEASE_POLL_MS_MIN
from omnigraph.storage.failures import translated
from omnigraph.storage.objects import StorageAdapter

_file_locks: "weakref.WeakSet[FileLock]" = weakref.WeakSet()


class FileLock:
    """An advisory lock on a local file, dropped by the operating system when the process dies.

    Fair between processes: who waits holds a second lock, on `<path>.next`, and who wants the file must pass
    that one first, so a busy process cannot take the file again ahead of a waiting one.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._turnstile_path = f"{path}.next"
        self._descriptor: int | None = None
        _file_locks.add(self)

    def acquire(self, wait_s_max: float) -> bool:
        """Take the lock, polling for at most `wait_s_max` seconds."""
        deadline = time.monotonic() + wait_s_max
        with translated(self._path):
            turnstile = _lock_file(self._turnstile_path, deadline)
            if turnstile is None:
                return False
            try:
                self._descriptor = _lock_file(self._path, deadline)
            finally:
                os.close(turnstile)
        return self._descriptor is not None

    def release(self) -> None:
        """Give the lock back by closing the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def contended(self) -> bool:
        """Whether another process waits: it then holds the second lock. Cost: one open and one lock."""
        with translated(self._path):
            turnstile = _lock_file(self._turnstile_path, deadline=0.0)
            if turnstile is None:
                return True
            os.close(turnstile)
            return False

    def forget(self) -> None:
        """Close the inherited descriptor in a forked child, which leaves the parent's lock alone."""
        self.release()


def _forget_in_child() -> None:
    for lock in list(_file_locks):
        lock.forget()


os.register_at_fork(after_in_child=_forget_in_child)


def _pauses() -> Iterator[float]:
    pause_ms = float(LEASE_POLL_MS_MIN)
    while True:
        yield pause_ms / 1000
        pause_ms = min(pause_ms * 1.5, LEASE_POLL_MS_MAX)


def _lock_file(path: str, deadline: float) -> int | None:
    """The descriptor of the locked file, or None when the deadline passed first."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        for pause in _pauses():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() + pause > deadline:
                    break
                time.sleep(pause)
            else:
                return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


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
        """Parse; whatever is not a lease we wrote counts as held and expires by observation."""
        try:
            value = json.loads(text)
            return cls(value["owner"], int(value["expires_at"]), int(value["beat"]))
        except (ValueError, TypeError, KeyError):
            return cls("unreadable", 2**62, 0)


class ObjectLock:
    """A lock kept in one object of an object store: owner token, heartbeat and expiry.

    Every change is a conditional write, so a holder that lost an expired lease cannot take it back or free it
    for its successor; it finds out that it lost by `lost`, by the exact commit check or by the publish.
    A lease counts as expired when its wall-clock time is over by more than the allowed clock skew, or when it
    was watched unchanged for a whole expiry period.
    """

    def __init__(self, adapter: StorageAdapter, name: str, clock: Clock) -> None:
        self._adapter = adapter
        self._name = name
        self._clock = clock
        self._owner = new_ulid()
        self._token: str | None = None
        self._beat = 0
        self._renewal: threading.Thread | None = None
        self._stop = threading.Event()
        self._mutex = threading.Lock()

    @property
    def lost(self) -> bool:
        """Whether a renewal found another owner in the object."""
        return self._renewal is not None and self._token is None

    def acquire(self, wait_s_max: float) -> bool:
        """Take the lease, polling for at most `wait_s_max` seconds."""
        deadline = time.monotonic() + wait_s_max
        watched: tuple[str, float] | None = None
        for pause in _pauses():
            if self._adapter.write_text_if_absent(self._name, self._content()):
                current = self._adapter.read_text_versioned(self._name)
                # Ours unless a take-over came first; its content names another owner.
                ours = current is not None and _Holder.from_text(current.text).owner == self._owner
                token = current.token if current is not None and ours else None
            else:
                token, watched = self._take_over(watched)
            if token is not None:
                self._start_renewal(token)
                return True
            if time.monotonic() + pause > deadline:
                return False
            time.sleep(pause)
        return False

    def release(self) -> None:
        """Mark the lease free, if it is still ours. A failure is a warning: the lease then expires."""
        self._stop.set()
        if self._renewal is not None:
            self._renewal.join()
            self._renewal = None
        with self._mutex:
            token, self._token = self._token, None
        if token is None:
            emit(Warned("the writer lease was taken over before it was released", self._name))
            return
        try:
            self._adapter.write_text_if_match(self._name, _Holder(None, 0, self._beat).to_text(), token)
        except OmnigraphError as error:
            emit(Warned("the writer lease could not be released and will expire", str(error)))

    def contended(self) -> bool:
        """Always: who polls an object leaves no trace."""
        return True

    def _content(self) -> str:
        return _Holder(self._owner, self._clock.now_us() + LEASE_EXPIRY_S * 1_000_000, self._beat).to_text()

    def _take_over(self, watched: tuple[str, float] | None) -> tuple[str | None, tuple[str, float] | None]:
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
        return self._adapter.write_text_if_match(self._name, self._content(), current.token), watched

    def _start_renewal(self, token: str) -> None:
        self._token = token
        self._stop = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="omnigraph-lease", daemon=True)
        self._renewal.start()

    def _renew(self) -> None:
        while not self._stop.wait(LEASE_EXPIRY_S / 3):
            with self._mutex:
                token = self._token
                if token is None:
                    return
                self._beat += 1
                try:
                    self._token = self._adapter.write_text_if_match(self._name, self._content(), token)
                except OmnigraphError as error:
                    # Not known whether it landed: the next beat or the release settles it by its token.
                    emit(Warned("the writer lease could not be renewed", str(error)))
