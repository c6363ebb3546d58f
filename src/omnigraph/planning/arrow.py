"""Formulas and comparisons over Arrow columns: no loops over rows."""

from functools import reduce
from typing import Any, Final, assert_never, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.catalog.types import PropertyType, ScalarKind, arrow_type
from omnigraph.language.query_tree import Operator
from omnigraph.planning import filters as f

Cells = pa.Array | pa.ChunkedArray

_KERNELS: Final = {
    Operator.EQ: pc.equal,
    Operator.NE: pc.not_equal,
    Operator.LT: pc.less,
    Operator.LE: pc.less_equal,
    Operator.GT: pc.greater,
    Operator.GE: pc.greater_equal,
}


def run_formula(formula: f.Formula, rows: pa.Table | pa.RecordBatch) -> pa.BooleanArray:
    """One boolean per row, never null."""
    result = _run(formula, rows)
    flat = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
    return cast("pa.BooleanArray", pc.fill_null(flat, False))


def _run(formula: f.Formula, rows: pa.Table | pa.RecordBatch) -> Cells:
    match formula:
        case f.Constant():
            return pa.array(np.full(rows.num_rows, formula.holds))
        case f.HasValue():
            column = rows.column(formula.column)
            return pc.is_valid(column) if formula.wanted else pc.is_null(column)
        case f.Test():
            value = pa.scalar(formula.value, arrow_type(PropertyType(formula.kind)))
            return _KERNELS[formula.op](rows.column(formula.column), value)
        case f.InSet():
            column = rows.column(formula.column)
            values = pa.array(formula.values, arrow_type(PropertyType(formula.kind)))
            found = pc.is_in(column, values)
            return found if formula.wanted else pc.and_(pc.is_valid(column), pc.invert(found))
        case f.TextTest():
            return _wanted(text_test(rows.column(formula.column), formula.op, formula.text), formula.wanted)
        case f.HasMember():
            return _wanted(
                has_member(rows.column(formula.column), formula.value, formula.kind), formula.wanted
            )
        case f.Every():
            return reduce(pc.and_, (run_formula(part, rows) for part in formula.parts))
        case f.Some():
            return reduce(pc.or_, (run_formula(part, rows) for part in formula.parts))
        case _:
            assert_never(formula)


def _wanted(found: Cells, wanted: bool) -> Cells:  # noqa: FBT001
    return found if wanted else pc.invert(found)


def text_test(column: Cells, op: Operator, text: str) -> Cells:
    """`contains`, `starts_with` or `ends_with` with a constant; null stays null."""
    match op:
        case Operator.STARTS_WITH:
            return pc.starts_with(column, text)
        case Operator.ENDS_WITH:
            return pc.ends_with(column, text)
        case _:
            return pc.match_substring(column, text)


def has_member(column: Cells, value: Any, kind: ScalarKind) -> pa.Array:
    """Whether each list holds the value: null for a null list, and null elements equal nothing."""
    flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    scalar = pa.scalar(value, arrow_type(PropertyType(kind)))
    parents = pc.list_parent_indices(flat).to_numpy()
    hits = pc.fill_null(pc.equal(pc.list_flatten(flat), scalar), False).to_numpy(zero_copy_only=False)
    found = np.zeros(len(flat), np.bool_)
    found[parents[hits]] = True
    return pc.if_else(flat.is_valid(), pa.array(found), pa.scalar(None, pa.bool_()))
