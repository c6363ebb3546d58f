"""Calls that wait behind a commit which is held before its publish."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from omnigraph.api.graph import Graph
from omnigraph.core.failpoints import Pause, Sequence, Window, activate
from omnigraph.engine.write.calls import call_line

PERSON = "query p($name: String, $nick: String?) { insert Person { name: $name, nick: $nick } }"
PRE_PUBLISH = Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER
WAIT_S = 60


class Started:
    """Calls in threads; an exception is a result."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], Any]) -> None:
        number = len(self.results)
        self.results.append(None)

        def run() -> None:
            try:
                self.results[number] = work()
            except BaseException as error:
                self.results[number] = error

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()

    def join(self) -> list[Any]:
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        return self.results


@contextmanager
def behind_a_commit(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Any]]]:
    """Gives a function that starts calls, each when the one before is in line, while a commit is held before
    its publish, lets it go, and returns their outcomes.
    """
    with activate(PRE_PUBLISH, Sequence([pause := Pause()])):
        first = Started()
        first.start(lambda: graph.mutate(PERSON, {"name": "first"}))
        pause.wait_until_reached()
        line = call_line(graph.session)._calls
        join, joined = line.join, threading.Event()
        monkeypatch.setattr(line, "join", lambda place: (join(place), joined.set()))

        def outcomes(*works: Callable[[], Any], before: Callable[[], None] = lambda: None) -> list[Any]:
            started = Started()
            for work in works:
                joined.clear()
                started.start(work)
                assert joined.wait(WAIT_S)
            before()
            pause.release()
            first.join()
            return started.join()

        yield outcomes
    assert first.results[0].commit.requests == 1
