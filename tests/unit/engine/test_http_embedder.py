"""The embedder over HTTP against a real server of this machine."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import omnigraph as og
from omnigraph.core.errors import EmbedderError
from omnigraph.core.limits import EMBED_ANSWER_BYTES_MAX
from omnigraph.core.settings import Settings
from omnigraph.engine.search import http_embedder as module
from omnigraph.engine.search.http_embedder import HttpEmbedder

KEY = "sk-hush-hush"
GOOD = {"data": [{"index": 0, "embedding": [3.0, 4.0]}]}


@dataclass
class Answer:
    """What the server does with one request."""

    status: int = 200
    body: Any = field(default_factory=lambda: GOOD)
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    pieces: int = 1
    cut: bool = False

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class Server:
    """Gives prepared answers one after the other, the last one for ever, and remembers what was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [Answer()]
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.times: list[float] = []
        self.stopping = threading.Event()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self.make())
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.stopping.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def make(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append((self.path, dict(self.headers), body))
                server.times.append(time.monotonic())
                answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                server.stopping.wait(answer.wait_s)
                content = answer.content
                try:
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(content) + (10 if answer.cut else 0)))
                    self.end_headers()
                    size = -(-len(content) // answer.pieces) or 1
                    for first in range(0, len(content), size):
                        self.wfile.write(content[first : first + size])
                        self.wfile.flush()
                        if answer.pieces > 1:
                            server.stopping.wait(0.05)
                except OSError:
                    pass  # the client has gone

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = Server()
    yield made
    made.close()


def embedder(server: Server, **changes: Any) -> HttpEmbedder:
    values: dict[str, Any] = {
        "api_key": KEY,
        "timeout_s": 5.0,
        "deadline_s": 20.0,
        "backoff_s": 0.001,
        **changes,
    }
    return HttpEmbedder("openai-compatible", server.url, "m1", **values)


def refused(embedder: HttpEmbedder, said: str) -> EmbedderError:
    with pytest.raises(EmbedderError, match=said) as caught:
        embedder.embed(["reef"], 2)
    error = caught.value
    assert "'openai-compatible'" in error.message
    assert "'m1'" in error.message
    assert error.hint
    assert error.details["provider"] == "openai-compatible"
    assert error.details["model"] == "m1"
    shown: list[object] = [error]
    while shown[-1] is not None:
        assert KEY not in f"{shown[-1]!r} {shown[-1]}"
        shown.append(getattr(shown[-1], "__cause__", None) or getattr(shown[-1], "__context__", None))
    assert KEY not in json.dumps(error.to_dict())
    return error


def test_a_request_is_what_the_interface_asks_for(server: Server) -> None:
    assert embedder(server).embed(["reef"], 2) == [[3.0, 4.0]]
    ((path, headers, body),) = server.asked
    assert path == "/v1/embeddings"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert headers["Content-Type"] == "application/json"
    assert body == {"model": "m1", "input": ["reef"], "dimensions": 2}


def test_without_a_key_none_is_sent(server: Server) -> None:
    embedder(server, api_key=None).embed(["reef"], 2)
    assert "Authorization" not in server.asked[0][1]


def test_the_key_is_not_shown(server: Server) -> None:
    assert KEY not in repr(embedder(server))


def test_vectors_are_put_in_the_order_of_the_texts(server: Server) -> None:
    entries = [{"index": 1, "embedding": [0, 1]}, {"index": 0, "embedding": [1, 0]}]
    server.answers = [Answer(body={"data": entries})]
    assert embedder(server).embed(["reef", "Straße 東京"], 2) == [[1, 0], [0, 1]]
    assert server.asked[0][2]["input"] == ["reef", "Straße 東京"]


def test_vectors_without_places_are_in_order(server: Server) -> None:
    server.answers = [Answer(body={"data": [{"embedding": [1]}, {"embedding": [2]}]})]
    assert embedder(server).embed(["a", "b"], 1) == [[1], [2]]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 529])
def test_what_may_pass_is_tried_again(server: Server, status: int) -> None:
    server.answers = [Answer(status, b"busy"), Answer(status, b""), Answer()]
    assert embedder(server).embed(["reef"], 2) == [[3.0, 4.0]]
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [429, 503])
def test_attempts_are_counted(server: Server, status: int) -> None:
    server.answers = [Answer(status, {"error": {"message": "slow down"}})]
    error = refused(embedder(server, attempts_max=3), f"status {status}: slow down")
    assert len(server.asked) == 3
    assert error.retry == "after_delay"
    assert error.details["status"] == status


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_will_not_pass_is_not_tried_again(server: Server, status: int) -> None:
    server.answers = [Answer(status, {"error": {"message": f"no {KEY}\n\x1b[31m" + "x" * 500}})]
    error = refused(embedder(server), f"status {status}")
    assert len(server.asked) == 1
    assert error.retry == "never"
    assert "\x1b" not in error.message
    assert len(error.message) < 400
    if status in {401, 403}:
        assert "sk-" not in error.message
        assert "KEY" in (error.hint or "")
        assert "xxx" not in error.message
    else:
        assert "no ***" in error.message


def test_a_redirection_is_not_followed(server: Server) -> None:
    server.answers = [Answer(302, b"", {"Location": f"{server.url}/elsewhere"}), Answer()]
    error = refused(embedder(server), "status 302")
    assert len(server.asked) == 1
    assert "not followed" in (error.hint or "")


@pytest.mark.slow
def test_a_wait_the_server_asks_for_is_kept(server: Server) -> None:
    server.answers = [Answer(429, b"", {"Retry-After": "1"}), Answer()]
    embedder(server).embed(["reef"], 2)
    assert server.times[1] - server.times[0] >= 1


@pytest.mark.parametrize("changes", [{"deadline_s": 2.0, "wait": "3"}, {"deadline_s": None, "wait": "86400"}])
def test_a_wait_that_is_too_long_is_a_refusal_at_once(server: Server, changes: dict[str, Any]) -> None:
    server.answers = [Answer(429, b"", {"Retry-After": changes["wait"]})]
    begun = time.monotonic()
    refused(embedder(server, deadline_s=changes["deadline_s"]), "status 429")
    assert time.monotonic() - begun < 1.5
    assert len(server.asked) == 1


def test_pauses_grow(server: Server) -> None:
    server.answers = [Answer(500, b"")]
    refused(embedder(server, backoff_s=0.1, attempts_max=3), "status 500")
    first, second = (later - earlier for earlier, later in zip(server.times, server.times[1:], strict=False))
    assert first >= 0.1
    assert second >= 0.2


def test_silence_ends_an_attempt_and_then_all(server: Server) -> None:
    server.answers = [Answer(wait_s=30)]
    error = refused(embedder(server, timeout_s=0.2, attempts_max=2), "did not answer within 0.2 seconds")
    assert len(server.asked) == 2
    assert error.retry == "after_delay"
    assert "OMNIGRAPH_EMBED_TIMEOUT_MS" in (error.hint or "")


def test_the_deadline_holds_over_all_attempts(server: Server) -> None:
    server.answers = [Answer(wait_s=30)]
    begun = time.monotonic()
    refused(embedder(server, timeout_s=20, deadline_s=0.4, attempts_max=50), "did not answer")
    assert time.monotonic() - begun < 3


def test_an_answer_that_trickles_in_does_not_hold_an_attempt_open(server: Server) -> None:
    server.answers = [Answer(pieces=40)]
    begun = time.monotonic()
    refused(embedder(server, timeout_s=0.3, attempts_max=1), "did not answer within 0.3 seconds")
    assert time.monotonic() - begun < 1.5


def test_a_broken_connection_is_tried_again(server: Server) -> None:
    server.answers = [Answer(body=b"HTTP", cut=True), Answer()]
    assert embedder(server).embed(["reef"], 2) == [[3.0, 4.0]]


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        silent = HttpEmbedder("openai-compatible", url, "m1", KEY, attempts_max=2, backoff_s=0.001)
        error = refused(silent, r"cannot be reached \(ConnectionRefusedError\)")
    assert error.retry == "after_delay"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"\xff\xfe",
        b'{"data": [{"index": 0, "embedding": [NaN, 1]}]}',
        [],
        7,
        {},
        {"data": None},
        {"data": "x"},
        {"data": {"index": 0}},
        {"data": [7]},
        {"data": [{"index": 0}]},
        {"data": []},
        {"data": [{"index": 1, "embedding": [1, 0]}]},
        {"data": [{"index": [0], "embedding": [1, 0]}]},
        {"data": [{"index": 0, "embedding": [1, 0]}, {"index": 0, "embedding": [0, 1]}]},
    ],
)
def test_an_answer_that_is_something_else_is_refused(server: Server, body: Any) -> None:
    server.answers = [Answer(body=body)]
    error = refused(embedder(server), "without one vector for each of 1 texts")
    assert len(server.asked) == 1
    assert error.retry == "never"


def test_an_endless_answer_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EMBED_ANSWER_BYTES_MAX > 1_000_000
    monkeypatch.setattr(module, "EMBED_ANSWER_BYTES_MAX", 1000)
    server.answers = [Answer(body=b" " * 5000)]
    refused(embedder(server), "more than 1000 bytes")
    assert len(server.asked) == 1


def test_a_query_asks_the_configured_server_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIGRAPH_EMBED_API_KEY", KEY)
    settings = Settings(durability="os", embed_base_url=server.url, embed_model="m1")
    schema = 'node Doc { slug: String @key  body: String  vec: Vector(2) @embed(body, model="m1") }'
    query = """query q($t: String) { match { $d: Doc } return { $d.slug, nearest($d.vec, $t) as away }
      order { nearest($d.vec, $t) } limit 2 }"""
    with og.init(tmp_path / "docs.omni", schema=schema, settings=settings) as graph:
        graph.mutate("""query q() {
          insert Doc { slug: "a", body: "x", vec: [1.0, 0.0] }
          insert Doc { slug: "b", body: "x", vec: [0.6, 0.8] }
        }""")
        assert server.asked == []
        rows = list(graph.query(query, {"t": "reef"}))
    assert [row["d.slug"] for row in rows] == ["b", "a"]
    assert rows[0]["away"] == pytest.approx(0, abs=1e-7)
    ((_, headers, body),) = server.asked
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body == {"model": "m1", "input": ["reef"], "dimensions": 2}
