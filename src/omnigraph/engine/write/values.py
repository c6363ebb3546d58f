"""Rules about single rows, over Arrow tables: required, enum, range, check. Pure; mutations and loads
share them.
"""

from collections.abc import Callable, Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.catalog.schema import CheckRule, Property, RangeRule, TableType
from omnigraph.catalog.types import INTEGER_BOUNDS
from omnigraph.core.errors import Violation
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.write.rules import missing_value


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that rows of a table break. `describe` gives the message for one of `rows`."""

    rule: str
    property: str
    rows: NDArray[np.int64]
    describe: Callable[[int], str]

    def violation(self, table_type: TableType, row: int, entity_id: str | None) -> Violation:
        """The rule as one of `rows` breaks it."""
        return Violation(
            rule=self.rule,
            entity_kind=table_type.kind.value,
            type_name=table_type.name,
            entity_id=entity_id,
            property=self.property,
            message=self.describe(row),
        )


def value_findings(rows: pa.Table, table_type: TableType) -> Iterator[Finding]:
    """Every broken rule about single rows, in the order required, enum, range, check.

    `rows` has every column a range, a check or an enum speaks of; one that is only required may be left out
    by a caller whose rows come from a table, which takes no null there. Cost: one pass over each constrained
    column.
    """
    present = set(rows.column_names)
    for prop in table_type.properties:
        if prop.required and prop.name in present:
            yield from _required(rows, table_type, prop)
    for prop in table_type.properties:
        if prop.enum_values is not None:
            yield from _enum(rows, table_type, prop)
    for rule in table_type.ranges:
        yield from _range(rows, table_type, rule)
    for rule in table_type.checks:
        yield from _check(rows, table_type, rule)


def positions(mask: Any) -> NDArray[np.int64]:
    """The positions at which a boolean Arrow array is true; null counts as false."""
    if isinstance(mask, pa.ChunkedArray):
        mask = mask.combine_chunks()
    return np.flatnonzero(np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False), np.bool_))


def _found(
    rule: str, prop: str, rows: NDArray[np.int64], describe: Callable[[int], str]
) -> Iterator[Finding]:
    if len(rows):
        yield Finding(rule, prop, rows, describe)


def _required(rows: pa.Table, table_type: TableType, prop: Property) -> Iterator[Finding]:
    column = rows.column(prop.name)
    if column.null_count == 0:
        return
    message = missing_value(table_type, prop.name).message
    yield from _found("required", prop.name, positions(pc.is_null(column)), lambda _row: message)


def _enum(rows: pa.Table, table_type: TableType, prop: Property) -> Iterator[Finding]:
    column = rows.column(prop.name)
    allowed = prop.enum_values or ()
    outside = pc.and_(pc.is_valid(column), pc.invert(pc.is_in(column, pa.array(allowed, pa.string()))))
    names = ", ".join(allowed)

    def describe(row: int) -> str:
        return f"{table_type.name}.{prop.name}: '{column[row].as_py()}' is not one of {names}"

    yield from _found("enum", prop.name, positions(outside), describe)


def _range(rows: pa.Table, table_type: TableType, rule: RangeRule) -> Iterator[Finding]:
    column = rows.column(rule.property)
    kind = table_type.property_named(rule.property).type.kind
    if kind in INTEGER_BOUNDS:
        low, high = _integer_bounds(rule, *INTEGER_BOUNDS[kind])
        below = pc.less(column, pa.scalar(low, column.type)) if low is not None else None
        above = pc.greater(column, pa.scalar(high, column.type)) if high is not None else None
        if _nothing_fits(rule, *INTEGER_BOUNDS[kind]):
            below = pc.is_valid(column)
    else:
        column = column.cast(pa.float64())
        not_a_number = pc.is_nan(column)
        below = pc.less(column, float(rule.minimum)) if rule.minimum is not None else not_a_number
        above = pc.greater(column, float(rule.maximum)) if rule.maximum is not None else not_a_number
        below = pc.or_(below, not_a_number)
    masks = [mask for mask in (below, above) if mask is not None]
    if not masks:
        return
    outside = masks[0] if len(masks) == 1 else pc.or_(masks[0], masks[1])

    def describe(row: int) -> str:
        value = column[row].as_py()
        subject = f"{table_type.name}.{rule.property}: {value}"
        if isinstance(value, float) and value != value:  # noqa: PLR0124  the test for NaN
            return f"{subject} is not a number"
        if rule.minimum is not None and Decimal(value) < rule.minimum:
            return f"{subject} is below {rule.minimum}"
        return f"{subject} is above {rule.maximum}"

    yield from _found("range", rule.property, positions(outside), describe)


def _integer_bounds(rule: RangeRule, smallest: int, greatest: int) -> tuple[int | None, int | None]:
    """Bounds as integers of the column's type; None where the type itself already keeps the bound."""
    low = None if rule.minimum is None else int(rule.minimum.to_integral_value(ROUND_CEILING))
    high = None if rule.maximum is None else int(rule.maximum.to_integral_value(ROUND_FLOOR))
    return (
        None if low is None or low <= smallest else min(low, greatest),
        None if high is None or high >= greatest else max(high, smallest),
    )


def _nothing_fits(rule: RangeRule, smallest: int, greatest: int) -> bool:
    above_type = rule.minimum is not None and rule.minimum > greatest
    below_type = rule.maximum is not None and rule.maximum < smallest
    return above_type or below_type


def _check(rows: pa.Table, table_type: TableType, rule: CheckRule) -> Iterator[Finding]:
    column = rows.column(rule.property)
    missed = pc.invert(pc.match_substring_regex(column, rule.pattern))

    def describe(row: int) -> str:
        value = column[row].as_py()
        return f"{table_type.name}.{rule.property}: '{value}' does not match {rule.pattern}"

    yield from _found("check", rule.property, positions(missed), describe)
