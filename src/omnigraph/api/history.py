"""The history side of a graph: tags, differences, the change feed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack

from omnigraph.api.arguments import text_checked_methods
from omnigraph.branching.baseline import Baseline, baseline_lines, write_baseline
from omnigraph.branching.blame import Blame, blame
from omnigraph.branching.feed import (
    CHANGES_PER_PAGE_MAX,
    COMMITS_PER_PAGE_MAX,
    NOW,
    ChangesPage,
    FeedPage,
    commit_changes,
    poll,
    start_cursor,
)
from omnigraph.branching.history import ChangeOp, Diff, diff_snapshots
from omnigraph.branching.references import resolve_commit, resolve_reference
from omnigraph.branching.tokens import FeedFilter
from omnigraph.core.errors import BadRequest
from omnigraph.core.ids import CommitId, normalize_branch, show_branch
from omnigraph.core.permission import Action, Question
from omnigraph.engine.write.entering import entering_write

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Sequence

    from omnigraph.core.bounds import CallLimits
    from omnigraph.engine.session import GraphSession
    from omnigraph.planning.keys import EntityKey


_TAGGING: Final = Question(Action.CHANGE, show_branch(None))
"""Tags belong to the whole graph, as main does."""


@text_checked_methods
class Tags:
    """The tags of a graph: immutable names of commits."""

    def __init__(self, session: GraphSession) -> None:
        self._session = session

    def create(
        self, name: str, *, at: str = "main", actor: str | None = None, **_limits: Unpack[CallLimits]
    ) -> CommitId:
        """Name a commit for good; `at` is a branch (its head), a tag or a commit id."""
        session = self._session
        entering_write(session, actor, _TAGGING, heal=False)
        commit = resolve_reference(session, at).head
        with session.lease.hold() as hold:
            return session.manifest.tags.create(name, commit, hold.check).head

    def list(self, **_limits: Unpack[CallLimits]) -> dict[str, CommitId]:
        """Every tag and the commit it names."""
        self._session.check_open()
        return self._session.manifest.tags.list()

    def delete(self, name: str, *, actor: str | None = None, **_limits: Unpack[CallLimits]) -> None:
        """Forget a name; the commit stays."""
        entering_write(self._session, actor, _TAGGING, heal=False)
        with self._session.lease.hold() as hold:
            self._session.manifest.tags.delete(name, hold.check)


@text_checked_methods
class Feed:
    """The commits of a branch as they come, with what each changed."""

    def __init__(self, session: GraphSession) -> None:
        self._session = session

    def start(
        self,
        at: str = NOW,
        *,
        branch: str = "main",
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> str:
        """A cursor at the head of the branch (`now`), at the `beginning`, or `after:` a commit."""
        self._session.check_open()
        chosen = feed_filter(types, ops, kinds)
        return start_cursor(self._session, normalize_branch(branch), start=at, chosen=chosen)

    def poll(
        self,
        position: str,
        *,
        branch: str = "main",
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        changes_max: int = CHANGES_PER_PAGE_MAX,
        commits_max: int = COMMITS_PER_PAGE_MAX,
        **_limits: Unpack[CallLimits],
    ) -> FeedPage:
        """One page of the commits after a cursor, oldest first.

        A page that is not the last has a token to go on with; the last one has the next cursor. Keep that one
        and come again: nothing is stored here.
        """
        self._session.check_open()
        return poll(
            self._session,
            normalize_branch(branch),
            position,
            chosen=feed_filter(types, ops, kinds),
            changes_max=changes_max,
            commits_max=commits_max,
        )

    def changes(
        self,
        commit: str,
        *,
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        page_token: str | None = None,
        changes_max: int = CHANGES_PER_PAGE_MAX,
        **_limits: Unpack[CallLimits],
    ) -> ChangesPage:
        """One page of what a commit changed against its first parent.

        `commit` is an id, a tag, or a branch for its head.
        """
        self._session.check_open()
        return commit_changes(
            self._session,
            resolve_commit(self._session, commit).id,
            chosen=feed_filter(types, ops, kinds),
            page_token=page_token,
            changes_max=changes_max,
        )

    def baseline(
        self,
        path: str | os.PathLike[str],
        *,
        branch: str = "main",
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Baseline:
        """Write the state of a branch as JSON lines and give the cursor that goes on from it.

        The file appears whole or not at all. `ops` only narrows what the cursor will tell.
        """
        return write_baseline(path, self.baseline_lines(branch=branch, types=types, ops=ops, kinds=kinds))

    def baseline_lines(
        self,
        *,
        branch: str = "main",
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Generator[bytes, None, Baseline]:
        """The state of a branch as chunks of JSON lines.

        What the generator returns behind the last one has the cursor that goes on from it.
        """
        self._session.begin_read()
        chosen = feed_filter(types, ops, kinds)
        return baseline_lines(self._session, normalize_branch(branch), chosen=chosen)


def feed_filter(
    types: Sequence[str] | None, ops: Sequence[str] | None, kinds: Sequence[str] | None
) -> FeedFilter:
    """The filter of these names. Raises `BadRequest` for a kind or operation that does not exist."""
    for kind in kinds or ():
        if kind not in {"node", "edge"}:
            raise BadRequest(f"'{kind}' is not a kind of entity", hint="use node or edge")
    chosen = change_ops(ops)
    return FeedFilter(
        None if not types else tuple(types),
        None if not chosen else tuple(chosen),
        None if not kinds else tuple(kinds),
    )


def change_ops(names: Sequence[str] | None) -> Sequence[ChangeOp] | None:
    """The operations of these names. Raises `BadRequest` for a name that is none."""
    for name in names or ():
        if name not in set(ChangeOp):
            raise BadRequest(f"'{name}' is not an operation", hint="use insert, update or delete")
    return None if names is None else [ChangeOp(name) for name in names]


def diff(
    session: GraphSession,
    old: str,
    new: str,
    types: Sequence[str] | None = None,
    ops: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
) -> Diff:
    """What differs between two states, each a branch, a tag or a commit id."""
    session.begin_read()
    chosen = feed_filter(types, ops, kinds)
    before, after = resolve_reference(session, old), resolve_reference(session, new)
    return diff_snapshots(session, before, after, types=types, ops=change_ops(ops), kinds=chosen.kinds)


def blame_entity(session: GraphSession, type_name: str, entity_id: EntityKey, at: str) -> Blame:
    """Which commit gave each property its value, as seen from a branch, a tag or a commit."""
    session.begin_read()
    return blame(session, resolve_reference(session, at), type_name, entity_id)
