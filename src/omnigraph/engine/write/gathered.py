"""`MutationStaging`: what one mutation or load has gathered before anything is written.

Nothing here touches storage. A write that fails or is cancelled while it is still gathering disappears with
this object.
"""

from collections.abc import Iterable
from dataclasses import field, replace
from enum import StrEnum
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from omnigraph.arrays.addresses import ABSENT
from omnigraph.arrays.key_segments import KeySegment
from omnigraph.arrays.keys import hash_keys, last_occurrences, string_array
from omnigraph.arrays.sets import distinct
from omnigraph.catalog.schema import TableType
from omnigraph.core.errors import BadRequest, InternalError, ReadSetConflict
from omnigraph.core.ids import Branch, OperationId, TableKey
from omnigraph.core.late_dataclass import dataclass
from omnigraph.manifest.state import Snapshot, TableEntry
from omnigraph.recovery.outcome import WriteCourse
from omnigraph.storage.handles import Fragment


class MutationOpKind(StrEnum):
    """What an operation does to a table."""

    INSERT = "insert"
    MERGE = "merge"
    UPDATE = "update"
    DELETE = "delete"
    SCHEMA_REWRITE = "schema_rewrite"

    @property
    def strict(self) -> bool:
        """Whether the meaning depends on rows that were read: such a write is never run against a newer
        version.
        """
        return self not in {MutationOpKind.INSERT, MutationOpKind.MERGE}


class PendingMode(StrEnum):
    """How the pending rows of a table will be staged."""

    APPEND = "append"
    MERGE = "merge"
    OVERWRITE = "overwrite"


@dataclass(slots=True)
class PendingTable:
    """Rows a write wants in one table: batches in memory, or fragments that tasks have already written."""

    type: TableType
    schema: pa.Schema
    mode: PendingMode
    batches: list[pa.Table] = field(default_factory=list[pa.Table])
    fragments: list[Fragment] = field(default_factory=list[Fragment])
    """What tasks wrote and nobody points at yet (a load that stages while it reads)."""
    fragment_addresses: NDArray[np.uint64] | None = None
    """Merge with fragments: the committed rows they replace, at the captured pin."""
    located: list[tuple[pa.StringArray, NDArray[np.uint64]]] = field(
        default_factory=list[tuple[pa.StringArray, NDArray[np.uint64]]]
    )
    """Ids whose committed address is known at the captured pin."""
    generated: list[pa.StringArray] = field(default_factory=list[pa.StringArray])
    """Ids the engine drew: no committed row has them, at any version."""

    row_count: int = 0
    """Rows in memory, before reduction."""
    nbytes_max: int = 0
    """Bytes the rows occupy at most: buffers they share with other rows count in full."""
    pushes: int = 0
    """How often rows were added: only rows of different pushes can have the same id."""
    proven: int = 0
    """How many of the batches were validated already, with an earlier call of the same write."""
    _ids: set[str] | None = None
    """The ids of all batches, from the first time somebody asks for one."""

    def add(self, rows: pa.Table) -> None:
        """Take rows; counts are kept, so that a query of many statements does not add them up each time."""
        self.batches.append(rows)
        self.pushes += 1
        self.row_count += rows.num_rows
        # The exact number takes as long as making the row.
        self.nbytes_max += int(rows.get_total_buffer_size())
        if self._ids is not None:
            self._ids.update(_ids_of(rows))

    def copy(self) -> Self:
        """The same rows in lists of its own."""
        # Every call of a group makes one: `dataclasses.replace` would take as long as making its row.
        return type(self)(
            type=self.type,
            schema=self.schema,
            mode=self.mode,
            batches=list(self.batches),
            fragments=list(self.fragments),
            fragment_addresses=self.fragment_addresses,
            located=list(self.located),
            generated=list(self.generated),
            row_count=self.row_count,
            nbytes_max=self.nbytes_max,
            pushes=self.pushes,
            proven=self.proven,
        )

    def take_instead(self, rows: pa.Table) -> None:
        """Take these rows for `combined`, of which some values were filled in."""
        self.batches, self.proven = [rows], 0
        self.row_count, self.nbytes_max = rows.num_rows, int(rows.get_total_buffer_size())

    def has(self, entity_id: str) -> bool:
        """Whether a row with this id is in memory. Cost: each row is looked at once for all questions."""
        if self._ids is None:
            self._ids = set[str]().union(*(_ids_of(rows) for rows in self.batches))
        return entity_id in self._ids

    def join(self) -> None:
        """Make few batches of many small ones, for a write that reads its own rows statement by statement.

        Afterwards each batch has more rows than all that follow it. Cost: over a whole write each row is
        copied at most once per doubling of the rows.
        """
        tail: list[pa.Table] = []
        rows = 0
        while self.batches and (not tail or self.batches[-1].num_rows <= rows):
            tail.append(self.batches.pop())
            rows += tail[-1].num_rows
        self.proven = min(self.proven, len(self.batches))
        if tail:
            self.batches.append(tail[0] if len(tail) == 1 else pa.concat_tables(tail[::-1]).combine_chunks())

    @property
    def nbytes(self) -> int:
        """Arrow bytes in memory."""
        return sum(int(rows.nbytes) for rows in self.batches)

    def combined(self) -> pa.Table:
        """All pending rows; in merge mode one per id, the last pushed wins, order otherwise kept."""
        return self._reduced(self.batches)

    def unproven(self) -> pa.Table:
        """As `combined`, of the rows that were not validated yet."""
        return self._reduced(self.batches[self.proven :])

    def _reduced(self, batches: list[pa.Table]) -> pa.Table:
        table = pa.concat_tables(batches) if batches else self.schema.empty_table()
        if self.mode is not PendingMode.MERGE or self.pushes < 2 or table.num_rows < 2:
            return table
        ids = string_array(table.column("id"))
        last = last_occurrences(ids)
        return table if len(last) == len(ids) else table.take(pa.array(last))

    def known_addresses(self, ids: pa.StringArray, *, same_base: bool) -> NDArray[np.uint64] | None:
        """Addresses of the ids without asking the table, or None when some are not known.

        Addresses found while the write was prepared only count against the same version (`same_base`).
        """
        known = [(each, np.full(len(each), ABSENT, np.uint64)) for each in self.generated]
        if same_base:
            known.extend(self.located)
        if not known:
            return None
        segment = KeySegment(
            pa.concat_arrays([each for each, _ in known]), np.concatenate([each for _, each in known])
        )
        named, addresses = segment.find(ids, hash_keys(ids))
        return addresses if named.all() else None


@dataclass(slots=True)
class PendingDelete:
    """Rows a write removes from one table."""

    type: TableType
    ids: list[pa.StringArray] = field(default_factory=list[pa.StringArray])
    addresses: list[NDArray[np.uint64]] = field(default_factory=list[NDArray[np.uint64]])

    def copy(self) -> Self:
        """The same rows in lists of its own."""
        return replace(self, ids=list(self.ids), addresses=list(self.addresses))

    def all_addresses(self) -> NDArray[np.uint64]:
        """The addresses of the removed rows, each once, ascending."""
        return distinct(np.concatenate(self.addresses)) if self.addresses else np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Savepoint:
    """What a staging held at one moment. Values are shared with it, containers are not."""

    expected_versions: dict[TableKey, int]
    pending: dict[TableKey, PendingTable]
    deletions: dict[TableKey, PendingDelete]
    op_kinds: dict[TableKey, MutationOpKind]
    read_set: dict[TableKey, int]


class MutationStaging:
    """The accumulator of one mutation or load on one branch, prepared against one snapshot.

    Not thread-safe: one write, one owner.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        operation_id: OperationId,
        *,
        branch_identity: str = "",
        course: WriteCourse | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.operation_id = operation_id
        self.branch_identity = branch_identity
        self.course = WriteCourse("the write") if course is None else course
        """The course of the call this write belongs to. A call may need several attempts, each with its own
        staging.
        """
        self.expected_versions: dict[TableKey, int] = {}
        self.pending: dict[TableKey, PendingTable] = {}
        self.deletions: dict[TableKey, PendingDelete] = {}
        self.op_kinds: dict[TableKey, MutationOpKind] = {}
        self.read_set: dict[TableKey, int] = {}

    @property
    def branch(self) -> Branch:
        """The graph branch this write publishes to."""
        return self.snapshot.branch

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to stage, commit or publish."""
        return not (self.pending or self.deletions)

    @property
    def strict(self) -> bool:
        """Whether any operation of the write is strict."""
        return any(kind.strict for kind in self.op_kinds.values())

    @property
    def row_count(self) -> int:
        """Rows gathered in memory, before reduction."""
        return sum(each.row_count for each in self.pending.values())

    def savepoint(self) -> Savepoint:
        """What is held now, for `go_back_to`. Cost: follows the number of pushes, not of rows."""
        return Savepoint(
            dict(self.expected_versions),
            {key: each.copy() for key, each in self.pending.items()},
            {key: each.copy() for key, each in self.deletions.items()},
            dict(self.op_kinds),
            dict(self.read_set),
        )

    def go_back_to(self, saved: Savepoint) -> None:
        """Forget everything since the savepoint, which is used up."""
        self.expected_versions = saved.expected_versions
        self.pending = saved.pending
        self.deletions = saved.deletions
        self.op_kinds = saved.op_kinds
        self.read_set = saved.read_set

    def written_tables(self) -> tuple[TableKey, ...]:
        """The tables this write will commit to, in key order."""
        return tuple(sorted({*self.pending, *self.deletions}))

    @property
    def touched(self) -> set[TableKey]:
        """Every table this write reads or writes."""
        return {*self.pending, *self.deletions, *self.read_set}

    def touch(self, table_key: TableKey, kind: MutationOpKind) -> TableEntry:
        """Note that an operation of `kind` works on the table; the first touch captures its pin.

        Raises `ReadSetConflict` when the branch shows no such table (a schema change ran ahead of this
        write).
        """
        entry = self.snapshot.entries.get(table_key)
        if entry is None:
            raise ReadSetConflict("schema", message=f"'{table_key}' is not a table of this branch any more")
        self.expected_versions.setdefault(table_key, entry.version)
        before = self.op_kinds.get(table_key)
        if before is None or (kind.strict and not before.strict):
            self.op_kinds[table_key] = kind
        return entry

    def record_read(self, table_key: TableKey) -> None:
        """Note that the write depends on what this table holds at the snapshot."""
        self.read_set.setdefault(table_key, self.snapshot.pin(table_key))

    def push(
        self, table_type: TableType, rows: pa.Table, mode: PendingMode, kind: MutationOpKind
    ) -> PendingTable | None:
        """Add rows to a table. No rows are ignored, except that an overwrite may replace a table by nothing.

        Raises `BadRequest` when the columns differ from those of rows pushed before.
        """
        table_key = TableKey(table_type.table_key)
        if rows.num_rows == 0 and mode is not PendingMode.OVERWRITE:
            return None
        self.touch(table_key, kind)
        pending = self._pending(table_key, table_type, rows.schema, mode)
        if not _same_columns(pending.schema, rows.schema):
            raise BadRequest(
                f"the statements write '{table_type.name}' with different columns",
                hint="split the query into one query per set of columns",
            )
        pending.add(rows)
        return pending

    def push_fragments(
        self,
        table_type: TableType,
        fragments: Iterable[Fragment],
        mode: PendingMode,
        kind: MutationOpKind,
        *,
        replaced: NDArray[np.uint64] | None = None,
    ) -> PendingTable:
        """Add fragments that tasks wrote below the table's own directory; `replaced` are the rows a merge
        hides.
        """
        table_key = TableKey(table_type.table_key)
        self.touch(table_key, kind)
        pending = self._pending(table_key, table_type, table_type.arrow_schema, mode)
        if pending.batches:
            raise InternalError(f"'{table_key}' has rows in memory and fragments in one write")
        pending.fragments.extend(fragments)
        if replaced is not None:
            pending.fragment_addresses = replaced
        return pending

    def delete(self, table_type: TableType, ids: pa.StringArray, addresses: NDArray[np.uint64]) -> None:
        """Remove committed rows; none is ignored."""
        table_key = TableKey(table_type.table_key)
        if len(ids) == 0:
            return
        if table_key in self.pending:
            raise InternalError(f"'{table_key}' is written and deleted from in one query")
        self.touch(table_key, MutationOpKind.DELETE)
        removal = self.deletions.setdefault(table_key, PendingDelete(table_type))
        removal.ids.append(ids)
        removal.addresses.append(addresses)

    def _pending(
        self, table_key: TableKey, table_type: TableType, schema: pa.Schema, mode: PendingMode
    ) -> PendingTable:
        pending = self.pending.get(table_key)
        if pending is None:
            pending = self.pending[table_key] = PendingTable(table_type, schema, mode)
        elif pending.mode is not mode:
            if PendingMode.OVERWRITE in {pending.mode, mode}:
                raise InternalError(f"'{table_key}' is replaced and extended in one write")
            pending.mode = PendingMode.MERGE
        return pending


def _ids_of(rows: pa.Table) -> list[str]:
    ids: list[Any] = rows.column("id").to_pylist()
    return ids


def _same_columns(left: pa.Schema, right: pa.Schema) -> bool:
    """Equal names, order and types; nullability and metadata may differ."""
    if left.equals(right):
        return True
    return left.names == right.names and all(_same_type(left.field(n), right.field(n)) for n in left.names)


def _same_type(left: pa.Field, right: pa.Field) -> bool:
    equal: Any = left.type.equals(right.type)
    return bool(equal)
