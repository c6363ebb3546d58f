"""Structures built from the contents of tables, shared by all readers of a process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class Sized(Protocol):
    """Anything that knows how many bytes it holds."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...


D = TypeVar("D", bound=Sized)


class DerivedCache:
    """Structures built from the contents of tables, bounded in bytes; the least recently used go first.

    A key names everything its value was built from, so a value is never stale. A value above the bound is
    given to whoever asked and not kept.
    Thread-safety: every method may be called from any thread; a value is built by one thread at a time.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, Sized] = OrderedDict()
        self._building: dict[Hashable, threading.RLock] = {}

    def get(self, key: Hashable, kind: type[D], build: Callable[[], D]) -> D:
        """The value of a key, built when it is not there."""
        found = self.peek(key, kind)
        if found is not None:
            return found
        with self._lock:
            building = self._building.setdefault(key, threading.RLock())
        try:
            with building:
                found = self.peek(key, kind)
                if found is None:
                    found = build()
                    self.put(key, found)
                return found
        finally:
            with self._lock:
                self._building.pop(key, None)

    def put(self, key: Hashable, value: Sized) -> None:
        """Keep a value; others leave until the bound holds."""
        with self._lock:
            replaced = self._entries.pop(key, None)
            if replaced is not None:
                self._bytes -= replaced.nbytes
            if value.nbytes > self.bytes_max:
                return
            self._bytes += value.nbytes
            self._entries[key] = value
            while self._bytes > self.bytes_max:
                _, dropped = self._entries.popitem(last=False)
                self._bytes -= dropped.nbytes

    def peek(self, key: Hashable, kind: type[D]) -> D | None:
        """The value of a key if it is there; that counts as a use."""
        with self._lock:
            found = self._entries.get(key)
            if not isinstance(found, kind):
                return None
            self._entries.move_to_end(key)
            return found

    def has(self, key: Hashable) -> bool:
        """Whether a key has a value."""
        with self._lock:
            return key in self._entries

    def nbytes(self) -> int:
        """Memory in use."""
        with self._lock:
            return self._bytes
