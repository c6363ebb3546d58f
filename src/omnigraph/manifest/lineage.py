"""Which commits grew out of which. Pure: commits in, ancestors out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omnigraph.core.ids import CommitId

if TYPE_CHECKING:
    from collections.abc import Iterable

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
