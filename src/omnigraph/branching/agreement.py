"""Merging from several bases: two branches that were merged into each other crosswise have more than one.

A base says of an entity: keep the target's row, take the source's, or collide. What all bases say is done;
where they differ, a side may have gone back to a value that only one of them knows: the properties tell, or
a person decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from omnigraph.arrays.addresses import ABSENT
from omnigraph.arrays.key_segments import KeySegment
from omnigraph.arrays.keys import hash_keys
from omnigraph.branching.changes import RowPairs, RowSet, id_order
from omnigraph.branching.merge_plan import (
    AS_OURS,
    AS_THEIRS,
    DELETED_AND_CHANGED,
    UPDATED_TWICE,
    Collisions,
    RowChanges,
    RowMerge,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Addresses, Mask

_APPEND, _UPSERT, _DELETE, _COLLIDE = range(4)
_NO_KIND: Final = -1


def agreed(merges: Sequence[RowMerge]) -> RowMerge:
    """What the merges of one source into one target from several bases have in common; the rest collides."""
    return reduce(_agree, merges)


@dataclass(frozen=True, slots=True, eq=False)
class _Said:
    """What one base says of every row it does not keep as it is."""

    ids: pa.StringArray
    what: NDArray[np.int8]
    kinds: NDArray[np.int8]
    theirs: Addresses
    ours: Addresses
    bases: tuple[Addresses, ...]

    @classmethod
    def of(cls, merge: RowMerge) -> _Said:
        changes, collisions = merge.changes, merge.collisions
        appends, upserts, deletes = changes.appends, changes.upserts, changes.deletes
        clear = len(appends) + len(upserts) + len(deletes)
        # What is done to the target without a doubt is done because the target is as the base was.
        as_ours = np.full(clear, AS_OURS)
        sizes = [len(appends), len(upserts), len(deletes), len(collisions)]
        return cls(
            ids=pa.concat_arrays([appends.ids, upserts.ids, deletes.ids, collisions.ids]),
            what=np.repeat(np.arange(4, dtype=np.int8), sizes),
            kinds=np.concatenate([np.full(clear, _NO_KIND, np.int8), collisions.kinds]),
            theirs=np.concatenate([appends.addresses, upserts.after, _nowhere(deletes), collisions.theirs]),
            ours=np.concatenate([_nowhere(appends), upserts.before, deletes.addresses, collisions.ours]),
            bases=tuple(np.concatenate([as_ours, each]) for each in collisions.bases),
        )

    def at(self, chosen: NDArray[Any]) -> _Said:
        chosen = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        return _Said(
            self.ids.take(pa.array(chosen)),
            self.what[chosen],
            self.kinds[chosen],
            self.theirs[chosen],
            self.ours[chosen],
            tuple(each[chosen] for each in self.bases),
        )

    def find(self, others: _Said) -> tuple[Mask, NDArray[np.int64]]:
        """Per row of `others`: whether this base says something of it, and at which position."""
        positions = np.arange(len(self.what), dtype=np.uint64)
        found, at = KeySegment(self.ids, positions).find(others.ids, hash_keys(others.ids))
        return found, np.where(found, at, np.uint64(0)).astype(np.int64)


def _nowhere(rows: RowSet) -> Addresses:
    return np.full(len(rows), ABSENT, np.uint64)


def _agree(left: RowMerge, right: RowMerge) -> RowMerge:
    mine, yours = _Said.of(left), _Said.of(right)
    known, at = yours.find(mine)
    same = np.zeros(len(mine.what), np.bool_)
    same[known] = (mine.what[known] == yours.what[at[known]]) & (mine.kinds[known] == yours.kinds[at[known]])
    clear = same & (mine.what != _COLLIDE)
    unheard = ~mine.find(yours)[0]
    # A base that keeps a row saw the source as it is.
    heard = tuple(np.where(known, each[at] if len(each) else AS_THEIRS, AS_THEIRS) for each in yours.bases)
    told = replace(mine, bases=(*mine.bases, *heard))
    silent = tuple(np.full(len(yours.what), AS_THEIRS) for _ in mine.bases)
    rest = _joined(told.at(~clear), replace(yours, bases=(*silent, *yours.bases)).at(unheard))
    differ = np.concatenate([~same[~clear], np.ones(int(unheard.sum()), np.bool_)])
    return RowMerge(_changes(mine.at(clear)), _colliding(rest, differ))


def _joined(left: _Said, right: _Said) -> _Said:
    return _Said(
        pa.concat_arrays([left.ids, right.ids]),
        np.concatenate([left.what, right.what]),
        np.concatenate([left.kinds, right.kinds]),
        np.concatenate([left.theirs, right.theirs]),
        np.concatenate([left.ours, right.ours]),
        tuple(map(np.concatenate, zip(left.bases, right.bases, strict=True))),
    )


def _changes(said: _Said) -> RowChanges:
    appends, upserts, deletes = (said.at(said.what == what) for what in (_APPEND, _UPSERT, _DELETE))
    return RowChanges(
        RowSet(appends.ids, appends.theirs),
        RowPairs(upserts.ids, upserts.ours, upserts.theirs),
        RowSet(deletes.ids, deletes.ours),
    )


def _colliding(said: _Said, differ: Mask) -> Collisions:
    """These rows as collisions, by id; `differ` marks those the bases do not agree about."""
    gone = (said.theirs == ABSENT) | (said.ours == ABSENT)
    kinds = np.where(differ, np.where(gone, DELETED_AND_CHANGED, UPDATED_TWICE), said.kinds).astype(np.int8)
    found = replace(said, kinds=kinds).at(id_order(said.ids))
    return Collisions(found.ids, found.kinds, found.theirs, found.ours, found.bases)
