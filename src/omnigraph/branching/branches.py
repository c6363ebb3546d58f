"""Deleting a branch. Creation touches no table and lives in the manifest room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnigraph.branching.ancestry import common_ground
from omnigraph.core.errors import BadRequest, BranchHasChildren, ConflictError
from omnigraph.core.errors.base import said
from omnigraph.core.events import Warned, emit
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import BranchName, normalize_branch, show_branch
from omnigraph.core.permission import Action, Question
from omnigraph.engine.write.entering import entering_write
from omnigraph.manifest.names import INTERNAL_NAMES

if TYPE_CHECKING:
    from omnigraph.core.ids import Branch, TableKey
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot
    from omnigraph.recovery.lease import Hold


@dataclass(frozen=True, slots=True)
class BranchDeletion:
    """A branch that is gone, and tables that keep files of it until a branch of that name is written to."""

    name: str
    unreclaimed: tuple[TableKey, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The deletion as the command line and the service show it."""
        return {"name": self.name, "unreclaimed": list(self.unreclaimed)}


def delete_branch(session: GraphSession, name: str, actor: str | None = None) -> BranchDeletion:
    """Delete a branch: first its existence, durably, then what it alone used.

    Raises `BadRequest` for main, internal names and a branch whose commits a tag names, `BranchNotFound`,
    `BranchHasChildren` naming the branches that were made from it or show its tables, `ConflictError` while
    two other branches need it as their merge base. Once the branch is gone nothing here fails the call: a
    table reference that could not be removed is reported, and a later branch of that name removes it.
    """
    branch = _deletable(name)
    entering_write(session, actor, Question(Action.BRANCH_DELETE, None, branch))
    owned = [(key, branch) for key in _shown(session, branch).entries]
    # The queues keep writers of this process away, the lease those of others.
    with session.queues.acquire_many(owned), session.lease.hold() as hold:
        snapshot = _shown(session, branch)
        dependents = _dependents(session, branch)
        if dependents:
            raise BranchHasChildren(branch, dependents)
        tags = session.manifest.tags.on_branch(branch)
        if tags:
            raise BadRequest(
                f"'{branch}' holds the commits named by {', '.join(tags)}",
                hint="delete these tags first, or keep the branch",
            )
        if snapshot.branch == branch:
            _refuse_common_ground(session, branch)
        if session.manifest.delete_branch(branch, hold.check):
            return BranchDeletion(branch, _remove_forks(session, branch, snapshot, hold))
        # After a power cut the branch may be there again, and then it needs them.
        return BranchDeletion(
            branch, tuple(key for key, each in snapshot.entries.items() if each.branch == branch)
        )


def _deletable(name: str) -> BranchName:
    branch = normalize_branch(name)
    if branch is None:
        raise BadRequest("main cannot be deleted")
    if branch in INTERNAL_NAMES:
        raise BadRequest(f"'{branch}' is an internal branch and cannot be deleted")
    return BranchName(branch)


def _shown(session: GraphSession, branch: BranchName) -> Snapshot:
    """What the branch shows. Of a damaged one, what main shows: it may own a fork of any table there."""
    if not session.manifest.branch_exists(branch):
        raise session.manifest.unknown_branch(branch)
    return session.manifest.readable([branch]).get(branch) or session.manifest.current(None)


def _dependents(session: GraphSession, branch: BranchName) -> list[str]:
    """Branches that show a table at a version that lives on this one.

    One that cannot be read shows it only if it grew out of this one, and then it is refused as a child.
    """
    others: list[Branch] = [each for each in session.manifest.all_branches() if each != branch]
    return [
        str(other)
        for other, shown in session.manifest.readable(others).items()
        if any(entry.branch == branch for entry in shown.entries.values())
    ]


def _refuse_common_ground(session: GraphSession, branch: BranchName) -> None:
    """Refuse while the merge of two other branches starts from a commit of this one.

    That state has no other home: an older one must not stand in for it (`merge_bases`).
    """
    head = session.manifest.current(branch)
    own = {each.id for each in session.commits.list(branch) if each.incarnation == head.commit.incarnation}
    if head.commit.home != branch:
        return  # nothing was ever published on it
    live: list[Branch] = [None, *(each for each in session.manifest.branches() if each != branch)]
    heads = {show_branch(each): shown.head for each, shown in session.manifest.readable(live).items()}
    pair = common_ground(session.commits.ancestry(), heads, own)
    if pair is not None:
        left, right = pair
        raise ConflictError(
            f"'{branch}' was merged into '{left}' and '{right}', which have nothing newer in common",
            hint=f"merge '{left}' and '{right}' first, or delete one of them; then delete '{branch}'",
            details={"blocking_branches": [left, right]},
        )


def _remove_forks(
    session: GraphSession, branch: BranchName, snapshot: Snapshot, hold: Hold
) -> tuple[TableKey, ...]:
    """Remove the branch's own references on tables; those that could not be removed.

    None is removed once another process has the lease: it may have made a branch of this name and written.

    `snapshot` of a damaged branch is main's, which does not tell which tables the branch owns: all are asked.
    """
    owner_known = snapshot.branch == branch
    left: list[TableKey] = []
    for key, entry in snapshot.entries.items():
        if owner_known and entry.branch != branch:
            continue
        try:
            failpoint(Window.BRANCH_DELETE_BEFORE_TABLE_CLEANUP)
            hold.check()
            session.storage.delete_branch(entry.location, branch)
        except Exception as error:  # noqa: BLE001  the branch is gone; leftovers are harmless
            left.append(key)
            emit(Warned(f"files of the deleted branch '{branch}' remain on '{key}'", said(error)))
    return tuple(left)
