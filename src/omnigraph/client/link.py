"""The connection to one graph of a server: what is sent, and what may be sent again."""

from __future__ import annotations

import json
import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import httpx2
import orjson

from omnigraph.client.wire import failure_of
from omnigraph.core.bounds import check_bounds, current_bounds
from omnigraph.core.errors import ActorNotSettable, BadRequest, NetworkError, NotRemote, OmnigraphError, Retry

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

ATTEMPTS_MAX: Final = 4
"""How often a request is sent at most, when its error says that the same request may help."""
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 5.0
_AGAIN: Final = frozenset({Retry.SAME_REQUEST, Retry.AFTER_DELAY})
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Link:
    """Requests of one graph, sent again where that is safe."""

    def __init__(self, client: httpx2.Client) -> None:
        self.client: Final = client

    def ask(
        self, method: str, path: str, *, writes: bool, again: bool, moved: bool = False, **named: Any
    ) -> httpx2.Response:
        """The answer. `again`: sending it twice does it once. `moved`: an answer may name another place.

        Raises the error that the server told.
        """
        sent = _as_json(named)
        self.check_open()
        lost: httpx2.RequestError | None = None
        for attempt in range(ATTEMPTS_MAX):
            last = attempt + 1 == ATTEMPTS_MAX or not again
            pause = min(PAUSE_S * 2**attempt, PAUSE_S_MAX)
            if lost is None or not writes:
                check_bounds()
            try:
                answer = self.client.request(method, path, **_bounded(sent))
            except httpx2.RequestError as error:
                if not isinstance(error, _NEVER_SENT):
                    lost = error
                # A server that is silent may still be at work: asking again would make it work twice.
                if last or isinstance(error, (httpx2.ReadTimeout, httpx2.WriteTimeout)):
                    raise _network(lost or error, writing=writes, again=again) from error
            else:
                if answer.is_success or (moved and answer.has_redirect_location):
                    return answer
                failure = failure_of(answer.status_code, answer.content)
                if failure.retry not in _AGAIN or (last and (lost is None or not writes)):
                    raise failure
                if last and lost is not None:
                    # An earlier attempt may have been carried out; what this one met says nothing of that.
                    raise _network(lost, writing=writes, again=again) from failure
                pause = max(pause, _told_pause(answer))
            left = current_bounds().cancel.remaining_s
            time.sleep(pause if left is None else min(pause, left))
        raise AssertionError("the last attempt returns or raises")

    def check_open(self) -> None:
        """Raise `BadRequest` on a closed handle."""
        if self.client.is_closed:
            raise BadRequest("the graph is closed")

    def get(self, path: str, **params: Any) -> bytes:
        """The answer of a read."""
        return self.ask("GET", path, writes=False, again=True, params=given(params)).content

    def look(self, path: str, body: Mapping[str, Any], **headers: str) -> bytes:
        """The answer of a read that says what it wants in a body."""
        named: dict[str, Any] = {"json": given(body), "headers": headers}
        return self.ask("POST", path, writes=False, again=True, **named).content

    def post(self, path: str, body: Mapping[str, Any], key: str | None = None) -> bytes:
        """The answer of a write; without a key it is sent once."""
        named: dict[str, Any] = {"json": given(body), "headers": key_header(key)}
        return self.ask("POST", path, writes=True, again=key is not None, **named).content

    def remove(self, path: str) -> bytes:
        """The answer of a deletion."""
        return self.ask("DELETE", path, writes=True, again=False).content

    @contextmanager
    def stream(self, path: str, body: Mapping[str, Any]) -> Generator[httpx2.Response]:
        """An answer that is read as it comes. Raises NetworkError when it ends before its end."""
        self.check_open()
        try:
            with self.client.stream("POST", path, **_bounded(_as_json({"json": given(body)}))) as answer:
                if not answer.is_success:
                    raise failure_of(answer.status_code, answer.read())
                yield answer
        except httpx2.RequestError as error:
            raise _network(error, writing=False, again=True) from error


class Part:
    """What a graph behind a server is made of: names that are not there say why."""

    def __init__(self, link: Link) -> None:
        self._link: Final = link

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotRemote(
            f"'{name}' is not there over a server", hint="open the graph by its storage for what it needs"
        )


def check_caller(actor: str | None) -> None:
    """Refuse an actor: only the token says who it is."""
    if actor is not None:
        raise ActorNotSettable(
            "a server takes the actor of a write from the token", hint="leave the actor out"
        )


def refuse_local(**named: object) -> None:
    """Refuse what needs the storage of the graph, or this process. Raises NotRemote."""
    for name, value in named.items():
        if value is not None and value is not False and value not in ((), [], {}, ""):
            raise NotRemote(
                f"'{name}' cannot be given over a server",
                hint="open the graph by its storage for what it needs",
            )


def given(body: Mapping[str, Any]) -> dict[str, Any]:
    """The members that have a value."""
    return {name: value for name, value in body.items() if value is not None}


def key_header(key: str | None) -> dict[str, str]:
    """The header of an idempotency key. Raises BadRequest."""
    if key is None:
        return {}
    if not fits_header(key):
        raise BadRequest(
            "an idempotency key that goes to a server is printable ASCII text",
            hint="use a random id per request, and send it again with the same request only",
        )
    return {"Idempotency-Key": key}


def fits_header(text: str) -> bool:
    """Whether a text can be the value of a header as it is."""
    return text.isascii() and text.isprintable() and text == text.strip() and text != ""


def _bounded(named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a request; the server keeps the bounds of the call."""
    bounds = current_bounds()
    headers: dict[str, str] = {}
    if bounds.memory_bytes is not None:
        headers["X-Memory-Bytes"] = str(bounds.memory_bytes)
    if (left := bounds.cancel.remaining_s) is not None:
        headers["X-Timeout-Ms"] = str(max(1, round(left * 1_000)))
    return {**named, "headers": {**named.get("headers", {}), **headers}} if headers else named


def _as_json(named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a request, its object as JSON: dates and times are texts there."""
    if "json" not in named:
        return named
    rest = {name: value for name, value in named.items() if name != "json"}
    headers = {**rest.pop("headers", {}), "Content-Type": "application/json"}
    if not _finite(named["json"]):
        raise BadRequest("a parameter cannot be sent: it is or holds NaN or an infinity")
    return {**rest, "content": _json_text(named["json"]), "headers": headers}


def _json_text(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        if "64-bit" not in str(error):
            raise BadRequest(f"a parameter cannot be sent: {error}") from error
    # Whether an integer is too large for its parameter is for the server to say.
    try:
        return json.dumps(value).encode()
    except TypeError as error:
        raise BadRequest(f"a parameter cannot be sent: {error}") from error


def _finite(value: object) -> bool:
    """Whether JSON has every number of the value; the others would arrive as nulls."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, cast("dict[object, object]", value).values()))
    if isinstance(value, (list, tuple)):
        return all(map(_finite, cast("Sequence[object]", value)))
    return True


def _told_pause(answer: httpx2.Response) -> float:
    said = answer.headers.get("retry-after", "")
    return min(float(said), PAUSE_S_MAX) if said.isdecimal() else 0.0


def _network(error: httpx2.RequestError, *, writing: bool, again: bool) -> OmnigraphError:
    if isinstance(error, _NEVER_SENT):
        return NetworkError(
            f"the server was not reached ({type(error).__name__})", writing=False, hint="check the address"
        )
    hint = "send it again"
    if writing:
        known = "send it again with the same idempotency key"
        hint = known if again else "look whether the write is there before sending it again"
    return NetworkError(
        f"the server did not answer, or the connection was lost ({type(error).__name__})",
        writing=writing,
        hint=hint,
    )
