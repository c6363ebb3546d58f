"""What arrives from careless and from hostile clients: each gets a typed error, and nothing is done."""

import asyncio
import gzip
import json
import socket
from typing import Any

import pytest

from omnigraph.api.graph import Graph
from omnigraph.core.errors import DeadlineExceeded
from omnigraph.server import requests
from server.conftest import ADD, BY_IMO, Running, Serve

pytestmark = pytest.mark.slow


@pytest.fixture
def server(serve: Serve) -> Running:
    return serve({"act-ines": "t1-secret"})


def raw(server: Running, request: bytes) -> tuple[int, dict[str, Any]]:
    """Sends bytes as they are, and reads until the server closes."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), answer
    return int(head.split()[1]), json.loads(body)


def post(body: bytes, *headers: str, path: str = "/graphs/harbor/query", length: int | None = None) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Authorization: Bearer t1-secret",
        "Connection: close",
        *headers,
        *(
            ["Content-Type: application/json"]
            if not any(h.startswith("Content-Type") for h in headers)
            else []
        ),
    ]
    if not any(h.startswith("Transfer-Encoding") for h in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


QUERY = json.dumps({"query": BY_IMO, "params": {"imo": "S1"}}).encode()

BODIES = {
    "no object": b"[]",
    "not closed": b'{"query": "x"',
    "no text": b"\xff\xfe",
    "behind the end": QUERY + b"{}",
    "member twice": b'{"query": "a{}", "query": "b{}"}',
    "parameter twice": b'{"query": "a{}", "params": {"x": 1, "x": 2}}',
    "NaN": b'{"query": "a{}", "params": {"x": NaN}}',
    "Infinity": b'{"query": "a{}", "params": {"x": -Infinity}}',
    "number too large": b'{"query": "a{}", "params": {"x": 1e999}}',
    "very long number": b'{"query": "a{}", "params": {"x": ' + b"9" * 5_000 + b"}}",
    "half a surrogate pair": b'{"query": "a{}", "params": {"x": "\\ud800"}}',
    "1,000 deep": b'{"query": "a{}", "params": {"x": ' + b"[" * 1_000 + b"]" * 1_000 + b"}}",
    "100,000 deep": b'{"query": "a{}", "params": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "open quotes": b'{"query": "' + b'\\"' * 200_000,
    "wrong type": b'{"query": 7}',
    "empty query": b'{"query": ""}',
    "no query": b"{}",
    "unknown member": b'{"query": "a{}", "snapshot_id": "x"}',
    "an actor": b'{"query": "a{}", "actor": "act-tomas"}',
    "branch and commit": b'{"query": "query q() { match { $s: Ship } return { $s.imo } }", "branch": "main", "at": "main"}',
    "nothing": b"",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_no_request_is_refused(server: Running, name: str) -> None:
    status, body = raw(server, post(BODIES[name]))
    assert (status, body["code"]) == (400, "bad_request"), body
    assert "t1-secret" not in json.dumps(body)


def test_an_age_that_no_calendar_holds_is_refused(server: Running) -> None:
    body = json.dumps({"older_than_s": 10**18, "dry_run": True}).encode()
    status, answer = raw(server, post(body, path="/graphs/harbor/cleanup"))
    assert (status, answer["code"]) == (400, "bad_request"), answer


def test_a_deep_body_within_the_bound_is_read(server: Running) -> None:
    text = b'{"query": "a{}", "params": {"x": ' + b"[" * 60 + b"]" * 60 + b"}}"
    assert raw(server, post(text))[1]["kind"] == "query_syntax"


def test_a_body_over_the_bound_is_refused_whether_it_says_so_or_not(server: Running) -> None:
    large = b'{"query": "' + b"x" * (2 * 2**20) + b'"}'
    announced = raw(server, post(b"", length=len(large)))
    assert (announced[0], announced[1]["resource_limit"]["limit"]) == (413, 2**20)
    silent = server.ask(
        "POST",
        "/graphs/harbor/query",
        "act-ines",
        content=(b"x" * 2**19 for _ in range(5)),
        headers={"Content-Type": "application/json"},
    )
    assert "content-length" not in silent.request.headers
    assert silent.status_code == 413


@pytest.mark.parametrize("length", ["-1", "1e3", "7, 8", "abc", "9" * 400], ids=str)
def test_a_length_that_is_none_is_refused(server: Running, length: str) -> None:
    request = post(QUERY).replace(
        f"Content-Length: {len(QUERY)}".encode(), f"Content-Length: {length}".encode()
    )
    assert raw(server, request)[0] in {400, 413}


def test_two_lengths_that_differ_are_refused(server: Running) -> None:
    assert raw(server, post(QUERY, "Content-Length: 5"))[0] == 400


def test_a_length_and_chunks_at_once_smuggle_nothing(server: Running, harbor: Graph) -> None:
    hidden = post(
        json.dumps({"query": ADD, "params": {"imo": "S9", "name": "x"}}).encode(),
        path="/graphs/harbor/mutate",
    )
    request = post(b"0\r\n\r\n" + hidden, "Transfer-Encoding: chunked", "Content-Length: 3")
    assert raw(server, request)[0] in {400, 404}
    assert harbor.commits.list(actor="act-ines") == []


def test_a_request_that_ends_too_early_does_nothing(server: Running, harbor: Graph) -> None:
    whole = post(
        json.dumps({"query": ADD, "params": {"imo": "S9", "name": "x"}}).encode(),
        path="/graphs/harbor/mutate",
    )
    host, _, port = server.url.removeprefix("http://").partition(":")
    before = harbor.commits.head().id
    for cut in range(1, len(whole), 37):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(whole[:cut])
    # The server is alive, and what it was told in part it did not do.
    assert server.ask("GET", "/healthz").status_code == 200
    assert harbor.commits.head().id == before


def test_a_packed_body_is_not_unpacked(server: Running) -> None:
    bomb = gzip.compress(b"x" * 10_000_000)
    status, body = raw(server, post(bomb, "Content-Encoding: gzip"))
    assert (status, body["kind"]) == (415, "unsupported_media_type")
    records = post(
        bomb, "Content-Encoding: gzip", "Content-Type: application/x-ndjson", path="/graphs/harbor/load"
    )
    assert raw(server, records)[0] == 415


def test_another_content_type_is_refused(server: Running) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""):
        status, body = raw(server, post(QUERY, f"Content-Type: {kind}"))
        assert (status, body["kind"]) == (415, "unsupported_media_type")
    assert raw(server, post(QUERY, "Content-Type: application/json; charset=utf-8"))[0] == 200


def test_bytes_that_are_no_request_get_json(server: Running) -> None:
    for request in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n",
        b"GET\r\n\r\n",
    ):
        status, body = raw(server, request)
        assert (status, body["kind"]) == (400, "bad_request")


def test_headers_without_end_are_refused(server: Running) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X-Long: " + b"a" * 100_000
    assert raw(server, request)[0] == 400


def test_a_client_that_stops_sending_is_not_waited_for(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "REQUEST_PAUSE_S_MAX", 0.01)
    status, body = raw(server, post(QUERY[:10], length=len(QUERY)))
    assert (status, body["kind"]) == (504, "deadline_exceeded")


def test_a_client_that_sends_a_byte_now_and_then_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REQUEST_PAUSE_S_MAX", 0.1)
    monkeypatch.setattr(requests, "REQUEST_BYTES_PER_S_MIN", 2**20)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def read() -> None:
        async for _ in requests.pieces(receive, None):
            pass

    with pytest.raises(DeadlineExceeded):
        asyncio.run(read())


def test_names_with_dots_and_look_alikes_are_not_other_names(server: Running) -> None:
    for graph in ("harbor%2F..", "..", "h%D0%B0rbor", "harbor%00", "HARBOR", "harbor%20", "graphs"):
        answer = server.ask("GET", f"/graphs/{graph}/branches", "act-ines")
        assert answer.status_code in {400, 404}, graph
        assert answer.json()["code"] in {"bad_request", "not_found"}
    for branch in ("..", "../main", "m\u0430in", "main\x00", "a//b", "/", ".hidden/..", "x" * 5_000):
        answer = server.post(
            "/query", {"query": BY_IMO, "params": {"imo": "S1"}, "branch": branch}, "act-ines"
        )
        assert answer.status_code in {400, 404}, branch


def test_a_token_in_the_address_is_refused_and_told_to_nobody(server: Running, logged: list[str]) -> None:
    answer = server.ask("GET", "/graphs/harbor/branches?access_token=t1-secret")
    assert answer.status_code == 401
    told = server.ask("GET", "/graphs/harbor/branches?access_token=t1-secret", "act-ines")
    assert told.status_code == 400
    assert "t1-secret" not in answer.text + told.text + "".join(logged)


def test_a_header_that_decides_may_come_once(server: Running) -> None:
    for header in ("Authorization: Bearer t1-secret", "Host: localhost", "Content-Type: application/json"):
        assert raw(server, post(QUERY, header, header))[0] == 400
