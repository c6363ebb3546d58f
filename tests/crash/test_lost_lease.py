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
from crash.people import INSERT, SCHEMA, Model, seed
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
def standing_still(place, at, how, then):
    """A child that stands still before the given step of its write."""
    words = {"uri": place.uri, "options": place.storage_options, "expiry_s": EXPIRY_S}
    words |= {"at": at, "how": how, "then": then}
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
