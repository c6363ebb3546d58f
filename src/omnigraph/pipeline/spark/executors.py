"""Who runs the pieces of a load: a loop in this process, or Spark. The pieces do not know."""

import contextvars
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import pyarrow as pa

from omnigraph.core.errors import Cancelled, InternalError, OmnigraphError
from omnigraph.core.progress import Steps
from omnigraph.storage.memory import give_back

if TYPE_CHECKING:  # tasks load this module too
    from omnigraph.pipeline.spark.session import SparkRuntime

_stop: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("stop", default=None)

Item = TypeVar("Item")
Result = TypeVar("Result")

RESULT_COLUMNS: Final = "number long, result binary"


class Executor(Protocol):
    """Runs one function over many items. Results come back in the order of the items."""

    @property
    def name(self) -> str:
        """`local` or `spark`."""
        ...

    @property
    def shares_files(self) -> bool:
        """Whether every task sees the temporary directory of this machine."""
        ...

    def map(
        self,
        stage: str,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        sizes: Sequence[int] | None = None,
    ) -> list[Result]:
        """Run the function over every item. The first failure stops the stage and is raised.

        `sizes` are the bytes each item stands for. Where the pieces run in this process, progress is told in
        bytes then, also in the middle of a piece (`part_done`).
        """
        ...


def raise_if_stopped() -> None:
    """Called by a piece of work now and then: its results are not wanted any more, another piece failed."""
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise Cancelled("the load was stopped; nothing was changed")


class _Part:
    """How far one piece is, in the unit of its stage."""

    def __init__(self, steps: Steps, size: int) -> None:
        self._steps, self._size, self._done = steps, size, 0

    def reach(self, fraction: float) -> None:
        now = int(self._size * min(fraction, 1.0))
        if now > self._done:
            self._steps.advance(now - self._done)
            self._done = now


_part: contextvars.ContextVar[_Part | None] = contextvars.ContextVar("part", default=None)


def part_done(fraction: float) -> None:
    """Called by a piece of work now and then: so much of it is done, from 0 to 1."""
    part = _part.get()
    if part is not None:
        part.reach(fraction)


class LocalExecutor:
    """Runs the pieces on threads of this process, one for each processor: Arrow and Lance release the
    interpreter lock.
    """

    def __init__(self, operation: str) -> None:
        self._operation = operation

    @property
    def name(self) -> str:
        """See `Executor.name`."""
        return "local"

    @property
    def shares_files(self) -> bool:
        """See `Executor.shares_files`."""
        return True

    def map(
        self,
        stage: str,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        sizes: Sequence[int] | None = None,
    ) -> list[Result]:
        """See `Executor.map`."""
        weights, unit = ([1] * len(items), "tasks") if sizes is None else (sizes, "bytes")
        steps = Steps(self._operation, stage, sum(weights), unit)
        stop = threading.Event()

        def work(numbered: tuple[int, Item]) -> Result:
            part = _Part(steps, weights[numbered[0]])
            _stop.set(stop)
            _part.set(part)
            result = function(numbered[1])
            part.reach(1)
            return result

        threads = min(os.cpu_count() or 1, len(items))
        if threads <= 1:
            return [contextvars.copy_context().run(work, each) for each in enumerate(items)]
        with ThreadPoolExecutor(threads, "omnigraph-load") as pool:
            begun = [pool.submit(contextvars.copy_context().run, work, each) for each in enumerate(items)]
            try:
                return [each.result() for each in begun]
            except BaseException:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise


class SparkExecutor:
    """Runs one Spark task per item. Only the result of the attempt that Spark accepted comes back."""

    def __init__(self, runtime: "SparkRuntime", operation: str) -> None:
        self.runtime = runtime
        self._operation = operation

    @property
    def name(self) -> str:
        """See `Executor.name`."""
        return "spark"

    @property
    def shares_files(self) -> bool:
        """True when driver and tasks are on this machine."""
        if self.runtime.remote:
            return False
        return self.runtime.master.startswith("local[")

    def map(
        self,
        stage: str,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        sizes: Sequence[int] | None = None,
    ) -> list[Result]:
        """See `Executor.map`. Spark tells of a task when it has ended, so progress counts tasks."""
        del sizes
        if not items:
            return []
        packed, count = pickle.dumps((function, list(items))), len(items)
        runtime = self.runtime

        def action() -> list[Any]:
            # Collected exactly once: a count or a cache would stage everything twice.
            if runtime.remote:
                numbered = runtime.spark.range(0, count, 1, count)
                frame = numbered.mapInArrow(partial(run_rows, packed), RESULT_COLUMNS)
                return [(row["number"], row["result"]) for row in frame.collect()]
            # There is no query to analyse, optimise and compile: the first tasks of a session begin earlier.
            numbers = runtime.context.parallelize(range(count), count)
            return numbers.mapPartitions(partial(run_numbered, packed)).collect()

        pairs = runtime.run(action, operation=self._operation, stage=stage, total=count)
        return [unpacked(result) for result in ordered(pairs, count)]


def ordered(pairs: Iterable[tuple[int, bytes]], count: int) -> list[bytes]:
    """The result of every item once, by number."""
    by_number = {int(number): bytes(result) for number, result in pairs}
    if len(by_number) != count:
        raise InternalError(f"{count} tasks gave {len(by_number)} results")
    return [by_number[number] for number in range(count)]


def run_numbered(packed: bytes, numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """The body of a Spark task: run the function over the items whose numbers arrive."""
    function, items = pickle.loads(packed)  # noqa: S301 - made by our own driver
    for number in numbers:
        yield number, packed_result(function, items[number])
        give_back()


def run_rows(packed: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As `run_numbered`, for a session that only knows frames."""
    for batch in batches:
        for number, result in run_numbered(packed, batch.column(0).to_pylist()):
            yield result_batch(number, result)


def packed_result(function: Callable[[Any], Any], item: Any) -> bytes:
    """The result, or the refusal, as bytes. A refusal of ours is an answer, not a task to retry."""
    try:
        return pickle.dumps((True, function(item)))
    except OmnigraphError as error:
        return pickle.dumps((False, error))


def unpacked(result: bytes) -> Any:
    """The result of a task; raises what it refused with."""
    succeeded, value = pickle.loads(result)  # noqa: S301 - made by our own tasks
    if not succeeded:
        raise value
    return value


def result_batch(number: int, result: bytes) -> pa.RecordBatch:
    """One row of a task's answer."""
    return pa.RecordBatch.from_pydict(
        {"number": pa.array([number], pa.int64()), "result": pa.array([result], pa.binary())}
    )
