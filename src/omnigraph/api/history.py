"""The history side of a graph: tags, differences, the change feed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.branching.blame import Blame, blame
from omnigraph.branching.feed import COMMITS_PER_POLL_MAX, FeedPage, poll, start_cursor
from omnigraph.branching.history import ChangeOp, Diff, diff_snapshots, resolve_reference
from omnigraph.core.ids import CommitId, normalize_branch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.engine.session import GraphSession


class Tags:
    """The tags of a graph: immutable names of commits."""

    def __init__(self, session: GraphSession) -> None:
        self._session = session

    def create(self, name: str, *, at: str = "main") -> CommitId:
        """Name a commit for good; `at` is a branch (its head), a tag or a commit id."""
        session = self._session
        session.begin_write()
        commit = resolve_reference(session, at).head
        with session.lease.hold():
            return session.manifest.tags.create(name, commit).head

    def list(self) -> dict[str, CommitId]:
        """Every tag and the commit it names."""
        self._session.check_open()
        return self._session.manifest.tags.list()

    def delete(self, name: str) -> None:
        """Forget a name; the commit stays."""
        self._session.begin_write()
        with self._session.lease.hold():
            self._session.manifest.tags.delete(name)


class Feed:
    """The commits of a branch as they come, with what each changed."""

    def __init__(self, session: GraphSession) -> None:
        self._session = session

    def start(
        self,
        *,
        branch: str = "main",
        after: str | None = None,
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
    ) -> str:
        """A cursor at the head of the branch, after a commit, or at the `beginning`."""
        self._session.check_open()
        return start_cursor(
            self._session, normalize_branch(branch), after=after, types=types, ops=change_ops(ops)
        )

    def poll(
        self,
        cursor: str,
        *,
        branch: str = "main",
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        commits_max: int = COMMITS_PER_POLL_MAX,
    ) -> FeedPage:
        """The commits after the cursor, oldest first, and the next cursor. Keep that one and come again."""
        self._session.check_open()
        return poll(
            self._session,
            normalize_branch(branch),
            cursor,
            types=types,
            ops=change_ops(ops),
            commits_max=commits_max,
        )


def change_ops(names: Sequence[str] | None) -> Sequence[ChangeOp] | None:
    """The operations of these names."""
    return None if names is None else [ChangeOp(name) for name in names]


def diff(
    session: GraphSession,
    old: str,
    new: str,
    types: Sequence[str] | None = None,
    ops: Sequence[str] | None = None,
) -> Diff:
    """What differs between two states, each a branch, a tag or a commit id."""
    session.begin_read()
    before, after = resolve_reference(session, old), resolve_reference(session, new)
    return diff_snapshots(session, before, after, types=types, ops=change_ops(ops))


def blame_entity(session: GraphSession, type_name: str, entity_id: str, at: str) -> Blame:
    """Which commit gave each property its value, as seen from a branch, a tag or a commit."""
    session.begin_read()
    return blame(session, resolve_reference(session, at), type_name, entity_id)
