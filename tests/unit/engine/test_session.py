"""What the threads of a session promise to the write they work for."""

import threading
from concurrent.futures import Future, wait
from pathlib import Path

import pytest

from graphs import make_graph
from omnigraph.core.ids import TableKey
from omnigraph.storage import parallel


def test_an_interrupt_is_raised_once_nothing_of_the_shared_work_runs(tmp_path: Path, monkeypatch) -> None:
    begun, interrupted, awaited_again, ended = (threading.Event() for _ in range(4))

    def interrupted_wait(futures: list[Future[None]]) -> object:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        awaited_again.set()
        return wait(futures)

    def work(_key: TableKey) -> None:
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(20)  # so that the other thread has the other table
            return
        begun.set()
        assert awaited_again.wait(20)
        ended.set()

    monkeypatch.setattr(parallel, "wait", interrupted_wait)
    with make_graph(tmp_path / "g") as graph:
        with pytest.raises(KeyboardInterrupt):
            graph.session.share(work, [TableKey("node:A"), TableKey("node:B")], threads=2)
        assert ended.is_set()
