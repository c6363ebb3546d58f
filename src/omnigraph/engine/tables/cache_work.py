"""Work that nobody waits for: building and saving read structures on one thread of the process."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from omnigraph.core.errors.base import said
from omnigraph.core.events import Warned, emit

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

CLOSE_WAIT_S_MAX: Final = 30.0
"""How long closing a graph waits for files that are being written."""


class Stopped(Exception):  # noqa: N818 - not an error: nobody wants the result any more
    """The graph was closed while something was built for it."""


class Background:
    """Runs work for graphs, one piece at a time, each piece once.

    A failure of background work becomes a warning: what it would have made is made when somebody needs it.
    Thread-safe.
    """

    def __init__(self) -> None:
        self.start_afresh()

    def start_afresh(self) -> None:
        """Forget everything; in a forked child the thread and what it did are the parent's."""
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: dict[tuple[str, Hashable], Future[None]] = {}
        self._handles: Counter[str] = Counter()

    def attach(self, identity: str) -> None:
        """A handle of a graph was opened."""
        with self._lock:
            self._handles[identity] += 1

    def detach(self, identity: str) -> None:
        """A handle was closed: with the last one, work for the graph that has not begun is dropped, work
        that has begun is asked to stop, and its end is awaited.
        """
        with self._lock:
            self._handles[identity] -= 1
            if self._handles[identity] > 0:
                return
            del self._handles[identity]
            mine = [future for key, future in self._under_way.items() if key[0] == identity]
        for future in mine:
            future.cancel()
        wait(mine, CLOSE_WAIT_S_MAX)

    def is_open(self, identity: str) -> bool:
        """Whether work is taken for a graph."""
        with self._lock:
            return self._handles[identity] > 0

    def check(self, identity: str) -> None:
        """Called between the parts of long work. Raises `Stopped` when no handle of the graph is open."""
        with self._lock:
            if self._handles[identity] <= 0:
                raise Stopped

    def submit(self, identity: str, name: Hashable, work: Callable[[], object]) -> bool:
        """Run `work` later, unless work of that name waits or runs, or no handle of the graph is open."""
        key = (identity, name)
        with self._lock:
            if self._handles[identity] <= 0 or key in self._under_way:
                return False
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "omnigraph-cache")
            # Not in the caller's context: its listeners count what its own call costs.
            future = self._pool.submit(self._run, key, work)
            self._under_way[key] = future
        future.add_done_callback(lambda _: self._done(key))
        return True

    def drain(self, identity: str) -> None:
        """Wait until nothing is under way for a graph."""
        while True:
            with self._lock:
                mine = [future for key, future in self._under_way.items() if key[0] == identity]
            if not mine:
                return
            wait(mine)

    def _run(self, key: tuple[str, Hashable], work: Callable[[], object]) -> None:
        try:
            work()
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001  a cache that cannot be made is not an error of anybody
            emit(Warned("a read cache was not made", f"{key[1]}: {said(error)}"))

    def _done(self, key: tuple[str, Hashable]) -> None:
        with self._lock:
            self._under_way.pop(key, None)


BACKGROUND: Final = Background()
"""The background thread of this process."""
