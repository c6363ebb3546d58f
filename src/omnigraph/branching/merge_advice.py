"""What a person can do about the conflicts of a merge. Pure: conflicts in, a sentence out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnigraph.branching.merge_plan import RESOLVABLE, ConflictKind

if TYPE_CHECKING:
    from collections.abc import Iterable

CHOOSE: Final = "choose a side with --on-conflict or --resolve, or settle them on the source branch"
REVERT: Final = "later commits changed these entities; revert those first, or change them by hand"
REVERT_RULES: Final = (
    "what it would bring back breaks rules of now; loosen the schema first, or change them by hand"
)
_BY_HAND: Final = {
    ConflictKind.ORPHAN_EDGE: "delete the edge, or insert its lost end again",
    ConflictKind.UNIQUE_VIOLATION: "change or delete one of the two that share a value",
    ConflictKind.CARDINALITY_VIOLATION: "delete edges that are too many, or insert those that are missing",
    ConflictKind.VALUE_CONSTRAINT_VIOLATION: "change the value that breaks the rule",
}
"""What settles each kind that no choice of a side settles."""


def advice(kinds: Iterable[ConflictKind], *, chosen: bool = False) -> str:
    """How the conflicts of a merge can be settled. `chosen`: sides were chosen on the way to them."""
    found = set(kinds)
    if found & RESOLVABLE:
        return CHOOSE
    acts = [act for kind, act in _BY_HAND.items() if kind in found]
    other = ", or choose other sides" if chosen else ""
    return (
        f"only the merged graph breaks these rules, which no side settles: {'; '.join(acts)}, on one of the "
        f"branches, and merge again{other}"
    )


def revert_advice(kinds: Iterable[ConflictKind]) -> str:
    """What to do where a commit cannot be taken back."""
    return REVERT if set(kinds) & RESOLVABLE else REVERT_RULES
