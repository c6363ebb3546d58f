"""Rows of one table version kept in memory: a merge of few rows reads each of them once.

A delta needs the ids of the rows that are not shared and the properties of those both sides have; the merge
then writes most of the same rows. Each question on its own is a request with its own hand-over to the threads
of the table format, which for few rows costs more than the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from omnigraph.core.limits import MERGE_HELD_BYTES_MAX, MERGE_HELD_ROWS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from omnigraph.storage.handles import FragmentInfo, SnapshotHandle
    from omnigraph.storage.tables import TableStorage

_OFFSET_BITS: Final = np.uint64(32)


@dataclass(frozen=True, slots=True, eq=False)
class HeldRows:
    """Whole rows of one table version, by ascending address."""

    addresses: NDArray[np.uint64]
    rows: pa.Table

    def take(self, addresses: NDArray[np.uint64]) -> pa.Table | None:
        """The rows at these addresses in their order; None when one of them is not held."""
        if len(self.addresses) == 0:
            return None
        at = np.minimum(np.searchsorted(self.addresses, addresses), len(self.addresses) - 1)
        if not np.array_equal(self.addresses[at], addresses):
            return None
        return self.rows.take(pa.array(at))


def may_hold(fragments: Sequence[FragmentInfo], rows: int, row_bytes: int) -> bool:
    """Whether so many rows are few enough to be held: those of `fragments`, and single ones of others."""
    if rows > MERGE_HELD_ROWS_MAX or rows * row_bytes > MERGE_HELD_BYTES_MAX:
        return False
    # What texts and lists really weigh is only known of what is stored.
    return sum(info.bytes for info in fragments) <= MERGE_HELD_BYTES_MAX


def hold(
    storage: TableStorage,
    handle: SnapshotHandle,
    fragments: Sequence[FragmentInfo],
    single: NDArray[np.uint64],
) -> HeldRows:
    """The live rows of whole fragments and single rows of others. Cost: one request."""
    parts = [single]
    for info in fragments:
        offsets = np.arange(info.physical_rows, dtype=np.uint64)
        if info.deleted_rows:
            dead = np.asarray(storage.dead_rows(handle, info), np.int64)
            offsets = np.delete(offsets, dead)
        parts.append((np.uint64(info.id) << _OFFSET_BITS) | offsets)
    addresses = np.sort(np.concatenate(parts))
    if len(addresses) == 0:
        return HeldRows(addresses, handle.schema.empty_table())
    return HeldRows(addresses, storage.take(handle, addresses))
