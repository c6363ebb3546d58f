"""Settling what both sides changed: property by property where that is clear, else by a person's choices.

Pure: collisions, who changed which property, and choices in; row changes and open conflicts out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from omnigraph.arrays.addresses import ABSENT
from omnigraph.branching.changes import NO_IDS, RowPairs, RowSet
from omnigraph.branching.merge_plan import KINDS, MESSAGES, ConflictKind, MergeConflict
from omnigraph.branching.mixed_rows import MixedRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Mask
    from omnigraph.branching.merge_plan import Collisions, RowChanges, RowMerge
    from omnigraph.core.ids import CommitId, TableKey

MIXED: Final = "mixed"
"""How a conflict is counted some of whose properties were given to each side."""


class Choice(StrEnum):
    """Which side wins a conflict."""

    OURS = "ours"
    THEIRS = "theirs"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person says about one conflict."""

    side: Choice | None = None
    properties: Mapping[str, Choice] = field(default_factory=dict[str, Choice])
    """For single properties, before `side`."""
    whole: bool = False
    """Whether the side stands for the whole row, also for what the other side alone changed."""

    def of(self, name: str) -> Choice | None:
        """The side that gets one property."""
        return self.properties.get(name, self.side)


@dataclass(frozen=True, slots=True)
class Resolution:
    """How conflicts are to be settled: for everything, per table, or per entry of a list."""

    everything: Choice | None = None
    tables: Mapping[str, Choice] | None = None
    entries: Mapping[tuple[str, str, str], Decision] | None = None
    """By table key, row id and kind."""

    def for_heads(self, source: CommitId, target: CommitId) -> Resolution:
        """Choices without an edited list hold for any heads."""
        del source, target
        return self

    def of(self, table_key: TableKey, row_id: str, kind: ConflictKind) -> Decision:
        """What is decided about one conflict, by the most specific choice."""
        if self.entries is not None:
            chosen = self.entries.get((table_key, row_id, kind.value))
            if chosen is not None:
                return chosen
        if self.tables is not None and table_key in self.tables:
            return Decision(self.tables[table_key])
        return Decision(self.everything)

    def whole_rows(self, table_key: TableKey) -> pa.StringArray:
        """The rows of a table whose entry stands for the whole row."""
        entries = self.entries or {}
        rows = [row for (key, row, _), each in entries.items() if key == table_key and each.whole]
        return pa.array(rows, pa.string())


UNRESOLVED: Final = Resolution()


@dataclass(frozen=True, slots=True, eq=False)
class Divided:
    """Collisions by property: a row per collision, a column per name; all false where a side has no row."""

    names: tuple[str, ...]
    differ: NDArray[np.bool_]
    """The two sides show different values."""
    theirs: NDArray[np.bool_]
    """Of these, the ones that the source alone changed."""
    open: NDArray[np.bool_]
    """Of these, the ones that both sides changed."""

    def at(self, mask: Mask) -> Divided:
        """Some of the rows."""
        return Divided(self.names, self.differ[mask], self.theirs[mask], self.open[mask])


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """A table's rows after the choices: the changes, what is still open, and how often each side won."""

    changes: RowChanges
    conflicts: tuple[MergeConflict, ...] = ()
    resolved: Mapping[str, int] = field(default_factory=dict[str, int])
    undecided: Collisions | None = None
    """The collisions behind the open conflicts, in their order."""
    disputed: Divided | None = None
    """And what is open of each."""
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


def settle(table_key: TableKey, merge: RowMerge, divided: Divided, resolution: Resolution) -> Settled:
    """Apply what is clear about the collisions of one table, and the choices to the rest."""
    if len(merge.collisions) == 0:
        return Settled(merge.changes)
    clear = merge.collisions.both & ~divided.open.any(axis=1)
    known = divided.at(clear)
    changes = _put_together(merge.changes, merge.collisions.at(clear), known, known.theirs)
    if clear.all():
        return Settled(changes)
    collisions, divided = merge.collisions.at(~clear), divided.at(~clear)
    ids = collisions.ids.to_pylist()
    codes: list[int] = collisions.kinds.tolist()
    kinds = [KINDS[code] for code in codes]
    decisions = [resolution.of(table_key, row, kind) for row, kind in zip(ids, kinds, strict=True)]
    taken, outcomes = _decide(divided, decisions)
    ours, theirs, open_ = (
        np.array([each == side for each in outcomes], np.bool_) for side in (Choice.OURS, Choice.THEIRS, None)
    )
    decided = collisions.both & ~open_
    changes = _put_together(changes, collisions.at(decided), divided.at(decided), taken[decided])
    gone_there, gone_here = collisions.theirs == ABSENT, collisions.ours == ABSENT

    def rows(mask: Mask) -> pa.StringArray:
        return collisions.ids.filter(pa.array(mask))

    found = {(table_key, row, kind.value) for row, kind in zip(ids, kinds, strict=True)}
    return Settled(
        _bring_back_or_remove(changes, collisions, theirs),
        tuple(
            MergeConflict(
                table_key, ids[at], kinds[at], f"{ids[at]}: {_said(kinds[at], bool(gone_there[at]))}"
            )
            for at in np.flatnonzero(open_).tolist()
        ),
        {each: outcomes.count(each) for each in (*Choice, MIXED) if each in outcomes},
        undecided=collisions.at(open_),
        disputed=divided.at(open_),
        answered=found & set(resolution.entries or ()),
        collided=collisions.ids,
        deleted_there=rows(gone_there),
        stays=rows(gone_there & ours),
        returns=rows(gone_here & theirs),
        has_deletions=bool((gone_there | gone_here).any()),
    )


def _said(kind: ConflictKind, gone_there: bool) -> str:  # noqa: FBT001
    """What happened to a row; of a deletion also which side it is of."""
    if kind is not ConflictKind.DELETE_VS_UPDATE:
        return MESSAGES[kind]
    return "theirs deleted it, ours changed it" if gone_there else "ours deleted it, theirs changed it"


def _decide(divided: Divided, decisions: Sequence[Decision]) -> tuple[NDArray[np.bool_], list[str | None]]:
    """Per conflict the properties that are the source's, and the side that won; None while it is open."""
    taken = divided.theirs.copy()
    outcomes: list[str | None] = []
    for at, decision in enumerate(decisions):
        if not decision.properties:
            if decision.side is Choice.THEIRS:
                taken[at] |= divided.open[at]
            outcomes.append(decision.side)
            continue
        columns = np.flatnonzero(divided.open[at]).tolist()
        sides = [decision.of(divided.names[column]) for column in columns]
        for column, side in zip(columns, sides, strict=True):
            taken[at, column] = side is Choice.THEIRS
        if None in sides:
            outcomes.append(None)
        else:
            outcomes.append(MIXED if len(set(sides)) > 1 else next(iter(sides), decision.side))
    return taken, outcomes


def _put_together(
    changes: RowChanges, collisions: Collisions, divided: Divided, taken: NDArray[np.bool_]
) -> RowChanges:
    """Add rows that both sides have, with the properties of the source that are taken."""
    some = taken.any(axis=1)
    if not some.any():
        return changes
    every = some & (taken == divided.differ).all(axis=1)
    upserts, mixed = changes.upserts, changes.mixed
    if every.any():
        whole = collisions.at(every)
        upserts = RowPairs(
            pa.concat_arrays([upserts.ids, whole.ids]),
            np.concatenate([upserts.before, whole.ours]),
            np.concatenate([upserts.after, whole.theirs]),
        ).sorted()
    part = some & ~every
    if part.any():
        parts = collisions.at(part)
        pairs = RowPairs(
            pa.concat_arrays([mixed.pairs.ids, parts.ids]),
            np.concatenate([mixed.pairs.before, parts.ours]),
            np.concatenate([mixed.pairs.after, parts.theirs]),
        )
        former = mixed.theirs.reshape(-1, len(divided.names))
        mixed = MixedRows(pairs, divided.names, np.concatenate([former, taken[part]])).sorted()
    return replace(changes, upserts=upserts, mixed=mixed)


def _bring_back_or_remove(changes: RowChanges, collisions: Collisions, wins: Mask) -> RowChanges:
    """Add what the source's side of these collisions does to rows that one side deleted."""
    back = collisions.at(wins & (collisions.ours == ABSENT))
    gone = collisions.at(wins & (collisions.theirs == ABSENT))
    if not len(back) and not len(gone):
        return changes
    appends, deletes = changes.appends, changes.deletes
    return replace(
        changes,
        appends=RowSet(
            pa.concat_arrays([appends.ids, back.ids]), np.concatenate([appends.addresses, back.theirs])
        ).sorted(),
        deletes=RowSet(
            pa.concat_arrays([deletes.ids, gone.ids]), np.concatenate([deletes.addresses, gone.ours])
        ).sorted(),
    )
