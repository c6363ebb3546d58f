"""Work on several threads at once: calls of Lance and waits for a device leave the interpreter to others."""

import contextvars
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Final, TypeVar

A = TypeVar("A")
B = TypeVar("B")

EACH_MIN: Final = 4
"""From this many pieces of work, a second thread is worth starting."""
WAITING_THREADS: Final = 24
"""Threads of a process that may wait for a device on behalf of others."""
SHORT_WAIT_S: Final = 0.0005
"""A device that answers within this time is waited for in turn: a hand-over to a thread takes as long."""
WAITS_KNOWN: Final = 15
"""The last waits tell whether a device is slow. On a busy processor some are long on any device."""
ROUNDS_ON_THREADS: Final = 64
"""When most waits were longer, this many rounds go to threads before the device is tried in turn again."""


def side_by_side(first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """Run both at once. Both have ended when this returns or raises; a failure of `second` comes first."""
    with ThreadPoolExecutor(1, "omnigraph-storage") as pool:
        running = pool.submit(contextvars.copy_context().run, first)
        done = second()
        return running.result(), done


def each_of(work: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """The results in order, two at once when there are enough. All have ended when this returns or raises."""
    if len(items) < EACH_MIN:
        return [work(item) for item in items]
    half = (len(items) + 1) // 2

    def part(some: Sequence[A]) -> list[B]:
        return [work(item) for item in some]

    later, earlier = side_by_side(lambda: part(items[half:]), lambda: part(items[:half]))
    return [*earlier, *later]


def shared(
    work: Callable[[A], B],
    items: Sequence[A],
    *,
    threads: int,
    submit: Callable[[Callable[[], None]], Future[None]],
) -> list[B]:
    """The results in order. This thread takes part; at most `threads - 1` others, begun by `submit`, help.

    Begun in order. When one fails no other is begun, those that run are awaited, and the first failure in
    order is raised: afterwards nothing of it runs any more. Helpers that are busy elsewhere are not awaited.
    """
    if threads <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    results: dict[int, B] = {}
    failures: dict[int, BaseException] = {}
    numbers = iter(range(len(items)))
    taking = threading.Lock()

    def take_part() -> None:
        while True:
            with taking:
                number = None if failures else next(numbers, None)
            if number is None:
                return
            try:
                results[number] = work(items[number])
            except BaseException as error:  # noqa: BLE001  raised by the caller, once nothing runs
                failures[number] = error

    helping: list[Future[None]] = []
    with suppress(RuntimeError):  # the interpreter ends and starts no threads any more
        helping.extend(submit(take_part) for _ in range(min(threads, len(items)) - 1))
    try:
        take_part()
    except KeyboardInterrupt as stop:
        failures[-1] = stop
    for each in helping:
        # One that has not begun yet has nothing left to do.
        while not each.cancel() and not each.done():
            try:
                wait([each])
            except KeyboardInterrupt as stop:
                # Awaited all the same: what it does must not go on behind whoever is told that it stopped.
                failures[-1] = stop
    if failures:
        raise failures[min(failures)]
    return [results[number] for number in range(len(items))]


class _Waiting:
    """The threads of this process that wait for devices, made when they are needed first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._on_threads = 0
        self._were_long: deque[bool] = deque(maxlen=WAITS_KNOWN)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(WAITING_THREADS, "omnigraph-sync")
            pool = self._pool
        return pool.submit(contextvars.copy_context().run, work)

    def in_turn(self, work: Callable[[A], Any], items: Sequence[A]) -> Sequence[A]:
        """Do the items one after the other while the device answers at once. Those that are left."""
        if self._on_threads:
            self._on_threads -= 1
            return items
        for number, item in enumerate(items, 1):
            begun = time.perf_counter()
            work(item)
            is_long = time.perf_counter() - begun > SHORT_WAIT_S
            self._were_long.append(is_long)
            if is_long and 2 * sum(self._were_long) > len(self._were_long):
                # The very first may be chance; the rest of its round is shared all the same.
                self._on_threads = ROUNDS_ON_THREADS if len(self._were_long) > 1 else 0
                return items[number:]
        return ()


_waiting = _Waiting()


def all_waited_for(work: Callable[[A], Any], items: Sequence[A]) -> None:
    """Do what mostly waits for a device: in turn while its waits are short, else as `shared` does."""
    left = _waiting.in_turn(work, items)
    shared(work, left, threads=WAITING_THREADS + 1, submit=_waiting.submit)


def _start_afresh_in_child() -> None:
    # Threads are not inherited by a fork.
    global _waiting  # noqa: PLW0603
    _waiting = _Waiting()


os.register_at_fork(after_in_child=_start_afresh_in_child)
