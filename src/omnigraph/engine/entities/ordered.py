"""The rows of a table by ascending id, in memory that does not follow the size of the table.

A table that fits a run is read and sorted. A larger one is cut by ranges of ids: runs of rows are sorted and
their parts appended to one temporary file per range, then each range is read, sorted and given out.
"""

from __future__ import annotations

import bisect
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from omnigraph.engine.session import GraphSession
    from omnigraph.storage.handles import SnapshotHandle

RUN_BYTES_MAX: Final = 192 * MIB
"""Arrow bytes sorted at a time."""
BATCH_BYTES: Final = 8 * MIB
BATCH_ROWS_MAX: Final = 16_384
SAMPLE_ROWS: Final = 65_536
"""Ids looked at to cut the ranges."""


def batch_rows_of(rows: int, size: int) -> int:
    """How many rows of a table with this many rows and bytes are handled at a time."""
    return max(1, min(BATCH_ROWS_MAX, BATCH_BYTES * max(rows, 1) // max(size, 1)))


def ordered_batches(
    session: GraphSession, handle: SnapshotHandle, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """The rows by ascending id, as small tables of the columns in the order named; `id` is one of them.

    Memory: about three times `RUN_BYTES_MAX`. A larger table is spilled to the staging directory of the
    settings while the iterator lives.
    """
    size = sum(fragment.bytes for fragment in session.storage.fragments(handle))
    reader = session.storage.scan(handle, columns=columns, batch_rows=batch_rows_of(handle.row_count, size))
    runs = _runs(iter(reader), columns)
    first = next(runs, None)
    if first is None:
        return
    if first.num_rows >= handle.row_count:
        yield from _sorted_slices(first)
        return
    yield from _from_ranges(session, handle, first, runs)


def _runs(batches: Iterator[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= RUN_BYTES_MAX:
            yield pa.Table.from_batches(held).select(columns)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held).select(columns)


def _sorted_slices(table: pa.Table) -> Iterator[pa.Table]:
    table = table.combine_chunks()
    order = pc.sort_indices(table.column("id"))
    step = batch_rows_of(table.num_rows, table.nbytes)
    for begin in range(0, len(order), step):
        yield table.take(order.slice(begin, step))


def _from_ranges(
    session: GraphSession, handle: SnapshotHandle, first: pa.Table, rest: Iterator[pa.Table]
) -> Iterator[pa.Table]:
    staging = session.settings.merge_staging_dir
    staging.mkdir(parents=True, exist_ok=True)
    ranges = -(-2 * handle.row_count // first.num_rows)
    import tempfile  # noqa: PLC0415  only a large export needs it

    with tempfile.TemporaryDirectory(prefix="omnigraph-export-", dir=staging) as place:
        bounds = _bounds(session, handle, ranges)
        files = [Path(place) / f"{number}.arrow" for number in range(len(bounds) + 1)]
        with _Writers(files, first.schema) as writers:
            for run in itertools.chain([first], rest):
                writers.add(run, bounds)
        del first
        for file in files:
            with pa.memory_map(str(file)) as source:
                yield from _sorted_slices(pa.ipc.open_stream(source).read_all())
            file.unlink()


def _bounds(session: GraphSession, handle: SnapshotHandle, ranges: int) -> list[str]:
    """Ids that cut the table into ranges of about equal size."""
    stride = max(1, handle.row_count // SAMPLE_ROWS)
    seen = 0
    sample: list[str] = []
    for batch in session.storage.scan(handle, columns=["id"]):
        skip = -seen % stride
        sample += batch.column(0).take(pa.array(range(skip, batch.num_rows, stride), pa.int64())).to_pylist()
        seen += batch.num_rows
    sample.sort()
    cuts = {len(sample) * number // ranges for number in range(1, ranges)}
    return sorted({sample[cut] for cut in cuts if cut < len(sample)})


class _Writers:
    """One open stream per range."""

    def __init__(self, files: Sequence[Path], schema: pa.Schema) -> None:
        self._sinks: list[Any] = [pa.OSFile(str(file), "wb") for file in files]
        self._streams: list[Any] = [pa.ipc.new_stream(sink, schema) for sink in self._sinks]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self._streams, *self._sinks):
            each.close()

    def add(self, run: pa.Table, bounds: Sequence[str]) -> None:
        """Sort a run and append each part of it to the file of its range."""
        run = run.combine_chunks()
        run = run.take(pc.sort_indices(run.column("id")))
        ids = run.column("id")
        ends = [bisect.bisect_left(_Ids(ids), bound) for bound in bounds]
        for begin, end, stream in zip([0, *ends], [*ends, run.num_rows], self._streams, strict=True):
            if end > begin:
                stream.write_table(run.slice(begin, end - begin))


class _Ids:
    """A sorted column as bisect wants it. Python orders text as Arrow does: by code point."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, place: int) -> str:
        return self._column[place].as_py()
