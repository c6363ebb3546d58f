"""Rows that stand for several equal ones: how many they are, exactly."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omnigraph.core.errors import SumOverflow

Weights = NDArray[np.int64]

_EXACT: Final = float(1 << 53)
"""Sums of whole numbers below this are exact in double precision."""
_MOST: Final = float(1 << 63)
COUNTED: Final = "the rows of the match"
"""What overflows, in words."""


def summed(codes: NDArray[np.integer], weights: NDArray[Any] | None, width: int) -> NDArray[np.int64]:
    """For each code below `width` the sum of its weights; each weighs 1 without them.

    Raises SumOverflow when the sum of all does not fit I64.
    """
    if weights is None:
        return np.bincount(codes, minlength=width)
    total = float(weights.sum(dtype=np.float64)) if len(weights) else 0.0
    if total < _EXACT:
        return np.bincount(codes, weights=weights, minlength=width).astype(np.int64)
    _fit(total)
    sums = np.zeros(width, dtype=np.int64)
    np.add.at(sums, codes, weights.astype(np.int64))
    return sums


def total(weights: Weights | None, rows: int) -> int:
    """The sum of all weights. Raises SumOverflow when it does not fit I64."""
    if weights is None:
        return rows
    if len(weights):
        _fit(float(weights.sum(dtype=np.float64)))
    return int(weights.sum())


def times(weights: Weights | None, factors: Weights) -> Weights:
    """Each weight multiplied. Raises SumOverflow when a product does not fit I64."""
    if weights is None:
        return factors.astype(np.int64)
    if len(weights):
        _fit(float(weights.max()) * float(factors.max()))
    return weights * factors


def _fit(size: float) -> None:
    if size >= _MOST:
        raise SumOverflow(COUNTED)
