"""What a request says: its body, the parameters of its address, its headers. Everything is looked at before
it is believed.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec
import orjson

from omnigraph.core.bounds import bounds_of
from omnigraph.core.errors import BadRequest, DeadlineExceeded, ResourceLimit, UnsupportedMediaType
from omnigraph.core.limits import (
    MIB,
    PARSED_AT_ONCE_BYTES_MAX,
    REQUEST_BYTES_MAX,
    REQUEST_BYTES_PER_S_MIN,
    REQUEST_NESTING_MAX,
    REQUEST_PAUSE_S_MAX,
    SERVER_READ_ROWS_MAX,
    SERVER_READ_S_MAX,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from starlette.types import Receive, Scope

    from omnigraph.core.bounds import Bounds
    from omnigraph.core.cancel import Cancellation

Model = TypeVar("Model", bound=msgspec.Struct)

SPOOLED_IN_MEMORY: Final = 4 * MIB
"""Bytes of a load that are kept in memory before a file is begun."""
REQUEST_ID_MAX: Final = 128
_COUNT_DIGITS_MAX: Final = 18
_VISIBLE: Final = re.compile(rf"[\x21-\x7e]{{1,{REQUEST_ID_MAX}}}")
_BAD_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_NO_MEMBER: Final = re.compile(r"Invalid enum value .*")
"""Such a text has the value in it."""
_PLACE: Final = re.compile(r" - at `\$(.*?)`$")


class Disconnected(Exception):  # noqa: N818  nobody is left to read an error
    """The client went away before its request was complete."""


def headers_in(scope: Scope) -> dict[str, str]:
    """The headers by lower-case name. Raises BadRequest for one that decides something and comes twice."""
    found: dict[str, str] = {}
    for raw_name, raw_value in cast("list[tuple[bytes, bytes]]", scope["headers"]):
        name = raw_name.decode("latin-1").lower()
        if name in found and name in {
            "authorization",
            "host",
            "content-type",
            "idempotency-key",
            "content-length",
        }:
            raise BadRequest(f"the header {name} is given twice")
        found[name] = raw_value.decode("latin-1")
    return found


def request_id_in(headers: Mapping[str, str]) -> str | None:
    """The id a client gave its request, when it can be echoed and logged."""
    given = headers.get("x-request-id", "")
    return given if _VISIBLE.fullmatch(given) else None


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What one read may take at most, whatever it asks for."""

    seconds: float = SERVER_READ_S_MAX
    rows: int = SERVER_READ_ROWS_MAX
    memory_bytes: int | None = None
    """None: what the settings allow a query."""


def bounds_in(
    headers: Mapping[str, str], cancel: Cancellation, *, seconds_max: float | None, memory_max: int
) -> Bounds:
    """What the work may take: what the request asks for, within what the server allows. Raises BadRequest."""
    asked_ms, memory = (_count_in(headers, name) for name in ("x-timeout-ms", "x-memory-bytes"))
    asked_s = None if asked_ms is None else asked_ms / 1_000
    allowed = [each for each in (asked_s, seconds_max) if each is not None]
    held = None if memory is None else min(memory, memory_max)
    return bounds_of({"timeout_s": min(allowed, default=None), "memory_bytes": held, "cancel": cancel})


def rows_max_in(headers: Mapping[str, str], limits: ReadLimits) -> int:
    """How many rows a read may give. Raises BadRequest."""
    return min(_count_in(headers, "x-max-rows") or limits.rows, limits.rows)


def _count_in(headers: Mapping[str, str], name: str) -> int | None:
    given = headers.get(name)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= _COUNT_DIGITS_MAX and int(given)):
        raise BadRequest(f"the header {name} is a whole number above 0")
    return int(given)


def check_encoding(scope: Scope) -> None:
    """Refuse an address that is not percent-encoded UTF-8. Raises BadRequest."""
    for part in (scope.get("raw_path") or b"", scope.get("query_string") or b""):
        if _BAD_PERCENT.search(part):
            raise BadRequest("the address holds a '%' that no two hexadecimal digits follow")
    if "\N{REPLACEMENT CHARACTER}" in scope["path"] or "\x00" in scope["path"]:
        raise BadRequest("the address is not UTF-8 text")


def parameters_in(scope: Scope, model: type[Model]) -> Model:
    """The parameters of the address. Raises BadRequest for one that is unknown, repeated or not UTF-8."""
    try:
        text = cast("bytes", scope.get("query_string") or b"").decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), errors="strict")
    except ValueError:
        raise BadRequest("the parameters of the address cannot be read") from None
    many = {field.encode_name for field in msgspec.structs.fields(model) if "tuple" in str(field.type)}
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in many:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise BadRequest(f"the parameter '{name}' is given twice")
        else:
            values[name] = value
    return converted(values, model, "parameter", strict=False)


def converted(values: Any, model: type[Model], what: str, *, strict: bool = True) -> Model:
    """The values as the model declares them. Raises BadRequest that names the member and never its value."""
    try:
        return msgspec.convert(values, model, strict=strict)
    except msgspec.ValidationError as error:
        _refuse(error, what)


def _refuse(error: msgspec.ValidationError, what: str) -> NoReturn:
    text = str(error)
    place = _PLACE.search(text)
    said = _PLACE.sub("", text).replace("Object", "the request").replace("field", what)
    said = _NO_MEMBER.sub("the value is none of those that GET /openapi.json names", said)
    where = f" ({place[1].strip('.')})" if place and place[1] else ""
    raise BadRequest(f"{said[:1].lower()}{said[1:]}{where}") from None


async def json_body(
    headers: Mapping[str, str], receive: Receive, model: type[Model], *, empty: bool
) -> Model:
    """The JSON body of a request. `empty`: no body means an empty object.

    Raises BadRequest, UnsupportedMediaType, ResourceLimit, DeadlineExceeded, and Disconnected.
    """
    check_length(headers, REQUEST_BYTES_MAX)
    whole = b"".join([piece async for piece in pieces(receive, REQUEST_BYTES_MAX)])
    if not whole and empty:
        return converted({}, model, "member")
    check_media_type(headers, "application/json")
    if len(whole) > PARSED_AT_ONCE_BYTES_MAX:
        return await asyncio.to_thread(_document, whole, model)
    return _document(whole, model)


def _document(text: bytes, model: type[Model]) -> Model:
    return converted(parsed(text), model, "member")


def parsed(text: bytes) -> Any:
    """One JSON document, without doubled members, numbers that are none, or a depth nobody needs."""
    try:
        # The strict parser refuses what Python's lets pass: half a surrogate pair, NaN, bytes behind the end.
        # It comes first also because the count below takes long on texts with open quotes.
        orjson.loads(text)
        if text.count(b"{") + text.count(b"[") > REQUEST_NESTING_MAX:
            _check_nesting(text)
        return _DECODER.decode(text.decode())
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise BadRequest("the body is not JSON", hint="send one JSON object in UTF-8") from None


def _check_nesting(text: bytes) -> None:
    depth = 0
    for bracket in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text):
        found = bracket[0]
        depth += 1 if found in b"[{" else -1 if found in b"]}" else 0
        if depth > REQUEST_NESTING_MAX:
            raise _too_deep()


def _too_deep() -> BadRequest:
    return BadRequest(f"the body is nested deeper than {REQUEST_NESTING_MAX} levels")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise BadRequest(f"the member '{twice}' is given twice")
    return members


def _finite(text: str) -> float:
    value = float(text)
    if value in {float("inf"), float("-inf")}:
        raise BadRequest("a number of the body is too large")
    return value


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_members, parse_float=_finite)


def check_media_type(headers: Mapping[str, str], wanted: str) -> None:
    """Refuse a body of another kind, and a packed one. Raises UnsupportedMediaType."""
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != wanted:
        raise UnsupportedMediaType(f"the body has to be {wanted}", hint=f"send `Content-Type: {wanted}`")


def check_length(headers: Mapping[str, str], limit: int | None) -> None:
    """Refuse a packed body, and one that announces more than the limit. Nothing has been read yet."""
    packed = headers.get("content-encoding", "identity").strip().lower()
    if packed not in {"", "identity"}:
        raise UnsupportedMediaType("a packed body is not read", hint="send it without Content-Encoding")
    announced = headers.get("content-length", "")
    if limit is not None and announced.isascii() and announced.isdigit() and int(announced[:20]) > limit:
        raise ResourceLimit(resource="request_bytes", limit=limit, actual=int(announced[:20]))


async def pieces(receive: Receive, limit: int | None) -> AsyncGenerator[bytes, None]:
    """The body as it comes. Raises ResourceLimit, DeadlineExceeded for a slow client, Disconnected."""
    seen = 0
    clock = asyncio.get_running_loop().time
    begun = clock()
    while True:
        try:
            latest = min(clock(), begun + seen / REQUEST_BYTES_PER_S_MIN) + REQUEST_PAUSE_S_MAX
            async with asyncio.timeout_at(latest):
                message = await receive()
        except TimeoutError:
            raise DeadlineExceeded(
                "the request did not arrive in time", writing=False, hint="nothing was done; send it again"
            ) from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        piece = cast("bytes", message.get("body", b""))
        seen += len(piece)
        if limit is not None and seen > limit:
            raise ResourceLimit(resource="request_bytes", limit=limit, actual=seen)
        if piece:
            yield piece
        if not message.get("more_body", False):
            return


async def spooled_body(headers: Mapping[str, str], receive: Receive) -> IO[bytes]:
    """A body of any size as a file that vanishes with its handle."""
    check_length(headers, None)
    spool = cast("IO[bytes]", tempfile.SpooledTemporaryFile(max_size=SPOOLED_IN_MEMORY))  # noqa: SIM115  the caller closes it
    try:
        async for piece in pieces(receive, None):
            if spool.tell() + len(piece) > SPOOLED_IN_MEMORY:
                await asyncio.to_thread(spool.write, piece)
            else:
                spool.write(piece)
    except BaseException:
        spool.close()
        raise
    spool.seek(0)
    return spool
