"""What a merge does to the rows of one table. Pure: deltas in, row changes and conflicts out.

*Ours* is the target of the merge, *theirs* the source.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from omnigraph.arrays.addresses import ABSENT
from omnigraph.arrays.key_segments import KeySegment
from omnigraph.arrays.keys import hash_keys
from omnigraph.branching.changes import NO_IDS, NO_PAIRS, NO_ROWS, RowPairs, RowSet, TableDelta, id_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Addresses, Mask
    from omnigraph.core.ids import CommitId, TableKey
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


class Choice(StrEnum):
    """Which side wins a conflict."""

    OURS = "ours"
    THEIRS = "theirs"


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """One reason why a merge is refused."""

    table_key: TableKey
    row_id: str | None
    kind: ConflictKind
    message: str
    edges: tuple[tuple[TableKey, str], ...] = ()
    """Edges, by table key and id, that stay or go with the node this is about."""

    def to_dict(self) -> dict[str, Any]:
        """The conflict as the command line and the service show it."""
        shown: dict[str, Any] = {
            "table_key": self.table_key,
            "row_id": self.row_id,
            "kind": self.kind.value,
            "message": self.message,
        }
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

    @property
    def empty(self) -> bool:
        """Whether the target keeps its rows as they are."""
        return not (len(self.appends) or len(self.upserts) or len(self.deletes))

    @property
    def counts(self) -> dict[str, int]:
        """Rows per kind of change, those that occur."""
        found = {
            "inserted": len(self.appends),
            "updated": len(self.upserts),
            "deleted": len(self.deletes),
        }
        return {name: rows for name, rows in found.items() if rows}


@dataclass(frozen=True, slots=True, eq=False)
class Collisions:
    """Rows both sides changed in different ways, by ascending id. `ABSENT` where a side deleted the row."""

    ids: pa.StringArray
    kinds: NDArray[np.int8]
    theirs: Addresses
    ours: Addresses

    def __len__(self) -> int:
        return len(self.kinds)


_KINDS: Final = (
    ConflictKind.DIVERGENT_INSERT,
    ConflictKind.DIVERGENT_UPDATE,
    ConflictKind.DELETE_VS_UPDATE,
)
_MESSAGES: Final = (
    "both sides inserted it with different values",
    "both sides changed it in different ways",
    "one side deleted it, the other changed it",
)
_INSERT, _UPDATE, _DELETE = 0, 1, 2
UPDATED_TWICE, DELETED_AND_CHANGED = 1, 2
"""Positions of kinds of collisions."""
NO_COLLISIONS: Final = Collisions(NO_ROWS.ids, np.empty(0, np.int8), NO_ROWS.addresses, NO_ROWS.addresses)


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
    return Collisions(mine.ids.take(pa.array(chosen)), kinds[chosen], mine.now[chosen], yours.now[chosen])


# --- conflicts -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resolution:
    """How conflicts are to be settled: for everything, per table, or per entry of a list."""

    everything: Choice | None = None
    tables: Mapping[str, Choice] | None = None
    entries: Mapping[tuple[str, str, str], Choice] | None = None
    """By table key, row id and kind."""

    def for_heads(self, source: CommitId, target: CommitId) -> Resolution:
        """Choices without an edited list hold for any heads."""
        del source, target
        return self

    def of(self, table_key: TableKey, row_id: str, kind: ConflictKind) -> Choice | None:
        """The choice for one conflict, the most specific one first."""
        if self.entries is not None:
            chosen = self.entries.get((table_key, row_id, kind.value))
            if chosen is not None:
                return chosen
        if self.tables is not None and table_key in self.tables:
            return self.tables[table_key]
        return self.everything


UNRESOLVED: Final = Resolution()


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """A table's rows after the choices: the changes, what is still open, and how often each side won."""

    changes: RowChanges
    conflicts: tuple[MergeConflict, ...]
    resolved: Mapping[Choice, int]
    answered: AbstractSet[tuple[str, str, str]] = frozenset()
    """The entries of an edited list that were conflicts of the table."""
    collided: pa.StringArray = field(default_factory=lambda: NO_IDS)
    """Every row that both sides changed in different ways, whatever was chosen."""
    deleted_there: pa.StringArray = field(default_factory=lambda: NO_IDS)
    """Of these, the ones the source deleted."""
    stays: pa.StringArray = field(default_factory=lambda: NO_IDS)
    """Rows the source deleted and the choice keeps."""
    returns: pa.StringArray = field(default_factory=lambda: NO_IDS)
    """Rows the target deleted and the choice brings back."""
    has_deletions: bool = False
    """Whether one side deleted a row that the other changed."""


def settle(table_key: TableKey, merge: RowMerge, resolution: Resolution) -> Settled:
    """Apply the choices to the collisions of one table."""
    collisions = merge.collisions
    if len(collisions) == 0:
        return Settled(merge.changes, (), {})
    ids = collisions.ids.to_pylist()
    codes: list[int] = collisions.kinds.tolist()
    kinds = [_KINDS[code] for code in codes]
    choices = [resolution.of(table_key, row, kind) for row, kind in zip(ids, kinds, strict=True)]
    open_ = tuple(
        MergeConflict(table_key, row, kind, f"{row}: {_MESSAGES[_KINDS.index(kind)]}")
        for row, kind, choice in zip(ids, kinds, choices, strict=True)
        if choice is None
    )
    theirs = np.array([choice is Choice.THEIRS for choice in choices], np.bool_)
    counts = {each: choices.count(each) for each in Choice if each in choices}
    found = {(table_key, row, kind.value) for row, kind in zip(ids, kinds, strict=True)}
    ours = np.array([choice is Choice.OURS for choice in choices], np.bool_)
    gone_there, gone_here = collisions.theirs == ABSENT, collisions.ours == ABSENT

    def rows(mask: Mask) -> pa.StringArray:
        return collisions.ids.filter(pa.array(mask))

    return Settled(
        _take_theirs(merge.changes, collisions, theirs),
        open_,
        counts,
        answered=found & set(resolution.entries or ()),
        collided=collisions.ids,
        deleted_there=rows(gone_there),
        stays=rows(gone_there & ours),
        returns=rows(gone_here & theirs),
        has_deletions=bool((gone_there | gone_here).any()),
    )


def _take_theirs(changes: RowChanges, collisions: Collisions, wins: Mask) -> RowChanges:
    """Add what the source's side of these collisions does to the target."""
    if not wins.any():
        return changes
    deleted_there, deleted_here = collisions.theirs == ABSENT, collisions.ours == ABSENT
    back = np.flatnonzero(wins & deleted_here)
    over = np.flatnonzero(wins & ~deleted_here & ~deleted_there)
    gone = np.flatnonzero(wins & deleted_there)

    def ids(at: NDArray[np.int64]) -> pa.StringArray:
        return collisions.ids.take(pa.array(at))

    appends, upserts, deletes = changes.appends, changes.upserts, changes.deletes
    return RowChanges(
        RowSet(
            pa.concat_arrays([appends.ids, ids(back)]),
            np.concatenate([appends.addresses, collisions.theirs[back]]),
        ).sorted(),
        RowPairs(
            pa.concat_arrays([upserts.ids, ids(over)]),
            np.concatenate([upserts.before, collisions.ours[over]]),
            np.concatenate([upserts.after, collisions.theirs[over]]),
        ).sorted(),
        RowSet(
            pa.concat_arrays([deletes.ids, ids(gone)]),
            np.concatenate([deletes.addresses, collisions.ours[gone]]),
        ).sorted(),
    )
