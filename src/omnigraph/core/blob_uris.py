"""Addresses of external blobs: one spelling each, compared by their components. Pure."""

import os
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes

from omnigraph.core.errors import BadRequest
from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE: Final = "file"
WEB_PORTS: Final = {"http": "80", "https": "443"}
SCHEMES: Final = (FILE, "s3", "gs", "az", *WEB_PORTS)
"""What a source can be read from."""

_FORM: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/?#]*))?"
    r"(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?P<fragment>#.*)?"
)
_NEVER: Final = re.compile(r"[\x00-\x20\x7f\\]")
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPE: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_SEGMENT_SAFE: Final = "!$&'()*+,;=:@-._~"
_SHOWN_CHARS_MAX: Final = 200


class NotAnAddress(ValueError):  # noqa: N818  control flow: each caller says it in its own error
    """The text names no single object, or more than one reader could understand it in more than one way."""


@dataclass(frozen=True, slots=True)
class BlobUri:
    """One object: two spellings of it are equal."""

    scheme: str
    authority: str
    segments: tuple[str, ...]
    """The path, decoded."""
    query: str | None = None

    def __str__(self) -> str:
        path = "/".join(quote(segment, safe=_SEGMENT_SAFE) for segment in self.segments)
        query = "" if self.query is None else f"?{self.query}"
        return f"{self.scheme}://{self.authority}/{path}{query}"

    def lies_in(self, base: "BlobUri") -> bool:
        """Whether this is the base or below it; `a/` does not cover `ab/`."""
        return (self.scheme, self.authority) == (base.scheme, base.authority) and (
            self.segments[: len(base.segments)] == base.segments
        )


def blob_uri(text: str) -> BlobUri:
    """The object that an address names. Raises NotAnAddress.

    Escapes are decoded and `.` and `..` resolved before anything is compared. What would read differently
    after another decoding is refused: an escaped slash, an escaped escape.
    """
    form = None if _NEVER.search(text) else _FORM.fullmatch(text)
    if form is None:
        raise NotAnAddress("it is not a URI")
    if form["fragment"] is not None:
        raise NotAnAddress("it has a fragment")
    scheme = form["scheme"].lower()
    if form["query"] is not None and scheme not in WEB_PORTS:
        raise NotAnAddress("it has a query")
    segments = _segments(form["path"], collapse=scheme == FILE)
    if not segments:
        raise NotAnAddress("it names no object")
    return BlobUri(scheme, _authority(scheme, form["authority"]), segments, form["query"])


def blob_base(text: "str | os.PathLike[str]") -> BlobUri:
    """A place below which blobs may be read: an address, or a directory of this machine.

    Raises BadRequest.
    """
    plain = os.fspath(text)
    if "://" not in plain:
        if not plain.strip():
            raise BadRequest("a blob source cannot be empty")
        plain = f"{FILE}://{quote(os.path.realpath(plain))}"
    try:
        return _base(plain)
    except NotAnAddress as refused:
        raise BadRequest(f"'{shown_address(plain)}' cannot be a blob source: {refused}") from None


def _base(text: str) -> BlobUri:
    form = None if _NEVER.search(text) else _FORM.fullmatch(text)
    if form is None or form["fragment"] is not None or form["query"] is not None:
        raise NotAnAddress("it is not a plain address")
    scheme = form["scheme"].lower()
    if scheme not in SCHEMES:
        raise NotAnAddress(f"'{scheme}' is not one of {', '.join(SCHEMES)}")
    if any(part in {".", ".."} for part in _decoded(form["path"])):
        raise NotAnAddress("it has '.' or '..' in it")
    segments = _segments(form["path"].rstrip("/"), collapse=scheme == FILE)
    return BlobUri(scheme, _authority(scheme, form["authority"]), segments)


def blob_bases(texts: "Iterable[str | os.PathLike[str]]") -> tuple[str, ...]:
    """The places in their one spelling, each once. Raises BadRequest."""
    return tuple(dict.fromkeys(str(blob_base(text)) for text in texts))


def shown_address(text: str) -> str:
    """An address for a message: without what may be a secret, one line, cut when it is long."""
    plain = re.sub(r"//[^/?#]*@", "//", text)
    plain = re.sub(r"[?#].*", "", plain, flags=re.DOTALL)
    plain = re.sub(r"[\x00-\x20\x7f]+", " ", plain)
    return plain if len(plain) <= _SHOWN_CHARS_MAX else plain[: _SHOWN_CHARS_MAX - 1] + "…"


def _authority(scheme: str, authority: str | None) -> str:
    if scheme == FILE:
        if authority not in {None, "", "localhost"}:
            raise NotAnAddress("it names another machine")
        return ""
    if not authority:
        raise NotAnAddress("it names no host or bucket")
    if "@" in authority:
        raise NotAnAddress("it has credentials in it")
    if "%" in authority:
        raise NotAnAddress("its host is escaped")
    if scheme not in WEB_PORTS:
        return authority
    host, _, port = authority.lower().rpartition(":")
    return host if host and port in {"", WEB_PORTS[scheme]} else authority.lower()


def _segments(path: str, *, collapse: bool) -> tuple[str, ...]:
    """The parts of a path, decoded, without `.` and `..`; empty ones only where they mean nothing."""
    kept: list[str] = []
    for part in _decoded(path):
        if part == ".":
            continue
        if part == "..":
            if not kept:
                raise NotAnAddress("it leads above its root")
            kept.pop()
        elif part:
            kept.append(part)
        elif not collapse:
            raise NotAnAddress("a part of its path is empty")
    return tuple(kept)


def _decoded(path: str) -> list[str]:
    if not path:
        return []
    if not path.startswith("/"):
        raise NotAnAddress("it is not absolute")
    return [_part(part) for part in path[1:].split("/")]


def _part(part: str) -> str:
    if _BROKEN_ESCAPE.search(part):
        raise NotAnAddress("it has a broken escape")
    try:
        decoded = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise NotAnAddress("its escapes are not UTF-8") from None
    if "/" in decoded or _ESCAPE.search(decoded) or re.search(r"[\x00-\x1f\x7f\\]", decoded):
        raise NotAnAddress("it has an ambiguous escape")
    return decoded
