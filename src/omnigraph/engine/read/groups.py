"""What is computed and tested once rows are grouped: arithmetic over aggregates, and `having`."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.read.arithmetic import computed
from omnigraph.engine.read.compare import Column, Constant, Values, as_array, compare
from omnigraph.planning import ir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnigraph.arrays.types import Mask
    from omnigraph.engine.read.reading import Reading


@dataclass(frozen=True, slots=True, eq=False)
class GroupValues:
    """Values of groups: those of the key and the aggregates are known, others are computed from them."""

    reading: Reading
    known: Mapping[ir.Operand, Any]
    groups: int

    def column(self, expression: ir.Operand) -> Any:
        """One value a group."""
        found = self.known.get(expression)
        return as_array(self._values(expression), self.groups) if found is None else found

    def hold(self, conditions: Sequence[ir.Condition]) -> Mask | None:
        """The groups for which all conditions are true; None without conditions."""
        if not conditions:
            return None
        return reduce(np.logical_and, (self._holds(condition) for condition in conditions))

    def _holds(self, condition: ir.Condition) -> Mask:
        match condition:
            case ir.Comparison():
                left, right = self._values(condition.left), self._values(condition.right)
                return compare(left, condition.op, right, self.groups)
            case ir.NullCheck():
                missing = pc.is_null(as_array(self._values(condition.operand), self.groups))
                mask = np.asarray(missing.to_numpy(zero_copy_only=False), dtype=np.bool_)
                return ~mask if condition.negated else mask
            case ir.Either() | ir.Both():
                combine = np.logical_or if isinstance(condition, ir.Either) else np.logical_and
                return reduce(combine, (self._holds(part) for part in condition.parts))
            case ir.SearchTest():
                raise AssertionError(condition)  # groups are not searched

    def _values(self, expression: ir.Operand) -> Values:
        found = self.known.get(expression)
        if found is not None:
            return Column(found, expression.type)
        if isinstance(expression, ir.Arithmetic):
            return computed(expression, self._values(expression.left), self._values(expression.right))
        if isinstance(expression, ir.Literal | ir.Param | ir.Now):
            return Constant(self.reading.value(expression), expression.type)
        raise AssertionError(expression)  # the check lets nothing else through
