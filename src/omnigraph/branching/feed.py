"""The change feed of a branch: its commits in order, each with what it changed."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from omnigraph.branching.history import ChangeOp, Diff, diff_snapshots
from omnigraph.core.errors import ChangeCursorRejected, ChangeFeedGap, CommitNotFound, SnapshotNotFound
from omnigraph.core.ids import CommitId, show_branch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.core.ids import Branch
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.record import CommitRecord
    from omnigraph.manifest.state import Snapshot

COMMITS_PER_POLL_MAX: Final = 100
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class FeedBlock:
    """One commit and what it changed against its first parent; nothing, for work that keeps every value."""

    commit: CommitRecord
    changes: Diff


@dataclass(frozen=True, slots=True, eq=False)
class FeedPage:
    """Complete commits in order, and the cursor after the last of them. Delivery is at least once."""

    blocks: tuple[FeedBlock, ...]
    cursor: str
    more: bool
    """Whether further commits wait already."""


def start_cursor(
    session: GraphSession,
    branch: Branch,
    *,
    after: str | None = None,
    types: Sequence[str] | None = None,
    ops: Sequence[ChangeOp] | None = None,
) -> str:
    """A cursor at the head of the branch, or after a commit of its first-parent history.

    `after="beginning"` starts at the first commit of the graph. Raises `CommitNotFound`.
    """
    head = session.manifest.current(branch)
    position = head.head if after is None else CommitId(after)
    if after == "beginning":
        position = _history(session, head)[-1].id
    elif after is not None:
        session.commits.show(position)
    return _encode(session, branch, position, types, ops)


def poll(
    session: GraphSession,
    branch: Branch,
    cursor: str,
    *,
    types: Sequence[str] | None = None,
    ops: Sequence[ChangeOp] | None = None,
    commits_max: int = COMMITS_PER_POLL_MAX,
) -> FeedPage:
    """The commits after the cursor, oldest first, at most `commits_max` of them.

    The cursor belongs to one graph, branch and filter: with another one it is `ChangeCursorRejected`, and
    `ChangeFeedGap` when the commit it names is no longer in the history of the branch.
    """
    position = _decode(session, branch, cursor, types, ops)
    head = session.manifest.current(branch)
    waiting: list[CommitRecord] = []
    for record in _history(session, head):
        if record.id == position:
            break
        waiting.append(record)
    else:
        raise _gap(position)
    waiting.reverse()
    blocks = tuple(_block(session, record, types, ops) for record in waiting[:commits_max])
    last = blocks[-1].commit.id if blocks else position
    return FeedPage(blocks, _encode(session, branch, last, types, ops), more=len(waiting) > commits_max)


def _history(session: GraphSession, head: Snapshot) -> list[CommitRecord]:
    return session.commits.list(head.branch)


def _block(
    session: GraphSession, record: CommitRecord, types: Sequence[str] | None, ops: Sequence[ChangeOp] | None
) -> FeedBlock:
    try:
        after = session.manifest.at_commit(record.id)
        before = after if record.parent is None else session.manifest.at_commit(record.parent)
    except (CommitNotFound, SnapshotNotFound) as error:
        raise _gap(record.id) from error
    return FeedBlock(record, diff_snapshots(session, before, after, types=types, ops=ops))


def _gap(commit_id: CommitId) -> ChangeFeedGap:
    return ChangeFeedGap(
        f"commit '{commit_id}' is not in the readable history of the branch any more",
        hint="export the branch and start a new cursor at its head",
        details={"change_feed_gap": {"first_unreadable_commit_id": commit_id}},
    )


def _binding(
    session: GraphSession, branch: Branch, types: Sequence[str] | None, ops: Sequence[ChangeOp] | None
) -> str:
    """What a cursor is good for: this graph, this incarnation of the branch, this filter."""
    genesis = _history(session, session.manifest.current(None))[-1].id
    parts = [
        genesis,
        show_branch(branch),
        session.branch_identity(branch),
        sorted(types) if types is not None else None,
        sorted(op.value for op in ops) if ops is not None else None,
    ]
    return hashlib.sha256(orjson.dumps(parts)).hexdigest()[:32]


def _encode(
    session: GraphSession,
    branch: Branch,
    position: CommitId,
    types: Sequence[str] | None,
    ops: Sequence[ChangeOp] | None,
) -> str:
    value = {"format": _FORMAT, "after": position, "for": _binding(session, branch, types, ops)}
    body = orjson.dumps(value)
    check = hashlib.sha256(body).digest()[:4]
    return base64.urlsafe_b64encode(check + body).decode()


def _decode(
    session: GraphSession,
    branch: Branch,
    cursor: str,
    types: Sequence[str] | None,
    ops: Sequence[ChangeOp] | None,
) -> CommitId:
    try:
        raw = base64.urlsafe_b64decode(cursor.encode("ascii"))
    except (binascii.Error, ValueError) as error:
        raise ChangeCursorRejected("the cursor is damaged") from error
    check, body = raw[:4], raw[4:]
    if hashlib.sha256(body).digest()[:4] != check:
        raise ChangeCursorRejected("the cursor is damaged")
    value: dict[str, Any] = orjson.loads(body)
    if value["format"] != _FORMAT:
        raise ChangeCursorRejected("the cursor was made by a newer program")
    if value["for"] != _binding(session, branch, types, ops):
        raise ChangeCursorRejected("the cursor belongs to another graph, branch or filter")
    return CommitId(value["after"])
