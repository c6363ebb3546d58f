"""Formulas over working rows without Arrow: numpy for numbers, Python values for few rows.

A formula holds typed tests whose values are of the column's own kind (`planning.filters`), so numpy and
Python compare exactly what Arrow would. Whatever is not covered is left to Arrow.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_BOUNDS, ScalarKind
from omnigraph.engine.read.frame import FEW_ROWS
from omnigraph.language.query_tree import Operator
from omnigraph.planning import filters as f

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from omnigraph.arrays.types import Mask, Ordinals
    from omnigraph.engine.tables.images import TableImage

COMPARE: Final[Mapping[Operator, Callable[[Any, Any], Any]]] = {
    Operator.EQ: operator.eq,
    Operator.NE: operator.ne,
    Operator.LT: operator.lt,
    Operator.LE: operator.le,
    Operator.GT: operator.gt,
    Operator.GE: operator.ge,
}
"""The ordering operators, on Python values and on numpy arrays alike."""
NUMBER_KINDS: Final = frozenset(INTEGER_BOUNDS) | FLOAT_KINDS
PLAIN_KINDS: Final = NUMBER_KINDS | {ScalarKind.STRING, ScalarKind.BOOL}
"""Kinds whose values are the same in Python as in Arrow, in their order as well: text by code points."""


def formula_mask(formula: f.Formula, image: TableImage, ordinals: Ordinals) -> Mask | None:
    """The rows for which the formula is true, or None when it needs Arrow. -1 satisfies nothing but
    constants and tests for the absence of a value.
    """
    match formula:
        case f.Constant():
            return np.full(len(ordinals), formula.holds)
        case f.Test():
            return _test(formula, image, ordinals)
        case f.HasValue():
            return _has_value(formula, image, ordinals)
        case f.Every() | f.Some():
            combine = np.logical_and if isinstance(formula, f.Every) else np.logical_or
            result: Mask | None = None
            for part in formula.parts:
                mask = formula_mask(part, image, ordinals)
                if mask is None:
                    return None
                result = mask if result is None else combine(result, mask)
            return result
        case _:
            return None


def _test(test: f.Test, image: TableImage, ordinals: Ordinals) -> Mask | None:
    compare = COMPARE[test.op]
    if test.kind in NUMBER_KINDS:
        numbers = image.numbers(test.column)
        if numbers is None:
            return None
        values, known = numbers.gather(ordinals)
        # A value of the column's own type, so that numpy does not widen either side.
        mask = compare(values, numbers.dtype.type(test.value))
        return mask if known is None else mask & known
    if test.kind in PLAIN_KINDS and len(ordinals) <= FEW_ROWS:
        wanted: Any = test.value
        found = image.pick(test.column, ordinals.tolist())
        return np.array([value is not None and compare(value, wanted) for value in found], dtype=np.bool_)
    return None


def _has_value(test: f.HasValue, image: TableImage, ordinals: Ordinals) -> Mask | None:
    numbers = image.numbers(test.column)
    if numbers is None:
        return None
    _, known = numbers.gather(ordinals)
    if known is None:
        return np.full(len(ordinals), test.wanted)
    return known if test.wanted else ~known
