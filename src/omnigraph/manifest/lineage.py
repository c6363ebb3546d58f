"""Which commits grew out of which. Pure: commits in, ancestors out."""

from __future__ import annotations

from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING

from omnigraph.core.ids import CommitId
from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from omnigraph.manifest.commit_record import CommitRecord


@dataclass(frozen=True, slots=True)
class Lineage:
    """Parents and manifest version of every known commit. Commits are only ever added: they never change."""

    parents: dict[CommitId, tuple[CommitId, ...]] = field(
        default_factory=dict["CommitId", "tuple[CommitId, ...]"]
    )
    manifest_versions: dict[CommitId, int] = field(default_factory=dict["CommitId", int])

    def add_records(self, records: Iterable[CommitRecord]) -> None:
        """Take over commits."""
        for record in records:
            self.parents[record.id] = record.parents
            self.manifest_versions[record.id] = record.manifest_version

    def add_rows(self, table: pa.Table) -> None:
        """Take over rows with the columns of `CommitLog.lineage`."""
        ids = table.column("graph_commit_id").to_pylist()
        firsts = table.column("parent_commit_id").to_pylist()
        seconds = table.column("merged_parent_commit_id").to_pylist()
        for own, first, second in zip(ids, firsts, seconds, strict=True):
            self.parents[CommitId(own)] = tuple(
                CommitId(each) for each in (first, second) if each is not None
            )
        self.manifest_versions.update(zip(ids, table.column("manifest_version").to_pylist(), strict=True))

    def unknown_parents(self) -> set[CommitId]:
        """Commits that known ones name as a parent and that are not known themselves."""
        return {parent for parents in self.parents.values() for parent in parents} - self.parents.keys()

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


def possible_bases(lineage: Lineage, left: CommitId, right: CommitId) -> list[CommitId]:
    """The possible merge bases of two commits, the best first."""
    nearest = nearest_common(lineage, left, right)
    if len(nearest) == 1:
        return nearest
    return maximal(lineage, common_ancestors(lineage, left, right))
