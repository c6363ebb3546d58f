"""A server that is killed under load: with keys nothing is lost and nothing is done twice."""

import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import omnigraph
from graphs import FAST
from omnigraph.core.errors import OmnigraphError
from server.test_serve_command import serving

WRITERS, WRITES = 32, 3
SCHEMA = "node Entry { text: String }\n"
INSERT = "query add($text: String) { insert Entry { text: $text } }"


class Address:
    """Where the server is now; writers that lost it wait for the next one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._url = ""

    def move(self, url: str) -> None:
        with self._changed:
            self._url = url
            self._changed.notify_all()

    def other_than(self, lost: str) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: self._url != lost, timeout=240)
            return self._url


@pytest.mark.crash
def test_a_server_killed_under_writers_with_keys_loses_and_doubles_nothing(tmp_path: Path) -> None:
    place = tmp_path / "log.omni"
    omnigraph.init(place, schema=SCHEMA, settings=FAST).close()
    address, told = Address(), threading.Semaphore(0)

    def write(writer: int) -> None:
        url = ""
        for number in range(WRITES):
            text = f"{writer}-{number}"
            while True:
                url = url or address.other_than("")
                try:
                    with omnigraph.connect(url, graph="default", token="s3cret") as graph:
                        graph.mutate(INSERT, {"text": text}, idempotency_key=text)
                except OmnigraphError as error:
                    if error.kind not in {"network", "resource_busy", "too_many_requests"}:
                        raise
                    url = address.other_than(url) if error.kind == "network" else url
                else:
                    break
            told.release()

    token = {"OMNIGRAPH_SERVER_BEARER_TOKEN": "s3cret"}
    with ThreadPoolExecutor(WRITERS) as pool:
        running = [pool.submit(write, number) for number in range(WRITERS)]
        for _ in range(2):
            with serving(str(place), "--default", "write", log=subprocess.DEVNULL, **token) as (process, url):
                address.move(url)
                for _ in range(WRITES * WRITERS // 4):
                    assert told.acquire(timeout=240)
                process.kill()
        with serving(str(place), "--default", "write", log=subprocess.DEVNULL, **token) as (_, url):
            address.move(url)
            for each in running:
                each.result(timeout=240)
    with omnigraph.open(place) as graph:
        texts = Counter(graph.query("query q() { match { $e: Entry } return { $e.text } }")["e.text"])
        assert texts == Counter(f"{writer}-{n}" for writer in range(WRITERS) for n in range(WRITES))
        assert graph.verify().ok
        assert graph.pending() == ()
