"""A proxy before the S3 server of the suite that drops, delays, repeats or truncates one chosen request."""

import threading
from enum import StrEnum
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, Self
from urllib.parse import urlsplit

ANSWER_S_MAX = 60
HELD_S_MAX = 1.0
"""How long a delayed request waits for another one to overtake it."""


class Fault(StrEnum):
    """What happens to a request."""

    LOST = "it never arrives"
    UNANSWERED = "it is done, and the answer never arrives"
    TRUNCATED = "it is done, and half of the answer arrives"
    REPEATED = "it is done twice, and the second answer arrives"
    DELAYED = "it is done after others that were sent later"
    BUSY = "it is refused with a request to come later"


class BadNetwork:
    """The proxy. Requests are counted from `arm` on; the one of that number meets the fault. A context manager."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self.upstream = (parts.hostname or "", parts.port or 80)
        self._lock = threading.Lock()
        self._counted = 0
        self._number: int | None = None
        self._fault: Fault | None = None
        self._overtaken = threading.Event()

        class Handler(_Handler):
            network = self

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def arm(self, number: int | None, fault: Fault | None) -> None:
        with self._lock:
            self._counted, self._number, self._fault = 0, number, fault
            self._overtaken.clear()

    def disarm(self) -> tuple[int, bool]:
        """How many requests there were, and whether one of them met the fault."""
        with self._lock:
            met = self._number is not None and self._counted >= self._number
            self._number = self._fault = None
            return self._counted, met

    def meets(self) -> Fault | None:
        """The fault of the request that has come."""
        with self._lock:
            self._counted += 1
            return self._fault if self._counted == self._number else None

    def passed(self) -> None:
        """A request was answered: one that is held back has been overtaken."""
        self._overtaken.set()

    def wait_until_overtaken(self) -> None:
        self._overtaken.clear()
        self._overtaken.wait(HELD_S_MAX)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    network: ClassVar[BadNetwork]

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.network.meets()
        if fault is Fault.LOST:
            self.close_connection = True
            return
        if fault is Fault.BUSY:
            self._answer(503, {}, b"<Error><Code>SlowDown</Code><Message>later</Message></Error>")
            return
        if fault is Fault.DELAYED:
            self.network.wait_until_overtaken()
        answer = self._forwarded(body)
        if fault is Fault.REPEATED:
            answer = self._forwarded(body)
        self.network.passed()
        if fault is Fault.UNANSWERED:
            self.close_connection = True
            return
        status, headers, content = answer
        self._answer(status, headers, content, cut=fault is Fault.TRUNCATED)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def _forwarded(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection(*self.network.upstream, timeout=ANSWER_S_MAX)
        try:
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            response: HTTPResponse = connection.getresponse()
            with response:
                return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        of_one_hop = {"connection", "transfer-encoding", "keep-alive"}
        kept = {name: value for name, value in headers.items() if name.lower() not in of_one_hop}
        if self.command != "HEAD" or "Content-Length" not in kept:
            kept["Content-Length"] = str(len(content))
        for name, value in kept.items():
            self.send_header(name, value)
        if cut and not content:
            self.close_connection = True  # in the middle of the head: there is nothing else to cut
            return
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        self.close_connection = self.close_connection or cut

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name of the method it replaces
        """Nothing: a test says what happened."""
