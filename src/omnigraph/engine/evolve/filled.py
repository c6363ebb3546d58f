"""The values that rows of a table get in added columns: constants, other columns, or computed from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_BOUNDS, arrow_type
from omnigraph.engine.write.rules import misfit, uncomputed
from omnigraph.engine.write.values import positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from omnigraph.catalog.schema import Property, TableType
    from omnigraph.catalog.types import PropertyType, ScalarKind
    from omnigraph.engine.write.validate import Violations
    from omnigraph.planning.fills import Fill


def sources_of(fills: Sequence[Fill], names: Sequence[str]) -> list[str]:
    """The columns to read so that the named ones are known: themselves, or what they are filled from."""
    filled = {fill.name: fill for fill in fills}
    found: dict[str, None] = {}
    for name in names:
        fill = filled.get(name)
        if fill is None:
            found[name] = None
        else:
            found.update(dict.fromkeys(fill.sources))
    return list(found)


def with_fills(
    rows: pa.Table, table_type: TableType, fills: Sequence[Fill], names: Sequence[str]
) -> pa.Table:
    """The named columns of rows that have what `sources_of` says."""
    filled = {fill.name: fill for fill in fills}
    arrays = [
        _values(rows, table_type.property_named(name), filled[name]) if name in filled else rows.column(name)
        for name in names
    ]
    return pa.table(arrays, names=list(names))


def _values(rows: pa.Table, prop: Property, fill: Fill) -> pa.ChunkedArray | pa.Array:
    kind = arrow_type(prop.type)
    if not fill.follows_row:
        constant = list(fill.value) if isinstance(fill.value, tuple) else fill.value
        return pa.repeat(pa.scalar(constant, kind), rows.num_rows)
    column = _given(rows, fill)
    # Values that do not fit were told before.
    return column if column.type == kind else column.cast(kind, safe=False)


def _given(rows: pa.Table, fill: Fill) -> pa.ChunkedArray:
    """What a fill reads or computes, before it is made what the property wants."""
    if fill.computed is None:
        return rows.column(fill.sources[0])
    from omnigraph.engine.evolve.computed import computed_column  # noqa: PLC0415  most fills compute nothing

    return pa.chunked_array([computed_column(rows, fill.computed)])


def tell_misfits(rows: pa.Table, table_type: TableType, fill: Fill, violations: Violations) -> None:
    """Note the rows whose value does not fit the property it is to fill, or cannot be computed."""
    prop, column, ids = table_type.property_named(fill.name), _given(rows, fill), rows.column("id")
    read = table_type.property_named(fill.sources[0]) if fill.computed is None else fill.computed
    given = read.type.kind
    at = _misfits(column, given, prop.type)
    violations.add(
        (misfit(table_type, prop, column[row].as_py(), ids[row].as_py()) for row in at.tolist()), len(at)
    )
    if fill.computed is not None:
        lost = _not_computed(rows, column, fill)
        violations.add(
            (uncomputed(table_type, prop, fill.text, ids[row].as_py()) for row in lost.tolist()), len(lost)
        )


def _not_computed(rows: pa.Table, column: pa.ChunkedArray, fill: Fill) -> NDArray[np.int64]:
    """The rows that have every number it is computed from, and no result: beyond its type, or over zero."""
    lost = np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False), np.bool_)
    for name in fill.sources:
        lost = lost & np.asarray(pc.is_valid(rows.column(name)).to_numpy(zero_copy_only=False), np.bool_)
    return np.flatnonzero(lost)


def _misfits(column: pa.ChunkedArray, given: ScalarKind, wanted: PropertyType) -> NDArray[np.int64]:
    """The positions of numbers that the wanted type cannot hold."""
    if not wanted.is_numeric or given is wanted.kind:
        return np.empty(0, np.int64)
    if wanted.kind in FLOAT_KINDS:
        narrowed = column.cast(arrow_type(wanted), safe=False)
        return positions(pc.and_(pc.is_valid(column), pc.invert(pc.is_finite(narrowed))))
    low, high = INTEGER_BOUNDS[wanted.kind]
    if given in FLOAT_KINDS:
        values = np.asarray(column.to_numpy(), np.float64)
        # The greatest integers have no exact float: what is equal to the next one is outside.
        fits = (values >= float(low)) & (values < float(high + 1)) & (np.floor(values) == values)
        there = np.asarray(pc.is_valid(column).to_numpy(zero_copy_only=False), np.bool_)
        return np.flatnonzero(there & ~fits)
    lowest, highest = INTEGER_BOUNDS[given]
    below = pc.less(column, pa.scalar(max(low, lowest), column.type))
    above = pc.greater(column, pa.scalar(min(high, highest), column.type))
    return positions(pc.or_(below, above))
