"""The common ancestors of two commits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from omnigraph.core.errors import InternalError, MergeBaseGone, SnapshotNotFound
from omnigraph.core.ids import CommitId, show_branch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa

    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot


@dataclass(frozen=True, slots=True)
class Lineage:
    """Parents and manifest version of every known commit."""

    parents: Mapping[CommitId, tuple[CommitId, ...]]
    manifest_versions: Mapping[CommitId, int]

    def distances(self, start: CommitId) -> dict[CommitId, int]:
        """Every ancestor of a commit, itself included, with the fewest steps to it over both parents."""
        found = {start: 0}
        queue = deque([start])
        while queue:
            current = queue.popleft()
            for parent in self.parents.get(current, ()):
                if parent not in found:
                    found[parent] = found[current] + 1
                    queue.append(parent)
        return found


def read_lineage(table: pa.Table) -> Lineage:
    """The lineage out of the columns of `CommitLog.lineage`."""
    ids = table.column("graph_commit_id").to_pylist()
    firsts = table.column("parent_commit_id").to_pylist()
    seconds = table.column("merged_parent_commit_id").to_pylist()
    parents = {
        CommitId(own): tuple(CommitId(each) for each in (first, second) if each is not None)
        for own, first, second in zip(ids, firsts, seconds, strict=True)
    }
    versions = table.column("manifest_version").to_pylist()
    return Lineage(parents, dict(zip(parents, versions, strict=True)))


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


def merge_base(session: GraphSession, source: Snapshot, target: Snapshot) -> Snapshot:
    """The state that both heads grew out of: either head when it is an ancestor of the other.

    Raises `MergeBaseGone` when that state went with a deleted branch. An older common state must not stand
    in: a row the lost state had deleted, and one side wrote again, would look deleted by the other side.
    Raises `InternalError` when the heads have nothing in common.
    """
    if source.head == target.head:
        return target
    lineage = read_lineage(session.commits.lineage())
    candidates = common_ancestors(lineage, source.head, target.head)
    for head in (source, target):
        if head.head in candidates:
            return head
    if not candidates:
        raise InternalError(f"commits {source.head} and {target.head} have no ancestor in common")
    for commit_id in maximal(lineage, candidates):
        try:
            return session.manifest.at_commit(commit_id)
        except SnapshotNotFound:
            continue
    raise MergeBaseGone(
        source=show_branch(source.branch), target=show_branch(target.branch), commit_id=candidates[0]
    )
