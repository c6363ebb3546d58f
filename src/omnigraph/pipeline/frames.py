"""DataFrames in and out: frames as the source of a load, and a type of the graph as a Spark DataFrame."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from omnigraph.core.errors import BadRequest
from omnigraph.engine.session import GraphSession
from omnigraph.manifest.state import Snapshot
from omnigraph.pipeline.convert import shown_text
from omnigraph.pipeline.plan import SourceFormat, Split
from omnigraph.pipeline.scans import FrameScan, plan_scan, readable_type, scan_fragments
from omnigraph.pipeline.session import SparkRuntime, spark_runtime
from omnigraph.pipeline.sources import plan_splits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROW_GROUP_ROWS: Final = 262_144


def is_spark_frame(frame: Any) -> bool:
    """Whether a value is a Spark DataFrame, classic or Connect, without importing Spark."""
    return any(each.__module__.startswith("pyspark.sql") for each in type(frame).__mro__)


def spool_frames(frames: Mapping[str, Any], directory: Path, runtime: SparkRuntime | None) -> list[Split]:
    """Write every frame to Parquet files, once, and plan their splits.

    A frame may compute something else the second time, and a load reads its input twice when records are
    left out.
    """
    splits: list[Split] = []
    for name, frame in frames.items():
        folder = directory / f"frame-{len(splits)}-{name}"
        if is_spark_frame(frame):
            if runtime is None:
                raise BadRequest("a Spark DataFrame needs engine='spark'")
            write = partial(frame.write.mode("error").parquet, str(folder))
            runtime.run(write, operation="load", stage=f"spool {name}")
        else:
            folder.mkdir(parents=True)
            try:
                table = _as_table(name, frame)
                pq.write_table(table, folder / "part.parquet", row_group_size=ROW_GROUP_ROWS)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
                raise BadRequest(
                    f"'{name}': the rows have no common column types ({shown_text(str(error))})",
                    hint="give an Arrow table or a file of JSON lines",
                ) from error
        files = sorted(path for path in folder.rglob("*.parquet") if path.is_file())
        for split in plan_splits(files, format_=SourceFormat.PARQUET, type_name=name):
            splits.append(replace(split, number=len(splits), name=f"frame {name}"))
    return splits


def _as_table(name: str, frame: Any) -> pa.Table:
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    if isinstance(frame, list):
        return pa.Table.from_pylist(frame)
    if hasattr(frame, "to_arrow"):
        return frame.to_arrow()
    if type(frame).__module__.startswith("pandas"):
        return pa.Table.from_pandas(frame, preserve_index=False)
    raise BadRequest(f"'{name}': {type(frame).__name__} is not a DataFrame, an Arrow table or a list of rows")


# --- reading ---


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
    condition of the query language that runs inside the scan. Starts Spark when none runs yet.
    """
    catalog = session.catalog_of(snapshot)
    scan = plan_scan(
        session.root,
        session.settings,
        snapshot,
        catalog,
        readable_type(catalog, type_name),
        columns=columns,
        where=where,
    )
    runtime = spark_runtime(session.settings, session=spark)
    count = len(scan.groups)
    return runtime.spark.range(0, count, 1, max(count, 1)).mapInArrow(partial(scan_groups, scan), scan.ddl)


def scan_groups(scan: FrameScan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of a task: read the fragments of the groups whose numbers arrive."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from scan_fragments(scan, scan.groups[number])
