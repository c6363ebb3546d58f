"""The rows of a table as they will be under another schema, in pieces that any process can work on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import pyarrow as pa

from omnigraph.core.ids import new_ulid
from omnigraph.storage.fragments import open_pinned, open_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from omnigraph.catalog.schema import TableType
    from omnigraph.catalog.table_changes import ColumnMap, TableChange
    from omnigraph.core.ids import Branch, TableKey
    from omnigraph.core.settings import Settings
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import TableEntry
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

    @classmethod
    def of(cls, session: GraphSession, entry: TableEntry, change: TableChange) -> NewRows:
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
        """Columns by their new names, batch by batch."""
        store, handle = self.rows.open()
        seen = handle if self.rows.columns is None else store.seen_as(handle, self.rows.columns)
        names = list(dict.fromkeys(columns))
        reader = store.scan(seen, columns=names, fragments=self.fragments, batch_rows=BATCH_ROWS)
        for batch in reader:
            yield pa.Table.from_batches([batch])


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
