"""What changed between two states of the graph: counted, listed, and told apart by entity."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from omnigraph.branching.changes import RowPairs, RowSet, TableDelta, table_delta
from omnigraph.catalog.schema import EdgeType
from omnigraph.core import html
from omnigraph.core.errors import BranchNotFound, CommitNotFound, TypeNotFound
from omnigraph.core.ids import CommitId, TableKey, normalize_branch
from omnigraph.engine.result import json_values
from omnigraph.language.diagnostics import near_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from omnigraph.catalog.schema import TableType
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot
    from omnigraph.storage.handles import SnapshotHandle

ROWS_READ_MAX: Final = 4_096
"""Rows of one side held at a time while changes are listed."""


HTML_CHANGES_MAX: Final = 20
"""Changes a notebook lists; the rest is counted."""


class ChangeOp(StrEnum):
    """What happened to an entity."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class EntityChange:
    """One entity that differs. Images hold `id`, for edges `src` and `dst`, and every property."""

    type_name: str
    kind: str
    id: str
    op: ChangeOp
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None

    @property
    def table_key(self) -> str:
        """The table the entity lives in."""
        return f"{self.kind}:{self.type_name}"

    @property
    def properties(self) -> tuple[str, ...]:
        """The names whose values differ; all of them for an insert or a delete."""
        before, after = self.before or {}, self.after or {}
        names = {**before, **after}
        return tuple(n for n in names if n not in before or n not in after or before[n] != after[n])

    def to_dict(self) -> dict[str, Any]:
        """The change as JSON says it."""
        return {
            "op": self.op.value,
            self.kind: self.type_name,
            "id": self.id,
            "before": self.before,
            "after": self.after,
        }


@dataclass(frozen=True, slots=True, eq=False)
class TableChanges:
    """The changes of one type, not read yet beyond ids and addresses."""

    type: TableType
    old: SnapshotHandle | None
    new: SnapshotHandle | None
    delta: TableDelta

    @property
    def counts(self) -> dict[str, int]:
        """How many entities of the type were inserted, updated and deleted."""
        return {
            "inserted": len(self.delta.inserted),
            "updated": len(self.delta.updated),
            "deleted": len(self.delta.deleted),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Diff:
    """The difference of two states. Iterating reads the rows, a bounded piece at a time.

    Order: by type (nodes and edges by table key), then by id within each operation.
    """

    session: GraphSession
    from_commit: CommitId
    to_commit: CommitId
    tables: tuple[TableChanges, ...]
    ops: frozenset[ChangeOp]

    def __len__(self) -> int:
        return sum(sum(each.counts[f"{op.value.rstrip('e')}ed"] for op in self.ops) for each in self.tables)

    def __iter__(self) -> Iterator[EntityChange]:
        for table in self.tables:
            yield from self._table(table)

    @property
    def stats(self) -> dict[str, dict[str, int]]:
        """Counts by table key, for the types that differ."""
        return {each.type.table_key: each.counts for each in self.tables}

    def json_lines(self) -> Iterator[bytes]:
        """One change a line."""
        for change in self:
            yield orjson.dumps(change.to_dict()) + b"\n"

    def to_dict(self) -> dict[str, Any]:
        """The summary: both commits and the counts."""
        return {"from": self.from_commit, "to": self.to_commit, "types": self.stats}

    def __repr__(self) -> str:
        return f"Diff({self.from_commit}..{self.to_commit}, {len(self)} changes)"

    def _repr_html_(self) -> str:
        shown = [
            (change.op.value, change.type_name, change.id, _told(change))
            for change in islice(self, HTML_CHANGES_MAX)
        ]
        listed = html.table(
            ("what", "type", "id", "properties"), shown, more=len(self) - len(shown), unit="changes"
        )
        return html.counts(self.stats, f"{self.from_commit} → {self.to_commit}") + listed

    def _table(self, table: TableChanges) -> Iterator[EntityChange]:
        delta = table.delta
        if ChangeOp.INSERT in self.ops:
            yield from self._one_sided(table, table.new, delta.inserted, ChangeOp.INSERT)
        if ChangeOp.UPDATE in self.ops:
            yield from self._updated(table, delta.updated)
        if ChangeOp.DELETE in self.ops:
            yield from self._one_sided(table, table.old, delta.deleted, ChangeOp.DELETE)

    def _one_sided(
        self, table: TableChanges, side: SnapshotHandle | None, rows: RowSet, op: ChangeOp
    ) -> Iterator[EntityChange]:
        for begin in range(0, len(rows), ROWS_READ_MAX):
            piece = rows.addresses[begin : begin + ROWS_READ_MAX]
            for image in self._images(table.type, side, piece):
                before, after = (None, image) if op is ChangeOp.INSERT else (image, None)
                yield self._change(table.type, op, before, after)

    def _updated(self, table: TableChanges, rows: RowPairs) -> Iterator[EntityChange]:
        for begin in range(0, len(rows), ROWS_READ_MAX):
            end = begin + ROWS_READ_MAX
            before = self._images(table.type, table.old, rows.before[begin:end])
            after = self._images(table.type, table.new, rows.after[begin:end])
            for was, now in zip(before, after, strict=True):
                yield self._change(table.type, ChangeOp.UPDATE, was, now)

    def _images(self, type_: TableType, side: SnapshotHandle | None, addresses: Any) -> list[dict[str, Any]]:
        if side is None or len(addresses) == 0:
            return []
        present = set(side.schema.names)
        names = [name for name in type_.arrow_schema.names if name in present]
        table = self.session.storage.take(side, np.asarray(addresses), names)
        values = [json_values(table.column(name)) for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]

    @staticmethod
    def _change(
        type_: TableType, op: ChangeOp, before: dict[str, Any] | None, after: dict[str, Any] | None
    ) -> EntityChange:
        image = after if after is not None else before
        kind = "edge" if isinstance(type_, EdgeType) else "node"
        return EntityChange(type_.name, kind, str((image or {})["id"]), op, before, after)


def _told(change: EntityChange) -> str:
    """The changed properties of an update, as a reader wants them."""
    if change.before is None or change.after is None:
        return ""
    before, after = change.before, change.after
    return ", ".join(
        f"{name}: {html.cell_text(before.get(name))} → {html.cell_text(after.get(name))}"
        for name in change.properties
    )


def diff_snapshots(
    session: GraphSession,
    old: Snapshot,
    new: Snapshot,
    *,
    types: Sequence[str] | None = None,
    ops: Sequence[ChangeOp] | None = None,
) -> Diff:
    """What differs between two states, wherever they live.

    Cost: follows what the two do not share; rows are read when the result is iterated. Raises `TypeNotFound`.
    """
    catalog = session.catalog_of(new)
    former = session.catalog_of(old)
    known: dict[TableKey, TableType] = {
        TableKey(each.table_key): each for source in (former, catalog) for each in source.tables()
    }
    _check_names(known, types)
    tables: list[TableChanges] = []
    for key in sorted(known):
        type_ = known[key]
        before, after = old.entries.get(key), new.entries.get(key)
        if (types is not None and type_.name not in types) or before == after:
            continue
        old_handle = None if before is None else session.open_entry(before)
        new_handle = None if after is None else session.open_entry(after)
        delta = table_delta(session.storage, old_handle, new_handle)
        if not delta.empty:
            tables.append(TableChanges(type_, old_handle, new_handle, delta))
    chosen = frozenset(ChangeOp) if ops is None else frozenset(ops)
    return Diff(session, old.head, new.head, tuple(tables), chosen)


def _check_names(known: Mapping[TableKey, TableType], types: Sequence[str] | None) -> None:
    names = {type_.name for type_ in known.values()}
    for name in types or ():
        if name not in names:
            raise TypeNotFound(name, candidates=near_names(name, sorted(names)))


def resolve_reference(session: GraphSession, text: str) -> Snapshot:
    """The state a name stands for: a branch, else a tag, else a commit.

    Raises `CommitNotFound` when it is none of them.
    """
    try:
        return session.manifest.current(normalize_branch(text))
    except BranchNotFound:
        pass
    tagged = session.manifest.tags.find(text)
    if tagged is not None:
        return tagged
    try:
        return session.manifest.at_commit(CommitId(text))
    except CommitNotFound:
        names = ["main", *session.manifest.branches(), *session.manifest.tags.list()]
        raise CommitNotFound(
            text, candidates=near_names(text, names), hint="name a branch, a tag or a commit id"
        ) from None
