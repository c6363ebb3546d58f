"""What one call may take: its time, its memory, and who may stop it.

The bounds of a call are known wherever its thread goes, without being handed on: whoever waits or reads asks
`check_bounds`, whoever is about to hold much `claim_memory`. What must not stop half-way runs `unbounded`,
and before its first effect a write lifts the bounds of its call (`lift_bounds`).
Threads of a pool have the bounds that held where their work was handed over; others have none, and the call,
which waits for them, looks itself.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypedDict, cast

from omnigraph.core.cancel import NEVER, NOTHING, Cancellation
from omnigraph.core.errors import BadRequest, Cancelled, DeadlineExceeded, ResourceLimit
from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping


class CallLimits(TypedDict, total=False):
    """The limits every call takes.

    `timeout_s` is how long it may take, in seconds; a write is never stopped after its first effect.
    `memory_bytes` is what it may hold at once, in place of the settings of the handle. `cancel` lets another
    thread stop it.
    """

    timeout_s: float | None
    memory_bytes: int | None
    cancel: Cancellation | None


TIMEOUT_S_MAX: Final = 10**9
"""About thirty years. Clocks, and waits of threads, count no further than a few hundred."""
MEMORY_BYTES_MAX: Final = 10**18 - 1
"""What a header carries to a server, and more than any machine has."""
SHOWN_BITS_MAX: Final = 128
SHOWN_TEXT_MAX: Final = 40
LIMIT_WORDS: Final = tuple(CallLimits.__annotations__)


class _Stop(Cancellation):
    """What stops one call: its caller, or a moment of the monotonic clock."""

    def __init__(self, asked: Cancellation, timeout_s: float | None) -> None:
        super().__init__()
        self._asked = asked
        self._timeout_s = timeout_s
        self._ends = None if timeout_s is None else time.monotonic() + timeout_s
        self.left = NOTHING
        """What the call leaves that stops now."""

    @property
    def _overdue(self) -> bool:
        return self._ends is not None and time.monotonic() >= self._ends

    @property
    def requested(self) -> bool:
        return self._asked.requested or self._overdue

    @property
    def remaining_s(self) -> float | None:
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    def raise_if_requested(self) -> None:
        try:
            self._asked.raise_if_requested()
        except Cancelled:
            raise Cancelled(f"the call was cancelled; {self.left}") from None
        self.raise_if_overdue(self.left)

    def raise_if_overdue(self, outcome: str = NOTHING) -> None:
        if self._overdue:
            raise DeadlineExceeded(
                f"the call took longer than its {self._timeout_s:g} s; {outcome}",
                writing=False,
                hint="allow more time, or ask for less",
            )


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one call."""

    cancel: Cancellation = NEVER
    """Its time limit included."""
    memory_bytes: int | None = None


NO_BOUNDS: Final = Bounds()
_current: Final[ContextVar[Bounds]] = ContextVar("bounds", default=NO_BOUNDS)


def bounds_of(words: Mapping[str, object]) -> Bounds:
    """The bounds a caller says in words, beginning now. Raises BadRequest."""
    timeout_s, memory, cancel = (words.get(each) for each in LIMIT_WORDS)
    if timeout_s is not None and not (
        _is_number(timeout_s, int, float) and 0 < cast("float", timeout_s) <= TIMEOUT_S_MAX
    ):
        raise BadRequest(
            f"'timeout_s' is a number of seconds above 0 and at most {TIMEOUT_S_MAX},"
            f" not {shown_value(timeout_s)}",
            hint="leave it out for no limit",
        )
    if memory is not None and not (_is_number(memory, int) and 0 < cast("int", memory) <= MEMORY_BYTES_MAX):
        raise BadRequest(
            f"'memory_bytes' is a number of bytes above 0 and at most {MEMORY_BYTES_MAX},"
            f" not {shown_value(memory)}"
        )
    if cancel is not None and not isinstance(cancel, Cancellation):
        raise BadRequest(f"'cancel' is a Cancellation, not {type(cancel).__name__}")
    if timeout_s is None and cancel is None:
        return Bounds(NEVER, cast("int | None", memory))
    stop = _Stop(NEVER if cancel is None else cancel, cast("float | None", timeout_s))
    return Bounds(stop, cast("int | None", memory))


def _is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def shown_value(value: object) -> str:
    """A value that a caller gave, short enough for a message: Python does not print the longest integers."""
    if isinstance(value, int) and value.bit_length() > SHOWN_BITS_MAX:
        return f"an integer of {value.bit_length():,} bits"
    if isinstance(value, (int, float)) or value is None:
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= SHOWN_TEXT_MAX else f"{value[:SHOWN_TEXT_MAX]}…")
    return type(value).__name__


def current_bounds() -> Bounds:
    """The bounds of the call this thread works for."""
    return _current.get()


def check_bounds() -> None:
    """Raise `Cancelled` or `DeadlineExceeded` when the call is to stop. Called where nothing has happened."""
    bounds = _current.get()
    if bounds is not NO_BOUNDS:
        bounds.cancel.raise_if_requested()


def note_left(left: str) -> None:
    """From here on the call of this thread leaves that, if it is stopped."""
    stop = _current.get().cancel
    if isinstance(stop, _Stop):
        stop.left = left


def claim_memory(size: int, what: str) -> None:
    """Refuse to go on with more bytes than the call may hold at once."""
    limit = _current.get().memory_bytes
    if limit is not None and size > limit:
        raise ResourceLimit(
            resource="memory_bytes", limit=limit, actual=size, place=what, hint="allow more, or ask for less"
        )


@contextmanager
def within(bounds: Bounds) -> Generator[None]:
    """This thread works for a call with these bounds."""
    token = _current.set(bounds)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def unbounded() -> Generator[None]:
    """What happens here is not stopped, whoever asks and however long it takes."""
    with within(NO_BOUNDS):
        yield


def lift_bounds() -> None:
    """From here on the call has effects: it is not stopped any more, whatever it still does."""
    if _current.get() is not NO_BOUNDS:
        _current.set(NO_BOUNDS)
