"""Objects that all handles of one process share, one for each graph root."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class PerRoot(Generic[T]):
    """One object per graph root, for as long as somebody has it.

    A forked child starts without any: threads that it does not have may hold what its parent knows. Those
    who make one keep it for the life of the process.
    """

    def __init__(self) -> None:
        self._start_afresh()
        os.register_at_fork(after_in_child=self._start_afresh)

    def _start_afresh(self) -> None:
        self._known: weakref.WeakValueDictionary[str, T] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def get(self, identity: str, make: Callable[[], T]) -> T:
        """The object of a root (`GraphRoot.identity`), made where there is none."""
        with self._lock:
            known = self._known.get(identity)
            if known is None:
                known = self._known[identity] = make()
            return known
