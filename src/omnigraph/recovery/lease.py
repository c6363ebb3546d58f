"""The writer lease of a graph root: one process at a time is between Phase A and Phase D."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from omnigraph.core.clock import Clock
from omnigraph.core.errors import InternalError, ResourceBusy
from omnigraph.core.limits import LEASE_SHARED_MS_MAX, LEASE_WAIT_S_MAX
from omnigraph.recovery.process_lock import FileLock, ObjectLock
from omnigraph.storage.layout import LEASE, GraphRoot
from omnigraph.storage.objects import StorageAdapter


def _busy() -> ResourceBusy:
    return ResourceBusy("another writer is at work on this graph and did not finish in time")


class ProcessLock(Protocol):
    """A lock between processes. `Lease` calls it from one thread at a time."""

    def acquire(self, wait_s_max: float) -> bool:
        """Take the lock, waiting at most `wait_s_max` seconds; False when the wait is over."""
        ...

    def release(self) -> None:
        """Give the lock back."""
        ...

    def contended(self) -> bool:
        """Whether another process may be waiting for the lock this one holds."""
        ...


class Lease:
    """The one writer lease of a graph root, counted over the threads of this process.

    Threads and handles of one process share one hold; other processes wait. A thread inside `alone` knows
    that neither another process nor another thread of this one is inside the lease. `hold` and `alone` are
    re-entrant for the thread that is inside. A process that has the lease knows that no sidecar of another
    process has a live writer.

    Thread-safety: every method may be called from any thread.
    """

    def __init__(self, lock: ProcessLock) -> None:
        self._lock = lock
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}
        self._acquiring = False
        self._alone_waiting = 0
        self._alone_owner: int | None = None
        self._held_since = 0.0

    @contextmanager
    def hold(self, *, wait_s_max: float | None = None) -> Generator[None]:
        """Be inside the lease, beside other threads of this process.

        `wait_s_max=None` means `LEASE_WAIT_S_MAX`. Raises `ResourceBusy` when the wait is over.
        """
        self._enter(LEASE_WAIT_S_MAX if wait_s_max is None else wait_s_max)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def alone(self, *, wait_s_max: float | None = None) -> Generator[None]:
        """Be the only thread of the only process inside the lease; what a restore needs.

        Threads that are inside may finish, new ones wait. Raises `ResourceBusy` when the wait is over, also
        when only a thread of this process is in the way, and `InternalError` inside this thread's own `hold`.
        """
        deadline = time.monotonic() + (LEASE_WAIT_S_MAX if wait_s_max is None else wait_s_max)
        me = threading.get_ident()
        with self._changed:
            if me in self._inside and self._alone_owner != me:
                raise InternalError("a thread inside the shared lease asked to have it alone")
            self._alone_waiting += 1
            try:
                self._wait_until(lambda: self._alone_owner == me or not self._occupied(), deadline)
                nested = self._alone_owner == me
                self._alone_owner = me
            finally:
                self._alone_waiting -= 1
                self._changed.notify_all()
        try:
            self._enter(max(0.0, deadline - time.monotonic()))
        except BaseException:
            if not nested:
                self._end_alone()
            raise
        try:
            yield
        finally:
            self._leave()
            if not nested:
                self._end_alone()

    @property
    def held(self) -> bool:
        """Whether a thread of this process is inside. For tests and assertions."""
        with self._changed:
            return bool(self._inside)

    def _occupied(self) -> bool:
        return bool(self._inside) or self._acquiring or self._alone_owner is not None

    def _end_alone(self) -> None:
        with self._changed:
            self._alone_owner = None
            self._changed.notify_all()

    def _wait_until(self, ready: Callable[[], bool], deadline: float) -> None:
        while not ready():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise _busy()
            self._changed.wait(remaining)

    def _may_join(self, me: int) -> bool:
        """Whether thread `me` may enter now, either beside others or by taking the process lock."""
        if me in self._inside or self._alone_owner == me:
            return not self._acquiring
        if self._acquiring or self._alone_owner is not None or self._alone_waiting:
            return False
        if not self._inside:
            return True
        # Without this bound a busy process would never let go, because its threads overlap.
        streak_ms = (time.monotonic() - self._held_since) * 1000
        return streak_ms < LEASE_SHARED_MS_MAX or not self._lock.contended()

    def _enter(self, wait_s_max: float) -> None:
        deadline = time.monotonic() + wait_s_max
        me = threading.get_ident()
        with self._changed:
            self._wait_until(lambda: self._may_join(me), deadline)
            if self._inside:
                self._inside[me] = self._inside.get(me, 0) + 1
                return
            self._acquiring = True
        taken = False
        try:
            # Outside the condition: waiting for another process must not stop this one's bookkeeping.
            taken = self._lock.acquire(max(0.0, deadline - time.monotonic()))
        finally:
            with self._changed:
                self._acquiring = False
                if taken:
                    self._inside[me] = 1
                    self._held_since = time.monotonic()
                self._changed.notify_all()
        if not taken:
            raise _busy()

    def _leave(self) -> None:
        me = threading.get_ident()
        with self._changed:
            self._inside[me] -= 1
            if self._inside[me] == 0:
                del self._inside[me]
            try:
                if not self._inside:
                    self._lock.release()
            finally:
                self._changed.notify_all()


_shared: weakref.WeakValueDictionary[str, Lease] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def lease_of(root: GraphRoot, adapter: StorageAdapter, clock: Clock) -> Lease:
    """The lease of a graph root, the same object for every handle of this process."""
    with _shared_lock:
        lease = _shared.get(root.identity)
        if lease is None:
            lock = FileLock(root.local_path(LEASE)) if root.is_local else ObjectLock(adapter, LEASE, clock)
            lease = Lease(lock)
            _shared[root.identity] = lease
        return lease


def _start_afresh_in_child() -> None:
    # A forked child does not hold what its parent holds.
    global _shared, _shared_lock  # noqa: PLW0603
    _shared = weakref.WeakValueDictionary()
    _shared_lock = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh_in_child)
