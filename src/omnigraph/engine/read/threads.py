"""Pieces of a step side by side, on threads of the process that all of its queries share.

The kernels of a step release the interpreter lock, so pieces of it use as many cores as there are. What they
make comes in the order of the pieces: an answer does not depend on who was first.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, TypeVar

from omnigraph.core.errors import ResourceLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

P = TypeVar("P")
T = TypeVar("T")

THREADS: Final = os.cpu_count() or 1
"""How many pieces run at once."""

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def _start_afresh_in_child() -> None:
    # The threads are the parent's, and one of them may have held the lock.
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_start_afresh_in_child)


def _threads() -> ThreadPoolExecutor:
    global _pool  # noqa: PLW0603 - shared by all queries on purpose
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(THREADS, "omnigraph-read")
        return _pool


def side_by_side(pieces: Sequence[P], work: Callable[[P], T], alone: Callable[[P], T]) -> Iterator[T]:
    """`work` of each piece, in order; so many at a time as there are threads, and no more ahead.

    A piece that is refused for the share of the memory it has beside others is done by `alone`, while nothing
    else runs. What is under way when the iterator is left is finished by nobody who waits; none of it has an
    effect. `work` must not come here itself.
    """
    pool = _threads()
    waiting = deque(pieces)
    ahead: deque[tuple[P, Future[T]]] = deque()
    try:
        while waiting or ahead:
            while waiting and len(ahead) < THREADS:
                piece = waiting.popleft()
                ahead.append((piece, pool.submit(contextvars.copy_context().run, work, piece)))
            piece, future = ahead.popleft()
            try:
                made = future.result()
            except ResourceLimit:
                wait([each for _, each in ahead])
                made = alone(piece)
            yield made
    finally:
        for _, future in ahead:
            future.cancel()
