"""The common ancestors of two commits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omnigraph.core.errors import InternalError, SnapshotNotFound
from omnigraph.core.events import Warned, emit
from omnigraph.core.ids import CommitId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


def merge_base(session: GraphSession, source: Snapshot, target: Snapshot) -> Snapshot:
    """The state that both heads grew out of.

    Either head when it is an ancestor of the other. Otherwise the best common ancestor whose state can still
    be read: a branch that was merged into both and deleted has taken its own states along. An older common
    state then stands in, with a warning, because it knows less: what both sides share since then counts as a
    change of both, and a row that the lost state had deleted and one side wrote again, with its old values,
    looks deleted by the other side only.
    Raises `InternalError` when the heads have nothing in common.
    """
    if source.head == target.head:
        return target
    candidates = common_ancestors(read_lineage(session.commits.lineage()), source.head, target.head)
    for head in (source, target):
        if head.head in candidates:
            return head
    return _first_readable(session, source, target, candidates)


def _first_readable(
    session: GraphSession, source: Snapshot, target: Snapshot, candidates: Sequence[CommitId]
) -> Snapshot:
    for number, commit_id in enumerate(candidates):
        try:
            base = session.manifest.at_commit(commit_id)
        except SnapshotNotFound:
            continue
        if number:
            emit(Warned(f"the state of commit {candidates[0]} is gone", f"merging on top of {commit_id}"))
        return base
    raise InternalError(f"commits {source.head} and {target.head} have no readable ancestor in common")
