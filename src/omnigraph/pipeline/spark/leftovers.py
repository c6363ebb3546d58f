"""Files and directories that must not outlive this process, whichever thread was to remove them."""

import atexit
import contextlib
import os
import shutil
import threading
from pathlib import Path
from typing import Final


class Leftovers:
    """Paths to remove when the process ends, unless they were removed or kept before. Thread-safe."""

    def __init__(self) -> None:
        self._paths: set[Path] = set()
        self._process = os.getpid()
        self._lock = threading.Lock()

    def add(self, path: Path) -> Path:
        """Note a path that is there, or soon will be."""
        with self._lock:
            self._paths.add(path)
        return path

    def keep(self, path: Path) -> None:
        """Forget a path: it stays, because somebody was told where it is."""
        with self._lock:
            self._paths.discard(path)

    def remove(self, path: Path) -> None:
        """Remove a path that nobody needs any more."""
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self.keep(path)

    def remove_all(self) -> None:
        """Remove what is left, for instance by a thread that was at work when the process was interrupted."""
        if os.getpid() != self._process:
            return  # a forked child has them from its parent, who still needs them
        with self._lock:
            paths = list(self._paths)
        for path in paths:
            self.remove(path)


LEFTOVERS: Final = Leftovers()
# Registered before any session starts, so it runs after everything that ends one.
atexit.register(LEFTOVERS.remove_all)
