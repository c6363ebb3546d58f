"""Wall-clock time as a parameter."""

import time
from typing import Final, Protocol


class Clock(Protocol):
    """A source of wall-clock time."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        return time.time_ns() // 1_000


SYSTEM_CLOCK: Final = SystemClock()
