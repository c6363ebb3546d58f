"""Cooperative cancellation of a write or a query."""

import threading
from typing import Final

from omnigraph.core.errors import Cancelled

NOTHING: Final = "nothing was changed"
"""What a call leaves that stops before its first effect."""
SETTLED: Final = "what dead writers left was settled, nothing else was changed"
"""What a call leaves that stops when it has only done what any other call would have had to do."""


class Cancellation:
    """A request to stop, given to a call as `cancel`; the call ends with `Cancelled`.

    A write looks at it between operations, before Phase A and never after a table has moved; a query looks
    again and again while it runs.

    Thread-safety: `request` may be called from any thread.
    """

    def __init__(self) -> None:
        self._requested = threading.Event()

    def request(self) -> None:
        """Ask the call to stop; a write does at the next place where nothing has happened yet."""
        self._requested.set()

    @property
    def requested(self) -> bool:
        """Whether somebody asked."""
        return self._requested.is_set()

    @property
    def remaining_s(self) -> float | None:
        """Seconds until it comes by itself; None when it never does."""
        return None

    def raise_if_requested(self) -> None:
        """Raise `Cancelled` when somebody asked. Called only where the call has had no effect."""
        if self._requested.is_set():
            raise Cancelled(f"the call was cancelled; {NOTHING}")

    def raise_if_overdue(self, outcome: str = NOTHING) -> None:
        """Raise `DeadlineExceeded` when it came by itself, saying what that leaves."""


NEVER: Final = Cancellation()
"""The token of callers that never cancel. Do not request it."""
