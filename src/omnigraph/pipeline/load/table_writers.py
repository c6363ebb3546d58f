"""The threads that write the fragments of a load: as many tables at once as the setting allows."""

import contextvars
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from omnigraph.pipeline.plan import LoadPlan

Rows = TypeVar("Rows")
Written = TypeVar("Written")

_around: contextvars.ContextVar["TableWriters | None"] = contextvars.ContextVar("writers", default=None)


class TableWriters:
    """Writes tables on a bounded number of threads, whoever asks. Thread-safe."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def write(
        self,
        tables: Mapping[str, Rows],
        write: Callable[[str, Rows], Written],
        written: Callable[[str, Written], None],
    ) -> None:
        """Write every table and tell `written` of each that was. Raises the first failure.

        When it returns or raises, nothing is being written any more, and whatever was is known.
        """
        begun: dict[str, Future[Written]] = {}
        try:
            for key in sorted(tables):
                begun[key] = self._pool.submit(contextvars.copy_context().run, write, key, tables[key])
            wait(begun.values(), return_when=FIRST_EXCEPTION)
        finally:
            for future in begun.values():
                future.cancel()
            wait(begun.values())
            for key, future in begun.items():
                if not future.cancelled() and future.exception() is None:
                    written(key, future.result())
        for future in begun.values():
            if not future.cancelled():
                future.result()


@contextmanager
def table_writers(plan: LoadPlan) -> Generator[TableWriters]:
    """The writers that the calls inside share. Tasks of this process share those around them, whatever their
    number; a task of Spark finds none and has its own.
    """
    around = _around.get()
    if around is not None:
        yield around
        return
    count = max(1, min(plan.settings.load_concurrency, len(plan.targets)))
    with ThreadPoolExecutor(count, "omnigraph-writer") as pool:
        made = TableWriters(pool)
        token = _around.set(made)
        try:
            yield made
        finally:
            _around.reset(token)
