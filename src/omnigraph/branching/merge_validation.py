"""The rules of the schema on the graph a merge would make, restricted to what the merge can break.

Changed rows are checked by the one validator of the engine. What it cannot see, because a mutation removes
the edges of a node together with the node, is looked for here: edges of the target whose ends the merge
deletes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.arrays.addresses import ABSENT
from omnigraph.arrays.keys import string_array
from omnigraph.branching.changes import NO_IDS
from omnigraph.branching.delta_engine import TABLES_AT_ONCE
from omnigraph.branching.equality import chunk_rows, read_rows
from omnigraph.branching.merge_plan import ConflictKind, MergeConflict
from omnigraph.branching.mixed_rows import mixed_rows
from omnigraph.catalog.schema import EdgeType
from omnigraph.core.errors import ConstraintViolation
from omnigraph.core.ids import TableKey, edge_table_key, node_table_key
from omnigraph.core.limits import MERGE_CONFLICTS_REPORTED_MAX
from omnigraph.engine.write.rules import is_bounded, lost_end
from omnigraph.engine.write.validate import PROBED_VALUES_MAX, TableChange, validate
from omnigraph.planning.filters import filter_text, has_text, some

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Addresses
    from omnigraph.branching.merge_plan import RowChanges
    from omnigraph.branching.rows_in_memory import HeldRows
    from omnigraph.catalog.schema import Catalog, TableType
    from omnigraph.core.errors import Violation
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot
    from omnigraph.planning.filters import FilterText
    from omnigraph.storage.handles import SnapshotHandle

_KINDS: Final = {
    "unique": ConflictKind.UNIQUE_VIOLATION,
    "endpoint": ConflictKind.ORPHAN_EDGE,
    "cardinality": ConflictKind.CARDINALITY_VIOLATION,
}


class TargetView:
    """`CommittedState` over the snapshot a merge lands on; remembers which tables it was asked about."""

    def __init__(self, session: GraphSession, target: Snapshot) -> None:
        self._session = session
        self._target = target
        self.read_set: dict[TableKey, int] = {}

    def handle(self, table_key: TableKey) -> SnapshotHandle | None:
        """The table as the target shows it; None when it shows none."""
        self.read_set[table_key] = self._target.pin(table_key)
        entry = self._target.entries.get(table_key)
        return None if entry is None else self._session.open_entry(entry)

    def existing(self, table_key: TableKey, ids: pa.StringArray) -> NDArray[np.bool_]:
        """See `CommittedState`."""
        handle = self.handle(table_key)
        if handle is None:
            return np.zeros(len(ids), np.bool_)
        session = self._session
        return session.keys.addresses(session.root.identity, session.storage, handle, ids) != ABSENT

    def read(self, table_key: TableKey, columns: Sequence[str], where: FilterText | None) -> pa.Table:
        """See `CommittedState`."""
        handle = self.handle(table_key)
        if handle is None:
            return pa.table(dict.fromkeys(columns, NO_IDS))
        return self._session.storage.read(handle, columns=list(columns), filter=where)


@dataclass(frozen=True, slots=True)
class TableRows:
    """The changes of one table with the versions they speak of."""

    changes: RowChanges
    source: SnapshotHandle
    target: SnapshotHandle | None
    held: HeldRows | None = None
    """Rows of the source that are in memory already."""
    adopted: bool = False
    """Whether the target's table becomes the source's, under one schema."""
    lacking: frozenset[str] = frozenset()
    """Properties that the target requires and rows of the source may have no value for."""


@dataclass(slots=True)
class Verdict:
    """What the merged graph would break: the first conflicts in full, all of them counted."""

    conflicts: list[MergeConflict] = field(default_factory=list[MergeConflict])
    total: int = 0
    read_set: Mapping[TableKey, int] = field(default_factory=dict[TableKey, int])


def check_merged(
    session: GraphSession, catalog: Catalog, target: Snapshot, tables: Mapping[TableKey, TableRows]
) -> Verdict:
    """Every rule the merge would break, ordered by table, then id.

    Cost: follows the changed rows; keys and constrained columns only, so that vectors, blobs and long texts
    without a rule are never read.
    """
    view = TargetView(session, target)
    changed = [key for key, rows in tables.items() if not rows.changes.empty]
    found = session.share(
        lambda key: _table_change(session, catalog.type_of(key), tables[key]), changed, threads=TABLES_AT_ONCE
    )
    changes = dict(zip(changed, found, strict=True))
    verdict = Verdict()
    try:
        validate(catalog, changes, view)
    except ConstraintViolation as broken:
        verdict.conflicts.extend(_conflict(each) for each in broken.violations)
        verdict.total += broken.total
    for edge in catalog.edges.values():
        _find_orphans(edge, changes, view, verdict)
    verdict.conflicts.sort(key=lambda each: (each.table_key, each.row_id or "", each.kind))
    del verdict.conflicts[MERGE_CONFLICTS_REPORTED_MAX:]
    verdict.read_set = view.read_set
    return verdict


def _table_change(session: GraphSession, table_type: TableType, rows: TableRows) -> TableChange:
    changes = rows.changes
    if rows.adopted and not isinstance(table_type, EdgeType):
        ids = pa.concat_arrays([changes.appends.ids, changes.upserts.ids])
        return TableChange(table_type, pa.table({"id": ids}), changes.deletes.ids, adopted=True)
    written = np.sort(np.concatenate([changes.appends.addresses, changes.upserts.after]))
    fields = _checked_fields(table_type, rows.lacking, adopted=rows.adopted)
    former = None
    if is_bounded(table_type):
        hidden = np.concatenate(
            [changes.deletes.addresses, changes.upserts.before, changes.mixed.pairs.before]
        )
        former = (
            NO_IDS
            if rows.target is None
            else string_array(
                _read(session, rows.target, np.sort(hidden), [rows.target.schema.field("src")]).column("src")
            )
        )
    return TableChange(
        type=table_type,
        rows=pa.concat_tables(
            [_read(session, rows.source, written, fields, rows.held), *_mixed(session, rows, fields)]
        ),
        removed=changes.deletes.ids,
        former_sources=former,
        adopted=rows.adopted,
    )


def _checked_fields(table_type: TableType, lacking: frozenset[str], *, adopted: bool) -> list[pa.Field]:
    """The columns some rule over values, tuples, ends or counts speaks of, and `lacking`; of an adopted table
    those that rules between tables speak of.
    """
    ends = {"src", "dst"} if isinstance(table_type, EdgeType) else set[str]()
    if adopted:
        return [each for each in table_type.arrow_schema if each.name in {"id", *ends}]
    named = {
        "id",
        *ends,
        *lacking,
        *(name for group in table_type.unique for name in group),
        *(rule.property for rule in table_type.ranges),
        *(rule.property for rule in table_type.checks),
        *(prop.name for prop in table_type.properties if prop.enum_values is not None),
    }
    return [each for each in table_type.arrow_schema if each.name in named]


def _mixed(session: GraphSession, rows: TableRows, fields: Sequence[pa.Field]) -> Iterator[pa.Table]:
    """The rows that are put together from both sides."""
    if rows.target is None:
        return iter(())
    mixed = rows.changes.mixed
    return mixed_rows(session.storage, mixed, rows.source, rows.target, _loose(fields), rows.held)


def _loose(fields: Sequence[pa.Field]) -> list[pa.Field]:
    # The columns may hold what the rules forbid; a field that promises no null would refuse to carry it.
    return [pa.field(each.name, each.type) for each in fields]


def _read(
    session: GraphSession,
    handle: SnapshotHandle,
    addresses: Addresses,
    fields: Sequence[pa.Field],
    held: HeldRows | None = None,
) -> pa.Table:
    loose = _loose(fields)
    step = chunk_rows(loose)
    parts = [
        read_rows(session.storage, handle, addresses[start : start + step], loose, held)
        for start in range(0, len(addresses), step)
    ]
    return pa.concat_tables(parts) if parts else pa.schema(loose).empty_table()


def _find_orphans(
    edge: EdgeType, changes: Mapping[TableKey, TableChange], view: TargetView, verdict: Verdict
) -> None:
    """Edges the target keeps although the merge deletes one of their ends."""
    sides = [
        (column, removed.removed)
        for column, node in (("src", edge.source), ("dst", edge.target))
        if (removed := changes.get(node_table_key(node))) is not None and len(removed.removed)
    ]
    if not sides:
        return
    key = edge_table_key(edge.name)
    small = all(len(ids) <= PROBED_VALUES_MAX for _, ids in sides)
    ends = [has_text(column, ids.to_pylist()) for column, ids in sides] if small else []
    found = view.read(key, ["id", "src", "dst"], filter_text(some(ends)) if ends else None)
    own = changes.get(key)
    if own is not None and found.num_rows:
        gone = pa.concat_arrays([own.ids, own.removed])
        found = found.filter(pc.invert(pc.is_in(found.column("id"), value_set=gone)))
    for column, ids in sides:
        dangling = pc.is_in(found.column(column), value_set=ids)
        broken, found = found.filter(dangling), found.filter(pc.invert(dangling))
        verdict.total += broken.num_rows
        shown = broken.slice(0, MERGE_CONFLICTS_REPORTED_MAX)
        verdict.conflicts.extend(
            _conflict(lost_end(edge, column, end, row, write="merge"))
            for row, end in zip(shown.column("id").to_pylist(), shown.column(column).to_pylist(), strict=True)
        )


def _conflict(violation: Violation) -> MergeConflict:
    kind = _KINDS.get(violation.rule, ConflictKind.VALUE_CONSTRAINT_VIOLATION)
    table_key = (
        node_table_key(violation.type_name)
        if violation.entity_kind == "node"
        else edge_table_key(violation.type_name)
    )
    row_id = None if kind is ConflictKind.CARDINALITY_VIOLATION else violation.entity_id
    return MergeConflict(table_key, row_id, kind, violation.message)
