"""The states that two heads grew out of."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from omnigraph.core.errors import InternalError, MergeBaseGone, SnapshotNotFound, VersionReclaimed
from omnigraph.core.ids import show_branch
from omnigraph.manifest.lineage import common_ancestors, maximal, possible_bases

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from omnigraph.core.ids import CommitId
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.lineage import Lineage
    from omnigraph.manifest.state import Snapshot


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
    bases = possible_bases(session.commits.ancestry(), source.head, target.head)
    for head in (source, target):
        if head.head in bases:
            return [head]
    if not bases:
        raise InternalError(f"commits {source.head} and {target.head} have no ancestor in common")
    try:
        return [session.manifest.at_commit(commit_id) for commit_id in bases]
    except VersionReclaimed:
        raise
    except SnapshotNotFound as error:
        raise MergeBaseGone(
            source=show_branch(source.branch), target=show_branch(target.branch), commit_id=error.snapshot
        ) from error
