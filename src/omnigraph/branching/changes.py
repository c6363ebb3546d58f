"""What changed in one table between two of its versions, wherever they live.

Data files never change, so two versions share exactly the fragments with equal files. Only what is not
shared is looked at: rows of fragments that one side has alone, and rows that a deletion file hides on one
side only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.arrays.addresses import ABSENT, addresses_in, addresses_of, fragments_of, offsets_of
from omnigraph.arrays.key_segments import KeySegment
from omnigraph.arrays.keys import hash_keys, string_array
from omnigraph.branching.equality import in_fields, row_bytes, rows_differ, tables_differ
from omnigraph.branching.rows_in_memory import hold, may_hold
from omnigraph.core.errors import InternalError
from omnigraph.core.limits import MERGE_HELD_ROWS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Addresses, Mask
    from omnigraph.branching.rows_in_memory import HeldRows
    from omnigraph.storage.handles import Fragment, SnapshotHandle
    from omnigraph.storage.tables import TableStorage

_NO_ADDRESSES: Final[NDArray[np.uint64]] = np.empty(0, np.uint64)
NO_IDS: Final = pa.array([], pa.string())


@dataclass(frozen=True, slots=True, eq=False)
class RowSet:
    """Rows of one table version: ids in ascending order and where the rows are."""

    ids: pa.StringArray
    addresses: Addresses

    def __len__(self) -> int:
        return len(self.addresses)

    def sorted(self) -> RowSet:
        """The same rows by ascending id."""
        if len(self) <= 1:
            return self
        order = id_order(self.ids)
        return RowSet(self.ids.take(pa.array(order)), self.addresses[order])

    def at(self, chosen: NDArray[Any]) -> RowSet:
        """Some of the rows, by mask or position."""
        return RowSet(_pick(self.ids, chosen), self.addresses[chosen])


@dataclass(frozen=True, slots=True, eq=False)
class RowPairs:
    """Rows that exist in two table versions: ids in ascending order and where both rows are."""

    ids: pa.StringArray
    before: Addresses
    after: Addresses

    def __len__(self) -> int:
        return len(self.before)

    def sorted(self) -> RowPairs:
        """The same rows by ascending id."""
        if len(self) <= 1:
            return self
        order = id_order(self.ids)
        return RowPairs(self.ids.take(pa.array(order)), self.before[order], self.after[order])

    def at(self, chosen: NDArray[Any]) -> RowPairs:
        """Some of the rows, by mask or position."""
        return RowPairs(_pick(self.ids, chosen), self.before[chosen], self.after[chosen])


NO_ROWS: Final = RowSet(NO_IDS, _NO_ADDRESSES)
NO_PAIRS: Final = RowPairs(NO_IDS, _NO_ADDRESSES, _NO_ADDRESSES)


@dataclass(frozen=True, slots=True, eq=False)
class TableDelta:
    """The difference of two versions of a table, by id. Rewritten rows with equal values are no change."""

    inserted: RowSet
    """Rows of the new version."""
    updated: RowPairs
    deleted: RowSet
    """Rows of the old version."""
    moved: RowPairs
    """Rows with equal values at another address; their ids are left out."""
    shared: tuple[NDArray[np.uint64], NDArray[np.uint64]]
    """Numbers of the shared fragments, in the old version (ascending) and in the new one."""
    held: HeldRows | None = None
    """The rows of the new version that were looked at, where they were few enough to be kept."""

    @property
    def empty(self) -> bool:
        """Whether both versions hold the same rows."""
        return not (len(self.inserted) or len(self.updated) or len(self.deleted))

    def relocate(self, addresses: Addresses) -> Addresses:
        """Where rows of the old version are in the new one; `ABSENT` for those that are gone."""
        found = _translate(addresses, self.shared)
        before = np.concatenate([self.moved.before, self.updated.before, self.deleted.addresses])
        gone = np.full(len(self.deleted), ABSENT, np.uint64)
        after = np.concatenate([self.moved.after, self.updated.after, gone])
        if len(before):
            order = np.argsort(before)
            before, after = before[order], after[order]
            at = np.minimum(np.searchsorted(before, addresses), len(before) - 1)
            hit = before[at] == addresses
            found[hit] = after[at[hit]]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Unshared:
    """Where two versions of a table may differ: whole fragments, and single rows of shared ones."""

    shared: tuple[NDArray[np.uint64], NDArray[np.uint64]]
    """Numbers of the shared fragments, in the old version (ascending) and in the new one."""
    lost: tuple[Fragment, ...]
    """Fragments only the old version has."""
    added: tuple[Fragment, ...]
    """Fragments only the new version has."""
    died: Addresses
    """Rows of shared fragments that only the old version shows, where they are there."""
    revived: Addresses
    """Rows of shared fragments that only the new version shows, where they are there."""

    @property
    def rows(self) -> int:
        """Rows whose keys have to be read to tell what changed."""
        whole = sum(info.live_rows for info in (*self.lost, *self.added))
        return whole + len(self.died) + len(self.revived)

    @property
    def bytes(self) -> int:
        """Stored size, about, of the rows that may have to be compared: those both sides may have."""
        added = sum(info.live_rows for info in self.added)
        if added == 0:
            return 0
        lost = sum(info.live_rows for info in self.lost) + len(self.died)
        return sum(info.bytes for info in self.added) * min(lost, added) // added


def compare_fragments(
    storage: TableStorage, old: SnapshotHandle | None, new: SnapshotHandle | None
) -> Unshared:
    """What two versions do not share. Cost: the fragment lists, and the deletions that differ."""
    old_fragments = {} if old is None else {info.files: info for info in storage.fragments(old)}
    new_fragments = {} if new is None else {info.files: info for info in storage.fragments(new)}
    shared = [(info, new_fragments[files]) for files, info in old_fragments.items() if files in new_fragments]
    died: list[Addresses] = []
    revived: list[Addresses] = []
    if old is not None and new is not None:
        for before, after in shared:
            if before.deletions != after.deletions:
                hidden, shown = _hidden_and_shown(storage, old, before, new, after)
                died.append(hidden)
                revived.append(shown)
    return Unshared(
        shared=_numbering(shared),
        lost=tuple(info for files, info in old_fragments.items() if files not in new_fragments),
        added=tuple(info for files, info in new_fragments.items() if files not in old_fragments),
        died=np.concatenate(died) if died else _NO_ADDRESSES,
        revived=np.concatenate(revived) if revived else _NO_ADDRESSES,
    )


def table_delta(
    storage: TableStorage,
    old: SnapshotHandle | None,
    new: SnapshotHandle | None,
    unshared: Unshared | None = None,
) -> TableDelta:
    """The rows inserted, updated and deleted between two versions; a table that is not there has no rows.

    Cost: follows what is not shared. Few such rows are read whole, at once. Of many, keys are read, and
    properties only of rows that both sides have, in bounded pieces.
    """
    found = compare_fragments(storage, old, new) if unshared is None else unshared
    if old is not None and new is not None:
        width = row_bytes({field.name: field for field in (*old.schema, *new.schema)}.values())
        if may_hold((*found.lost, *found.added), found.rows, width):
            return _small_delta(storage, old, new, found)
    before_rows = read_keys(storage, old, [info.id for info in found.lost], found.died)
    after_rows = read_keys(storage, new, [info.id for info in found.added], found.revived)
    if old is None or new is None:
        return TableDelta(after_rows.sorted(), NO_PAIRS, before_rows.sorted(), NO_PAIRS, found.shared)
    return _compare(
        before_rows,
        after_rows,
        found.shared,
        lambda former, later: rows_differ(storage, old, former, new, later),
    )


def _small_delta(
    storage: TableStorage, old: SnapshotHandle, new: SnapshotHandle, found: Unshared
) -> TableDelta:
    """As `table_delta`, from rows that are read whole."""
    before, after = hold(storage, old, found.lost, found.died), hold(storage, new, found.added, found.revived)
    fields = list(
        {field.name: pa.field(field.name, field.type) for field in (*new.schema, *old.schema)}.values()
    )

    def differ(former: Addresses, later: Addresses) -> Mask:
        mine, theirs = before.take(former), after.take(later)
        if mine is None or theirs is None:
            raise InternalError("rows of a delta are compared that were not read")
        return tables_differ(in_fields(mine, len(former), fields), in_fields(theirs, len(later), fields))

    delta = _compare(_keys_of(before), _keys_of(after), found.shared, differ)
    return replace(delta, held=after)


def _keys_of(held: HeldRows) -> RowSet:
    return RowSet(string_array(held.rows.column("id")), held.addresses)


def _numbering(
    shared: Sequence[tuple[Fragment, Fragment]],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    before = np.array([each.id for each, _ in shared], np.uint64)
    after = np.array([each.id for _, each in shared], np.uint64)
    order = np.argsort(before)
    return before[order], after[order]


def _compare(
    before: RowSet,
    after: RowSet,
    shared: tuple[NDArray[np.uint64], NDArray[np.uint64]],
    differ_at: Callable[[Addresses, Addresses], Mask],
) -> TableDelta:
    """Join the rows of both sides by id; tell changed rows from those that only moved.

    `differ_at` compares rows of the old version with rows of the new one.
    """
    if len(before) == 0 or len(after) == 0:
        return TableDelta(after.sorted(), NO_PAIRS, before.sorted(), NO_PAIRS, shared)
    kept, at = _find(before.ids, after.ids)
    gone = np.ones(len(before), np.bool_)
    gone[at] = False
    pairs = RowPairs(_pick(after.ids, kept), before.addresses[at], after.addresses[kept])
    in_order = np.argsort(pairs.before)
    pairs = pairs.at(in_order)  # neighbours in the file are read together
    differ = differ_at(pairs.before, pairs.after)
    return TableDelta(
        inserted=after.at(~kept).sorted(),
        updated=pairs.at(differ).sorted(),
        deleted=before.at(gone).sorted(),
        moved=RowPairs(NO_IDS, pairs.before[~differ], pairs.after[~differ]),
        shared=shared,
    )


def _find(known: pa.StringArray, wanted: pa.StringArray) -> tuple[Mask, NDArray[np.int64]]:
    """Which of the wanted ids are known, and where those are among the known ones, which are distinct."""
    if len(known) + len(wanted) <= MERGE_HELD_ROWS_MAX:
        found = pc.index_in(wanted, value_set=known)
        present = np.asarray(found.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        return present, np.asarray(found.drop_null().to_numpy(), np.int64)
    # For many rows our own hash is several times as fast.
    present, at = KeySegment(known, np.arange(len(known), dtype=np.uint64)).find(wanted, hash_keys(wanted))
    return present, at[present].astype(np.int64)


def _hidden_and_shown(
    storage: TableStorage,
    old: SnapshotHandle,
    before: Fragment,
    new: SnapshotHandle,
    after: Fragment,
) -> tuple[Addresses, Addresses]:
    """Rows of one shared fragment that only the old version shows, and those only the new one shows."""
    dead_before, dead_after = storage.dead_rows(old, before), storage.dead_rows(new, after)
    died = np.setdiff1d(dead_after, dead_before, assume_unique=True)
    revived = np.setdiff1d(dead_before, dead_after, assume_unique=True)
    return addresses_of(before.id, died), addresses_of(after.id, revived)


def read_keys(
    storage: TableStorage, handle: SnapshotHandle | None, fragments: Sequence[int], single: Addresses
) -> RowSet:
    """The live rows of whole fragments and single rows of others, with their ids."""
    if handle is None:
        return NO_ROWS
    ids: list[Any] = []
    addresses: list[Addresses] = []
    if fragments:
        whole = storage.read(handle, columns=["id"], with_row_address=True, fragments=fragments)
        ids.extend(whole.column("id").chunks)
        addresses.append(addresses_in(whole))
    if len(single):
        found = storage.take(handle, single, ["id"])
        ids.extend(found.column("id").chunks)
        addresses.append(single)
    if not addresses:
        return NO_ROWS
    return RowSet(string_array(pa.chunked_array(ids, pa.string())), np.concatenate(addresses))


def _translate(addresses: Addresses, shared: tuple[NDArray[np.uint64], NDArray[np.uint64]]) -> Addresses:
    before, after = shared
    found = np.full(len(addresses), ABSENT, np.uint64)
    if len(before) == 0:
        return found
    numbers = fragments_of(addresses)
    at = np.minimum(np.searchsorted(before, numbers), len(before) - 1)
    hit = before[at] == numbers
    found[hit] = addresses_of(after[at[hit]], offsets_of(addresses[hit]))
    return found


def id_order(ids: pa.StringArray) -> NDArray[np.int64]:
    """Positions that bring ids into ascending order."""
    return np.asarray(pc.sort_indices(ids).to_numpy(zero_copy_only=False), np.int64)


def _pick(ids: pa.StringArray, chosen: NDArray[Any]) -> pa.StringArray:
    if chosen.dtype == np.bool_:
        chosen = np.flatnonzero(chosen)
    return ids.take(pa.array(chosen))
