"""What a merge does to the rows of one table. Pure: deltas in, row changes and conflicts out.

*Ours* is the target of the merge, *theirs* the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from omnigraph.arrays.addresses import ABSENT
from omnigraph.arrays.key_segments import KeySegment
from omnigraph.arrays.keys import hash_keys
from omnigraph.branching.changes import NO_PAIRS, NO_ROWS, RowPairs, RowSet, TableDelta, id_order
from omnigraph.branching.mixed_rows import NOTHING_MIXED, MixedRows
from omnigraph.core import html

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Addresses, Mask
    from omnigraph.core.ids import TableKey
    from omnigraph.manifest.state import TableEntry


class ConflictKind(StrEnum):
    """Why a merge cannot decide, or may not."""

    DIVERGENT_INSERT = "divergent_insert"
    DIVERGENT_UPDATE = "divergent_update"
    DELETE_VS_UPDATE = "delete_vs_update"
    ORPHAN_EDGE = "orphan_edge"
    UNIQUE_VIOLATION = "unique_violation"
    CARDINALITY_VIOLATION = "cardinality_violation"
    VALUE_CONSTRAINT_VIOLATION = "value_constraint_violation"


RESOLVABLE: Final = frozenset(
    {ConflictKind.DIVERGENT_INSERT, ConflictKind.DIVERGENT_UPDATE, ConflictKind.DELETE_VS_UPDATE}
)
"""Kinds a choice of one side settles; the others are rules the merged graph would break."""


@dataclass(frozen=True, slots=True)
class DisputedProperty:
    """One property of a conflict: its values, as JSON says them, in the rows that there are."""

    name: str
    values: Mapping[str, Any]
    """By `base`, `ours` and `theirs`."""

    def to_dict(self) -> dict[str, Any]:
        """The property as the command line and the service show it."""
        return {"property": self.name, **self.values}

    def __str__(self) -> str:
        said = ", ".join(f"{role} {html.cell_text(value)}" for role, value in self.values.items())
        return f"{self.name}: {said}"


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """One reason why a merge is refused."""

    table_key: TableKey
    row_id: str | None
    kind: ConflictKind
    message: str
    edges: tuple[tuple[TableKey, str], ...] = ()
    """Edges, by table key and id, that stay or go with the node this is about."""
    properties: tuple[DisputedProperty, ...] = ()
    """What the sides do not agree about."""

    def to_dict(self) -> dict[str, Any]:
        """The conflict as the command line and the service show it."""
        shown: dict[str, Any] = {
            "table_key": self.table_key,
            "row_id": self.row_id,
            "kind": self.kind.value,
            "message": self.message,
        }
        if self.properties:
            shown["properties"] = [each.to_dict() for each in self.properties]
        if self.edges:
            shown["edges"] = [{"table_key": key, "row_id": row} for key, row in self.edges]
        return shown


# --- tables --------------------------------------------------------------------------------------------


class TableAction(StrEnum):
    """What a merge does to one table."""

    NOTHING = "nothing"
    SWITCH = "switch"
    """The target shows the source's version; no rows are written."""
    FORK = "fork"
    """The target has no such table: it gets a reference of its own at the source's version."""
    ADOPT = "adopt"
    """The source's changes are written onto a table the target did not change."""
    REWRITE = "rewrite"
    """Both sides changed the table: the source's changes are written where they do not collide."""


def classify_table(
    base: TableEntry | None, source: TableEntry | None, target: TableEntry | None, target_branch: str | None
) -> TableAction:
    """How the table is merged. A table is in one state exactly when version and branch are equal."""
    if source is None or same_state(source, target) or same_state(base, source):
        return TableAction.NOTHING
    if not same_state(base, target):
        return TableAction.REWRITE
    if target is None:
        return TableAction.SWITCH if source.branch is None else TableAction.FORK
    # A target that owns the table keeps its own lineage also when the source is on main: its older versions
    # stay readable.
    if source.branch is None and (target_branch is None or target.branch != target_branch):
        return TableAction.SWITCH
    # A target without a reference of its own gets one, and the rows. A reference made at the source's version
    # would keep the source's files in use for as long as the target lives: the source could be deleted, but a
    # new branch of its name could not write the table.
    return TableAction.ADOPT


def same_state(left: TableEntry | None, right: TableEntry | None) -> bool:
    """Whether two snapshots show the same version of a table."""
    if left is None or right is None:
        return left is right
    return (left.version, left.branch, left.transaction_uuid) == (
        right.version,
        right.branch,
        right.transaction_uuid,
    )


# --- rows ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class RowChanges:
    """What is written to the target's table."""

    appends: RowSet = NO_ROWS
    """Rows of the source whose ids the target does not have."""
    upserts: RowPairs = NO_PAIRS
    """Rows of the target (`before`) that rows of the source (`after`) replace."""
    deletes: RowSet = NO_ROWS
    """Rows of the target."""
    mixed: MixedRows = NOTHING_MIXED
    """Rows of the target that get some properties of the source's."""

    @property
    def empty(self) -> bool:
        """Whether the target keeps its rows as they are."""
        return not (len(self.appends) or len(self.upserts) or len(self.deletes) or len(self.mixed))

    @property
    def counts(self) -> dict[str, int]:
        """Rows per kind of change, those that occur."""
        found = {
            "inserted": len(self.appends),
            "updated": len(self.upserts) + len(self.mixed),
            "deleted": len(self.deletes),
        }
        return {name: rows for name, rows in found.items() if rows}


AS_THEIRS: Final = np.uint64(ABSENT - np.uint64(1))
AS_OURS: Final = np.uint64(ABSENT - np.uint64(2))


@dataclass(frozen=True, slots=True, eq=False)
class Collisions:
    """Rows both sides changed in different ways, by ascending id. `ABSENT` where a side deleted the row."""

    ids: pa.StringArray
    kinds: NDArray[np.int8]
    theirs: Addresses
    ours: Addresses
    bases: tuple[Addresses, ...]
    """Per base, where its row is: an address, or `AS_THEIRS` or `AS_OURS` where it is the row of a side."""

    def __len__(self) -> int:
        return len(self.kinds)

    def at(self, mask: Mask) -> Collisions:
        """Some of them."""
        chosen = np.flatnonzero(mask)
        return Collisions(
            self.ids.take(pa.array(chosen)),
            self.kinds[chosen],
            self.theirs[chosen],
            self.ours[chosen],
            tuple(each[chosen] for each in self.bases),
        )

    @property
    def both(self) -> Mask:
        """Those that both sides have a row of."""
        return (self.theirs != ABSENT) & (self.ours != ABSENT)


KINDS: Final = (
    ConflictKind.DIVERGENT_INSERT,
    ConflictKind.DIVERGENT_UPDATE,
    ConflictKind.DELETE_VS_UPDATE,
)
"""Kinds of collisions, by their number."""
MESSAGES: Final = {
    ConflictKind.DIVERGENT_INSERT: "both sides inserted it with different values",
    ConflictKind.DIVERGENT_UPDATE: "both sides changed it in different ways",
}
_INSERT, _UPDATE, _DELETE = 0, 1, 2
UPDATED_TWICE, DELETED_AND_CHANGED = 1, 2
"""Numbers of kinds of collisions."""
NO_COLLISIONS: Final = Collisions(
    NO_ROWS.ids, np.empty(0, np.int8), NO_ROWS.addresses, NO_ROWS.addresses, (NO_ROWS.addresses,)
)


@dataclass(frozen=True, slots=True, eq=False)
class RowMerge:
    """The merge of one table's rows: what is clear, and what is not."""

    changes: RowChanges
    collisions: Collisions


def adopt(theirs: TableDelta) -> RowMerge:
    """The target did not change the table: everything the source did is done to it."""
    return RowMerge(RowChanges(theirs.inserted, theirs.updated, theirs.deleted), NO_COLLISIONS)


def three_way(
    theirs: TableDelta, ours: TableDelta, differ: Callable[[Addresses, Addresses], Mask]
) -> RowMerge:
    """Merge two deltas from one base.

    What only the source changed is done to the target. Where both changed a row, a different result is a
    collision.

    `differ` compares rows of the source with rows of the target; it is asked only for ids both sides wrote.
    """
    source, target = _Changed.of(theirs), _Changed.of(ours)
    both, at = target.find(source)
    alone = ~both
    plain = RowChanges(
        appends=_rows(source, alone & (source.kinds == _INSERT)),
        upserts=_replacing(source, alone & (source.kinds == _UPDATE), ours),
        deletes=_removed(source, alone & (source.kinds == _DELETE), ours),
    )
    mine, yours = source.at(np.flatnonzero(both)), target.at(at[both])
    return RowMerge(plain, _collisions(mine, yours, differ))


@dataclass(frozen=True, slots=True, eq=False)
class _Changed:
    """The rows one side changed: kind, address in that side's version, address in the base."""

    ids: pa.StringArray
    kinds: NDArray[np.int8]
    now: Addresses
    base: Addresses

    @classmethod
    def of(cls, delta: TableDelta) -> _Changed:
        inserted, updated, deleted = delta.inserted, delta.updated, delta.deleted
        sizes = [len(inserted), len(updated), len(deleted)]
        return cls(
            ids=pa.concat_arrays([inserted.ids, updated.ids, deleted.ids]),
            kinds=np.repeat(np.array([_INSERT, _UPDATE, _DELETE], np.int8), sizes),
            now=np.concatenate([inserted.addresses, updated.after, np.full(sizes[2], ABSENT, np.uint64)]),
            base=np.concatenate([np.full(sizes[0], ABSENT, np.uint64), updated.before, deleted.addresses]),
        )

    def find(self, others: _Changed) -> tuple[Mask, NDArray[np.int64]]:
        """Per row of `others`: whether this side changed that id, and at which position."""
        positions = np.arange(len(self.kinds), dtype=np.uint64)
        both, at = KeySegment(self.ids, positions).find(others.ids, hash_keys(others.ids))
        return both, np.where(both, at, np.uint64(0)).astype(np.int64)

    def at(self, chosen: NDArray[Any]) -> _Changed:
        return _Changed(
            self.ids.take(pa.array(chosen)), self.kinds[chosen], self.now[chosen], self.base[chosen]
        )


def _rows(changed: _Changed, mask: Mask) -> RowSet:
    chosen = changed.at(np.flatnonzero(mask))
    return RowSet(chosen.ids, chosen.now)


def _replacing(changed: _Changed, mask: Mask, ours: TableDelta) -> RowPairs:
    chosen = changed.at(np.flatnonzero(mask))
    return RowPairs(chosen.ids, ours.relocate(chosen.base), chosen.now)


def _removed(changed: _Changed, mask: Mask, ours: TableDelta) -> RowSet:
    chosen = changed.at(np.flatnonzero(mask))
    return RowSet(chosen.ids, ours.relocate(chosen.base))


def _collisions(
    mine: _Changed, yours: _Changed, differ: Callable[[Addresses, Addresses], Mask]
) -> Collisions:
    """Of the rows both sides changed, those whose results differ."""
    written = (mine.kinds != _DELETE) & (yours.kinds != _DELETE)
    collide = (mine.kinds == _DELETE) != (yours.kinds == _DELETE)
    at = np.flatnonzero(written)
    if len(at):
        collide[at] = differ(mine.now[at], yours.now[at])
    kinds = np.where(written, np.where(mine.kinds == _INSERT, 0, 1), 2).astype(np.int8)
    chosen = np.flatnonzero(collide)
    chosen = chosen[id_order(mine.ids.take(pa.array(chosen)))]
    return Collisions(
        mine.ids.take(pa.array(chosen)),
        kinds[chosen],
        mine.now[chosen],
        yours.now[chosen],
        (mine.base[chosen],),
    )
