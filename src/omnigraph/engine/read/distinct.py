"""How many different values each group has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from omnigraph.catalog.types import FLOAT_KINDS
from omnigraph.engine.read.limits import ORDINAL_BYTES
from omnigraph.engine.read.sums import numbers_of
from omnigraph.planning import ir

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnigraph.engine.read.frame import Frame
    from omnigraph.engine.read.reading import Reading

    Codings = NDArray[np.int64]

MERGED_PAIRS: Final = 1 << 20
"""Pairs that gather before those that are equal are put together."""


class DistinctCounts:
    """The pairs of a group and a value that were seen, each once. Null is no value."""

    def __init__(self, reading: Reading, aggregate: ir.Aggregate, width: int) -> None:
        self._reading = reading
        self._argument = aggregate.argument
        self._width = width
        self._groups: list[Codings] = []
        self._values: list[Codings] = []
        self._waiting = 0

    def add(self, codes: Codings, frame: Frame) -> None:
        """Note the values of rows in their groups."""
        values, known = self._numbered(frame)
        groups, mine = _each_once(codes[known], values[known])
        self._groups.append(groups)
        self._values.append(mine)
        self._waiting += len(groups)
        if self._waiting > MERGED_PAIRS:
            self._merge()

    def add_spans(self, *_: object) -> None:
        """Never called: a hop whose values are told apart is made."""
        raise AssertionError(self._argument)

    def result(self, present: Codings) -> pa.Array:
        """The counts of some groups."""
        self._merge()
        return pa.array(np.bincount(self._groups[0], minlength=self._width)[present], pa.int64())

    def _merge(self) -> None:
        none = np.zeros(0, np.int64)
        groups, values = _each_once(
            np.concatenate([*self._groups, none]), np.concatenate([*self._values, none])
        )
        self._groups, self._values, self._waiting = [groups], [values], 0
        self._reading.limits.claim_values(2 * ORDINAL_BYTES * len(groups))

    def _numbered(self, frame: Frame) -> tuple[Codings, NDArray[np.bool_]]:
        """A number for each row, equal exactly where the values are, and which rows have a value."""
        argument = self._argument
        if isinstance(argument, ir.NodeRef):
            ordinals = frame[argument.variable]
            return ordinals, ordinals >= 0
        if isinstance(argument, ir.PropertyRef):
            codes = self._reading.codes(argument)
            mine = codes.codes[frame[argument.variable]].astype(np.int64)
            return mine, mine != codes.codes[-1]
        values, known = numbers_of(self._reading, argument, frame)
        if known is None:
            known = np.ones(frame.rows, dtype=np.bool_)
        if not argument.type.is_numeric:
            return np.zeros(frame.rows, np.int64), known  # a constant
        return _bits(values, is_float=argument.type.kind in FLOAT_KINDS), known


def _bits(values: NDArray[Any], *, is_float: bool) -> Codings:
    if is_float:
        return (values.astype(np.float64) + 0.0).view(np.int64)  # both zeros are one value
    return values.astype(np.int64)


def _each_once(groups: Codings, values: Codings) -> tuple[Codings, Codings]:
    order = np.lexsort((values, groups))
    groups, values = groups[order], values[order]
    first = np.ones(len(groups), dtype=np.bool_)
    first[1:] = (groups[1:] != groups[:-1]) | (values[1:] != values[:-1])
    return groups[first], values[first]
