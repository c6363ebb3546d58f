"""What changed between two states of the graph: counted, listed, and told apart by entity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa

from omnigraph.arrays.addresses import ABSENT
from omnigraph.branching.changes import TableDelta, id_order, table_delta
from omnigraph.branching.equality import row_bytes, same_value
from omnigraph.catalog.schema import EdgeType
from omnigraph.catalog.table_changes import catalog_change
from omnigraph.core import html
from omnigraph.core.errors import TypeNotFound
from omnigraph.core.ids import CommitId, TableKey
from omnigraph.core.limits import MIB
from omnigraph.engine.read.result import json_values
from omnigraph.engine.readable import seen_as
from omnigraph.language.diagnostics import near_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from omnigraph.arrays.types import Addresses
    from omnigraph.catalog.schema import TableType
    from omnigraph.catalog.table_changes import CatalogChange
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot
    from omnigraph.storage.handles import SnapshotHandle

ROWS_READ_MAX: Final = 4_096
"""Rows of one side held at a time while changes are listed."""
PIECE_BYTES: Final = 2 * MIB
"""What they may weigh as stored; as Python values they weigh several times as much."""
_IMAGES: Final = 2
"""A change has up to two images."""


HTML_CHANGES_MAX: Final = 20
"""Changes a notebook lists; the rest is counted."""


class ChangeOp(StrEnum):
    """What happened to an entity."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


_COUNTED: Final = {ChangeOp.INSERT: "inserted", ChangeOp.UPDATE: "updated", ChangeOp.DELETE: "deleted"}


@dataclass(frozen=True, slots=True)
class EntityChange:
    """One entity that differs. Images hold `id`, for edges `src` and `dst`, and every property."""

    type_name: str
    kind: str
    id: str
    op: ChangeOp
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    type_id: str = ""
    """The identity of the type, which survives a rename."""

    @property
    def table_key(self) -> str:
        """The table the entity lives in."""
        return f"{self.kind}:{self.type_name}"

    @property
    def properties(self) -> tuple[str, ...]:
        """The names whose values differ; all of them for an insert or a delete."""
        before, after = self.before or {}, self.after or {}
        both = before.keys() & after.keys()
        return tuple(n for n in {**before, **after} if n not in both or not same_value(before[n], after[n]))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: an insert has only `after`, a delete only `before`."""
        sides = {"before": self.before, "after": self.after}
        return {
            "kind": self.kind,
            "type": {"id": self.type_id, "name": self.type_name},
            "id": self.id,
            "op": self.op.value,
            **{name: self._image(image) for name, image in sides.items() if image is not None},
        }

    def _image(self, image: Mapping[str, Any]) -> dict[str, Any]:
        ends = {"src", "dst"} if self.kind == "edge" else set[str]()
        values = {name: value for name, value in image.items() if name != "id" and name not in ends}
        if not ends:
            return {"properties": values}
        return {"properties": values, "endpoints": {"from": image["src"], "to": image["dst"]}}


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

    def ordered(self, ops: frozenset[ChangeOp]) -> tuple[Addresses, Addresses]:
        """Where the rows of these changes were and are, by ascending id; `ABSENT` where there is no row."""
        inserted, updated, deleted = self.delta.inserted, self.delta.updated, self.delta.deleted
        nowhere = np.full(max(len(inserted), len(deleted)), ABSENT, np.uint64)
        groups = {
            ChangeOp.INSERT: (inserted.ids, nowhere[: len(inserted)], inserted.addresses),
            ChangeOp.UPDATE: (updated.ids, updated.before, updated.after),
            ChangeOp.DELETE: (deleted.ids, deleted.addresses, nowhere[: len(deleted)]),
        }
        chosen = [groups[op] for op in ChangeOp if op in ops]
        order = id_order(pa.concat_arrays([ids for ids, _, _ in chosen]))
        before = np.concatenate([former for _, former, _ in chosen])
        after = np.concatenate([present for _, _, present in chosen])
        return before[order], after[order]


@dataclass(frozen=True, slots=True, eq=False)
class Diff:
    """The difference of two states, by type and then by id. Iterating reads the rows, a bounded piece at a
    time.
    """

    session: GraphSession
    from_commit: CommitId
    to_commit: CommitId
    tables: tuple[TableChanges, ...]
    ops: frozenset[ChangeOp]

    def __len__(self) -> int:
        return sum(self._count(each) for each in self.tables)

    def __iter__(self) -> Iterator[EntityChange]:
        return self.part(0, len(self))

    def part(self, start: int, stop: int) -> Iterator[EntityChange]:
        """The changes from one position up to another; reads the rows of these only."""
        for table in self.tables:
            count = self._count(table)
            if start < count and stop > 0:
                yield from self._table(table, max(0, start), min(stop, count))
            start, stop = start - count, stop - count

    def within(self, start: int, size: int) -> tuple[int, int]:
        """How many changes from a position on weigh about `size` bytes, and what they weigh. At least one, if
        there is one.
        """
        found = weight = 0
        for table in self.tables:
            rows = self._count(table)
            if start >= rows:
                start -= rows
                continue
            rows, start = rows - start, 0
            each = _IMAGES * row_bytes(table.type.arrow_schema)
            fitting = min(rows, max(0 if found else 1, (size - weight) // each))
            found, weight = found + fitting, weight + fitting * each
            if fitting < rows:
                break
        return found, weight

    def nodes_first(self) -> Diff:
        """The same changes with all nodes before all edges, types by their identity."""
        ordered = sorted(self.tables, key=lambda each: (isinstance(each.type, EdgeType), each.type.type_id))
        return replace(self, tables=tuple(ordered))

    @property
    def stats(self) -> dict[str, dict[str, int]]:
        """Counts by table key, for the types that differ; operations nobody asked for count nothing."""
        asked = {f"{op.value.rstrip('e')}ed" for op in self.ops}
        counted: dict[str, dict[str, int]] = {}
        for each in self.tables:
            # A type that was dropped and one that came back have one name.
            counts = counted.setdefault(each.type.table_key, dict.fromkeys(each.counts, 0))
            for name, number in each.counts.items():
                counts[name] += number * (name in asked)
        return {key: counts for key, counts in counted.items() if any(counts.values())}

    def json_lines(self) -> Iterator[bytes]:
        """One change per line."""
        for change in self:
            yield orjson.dumps(change.to_dict()) + b"\n"

    def to_dict(self) -> dict[str, Any]:
        """The summary: both commits and the counts by type."""
        names = {"inserted": "inserts", "updated": "updates", "deleted": "deletes"}
        stats = {
            key: {names[what]: number for what, number in counts.items()}
            for key, counts in self.stats.items()
        }
        return {"from": self.from_commit, "to": self.to_commit, "stats": stats}

    def __repr__(self) -> str:
        return f"Diff({self.from_commit}..{self.to_commit}, changes: {len(self)})"

    def _repr_html_(self) -> str:
        shown = [
            (change.op.value, change.type_name, change.id, _told(change))
            for change in islice(self, HTML_CHANGES_MAX)
        ]
        listed = html.table(
            ("what", "type", "id", "properties"), shown, more=len(self) - len(shown), unit="changes"
        )
        return (html.counts(self.stats, f"{self.from_commit} → {self.to_commit}") + listed).html()

    def _count(self, table: TableChanges) -> int:
        counts = table.counts
        return sum(counts[_COUNTED[op]] for op in self.ops)

    def _table(self, table: TableChanges, start: int, stop: int) -> Iterator[EntityChange]:
        """Some of the changes of one type, by id."""
        before, after = table.ordered(self.ops)
        step = max(1, min(ROWS_READ_MAX, PIECE_BYTES // row_bytes(table.type.arrow_schema)))
        for begin in range(start, stop, step):
            end = min(stop, begin + step)
            was = self._side(table.type, table.old, before[begin:end])
            now = self._side(table.type, table.new, after[begin:end])
            for former, present in zip(was, now, strict=True):
                yield self._change(table.type, former, present)

    def _side(
        self, type_: TableType, side: SnapshotHandle | None, addresses: Addresses
    ) -> list[dict[str, Any] | None]:
        """The rows of one side at these addresses; None where the side has no row."""
        there = np.flatnonzero(addresses != ABSENT)
        found: list[dict[str, Any] | None] = [None] * len(addresses)
        for at, image in zip(there.tolist(), self._images(type_, side, addresses[there]), strict=True):
            found[at] = image
        return found

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
        type_: TableType, before: dict[str, Any] | None, after: dict[str, Any] | None
    ) -> EntityChange:
        op = ChangeOp.INSERT if before is None else ChangeOp.DELETE if after is None else ChangeOp.UPDATE
        image = after if after is not None else before
        kind = "edge" if isinstance(type_, EdgeType) else "node"
        return EntityChange(type_.name, kind, str((image or {})["id"]), op, before, after, str(type_.type_id))


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
    kinds: Sequence[str] | None = None,
) -> Diff:
    """What differs between two states, wherever they live.

    Cost: follows what the two do not share; rows are read when the result is iterated. Raises `TypeNotFound`.
    """
    catalog = session.catalog_of(new)
    change = catalog_change(session.catalog_of(old), catalog)
    seen = seen_as(session, old, catalog, new.schema_hash)
    # What was dropped is told by its own name, everything else by the names of now.
    told = [(TableKey(each.table_key), each, True) for each in change.dropped]
    told += [(TableKey(each.table_key), each, False) for each in catalog.tables()]
    wanted = _wanted_names([each for _, each, _ in told], change, types)
    tables: list[TableChanges] = []
    for key, type_, gone in sorted(told, key=lambda each: (each[0], not each[2])):
        before = (old if gone else seen.snapshot).entries.get(key)
        after = None if gone else new.entries.get(key)
        if (wanted is not None and type_.name not in wanted) or before == after:
            continue
        if kinds is not None and key.partition(":")[0] not in kinds:
            continue
        opened = session.open_entry if gone else partial(seen.open, session)
        old_handle = None if before is None else opened(before)
        new_handle = None if after is None else session.open_entry(after)
        delta = table_delta(session.storage, old_handle, new_handle)
        if not delta.empty:
            tables.append(TableChanges(type_, old_handle, new_handle, delta))
    chosen = frozenset(ChangeOp) if ops is None else frozenset(ops)
    return Diff(session, old.head, new.head, tuple(tables), chosen)


def _wanted_names(
    told: Sequence[TableType], change: CatalogChange, types: Sequence[str] | None
) -> frozenset[str] | None:
    """The types to tell of, by the names they are told by; a former name means the type it was."""
    if types is None:
        return None
    names = {each.name: each.name for each in told}
    formerly = {each.before.name: each.after.name for each in change.kept}
    for name in types:
        if name not in names and name not in formerly:
            raise TypeNotFound(name, candidates=near_names(name, sorted({*names, *formerly})))
    return frozenset(names.get(name) or formerly[name] for name in types)
