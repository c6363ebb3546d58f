"""Every combination of what can be observed of a table, against the tables of the specification."""

from itertools import product

import pytest

from omnigraph.core.formats import CONFIRMATION_SCHEMA_VERSION
from omnigraph.recovery.classify import (
    ClassificationMode,
    IncompletePhaseB,
    InvariantViolation,
    NoMovement,
    Owner,
    RolledPastExpected,
    TableFacts,
    UnexpectedAtP1,
    UnexpectedMultistep,
    classification_mode,
    classify,
)
from omnigraph.recovery.decide import Decision, RollBackPath, decide, roll_back_path
from omnigraph.recovery.sidecar import WriterKind

VERSIONS = range(5)
FACTS = [
    TableFacts(head=h, pin=m, expected=e, post_commit=p, confirmed=c, owner=owner)
    for h, m, e, p in product(VERSIONS, repeat=4)
    for c in (None, *VERSIONS)
    for owner in Owner
]


def rows_of_the_specification(f: TableFacts, mode: ClassificationMode):
    """The rules of classification as rows (condition, class); exactly one condition may hold."""
    one, many = f.head == f.pin + 1, f.head > f.pin + 1
    mine = f.owner is not Owner.FOREIGN
    yield f.head < f.pin, InvariantViolation(observed=f.head)
    yield f.head == f.pin, NoMovement()
    if mode is ClassificationMode.STRICT:
        exact = f.expected == f.pin and f.post_commit == f.head
        yield one and exact and mine, RolledPastExpected(f.head)
        yield one and not (exact and mine), UnexpectedAtP1()
        yield many, UnexpectedMultistep()
    if mode is ClassificationMode.LOOSE:
        yield f.head > f.pin and f.expected == f.pin, RolledPastExpected(f.head)
        yield one and f.expected != f.pin, UnexpectedAtP1()
        yield many and f.expected != f.pin, UnexpectedMultistep()
    if mode is ClassificationMode.CONFIRMED:
        exact = f.head == f.confirmed and f.expected == f.pin
        ahead = f.head > f.pin
        yield ahead and f.confirmed is None, IncompletePhaseB()
        yield ahead and f.confirmed is not None and not exact, UnexpectedMultistep()
        yield ahead and exact and mine, RolledPastExpected(f.head)
        yield one and exact and not mine, UnexpectedAtP1()
        yield many and exact and not mine, UnexpectedMultistep()


@pytest.mark.parametrize("mode", ClassificationMode)
def test_every_observation_has_exactly_the_class_of_the_specification(mode):
    seen = set()
    for facts in FACTS:
        expected = [found for holds, found in rows_of_the_specification(facts, mode) if holds]
        assert len(expected) == 1, facts
        assert classify(facts, mode) == expected[0], facts
        seen.add(type(expected[0]))
    assert {InvariantViolation, NoMovement, RolledPastExpected, UnexpectedMultistep} <= seen
    assert (IncompletePhaseB in seen) == (mode is ClassificationMode.CONFIRMED)


@pytest.mark.parametrize(
    ("kind", "version_1", "version_2"),
    [
        (WriterKind.MUTATION, ClassificationMode.STRICT, ClassificationMode.STRICT),
        (WriterKind.LOAD, ClassificationMode.STRICT, ClassificationMode.STRICT),
        (WriterKind.SCHEMA_APPLY, ClassificationMode.LOOSE, ClassificationMode.LOOSE),
        (WriterKind.BRANCH_MERGE, ClassificationMode.LOOSE, ClassificationMode.CONFIRMED),
        (WriterKind.ENSURE_INDICES, ClassificationMode.LOOSE, ClassificationMode.LOOSE),
        (WriterKind.OPTIMIZE, ClassificationMode.LOOSE, ClassificationMode.LOOSE),
    ],
)
def test_mode_of_every_kind_and_version(kind, version_1, version_2):
    assert classification_mode(kind, 1) is version_1
    assert classification_mode(kind, 2) is version_2
    # A later version keeps treating 2 as aware of confirmation.
    assert classification_mode(kind, 3) is version_2
    assert CONFIRMATION_SCHEMA_VERSION == 2


CLASSES = [
    NoMovement(),
    RolledPastExpected(8),
    UnexpectedAtP1(),
    UnexpectedMultistep(),
    IncompletePhaseB(),
    InvariantViolation(3),
]


@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize("ground_moved", [False, True])
def test_decision_over_every_combination_of_classes(count, ground_moved):
    for classes in product(CLASSES, repeat=count):
        if any(isinstance(each, InvariantViolation) for each in classes):
            expected = Decision.ABORT
        elif all(isinstance(each, RolledPastExpected) for each in classes) and not ground_moved:
            expected = Decision.ROLL_FORWARD
        else:
            expected = Decision.ROLL_BACK
        assert decide(classes, ground_moved=ground_moved) is expected, classes


@pytest.mark.parametrize("count", range(1, 4))
def test_only_tables_that_moved_need_a_restore(count):
    for classes in product(
        [each for each in CLASSES if not isinstance(each, InvariantViolation)], repeat=count
    ):
        unmoved = all(isinstance(each, NoMovement) for each in classes)
        assert roll_back_path(classes) is (RollBackPath.EMPTY if unmoved else RollBackPath.RESTORE)
