"""What to do about a sidecar, given what happened to its tables. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from omnigraph.recovery.classify import (
    InvariantViolation,
    NoMovement,
    RolledPastExpected,
    TableClass,
    TableFacts,
)


class Decision(StrEnum):
    """The three answers of R-34."""

    ABORT = "Abort"
    ROLL_FORWARD = "RollForward"
    ROLL_BACK = "RollBack"


def decide(classes: Sequence[TableClass]) -> Decision:
    """All or nothing: forward only when every table is finished; no tables at all are finished too."""
    if any(isinstance(each, InvariantViolation) for each in classes):
        return Decision.ABORT
    if all(isinstance(each, RolledPastExpected) for each in classes):
        return Decision.ROLL_FORWARD
    return Decision.ROLL_BACK


class RollBackPath(StrEnum):
    """How a roll-back is carried out (R-36)."""

    STALE = "stale"
    """The writer's result is visible already; only the record and the deletion are missing."""
    EMPTY = "empty"
    """The writer changed nothing that stayed."""
    ROLLED_BACK = "rolled_back"
    """An earlier pass restored and published; only the record and the deletion are missing."""
    RESTORE = "restore"
    """Tables must be restored, which needs the lease alone."""


@dataclass(frozen=True, slots=True)
class PublishedOwner:
    """Who made the versions `(expected, pin]` of one table, as far as it can be read."""

    by_operation: bool
    """One of them carries the operation id of the sidecar."""
    by_its_restore: bool
    """One of them is the restore an earlier pass of this recovery made."""
    readable: bool
    """At least one of them could be read."""


def roll_back_path(
    facts: Sequence[TableFacts], classes: Sequence[TableClass], owners: Sequence[PublishedOwner]
) -> RollBackPath:
    """Refine a roll-back. `owners` describes the tables in the order of `facts`; only moved pins count.

    Numbers alone cannot tell the writer's own publish from a later writer's, so a sidecar counts as stale
    only when a version after its expectation is its own, or when none of them can be read.
    """
    if not all(isinstance(each, NoMovement) for each in classes):
        return RollBackPath.RESTORE
    moved = [owner for each, owner in zip(facts, owners, strict=True) if each.pin > each.expected]
    if any(owner.by_its_restore for owner in moved):
        return RollBackPath.ROLLED_BACK
    if any(owner.by_operation for owner in moved):
        return RollBackPath.STALE
    if moved and not any(owner.readable for owner in moved):
        return RollBackPath.STALE
    return RollBackPath.EMPTY
