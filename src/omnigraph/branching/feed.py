"""The change feed of a branch: its commits in first-parent order, each with what it changed.

A *cursor* stands behind a complete commit and is all a reader keeps between two polls. A *page token* goes on
with one poll: it also holds the head the poll was made for, and the place inside a commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from omnigraph.branching.history import diff_snapshots
from omnigraph.branching.tokens import FeedFilter, Place, read_token, write_token
from omnigraph.catalog.table_changes import catalog_change
from omnigraph.core.errors import (
    BadRequest,
    ChangeFeedGap,
    CommitNotFound,
    ParentlessCommit,
    SchemaBoundary,
    SnapshotNotFound,
)
from omnigraph.core.ids import CommitId
from omnigraph.core.limits import MIB

if TYPE_CHECKING:
    from omnigraph.branching.history import Diff, EntityChange
    from omnigraph.core.ids import Branch
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.commit_record import CommitRecord
    from omnigraph.manifest.state import Snapshot

COMMITS_PER_PAGE_MAX: Final = 100
CHANGES_PER_PAGE_MAX: Final = 8_192
PAGE_BYTES: Final = 16 * MIB
"""What the changes of a page may weigh as stored, about; a single heavier change is sent alone."""
BEGINNING: Final = "beginning"
NOW: Final = "now"
EVERYTHING: Final = FeedFilter()


@dataclass(frozen=True, slots=True)
class Cause:
    """The commit behind changes."""

    commit: CommitRecord

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        commit = self.commit
        optional = {
            "parent_commit_id": commit.parent,
            "merged_parent_commit_id": commit.merged_parent,
            "actor_id": commit.actor,
        }
        return {
            "graph_commit_id": commit.id,
            **{name: value for name, value in optional.items() if value is not None},
            "authored_branch": commit.branch,
            "authored_at": commit.time_us,
        }


@dataclass(frozen=True, slots=True, eq=False)
class FeedBlock:
    """One commit and what it changed against its first parent; nothing, for work that keeps every value.

    A page that stops inside a commit has a part of its changes.
    """

    commit: CommitRecord
    changes: tuple[EntityChange, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        changes = [each.to_dict() for each in self.changes]
        return {"cause": Cause(self.commit).to_dict(), "changes": changes}


@dataclass(frozen=True, slots=True, eq=False)
class FeedPage:
    """Some commits in order. Either a page token, or on the last page of a poll the cursor behind it.

    Delivery is at least once: a reader that lost its place polls its last cursor again.
    """

    blocks: tuple[FeedBlock, ...]
    next_page_token: str | None
    cursor: str | None
    caught_up: bool | None
    """On the last page: whether the branch still shows the commit the poll ended at."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        optional = {
            "next_page_token": self.next_page_token,
            "cursor": self.cursor,
            "caught_up": self.caught_up,
        }
        return {
            "blocks": [each.to_dict() for each in self.blocks],
            **{name: value for name, value in optional.items() if value is not None},
        }


@dataclass(frozen=True, slots=True, eq=False)
class ChangesPage:
    """Some changes of one commit, and the token of the next page."""

    commit: CommitRecord
    changes: tuple[EntityChange, ...]
    next_page_token: str | None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        more = {} if self.next_page_token is None else {"next_page_token": self.next_page_token}
        return {**FeedBlock(self.commit, self.changes).to_dict(), **more}


def start_cursor(
    session: GraphSession, branch: Branch, *, start: str = NOW, chosen: FeedFilter = EVERYTHING
) -> str:
    """The cursor at a starting point: `now`, `beginning`, or `after:` with a commit of the branch.

    Raises `BadRequest`, `CommitNotFound`.
    """
    head = session.manifest.current(branch).head
    if start == NOW:
        return write_token(session, branch, chosen, Place(head))
    history = [record.id for record in session.commits.list(branch)]
    if start == BEGINNING:
        return write_token(session, branch, chosen, Place(history[-1]))
    word, _, commit_id = start.partition(":")
    if word != "after" or not commit_id:
        raise BadRequest(f"'{start}' is not a start of a feed", hint="use now, beginning or after:COMMIT")
    if commit_id not in history:
        raise CommitNotFound(commit_id)
    return write_token(session, branch, chosen, Place(CommitId(commit_id)))


def poll(
    session: GraphSession,
    branch: Branch,
    position: str,
    *,
    chosen: FeedFilter = EVERYTHING,
    changes_max: int = CHANGES_PER_PAGE_MAX,
    commits_max: int = COMMITS_PER_PAGE_MAX,
) -> FeedPage:
    """One page from a cursor or a page token on, oldest commit first.

    Raises `ChangeCursorRejected` for a position of another graph, branch or filter, `ChangeFeedGap` when
    commits behind it are gone, `SchemaBoundary` at a commit that took names out of the schema. Cost: follows
    the changes of the commits that are looked at.
    """
    _check_limits(changes_max, commits_max)
    place = read_token(session, branch, chosen, position)
    cut = place.cut or session.manifest.current(branch).head
    waiting = _between(session, branch, place.after, cut)
    blocks: list[FeedBlock] = []
    left, room, offset, done = changes_max, PAGE_BYTES, place.offset, place.after
    while waiting and left > 0 and room > 0 and len(blocks) < commits_max:
        record = waiting[0]
        changes = commit_diff(session, record, chosen)
        fitting, weight = changes.within(offset, room)
        end = offset + min(left, fitting)
        room -= weight
        blocks.append(FeedBlock(record, tuple(changes.part(offset, end))))
        left -= end - offset
        if end < len(changes):
            token = write_token(session, branch, chosen, Place(done, cut, end))
            return FeedPage(tuple(blocks), token, None, None)
        waiting.pop(0)
        done, offset = record.id, 0
    if waiting:
        token = write_token(session, branch, chosen, Place(done, cut, 0))
        return FeedPage(tuple(blocks), token, None, None)
    cursor = write_token(session, branch, chosen, Place(done))
    return FeedPage(tuple(blocks), None, cursor, session.manifest.current(branch).head == done)


def commit_changes(
    session: GraphSession,
    commit_id: CommitId,
    *,
    chosen: FeedFilter = EVERYTHING,
    page_token: str | None = None,
    changes_max: int = CHANGES_PER_PAGE_MAX,
) -> ChangesPage:
    """One page of what a commit changed against its first parent.

    Raises `CommitNotFound`, `ParentlessCommit`, `SchemaBoundary`, `ChangeFeedGap`, `ChangeCursorRejected`.
    """
    _check_limits(changes_max, 1)
    record = session.commits.show(commit_id)
    if record.parent is None:
        raise ParentlessCommit(f"commit '{commit_id}' is the first one and has nothing to be compared with")
    start = 0
    if page_token is not None:
        start = read_token(session, None, chosen, page_token, answer=commit_id).offset
    changes = commit_diff(session, record, chosen)
    end = start + min(changes_max, changes.within(start, PAGE_BYTES)[0])
    token = None
    if end < len(changes):
        token = write_token(session, None, chosen, Place(commit_id, None, end), answer=commit_id)
    return ChangesPage(record, tuple(changes.part(start, end)), token)


def commit_diff(session: GraphSession, record: CommitRecord, chosen: FeedFilter) -> Diff:
    """What a commit changed: nodes before edges, by type and id; nothing for the first commit of all."""
    try:
        after = session.manifest.at_commit(record.id)
        before = after if record.parent is None else session.manifest.at_commit(record.parent)
    except (CommitNotFound, SnapshotNotFound) as error:
        raise _gap(record.id) from error
    if before.schema_hash != after.schema_hash and not _goes_on(session, before, after):
        raise SchemaBoundary(
            f"commit '{record.id}' changed the schema: names that the feed told before are gone",
            hint="take a baseline and go on from its cursor",
        )
    return diff_snapshots(
        session, before, after, types=chosen.types, ops=chosen.ops, kinds=chosen.kinds
    ).nodes_first()


def _goes_on(session: GraphSession, before: Snapshot, after: Snapshot) -> bool:
    """Whether everything that was there is there still, under the same names: then only rows differ."""
    old, new = session.catalog_of(before), session.catalog_of(after)
    change = catalog_change(old, new)
    same = all(
        (was := each.before.by_name).keys() <= (now := each.after.by_name).keys()
        and all(prop.property_id == now[name].property_id for name, prop in was.items())
        for each in change.kept
    )
    return same and not change.dropped and not change.renamed


def _between(session: GraphSession, branch: Branch, after: CommitId, cut: CommitId) -> list[CommitRecord]:
    """The commits after one up to another, oldest first."""
    found: list[CommitRecord] = []
    seen_cut = False
    for record in session.commits.list(branch):
        seen_cut = seen_cut or record.id == cut
        if record.id == after:
            return found[::-1]
        if seen_cut:
            found.append(record)
    raise _gap(after)


def _check_limits(changes_max: int, commits_max: int) -> None:
    if not 0 < changes_max <= CHANGES_PER_PAGE_MAX:
        raise BadRequest(f"a page has 1 to {CHANGES_PER_PAGE_MAX:,} changes, not {changes_max:,}")
    if commits_max <= 0:
        raise BadRequest(f"a page has at least one commit, not {commits_max}")


def _gap(commit_id: CommitId) -> ChangeFeedGap:
    return ChangeFeedGap(
        f"commit '{commit_id}' is not in the readable history of the branch any more",
        hint="take a baseline of the branch and go on from its cursor",
        details={"change_feed_gap": {"first_unreadable_commit_id": commit_id}},
    )
