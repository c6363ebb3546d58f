"""Sums and averages of groups: of integers exactly, of floats in double precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.catalog.types import FLOAT_KINDS
from omnigraph.core.errors import SumOverflow
from omnigraph.engine.read.compare import as_array
from omnigraph.engine.read.operands import operand_values
from omnigraph.language.query_tree import Function
from omnigraph.planning import ir
from omnigraph.planning.explain import operand_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnigraph.arrays.types import Mask
    from omnigraph.engine.read.frame import Frame
    from omnigraph.engine.read.reading import Reading

    Codings = NDArray[np.int64]

_BITS: Final = 32
_LOW: Final = (1 << _BITS) - 1
_HIGH_MAX: Final = 1 << (63 - _BITS)
"""A total whose upper part is below this, and not below its negative, fits I64."""
EXACT_ROWS: Final = 1 << 20
"""Up to this many numbers of 32 bits are added up in doubles without rounding: 20 and 32 bits are less than
53.
"""


class Sums:
    """The sum or the average of each group; null over no values."""

    def __init__(self, aggregate: ir.Aggregate, width: int) -> None:
        self._aggregate = aggregate
        self._whole = aggregate.argument.type.kind not in FLOAT_KINDS
        self._counts = np.zeros(width, np.int64)
        self._floats = np.zeros(0 if self._whole else width, np.float64)
        # A total of integers is `high * 2^32 + low`, low being less than 2^32.
        self._high = np.zeros(width if self._whole else 0, np.int64)
        self._low = np.zeros(width if self._whole else 0, np.int64)

    def add(self, codes: Codings, values: NDArray[Any], known: Mask | None) -> None:
        """Add values to their groups; those that are not known are left out."""
        if known is not None:
            codes, values = codes[known], values[known]
        self.add_totals(codes, values)
        self.count(np.bincount(codes, minlength=len(self._counts)))

    def add_totals(self, codes: Codings, values: NDArray[Any]) -> None:
        """As `add`, for values that are counted elsewhere."""
        if not self._whole:
            self._floats += np.bincount(codes, weights=values, minlength=len(self._counts))
            return
        for begin in range(0, len(codes), EXACT_ROWS):
            self._add_integers(codes[begin : begin + EXACT_ROWS], values[begin : begin + EXACT_ROWS])

    def count(self, counts: NDArray[np.int64]) -> None:
        """Say how many values were added to each group."""
        self._counts += counts

    def _add_integers(self, codes: Codings, values: NDArray[Any]) -> None:
        width = len(self._counts)
        if values.dtype.itemsize > _BITS // 8:
            high = np.bincount(codes, weights=values >> values.dtype.type(_BITS), minlength=width)
            self._high += high.astype(np.int64)
            values = values & values.dtype.type(_LOW)
        self._low += np.bincount(codes, weights=values, minlength=width).astype(np.int64)
        self._high += self._low >> _BITS
        self._low &= _LOW

    def result(self, present: Codings) -> pa.Array:
        """The values of some groups. Raises SumOverflow where a sum of integers does not fit I64."""
        counts = self._counts[present]
        absent = counts == 0
        average = self._aggregate.function is Function.AVG
        if not self._whole:
            sums = self._floats[present]
            return pa.array(sums / np.maximum(counts, 1) if average else sums, pa.float64(), mask=absent)
        high, low = self._high[present], self._low[present]
        if average:
            total = high * float(1 << _BITS) + low
            return pa.array(total / np.maximum(counts, 1), pa.float64(), mask=absent)
        if (high >= _HIGH_MAX).any() or (high < -_HIGH_MAX).any():
            raise SumOverflow(operand_text(self._aggregate.argument))
        return pa.array((high << _BITS) | low, pa.int64(), mask=absent)


def numbers_of(reading: Reading, argument: ir.Operand, frame: Frame) -> tuple[NDArray[Any], Mask | None]:
    """The values of an argument in its own number type, and which rows have one (None: all)."""
    if isinstance(argument, ir.PropertyRef) and argument.type.is_scalar and argument.type.is_numeric:
        numbers = reading.image(argument.owner).numbers(argument.prop.name)
        assert numbers is not None  # noqa: S101 - it is a number property
        return numbers.gather(frame[argument.variable])
    values = as_array(operand_values(reading, argument, frame), frame.rows)
    known = np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False), dtype=np.bool_)
    if not argument.type.is_numeric:
        return np.empty(0), known
    filled: Any = pc.fill_null(values, 0)
    return np.asarray(filled.to_numpy(zero_copy_only=False)), known
