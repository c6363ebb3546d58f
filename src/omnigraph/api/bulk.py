"""Work that is too large for one process is handed to Spark; nothing of it is loaded before that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from omnigraph.branching.changes import TableDelta, Unshared
    from omnigraph.engine.session import GraphSession
    from omnigraph.storage.handles import SnapshotHandle

Task = TypeVar("Task")
Result = TypeVar("Result")


class SparkWhenLarge:
    """`BulkDeltas` and `BulkWork` that load the pipeline when the first large piece of work comes.

    `operation` is what Spark calls the jobs.
    """

    def __init__(self, operation: str = "schema apply") -> None:
        self._operation = operation

    @property
    def name(self) -> str:
        """What reports call it."""
        return "spark"

    def delta(
        self,
        session: GraphSession,
        old: SnapshotHandle | None,
        new: SnapshotHandle | None,
        unshared: Unshared,
    ) -> TableDelta:
        """See `BulkDeltas.delta`."""
        from omnigraph.pipeline.output.deltas import spark_delta  # noqa: PLC0415  most merges never need Spark

        return spark_delta(session, old, new, unshared)

    def map(
        self,
        session: GraphSession,
        stage: str,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
    ) -> list[Result]:
        """See `BulkWork.map`."""
        from omnigraph.pipeline.spark.executors import SparkExecutor  # noqa: PLC0415  as above
        from omnigraph.pipeline.spark.session import spark_runtime  # noqa: PLC0415

        runtime = spark_runtime(session.settings)
        return SparkExecutor(runtime, self._operation).map(stage, function, tasks)


SPARK_WHEN_LARGE: Final = SparkWhenLarge()
