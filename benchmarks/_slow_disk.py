"""Flushes counted, and a disk whose every flush takes a known time longer.

Flushes that wait side by side wait together, as they do for the journal of a file system or the cache of a
device. Only what this process syncs by itself is counted and slowed, which is everything the engine syncs.
"""

import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager


class Flushes:
    """How many flushes there were, and how long each is made to take."""

    def __init__(self) -> None:
        self.count = 0
        self.extra_s = 0.0
        self._lock = threading.Lock()

    def happened(self) -> None:
        """One flush begins."""
        with self._lock:
            self.count += 1
        if self.extra_s:
            time.sleep(self.extra_s)


@contextmanager
def watched_flushes() -> Generator[Flushes]:
    """Count the flushes of this process, and slow them as told."""
    flushes = Flushes()
    real = {name: getattr(os, name) for name in ("fsync", "fdatasync")}

    def watched(name: str) -> None:
        flush = real[name]

        def slowed(descriptor: int) -> None:
            flushes.happened()
            flush(descriptor)

        setattr(os, name, slowed)

    for name in real:
        watched(name)
    try:
        yield flushes
    finally:
        for name, flush in real.items():
            setattr(os, name, flush)
