"""The bounds of one run of a query: memory, time, cancellation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from omnigraph.core.cancel import NEVER, Cancellation
from omnigraph.core.errors import Cancelled, DeadlineExceeded, ResourceLimit
from omnigraph.core.late_dataclass import dataclass
from omnigraph.planning.explain import title_of

if TYPE_CHECKING:
    from omnigraph.planning.steps import Step

ORDINAL_BYTES: Final = 8
PAIR_ORDINALS: Final = 2
"""What one pair of a hop takes while it is being made: the row and the node."""
WAY_OUT: Final = (
    "return `count(...)` or groups instead of rows, add `limit`, or narrow the match with a condition before"
    " this step (`explain` shows them); or raise OMNIGRAPH_QUERY_MEMORY_BYTES"
)
"""What to write instead of a query that holds too much."""


@dataclass(slots=True)
class Limits:
    """The bounds of one run. `claim` is asked before working rows are made."""

    memory_bytes_max: int
    deadline: float | None = None
    cancellation: Cancellation = NEVER
    peak_bytes: int = 0
    step: Step | None = None
    """The step that runs: a refusal names it."""
    width: int = PAIR_ORDINALS
    """Ordinals that each working row of this step takes, what it is made from included."""
    held_bytes: int = 0
    """What is held while values are fetched: the working rows of a step, the columns of a result."""

    def claim(self, pairs: int) -> None:
        """Refuse working rows beyond the memory limit; notice cancellation and the time limit."""
        size = pairs * ORDINAL_BYTES * self.width
        if size > self.peak_bytes:
            self.claim_bytes(size)
        if self.deadline is not None or self.cancellation is not NEVER:
            self.check()

    def claim_bytes(self, size: int) -> None:
        """Refuse to hold this many bytes at once when the memory limit is lower; the refusal says where."""
        if size > self.memory_bytes_max:
            raise ResourceLimit(
                resource="query_memory_bytes",
                limit=self.memory_bytes_max,
                actual=size,
                place="the result" if self.step is None else " ".join(title_of(self.step)),
                hint=WAY_OUT,
            )
        self.peak_bytes = max(self.peak_bytes, size)

    def claim_values(self, size: int) -> None:
        """Refuse values that exceed the memory limit together with what is held; otherwise `check`."""
        self.claim_bytes(self.held_bytes + size)
        self.check()

    def hold(self, size: int) -> None:
        """As `claim_values`, for values that stay until the end of the run."""
        self.claim_values(size)
        self.held_bytes += size

    def check(self) -> None:
        """Notice cancellation and the time limit."""
        if self.cancellation.requested:
            self.cancellation.raise_if_overdue()
            raise Cancelled("the query was cancelled")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise DeadlineExceeded(
                "the query ran longer than its time limit",
                writing=False,
                hint="narrow the match, or raise OMNIGRAPH_QUERY_SECONDS",
            )
