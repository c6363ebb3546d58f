"""Where blocking work runs: threads beside the event loop, in a bounded number, with a bounded queue."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from omnigraph.core.errors import ResourceBusy, TooManyRequests
from omnigraph.core.limits import SERVER_WAITING_PER_WORKER, WRITES_PER_ACTOR_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


class Workers:
    """A pool of threads with a name. Used from the event loop only."""

    def __init__(self, name: str, count: int) -> None:
        self._pool: Final = ThreadPoolExecutor(count, thread_name_prefix=f"omnigraph-{name}")
        self._most: Final = count * (1 + SERVER_WAITING_PER_WORKER)
        self.name: Final = name
        self.under_way = 0
        """Requests that were admitted and have not ended."""

    @contextmanager
    def admitted(self) -> Generator[None]:
        """A place for one request. Raises ResourceBusy when all are taken."""
        if self.under_way >= self._most:
            raise ResourceBusy(
                f"the server has too many {self.name} under way", hint="come again in a second"
            )
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    async def run(
        self, work: Callable[Parameters, Returned], *given: Parameters.args, **named: Parameters.kwargs
    ) -> Returned:
        """What the work gives. It ends even when nobody waits for it any more."""
        here = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._pool, lambda: here.run(work, *given, **named)))

    def close(self) -> None:
        """Wait for what is under way, then let the threads go."""
        self._pool.shutdown(wait=True)


class Admission:
    """How many writes each actor has under way."""

    def __init__(self, most: int = WRITES_PER_ACTOR_MAX) -> None:
        self._most: Final = most
        self._under_way: Final = Counter[str]()

    @contextmanager
    def write_of(self, actor: str) -> Generator[None]:
        """A place for one write of this actor. Raises TooManyRequests."""
        if self._under_way[actor] >= self._most:
            raise TooManyRequests(
                f"'{actor}' has {self._most} writes under way",
                hint="wait for one of them, or put them together",
            )
        self._under_way[actor] += 1
        try:
            yield
        finally:
            self._under_way[actor] -= 1
            if not self._under_way[actor]:
                del self._under_way[actor]
