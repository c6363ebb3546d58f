"""Where blocking work runs: threads beside the event loop, in a bounded number, with a bounded queue."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from omnigraph.core.errors import ResourceBusy, TooManyRequests
from omnigraph.core.limits import SERVER_WAITING_PER_WORKER, WRITES_PER_ACTOR_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", "Callable[[], Any]"]


class Workers:
    """A pool of threads with a name. Used from the event loop only.

    An executor of the standard library does the same for a third more: it has locks of its own, and the loop
    already has one place where answers arrive.
    """

    def __init__(self, name: str, count: int) -> None:
        self._jobs: Final[SimpleQueue[_Job | None]] = SimpleQueue()
        self._threads: Final[list[threading.Thread]] = []
        self._count: Final = count
        self._most: Final = count * (1 + SERVER_WAITING_PER_WORKER)
        self._given = 0
        """Jobs that were given to threads and have not been answered."""
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
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Returned] = loop.create_future()
        self._given += 1
        if self._given > len(self._threads) < self._count:
            name = f"omnigraph-{self.name}-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        here = contextvars.copy_context()
        self._jobs.put((loop, answer, partial(here.run, work, *given, **named)))
        return await answer

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, answer, work = job
            value, failure = None, None
            try:
                value = work()
            except BaseException as error:  # noqa: BLE001  whoever asked gets it
                failure = error
            with suppress(RuntimeError):  # the loop has ended, and nobody waits
                loop.call_soon_threadsafe(self._settle, answer, value, failure)
            # A thread that waits for its next job keeps nothing of the last one.
            del job, answer, work, value, failure

    def _settle(self, answer: asyncio.Future[Any], value: object, failure: BaseException | None) -> None:
        self._given -= 1
        if answer.done():
            return
        if failure is None:
            answer.set_result(value)
        else:
            answer.set_exception(failure)

    def close(self) -> None:
        """Wait for what is under way, then let the threads go."""
        for _ in self._threads:
            self._jobs.put(None)
        for each in self._threads:
            each.join()


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
