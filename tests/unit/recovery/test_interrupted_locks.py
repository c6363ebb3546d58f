"""An interrupt between any two lines of taking, waiting for and giving back a lock leaves no lock behind."""

import threading

import pytest

from interrupting import interrupted_at
from omnigraph.core.ids import TableKey
from omnigraph.recovery import lease as lease_module
from omnigraph.recovery import process_lock, queues, waiting_line
from omnigraph.recovery.lease import Lease
from omnigraph.recovery.process_lock import FileLock
from omnigraph.recovery.queues import WriteQueueManager

PERSON = (TableKey("node:Person"), None)
KNOWS = (TableKey("edge:Knows"), None)
LINES_MAX = 400
WAIT_S = 20
SWALLOWED = {"__del__", "forgotten"}
"""An interrupt inside a finalizer is never raised: the interpreter reports and drops it."""


def every_interrupt(call, modules):
    """Interrupt `call` at its first line, its second, and so on; yields after each until it runs through."""
    for number in range(1, LINES_MAX):
        stopped = interrupted_at(number, call, modules, SWALLOWED)
        if stopped is None:
            return
        yield stopped.where
    raise AssertionError("the call has more lines than expected")


def test_queues_are_free_after_an_interrupt_anywhere():
    manager = WriteQueueManager()

    def write():
        with manager.acquire_many([PERSON, KNOWS]):
            pass

    places = set()
    for where in every_interrupt(write, {queues, waiting_line}):
        places.add(where.split()[-1])
        manager.acquire_many([KNOWS, PERSON], wait_s_max=0).release()
        assert manager.held_keys() == frozenset(), where
    assert {"acquire_many", "join", "wait_until", "release", "leave"} <= places


def test_queues_are_free_after_an_interrupt_of_a_waiting_writer():
    manager = WriteQueueManager()
    for number in range(1, LINES_MAX):
        holding, stop = threading.Event(), threading.Event()

        def hold(holding=holding, stop=stop):
            with manager.acquire_many([PERSON]):
                holding.set()
                stop.wait(WAIT_S)

        thread = threading.Thread(target=hold)
        thread.start()
        assert holding.wait(WAIT_S)

        def write(stop=stop):
            stop_soon = threading.Thread(target=stop.set)
            stop_soon.start()
            with manager.acquire_many([PERSON], wait_s_max=WAIT_S):
                pass
            stop_soon.join()

        ended = interrupted_at(number, write, {queues, waiting_line}, SWALLOWED) is None
        stop.set()
        thread.join(WAIT_S)
        manager.acquire_many([PERSON], wait_s_max=WAIT_S).release()
        assert manager.held_keys() == frozenset()
        if ended:
            return
    raise AssertionError("the call has more lines than expected")


@pytest.mark.parametrize("alone", [False, True])
def test_the_lease_is_free_after_an_interrupt_anywhere(tmp_path, alone):
    path = str(tmp_path / "lease")
    lease = Lease(FileLock(path))

    def write():
        with lease.alone() if alone else lease.hold():
            pass

    places = set()
    for where in every_interrupt(write, {lease_module, waiting_line, process_lock}):
        places.add(where.split()[-1])
        assert not lease.held, where
        other = FileLock(path).acquire(0.0)
        assert other is not None, f"another process cannot write: {where}"
        other.release()
        lease.hold(wait_s_max=0).release()
    assert {"_enter", "_take", "acquire", "leave", "release"} <= places


def test_the_place_before_the_lease_is_free_after_an_interrupt_anywhere(tmp_path):
    path = str(tmp_path / "lease")
    lease = Lease(FileLock(path))

    def write():
        with lease.approach(), lease.hold():
            pass

    places = set()
    for where in every_interrupt(write, {lease_module, waiting_line, process_lock}):
        places.add(where.split()[-1])
        assert not lease.held, where
        other = FileLock(path).acquire(0.0)
        assert other is not None, f"another process cannot write: {where}"
        other.release()
        with lease.approach(wait_s_max=0), lease.hold(wait_s_max=0):
            pass
    assert {"approach", "_await_next_place", "_nested", "_take", "acquire", "leave", "release"} <= places


def test_an_interrupt_of_one_thread_leaves_the_other_inside(tmp_path):
    path = str(tmp_path / "lease")
    lease = Lease(FileLock(path))
    inside, stop = threading.Event(), threading.Event()

    def stay():
        with lease.hold():
            inside.set()
            stop.wait(WAIT_S)

    def visit():
        with lease.hold():
            pass

    thread = threading.Thread(target=stay)
    thread.start()
    try:
        assert inside.wait(WAIT_S)
        for where in every_interrupt(visit, {lease_module, waiting_line}):
            assert lease.held, where
            assert FileLock(path).acquire(0.0) is None, where
    finally:
        stop.set()
        thread.join(WAIT_S)
    FileLock(path).acquire(WAIT_S).release()
