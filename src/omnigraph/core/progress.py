"""Counting the steps of long work, from any of its threads."""

import threading
from collections.abc import Callable
from typing import TypeVar

from omnigraph.core.events import Progress, emit

Item = TypeVar("Item")
Result = TypeVar("Result")


class Steps:
    """One stage of an operation. Whoever listens is told of every step, and `done` only ever grows."""

    def __init__(self, operation: str, stage: str, total: int, unit: str) -> None:
        self._operation, self._stage, self._total, self._unit = operation, stage, total, unit
        self._done = 0
        self._lock = threading.Lock()
        self.advance(0)

    def advance(self, by: int = 1) -> None:
        """So much more is done."""
        with self._lock:
            self._done += by
            emit(Progress(self._operation, self._stage, self._done, self._total, self._unit))

    def counting(self, work: Callable[[Item], Result]) -> Callable[[Item], Result]:
        """The same work, each call of which is a step once it ended well."""

        def counted(item: Item) -> Result:
            result = work(item)
            self.advance()
            return result

        return counted
