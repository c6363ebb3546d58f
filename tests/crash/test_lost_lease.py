"""A writer on an object store that stood still for longer than its lease: nobody's write is lost, none is stuck."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import omnigraph
from crash.people import (
    BRANCH_CREATE,
    BRANCH_DELETE,
    INSERT,
    SCHEMA,
    TAG_CREATE,
    TAG_DELETE,
    Model,
    prepare,
    seed,
)
from omnigraph.core.clock import SystemClock
from omnigraph.recovery import process_lock
from stores import s3_store

pytestmark = [pytest.mark.s3, pytest.mark.crash]

CHILD = Path(__file__).with_name("lease_child.py")
EXPIRY_S = 1.0
WAIT_S = 120
SKEW_US = 30_000_000
DIED = 9


@pytest.fixture
def graph(monkeypatch):
    monkeypatch.setattr(process_lock, "LEASE_EXPIRY_S", EXPIRY_S)
    monkeypatch.setattr(process_lock, "LEASE_CLOCK_SKEW_S_MAX", 0.0)
    place = s3_store()
    graph = omnigraph.init(place.uri, schema=SCHEMA, storage_options=place.storage_options)
    seed(graph)
    graph.place = place
    return graph


@contextmanager
def standing_still(place, at, how, then, writer=INSERT):
    """A child that stands still before the given step of its write."""
    words = {"uri": place.uri, "options": place.storage_options, "expiry_s": EXPIRY_S}
    words |= {"writer": writer.name, "at": at, "how": how, "then": then}
    child = subprocess.Popen(
        [sys.executable, str(CHILD), json.dumps(words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if how == "stop":
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), f"the writer ended instead: {child.communicate(timeout=WAIT_S)}"
        else:
            assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.communicate(timeout=WAIT_S)


def settle(graph):
    """Open for writing until what the standing writer left is settled; its lease must expire first."""
    deadline = time.monotonic() + WAIT_S
    while graph.pending():
        assert time.monotonic() < deadline, "the lease of the standing writer was never taken over"
        omnigraph.open(graph.place.uri, storage_options=graph.place.storage_options).close()
    graph.refresh()


def go_on(child, how):
    """Let the writer go on; what it says of its write, None when it died."""
    if how == "stop":
        child.send_signal(signal.SIGCONT)
        said, errors = child.communicate(timeout=WAIT_S)
    else:
        said, errors = child.communicate("\n", timeout=WAIT_S)
    assert child.returncode in {0, DIED}, errors
    return json.loads(said.splitlines()[-1]) if child.returncode == 0 else None


def judge(graph, before, said, between):
    """Every type is writable, the rows are those of whole writes, and the audit tells what became of each."""
    INSERT.run(graph, "3")
    INSERT.run(graph, "4")
    found = Model.read(graph.export())
    expected = before.copy()
    for tag in [*(["2"] if between else []), "3", "4"]:
        INSERT.apply(expected, tag)
    landed = INSERT.after(expected, "1")
    kinds = [each.recovery_kind.value for each in graph.recoveries()]
    assert found in (expected, landed)
    if said is not None and said["ok"]:
        assert found == landed
        assert "RolledBack" not in kinds
    if found == landed:
        assert kinds in ([], ["RolledForward"])
    assert graph.pending() == ()
    report = graph.verify()
    assert report.ok, report.violations


def stands_still(graph, at, *, then="go_on", between=True, how="stop"):
    before = Model.read(graph.export())
    with standing_still(graph.place, at, how, then) as child:
        settle(graph)
        if between:
            INSERT.run(graph, "2")
        said = go_on(child, how)
    judge(graph, before, said, between)
    return said


def test_a_writer_stopped_between_two_commits_leaves_no_drift(graph):
    """It was rolled back while it stood still, and moves its second table afterwards."""
    said = stands_still(graph, ("commit", 2))
    assert (said["ok"], said["kind"]) == (False, "recovery_required")


def test_a_stopped_writer_that_was_rolled_back_is_never_acknowledged(graph):
    """Its tables are where it left them when it goes on, so that nothing but the fence stops its publish."""
    said = stands_still(graph, ("commit", 1), between=False)
    assert said["ok"] is False


def test_a_stopped_writer_that_was_rolled_forward_is_there_once(graph):
    said = stands_still(graph, ("publish", 1))
    assert (said["ok"], said["kind"]) == (False, "recovery_required")
    assert INSERT.after(Model(), "1").people.items() <= Model.read(graph.export()).people.items()


def test_a_stopped_writer_that_dies_after_a_late_commit_leaves_no_drift(graph):
    assert stands_still(graph, ("commit", 2), then="die") is None


def test_a_clock_that_is_ahead_takes_a_living_lease_and_nothing_is_lost(graph, monkeypatch):
    now_us = SystemClock.now_us
    monkeypatch.setattr(process_lock, "LEASE_EXPIRY_S", 15)
    monkeypatch.setattr(SystemClock, "now_us", lambda self: now_us(self) + SKEW_US)
    said = stands_still(graph, ("commit", 2), how="wait")
    assert said["ok"] is False


# --- branches and tags -----------------------------------------------------------------------------------
# The first writer stands still; the second takes the lease and does the same to the same name, acknowledged.


def _made_and_written(graph, name):
    graph.branches.create(name)
    INSERT.run(graph, "2", name)


def _deleted_and_made_again(graph):
    graph.branches.delete("b1")
    _made_and_written(graph, "b1")


def _tagged_again(graph):
    graph.tags.delete("t1")
    INSERT.run(graph, "2")
    graph.tags.create("t1")


def _tagged(graph):
    INSERT.run(graph, "2")
    graph.tags.create("t1")


def _meanwhile_on_a_branch(name):
    return lambda graph: _made_and_written(graph, name)


def overtaken(graph, writer, at, second, *, then="go_on", how="stop"):
    """What the first writer says of its operation, after the second one has done its own."""
    prepare(graph, writer, "1")
    with standing_still(graph.place, at, how, then, writer) as child:
        second(graph)
        expected = {name: Model.read(graph.export(branch=name)) for name in graph.branches.list()}
        tags = graph.tags.list()
        said = go_on(child, how)
    fresh = omnigraph.open(graph.place.uri, storage_options=graph.place.storage_options)
    assert {name: Model.read(fresh.export(branch=name)) for name in fresh.branches.list()} == expected
    assert fresh.tags.list() == tags
    assert fresh.recoveries() == ()
    assert fresh.verify().violations == ()
    for name, model in expected.items():
        INSERT.run(fresh, "3", name)
        INSERT.apply(model, "3")
    assert {name: Model.read(fresh.export(branch=name)) for name in fresh.branches.list()} == expected
    assert fresh.verify().violations == ()
    return said


LOST = (False, "resource_busy")
OVERTAKEN = {
    "branch_create": (BRANCH_CREATE, ("check", 1), _meanwhile_on_a_branch("n1"), LOST),
    "branch_create_in_the_gap": (BRANCH_CREATE, ("branch", 1), _meanwhile_on_a_branch("n1"), LOST),
    "branch_delete": (BRANCH_DELETE, ("check", 1), _deleted_and_made_again, LOST),
    "branch_delete_before_its_states": (
        BRANCH_DELETE,
        ("check", 2),
        _meanwhile_on_a_branch("b1"),
        (True, None),
    ),
    "branch_delete_before_its_forks": (
        BRANCH_DELETE,
        ("check", 3),
        _meanwhile_on_a_branch("b1"),
        (True, None),
    ),
    "tag_create": (TAG_CREATE, ("check", 1), _tagged, LOST),
    "tag_create_in_the_gap": (TAG_CREATE, ("tag", 1), _tagged, LOST),
    "tag_delete": (TAG_DELETE, ("check", 1), _tagged_again, LOST),
}


@pytest.mark.parametrize("name", OVERTAKEN)
def test_a_stopped_change_of_a_name_does_nothing_to_that_of_its_successor(graph, name):
    writer, at, second, outcome = OVERTAKEN[name]
    said = overtaken(graph, writer, at, second)
    assert (said["ok"], said.get("kind")) == outcome


@pytest.mark.parametrize("name", ["branch_create_in_the_gap", "branch_delete_before_its_forks"])
def test_a_clock_that_is_ahead_does_nothing_to_the_name_of_its_successor(graph, monkeypatch, name):
    now_us = SystemClock.now_us
    monkeypatch.setattr(process_lock, "LEASE_EXPIRY_S", 15)
    monkeypatch.setattr(SystemClock, "now_us", lambda self: now_us(self) + SKEW_US)
    writer, at, second, outcome = OVERTAKEN[name]
    said = overtaken(graph, writer, at, second, how="wait")
    assert (said["ok"], said.get("kind")) == outcome


@pytest.mark.parametrize("name", ["branch_create_in_the_gap", "branch_delete_before_its_forks"])
def test_a_stopped_change_of_a_name_that_then_dies_leaves_that_of_its_successor(graph, name):
    writer, at, second, _ = OVERTAKEN[name]
    assert overtaken(graph, writer, at, second, then="die") is None


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_every_place_to_stand_still(monkeypatch):
    for at in [("commit", 1), ("commit", 2), ("commit", 3), ("publish", 1)]:
        for then in ("go_on", "die"):
            for between in (False, True):
                for how in ("stop", "wait"):
                    with monkeypatch.context() as patch:
                        patch.setattr(process_lock, "LEASE_EXPIRY_S", EXPIRY_S)
                        patch.setattr(process_lock, "LEASE_CLOCK_SKEW_S_MAX", 0.0)
                        place = s3_store()
                        graph = omnigraph.init(
                            place.uri, schema=SCHEMA, storage_options=place.storage_options
                        )
                        seed(graph)
                        graph.place = place
                        if how == "wait":
                            now_us = SystemClock.now_us
                            patch.setattr(SystemClock, "now_us", lambda self, now=now_us: now(self) + SKEW_US)
                        said = stands_still(graph, at, then=then, between=between, how=how)
                        print(at, then, "write between" if between else "no write between", how, said)
