"""What happened to one table of a sidecar. Pure: plain numbers in, a class out."""

from enum import StrEnum
from typing import assert_never

from omnigraph.core.formats import CONFIRMATION_SCHEMA_VERSION
from omnigraph.core.late_dataclass import dataclass
from omnigraph.recovery.sidecar import WriterKind


class ClassificationMode(StrEnum):
    """How a writer's drift is judged."""

    STRICT = "Strict"
    """Exactly one commit per table, at exactly the noted version."""
    LOOSE = "Loose"
    """Any number of commits of derived state; whatever HEAD is, it is the result."""
    CONFIRMED = "Confirmed"
    """Several commits per table; only what was confirmed is a result."""


def classification_mode(kind: WriterKind, schema_version: int) -> ClassificationMode:
    """The one place that decides how a sidecar is judged."""
    match kind:
        case WriterKind.MUTATION | WriterKind.LOAD:
            return ClassificationMode.STRICT
        case WriterKind.SCHEMA_APPLY | WriterKind.ENSURE_INDICES | WriterKind.OPTIMIZE:
            return ClassificationMode.LOOSE
        case WriterKind.BRANCH_MERGE:
            aware = schema_version >= CONFIRMATION_SCHEMA_VERSION
            return ClassificationMode.CONFIRMED if aware else ClassificationMode.LOOSE
        case _:
            assert_never(kind)


# Importing the module proves that every kind declares its mode.
for _kind in WriterKind:
    classification_mode(_kind, 1)


class Owner(StrEnum):
    """Whose transaction made the table's HEAD."""

    OURS = "ours"
    """It carries the operation id of the sidecar."""
    FOREIGN = "foreign"
    """It was read and carries another operation id, or none."""
    UNREADABLE = "unreadable"
    """It could not be read; the numbers decide."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What was observed of one pinned table, once."""

    head: int
    """`h`: HEAD of the table on the pin's branch."""
    pin: int
    """`m`: the version the manifest shows on the sidecar's branch, 0 if the key is absent."""
    expected: int
    """`e`: the pin when the writer started."""
    post_commit: int
    """`p`: the HEAD the writer expected."""
    confirmed: int | None
    """`c`: the version the writer confirmed."""
    owner: Owner


@dataclass(frozen=True, slots=True)
class NoMovement:
    """HEAD is what the manifest shows."""


@dataclass(frozen=True, slots=True)
class RolledPastExpected:
    """The writer finished this table; publishing `target` would finish the write."""

    target: int


@dataclass(frozen=True, slots=True)
class UnexpectedAtP1:
    """HEAD is one ahead of the pin and that commit is not the noted one."""


@dataclass(frozen=True, slots=True)
class UnexpectedMultistep:
    """HEAD is several commits ahead of the pin, which this writer cannot explain."""


@dataclass(frozen=True, slots=True)
class IncompletePhaseB:
    """A merge moved the table and never confirmed."""


@dataclass(frozen=True, slots=True)
class InvariantViolation:
    """The manifest shows a version the table does not have."""

    observed: int


TableClass = (
    NoMovement
    | RolledPastExpected
    | UnexpectedAtP1
    | UnexpectedMultistep
    | IncompletePhaseB
    | InvariantViolation
)


def classify(facts: TableFacts, mode: ClassificationMode) -> TableClass:
    """Judge one table: what its HEAD says about the writer of the sidecar.

    A HEAD below the published version breaks an invariant; one at it has not moved. Above it the mode decides
    whether the writer finished the table: by exactly one own commit, by whatever is there, or by what the
    writer confirmed.
    """
    if facts.head < facts.pin:
        return InvariantViolation(observed=facts.head)
    if facts.head == facts.pin:
        return NoMovement()
    match mode:
        case ClassificationMode.STRICT:
            return _strict(facts)
        case ClassificationMode.LOOSE:
            return RolledPastExpected(facts.head) if facts.expected == facts.pin else _unexpected(facts)
        case ClassificationMode.CONFIRMED:
            return _confirmed(facts)
        case _:
            assert_never(mode)


def _strict(facts: TableFacts) -> TableClass:
    finished = (
        facts.head == facts.pin + 1
        and facts.expected == facts.pin
        and facts.post_commit == facts.head
        and facts.owner is not Owner.FOREIGN
    )
    return RolledPastExpected(facts.head) if finished else _unexpected(facts)


def _confirmed(facts: TableFacts) -> TableClass:
    if facts.confirmed is None:
        return IncompletePhaseB()
    if facts.head != facts.confirmed or facts.expected != facts.pin:
        return UnexpectedMultistep()
    if facts.owner is Owner.FOREIGN:
        return _unexpected(facts)
    return RolledPastExpected(facts.confirmed)


def _unexpected(facts: TableFacts) -> TableClass:
    return UnexpectedAtP1() if facts.head == facts.pin + 1 else UnexpectedMultistep()
