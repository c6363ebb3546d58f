"""Every durable write cut: the writer is killed before and after its k-th durable operation, for all k."""

import pytest

from crash.harness import CUT, EXIT_AT_WINDOW, Bench, Children, Prepared
from crash.people import FAST_FORWARD, INSERT, LONG, LONGEST, NAMES, UPDATE, WRITERS

pytestmark = [pytest.mark.crash, pytest.mark.slow]
EVENTS_MAX = 3000


@pytest.fixture(scope="module")
def children():
    with Children() as started:
        yield started


def _steps():
    """Every cut of every writer; of the long ones the suite takes each fifth or 25th and `torture` all."""
    for writer in WRITERS.values():
        step = 5 if writer in LONG else 25 if writer in LONGEST else 1
        if step > 1:
            yield pytest.param(writer, step, id=f"{writer.name}-each-{step}th")
        marks = (pytest.mark.torture,) if step > 1 else ()
        yield pytest.param(writer, 1, id=writer.name, marks=marks)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("writer", "step"), list(_steps()))
def test_killed_writer_is_all_or_nothing_at_every_durable_operation(writer, step, children, tmp_path):
    bench = Bench(children, tmp_path, writer)
    cuts = 0
    for number in range(1, EVENTS_MAX, step):
        was_cut, problems = bench.cut(number)
        assert problems == [], f"{writer.name} cut at durable event {number}"
        if not was_cut:
            break
        cuts += 1
    print(f"\n{writer.name}: {cuts} cuts, every one before or after")
    assert (1 if writer in NAMES else 20) // step < cuts < EVENTS_MAX // step - 1


@pytest.mark.timeout(900)
def test_killed_recovery_is_finished_by_the_next(children, tmp_path):
    """The recovery of a half-finished write is itself cut at each of its durable operations."""
    bench = Bench(children, tmp_path, INSERT)
    # The writer dies between its second and its third table.
    assert bench.write(failpoints="mutation.post_table_commit=pass,exit") == EXIT_AT_WINDOW
    half_done = Prepared(bench.path, "half-done")
    cuts = 0
    for number in range(1, EVENTS_MAX):
        half_done.put_back()
        status = children.run("recover", path=str(bench.path), cut=number)
        assert status in {0, CUT}
        found = bench.recover()
        assert bench.judge(found) == [], f"recovery cut at durable event {number}"
        assert [kind for _, kind in found["recoveries"]] == ["RolledBack"]
        if status == 0:
            break
        cuts += 1
    print(f"\nrecovery: {cuts} cuts")
    assert 20 < cuts < EVENTS_MAX - 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("part", "writer"),
    [("phase_a", UPDATE), ("restore", UPDATE), ("confirmation", FAST_FORWARD)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_the_harness_notices_a_broken_protocol(part, writer, children, tmp_path):
    """Without Phase A, without a real restore, or with merges that need no confirmation, some cut shows it."""
    bench = Bench(children, tmp_path, writer)
    violated = False
    # Every one: files are synced side by side, so what lies between two tables has no fixed number.
    for number in range(10, EVENTS_MAX):
        was_cut, problems = bench.cut(number, without=part)
        violated = bool(problems)
        if violated or not was_cut:
            break
    assert violated, f"nobody noticed that {part} was switched off"
