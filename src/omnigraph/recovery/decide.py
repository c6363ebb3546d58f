"""What to do about a sidecar, given what happened to its tables. Pure."""

from collections.abc import Sequence
from enum import StrEnum

from omnigraph.recovery.classify import (
    InvariantViolation,
    NoMovement,
    RolledPastExpected,
    TableClass,
)


class Decision(StrEnum):
    """What recovery does about a sidecar. An abort leaves it for a person."""

    ABORT = "Abort"
    ROLL_FORWARD = "RollForward"
    ROLL_BACK = "RollBack"


def decide(classes: Sequence[TableClass], *, ground_moved: bool) -> Decision:
    """All or nothing: forward only when every table is finished; no tables at all are finished too.

    `ground_moved`: a table the writer had read, without writing it, shows something else now. Its result may
    contradict that, an edge to a node that went since, and its own publish would have been refused.
    """
    if any(isinstance(each, InvariantViolation) for each in classes):
        return Decision.ABORT
    if not ground_moved and all(isinstance(each, RolledPastExpected) for each in classes):
        return Decision.ROLL_FORWARD
    return Decision.ROLL_BACK


class RollBackPath(StrEnum):
    """How a roll-back is carried out. A write that is visible already never gets here."""

    EMPTY = "empty"
    """The writer moved nothing; only the record and the deletion are missing."""
    RESTORE = "restore"
    """Tables must be restored, which needs the lease alone."""


def roll_back_path(classes: Sequence[TableClass]) -> RollBackPath:
    """Whether undoing needs a restore."""
    if all(isinstance(each, NoMovement) for each in classes):
        return RollBackPath.EMPTY
    return RollBackPath.RESTORE
