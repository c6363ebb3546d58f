"""The common ancestors of two commits."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from omnigraph.core.errors import InternalError, MergeBaseGone, SnapshotNotFound
from omnigraph.core.ids import show_branch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from omnigraph.core.ids import CommitId
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.lineage import Lineage
    from omnigraph.manifest.state import Snapshot


def common_ancestors(lineage: Lineage, left: CommitId, right: CommitId) -> list[CommitId]:
    """The common ancestors of two commits, the best merge base first.

    Those that no other common ancestor descends from come first: a base further back would count what both
    sides already share as changes of both. Among equals: smallest sum of distances, then greatest manifest
    version, then greatest id.
    """
    from_left, from_right = lineage.distances(left), lineage.distances(right)
    common = [each for each in from_left if each in from_right]
    # Every parent of a common ancestor is one too, so the ones passed on the way back are exactly these.
    passed = {parent for each in common for parent in lineage.parents.get(each, ())}
    common.sort(key=lambda each: (lineage.manifest_versions.get(each, 0), each), reverse=True)
    common.sort(key=lambda each: (each in passed, from_left[each] + from_right[each]))
    return common


def maximal(lineage: Lineage, common: Sequence[CommitId]) -> list[CommitId]:
    """The common ancestors that no other one descends from, in the given order: the possible bases."""
    passed = {parent for each in common for parent in lineage.parents.get(each, ())}
    return [each for each in common if each not in passed]


_LEFT, _RIGHT, _BOTH, _BEHIND = 1, 2, 3, 4


def nearest_common(lineage: Lineage, left: CommitId, right: CommitId) -> list[CommitId]:
    """The common ancestors that no other one descends from; where clocks disagreed, possibly others too.

    Both sides are followed back together, newest id first, until everything that is left lies behind a common
    ancestor. Cost: follows the commits since then, not the history.
    """
    marks = {left: _LEFT}
    marks[right] = marks.get(right, 0) | _RIGHT
    frontier, found = {left, right}, list["CommitId"]()
    while any(not marks[each] & _BEHIND for each in frontier):
        current = max(frontier)
        frontier.discard(current)
        passed_on = marks[current]
        if passed_on == _BOTH:
            found.append(current)
            passed_on |= _BEHIND
        for parent in lineage.parents.get(current, ()):
            # A commit that was followed before its child was (their clocks disagreed) is followed again.
            if marks.get(parent, 0) | passed_on != marks.get(parent):
                marks[parent] = marks.get(parent, 0) | passed_on
                frontier.add(parent)
    return [each for each in dict.fromkeys(found) if not marks[each] & _BEHIND]


def _bases(lineage: Lineage, left: CommitId, right: CommitId) -> list[CommitId]:
    """The possible merge bases of two commits, the best first."""
    nearest = nearest_common(lineage, left, right)
    if len(nearest) == 1:
        return nearest
    return maximal(lineage, common_ancestors(lineage, left, right))


def common_ground(
    lineage: Lineage, heads: Mapping[str, CommitId], own: AbstractSet[CommitId]
) -> tuple[str, str] | None:
    """Two of the heads, by name, whose merge needs one of the commits `own` as its base; None: no two do.

    Every later head descends from heads of today, and so do its common ancestors with others: what is no base
    now never becomes one. Cost: one walk of the history per head, and one per pair that has such commits in
    common.
    """
    reaching = [name for name, head in heads.items() if not own.isdisjoint(lineage.distances(head))]
    for left, right in combinations(reaching, 2):
        common = common_ancestors(lineage, heads[left], heads[right])
        if not own.isdisjoint(maximal(lineage, common)):
            return left, right
    return None


def merge_bases(session: GraphSession, source: Snapshot, target: Snapshot) -> list[Snapshot]:
    """The states that both heads grew out of, the best first; a head alone when the other descends from it.

    There are several only when branches were merged into each other crosswise. Raises `MergeBaseGone` when
    one went with a deleted branch. An older common state must not stand in: a row the lost state had deleted,
    and one side wrote again, would look deleted by the other side. Raises `InternalError` when the heads have
    nothing in common.
    """
    if source.head == target.head:
        return [target]
    bases = _bases(session.commits.ancestry(), source.head, target.head)
    for head in (source, target):
        if head.head in bases:
            return [head]
    if not bases:
        raise InternalError(f"commits {source.head} and {target.head} have no ancestor in common")
    try:
        return [session.manifest.at_commit(commit_id) for commit_id in bases]
    except SnapshotNotFound as error:
        raise MergeBaseGone(
            source=show_branch(source.branch), target=show_branch(target.branch), commit_id=error.snapshot
        ) from error
