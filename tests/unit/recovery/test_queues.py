"""Write queues: order, exclusion, sharing."""

import threading

import pytest

from omnigraph.core.errors import InternalError, ResourceBusy
from omnigraph.core.ids import BranchName, TableKey
from omnigraph.recovery.queues import SCHEMA_APPLY_KEY, WriteQueueManager, queues_of

PERSON = (TableKey("node:Person"), None)
KNOWS = (TableKey("edge:Knows"), None)
PERSON_ON_B = (TableKey("node:Person"), BranchName("b"))
WAIT_S = 20


def in_thread(work):
    """Run `work` in a thread and return it with a box for what it returned or raised."""
    box = []

    def run():
        try:
            box.append(work())
        except BaseException as error:
            box.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, box


def test_keys_are_deduplicated_and_sorted_with_schema_apply_first():
    queues = WriteQueueManager()
    with queues.acquire_many([PERSON, KNOWS, PERSON, PERSON_ON_B, SCHEMA_APPLY_KEY]) as guards:
        assert guards.keys == (SCHEMA_APPLY_KEY, KNOWS, PERSON, PERSON_ON_B)
        assert queues.held_keys() == set(guards.keys)
    assert queues.held_keys() == frozenset()


def test_one_key_excludes_and_other_branches_do_not():
    queues = WriteQueueManager()
    with queues.acquire_many([PERSON]):
        thread, box = in_thread(lambda: queues.acquire_many([PERSON], wait_s_max=0.05))
        thread.join(WAIT_S)
        assert isinstance(box[0], ResourceBusy)
        thread, box = in_thread(
            lambda: queues.acquire_many([PERSON_ON_B, KNOWS], wait_s_max=WAIT_S).release()
        )
        thread.join(WAIT_S)
        assert box == [None]
    assert queues.held_keys() == frozenset()


def test_a_wait_that_is_over_gives_back_what_it_had():
    queues = WriteQueueManager()
    with queues.acquire_many([PERSON]):
        thread, box = in_thread(lambda: queues.acquire_many([KNOWS, PERSON], wait_s_max=0.05))
        thread.join(WAIT_S)
        assert isinstance(box[0], ResourceBusy)
        thread, box = in_thread(lambda: queues.acquire_many([KNOWS], wait_s_max=WAIT_S).release())
        thread.join(WAIT_S)
        assert box == [None]


def test_a_thread_cannot_acquire_twice():
    queues = WriteQueueManager()
    with queues.acquire_many([PERSON]), pytest.raises(InternalError):
        queues.acquire_many([KNOWS])
    queues.acquire_many([PERSON, KNOWS]).release()


def test_guards_know_what_they_cover():
    guards = WriteQueueManager().acquire_many([PERSON, KNOWS])
    assert guards.covers([PERSON])
    assert not guards.covers([PERSON_ON_B])
    guards.require([KNOWS, PERSON])
    with pytest.raises(InternalError, match="node:Person@b"):
        guards.require([PERSON_ON_B])
    guards.release()
    guards.release()
    assert not guards.covers([PERSON])
    with pytest.raises(InternalError):
        guards.require([PERSON])


def test_guards_may_be_released_by_another_thread():
    queues = WriteQueueManager()
    guards = queues.acquire_many([PERSON])
    thread, box = in_thread(guards.release)
    thread.join(WAIT_S)
    assert box == [None]
    queues.acquire_many([PERSON], wait_s_max=WAIT_S).release()


def test_opposite_orders_do_not_deadlock_and_nothing_overlaps():
    queues = WriteQueueManager()
    inside: dict[object, int] = {PERSON: 0, KNOWS: 0}
    overlaps = []

    def work(keys):
        for _ in range(200):
            with queues.acquire_many(keys, wait_s_max=WAIT_S):
                for key in keys:
                    inside[key] += 1
                    if inside[key] > 1:
                        overlaps.append(key)
                for key in keys:
                    inside[key] -= 1

    threads = [in_thread(lambda keys=keys: work(keys)) for keys in ([PERSON, KNOWS], [KNOWS, PERSON]) * 4]
    for thread, _ in threads:
        thread.join(WAIT_S)
    assert [box for _, box in threads] == [[None]] * 8
    assert overlaps == []
    assert queues.held_keys() == frozenset()


def test_one_manager_per_root():
    first = queues_of("/graphs/a")
    assert queues_of("/graphs/a") is first
    assert queues_of("/graphs/b") is not first


def test_guards_refuse_keys_that_are_not_held():
    queues = WriteQueueManager()
    with queues.acquire_many([PERSON]) as guards:
        guards.require([PERSON])
        guards.require([])
        with pytest.raises(InternalError, match=r"do not cover: edge:Knows@main, node:Person@b$"):
            guards.require([PERSON_ON_B, PERSON, KNOWS])
    with pytest.raises(InternalError, match="released"):
        guards.require([PERSON])
