"""A Lance table that repeats rows whose authority is elsewhere, each exactly once, keyed by commit id."""

import threading
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.errors import (
    InternalError,
    RowLevelCasContention,
    StorageNotFound,
    StoragePermanent,
    StoragePrecondition,
    StorageUnknown,
)
from omnigraph.manifest.dataset import ControlDataset, WrittenRows
from omnigraph.planning.filters import FilterText

if TYPE_CHECKING:
    from lance import LanceDataset

KEY: Final = "graph_commit_id"
_TAIL_ROWS_MAX: Final = 2_048
_ATTEMPTS_MAX: Final = 64


class Projection:
    """Rows keyed by commit id; adding one that is there already does nothing. Thread-safe.

    Every addition rewrites the newest fragment, which is small. That keeps fragments few, and it makes two
    concurrent additions collide: a plain append would let both land and double a row.
    """

    def __init__(self, dataset: ControlDataset, schema: pa.Schema) -> None:
        self._dataset = dataset
        self._schema = schema
        self._handle: LanceDataset | None = None
        self._ids: pa.ChunkedArray | None = None
        self._lock = threading.RLock()

    def ids(self) -> pa.ChunkedArray:
        """The keys of all rows, as of now. Cost: a probe; one column of the table when it changed."""
        with self._lock:
            handle = self._fresh()
            if handle is None:
                return pa.chunked_array([], pa.string())
            if self._ids is None:
                self._ids = self._dataset.read(handle, [KEY])[KEY]
            return self._ids

    def read(self, columns: list[str] | None = None, where: FilterText | None = None) -> pa.Table:
        """Rows as of now, in no particular order."""
        with self._lock:
            handle = self._fresh()
        if handle is None:
            return self._schema.empty_table().select(columns or self._schema.names)
        try:
            return self._dataset.read(handle, columns, where)
        except StorageNotFound:
            # A cleanup keeps the newest version only, and this one is not that any more.
            return self._dataset.read(self._dataset.open_head(None), columns, where)

    def read_newest(self, columns: list[str]) -> pa.Table:
        """Rows that were added lately, the last one among them. Cost: does not follow the table."""
        with self._lock:
            handle = self._fresh()
        try:
            found = None if handle is None else self._dataset.last_fragment(handle, columns)
        except StorageNotFound:
            found = self._dataset.last_fragment(self._dataset.open_head(None), columns)
        return self._schema.empty_table().select(columns) if found is None else found[1]

    def is_whole(self) -> bool:
        """Whether every declared column is there and can be read. Cost: the whole table."""
        try:
            rows = self.read(self._schema.names)
        except (StoragePermanent, StorageUnknown, StorageNotFound, InternalError):
            return False
        return rows.schema.types == self._schema.types

    def add(self, rows: pa.Table) -> None:
        """Return once every row is in the table, durably. Rows whose key is there already are skipped."""
        with self._lock:
            for _ in range(_ATTEMPTS_MAX):
                # The swap below is made on the very version whose keys were compared: nobody can add one of
                # these rows in between.
                ids = self.ids()
                missing = rows.filter(pc.invert(pc.is_in(rows[KEY], value_set=ids.combine_chunks())))
                if missing.num_rows == 0 or self._try_add(missing, ids):
                    return
                self._handle = self._ids = None
        raise RowLevelCasContention(attempts=_ATTEMPTS_MAX)

    def _try_add(self, rows: pa.Table, ids: pa.ChunkedArray) -> bool:
        handle = self._handle or self._create()
        tail = self._dataset.last_fragment(handle)
        if tail is None:
            parts = [rows]
        else:
            old = tail[1].cast(self._schema)
            parts = [old, rows] if old.num_rows >= _TAIL_ROWS_MAX else [pa.concat_tables([old, rows])]
        written = [self._dataset.write_rows(handle, None, part, replacing=tail is None) for part in parts]
        together = WrittenRows(
            tuple(fragment for part in written for fragment in part.fragments),
            tuple(name for part in written for name in part.names),
            tuple(each for part in written for each in part.sums),
        )
        self._dataset.sync(*together.names)
        if tail is None:
            made = self._dataset.commit_overwrite(handle, None, self._schema, together)
        else:
            made = self._dataset.commit_rewrite(handle, [tail[0]], together)
        if made is None:
            return False
        self._ids = pa.chunked_array([*ids.chunks, *rows[KEY].chunks], pa.string())
        self._handle = made
        return True

    def _create(self) -> "LanceDataset":
        try:
            return self._dataset.create(self._schema)
        except StoragePrecondition:
            # Another process created it at the same moment, and may have added rows; without rows of our own
            # knowledge only its first, empty version may be replaced.
            return self._dataset.open_version(None, 1)

    def _fresh(self) -> "LanceDataset | None":
        """The newest version, or None when the table does not exist yet."""
        known = self._handle
        if known is not None:
            version = known.version
            if self._dataset.has_version(None, version) and not self._dataset.has_version(None, version + 1):
                return known
        elif not self._dataset.exists():
            return None
        self._ids = None
        self._handle = self._dataset.open_head(None)
        return self._handle
