"""Write queues: one exclusive lock per table and branch, shared by every handle of one process."""

from __future__ import annotations

import os
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from omnigraph.core.errors import InternalError, ResourceBusy
from omnigraph.core.ids import Branch, TableKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

QueueKey = tuple[TableKey, Branch]
"""A table and the graph branch it is written on (`None` is main)."""

SCHEMA_APPLY_KEY: Final[QueueKey] = (TableKey("__schema_apply__"), None)
"""Serialises schema applies. An ordinary key; it sorts before every table key (`_` < `e` < `n`)."""


def _order(key: QueueKey) -> tuple[str, str]:
    return key[0], key[1] or ""


def _busy(key: QueueKey) -> ResourceBusy:
    return ResourceBusy(f"another write of {key[0]} on {key[1] or 'main'} did not finish in time")


class _Queue:
    """A lock and the number of threads that hold or await it."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0


class Guards:
    """The queues one writer holds. Released once, by `release` or at the end of the `with` block.

    Any thread may release them: a writer can hand its guards to the code that finishes the write.
    """

    def __init__(self, keys: tuple[QueueKey, ...], release: Callable[[], None]) -> None:
        self._release = release
        self._released = False
        self.keys = keys

    def covers(self, keys: Iterable[QueueKey]) -> bool:
        """Whether these guards are still held and include every one of `keys`."""
        return not self._released and frozenset(keys) <= frozenset(self.keys)

    def require(self, keys: Iterable[QueueKey]) -> None:
        """Raise `InternalError` unless the guards cover `keys`; nothing has been written when it does."""
        missing = sorted(set(keys) - set(self.keys), key=_order)
        if self._released or missing:
            names = ", ".join(f"{table}@{branch or 'main'}" for table, branch in missing)
            raise InternalError(f"the write queues handed in do not cover: {names or 'anything (released)'}")

    def release(self) -> None:
        """Let the next writer in. A second call does nothing."""
        if not self._released:
            self._released = True
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class WriteQueueManager:
    """One exclusive lock per `(table_key, branch)`, created on demand and forgotten when nobody uses it.

    Queues order the writers of one process; between processes the lease and the publish decide.
    Thread-safety: every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._registry_lock = threading.Lock()
        self._queues: dict[QueueKey, _Queue] = {}
        self._holders: set[int] = set()

    def acquire_many(self, keys: Iterable[QueueKey], *, wait_s_max: float | None = None) -> Guards:
        """Acquire the queues of `keys`, de-duplicated and in sorted order, so that writers cannot deadlock.

        `wait_s_max=None` waits as long as it takes. Raises `ResourceBusy` when the wait is over, holding
        nothing, and `InternalError` when this thread already holds guards: two separate acquisitions by one
        thread are how lock orders go wrong.
        """
        ordered = tuple(sorted(set(keys), key=_order))
        owner = threading.get_ident()
        with self._registry_lock:
            if owner in self._holders:
                raise InternalError("a thread that holds write queues asked for more of them")
            self._holders.add(owner)
            queues = [self._queues.setdefault(key, _Queue()) for key in ordered]
            for queue in queues:
                queue.users += 1
        deadline = None if wait_s_max is None else time.monotonic() + wait_s_max
        taken = 0
        late: QueueKey | None = None
        try:
            for key, queue in zip(ordered, queues, strict=True):
                remaining = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
                if not queue.lock.acquire(timeout=remaining):
                    late = key
                    break
                taken += 1
        finally:
            if taken < len(ordered):
                self._abandon(ordered, queues, taken, owner)
        if late is not None:
            raise _busy(late)
        return Guards(ordered, partial(self._release, ordered, owner))

    def held_keys(self) -> frozenset[QueueKey]:
        """The keys somebody holds or awaits right now. For tests and diagnostics."""
        with self._registry_lock:
            return frozenset(self._queues)

    def _abandon(self, keys: tuple[QueueKey, ...], queues: list[_Queue], taken: int, owner: int) -> None:
        for queue in queues[:taken]:
            queue.lock.release()
        self._forget(keys, owner)

    def _release(self, keys: tuple[QueueKey, ...], owner: int) -> None:
        for key in reversed(keys):
            self._queues[key].lock.release()
        self._forget(keys, owner)

    def _forget(self, keys: tuple[QueueKey, ...], owner: int) -> None:
        with self._registry_lock:
            self._holders.discard(owner)
            for key in keys:
                queue = self._queues[key]
                queue.users -= 1
                if queue.users == 0:
                    del self._queues[key]


_shared: weakref.WeakValueDictionary[str, WriteQueueManager] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def queues_of(identity: str) -> WriteQueueManager:
    """The queue manager of a graph root, the same object for every handle of this process.

    `identity` is the canonical identity of the root (`storage.layout.GraphRoot`).
    """
    with _shared_lock:
        manager = _shared.get(identity)
        if manager is None:
            manager = WriteQueueManager()
            _shared[identity] = manager
        return manager


def _start_afresh_in_child() -> None:
    # A forked child must not believe that its parent's threads, which do not exist here, hold queues.
    global _shared, _shared_lock  # noqa: PLW0603
    _shared = weakref.WeakValueDictionary()
    _shared_lock = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh_in_child)
