"""Reads inside a write: committed rows at the captured version, overlaid by what the write itself has
gathered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.arrays.addresses import ABSENT, addresses_in
from omnigraph.arrays.keys import string_array
from omnigraph.core.errors import InternalError
from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from omnigraph.planning.filters import FilterText
    from omnigraph.storage.handles import SnapshotHandle
    from omnigraph.storage.tables import TableStorage


@dataclass(frozen=True, slots=True)
class RowFilter:
    """One condition in its two forms, which mean the same: text for the table, a function for rows in
    memory.
    """

    text: FilterText | None
    """None selects every row."""
    select: Callable[[pa.Table], pa.Array]
    """True where a row is selected; null and false are not."""


@dataclass(frozen=True, slots=True)
class Matched:
    """Rows that satisfy a condition; `addresses` are `ABSENT` for rows that are only pending."""

    rows: pa.Table
    addresses: NDArray[np.uint64]

    @property
    def ids(self) -> pa.StringArray:
        """The ids of the rows."""
        return string_array(self.rows.column("id"))


def scan_with_pending(
    storage: TableStorage,
    handle: SnapshotHandle,
    pending: pa.Table | None,
    *,
    projection: Sequence[str],
    condition: RowFilter,
    key_column: str | None,
    limit: int | None = None,
) -> Matched:
    """Committed rows that satisfy the condition, then pending rows that do.

    With `key_column` a committed row whose key is pending is left out: a row this write has changed is seen
    in its pending form only. Raises `InternalError` when the key is not part of the projection. `limit`
    bounds the committed rows that are read.
    """
    if key_column is not None and key_column not in projection:
        raise InternalError(f"a read by '{key_column}' must project it")
    committed = storage.read(
        handle, columns=list(projection), filter=condition.text, with_row_address=True, limit=limit
    )
    addresses = addresses_in(committed)
    committed = committed.select(list(projection))
    if pending is None or pending.num_rows == 0:
        return Matched(committed, addresses)
    if key_column is not None and committed.num_rows:
        shadowed = pc.is_in(committed.column(key_column), value_set=string_array(pending.column(key_column)))
        visible = pc.invert(shadowed)
        committed = committed.filter(visible)
        addresses = addresses[np.asarray(visible.to_numpy(), np.bool_)]
    chosen = pending.filter(condition.select(pending)).select(list(projection))
    rows = pa.concat_tables([committed.cast(chosen.schema), chosen])
    return Matched(rows, np.concatenate([addresses, np.full(chosen.num_rows, ABSENT, np.uint64)]))
