"""The working rows of a query: for each variable the ordinal of the entity it stands for, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from omnigraph.arrays.pairs import pack
from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Ordinals


FEW_ROWS: Final = 48
"""Up to this many rows are handled one by one: a vectorised step costs as much as this many Python steps."""
EXTENT_PER_ROW_MAX: Final = 256
"""A table over all ordinals is used when there is at least one row for this many ordinals."""

WEIGHT: Final = "#weight"
"""The column that says for how many equal rows each stands, where that is not one. No query can spell it."""

PRODUCT_ROWS: Final = 1 << 18
"""Rows of a product that are made between two looks at the limits."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Working rows. -1 stands for a variable that an optional match left null."""

    rows: int
    columns: Mapping[str, Ordinals]

    @staticmethod
    def single() -> Frame:
        """One row without variables: where a match begins."""
        return Frame(1, {})

    @staticmethod
    def of(variable: str, ordinals: Ordinals) -> Frame:
        """Rows of one variable."""
        return Frame(len(ordinals), {variable: ordinals})

    def __contains__(self, variable: str) -> bool:
        return variable in self.columns

    def __getitem__(self, variable: str) -> Ordinals:
        return self.columns[variable]

    def take(self, rows: NDArray[np.int64]) -> Frame:
        """The rows at these positions, in this order, repeated where they repeat."""
        return Frame(len(rows), {name: column[rows] for name, column in self.columns.items()})

    def keep(self, mask: NDArray[np.bool_]) -> Frame:
        """The rows for which the mask is true."""
        if mask.all():
            return self
        return self.take(np.flatnonzero(mask))

    def part(self, rows: slice) -> Frame:
        """Consecutive rows, not copied."""
        return Frame(
            len(range(*rows.indices(self.rows))),
            {name: column[rows] for name, column in self.columns.items()},
        )

    def bind(self, variable: str, ordinals: Ordinals) -> Frame:
        """The same rows with one more variable."""
        return Frame(self.rows, {**self.columns, variable: ordinals})

    def only(self, variables: Iterable[str]) -> Frame:
        """The same rows with these variables alone."""
        return Frame(self.rows, {name: self.columns[name] for name in variables})

    @property
    def weights(self) -> Ordinals | None:
        """For how many equal rows each stands; None: for itself."""
        return self.columns.get(WEIGHT)

    def among(self, variables: frozenset[str]) -> Frame:
        """The same rows without the variables that are not in the set. Weights stay."""
        kept = {name: column for name, column in self.columns.items() if name in variables or name == WEIGHT}
        return self if len(kept) == len(self.columns) else Frame(self.rows, kept)

    def product(self, variable: str, ordinals: Ordinals, check: Callable[[], None]) -> Frame:
        """Every row with every entity. `check` is called again and again while they are made."""
        if self.rows == 1:
            repeated = {name: np.repeat(column, len(ordinals)) for name, column in self.columns.items()}
            return Frame(len(ordinals), {**repeated, variable: ordinals})
        shape, size = (self.rows, len(ordinals)), max(PRODUCT_ROWS // max(len(ordinals), 1), 1)
        columns = {name: np.empty(shape, dtype=np.int64) for name in (*self.columns, variable)}
        for begin in range(0, self.rows, size):
            check()
            for name, column in self.columns.items():
                columns[name][begin : begin + size] = column[begin : begin + size, np.newaxis]
            columns[variable][begin : begin + size] = ordinals
        return Frame(self.rows * len(ordinals), {name: each.reshape(-1) for name, each in columns.items()})

    @staticmethod
    def joined(frames: Sequence[Frame]) -> Frame:
        """The rows of frames with the same variables, one after the other."""
        names = frames[0].columns
        return Frame(
            sum(frame.rows for frame in frames),
            {name: np.concatenate([frame[name] for frame in frames]) for name in names},
        )


SINGLE: Final = Frame.single()


def first_places(ordinals: Ordinals) -> NDArray[np.int64]:
    """Where each distinct ordinal stands first, ascending."""
    rows = len(ordinals)
    if rows <= FEW_ROWS:
        seen: dict[int, int] = {}
        for place, ordinal in enumerate(ordinals.tolist()):
            seen.setdefault(ordinal, place)
        return np.fromiter(seen.values(), np.int64, len(seen))
    extent = ordinals.max().item() + 2
    if extent > EXTENT_PER_ROW_MAX * rows:
        return np.sort(np.unique(ordinals, return_index=True)[1])
    # Written backwards, so that of equal ordinals the first one stays. Nothing else of the table is read.
    place = np.empty(extent, np.int64)
    numbers = np.arange(rows, dtype=np.int64)
    place[ordinals[::-1]] = numbers[::-1]
    return np.flatnonzero(place[ordinals] == numbers)


def entities_of(ordinals: Ordinals, extent: int) -> Ordinals:
    """The entities that rows stand for, each once, ascending; for rows that outnumber the entities."""
    used = np.zeros(extent + 1, dtype=np.bool_)
    used[ordinals] = True  # one more slot than there are entities, for none
    return np.flatnonzero(used[:-1])


def distinct_rows(columns: list[Ordinals], rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One representative position for each distinct combination, and for each row which one it belongs to."""
    if not columns or rows == 0:
        return np.zeros(min(rows, 1), dtype=np.int64), np.zeros(rows, dtype=np.int64)
    if len(columns) == 1:
        _, first, inverse = np.unique(columns[0], return_index=True, return_inverse=True)
        return first.astype(np.int64), inverse.reshape(-1).astype(np.int64)
    first, member = np.zeros(0, dtype=np.int64), columns[0]
    for column in columns[1:]:
        # Combinations of the columns so far are numbered, so that two numbers always fit into one.
        packed = pack(member + 1, column + 1)
        _, places, inverse = np.unique(packed, return_index=True, return_inverse=True)
        first, member = places.astype(np.int64), inverse.reshape(-1).astype(np.int64)
    return first, member
