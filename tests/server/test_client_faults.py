"""Answers that are lost, late or strange on their way from a server to a client."""

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import orjson
import pytest

import omnigraph
from omnigraph.api.graph import Graph
from omnigraph.client.link import ATTEMPTS_MAX, Link
from omnigraph.client.remote import RemoteGraph
from omnigraph.core.bounds import bounds_of, within
from omnigraph.core.errors import NetworkError, NotThisProduct, OmnigraphError, ResourceBusy
from omnigraph.server.serving import listening
from server.conftest import ADD, BY_IMO, Serve

LOST = None
BUSY = (503, orjson.dumps(ResourceBusy("the server has too many writes under way").to_dict()))
SHIP = {"imo": "S9", "name": "Noctua"}


class Between(ThreadingHTTPServer):
    """Hands requests to a server and its answers back, except those that `instead` says."""

    daemon_threads = False

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handed)
        self.upstream = url
        self.instead: list[tuple[int, bytes] | None] = []
        """What comes back in place of the next answers; a lost one closes the connection."""
        self.retold: Callable[[bytes], bytes] = bytes
        """What becomes of an answer on its way."""
        self.handed = 0
        """Requests that reached the server."""


class _Handed(BaseHTTPRequestHandler):
    server: Between

    def answer(self) -> None:
        body = b"".join(self._body())
        between = self.server
        fault = between.instead.pop(0) if between.instead else ()
        self.close_connection = True
        if fault == ():
            status, content = self._asked(body)
            self._give(status, between.retold(content))
        elif fault is LOST:
            self._asked(body)
        else:
            self._give(*fault)

    def _body(self) -> Iterator[bytes]:
        if self.headers.get("transfer-encoding") != "chunked":
            yield self.rfile.read(int(self.headers.get("content-length", "0")))
            return
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _asked(self, body: bytes) -> tuple[int, bytes]:
        own = {"host", "transfer-encoding", "content-length"}
        kept = {name: value for name, value in self.headers.items() if name.lower() not in own}
        with httpx2.Client(timeout=60, trust_env=False, verify=False) as client:
            answer = client.request(
                self.command, f"{self.server.upstream}{self.path}", headers=kept, content=body
            )
        self.server.handed += 1
        return answer.status_code, answer.content

    def _give(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, *_: Any) -> None:
        """Tests print nothing."""


@pytest.fixture
def between(serve: Serve) -> Iterator[Between]:
    with Between(serve({"act-ines": "t1"}).url) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


@pytest.fixture
def remote(between: Between, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteGraph]:
    monkeypatch.setattr("omnigraph.client.link.PAUSE_S", 0.0)
    url = f"http://127.0.0.1:{between.server_address[1]}"
    with omnigraph.connect(url, graph="harbor", token="t1") as graph:
        yield graph


def raised(call: Any) -> OmnigraphError:
    with pytest.raises(OmnigraphError) as caught:
        call()
    return caught.value


def commits(graph: Graph) -> int:
    return len(graph.commits.list())


@pytest.mark.slow
def test_a_keyed_write_whose_answer_is_lost_is_sent_again_and_done_once(
    remote: RemoteGraph, between: Between, harbor: Graph
) -> None:
    before = commits(harbor)
    between.instead = [LOST, BUSY, LOST]
    head = harbor.commits.head().id
    done = remote.mutate(ADD, SHIP, if_commit=head, idempotency_key="k1")
    assert done.repeated
    assert (between.handed, commits(harbor)) == (3, before + 1)


@pytest.mark.slow
def test_a_keyed_write_that_is_never_answered_says_how_to_go_on(
    remote: RemoteGraph, between: Between, harbor: Graph
) -> None:
    before = commits(harbor)
    between.instead = [LOST] * ATTEMPTS_MAX
    lost = raised(lambda: remote.mutate(ADD, SHIP, idempotency_key="k1"))
    assert isinstance(lost, NetworkError)
    assert lost.writing
    assert lost.hint == "send it again with the same idempotency key"
    between.instead = [LOST, BUSY, BUSY, BUSY]
    lost = raised(lambda: remote.mutate(ADD, SHIP, idempotency_key="k1"))
    assert isinstance(lost, NetworkError)
    assert lost.writing
    between.instead = [BUSY] * ATTEMPTS_MAX
    assert isinstance(raised(lambda: remote.mutate(ADD, SHIP, idempotency_key="k1")), ResourceBusy)
    assert remote.mutate(ADD, SHIP, idempotency_key="k1").repeated
    assert commits(harbor) == before + 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", [LOST, BUSY])
def test_a_write_without_a_key_is_sent_once(
    remote: RemoteGraph, between: Between, harbor: Graph, fault: tuple[int, bytes] | None
) -> None:
    before = commits(harbor)
    calls = (
        lambda: remote.mutate(ADD, SHIP),
        lambda: remote.load(_line(), mode="merge"),
        lambda: remote.branches.create("topic"),
        lambda: remote.tags.create("v1"),
        lambda: remote.branches.merge("topic"),
        lambda: remote.tags.delete("v1"),
        lambda: remote.branches.delete("topic"),
    )
    for call in calls:
        between.instead = [fault]
        handed = between.handed
        error = raised(call)
        assert between.instead == []
        if fault is LOST:
            assert isinstance(error, NetworkError)
            assert (error.writing, error.retry) == (True, "unknown")
            assert between.handed == handed + 1
        else:
            assert isinstance(error, ResourceBusy)
            assert between.handed == handed
    assert commits(harbor) == before + (2 if fault is LOST else 0)


def _line() -> Any:
    return io.BytesIO(b'{"type":"Ship","data":{"imo":"S3","name":"Cora"}}\n')


@pytest.mark.slow
def test_a_read_is_sent_again_until_there_is_no_sense_in_it(remote: RemoteGraph, between: Between) -> None:
    for call in (lambda: remote.query(BY_IMO, {"imo": "S1"}), remote.branches.list, remote.commits.head):
        between.instead = [LOST, BUSY, LOST]
        assert call()
        between.instead = [LOST] * ATTEMPTS_MAX
        lost = raised(call)
        assert isinstance(lost, NetworkError)
        assert (lost.writing, lost.retry) == (False, "same_request")
        between.instead = [BUSY] * ATTEMPTS_MAX
        assert isinstance(raised(call), ResourceBusy)
        assert between.instead == []


@pytest.mark.parametrize(
    "content", [b"<html>", b"{}", b"[]", b"7", b"", b"\xff\xff\xff\xff\x10\x00\x00\x00cut"]
)
def test_an_answer_of_somebody_else_is_an_error_of_its_kind(
    remote: RemoteGraph, between: Between, content: bytes
) -> None:
    for call in (
        lambda: remote.query(BY_IMO, {"imo": "S1"}),
        lambda: remote.mutate(ADD, SHIP),
        lambda: remote.load(_line(), mode="merge"),
        remote.branches.list,
        lambda: remote.branches.create("topic"),
        lambda: remote.branches.merge("topic"),
        lambda: remote.branches.delete("topic"),
        remote.commits.list,
        remote.commits.head,
        lambda: remote.commits.show("main"),
        remote.tags.list,
        lambda: remote.tags.create("v1"),
        remote.schema_source,
    ):
        between.instead = [(200, content)]
        assert isinstance(raised(call), NotThisProduct)


def test_an_export_that_is_cut_is_an_error(remote: RemoteGraph, between: Between) -> None:
    between.instead = [LOST]
    assert isinstance(raised(remote.export), NetworkError)


def test_a_silent_server_is_not_asked_twice() -> None:
    asked: list[httpx2.Request] = []
    with listening("127.0.0.1:0") as silent:
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with omnigraph.connect(url, graph="harbor", timeout_s=0.05) as graph:
            graph._link.client.event_hooks = {"request": [asked.append]}
            error = raised(lambda: graph.mutate(ADD, SHIP, idempotency_key="k1"))
    assert isinstance(error, NetworkError)
    assert (error.writing, len(asked)) == (True, 1)


def test_nobody_at_the_address_means_that_nothing_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnigraph.client.link.PAUSE_S", 0.0)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        with omnigraph.connect(f"http://127.0.0.1:{deaf.getsockname()[1]}", graph="harbor") as graph:
            error = raised(lambda: graph.mutate(ADD, SHIP))
    assert isinstance(error, NetworkError)
    assert (error.writing, error.hint) == (False, "check the address")


def test_a_pause_ends_with_the_time_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    allowed: list[int] = []

    def busy(request: httpx2.Request) -> httpx2.Response:
        allowed.append(int(request.headers["x-timeout-ms"]))
        return httpx2.Response(BUSY[0], content=BUSY[1], headers={"retry-after": "5"})

    monkeypatch.setattr(time, "sleep", pauses.append)
    with (
        httpx2.Client(base_url="http://harbor", transport=httpx2.MockTransport(busy)) as client,
        within(bounds_of({"timeout_s": 4})),
        pytest.raises(ResourceBusy),
    ):
        Link(client).get("/branches")
    assert len(pauses) == ATTEMPTS_MAX - 1
    assert all(each <= 4 for each in pauses)
    assert allowed == sorted(allowed, reverse=True)
