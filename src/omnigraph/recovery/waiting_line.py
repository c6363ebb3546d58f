"""A line of waiting threads in which nobody who was interrupted stays behind.

An interrupt may come between any two steps of a thread, so no step may take a place that only a later step
would note. Here a place in the line *is* the object that its owner holds: joining is one append, and a place
that was left, or that nobody refers to any more, counts for nobody.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from omnigraph.core.bounds import check_bounds

if TYPE_CHECKING:
    from collections.abc import Callable

WAKE_S_MAX: Final = 0.25
"""A waiting thread looks again after this long at the latest: who wakes it may have been interrupted."""


class Place:
    """A place in a line. Its owner leaves it by `leave`, or by forgetting it."""

    def __init__(self) -> None:
        self.left = False
        self.number: int | None = None
        self.thread = threading.get_ident()
        self.thread_name = threading.current_thread().name
        self.joined_at = time.monotonic()
        # A bare lock and not an event: a signal cannot stop it half-way through its own bookkeeping.
        self._gate = threading.Lock()
        self._gate.acquire()

    def wake(self) -> None:
        """Make the owner look again, now or when it next waits."""
        with suppress(RuntimeError):  # it is awake already
            self._gate.release()

    def sleep(self, seconds: float) -> None:
        """Wait to be woken, `seconds` at most."""
        self._gate.acquire(timeout=max(0.0, seconds))


PlaceT = TypeVar("PlaceT", bound=Place)


class Line(Generic[PlaceT]):
    """Places in the order in which they were taken. Thread-safe."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._places: dict[int, weakref.ref[PlaceT]] = {}

    def join(self, place: PlaceT) -> None:
        """Take the last place, for as long as the caller refers to it."""
        number = place.number = next(self._numbers)
        places = self._places

        def forgotten(_: object) -> None:
            places.pop(number, None)

        places[number] = weakref.ref(place, forgotten)

    def places(self) -> list[PlaceT]:
        """Those who are in the line now, first come first."""
        if not self._places:
            return []
        found = [reference() for reference in list(self._places.values())]
        return [place for place in found if place is not None and not place.left]

    def is_only(self, place: PlaceT) -> bool:
        """Whether nobody but `place` is in the line: what a lone writer asks first, and mostly hears."""
        return place.number in self._places and len(self._places) == 1

    def before(self, place: PlaceT) -> list[PlaceT]:
        """Those in the line who came before `place`."""
        if self.is_only(place):
            return []
        return list(itertools.takewhile(lambda each: each is not place, self.places()))

    def leave(self, place: PlaceT) -> None:
        """Give the place up. A second call does nothing. The caller wakes whoever is next."""
        place.left = True
        if place.number is not None:
            self._places.pop(place.number, None)

    def wait_until(self, ready: Callable[[], bool], place: PlaceT, deadline: float) -> bool:
        """Wait until `ready`; False when the deadline of the monotonic clock passed first.

        Raises what stops the call this thread works for.
        """
        while not ready():
            check_bounds()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            place.sleep(min(remaining, WAKE_S_MAX))
        return True
