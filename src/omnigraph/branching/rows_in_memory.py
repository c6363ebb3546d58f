"""Rows of one table version kept in memory: a merge of few rows reads each of them once.

A delta needs the ids of the rows that are not shared and the properties of those both sides have; the merge
then writes most of the same rows. Each question on its own is a request with its own hand-over to the threads
of the table format, which for few rows costs more than the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from omnigraph.arrays.addresses import all_rows
from omnigraph.core.limits import MERGE_HELD_BYTES_MAX, MERGE_HELD_ROWS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from omnigraph.storage.handles import Fragment, SnapshotHandle
    from omnigraph.storage.tables import TableStorage


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


def may_hold(fragments: Sequence[Fragment], rows: int, row_bytes: int) -> bool:
    """Whether these rows are few enough to be held: those of `fragments`, and single ones of others."""
    if rows > MERGE_HELD_ROWS_MAX or rows * row_bytes > MERGE_HELD_BYTES_MAX:
        return False
    # What texts and lists really weigh is only known of what is stored.
    return sum(info.bytes for info in fragments) <= MERGE_HELD_BYTES_MAX


def hold(
    storage: TableStorage,
    handle: SnapshotHandle,
    fragments: Sequence[Fragment],
    single: NDArray[np.uint64],
) -> HeldRows:
    """The live rows of whole fragments and single rows of others. Cost: one request."""
    parts = [single]
    for info in fragments:
        rows = all_rows(info.id, info.physical_rows)
        parts.append(np.delete(rows, storage.dead_rows(handle, info)) if info.deleted_rows else rows)
    addresses = np.sort(np.concatenate(parts))
    if len(addresses) == 0:
        return HeldRows(addresses, handle.schema.empty_table())
    return HeldRows(addresses, storage.take(handle, addresses))
