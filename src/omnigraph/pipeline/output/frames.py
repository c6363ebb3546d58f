"""A type of the graph as a Spark DataFrame."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph.engine.session import GraphSession
from omnigraph.manifest.state import Snapshot
from omnigraph.pipeline.output.scans import FrameScan, plan_scan, readable_type, scan_fragments
from omnigraph.pipeline.spark.session import spark_runtime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def graph_frame(
    session: GraphSession,
    snapshot: Snapshot,
    type_name: str,
    *,
    columns: Sequence[str] | None,
    where: str | None,
    spark: Any,
) -> "DataFrame":
    """One type as a Spark DataFrame, pinned to one version for as long as the frame lives.

    Node frames have `id` and the properties, edge frames `id`, `src`, `dst` and the properties. `where` is a
    condition of the query language that runs inside the scan. Starts Spark when none runs yet. An action of
    the frame fails with `version_reclaimed` once a cleanup has removed the commit.
    """
    seen, table_type = readable_type(session, snapshot, type_name, columns)
    with session.manifest.reading(snapshot):
        scan = plan_scan(session, seen, table_type, columns=columns, where=where)
    runtime = spark_runtime(session.settings, session=spark)
    count = len(scan.groups)
    return runtime.spark.range(0, count, 1, max(count, 1)).mapInArrow(partial(scan_groups, scan), scan.ddl)


def scan_groups(scan: FrameScan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of a task: read the fragments of the groups whose numbers arrive."""
    for batch in batches:
        numbers: list[int] = batch.column(0).to_pylist()
        for number in numbers:
            yield from scan_fragments(scan, scan.groups[number])
