"""The rows of a table as they will be under another schema, in pieces that any process can work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import pyarrow as pa

from omnigraph.core.ids import new_ulid
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.evolve.filled import sources_of, with_fills
from omnigraph.storage.fragments import open_pinned, open_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from omnigraph.catalog.schema import TableType
    from omnigraph.catalog.table_changes import ColumnMap, TableChange
    from omnigraph.core.ids import Branch, TableKey
    from omnigraph.core.settings import Settings
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import TableEntry
    from omnigraph.planning.fills import Fill
    from omnigraph.storage.handles import SnapshotHandle
    from omnigraph.storage.layout import GraphRoot
    from omnigraph.storage.tables import TableStorage

Task = TypeVar("Task")
Result = TypeVar("Result")

PIECE_ROWS: Final = 1_000_000
"""Rows that one task looks at; a fragment is never cut."""
BATCH_ROWS: Final = 64 * 1024
TEXT_BYTES: Final = 32
"""What a value without a fixed width is taken to have, where only the size of the work is asked."""


class BulkWork(Protocol):
    """Runs the pieces of work that is too large for this process."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def map(
        self,
        session: GraphSession,
        stage: str,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
    ) -> list[Result]:
        """The result of the function for every task, in order."""
        ...


class Run(Protocol):
    """Calls a function for every task, here or elsewhere, and gives the results in order."""

    def __call__(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """See above."""
        ...


@dataclass(frozen=True, slots=True)
class NewRows:
    """One table version, read as a type it does not have yet. It can be pickled."""

    root: GraphRoot
    settings: Settings
    occasion: str
    table_key: TableKey
    location: str
    branch: Branch
    version: int
    type: TableType
    columns: ColumnMap | None
    fills: tuple[Fill, ...] = ()

    @classmethod
    def of(
        cls, session: GraphSession, entry: TableEntry, change: TableChange, fills: Sequence[Fill] = ()
    ) -> NewRows:
        """The rows of a table of a branch after the change."""
        return cls(
            session.root,
            session.settings,
            new_ulid(),
            entry.table_key,
            entry.location,
            entry.branch,
            entry.version,
            change.after,
            change.columns,
            tuple(fills),
        )

    def open(self) -> tuple[TableStorage, SnapshotHandle]:
        """The table as it is stored, in this process."""
        store = open_tables(self.root, self.settings, self.occasion)
        return store, open_pinned(store, self.table_key, self.location, self.branch, self.version)

    def pieces(self) -> list[Piece]:
        """The rows, cut between fragments."""
        store, handle = self.open()
        found: list[Piece] = []
        group: list[int] = []
        rows = 0
        for each in store.fragments(handle):
            group.append(each.id)
            rows += each.live_rows
            if rows >= PIECE_ROWS:
                found.append(Piece(self, tuple(group)))
                group, rows = [], 0
        return [*found, Piece(self, tuple(group))] if group else found


@dataclass(frozen=True, slots=True)
class Piece:
    """Some fragments of the rows."""

    rows: NewRows
    fragments: tuple[int, ...]

    def batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns by their new names, with the values they will have, batch by batch."""
        store, handle = self.rows.open()
        names, fills = list(dict.fromkeys(columns)), self.rows.fills
        read = sources_of(fills, names)
        seen = handle if self.rows.columns is None else store.seen_as(handle, self.rows.columns)
        carried = read or ["id"]
        for batch in store.scan(seen, columns=carried, fragments=self.fragments, batch_rows=BATCH_ROWS):
            yield with_fills(pa.Table.from_batches([batch]), self.rows.type, fills, names)


def bytes_of(schema: pa.Schema, names: Sequence[str], rows: int) -> int:
    """About how much the values of these columns are."""
    return rows * sum(_width(schema.field(name).type) for name in dict.fromkeys(names))


def _width(kind: pa.DataType) -> int:
    if isinstance(kind, pa.FixedSizeListType):
        return kind.list_size * _width(kind.value_type)
    try:
        return max(1, kind.bit_width // 8)
    except ValueError:
        return TEXT_BYTES


def is_large(settings: Settings, rows: int, size: int) -> bool:
    """Whether work of this size is above one of the bounds for work in this process."""
    return rows > settings.bulk_rows_in_process_max or size > settings.bulk_bytes_in_process_max


def runner(session: GraphSession, bulk: BulkWork | None, stage: str, rows: int, size: int) -> Run:
    """Who does work of this size: this process, or `bulk` when it is too much."""

    def here(function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        return [function(task) for task in tasks]

    def elsewhere(function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        return here(function, tasks) if bulk is None else bulk.map(session, stage, function, tasks)

    return elsewhere if is_large(session.settings, rows, size) else here
