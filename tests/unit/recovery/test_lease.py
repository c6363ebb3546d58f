"""The writer lease: shared by threads, exclusive between processes, alone for a restore."""

import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from omnigraph.core.clock import SYSTEM_CLOCK
from omnigraph.core.errors import InternalError, LeaseLost, ResourceBusy
from omnigraph.core.limits import LEASE_CLOCK_SKEW_S_MAX, LEASE_EXPIRY_S
from omnigraph.recovery import process_lock
from omnigraph.recovery.lease import Lease, lease_of
from omnigraph.recovery.process_lock import FileLock, ObjectLock
from omnigraph.storage.layout import LEASE, GraphRoot
from omnigraph.storage.objects import open_adapter

WAIT_S = 20

HOLDER = """
import sys
from omnigraph.recovery.process_lock import FileLock
held = FileLock(sys.argv[1]).acquire(20.0)
assert held is not None
print("held", flush=True)
sys.stdin.readline()
held.release()
print("released", flush=True)
sys.stdin.readline()
"""


@contextmanager
def another_process_holding(path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "held\n"
        yield child
    finally:
        child.kill()
        child.communicate()


class Thread(threading.Thread):
    """A thread that goes through named steps when told to, and keeps what it raised."""

    def __init__(self, work):
        super().__init__()
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.error = None
        self._work = work
        self.start()

    def run(self):
        try:
            with self._work():
                self.entered.set()
                assert self.go_on.wait(WAIT_S)
        except BaseException as error:
            self.error = error
            self.entered.set()

    def finish(self):
        self.go_on.set()
        self.join(WAIT_S)
        assert not self.is_alive()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / LEASE)


def test_another_process_waits_and_gets_its_turn(path):
    lease = Lease(FileLock(path))
    with another_process_holding(path) as child:
        with pytest.raises(ResourceBusy), lease.hold(wait_s_max=0.05):
            pass
        assert not lease.held
        child.stdin.write("go\n")
        child.stdin.flush()
        with lease.hold(wait_s_max=WAIT_S):
            assert lease.held


def test_the_death_of_a_holder_frees_the_lease(path):
    lease = Lease(FileLock(path))
    with another_process_holding(path) as child:
        child.kill()
        with lease.hold(wait_s_max=WAIT_S):
            assert lease.held


def test_threads_share_one_hold(path):
    lease = Lease(FileLock(path))
    first = Thread(lambda: lease.hold(wait_s_max=WAIT_S))
    assert first.entered.wait(WAIT_S)
    second = Thread(lambda: lease.hold(wait_s_max=WAIT_S))
    assert second.entered.wait(WAIT_S)
    first.finish()
    assert lease.held
    other = FileLock(path)
    assert other.acquire(0.02) is None
    second.finish()
    assert (first.error, second.error) == (None, None)
    assert not lease.held
    other.acquire(WAIT_S).release()


def test_the_hold_is_reentrant(path):
    lease = Lease(FileLock(path))
    with lease.hold(), lease.hold():
        assert lease.held
    with lease.alone(), lease.hold(), lease.alone():
        assert lease.held
    assert not lease.held


def test_alone_waits_for_the_threads_inside_and_keeps_others_out(path):
    lease = Lease(FileLock(path))
    inside = Thread(lambda: lease.hold(wait_s_max=WAIT_S))
    assert inside.entered.wait(WAIT_S)
    with pytest.raises(ResourceBusy), lease.alone(wait_s_max=0.05):
        pass
    alone = Thread(lambda: lease.alone(wait_s_max=WAIT_S))
    assert not alone.entered.wait(0.05)
    inside.finish()
    assert alone.entered.wait(WAIT_S)
    with pytest.raises(ResourceBusy), lease.hold(wait_s_max=0.05):
        pass
    alone.finish()
    assert (inside.error, alone.error) == (None, None)
    with lease.hold(wait_s_max=WAIT_S):
        pass


def test_alone_inside_a_shared_hold_is_a_mistake(path):
    lease = Lease(FileLock(path))
    with lease.hold(), pytest.raises(InternalError), lease.alone(wait_s_max=0.05):
        pass
    assert not lease.held


def test_alone_waits_for_other_processes(path):
    lease = Lease(FileLock(path))
    with another_process_holding(path), pytest.raises(ResourceBusy), lease.alone(wait_s_max=0.05):
        pass
    with lease.alone(wait_s_max=WAIT_S):
        assert lease.held


@pytest.mark.slow
def test_a_busy_process_lets_another_one_in(path):
    """Two threads that overlap for ever would starve the rest without the bound on a shared hold."""
    lease = Lease(FileLock(path))
    stop = threading.Event()
    holds = [0]

    def work():
        while not stop.is_set():
            with lease.hold(wait_s_max=WAIT_S):
                holds[0] += 1
                stop.wait(0.002)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        with another_process_holding(path) as child:
            child.stdin.write("go\n")
            child.stdin.flush()
            assert child.stdout.readline() == "released\n"
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert holds[0] > 4


FORKED = """
import os, sys
from omnigraph.recovery.lease import Lease
from omnigraph.recovery.process_lock import FileLock

path, wait_s = sys.argv[1], float(sys.argv[2])
lease = Lease(FileLock(path))
read, write = os.pipe()
with lease.hold():
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
os.close(read)
# The child lives; had it kept the descriptor, the lock would still be there.
taken = FileLock(path).acquire(wait_s) is not None
os.write(write, b"x")
os.close(write)
os.waitpid(child, 0)
assert taken
"""


def test_a_forked_child_does_not_keep_the_lease(path):
    # A process of its own: another test may have loaded what must not be forked.
    subprocess.run([sys.executable, "-c", FORKED, str(path), str(WAIT_S)], check=True)


FORKED_WHILE_WAITING = """
import os, sys, threading
from omnigraph.recovery.process_lock import FileHeld, FileLock

path, wait_s = sys.argv[1], float(sys.argv[2])
holder = FileLock(path).acquire(wait_s)
waiting = threading.Event()
lock_file = FileHeld.lock


def told(self, deadline):
    taken = lock_file(self, deadline)
    if taken:
        waiting.set()  # the waiting thread has the turnstile and now waits for the file
    return taken


FileHeld.lock = told
got = []
thread = threading.Thread(target=lambda: got.append(FileLock(path).acquire(wait_s)))
thread.start()
assert waiting.wait(wait_s)
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.close(write)
    os.read(read, 1)
    os._exit(0)
os.close(read)
holder.release()
thread.join()
got.pop().release()
# The child lives. Had it kept what the waiting thread had open, nobody could pass the turnstile any more.
taken = FileLock(path).acquire(wait_s) is not None
os.write(write, b"x")
os.close(write)
os.waitpid(child, 0)
assert taken
"""


def test_a_child_forked_while_a_thread_waits_keeps_nothing(path):
    subprocess.run([sys.executable, "-c", FORKED_WHILE_WAITING, str(path), str(WAIT_S)], check=True)


def test_a_forgotten_hold_is_over(path):
    lease = Lease(FileLock(path))
    lease.hold()
    lease.alone()
    assert not lease.held
    FileLock(path).acquire(WAIT_S).release()


def test_the_wait_that_is_over_names_who_is_in_the_way(path):
    lease = Lease(FileLock(path))
    inside = Thread(lease.hold)
    assert inside.entered.wait(WAIT_S)
    with pytest.raises(ResourceBusy, match=rf"waited for '{inside.name}' of this process"):
        lease.alone(wait_s_max=0.05)
    inside.finish()
    with another_process_holding(path), pytest.raises(ResourceBusy, match="another process has the lease"):
        lease.hold(wait_s_max=0.05)


def test_one_lease_per_root(tmp_path):
    root = GraphRoot(str(tmp_path))
    adapter = open_adapter(str(tmp_path))
    first = lease_of(root, adapter, SYSTEM_CLOCK)
    assert lease_of(GraphRoot(f"{tmp_path}/"), adapter, SYSTEM_CLOCK) is first


class Clock:
    def __init__(self):
        self.us = 1_700_000_000_000_000

    def now_us(self):
        return self.us


@pytest.fixture
def adapter(tmp_path):
    return open_adapter(f"memory://lease-{tmp_path.name}")


def test_object_lease_is_exclusive_and_handed_on(adapter):
    clock = Clock()
    first, second = ObjectLock(adapter, LEASE, clock), ObjectLock(adapter, LEASE, clock)
    held = first.acquire(1.0)
    assert second.acquire(0.02) is None
    held.check()
    held.release()
    held = second.acquire(1.0)
    assert first.acquire(0.02) is None
    held.release()
    assert json.loads(adapter.read_text(LEASE))["owner"] is None


def test_an_expired_object_lease_is_taken_over_and_its_holder_does_not_free_it(adapter):
    clock = Clock()
    first, second = ObjectLock(adapter, LEASE, clock), ObjectLock(adapter, LEASE, clock)
    late = first.acquire(1.0)
    clock.us += LEASE_EXPIRY_S * 1_000_000
    assert second.acquire(0.02) is None, "inside the allowed clock skew"
    late.check()
    clock.us += (LEASE_CLOCK_SKEW_S_MAX + 1) * 1_000_000
    held = second.acquire(1.0)
    owner = json.loads(adapter.read_text(LEASE))["owner"]
    with pytest.raises(LeaseLost):
        late.check()
    late.release()
    assert json.loads(adapter.read_text(LEASE))["owner"] == owner
    held.check()
    held.release()


def test_a_long_hold_is_renewed(adapter, monkeypatch):
    monkeypatch.setattr(process_lock, "LEASE_EXPIRY_S", 0.03)
    held = ObjectLock(adapter, LEASE, SYSTEM_CLOCK).acquire(1.0)
    deadline = time.monotonic() + WAIT_S
    while json.loads(adapter.read_text(LEASE))["beat"] < 2:
        assert time.monotonic() < deadline
    assert not held.lost
    held.release()


def test_a_holder_that_lost_its_lease_knows(adapter, monkeypatch):
    monkeypatch.setattr(process_lock, "LEASE_EXPIRY_S", 0.03)
    held = ObjectLock(adapter, LEASE, SYSTEM_CLOCK).acquire(1.0)
    adapter.write_text(LEASE, json.dumps({"owner": "somebody", "expires_at": 2**62, "beat": 0}))
    deadline = time.monotonic() + WAIT_S
    while not held.lost:
        assert time.monotonic() < deadline
    with pytest.raises(LeaseLost):
        held.check()
    held.release()
    assert json.loads(adapter.read_text(LEASE))["owner"] == "somebody"


def test_an_unreadable_lease_object_expires_by_observation(adapter, monkeypatch):
    monkeypatch.setattr(process_lock, "LEASE_EXPIRY_S", 0.03)
    adapter.write_text(LEASE, "not json")
    lock = ObjectLock(adapter, LEASE, SYSTEM_CLOCK)
    assert lock.acquire(0.0) is None
    lock.acquire(WAIT_S).release()


def test_the_lock_file_of_a_local_graph_that_was_copied_here_is_free(adapter):
    adapter.write_text(LEASE, "")
    ObjectLock(adapter, LEASE, SYSTEM_CLOCK).acquire(0.0).release()


# --- standing before the lease -------------------------------------------------------------------------------


def test_who_stands_before_the_lease_is_the_next_inside(path):
    first, second, third = (Lease(FileLock(str(path))) for _ in range(3))
    with first.hold() as inside:
        with second.approach():
            assert not second.held
            with pytest.raises(ResourceBusy):
                third.hold(wait_s_max=0.0)
            late = Thread(third.hold)
            inside.release()
            assert not late.entered.is_set()
            with second.hold():
                assert second.held
            assert second.held, "inside until the end of the place before the lease"
            assert not late.entered.is_set()
        assert late.entered.wait(WAIT_S)
        late.finish()


def test_who_leaves_the_place_before_the_lease_lets_others_in(path):
    first, second = (Lease(FileLock(str(path))) for _ in range(2))
    with first.approach(), pytest.raises(ResourceBusy):
        second.hold(wait_s_max=0.0)
    with second.hold(wait_s_max=0.0):
        pass
    first.approach()  # nobody refers to it
    with second.hold(wait_s_max=0.0):
        pass


def test_the_place_before_the_lease_is_given_to_one(path):
    first, second = (Lease(FileLock(str(path))) for _ in range(2))
    with first.approach(), pytest.raises(ResourceBusy, match="other processes wait"):
        second.approach(wait_s_max=0.0)
    with second.approach(wait_s_max=0.0):
        pass


def test_before_a_lease_that_its_process_has_a_thread_joins_the_others(path):
    lease = Lease(FileLock(str(path)))
    inside = Thread(lease.hold)
    assert inside.entered.wait(WAIT_S)
    with lease.approach(wait_s_max=0.0), lease.hold(wait_s_max=0.0):
        inside.finish()
        assert lease.held
    assert not lease.held


def test_threads_of_a_process_wait_behind_the_one_before_the_lease(path):
    lease = Lease(FileLock(str(path)))
    with lease.approach():
        late = Thread(lease.hold)
        with lease.hold():
            assert late.entered.wait(WAIT_S), "a process that is inside lets its threads in"
            late.finish()


def test_nobody_inside_the_lease_stands_before_it(path):
    lease = Lease(FileLock(str(path)))
    with lease.hold(), pytest.raises(InternalError):
        lease.approach()
    with lease.approach(), pytest.raises(InternalError):
        lease.alone(wait_s_max=0.0)
    with lease.alone(wait_s_max=0.0):
        pass


def test_a_lease_object_has_no_order_and_is_entered_all_the_same(adapter):
    first, second = (Lease(ObjectLock(adapter, LEASE, SYSTEM_CLOCK)) for _ in range(2))
    with first.approach(), second.approach(), first.hold(), pytest.raises(ResourceBusy):
        second.hold(wait_s_max=0.0)
