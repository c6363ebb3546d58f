"""Work on two threads at once: Lance's calls leave the interpreter to others while they run."""

import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

A = TypeVar("A")
B = TypeVar("B")

EACH_MIN: Final = 4
"""From this many pieces of work, a second thread is worth starting."""


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
