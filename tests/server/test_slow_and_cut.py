"""Senders that never finish, streams that are stopped, and a wire that is cut at any byte."""

import json
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx2
import pytest

import omnigraph
from omnigraph.api.graph import Graph
from omnigraph.core.errors import NetworkError
from server.conftest import ADD, BY_IMO, Running, Serve
from server.test_serve_command import serving

pytestmark = pytest.mark.crash


def connection(server: Running) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def until_closed(sock: socket.socket) -> bytes:
    found = b""
    while piece := sock.recv(65_536):
        found += piece
    return found


def test_headers_that_never_end_are_not_waited_for(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnigraph.server.serving.HEADERS_S_MAX", 0.05)
    server = serve({"act-ines": "t1"})
    for begun in (b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "):
        with connection(server) as sock:
            sock.sendall(begun)
            answer = until_closed(sock)
        assert answer.startswith(b"HTTP/1.1 400")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["kind"] == "bad_request"
    assert server.ask("GET", "/healthz").status_code == 200


def test_a_stream_that_is_stopped_has_no_end(harbor: Graph) -> None:
    """SIGTERM in the middle of an export: the client learns that it has not got everything."""
    harbor.mutate_many(ADD, [{"imo": f"X{number}", "name": "x" * 2_000} for number in range(4_000)])
    options = ("--graph-id", "harbor", "--unauthenticated", "--drain-timeout", "1")
    with serving(harbor.uri, *options) as (process, url):
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.socket() as sock:
            # A client that takes little at a time, so that the server cannot have sent everything.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            sock.settimeout(60)
            sock.connect((host, int(port)))
            body = b"{}"
            sock.sendall(
                b"POST /graphs/harbor/export HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            begun = sock.recv(1_024)
            assert begun.startswith(b"HTTP/1.1 200")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            rest = b""
            with suppress(ConnectionResetError):
                rest = until_closed(sock)
        assert not (begun + rest).endswith(b"0\r\n\r\n")


class Wire:
    """Hands bytes both ways, and cuts the connection after a number of them, repeatedly counted anew."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._there = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.cut_after: tuple[str, int] | None = None
        """Whose bytes are counted, `client` or `server`, and after how many the wire is cut, once."""
        self.held_after: tuple[str, int] | None = None
        """The same, but what comes then waits until `go_on`, whoever is gone by that time."""
        self.go_on = threading.Event()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._accepting.join(60)
        for each in self._threads:
            each.join(60)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection(self._there, timeout=60)
            near.settimeout(60)
            cut, self.cut_after = self.cut_after, None
            held, self.held_after = self.held_after, None
            for who, source, sink in (("client", near, far), ("server", far, near)):
                limit = cut[1] if cut is not None and cut[0] == who else None
                wait = held[1] if held is not None and held[0] == who else None
                thread = threading.Thread(target=self._hand, args=(source, sink, limit, wait))
                thread.start()
                self._threads.append(thread)

    def _hand(self, source: socket.socket, sink: socket.socket, limit: int | None, wait: int | None) -> None:
        left = limit
        with suppress(OSError):
            while left != 0 and (piece := source.recv(65_536 if left is None else left)):
                if wait is not None:
                    sink.sendall(piece[:wait])
                    assert self.go_on.wait(60)
                    piece, wait = piece[wait:], None
                sink.sendall(piece)
                left = None if left is None else left - len(piece)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        source.close()


@contextmanager
def wire_to(server: Running) -> Iterator[Wire]:
    wire = Wire(server.url)
    try:
        yield wire
    finally:
        wire.close()


@pytest.mark.parametrize("step", [53, pytest.param(1, marks=pytest.mark.torture)])
def test_a_wire_that_is_cut_at_any_byte_loses_and_doubles_nothing(
    serve: Serve, harbor: Graph, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr("omnigraph.client.link.PAUSE_S", 0.0)
    server = serve({"act-ines": "t1"})
    wanted: set[str] = set()
    with wire_to(server) as wire:
        for who, places in (("client", range(0, 640, step)), ("server", range(0, 900, step))):
            for at in places:
                imo = f"{who}-{at}"
                wanted.add(imo)
                wire.cut_after = (who, at)
                with omnigraph.connect(wire.url, graph="harbor", token="t1") as graph:
                    done = graph.mutate(ADD, {"imo": imo, "name": "Cut"}, idempotency_key=imo)
                    assert done.affected_nodes == 1
        for at in range(0, 700, 2 * step):
            wire.cut_after = ("server", at)
            with omnigraph.connect(wire.url, graph="harbor", token="t1") as graph:
                # Without a key it is sent once: it happened or it did not, and the error says that nobody knows.
                imo = f"unkeyed-{at}"
                with suppress(NetworkError):
                    graph.mutate(ADD, {"imo": imo, "name": "Cut"})
                assert len(harbor.query(BY_IMO, {"imo": imo})) <= 1
    rows = harbor.query('query q() { match { $s: Ship { name: "Cut" } } return { $s.imo } }')["s.imo"]
    counted = Counter(each for each in rows if not each.startswith("unkeyed"))
    assert counted == Counter(wanted)
    assert harbor.verify().ok


@pytest.mark.parametrize(
    "at", [0, 90, 330, *(pytest.param(at, marks=pytest.mark.torture) for at in range(1, 420, 7))]
)
def test_a_request_that_is_late_by_any_number_of_bytes_is_done_once(
    serve: Serve, harbor: Graph, at: int
) -> None:
    """Its sender gave up and sent it again elsewhere; then the first one arrives after all."""
    server = serve({"act-ines": "t1"})
    with wire_to(server) as wire:
        wire.held_after = ("client", at)
        with omnigraph.connect(wire.url, graph="harbor", token="t1", timeout_s=0.5) as graph:
            with pytest.raises(NetworkError) as lost:
                graph.mutate(ADD, {"imo": "D1", "name": "Late"}, idempotency_key="late")
            assert lost.value.writing
        with omnigraph.connect(server.url, graph="harbor", token="t1") as graph:
            done = graph.mutate(ADD, {"imo": "D1", "name": "Late"}, idempotency_key="late")
        wire.go_on.set()
    server.server.stop()  # it ends when everything that reached it has been answered
    server.stopped()
    assert done.commit is not None
    assert [each.id for each in harbor.commits.list(actor="act-ines")] == [done.commit.id]
    assert harbor.query(BY_IMO, {"imo": "D1"})["s.name"] == ["Late"]


def test_an_answer_that_is_late_is_no_reason_to_write_again(serve: Serve, harbor: Graph) -> None:
    server = serve({"act-ines": "t1"})
    with wire_to(server) as wire:
        wire.held_after = ("server", 20)
        with (
            omnigraph.connect(wire.url, graph="harbor", token="t1", timeout_s=0.5) as graph,
            pytest.raises(NetworkError),
        ):
            graph.mutate(ADD, {"imo": "D1", "name": "Late"}, idempotency_key="late")
        with omnigraph.connect(wire.url, graph="harbor", token="t1") as graph:
            again = graph.mutate(ADD, {"imo": "D1", "name": "Late"}, idempotency_key="late")
        wire.go_on.set()
    assert again.repeated
    assert len(harbor.commits.list(actor="act-ines")) == 1


def test_a_request_that_is_repeated_on_the_wire_is_done_once(serve: Serve, harbor: Graph) -> None:
    server = serve({"act-ines": "t1"})
    body = json.dumps({"query": ADD, "params": {"imo": "R1", "name": "Twice"}}).encode()
    head = (
        f"POST /graphs/harbor/mutate HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer t1\r\n"
        f"Content-Type: application/json\r\nIdempotency-Key: again\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    before = len(harbor.commits.list(upkeep=False))
    with connection(server) as sock:
        for _ in range(3):
            sock.sendall(head + body)
        answers = b""
        while answers.count(b'"repeated"') < 3 and (piece := sock.recv(65_536)):
            answers += piece
    assert answers.count(b"HTTP/1.1 200") == 3
    assert len(harbor.commits.list(upkeep=False)) == before + 1
    assert len(harbor.query(BY_IMO, {"imo": "R1"})) == 1
    assert httpx2.get(f"{server.url}/healthz", trust_env=False, timeout=60).status_code == 200
