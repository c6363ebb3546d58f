"""Rewrites and index builds of one version of a table, taken to the version of now.

Others go on writing while a table is rewritten. What they add lies in fragments of its own. What they hide is
hidden in the rewritten fragments as well: a rewrite keeps the order of the rows, so counting finds each of
them, and the keys on both sides are compared.
"""

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from omnigraph.arrays.addresses import addresses_of
from omnigraph.core.errors import InternalError
from omnigraph.core.late_dataclass import dataclass
from omnigraph.storage.compaction import beside, next_number
from omnigraph.storage.datasets import DatasetPool
from omnigraph.storage.handles import (
    SnapshotHandle,
    StagedHandle,
    lance_dataset,
    lance_fragment,
    staged_work,
)
from omnigraph.storage.indexes import segments_of
from omnigraph.storage.staging import KEY_COLUMN, Work, hide_rows, staged_rewrite
from omnigraph.storage.version_files import describe_fragments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lance.fragment import FragmentMetadata

    from omnigraph.arrays.types import Addresses, Offsets
    from omnigraph.storage.tables import TableStorage


@dataclass(frozen=True, slots=True)
class Followed:
    """A staged write on a later version."""

    staged: StagedHandle
    whole: bool
    """Whether all of it still holds."""


def followed(
    tables: "TableStorage",
    pool: DatasetPool,
    staged: StagedHandle,
    before: SnapshotHandle,
    now: SnapshotHandle,
) -> Followed | None:
    """What of a rewrite or an index build on `before` also holds on `now`, a later version; None: nothing.

    Cost: metadata, and what others hid meanwhile.
    """
    work: Work = staged_work(staged)
    if work.data_root != str(lance_dataset(now).uri):
        return None
    match staged.primitive:
        case "stage_rewrite":
            return _Rewrite(tables, pool, before, now).followed(staged)
        case "stage_indexes":
            return _indexes(staged, now)
        case _:
            raise InternalError(f"a {staged.primitive} does not follow others")


# --- indexes ---------------------------------------------------------------------------------------------


def _indexes(staged: StagedHandle, now: SnapshotHandle) -> Followed | None:
    """The indexes whose fragments are all there and that nobody else has covered meanwhile."""
    from lance import LanceOperation  # noqa: PLC0415  a heavy package

    work: Work = staged_work(staged)
    operation: Any = work.operation
    present = set(now.fragment_ids)
    replaced = {str(each.uuid) for each in operation.removed_indices}
    kept: list[Any] = []
    for index in operation.new_indices:
        known = set(index.fragment_ids)
        others = (
            each for each in segments_of(lance_dataset(now), index.name) if str(each.uuid) not in replaced
        )
        if known <= present and not any(known & each.fragment_ids for each in others):
            kept.append(copy(index))
    names = {each.name for each in operation.new_indices} - {each.name for each in kept}
    gone = [each for each in operation.removed_indices if each.name not in names]
    if not kept and not gone:
        return None
    for index in kept:
        index.dataset_version = now.version
    fresh = LanceOperation.CreateIndex(kept, gone)
    built = {str(each.uuid) for each in kept}
    files = tuple(each for each in staged.files if each.split("/")[-2] in built)
    moved = replace(staged, base_version=now.version, files=files, _work=replace(work, operation=fresh))
    return Followed(_with_its_sums(moved), whole=len(kept) == len(operation.new_indices))


def _with_its_sums(staged: StagedHandle) -> StagedHandle:
    """The staged write without checksums of files that are not its own any more."""
    own = {_ending(each) for each in staged.files}
    return replace(staged, sums=tuple(each for each in staged.sums if _ending(each.name) in own))


def _ending(path: str) -> str:
    return "/".join(path.split("/")[-2:])


# --- rewrites --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Group:
    """Fragments of one table, by their numbers, and what was written in their place."""

    old: tuple[int, ...]
    new: "tuple[FragmentMetadata, ...]"


class _Rewrite:
    """One rewrite that is taken from one version of a table to another."""

    def __init__(
        self, tables: "TableStorage", pool: DatasetPool, before: SnapshotHandle, now: SnapshotHandle
    ) -> None:
        self._tables, self._pool = tables, pool
        self._before, self._now = before, now
        self._then = {each.id: each for each in describe_fragments(pool, before)}
        self._here = {each.id: each for each in describe_fragments(pool, now)}

    def followed(self, staged: StagedHandle) -> Followed | None:
        """The groups whose fragments are all there, without the rows that were hidden since."""
        work: Work = staged_work(staged)
        made = _groups(work.operation)
        kept = [each for each in made if self._is_there(each)]
        numbers = [int(new.id) for each in kept for new in each.new]
        if any(numbers) and min(numbers) < next_number(self._pool, self._now):
            return None
        pairs = [self._hidden(each) for each in kept]
        if any(len(old) for old, _ in pairs):
            # The name of a deletion file has the number of its fragment.
            kept = self._without(kept, pairs) if all(numbers) else []
        if not kept:
            return None
        written = [(self._old(each), list(each.new)) for each in kept]
        moved = staged_rewrite(self._pool, self._now, written, work.stamp, adopted=staged)
        return Followed(_with_its_sums(moved), whole=len(kept) == len(made))

    def _is_there(self, group: _Group) -> bool:
        """Whether the version of now has the fragments with the same files, whatever is hidden in them."""
        there = [(self._here.get(each), self._then[each]) for each in group.old]
        return all(here is not None and here.holds_rows_of(then) for here, then in there)

    def _old(self, group: _Group) -> "list[FragmentMetadata]":
        return [lance_fragment(self._now, each).metadata for each in group.old]

    def _hidden(self, group: _Group) -> "tuple[Addresses, Addresses]":
        """Where the rows that were hidden since lie in the old fragments and in the new ones."""
        old: list[Addresses] = [np.empty(0, np.uint64)]
        places: list[Offsets] = [np.empty(0, np.int64)]
        first = 0
        for number in group.old:
            then, here = self._then[number], self._here[number]
            if then.deletions != here.deletions:
                dead = self._tables.dead_rows(self._before, then)
                gone = np.setdiff1d(self._tables.dead_rows(self._now, here), dead, assume_unique=True)
                old.append(addresses_of(number, gone))
                places.append(first + gone - np.searchsorted(dead, gone))
            first += then.live_rows
        return np.concatenate(old), _addresses(group.new, np.concatenate(places))

    def _without(
        self, groups: "Sequence[_Group]", pairs: "Sequence[tuple[Addresses, Addresses]]"
    ) -> list[_Group]:
        """The groups with the rows hidden. A group of which no row is left needs no rewrite."""
        from lance import LanceOperation  # noqa: PLC0415  a heavy package

        written = [LanceOperation.RewriteGroup(self._old(each), list(each.new)) for each in groups]
        new = np.concatenate([each for _, each in pairs])
        with beside(self._pool, self._now, LanceOperation.Rewrite(written, [])) as ahead:
            self._compare(ahead, np.concatenate([each for each, _ in pairs]), new)
            updated, emptied = hide_rows(self._pool, ahead, np.sort(new))
        hidden = {int(each.id): each for each in updated}
        return [
            _Group(each.old, tuple(hidden.get(int(one.id), one) for one in each.new))
            for each in groups
            if not any(int(one.id) in emptied for one in each.new)
        ]

    def _compare(self, ahead: SnapshotHandle, old: "Addresses", new: "Addresses") -> None:
        wanted = self._tables.take(self._before, old, [KEY_COLUMN])
        if not self._tables.take(ahead, new, [KEY_COLUMN]).equals(wanted):
            raise InternalError(f"rows of '{self._now.table_key}' were rewritten in another order")


def _groups(operation: Any) -> list[_Group]:
    return [
        _Group(tuple(int(old.id) for old in each.old_fragments), tuple(each.new_fragments))
        for each in operation.groups
    ]


def _addresses(written: "Sequence[FragmentMetadata]", places: "Offsets") -> "Addresses":
    """Where rows lie in these fragments, counted from the first row of the first."""
    ends = np.cumsum([int(each.physical_rows) for each in written])
    which = np.searchsorted(ends, places, side="right")
    numbers = np.asarray([int(each.id) for each in written], np.uint64)
    starts = np.r_[0, ends[:-1]]
    return addresses_of(numbers[which], places - starts[which])
