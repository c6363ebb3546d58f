"""Who a caller is. Only digests of tokens are kept."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from omnigraph.core.errors import BadRequest, IoFailure, Unauthorized
from omnigraph.core.ids import refuse_reserved_actor

if TYPE_CHECKING:
    from collections.abc import Mapping

ONE_TOKEN: Final = "OMNIGRAPH_SERVER_BEARER_TOKEN"  # noqa: S105  the name of a variable
TOKEN_FILE: Final = "OMNIGRAPH_SERVER_BEARER_TOKENS_FILE"  # noqa: S105  as above
TOKEN_JSON: Final = "OMNIGRAPH_SERVER_BEARER_TOKENS_JSON"  # noqa: S105  as above
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The digests of all tokens and the actor behind each."""

    actors: Mapping[bytes, str]
    source: str
    """What the tokens were read from, for the log."""

    def __bool__(self) -> bool:
        return bool(self.actors)

    def actor(self, authorization: str | None) -> str:
        """The actor behind the header of a request. Raises Unauthorized.

        Every digest is compared, so that the time it takes tells nothing.
        """
        if authorization is None:
            raise Unauthorized("missing bearer token", hint="send `Authorization: Bearer TOKEN`")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token or " " in token:
            raise Unauthorized("malformed authorization", hint="send `Authorization: Bearer TOKEN`")
        presented = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found: str | None = None
        for digest, actor in self.actors.items():
            if hmac.compare_digest(digest, presented):
                found = actor
        if found is None:
            raise Unauthorized("invalid bearer token", hint="log in with a token of this server")
        return found


def read_tokens(environ: Mapping[str, str]) -> Tokens:
    """The tokens the environment names: the single one, and those of the file or of the JSON text.

    Raises BadRequest for a blank or repeated actor or token, and IoFailure for a file that cannot be read.
    """
    pairs: list[tuple[str, str]] = []
    sources: list[str] = []
    if single := environ.get(ONE_TOKEN, "").strip():
        pairs.append(("default", single))
        sources.append(ONE_TOKEN)
    if file := environ.get(TOKEN_FILE, "").strip():
        pairs += _pairs(_file_text(file), f"the file of {TOKEN_FILE}")
        sources.append(TOKEN_FILE)
    elif text := environ.get(TOKEN_JSON, "").strip():
        pairs += _pairs(text, TOKEN_JSON)
        sources.append(TOKEN_JSON)
    return Tokens(_digests(pairs), " and ".join(sources) or "none")


def _file_text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise IoFailure(f"the token file '{file}' cannot be read") from error


def _pairs(text: str, source: str) -> list[tuple[str, str]]:
    try:
        pairs: Any = json.loads(text, object_pairs_hook=list)
    except ValueError:
        pairs = None  # the text is secret, and so is a message about it
    if not isinstance(pairs, list) or not all(
        isinstance(each, tuple) and all(isinstance(part, str) for part in cast("tuple[object, ...]", each))
        for each in cast("list[object]", pairs)
    ):
        raise BadRequest(
            f"{source} is not a JSON object of actors and tokens", hint='write {"actor": "token"}'
        )
    return cast("list[tuple[str, str]]", pairs)


def _digests(pairs: list[tuple[str, str]]) -> dict[bytes, str]:
    digests: dict[bytes, str] = {}
    for given, secret in pairs:
        actor, token = given.strip(), secret.strip()
        if not actor or not token:
            raise BadRequest("an actor or a token is blank", hint="give every actor a name and a token")
        refuse_reserved_actor(actor)
        known = _DIGEST.fullmatch(token)
        digest = bytes.fromhex(known[1]) if known else hashlib.sha256(token.encode()).digest()
        if actor in digests.values():
            raise BadRequest(f"the actor '{actor}' has two tokens", hint="keep one of them")
        if digest in digests:
            raise BadRequest(f"'{actor}' and '{digests[digest]}' have the same token", hint="make a new one")
        digests[digest] = actor
    return digests
