"""Rows that a merge puts together: some properties of the source's row, the others of the target's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from omnigraph.branching.changes import NO_PAIRS, RowPairs, id_order
from omnigraph.branching.equality import chunk_rows, one_array, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Mask
    from omnigraph.branching.rows_in_memory import HeldRows
    from omnigraph.storage.handles import SnapshotHandle
    from omnigraph.storage.tables import TableStorage


@dataclass(frozen=True, slots=True, eq=False)
class MixedRows:
    """Rows of the target (`before`) that get some properties of rows of the source (`after`)."""

    pairs: RowPairs
    names: tuple[str, ...]
    theirs: NDArray[np.bool_]
    """A row per pair, a column per name: whether the property is the source's."""

    def __len__(self) -> int:
        return len(self.pairs)

    def sorted(self) -> MixedRows:
        """The same rows by ascending id."""
        order = id_order(self.pairs.ids)
        return MixedRows(self.pairs.at(order), self.names, self.theirs[order])


NOTHING_MIXED: Final = MixedRows(NO_PAIRS, (), np.empty((0, 0), np.bool_))


def mixed_rows(
    storage: TableStorage,
    mixed: MixedRows,
    source: SnapshotHandle,
    target: SnapshotHandle,
    fields: Sequence[pa.Field],
    held: HeldRows | None = None,
) -> Iterator[pa.Table]:
    """The rows in these columns, in bounded pieces. `held`: rows of the source that are in memory already."""
    column_of = {name: number for number, name in enumerate(mixed.names)}
    step = chunk_rows(fields)
    for start in range(0, len(mixed), step):
        piece = slice(start, start + step)
        theirs = read_rows(storage, source, mixed.pairs.after[piece], fields, held)
        ours = read_rows(storage, target, mixed.pairs.before[piece], fields)
        nothing = np.zeros(theirs.num_rows, np.bool_)
        chosen = [
            mixed.theirs[piece, column_of[field.name]] if field.name in column_of else nothing
            for field in fields
        ]
        columns = map(_either, chosen, theirs.columns, ours.columns)
        yield pa.table(list(columns), schema=pa.schema(list(fields)))


def _either(first: Mask, theirs: Any, ours: Any) -> Any:
    """Position by position a value of the one or the other column, whatever the type."""
    if not first.any():
        return ours
    if first.all():
        return theirs
    places = np.arange(len(first)) + np.where(first, 0, len(first))
    return pa.concat_arrays([one_array(theirs), one_array(ours)]).take(pa.array(places))
