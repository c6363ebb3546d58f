"""Numbers that a fill computes from other numbers of the row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.engine.read.arithmetic import computed
from omnigraph.engine.read.compare import Column, Constant, as_array
from omnigraph.planning import ir

if TYPE_CHECKING:
    import pyarrow as pa

    from omnigraph.engine.read.compare import Values


def computed_column(rows: pa.Table, operand: ir.Operand) -> pa.Array:
    """One number a row; null where the row lacks one, or there is no result."""
    return as_array(_values(rows, operand), rows.num_rows)


def _values(rows: pa.Table, operand: ir.Operand) -> Values:
    match operand:
        case ir.Arithmetic():
            return computed(operand, _values(rows, operand.left), _values(rows, operand.right))
        case ir.PropertyRef():
            return Column(rows.column(operand.prop.name).combine_chunks(), operand.type)
        case ir.Literal():
            return Constant(operand.value, operand.type)
        case _:
            raise AssertionError(operand)  # no number of a row
