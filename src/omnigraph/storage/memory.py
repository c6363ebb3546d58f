"""Memory that a finished piece of work does not need goes back to the system.

The allocator of the C library keeps what was freed, in one reserve for each thread. Work of many native
threads therefore seems to need several times the memory it holds at any moment, and more the longer it runs.
"""

import contextlib
import ctypes
import threading
from collections.abc import Generator
from typing import Final

_PAUSE_SECONDS: Final = 0.25


def give_back() -> None:
    """Return what the allocators keep in reserve. Cost: milliseconds; called between stages, never inside."""
    import pyarrow as pa  # noqa: PLC0415 - whoever has memory of its pool has loaded it

    pa.default_memory_pool().release_unused()
    _trim()


@contextlib.contextmanager
def giving_back() -> Generator[None]:
    """Return reserves now and then while a long native call runs, and once more when it has ended.

    Cost: some milliseconds for every quarter of a second.
    """
    ended = threading.Event()

    def trim_until_ended() -> None:
        while not ended.wait(_PAUSE_SECONDS):
            _trim()

    thread = threading.Thread(target=trim_until_ended, name="omnigraph-give-back", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        give_back()


def _trim() -> None:
    """Only the GNU library has this call; elsewhere nothing is done."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
