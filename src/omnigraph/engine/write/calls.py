"""Calls that wait for the same commit share the next one.

While one commit is under way, the calls for the same branch and actor that arrive wait in a line. When it is
over, the first of them leads: it takes everybody who waits, and all become one commit. There is no timer: a
lone call leads at once.

An interrupt (Ctrl-C) may come between any two steps of a thread, so nothing here depends on a later step of a
thread that may be gone. A group is an object its leader holds: when it is left, or nobody refers to it any
more, whoever it had taken and not told an outcome is free again, unless the group may have had an effect.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from omnigraph.core.errors import InternalError, RecoveryRequired
from omnigraph.recovery.outcome import together
from omnigraph.recovery.waiting_line import WAKE_S_MAX, Line, Place

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from omnigraph.core.ids import Branch
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.requests import MutationRequest, MutationResult
    from omnigraph.recovery.outcome import WriteCourse

    CallKey: TypeAlias = tuple[Branch, str | None, bool]
    """Calls with the same one may share a commit: the branch, the actor, and whether they assign blobs, whose
    bytes may come from far.
    """


class Call(Place):
    """One call on its way, and in the end its outcome."""

    def __init__(self, request: MutationRequest) -> None:
        super().__init__()
        self.request = request
        self.key: CallKey = (request.branch, request.actor, request.assigns_blobs)
        self.on_main_thread = threading.current_thread() is threading.main_thread()
        self.group: weakref.ref[Group] | None = None
        self.course: WriteCourse | None = None
        """How far the group that took this call has come."""
        self._result: MutationResult | None = None
        self._error: Exception | None = None

    def succeed(self, result: MutationResult) -> None:
        """This is what it gets."""
        self._result = result
        self.wake()

    def fail(self, error: Exception) -> None:
        """This is what it gets."""
        self._error = error
        self.wake()

    @property
    def is_settled(self) -> bool:
        """Whether the outcome is known."""
        return self._result is not None or self._error is not None

    @property
    def is_gone(self) -> bool:
        """Whether nobody waits for it any more: the thread was interrupted, or was asked to stop."""
        return self.left or self.request.cancel.requested

    @property
    def is_taken(self) -> bool:
        """Whether a group is at work on it."""
        group = None if self.group is None else self.group()
        return group is not None and not group.left

    def give_back(self) -> None:
        """The group that took it goes on without it."""
        self.course = None
        self.group = None
        self.wake()

    def outcome(self) -> MutationResult:
        """The result; raises the error there was."""
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise InternalError("a mutation ended without an outcome")
        return self._result


class Group(Place):
    """The calls of one commit, for as long as their leader is at work."""

    def __init__(self, key: CallKey) -> None:
        super().__init__()
        self.key = key


class Waiting:
    """What the leader of a group finds in the line."""

    def __init__(self, leader: Call, group: Group, line: Callable[[], list[Call]]) -> None:
        self._leader = leader
        self._group = group
        self._line = line

    def calls(self) -> list[Call]:
        """Who would come along now."""
        # Interrupts come to the main thread; they must not stop what other threads wait for.
        return [self._leader] if self._leader.on_main_thread else self._line()

    def take(self) -> tuple[list[Call], WriteCourse]:
        """Everybody who waits now is in the group, and has its course. Once."""
        calls = self.calls()
        course = together([each.request.course for each in calls])
        for each in calls:
            each.group = weakref.ref(self._group)
            each.course = course
        return calls, course


class CallLine:
    """The calls of one handle that may share commits. Thread-safe."""

    def __init__(self) -> None:
        self._calls: Line[Call] = Line()
        self._groups: Line[Group] = Line()
        self._mutex = threading.Lock()

    def run(self, call: Call, carry_out: Callable[[Waiting], None]) -> None:
        """Return once the call has its outcome. `carry_out` takes the calls of a group, tells it to them, or
        gives some of them back.

        Raises what `cancel` raises while nobody has taken the call, and `RecoveryRequired` when the leader of
        its group was interrupted after the first effect.
        """
        try:
            self._calls.join(call)
            while not self._is_over(call):
                if not self._lead(call, carry_out):
                    call.sleep(WAKE_S_MAX)
        except BaseException:
            if call.is_taken and not call.is_settled:
                call.request.course.left_to_others()
            raise
        finally:
            self._calls.leave(call)
            self._wake_next(call.key)

    def _is_over(self, call: Call) -> bool:
        # In this order: a group takes a call before it shows its course, and tells outcomes before it ends.
        course, taken = call.course, call.is_taken
        if call.is_settled:
            return True
        if taken:
            return False
        if course is not None and course.begun:
            # Its leader was interrupted. Sending the call again could write it twice.
            raise RecoveryRequired(
                "the write was interrupted half-way and must be recovered", course.operation_id
            )
        call.request.cancel.raise_if_requested()
        return False

    def _lead(self, call: Call, carry_out: Callable[[Waiting], None]) -> bool:
        """Carry out the waiting calls, if it is this one's turn; whether it was."""
        group, led = Group(call.key), False
        try:
            if not self._begin(group, call):
                return False
            led = True
            carry_out(Waiting(call, group, lambda: self._waiting(call.key)))
        finally:
            self._groups.leave(group)
            if led:
                self._wake_next(call.key)
        return True

    def _begin(self, group: Group, call: Call) -> bool:
        with self._mutex:
            if call.is_settled or any(each.key == group.key for each in self._groups.places()):
                return False
            if call.on_main_thread:
                others = [each for each in self._waiting(group.key) if each is not call]
                if others:
                    others[0].wake()
                    return False
            self._groups.join(group)
            return True

    def _waiting(self, key: CallKey) -> list[Call]:
        return [each for each in self._calls.places() if each.key == key and not each.is_settled]

    def _wake_next(self, key: CallKey) -> None:
        """Wake the first who waits, and the first who may lead others."""
        if not (waiting := self._waiting(key)):
            return
        for each in waiting[:1]:
            each.wake()
        for each in [each for each in waiting if not each.on_main_thread][:1]:
            each.wake()


_lines: weakref.WeakKeyDictionary[GraphSession, CallLine] = weakref.WeakKeyDictionary()
_lines_lock = threading.Lock()


def call_line(session: GraphSession) -> CallLine:
    """The line of a handle."""
    with _lines_lock:
        line = _lines.get(session)
        if line is None:
            line = _lines[session] = CallLine()
        return line


def _start_afresh_in_child() -> None:
    # A forked child gets no handle of its parent, and must not wait for a lock of a thread it does not have.
    global _lines, _lines_lock  # noqa: PLW0603
    _lines = weakref.WeakKeyDictionary()
    _lines_lock = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh_in_child)
