"""Write queues: one exclusive lock per table and branch, shared by every handle of one process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

from omnigraph.core.errors import InternalError, ResourceBusy
from omnigraph.core.ids import Branch, OperationId, TableKey
from omnigraph.core.limits import QUEUE_WAIT_S_MAX
from omnigraph.recovery.per_root import PerRoot
from omnigraph.recovery.waiting_line import Line, Place

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

QueueKey = tuple[TableKey, Branch]
"""A table and the graph branch it is written on (`None` is main)."""

SCHEMA_APPLY_KEY: Final[QueueKey] = (TableKey("__schema_apply__"), None)
"""Serialises schema applies. An ordinary key; it sorts before every table key (`_` < `e` < `n`)."""


def _order(key: QueueKey) -> tuple[str, str]:
    return key[0], key[1] or ""


def _busy(key: QueueKey, holder: Place) -> ResourceBusy:
    held_s = time.monotonic() - holder.joined_at
    return ResourceBusy(
        f"another write of {key[0]} on {key[1] or 'main'} did not finish in time: thread"
        f" '{holder.thread_name}' of this process has been at it for {held_s:.1f} s"
    )


class Guards(Place):
    """The queues one writer holds. Released once, by `release` or at the end of the `with` block.

    Any thread may release them: a writer can hand its guards to the code that finishes the write. Guards that
    nobody refers to any more, because an interrupt came before their owner got them, hold nothing.
    """

    def __init__(self, keys: tuple[QueueKey, ...], line: Line[Guards]) -> None:
        super().__init__()
        self.keys = keys
        self.operation: OperationId | None = None
        """The operation whose sidecar lives while these guards are held; None before its Phase A."""
        self._line = line

    def covers(self, keys: Iterable[QueueKey]) -> bool:
        """Whether these guards are still held and include every one of `keys`."""
        return not self.left and frozenset(keys) <= frozenset(self.keys)

    def require(self, keys: Iterable[QueueKey]) -> None:
        """Raise `InternalError` unless the guards cover `keys`; nothing has been written when it does."""
        missing = sorted(set(keys) - set(self.keys), key=_order)
        if self.left or missing:
            names = ", ".join(f"{table}@{branch or 'main'}" for table, branch in missing)
            raise InternalError(f"the write queues handed in do not cover: {names or 'anything (released)'}")

    def release(self) -> None:
        """Let the next writer in. A second call does nothing."""
        self._line.leave(self)
        freed = set(self.keys)
        for waiting in self._line.places():
            if not freed.isdisjoint(waiting.keys):
                waiting.wake()
                freed.difference_update(waiting.keys)  # who comes later waits for this one

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class WriteQueueManager:
    """One exclusive lock per `(table_key, branch)`. Writers that share a key take turns, first come first.

    Queues order the writers of one process; between processes the lease and the publish decide.
    Thread-safety: every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._line: Line[Guards] = Line()

    def acquire_many(self, keys: Iterable[QueueKey], *, wait_s_max: float | None = None) -> Guards:
        """Acquire the queues of `keys`, all of them at once, so that writers cannot deadlock.

        `wait_s_max=None` means `QUEUE_WAIT_S_MAX`. Raises `ResourceBusy`, naming the thread in the way, when
        the wait is over, holding nothing, and `InternalError` when this thread already holds guards: two
        separate acquisitions by one thread are how lock orders go wrong.
        """
        deadline = time.monotonic() + (QUEUE_WAIT_S_MAX if wait_s_max is None else wait_s_max)
        guards = Guards(tuple(sorted(set(keys), key=_order)), self._line)
        if any(each.thread == guards.thread for each in self._line.places()):
            raise InternalError("a thread that holds write queues asked for more of them")
        try:
            self._line.join(guards)
            self._await_turn(guards, deadline)
        except BaseException:
            guards.release()
            raise
        return guards

    def _await_turn(self, guards: Guards, deadline: float) -> None:
        if self._line.wait_until(lambda: self._in_the_way(guards) is None, guards, deadline):
            return
        found = self._in_the_way(guards)
        if found is not None:
            raise _busy(*found)

    def is_alive(self, operation: OperationId) -> bool:
        """Whether a thread of this process is carrying this operation through its phases."""
        return any(each.operation == operation for each in self._line.places())

    def held_keys(self) -> frozenset[QueueKey]:
        """The keys somebody holds or awaits right now."""
        return frozenset(key for guards in self._line.places() for key in guards.keys)

    def _in_the_way(self, guards: Guards) -> tuple[QueueKey, Guards] | None:
        """The first key that somebody who came earlier holds or awaits, and who that is."""
        wanted = frozenset(guards.keys)
        for earlier in self._line.before(guards):
            shared = wanted.intersection(earlier.keys)
            if shared:
                return min(shared, key=_order), earlier
        return None


_queues: Final[PerRoot[WriteQueueManager]] = PerRoot()


def queues_of(identity: str) -> WriteQueueManager:
    """The queue manager of a graph root, the same object for every handle of this process."""
    return _queues.get(identity, WriteQueueManager)
