"""What the threads of a session promise to the write they work for."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from graphs import make_graph
from omnigraph.core.ids import TableKey


def test_an_interrupt_is_raised_once_nothing_of_the_shared_work_runs(tmp_path: Path) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(_key: TableKey) -> None:
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(20)  # so that the other thread has the other table
            return
        begun.set()
        time.sleep(0.2)  # the main thread has nothing left but to wait
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        ended.set()

    with make_graph(tmp_path / "g") as graph:
        with pytest.raises(KeyboardInterrupt):
            graph.session.share(work, [TableKey("node:A"), TableKey("node:B")], threads=2)
        assert ended.is_set()
