"""Columns of Parquet files and frames in stored types: numbers of other widths."""

import random
from decimal import Decimal

import pyarrow as pa
import pytest

from omnigraph.catalog.build import compile_schema
from omnigraph.catalog.schema import Property
from omnigraph.pipeline.input.columns import stored_column

CATALOG = compile_schema(
    """node T { k: String @key  f: F64?  g: F32?  fs: [F64]?  v: Vector(2)?  ws: [U64]?  js: [I64]? }"""
)


def prop(name: str) -> Property:
    node = CATALOG.node("T")
    assert node is not None
    found = node.get(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["fs", "v"])
def test_a_list_of_large_integers_is_rounded_as_a_single_one_is(name: str) -> None:
    numbers = [2**53 + 1, -(2**62) - 3]
    converted = stored_column(pa.array([numbers, None]), prop(name))
    assert converted.refusals == ()
    single = stored_column(pa.array(numbers), prop("f" if name == "fs" else "g"))
    assert converted.column.to_pylist() == [single.column.to_pylist(), None]


@pytest.mark.parametrize(("digits", "scale"), [(10, 2), (18, 4), (20, 0), (38, 37), (38, 38), (20, -5)])
def test_a_decimal_becomes_the_nearest_number(digits: int, scale: int) -> None:
    chosen = random.Random(digits)
    values = [Decimal(chosen.randrange(-(10**digits) + 1, 10**digits)).scaleb(-scale) for _ in range(2_000)]
    column = pa.array([*values, None], pa.decimal128(digits, scale))
    nearest = [float(str(value)) for value in values]
    assert stored_column(column, prop("f")).column.to_pylist() == [*nearest, None]
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), column[:-1])
    assert stored_column(lists, prop("fs")).column.to_pylist() == [nearest]


def test_a_list_of_decimals_is_a_list_of_whole_numbers_where_they_are() -> None:
    values = [[Decimal(2**64 - 1), Decimal(0)], [], None]
    converted = stored_column(pa.array(values, pa.list_(pa.decimal128(20, 0))), prop("ws"))
    assert converted.column.to_pylist() == [[2**64 - 1, 0], [], None]
    assert converted.refusals == ()
    mixed = pa.array([[Decimal("1.00")], [Decimal("1.50")]], pa.list_(pa.decimal128(20, 2)))
    converted = stored_column(mixed, prop("js"))
    assert converted.column.to_pylist() == [[1], None]
    (refusal,) = converted.refusals
    assert refusal.rows.tolist() == [1]
    assert "1.50" in refusal.describe(1)
