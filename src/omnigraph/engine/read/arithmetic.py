"""Numbers computed from numbers: whole ones exactly, others in double precision; null what does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from omnigraph.catalog.types import FLOAT_KINDS
from omnigraph.engine.read.compare import Column, Constant, Values, numbers
from omnigraph.language.query_tree import ArithmeticOperator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnigraph.arrays.types import Mask
    from omnigraph.planning import ir

_LEAST = np.iinfo(np.int64).min


def computed(expression: ir.Arithmetic, left: Values, right: Values) -> Values:
    """The values of an expression from those of its parts; one for all rows when both are."""
    (a, known_a), (b, known_b) = numbers(left), numbers(right)
    known = known_a & known_b
    with np.errstate(all="ignore"):  # what overflows is null
        if expression.type.kind in FLOAT_KINDS:
            values, fits = _floats(expression.op, a.astype(np.float64), b.astype(np.float64))
        else:
            fits_a, a = _signed(a)
            fits_b, b = _signed(b)
            values, fits = _integers(expression.op, a, b)
            fits &= fits_a & fits_b
    known = known & fits
    if isinstance(left, Constant) and isinstance(right, Constant):
        return Constant(values.item(0) if known.item(0) else None, expression.type)
    return Column(pa.array(values, mask=~known), expression.type)


def _signed(values: NDArray[Any]) -> tuple[Mask, NDArray[np.int64]]:
    """Integers as I64, and which of them fit it."""
    if values.dtype == np.uint64:
        return values <= np.uint64(np.iinfo(np.int64).max), values.astype(np.int64)
    return np.ones(len(values), dtype=np.bool_), values


def _floats(
    op: ArithmeticOperator, a: NDArray[np.float64], b: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Mask]:
    match op:
        case ArithmeticOperator.PLUS:
            values = a + b
        case ArithmeticOperator.MINUS:
            values = a - b
        case ArithmeticOperator.TIMES:
            values = a * b
        case ArithmeticOperator.DIVIDE:
            values = a / b
    fits: Mask = np.isfinite(values)
    return values, fits


def _integers(
    op: ArithmeticOperator, a: NDArray[np.int64], b: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Mask]:
    """The results, and which of them are not those of numbers that wrapped around."""
    match op:
        case ArithmeticOperator.PLUS:
            values = a + b
            return values, ((a ^ values) & (b ^ values)) >= 0
        case ArithmeticOperator.MINUS:
            values = a - b
            return values, ((a ^ b) & (a ^ values)) >= 0
        case _:
            values = a * b
            divisor = np.where(a == 0, 1, a)
            exact = (values // divisor == b) & (values % divisor == 0)
            wrapped = ((a == -1) & (b == _LEAST)) | ((b == -1) & (a == _LEAST))
            return values, ((a == 0) | exact) & ~wrapped
