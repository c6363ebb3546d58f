"""Places in a feed as opaque text: checksummed, and good for one graph, branch and filter."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from omnigraph.core.errors import ChangeCursorRejected
from omnigraph.core.formats import FEED_TOKEN_FORMAT
from omnigraph.core.ids import CommitId, show_branch

if TYPE_CHECKING:
    from omnigraph.branching.history import ChangeOp
    from omnigraph.core.ids import Branch
    from omnigraph.engine.session import GraphSession

_FEED: Final = "feed"


@dataclass(frozen=True, slots=True)
class FeedFilter:
    """Which changes are told; None: all."""

    types: tuple[str, ...] | None = None
    ops: tuple[ChangeOp, ...] | None = None
    kinds: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Behind a complete commit; for a page token also the head the poll ends at, and changes already told."""

    after: CommitId
    cut: CommitId | None = None
    offset: int = 0


def write_token(
    session: GraphSession, branch: Branch, chosen: FeedFilter, place: Place, *, answer: str = _FEED
) -> str:
    """The place as text. `answer` names what it goes on with: the feed of the branch, or something else."""
    value = {
        "format": FEED_TOKEN_FORMAT,
        "after": place.after,
        "cut": place.cut,
        "offset": place.offset,
        "for": _binding(session, branch, chosen, answer),
    }
    body = orjson.dumps(value)
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()[:4] + body).decode()


def read_token(
    session: GraphSession, branch: Branch, chosen: FeedFilter, token: str, *, answer: str = _FEED
) -> Place:
    """The place a text stands for. Raises `ChangeCursorRejected` when it was made for anything else."""
    try:
        raw = base64.urlsafe_b64decode(token.encode("ascii"))
    except (binascii.Error, ValueError) as error:
        raise _rejected("it is damaged") from error
    check, body = raw[:4], raw[4:]
    if hashlib.sha256(body).digest()[:4] != check:
        raise _rejected("it is damaged")
    value = orjson.loads(body)
    if value["format"] != FEED_TOKEN_FORMAT:
        raise _rejected("it was made by another version of the program")
    if value["for"] != _binding(session, branch, chosen, answer):
        raise _rejected("it belongs to another graph, branch, filter or answer")
    cut = value["cut"]
    return Place(CommitId(value["after"]), None if cut is None else CommitId(cut), int(value["offset"]))


def _rejected(reason: str) -> ChangeCursorRejected:
    return ChangeCursorRejected(f"change cursor rejected: {reason}")


def _binding(session: GraphSession, branch: Branch, chosen: FeedFilter, answer: str) -> str:
    """What a token is good for: this graph, this incarnation of the branch, this filter and answer."""
    genesis = session.commits.list(None)[-1].id
    parts = [
        genesis,
        answer,
        show_branch(branch),
        list(session.manifest.branch_incarnation(branch)),
        None if chosen.types is None else sorted(set(chosen.types)),
        None if chosen.ops is None else sorted({op.value for op in chosen.ops}),
        None if chosen.kinds is None else sorted(set(chosen.kinds)),
    ]
    return hashlib.sha256(orjson.dumps(parts)).hexdigest()[:32]
