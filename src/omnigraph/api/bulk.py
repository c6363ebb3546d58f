"""Work that is too large for one process is handed to Spark; nothing of it is loaded before that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from omnigraph.branching.changes import TableDelta, Unshared
    from omnigraph.engine.session import GraphSession
    from omnigraph.storage.handles import SnapshotHandle


class SparkWhenLarge:
    """`BulkDeltas` that loads the pipeline when the first large delta comes."""

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


SPARK_WHEN_LARGE: Final = SparkWhenLarge()
