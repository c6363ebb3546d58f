"""Large merge deltas on Spark: keys and addresses are joined there, rows are compared where they are read.

Only ids and row addresses travel between tasks, so the join may spill and no task ever holds a table. The
comparison of two rows is the function that a merge in one process uses.
"""

import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.arrays.keys import string_array
from omnigraph.arrays.types import Addresses
from omnigraph.branching.changes import NO_IDS, RowPairs, RowSet, TableDelta, Unshared, read_keys
from omnigraph.branching.equality import rows_differ
from omnigraph.core.ids import Branch, TableKey, new_ulid
from omnigraph.core.settings import Settings
from omnigraph.engine.session import GraphSession
from omnigraph.pipeline.spark.session import SparkRuntime, spark_runtime
from omnigraph.storage.fragments import open_pinned, open_tables
from omnigraph.storage.handles import Fragment, SnapshotHandle
from omnigraph.storage.layout import GraphRoot
from omnigraph.storage.tables import TableStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS_PER_TASK: Final = 1_000_000
"""Rows whose keys one task reads."""
COMPARED_PER_TASK: Final = 500_000
"""Rows one task compares."""
_INSERTED, _UPDATED, _DELETED, _MOVED = 0, 1, 2, 3
_KEY_COLUMNS: Final = "id string, {name} long"
_RESULT_COLUMNS: Final = "id string, kind int, before long, after long"


def spark_delta(
    session: GraphSession, old: SnapshotHandle | None, new: SnapshotHandle | None, unshared: Unshared
) -> TableDelta:
    """See `BulkDeltas.delta`. The changed ids and addresses come back to this process, nothing else.

    Starts Spark when it does not run yet.
    """
    runtime = spark_runtime(session.settings)
    plan = DeltaPlan.of(session, old, new)
    before = _keys_frame(runtime, plan, plan.old, _pieces(unshared.lost, unshared.died), "before")
    after = _keys_frame(runtime, plan, plan.new, _pieces(unshared.added, unshared.revived), "after")
    joined = before.join(after, "id", "full_outer")
    # Neighbours in the old version are compared together: a task reads its part of the file once.
    parts = max(1, unshared.rows // COMPARED_PER_TASK)
    ranged = joined.repartitionByRange(parts, "before", "after").sortWithinPartitions("before")
    told = ranged.mapInArrow(partial(tell_apart, pickle.dumps(plan)), _RESULT_COLUMNS)
    table = runtime.run(told.toArrow, operation="merge", stage=f"compare {_table_key(old, new)}")
    return _collected(table, unshared)


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """One table version as a task opens it."""

    table_key: TableKey
    location: str
    branch: Branch
    version: int

    @classmethod
    def of(cls, handle: SnapshotHandle | None) -> "PinnedTable | None":
        """The place of an open version."""
        if handle is None:
            return None
        return cls(handle.table_key, handle.location, handle.branch, handle.version)

    def open(self, store: TableStorage) -> SnapshotHandle:
        """The version, opened in this process."""
        return open_pinned(store, self.table_key, self.location, self.branch, self.version)


@dataclass(frozen=True, slots=True)
class DeltaPlan:
    """All a task may know about the comparison."""

    root: GraphRoot
    settings: Settings
    occasion: str
    old: PinnedTable | None
    new: PinnedTable | None

    @classmethod
    def of(cls, session: GraphSession, old: SnapshotHandle | None, new: SnapshotHandle | None) -> "DeltaPlan":
        """The plan of one comparison."""
        return cls(session.root, session.settings, new_ulid(), PinnedTable.of(old), PinnedTable.of(new))

    def store(self) -> TableStorage:
        """The tables of the graph in this process."""
        os.environ.setdefault("LANCE_LOG", "error")
        return open_tables(self.root, self.settings, self.occasion)


@dataclass(frozen=True, slots=True)
class KeyPiece:
    """Keys that one task reads: whole fragments, or single rows."""

    fragments: tuple[int, ...] = ()
    addresses: bytes = b""


def _table_key(old: SnapshotHandle | None, new: SnapshotHandle | None) -> str:
    handle = old if old is not None else new
    return "" if handle is None else handle.table_key


def _pieces(fragments: Sequence[Fragment], single: Addresses) -> list[KeyPiece]:
    found: list[KeyPiece] = []
    group: list[int] = []
    rows = 0
    for info in fragments:
        group.append(info.id)
        rows += info.live_rows
        if rows >= KEYS_PER_TASK:
            found.append(KeyPiece(tuple(group)))
            group, rows = [], 0
    if group:
        found.append(KeyPiece(tuple(group)))
    starts = range(0, len(single), KEYS_PER_TASK)
    return [*found, *(KeyPiece(addresses=single[at : at + KEYS_PER_TASK].tobytes()) for at in starts)]


def _keys_frame(
    runtime: SparkRuntime, plan: DeltaPlan, table: PinnedTable | None, pieces: Sequence[KeyPiece], name: str
) -> "DataFrame":
    """Ids and addresses of one side, one task per piece."""
    count = len(pieces)
    read = partial(piece_keys, pickle.dumps((plan, table, list(pieces))), name)
    columns = _KEY_COLUMNS.format(name=name)
    return runtime.spark.range(0, count, 1, max(1, count)).mapInArrow(read, columns)


def piece_keys(packed: bytes, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of a task: the keys of the pieces whose numbers arrive."""
    plan, table, pieces = pickle.loads(packed)  # noqa: S301 - made by our own driver
    for batch in batches:
        for number in batch.column(0).to_pylist():
            piece: KeyPiece = pieces[number]
            single = np.frombuffer(piece.addresses, np.uint64)
            store = plan.store()
            rows = read_keys(store, table.open(store), piece.fragments, single)
            where = pa.array(rows.addresses.astype(np.int64))
            yield from pa.table({"id": rows.ids, name: where}).to_batches(65_536)


def tell_apart(packed: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of a task: what happened to each id, comparing the rows that both versions have."""
    plan: DeltaPlan = pickle.loads(packed)  # noqa: S301 - made by our own driver
    for batch in batches:
        before, after = batch.column("before"), batch.column("after")
        kinds = np.where(_missing(before), _INSERTED, np.where(_missing(after), _DELETED, _MOVED))
        both = np.flatnonzero(kinds == _MOVED)
        if len(both) and plan.old is not None and plan.new is not None:
            store = plan.store()
            at = pa.array(both)
            differ = rows_differ(
                store, plan.old.open(store), _addresses(before.take(at)),
                plan.new.open(store), _addresses(after.take(at)),
            )  # fmt: skip
            kinds[both[differ]] = _UPDATED
        # The id of a row that only moved is never asked for.
        ids = pc.if_else(pa.array(kinds == _MOVED), pa.scalar(None, pa.string()), batch.column("id"))
        columns = [ids, pa.array(kinds.astype(np.int32)), before, after]
        yield pa.RecordBatch.from_arrays(columns, names=["id", "kind", "before", "after"])


def _missing(column: pa.Array) -> Any:
    return column.is_null().to_numpy(zero_copy_only=False)


def _addresses(column: Any) -> Addresses:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64).astype(np.uint64)


def _collected(table: pa.Table, unshared: Unshared) -> TableDelta:
    """The answer of the tasks as the delta a merge plans with."""
    kinds = np.asarray(table.column("kind").to_numpy(), np.int32)

    def chosen(kind: int) -> pa.Table:
        return table.take(pa.array(np.flatnonzero(kinds == kind)))

    def rows(kind: int, side: str) -> RowSet:
        found = chosen(kind)
        return RowSet(string_array(found.column("id")), _addresses(found.column(side))).sorted()

    updated, moved = chosen(_UPDATED), chosen(_MOVED)
    return TableDelta(
        inserted=rows(_INSERTED, "after"),
        updated=RowPairs(
            string_array(updated.column("id")),
            _addresses(updated.column("before")),
            _addresses(updated.column("after")),
        ).sorted(),
        deleted=rows(_DELETED, "before"),
        moved=RowPairs(NO_IDS, _addresses(moved.column("before")), _addresses(moved.column("after"))),
        shared=unshared.shared,
    )
