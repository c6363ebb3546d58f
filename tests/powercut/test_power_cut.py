"""The power goes at every call of every writer: what the disk may have kept is before or after, and can be used.

The calls of one process are recorded (`shim.c`). From them follows what a file system may keep when the process
ends at any call and the power goes: only what was synced is sure. Each such state is put in place of the graph,
opened, verified, read and written.

`OMNIGRAPH_TORTURE_STATES` bounds how many states of each writer `make torture` looks at; all without it. With
`OMNIGRAPH_TORTURE_TALLY` it can be cut off and taken up again (`tally`).
"""

import os
from collections import Counter

import pytest

from crash.people import BRANCH_CREATE, BRANCH_INSERT, RECONCILED, SWITCH, WRITERS
from powercut.scene import spread, where_possible
from powercut.tally import Tally, from_environment

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(3600)]

IN_THE_SUITE = 6
"""States of each writer that the suite looks at; `make torture` looks at all."""
DEATHS_IN_THE_SUITE = 2
EVERY_NTH_DEATH = 6
"""Calls from one death to the next, where another process writes on top."""
EVERY_NTH_THOROUGH = 4
"""Of the states that `make torture` looks at: those that are opened and verified once more after a write."""
IN_TORTURE = int(os.environ.get("OMNIGRAPH_TORTURE_STATES", "1000000"))


@pytest.fixture(scope="module")
def tally():
    """The states that all tests of this module judge, told at its end."""
    kept = from_environment()
    yield kept
    print(f"\npower cuts judged, none broken: {kept}")


def judged(scene, cuts, *, thorough):
    """How many states were looked at; fails with every one that breaks the promise."""
    broken = {}
    kinds = Counter()
    for number, cut in enumerate(cuts):
        kinds[cut.how.split()[0]] += 1
        problems = scene.judge(cut, thorough=thorough and number % EVERY_NTH_THOROUGH == 0)
        if problems:
            broken[str(cut)] = problems
    assert broken == {}, f"{len(broken)} of {kinds.total()} states of {scene.writer.name}"
    return kinds.total()


def states_of(scene, tally, *, every):
    part = scene.writer.name if every else f"a few of {scene.writer.name}"
    if tally.judged(part):
        return
    written = scene.write()
    cuts = list(scene.cuts(written))
    count = judged(scene, spread(cuts, IN_TORTURE if every else IN_THE_SUITE), thorough=every)
    tally.note(part, count)
    print(f"\n{part}: {len(written)} calls, {len(cuts)} different states, {count} judged, none broken")


def built_upon(scene, tally, *, every):
    part = f"{scene.writer.name if every else f'a few of {scene.writer.name}'}, another process on top"
    if tally.judged(part):
        return
    written = scene.write()
    few = max(1, len(written) // (DEATHS_IN_THE_SUITE + 1))
    step = max(min(EVERY_NTH_DEATH, few), 2 * len(written) // IN_TORTURE) if every else few
    deaths = range(step, len(written), step)[: None if every else DEATHS_IN_THE_SUITE]
    count = 0
    for number in deaths:
        cuts = list(scene.cuts_after_another(written, number, seeds=2 if every else 1))
        chosen = spread(cuts, max(2, IN_TORTURE // len(deaths)) if every else 3)
        count += judged(scene, chosen, thorough=every)
    tally.note(part, count)
    print(f"\n{part}: {len(deaths)} deaths, {count} states, none broken")


@pytest.mark.parametrize(
    "writer", [each for each in WRITERS.values() if each is not RECONCILED], ids=lambda w: w.name
)
def test_a_power_cut_leaves_before_or_after(scene_of, writer, tally, record_property):
    with where_possible(record_property):
        states_of(scene_of(writer), tally, every=False)


@pytest.mark.torture
@pytest.mark.parametrize("writer", WRITERS.values(), ids=lambda w: w.name)
def test_a_power_cut_at_any_call_leaves_before_or_after(scene_of, writer, tally, record_property):
    with where_possible(record_property):
        states_of(scene_of(writer), tally, every=True)


@pytest.mark.parametrize("writer", [BRANCH_INSERT, BRANCH_CREATE, SWITCH], ids=lambda w: w.name)
def test_what_is_acknowledged_on_top_of_a_dead_writer_stays(scene_of, writer, tally, record_property):
    """A writer dies, another process builds on what it finds and acknowledges a write, then the power goes."""
    with where_possible(record_property):
        built_upon(scene_of(writer), tally, every=False)


@pytest.mark.torture
@pytest.mark.parametrize("writer", WRITERS.values(), ids=lambda w: w.name)
def test_what_is_acknowledged_on_top_of_any_dead_writer_stays(scene_of, writer, tally, record_property):
    with where_possible(record_property):
        built_upon(scene_of(writer), tally, every=True)


def test_the_harness_notices_forks_that_are_not_synced(scene_of, record_property):
    """The write is acknowledged, and its forks were never synced: some cut must lose it."""
    with where_possible(record_property):
        scene = scene_of(BRANCH_INSERT)
        promised = [cut for cut in scene.cuts(scene.write(without="fork_syncs")) if cut.returned]
        assert promised
        assert any(scene.judge(cut, thorough=False) for cut in promised), "nobody noticed"


def test_the_harness_notices_a_writer_that_builds_on_unsynced_work(scene_of, record_property):
    """The creator of a branch dies before its sync; the next process does not sync what it writes on."""
    with where_possible(record_property):
        scene = scene_of(BRANCH_CREATE)
        written = scene.write()
        # The branch is there for others to see, and nothing of it has been synced.
        seen = next(n for n, call in enumerate(written, 1) if call.other.endswith("_refs/branches/n5.json"))
        cuts = scene.cuts_after_another(written, seen, seeds=3, without="found_syncs")
        assert any(scene.judge(cut, thorough=False) for cut in cuts), "nobody noticed"


def test_a_run_that_was_cut_off_is_taken_up_where_it_ended(tmp_path):
    kept = str(tmp_path / "tally")
    Tally(kept).note("insert", 120)
    again = Tally(kept)
    again.note("update", 30)
    assert (again.judged("insert"), again.judged("delete")) == (120, 0)
    assert str(Tally(kept)) == "150 states in 2 parts"
    assert str(Tally()) == "0 states in 0 parts"
