"""New values of single columns of a table that exists, fragment by fragment, before anything moves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.evolve.filled import sources_of, with_fills
from omnigraph.engine.evolve.rows import NewRows, bytes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.catalog.table_changes import ColumnMap, TableChange
    from omnigraph.engine.evolve.rows import Run
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import TableEntry
    from omnigraph.planning.fills import Fill
    from omnigraph.storage.handles import Fragment


@dataclass(frozen=True, slots=True)
class ColumnWork:
    """The columns of one table whose values are to be written."""

    rows: NewRows
    columns: ColumnMap
    """What becomes of the columns, with those named that are written."""
    count: int
    """How many rows there are."""

    @property
    def bytes(self) -> int:
        """About how much is written."""
        return bytes_of(self.columns.schema, self.columns.written, self.count)


def column_work(
    session: GraphSession, entry: TableEntry, change: TableChange, fills: Sequence[Fill]
) -> ColumnWork | None:
    """What is written for a change of a table with rows; None when nothing is."""
    columns = change.columns
    if columns is None or not entry.row_count:
        return None
    # A fill that gives null gives what is there without it.
    given = [fill.name for fill in fills if fill.follows_row or fill.value is not None]
    written = (*columns.written, *(name for name in columns.schema.names if name in given))
    if not written:
        return None
    rows = NewRows.of(session, entry, change, fills)
    return ColumnWork(rows, replace(columns, written=written), entry.row_count)


def write_values(work: ColumnWork, run: Run) -> list[Fragment]:
    """Write the columns of every fragment; nobody points at the files. Cost: one pass over what is read."""
    store, handle = work.rows.open()
    tasks = [FragmentTask(work, each.id) for each in store.fragments(handle)]
    written = run(write_fragment, tasks)
    failpoint(Window.SCHEMA_APPLY_AFTER_COLUMN_FILES)
    return written


@dataclass(frozen=True, slots=True)
class FragmentTask:
    """Write the columns of one fragment."""

    work: ColumnWork
    fragment: int


def write_fragment(task: FragmentTask) -> Fragment:
    """The fragment with a file of its new columns."""
    rows, columns = task.work.rows, task.work.columns
    store, handle = rows.open()
    read = sources_of(rows.fills, columns.written)

    def make(known: pa.RecordBatch) -> pa.RecordBatch:
        made = with_fills(pa.Table.from_batches([known]), rows.type, rows.fills, columns.written)
        arrays = [column.combine_chunks() for column in made.columns]
        # The names do not matter, and those of the table are taken.
        return pa.RecordBatch.from_arrays(arrays, names=[f"__new_{at}" for at in range(len(arrays))])

    return store.write_columns(store.seen_as(handle, columns), task.fragment, read, make)
