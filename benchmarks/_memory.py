"""Peak memory of a process and everything it started, shared pages counted once."""

import os
import threading
from pathlib import Path
from typing import Self

SAMPLE_SECONDS = 0.1


def children(pid: int) -> list[int]:
    """The process and all its descendants, as far as they still live."""
    by_parent: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            by_parent.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += by_parent.get(one, [])
    return found


def megabytes(pid: int) -> float:
    """Resident memory of one process; a page that n processes share counts 1/n. 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


class PeakMemory:
    """A block whose `peak_mb` is the most memory this process and its descendants held at one time."""

    def __init__(self, pid: int | None = None) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_mb = 0.0
        self.parts: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            held = {pid: megabytes(pid) for pid in children(self._pid)}
            if sum(held.values()) > self.peak_mb:
                self.peak_mb = sum(held.values())
                self.parts = self._named(held)

    def _named(self, held: dict[int, float]) -> dict[str, float]:
        parts: dict[str, float] = {}
        for pid, size in held.items():
            try:
                command = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                command = "gone"
            name = "driver" if pid == self._pid else "JVM" if command == "java" else "workers"
            parts[name] = parts.get(name, 0.0) + size
        return parts
