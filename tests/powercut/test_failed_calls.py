"""One call of a writer fails: it says what is so, and the graph goes on."""

import errno

import pytest

from crash.people import (
    BRANCH_CREATE,
    BRANCH_DELETE,
    BRANCH_INSERT,
    FAST_FORWARD,
    INSERT,
    LOAD,
    SWITCH,
    TAG_CREATE,
    TAG_DELETE,
)
from powercut.scene import Cut, where_possible

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(3600)]

FAILURES_IN_THE_SUITE = 5
UNDECIDED = "failed recovery_required"
"""The one kind of failure that may have had its effect: it tells the caller to look and not to repeat."""
WRITERS = (
    TAG_CREATE,
    TAG_DELETE,
    BRANCH_CREATE,
    BRANCH_DELETE,
    SWITCH,
    LOAD,
    INSERT,
    BRANCH_INSERT,
    FAST_FORWARD,
)


def failures(scene, *, every):
    writer, counted = scene.writer, scene.write()[-1].offset
    # From the last call on: what follows the publish is what used to be mistaken for a failure.
    numbers = list(range(counted, 0, -1))
    if not every:
        numbers = numbers[:2] + numbers[2 :: max(1, counted // (FAILURES_IN_THE_SUITE - 2))]
    for number in numbers:
        end, there = scene.fail(number, (errno.EIO, errno.ENOSPC)[number % 2])
        where = f"{writer.name}: call {number} of {counted} fails, the writer {end}, effect visible: {there}"
        assert there or end != "returned", where
        assert not there or end in {"returned", UNDECIDED}, where
        problems = scene.judge_what_is_there(Cut(number, end, {}, returned=end == "returned"), thorough=False)
        assert problems == [], where
    print(f"\n{writer.name}: {len(numbers)} of {counted} calls failed, every outcome as it was told")


@pytest.mark.parametrize("writer", [TAG_CREATE, BRANCH_DELETE, SWITCH, LOAD], ids=lambda w: w.name)
def test_a_writer_whose_call_fails_says_what_is_so(scene_of, writer, record_property):
    with where_possible(record_property):
        failures(scene_of(writer), every=False)


@pytest.mark.torture
@pytest.mark.parametrize("writer", WRITERS, ids=lambda w: w.name)
def test_a_writer_any_of_whose_calls_fails_says_what_is_so(scene_of, writer, record_property):
    with where_possible(record_property):
        failures(scene_of(writer), every=True)
