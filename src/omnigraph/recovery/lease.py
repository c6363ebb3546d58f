"""The writer lease of a graph root: one process at a time is between Phase A and Phase D."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Self

from omnigraph.core.errors import InternalError, ResourceBusy
from omnigraph.core.limits import LEASE_SHARED_MS_MAX, LEASE_WAIT_S_MAX
from omnigraph.recovery.per_root import PerRoot
from omnigraph.recovery.process_lock import FileLock, ObjectLock
from omnigraph.recovery.waiting_line import Line, Place
from omnigraph.storage.layout import LEASE, GraphRoot

if TYPE_CHECKING:
    from types import TracebackType

    from omnigraph.core.clock import Clock
    from omnigraph.recovery.process_lock import LockHeld, ProcessLock
    from omnigraph.storage.objects import StorageAdapter


def _busy(who: str) -> ResourceBusy:
    return ResourceBusy(f"another writer is at work on this graph and did not finish in time{who}")


def _deadline(wait_s_max: float | None) -> float:
    return time.monotonic() + (LEASE_WAIT_S_MAX if wait_s_max is None else wait_s_max)


class Hold(Place):
    """One stay inside the lease, over at the end of its `with` block.

    A hold that nobody refers to any more, because an interrupt came before its owner got it, is over too: the
    lock between processes belongs to the holds that have it and to nothing else.
    """

    def __init__(self, lease: Lease, *, alone: bool) -> None:
        super().__init__()
        self.alone = alone
        self.lock: LockHeld | None = None
        """The lock between processes, shared by everybody inside; None while this one waits."""
        self.next_one: LockHeld | None = None
        """The place behind the process that has the lock, of a hold that stands before the lease."""
        self._lease = lease

    def check(self) -> None:
        """Raise `LeaseLost` when another process has taken the lease meanwhile, for instance while this one
        was stopped. Asked before every step that others would see. Cost: nothing on a local disk.
        """
        if self.lock is None:
            raise InternalError("a writer outside the lease asked whether it still has it")
        self.lock.check()

    def release(self) -> None:
        """Leave. A second call does nothing."""
        self._lease.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Lease:
    """The one writer lease of a graph root, counted over the threads of this process.

    Threads and handles of one process share one lock; other processes wait. A thread inside `alone` knows
    that neither another process nor another thread of this one is inside the lease. `hold` and `alone` are
    re-entrant for the thread that is inside. A process that has the lease knows that no sidecar of another
    process has a live writer.

    Thread-safety: every method may be called from any thread.
    """

    def __init__(self, lock: ProcessLock) -> None:
        self._lock = lock
        self._line: Line[Hold] = Line()
        self._mutex = threading.Lock()
        """For joining a lock that another thread may be about to give back. A bare lock: its `with` cannot be
        left half-way by an interrupt.
        """
        self._held_since = 0.0

    def hold(self, *, wait_s_max: float | None = None) -> Hold:
        """Be inside the lease, beside other threads of this process.

        `wait_s_max=None` means `LEASE_WAIT_S_MAX`. Raises `ResourceBusy` when the wait is over.
        """
        return self._enter(Hold(self, alone=False), wait_s_max)

    def alone(self, *, wait_s_max: float | None = None) -> Hold:
        """Be the only thread of the only process inside the lease; what a restore needs.

        Threads that are inside may finish, new ones wait. Raises `ResourceBusy` when the wait is over, also
        when only a thread of this process is in the way, and `InternalError` inside this thread's own `hold`.
        """
        return self._enter(Hold(self, alone=True), wait_s_max)

    def approach(self, *, wait_s_max: float | None = None) -> Hold:
        """Stand directly before the lease. The next `hold` of this thread enters, and then this thread is
        inside until the `with` block of this one is over.

        Whoever else wants the lease comes later, so what is prepared here, while the writer before is still
        inside, meets nobody else's work. Raises `ResourceBusy` when the wait is over, and `InternalError`
        inside this thread's own `hold`.
        """
        hold = Hold(self, alone=False)
        deadline = _deadline(wait_s_max)
        if any(each.thread == hold.thread for each in self._line.places()):
            raise InternalError("a thread inside the lease asked to stand before it")
        try:
            self._line.join(hold)
            self._await_next_place(hold, deadline)
        except BaseException:
            hold.release()
            raise
        return hold

    @property
    def held(self) -> bool:
        """Whether a thread of this process is inside. For tests and assertions."""
        return any(each.lock is not None for each in self._line.places())

    def check(self) -> None:
        """As `Hold.check`, for the thread that is inside; for steps far below the one that entered."""
        me = threading.get_ident()
        mine = [each for each in self._line.places() if each.thread == me and each.lock is not None]
        if not mine:
            raise InternalError("a thread outside the lease asked whether it still has it")
        mine[-1].check()

    def leave(self, hold: Hold) -> None:
        """End a stay; the last one gives the lock back."""
        with self._mutex:
            lock, hold.lock = hold.lock, None
            next_one, hold.next_one = hold.next_one, None
            self._line.leave(hold)
            shared = any(each.lock is lock for each in self._line.places())
            if lock is not None and not shared:
                lock.release()
            if next_one is not None:
                next_one.release()
        for waiting in self._line.places():
            waiting.wake()

    def _enter(self, hold: Hold, wait_s_max: float | None) -> Hold:
        deadline = _deadline(wait_s_max)
        try:
            if self._nested(hold, deadline):
                return hold
            self._line.join(hold)
            self._await_turn(hold, deadline)
        except BaseException:
            hold.release()
            raise
        return hold

    def _await_next_place(self, hold: Hold, deadline: float) -> None:
        if not self._line.wait_until(lambda: self._is_next(hold), hold, deadline):
            raise self._busy_before(hold)
        if any(each.lock is not None for each in self._line.before(hold)):
            return  # this process is inside, and lets its own threads in
        hold.next_one = self._lock.approach(max(0.0, deadline - time.monotonic()))
        if hold.next_one is None:
            raise _busy(": writers of other processes wait for the lease")

    def _await_turn(self, hold: Hold, deadline: float) -> None:
        if not self._line.wait_until(lambda: self._may_enter(hold), hold, deadline):
            raise self._busy_before(hold)
        if hold.lock is None:
            self._take(hold, deadline)

    def _busy_before(self, hold: Hold) -> ResourceBusy:
        names = sorted({repr(each.thread_name) for each in self._line.before(hold)})
        return _busy(f": waited for {', '.join(names)} of this process" if names else "")

    def _nested(self, hold: Hold, deadline: float) -> bool:
        """Whether this thread is inside already, or stands before the lease; then it is inside once more."""
        mine = [each for each in self._line.places() if each.thread == hold.thread]
        if not mine:
            return False
        if mine[0].lock is None and not hold.alone:
            self._await_turn(mine[0], deadline)
        if hold.alone and not any(each.alone for each in mine):
            raise InternalError("a thread inside the shared lease asked to have it alone")
        hold.alone = False  # the outer one has it alone; this one only stays inside it
        hold.lock = mine[0].lock
        self._line.join(hold)
        return True

    def _is_next(self, hold: Hold) -> bool:
        """Whether nobody of this process waits before this hold; some may be inside."""
        earlier = self._line.before(hold)
        return not any(each.alone or each.lock is None for each in earlier)

    def _may_enter(self, hold: Hold) -> bool:
        """Whether it is this hold's turn: to take the lock, or to join those who have it already.

        Whoever came earlier goes first, and a hold that wants to be alone keeps later ones out.
        """
        earlier = [each for each in self._line.before(hold) if each.thread != hold.thread]
        if not earlier:
            return True
        if hold.alone or any(each.alone or each.lock is None for each in earlier):
            return False
        # Without this bound a busy process would never let go, because its threads overlap.
        streak_ms = (time.monotonic() - self._held_since) * 1000
        if streak_ms >= LEASE_SHARED_MS_MAX and self._lock.contended():
            return False
        with self._mutex:
            hold.lock = next((each.lock for each in earlier if each.lock is not None), None)
        return hold.lock is not None

    def _take(self, hold: Hold, deadline: float) -> None:
        """Take the lock between processes; nobody of this process is inside."""
        hold.lock = self._lock.acquire(max(0.0, deadline - time.monotonic()), hold.next_one)
        hold.next_one = None
        if hold.lock is None:
            raise _busy(": a writer of another process has the lease")
        self._held_since = time.monotonic()
        for waiting in self._line.places():
            waiting.wake()


_leases: Final[PerRoot[Lease]] = PerRoot()


def lease_of(root: GraphRoot, adapter: StorageAdapter, clock: Clock) -> Lease:
    """The lease of a graph root, the same object for every handle of this process."""

    def made() -> Lease:
        return Lease(FileLock(root.local_path(LEASE)) if root.is_local else ObjectLock(adapter, LEASE, clock))

    return _leases.get(root.identity, made)
