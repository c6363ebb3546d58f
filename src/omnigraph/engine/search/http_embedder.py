"""An embedder over HTTP: the interface that OpenAI, OpenRouter and most servers of models share."""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import orjson

from omnigraph.core.errors import EmbedderError, InternalError
from omnigraph.core.errors.kinds import Retry
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import EMBED_ANSWER_BYTES_MAX, EMBED_PAUSE_S_MAX
from omnigraph.engine.search.embedding import KEY_VARIABLE, MOCK_PROVIDERS, PROVIDER_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnigraph.core.settings import Settings

READ_BYTES: Final = 65_536
SAID_CHARS_MAX: Final = 200
"""How much of what a provider says about a refusal is repeated."""
TOO_MANY_REQUESTS: Final = 429


@dataclass(frozen=True, slots=True)
class _Provider:
    base_url: str
    model: str
    key_variable: str


PROVIDERS: Final = {
    PROVIDER_DEFAULT: _Provider(
        "https://openrouter.ai/api/v1", "openai/text-embedding-3-large", "OPENROUTER_API_KEY"
    ),
    "openai": _Provider("https://api.openai.com/v1", "text-embedding-3-large", "OPENAI_API_KEY"),
}


def http_embedder(settings: Settings, environ: Mapping[str, str]) -> HttpEmbedder:
    """The embedder of a configured provider.

    The key of a vendor goes to the vendor's own address only; another address gets the key that was set for
    it, or none. Raises EmbedderError.
    """
    name = settings.embed_provider or PROVIDER_DEFAULT
    provider = PROVIDERS.get(name)
    if provider is None:
        names = ", ".join((*PROVIDERS, *MOCK_PROVIDERS))
        raise _misconfigured(
            name,
            f"there is no embedding provider '{name}'",
            f"OMNIGRAPH_EMBED_PROVIDER is one of {names}; OMNIGRAPH_EMBED_BASE_URL names any other server",
        )
    base_url = (settings.embed_base_url or provider.base_url).rstrip("/")
    _check_address(name, base_url)
    key = environ.get(KEY_VARIABLE, "").strip()
    if base_url == provider.base_url:
        key = key or environ.get(provider.key_variable, "").strip()
        if not key:
            raise _misconfigured(
                name,
                f"the embedding provider '{name}' needs a key",
                f"set {provider.key_variable} or {KEY_VARIABLE}, or name another OMNIGRAPH_EMBED_BASE_URL",
            )
    if not all("!" <= sign <= "~" for sign in key):
        raise _misconfigured(
            name,
            f"the key for the embedding provider '{name}' has characters that no key has",
            "set it again",
        )
    return HttpEmbedder(
        provider=name,
        base_url=base_url,
        model=settings.embed_model or provider.model,
        api_key=key or None,
        timeout_s=settings.embed_timeout_ms / 1000,
        deadline_s=settings.embed_deadline_ms / 1000 or None,
        attempts_max=settings.embed_retry_attempts,
        backoff_s=settings.embed_retry_backoff_ms / 1000,
    )


def _check_address(name: str, base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, usable = urlsplit(""), False
    secret = parts.username is not None or parts.password is not None
    if usable and not (secret or parts.query or parts.fragment):
        return
    # The address is not repeated: it may hold a password.
    raise _misconfigured(
        name,
        f"the address of the embedding provider '{name}' is not an http or https address without"
        " credentials, query and fragment",
        f"OMNIGRAPH_EMBED_BASE_URL is like https://models.example/v1; a key goes into {KEY_VARIABLE}",
    )


def _misconfigured(name: str, message: str, hint: str) -> EmbedderError:
    return EmbedderError(message, hint=hint, retry=Retry.NEVER, details={"provider": name})


class _Passing(Exception):  # noqa: N818  not a failure yet: perhaps the next attempt succeeds
    """An attempt failed in a way that may pass; `wait_s` is how long the provider asks us to wait."""

    def __init__(self, error: EmbedderError, wait_s: float = 0.0) -> None:
        super().__init__()
        self.error = error
        self.wait_s = wait_s


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """A redirection is an answer like any other: following one would carry the key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class HttpEmbedder:
    """Asks a server for embeddings: `POST <base_url>/embeddings`.

    Thread-safety: has no state.
    """

    provider: str
    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0
    """How long the server may be silent within one attempt, and how long an attempt may take."""
    deadline_s: float | None = 60.0
    """How long all attempts and the pauses between them may take."""
    attempts_max: int = 4
    backoff_s: float = 0.2
    """The first pause; each further one is twice as long."""

    def embed(self, texts: Sequence[str], dimension: int) -> list[Any]:
        """One vector for each text, as the provider gives it. Raises EmbedderError."""
        body = orjson.dumps({"model": self.model, "input": list(texts), "dimensions": dimension})
        end = None if self.deadline_s is None else time.monotonic() + self.deadline_s
        pause = self.backoff_s
        for attempt in range(1, self.attempts_max + 1):
            try:
                return self._vectors(self._ask(body, end), len(texts))
            except _Passing as failure:
                length = max(pause, failure.wait_s)
                late = end is not None and time.monotonic() + length >= end
                if attempt == self.attempts_max or late or length > EMBED_PAUSE_S_MAX:
                    raise failure.error from failure.__cause__
            time.sleep(length)
            pause *= 2
        raise InternalError("an embedder was configured without a single attempt")

    # --- one attempt -----------------------------------------------------------------------------------

    def _ask(self, body: bytes, end: float | None) -> bytes:
        now = time.monotonic()
        most = self.timeout_s if end is None else max(min(self.timeout_s, end - now), 0.001)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(  # noqa: S310  the scheme was checked
            f"{self.base_url}/embeddings", data=body, headers=headers, method="POST"
        )
        try:
            with urllib.request.build_opener(_NoRedirection).open(request, timeout=most) as answer:
                return self._content(answer, now + most)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error, now + most) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error, most) from error

    def _content(self, answer: Any, end: float) -> bytes:
        parts: list[bytes] = []
        size = 0
        while part := cast("bytes", answer.read1(READ_BYTES)):
            size += len(part)
            if size > EMBED_ANSWER_BYTES_MAX:
                raise self._failure(
                    f"answered with more than {EMBED_ANSWER_BYTES_MAX} bytes",
                    hint="check OMNIGRAPH_EMBED_BASE_URL",
                    passing=False,
                )
            if time.monotonic() > end:
                raise TimeoutError("the answer takes too long")
            parts.append(part)
        if getattr(answer, "length", None):  # of the announced length so much is missing
            raise http.client.IncompleteRead(b"".join(parts))
        return b"".join(parts)

    def _unreachable(self, error: Exception, waited: float) -> Exception:
        reason: object = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, TimeoutError):
            failure = self._failure(
                f"did not answer within {waited:g} seconds",
                hint="raise OMNIGRAPH_EMBED_TIMEOUT_MS and OMNIGRAPH_EMBED_DEADLINE_MS, or try again later",
            )
            return _Passing(failure)
        certain = isinstance(reason, ssl.SSLCertVerificationError)
        failure = self._failure(
            f"cannot be reached ({type(reason).__name__})",
            hint="check OMNIGRAPH_EMBED_BASE_URL and the network",
            passing=not certain,
        )
        return failure if certain else _Passing(failure)

    def _refusal(self, error: urllib.error.HTTPError, end: float) -> Exception:
        status = error.code
        passing = status == TOO_MANY_REQUESTS or status >= http.HTTPStatus.INTERNAL_SERVER_ERROR
        said = self._said(error, end)
        failure = self._failure(
            f"refused with status {status}{f': {said}' if said else ''}",
            hint=_hint(status),
            status=status,
            passing=passing,
        )
        return _Passing(failure, _seconds(error.headers.get("Retry-After"))) if passing else failure

    def _said(self, error: urllib.error.HTTPError, end: float) -> str:
        """What the provider says about it, in one short line. Nothing about keys: the provider may repeat
        part of one.
        """
        if error.code in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
            return ""
        try:
            said: Any = orjson.loads(self._content(error, end))["error"]
        except (OSError, http.client.HTTPException, EmbedderError, ValueError, LookupError, TypeError):
            return ""
        if isinstance(said, dict):
            said = cast("dict[str, Any]", said).get("message")
        if not isinstance(said, str):
            return ""
        if self.api_key is not None:
            said = said.replace(self.api_key, "***")
        line = " ".join("".join(sign if sign.isprintable() else " " for sign in said).split())
        return line if len(line) <= SAID_CHARS_MAX else line[:SAID_CHARS_MAX] + "..."

    def _vectors(self, content: bytes, count: int) -> list[Any]:
        """The vectors of an answer in the order of the texts."""
        try:
            entries = orjson.loads(content)["data"]
            vectors = {entry.get("index", place): entry["embedding"] for place, entry in enumerate(entries)}
        except (ValueError, LookupError, TypeError, AttributeError):
            entries, vectors = list[Any](), dict[Any, Any]()
        if vectors.keys() != set(range(count)) or len(entries) != count:
            raise self._failure(
                f"gave an answer without one vector for each of {count} texts",
                hint="OMNIGRAPH_EMBED_BASE_URL must name a server with the interface of OpenAI's embeddings",
                passing=False,
            )
        return [vectors[place] for place in range(count)]

    def _failure(
        self, what: str, *, hint: str, status: int | None = None, passing: bool = True
    ) -> EmbedderError:
        details: dict[str, Any] = {"provider": self.provider, "model": self.model}
        if status is not None:
            details["status"] = status
        return EmbedderError(
            f"the embedding provider '{self.provider}' with the model '{self.model}' {what}",
            hint=hint,
            retry=None if passing else Retry.NEVER,
            details=details,
        )


def _hint(status: int) -> str:
    match status:
        case 401 | 403:
            return f"check the key of the provider, or {KEY_VARIABLE}"
        case 404:
            return "check OMNIGRAPH_EMBED_BASE_URL and OMNIGRAPH_EMBED_MODEL"
        case 429:
            return "wait, or raise the quota at the provider"
        case _ if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            return "try again later"
        case _ if status < http.HTTPStatus.BAD_REQUEST:
            return "redirections are not followed; set OMNIGRAPH_EMBED_BASE_URL to where it leads"
        case _:
            return "check that the model takes this text and gives vectors of the length of the property"


def _seconds(text: str | None) -> float:
    """`Retry-After` in seconds; its other form, a date, counts as not given."""
    return float(text) if text is not None and text.strip().isdecimal() else 0.0
