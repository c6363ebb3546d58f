"""A store whose answer is lost after it did what it was asked to: the commit is not repeated, nor taken for lost."""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from omnigraph.core.events import Event, StorageCall, listen
from omnigraph.storage.tables import TableStorage
from stores import PERSON, PLACE, STAMP, Store, content, filled, rows, s3_store

pytestmark = [pytest.mark.s3, pytest.mark.crash]


class Relay(BaseHTTPRequestHandler):
    """Hands every request to the real server; forgets the answer to the PUT it was told to watch for."""

    protocol_version = "HTTP/1.1"
    upstream: ClassVar[tuple[str, int]]
    swallow: ClassVar[list[str]] = []
    swallowed: ClassVar[list[str]] = []
    then_dark: ClassVar[bool] = False
    dark: ClassVar[bool] = False

    def relay(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if Relay.dark:
            self.close_connection = True
            return
        onward = http.client.HTTPConnection(*self.upstream, timeout=30)
        try:
            onward.request(self.command, self.path, body, dict(self.headers))
            answer = onward.getresponse()
            payload = answer.read()
        finally:
            onward.close()
        if self.command == "PUT" and self.swallow and self.swallow[0] in self.path:
            self.swallowed.append(f"{self.swallow.pop(0)} {answer.status}")
            Relay.dark = Relay.then_dark
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"content-length", "connection", "transfer-encoding", "date", "server"}:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(payload))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = relay

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def relayed(store: Store) -> Iterator[Store]:
    address = urlsplit(store.storage_options["aws_endpoint"])
    Relay.upstream = (address.hostname or "", address.port or 0)
    Relay.swallow, Relay.swallowed = [], []
    Relay.then_dark = Relay.dark = False
    server = ThreadingHTTPServer(("127.0.0.1", 0), Relay)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        port = server.server_address[1]
        relay = {
            "aws_endpoint": f"http://127.0.0.1:{port}",
            "client_max_retries": "1",
            "client_retry_timeout": "10",
        }
        yield Store(store.uri, {**store.storage_options, **relay})
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write(tables: TableStorage, kind: str) -> Any:
    base = tables.open_head(PERSON, PLACE, None)
    if kind == "append":
        return base, tables.stage_append(base, rows(["x"], 1), STAMP)
    if kind == "merge":
        return base, tables.stage_merge_insert(base, rows(["a", "x"], 1), STAMP)
    return base, tables.stage_overwrite(base, rows(["x"], 1), STAMP)


@pytest.mark.parametrize("lost", [1, 50])
@pytest.mark.parametrize("kind", ["append", "merge", "overwrite"])
def test_a_commit_whose_answer_was_lost_counts_once(kind: str, lost: int) -> None:
    """Once, and until the client gives up: then only the version itself can tell that the commit landed."""
    direct = s3_store()
    filled(direct.tables(), ["a", "b"])
    with relayed(direct) as store:
        tables = store.tables()
        base, staged = write(tables, kind)
        Relay.swallow.extend([".manifest"] * lost)
        after = tables.commit_staged(base, staged)
        assert after.version == base.version + 1
        assert direct.tables().head_version(PLACE, None) == after.version
        assert Relay.swallowed[0] == ".manifest 200", "the store did what it was asked to"
        assert len(Relay.swallowed) == 1 if lost == 1 else len(Relay.swallowed) > 1
    fresh = direct.tables()
    landed = fresh.transaction_of(PLACE, None, base.version + 1)
    assert landed is not None
    assert landed.uuid == staged.transaction_uuid
    expected = {"append": {"a": 0, "b": 0, "x": 1}, "merge": {"a": 1, "b": 0, "x": 1}, "overwrite": {"x": 1}}
    assert content(fresh, fresh.open_version(PERSON, PLACE, None, base.version + 1)) == expected[kind]


def test_a_commit_before_the_store_went_dark_is_recognised() -> None:
    """The answer is lost and the store gone until the client gives up; only the version can tell what happened."""
    direct = s3_store()
    filled(direct.tables(), ["a", "b"])
    asked: list[Event] = []

    def back_when_asked_again(event: Event) -> None:
        if Relay.dark and isinstance(event, StorageCall) and event.kind == "probe":
            asked.append(event)
            Relay.dark = False

    with relayed(direct) as store, listen(back_when_asked_again):
        tables = store.tables()
        base, staged = write(tables, "append")
        Relay.then_dark = True
        Relay.swallow.append(".manifest")
        after = tables.commit_staged(base, staged)
    assert len(asked) == 1
    assert after.version == base.version + 1
    fresh = direct.tables()
    assert content(fresh, fresh.open_head(PERSON, PLACE, None)) == {"a": 0, "b": 0, "x": 1}


def test_a_text_whose_answer_was_lost_is_there() -> None:
    direct = s3_store()
    with relayed(direct) as store:
        Relay.swallow.append("note")
        store.adapter().write_text("note", "text")
        assert Relay.swallowed == ["note 200"]
    assert direct.adapter().read_text("note") == "text"
