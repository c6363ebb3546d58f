"""From a listening socket to the last answer: uvicorn, with what it would say in plain text said in JSON."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from omnigraph.core.errors import BadRequest, IoFailure, OmnigraphError
from omnigraph.core.ids import new_ulid
from omnigraph.core.limits import DRAIN_S_DEFAULT, KIB
from omnigraph.server.failures import body_of
from omnigraph.server.log import log

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator
    from types import FrameType

    from omnigraph.server.app import Application

HEADERS_BYTES_MAX: Final = 64 * KIB
HEADERS_S_MAX: Final = 10.0
"""Seconds until the headers of a request have to be there, from its first byte or from the connection on."""
_SILENT: Final[dict[str, Any]] = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"none": {"class": "logging.NullHandler"}},
    "loggers": {"uvicorn": {"handlers": ["none"], "propagate": False, "level": "CRITICAL"}},
}
"""The application logs every request itself; tracebacks could name places of the machine."""


class JsonErrors(H11Protocol):
    """The protocol; what is not HTTP gets a typed error, too, and headers have to come in time."""

    _too_late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  as uvicorn has it
        """A connection; its first request has to begin and to be said."""
        # asyncio does so only for sockets that were made with the number of the protocol. Without it the body
        # of an answer waits until the client has acknowledged its head, which takes 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request."""
        super().data_received(data)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        """Limit the time until headers are complete, however slowly their bytes come."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop_waiting()
        elif self._too_late is None:
            self._too_late = self.loop.call_later(HEADERS_S_MAX, self._give_up)

    def _stop_waiting(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None

    def _give_up(self) -> None:
        self._too_late = None
        if not self.transport.is_closing():
            self._refuse("the headers of the request did not arrive in time")

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no request."""
        del msg
        self._refuse("the bytes are not an HTTP request")

    def _refuse(self, why: str) -> None:
        if self.conn.our_state is h11.IDLE or self.conn.our_state is h11.SEND_RESPONSE:
            body = body_of(BadRequest(why), new_ulid(), ())
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            for event in (
                h11.Response(status_code=400, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """Serves one application until it is told to stop; being told so is no failure."""

    def __init__(self, application: Application, *, drain_s: int = DRAIN_S_DEFAULT) -> None:
        self.application: Final = application
        super().__init__(
            uvicorn.Config(
                application,
                http=JsonErrors,
                ws="none",
                lifespan="off",
                log_config=_SILENT,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=drain_s,
                h11_max_incomplete_event_size=HEADERS_BYTES_MAX,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """What a signal does."""
        del sig, frame
        self.stop()

    def reload(self, sig: int, frame: FrameType | None) -> None:
        """What SIGHUP does, beside the event loop. A failure is logged, and what was served goes on."""
        del sig, frame
        threading.Thread(target=self._reload, name="omnigraph-reload").start()

    def _reload(self) -> None:
        try:
            self.application.reload()
        except OmnigraphError as error:
            log().error("not_reloaded", kind=error.kind)

    def stop(self) -> None:
        """Take no more requests, finish those under way, then end."""
        self.application.draining = True
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """SIGINT and SIGTERM stop the server; they are not raised again at the end, which is a success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = (signal.SIGINT, signal.SIGTERM)
        before = {each: signal.signal(each, self.handle_exit) for each in handled}
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self.reload)
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def listening(address: str) -> socket.socket:
    """A socket that listens at `HOST:PORT`; port 0 is any free one. Raises BadRequest, IoFailure."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise BadRequest(f"'{address}' is not HOST:PORT", hint="use 127.0.0.1:8080")
    bare = host.strip("[]")
    try:
        return socket.create_server(
            (bare, int(port)), family=socket.AF_INET6 if ":" in bare else socket.AF_INET
        )
    except OSError as error:
        raise IoFailure(f"cannot listen at '{address}': {error.strerror}") from error
