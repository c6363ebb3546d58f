"""Working rows in pieces, so that the limits of a query hold inside a step.

A step that looks at values fetches them for some rows at a time: time, cancellation and memory are asked
before each piece, and no piece fetches more text than one Arrow array can hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from omnigraph.arrays.types import Ordinals
from omnigraph.core.limits import MIB
from omnigraph.engine.tables.columns import fixed_bytes
from omnigraph.engine.tables.images import SAMPLED_ROWS_MAX, TableImage
from omnigraph.planning import ir, mentions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from omnigraph.engine.read.frame import Frame
    from omnigraph.engine.read.reading import Reading

PIECE_ROWS: Final = 1 << 18
"""Working rows that a step looks at between two looks at its limits."""
PIECE_BYTES_MAX: Final = 64 * MIB
PIECE_SHARE: Final = 8
"""Values are fetched up to `PIECE_BYTES` at a time, or up to one part in `PIECE_SHARE` of the memory limit if
that is less.
"""
UNMEASURED_ROWS_MAX: Final = SAMPLED_ROWS_MAX
"""The values of up to this many rows are not counted: that would cost as much as fetching them, and they may
be read without their column.
"""

Fetch: TypeAlias = tuple[TableImage, str, Ordinals]
"""A column and the ordinals whose values are fetched, one for each working row."""

SEARCHES: Final = (ir.Search, ir.Nearest, ir.Bm25, ir.Rrf)
"""Operands whose values come from a search over all rows."""


def fetches_of(reading: Reading, operands: Sequence[ir.Operand], frame: Frame) -> list[Fetch]:
    """What the values of the operands are fetched from."""
    found: list[Fetch] = []
    for operand in (leaf for each in operands for leaf in mentions.leaves_of(each)):
        if isinstance(operand, ir.NodeRef):
            found.append((reading.image(operand.node), "id", frame[operand.variable]))
        elif isinstance(operand, ir.PropertyRef):
            found.append((reading.image(operand.owner), operand.prop.name, frame[operand.variable]))
    return found


def pieces(reading: Reading, rows: int, fetches: Sequence[Fetch]) -> Iterator[slice]:
    """The working rows as consecutive slices whose values fit a piece.

    Raises ResourceLimit, DeadlineExceeded or Cancelled before the piece that is one too many.
    """
    limits = reading.limits
    if rows <= UNMEASURED_ROWS_MAX:
        yield slice(0, rows)
        return
    bound = min(PIECE_BYTES_MAX, limits.memory_bytes_max // PIECE_SHARE)
    fixed, varying = _sized(fetches)
    for begin in range(0, rows, PIECE_ROWS):
        end = min(begin + PIECE_ROWS, rows)
        if not varying and fixed * (end - begin) <= bound:
            limits.claim_values(fixed * (end - begin))
            yield slice(begin, end)
            continue
        sizes = np.full(end - begin, fixed, dtype=np.int64)
        for image, column, ordinals in varying:
            sizes += image.sizes(column, ordinals[begin:end])
        for first, last, size in _cuts(sizes, bound):
            limits.claim_values(size)
            yield slice(begin + first, begin + last)


def _cuts(sizes: NDArray[np.int64], bound: int) -> Iterator[tuple[int, int, int]]:
    """Consecutive spans that stay within the bound, of one row at least, and the size of each."""
    ends = np.cumsum(sizes)
    first, before = 0, 0
    while first < len(ends):
        last = max(int(np.searchsorted(ends, before + bound, side="right")), first + 1)
        after = ends.item(last - 1)
        yield first, last, after - before
        first, before = last, after


def hold_values(reading: Reading, operand: ir.Operand, frame: Frame) -> None:
    """Count the values of an operand, which are about to be fetched for all rows and kept.

    Raises as `pieces` does.
    """
    hold_fetches(reading, frame.rows, fetches_of(reading, (operand,), frame))


def hold_fetches(reading: Reading, rows: int, fetches: Sequence[Fetch]) -> None:
    """As `hold_values`, of columns."""
    if rows <= UNMEASURED_ROWS_MAX:
        return
    fixed, varying = _sized(fetches)
    size = fixed * rows
    for image, column, ordinals in varying:
        for begin in range(0, rows, PIECE_ROWS):
            size += int(image.sizes(column, ordinals[begin : begin + PIECE_ROWS]).sum())
    reading.limits.hold(size)


def _sized(fetches: Sequence[Fetch]) -> tuple[int, list[Fetch]]:
    """What each row takes in any case, and the columns whose values differ in size."""
    fixed = 0
    varying: list[Fetch] = []
    for fetch in fetches:
        image, column, _ = fetch
        each = fixed_bytes(image.handle.schema.field(column).type)
        if each is not None:
            fixed += each
        else:
            varying.append(fetch)
    return fixed, varying
