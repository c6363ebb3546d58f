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
    """One branch: its head, and how many commits it and main have that the other lacks."""

    name: str
    head: CommitId
    ahead: int
    behind: int
    updated_at_us: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.name,
            "head_commit_id": self.head,
            "ahead": self.ahead,
            "behind": self.behind,
            "updated_at": self.updated_at_us,
        }


def branch_details(session: GraphSession) -> list[BranchDetail]:
    """Every branch by name, main included; a damaged one is reported as a warning and left out.

    Cost: one walk of the history per branch.
    """
    lineage = session.commits.ancestry()
    shown = {show_branch(branch): each.commit for branch, each in session.manifest.readable().items()}
    heads = dict(sorted(shown.items()))
    reached = {name: lineage.distances(head.id).keys() for name, head in heads.items()}
    main = reached[show_branch(None)]
    return [
        BranchDetail(name, head.id, len(reached[name] - main), len(main - reached[name]), head.time_us)
        for name, head in heads.items()
    ]
