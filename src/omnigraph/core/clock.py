"""Wall-clock time as a parameter, and which run of the machine this is."""

import functools
import time
from pathlib import Path
from typing import Final, Protocol

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


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


@functools.cache
def boot_id() -> str | None:
    """Which run of the machine this is; None where the system does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None
