"""What a text stands for in the history: a branch, a tag, a commit id or its beginning, a moment, and so many
commits before one of them.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Final

from omnigraph.catalog.scalars import Misfit, parse_datetime
from omnigraph.core.errors import BranchNotFound, CommitNotFound
from omnigraph.core.ids import CommitId, normalize_branch, show_branch
from omnigraph.language.diagnostics import near_names

if TYPE_CHECKING:
    from omnigraph.core.ids import Branch
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.commit_record import CommitRecord
    from omnigraph.manifest.state import Snapshot

ABBREVIATED_MIN: Final = 4
"""Characters of a commit id that are needed at least."""
_BEGINNING: Final = re.compile(f"[0-9A-HJKMNP-TV-Z]{{{ABBREVIATED_MIN},25}}", re.IGNORECASE)
_BEFORE: Final = re.compile(r"(.+)~([0-9]{0,9})", re.DOTALL)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SHOWN_MAX: Final = 3
HINT: Final = "name a branch, a tag, a commit id or the beginning of one, main~1, or a moment"


def resolve_reference(session: GraphSession, text: str) -> Snapshot:
    """The state a text stands for.

    Raises `CommitNotFound` when it names nothing, `SnapshotNotFound` when the commit's state is gone.
    """
    return _named_state(session, text) or session.manifest.at_commit(resolve_commit(session, text).id)


def resolve_commit(session: GraphSession, text: str) -> CommitRecord:
    """The commit a text stands for: the head of a branch, else a tag, else a commit id, else `name~2`, the
    second commit before that one, else what main showed at a moment (`draft@2026-11-01T12:00Z`: what that
    branch showed), else the only commit whose id begins so.

    Also a commit whose branch was deleted since: its record stays. Raises `CommitNotFound`.
    """
    named = _named_state(session, text)
    if named is not None:
        return named.commit
    try:
        return session.commits.show(CommitId(text))
    except CommitNotFound:
        pass
    earlier = _BEFORE.fullmatch(text)
    if earlier is not None:
        return _before(session, resolve_commit(session, earlier[1]), int(earlier[2] or 1), text)
    moment = _moment(session, text)
    if moment is not None:
        return _as_of(session, *moment, text)
    return _beginning_with(session, text)


def resolve_change(session: GraphSession, text: str) -> CommitRecord:
    """As `resolve_commit`, for a caller that takes something back: the name of a branch means its newest
    commit that changed rows.
    """
    try:
        named = session.manifest.current(normalize_branch(text))
    except BranchNotFound:
        return resolve_commit(session, text)
    return session.commits.newest_of_rows(named.commit)


def _named_state(session: GraphSession, text: str) -> Snapshot | None:
    """What the branch or the tag of this name shows; None when there is neither."""
    try:
        return session.manifest.current(normalize_branch(text))
    except BranchNotFound:
        return session.manifest.tags.find(text)


def _before(session: GraphSession, record: CommitRecord, steps: int, text: str) -> CommitRecord:
    """The commit so many steps before another one, by first parents."""
    for number in range(steps):
        if record.parent is None:
            raise CommitNotFound(text, hint=f"the history goes back {number} commits from there")
        record = session.commits.show(record.parent)
    return record


def _moment(session: GraphSession, text: str) -> tuple[Branch, dt.datetime] | None:
    """The branch and the moment of `moment` or `branch@moment`."""
    name, at, when = text.rpartition("@")
    try:
        moment = parse_datetime(when)
    except Misfit:
        return None
    branch = normalize_branch(name) if at else None
    session.manifest.current(branch)  # a branch that is not there is said so
    return branch, moment


def _as_of(session: GraphSession, branch: Branch, moment: dt.datetime, text: str) -> CommitRecord:
    found = session.commits.list(branch, until_us=last_us_of(moment), limit=1)
    if found:
        return found[0]
    first = session.commits.list(branch)[-1]
    raise CommitNotFound(text, hint=f"'{show_branch(branch)}' begins at {first.time.isoformat()}")


def last_us_of(moment: dt.datetime) -> int:
    """The last microsecond since 1970 of the millisecond of a moment.

    Moments are cut to milliseconds, and so are those that people read: all of the millisecond counts.
    """
    return ((moment - _EPOCH) // dt.timedelta(milliseconds=1)) * 1000 + 999


def _beginning_with(session: GraphSession, text: str) -> CommitRecord:
    if _BEGINNING.fullmatch(text):
        sought = text.upper()
        found = sorted(each for each in session.commits.ancestry().parents if each.startswith(sought))
        if len(found) == 1:
            return session.commits.show(CommitId(found[0]))
        if found:
            shown = ", ".join(found[:_SHOWN_MAX])
            raise CommitNotFound(text, hint=f"{len(found)} commits begin so: {shown}; write more of the id")
    names = ["main", *session.manifest.branches(), *session.manifest.tags.list()]
    raise CommitNotFound(text, candidates=near_names(text, names), hint=HINT)
