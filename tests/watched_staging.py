"""Staging that a test watches, in this process or in a task of Spark: how many tables are written at once.

Spark's tasks get this file by `addPyFile`, so it imports nothing of the tests.
"""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from omnigraph.core.ids import new_ulid
from omnigraph.pipeline.load import stage_split as staging
from omnigraph.pipeline.load.journal import stage_journaled
from omnigraph.pipeline.load.stage_split import SplitResult, StageTask

SECONDS_MAX = 60.0


class Meeting:
    """Holds the first `expected` calls until all of them are inside at once, and counts how many ever are."""

    def __init__(self, expected: int) -> None:
        self.calls = self.most = self._inside = 0
        self.threads: set[int] = set()
        self._expected = expected
        self._all_inside = threading.Barrier(expected)
        self._lock = threading.Lock()

    def held(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, watched."""

        def watched(*given: Any, **named: Any) -> Any:
            with self._lock:
                self.calls += 1
                first = self.calls <= self._expected
                self._inside += 1
                self.most = max(self.most, self._inside)
                self.threads.add(threading.get_ident())
            try:
                if first:
                    self._all_inside.wait(SECONDS_MAX)
                return function(*given, **named)
            finally:
                with self._lock:
                    self._inside -= 1

        return watched


@dataclass(frozen=True)
class Seen:
    """What was seen of one piece."""

    pid: int
    tables: int
    most_at_once: int
    threads: int


def stage_watched(task: StageTask) -> SplitResult:
    """Stage one piece. The first writers wait for each other, as many as the setting asks for."""
    writers = Meeting(task.plan.settings.load_concurrency)
    watched = writers.held(staging.write_uncommitted_fragments)
    with mock.patch.object(staging, "write_uncommitted_fragments", watched):
        result = stage_journaled(task)
    seen = Seen(os.getpid(), writers.calls, writers.most, len(writers.threads))
    Path(f"{task.plan.root.uri}.{new_ulid()}.seen").write_text(json.dumps(asdict(seen)))
    return result


def seen(uri: str) -> list[Seen]:
    """What was seen of every piece of the loads into a graph."""
    graph = Path(uri)
    return [Seen(**json.loads(each.read_text())) for each in graph.parent.glob(f"{graph.name}.*.seen")]
