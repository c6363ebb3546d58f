"""Every durable write cut: the writer is killed before and after its k-th durable operation, for all k."""

import pytest

from crash.harness import CUT, Bench, Children
from crash.people import (
    FAST_FORWARD,
    INDICES,
    INSERT,
    LOAD,
    MUTATIONS,
    NAMES,
    REVERT,
    THREE_WAY,
    UPDATE,
    WRITERS,
)

pytestmark = [pytest.mark.crash, pytest.mark.slow]
EVENTS_MAX = 400


@pytest.fixture(scope="module")
def children():
    with Children() as started:
        yield started


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        *(writer.name for writer in MUTATIONS),
        *(writer.name for writer in NAMES),
        *(
            pytest.param(writer.name, marks=pytest.mark.torture)
            for writer in (LOAD, FAST_FORWARD, THREE_WAY, REVERT, INDICES)
        ),
    ],
)
def test_killed_writer_is_all_or_nothing_at_every_durable_operation(name, children, tmp_path):
    writer = WRITERS[name]
    bench = Bench(children, tmp_path)
    cuts = 0
    for number in range(1, EVENTS_MAX):
        if writer.once and number > 1:
            (tmp_path / str(number)).mkdir()
            bench = Bench(children, tmp_path / str(number))
        was_cut, problems = bench.cut(writer, cut=number)
        assert problems == [], f"{name} cut at durable event {number}"
        if not was_cut:
            break
        cuts += 1
    print(f"\n{name}: {cuts} cuts, every one before or after")
    assert (1 if writer in NAMES else 20) < cuts < EVENTS_MAX - 1


@pytest.mark.timeout(900)
def test_killed_recovery_is_finished_by_the_next(children, tmp_path):
    """The recovery of a half-finished write is itself cut at each of its durable operations."""
    bench = Bench(children, tmp_path)
    cuts = 0
    for number in range(1, EVENTS_MAX):
        if _cut_writer_then_recovery(bench, INSERT, number) != CUT:
            break
        cuts += 1
    kinds = {kind for _, kind in bench.recover()["recoveries"]}
    print(f"\nrecovery: {cuts} cuts")
    assert kinds == {"RolledBack"}
    assert cuts > 20


def _cut_writer_then_recovery(bench, writer, number):
    """The writer dies between its second and its third table; so does the first recovery, somewhere."""
    statuses = []

    def recover_after_a_cut_one(**more):
        statuses.append(bench.children.run("recover", path=str(bench.path), cut=number))
        return Bench.recover(bench, **more)

    bench.recover = recover_after_a_cut_one
    try:
        _, problems = bench.cut(writer, armed="mutation.post_table_commit=pass,exit")
    finally:
        del bench.recover
    assert problems == [], f"recovery cut at durable event {number}"
    return statuses[0]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("part", "writer"),
    [("phase_a", UPDATE), ("restore", UPDATE), ("confirmation", FAST_FORWARD)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_the_harness_notices_a_broken_protocol(part, writer, children, tmp_path):
    """Without Phase A, without a real restore, or with merges that need no confirmation, some cut shows it."""
    bench = Bench(children, tmp_path)
    violated = False
    for number in range(10, EVENTS_MAX, 2):
        was_cut, problems = bench.cut(writer, cut=number, without=part)
        violated = bool(problems)
        if violated or not was_cut:
            break
    assert violated, f"nobody noticed that {part} was switched off"
