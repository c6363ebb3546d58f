"""What became of an entity that was to be forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from omnigraph.core import html

OUTSIDE: Final = (
    "clones and backups of the graph",
    "files it was loaded from, and exports of it",
    "values that other entities hold, such as its name in a text of theirs",
    "names of actors in commit records",
    "memory of other processes that have the graph open, and caches they write from it",
    "former versions of objects that a store or a file system keeps by itself",
)
"""What no erasure of a graph reaches."""


@dataclass(frozen=True, slots=True)
class ErasedBranch:
    """One branch: how many rows it showed, and the commits that took them away."""

    branch: str
    rows: int
    """Of the subject itself."""
    edges: int
    """That began or ended at it."""
    commits: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "branch": self.branch,
            "rows": self.rows,
            "edges": self.edges,
            "graph_commit_ids": list(self.commits),
        }


@dataclass(frozen=True, slots=True)
class EraseReceipt(html.Shown):
    """What was removed, what was left, and what lies outside. In a dry run: what would be."""

    type_name: str
    id: str
    dry_run: bool
    branches: tuple[ErasedBranch, ...]
    files_held: int
    """Data files that held rows of it, deleted rows included."""
    states_removed: int
    """Older states: none of them can be read any more."""
    files_removed: int
    bytes_removed: int
    tags_removed: tuple[str, ...]
    left: tuple[tuple[str, str], ...] = ()
    """Files that still hold it, and why."""
    outside: tuple[str, ...] = OUTSIDE
    """Where values of it may be that this graph does not reach."""

    @property
    def complete(self) -> bool:
        """Whether no file of the graph holds it any more."""
        return not self.left and not self.dry_run

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "type_name": self.type_name,
            "id": self.id,
            "dry_run": self.dry_run,
            "complete": self.complete,
            "branches": [each.to_dict() for each in self.branches],
            "files_held": self.files_held,
            "states_removed": self.states_removed,
            "files_removed": self.files_removed,
            "bytes_removed": self.bytes_removed,
            "tags_removed": list(self.tags_removed),
            "left": [{"name": name, "why": why} for name, why in self.left],
            "outside": list(self.outside),
        }

    def _shown(self) -> html.Pieces:
        about = {
            "dry run": self.dry_run,
            "complete": self.complete,
            "states removed": self.states_removed,
            "files removed": self.files_removed,
            "tags removed": ", ".join(self.tags_removed) or "none",
        }
        rows = [(each.branch, each.rows, each.edges) for each in self.branches]
        return html.facts(f"erase {self.type_name} {self.id}", about) + html.table(
            ("branch", "rows", "edges"), rows
        )
