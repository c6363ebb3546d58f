"""How each branch stands to main."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnigraph.core.ids import show_branch

if TYPE_CHECKING:
    from omnigraph.core.ids import CommitId
    from omnigraph.engine.session import GraphSession


@dataclass(frozen=True, slots=True)
class BranchDetail:
    """One branch: its head, how many commits it and main have that the other lacks, and its schema."""

    name: str
    head: CommitId
    ahead: int
    behind: int
    updated_at_us: int
    generation: int
    """The schema it follows: how many the graph had had. It adopts the newest before its next write."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.name,
            "head_commit_id": self.head,
            "ahead": self.ahead,
            "behind": self.behind,
            "updated_at": self.updated_at_us,
            "schema_generation": self.generation,
        }


def branch_details(session: GraphSession) -> list[BranchDetail]:
    """Every branch by name, main included; a damaged one is reported as a warning and left out.

    Cost: one walk of the history per branch.
    """
    lineage = session.commits.ancestry()
    shown = {show_branch(branch): each for branch, each in session.manifest.readable().items()}
    heads = dict(sorted(shown.items()))
    reached = {name: lineage.distances(each.commit.id).keys() for name, each in heads.items()}
    main = reached[show_branch(None)]
    return [
        BranchDetail(
            name,
            each.commit.id,
            len(reached[name] - main),
            len(main - reached[name]),
            each.commit.time_us,
            session.catalog_of(each).generation,
        )
        for name, each in heads.items()
    ]
