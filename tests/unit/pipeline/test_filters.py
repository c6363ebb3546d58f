"""Filters that Spark hands over: taken only when they mean the same, exact with nulls."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from omnigraph.catalog.build import compile_schema
from omnigraph.pipeline.output.datasource import formula_of
from omnigraph.planning.predicate import evaluate_formula

CATALOG = compile_schema(
    """
node T {
  k: String @key
  s: String?  b: Bool?  i: I32?  u: U32?  w: U64?  f: F32?  g: F64?  d: Date?  t: DateTime?
  raw: Blob?  tags: [String]?  v: Vector(2)?
}
edge E: T -> T
"""
)
OWNER = CATALOG.nodes["T"]
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
VALUES = {
    "s": [None, "", "a", "ab", "b"],
    "b": [None, True, False, True, None],
    "i": [None, -(2**31), 0, 5, 2**31 - 1],
    "u": [None, 0, 5, 2**31, 2**32 - 1],
    "w": [None, 0, 5, 2**63, 2**64 - 1],
    "f": [None, -1.5, 0.5, 1.5, 2.5],
    "g": [None, -1.5, -0.0, 0.1, 1e300],
    "d": [None, *(dt.date(2024, 1, day) for day in (1, 2, 3, 4))],
    "t": [None, *(NOON + dt.timedelta(milliseconds=n) for n in range(4))],
    "raw": [None, b"", b"a", b"b", b"c"],
    "tags": [None, [], ["a"], ["b"], ["a", "b"]],
    "v": [None, [0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]],
}
ROWS = pa.table(
    {
        "id": ["r0", "r1", "r2", "r3", "r4"],
        "k": ["r0", "r1", "r2", "r3", "r4"],
        **{name: pa.array(values, OWNER.arrow_schema.field(name).type) for name, values in VALUES.items()},
    }
)


def selected(test: Filter) -> list[int] | None:
    formula = formula_of(test, OWNER)
    if formula is None:
        return None
    return [number for number, holds in enumerate(evaluate_formula(formula, ROWS).to_pylist()) if holds]


def oracle(test: Filter, row: int) -> bool | None:
    """Three-valued, over Python values."""
    if isinstance(test, Not):
        inner = oracle(test.child, row)
        return None if inner is None else not inner
    value = VALUES[test.attribute[0]][row]
    if isinstance(test, IsNull | IsNotNull):
        return (value is None) == isinstance(test, IsNull)
    if isinstance(test, EqualNullSafe):
        return value == test.value
    if value is None or test.value is None:
        return None
    if isinstance(test, In):
        return True if value in test.value else (None if None in test.value else False)
    compare = {
        EqualTo: value.__eq__, GreaterThan: value.__gt__, GreaterThanOrEqual: value.__ge__, LessThan: value.__lt__,
        LessThanOrEqual: value.__le__,
    }  # fmt: skip
    if type(test) in compare:
        return compare[type(test)](int(test.value) if isinstance(test.value, Decimal) else test.value)
    if isinstance(test, StringEndsWith):
        return value.endswith(test.value)
    return value.startswith(test.value) if isinstance(test, StringStartsWith) else test.value in value


LITERALS = {
    "s": ["", "a", "aa", "\u00e9"],
    "b": [True, False],
    "i": [-(2**31), 0, 5, 7],
    "u": [-1, 0, 5, 2**32 - 1, 2**40],
    "w": [Decimal(-1), Decimal(0), Decimal(5), Decimal(2**64 - 1), Decimal(2**65)],
    "f": [-1.5, 0.5, 9.5],
    "g": [-1.5, 0.1, 1e300],
    "d": [dt.date(2024, 1, 2), dt.date(1999, 1, 1)],
    "t": [NOON, NOON + dt.timedelta(milliseconds=2), NOON.astimezone(dt.timezone(dt.timedelta(hours=5)))],
}


@pytest.mark.parametrize("name", LITERALS)
def test_taken_filters_are_exact(name: str) -> None:
    path = (name,)
    tests: list[Filter] = [IsNull(path), IsNotNull(path), EqualTo(path, None), EqualNullSafe(path, None)]
    kinds = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
    if name == "s":
        kinds += [StringStartsWith, StringEndsWith, StringContains]
    if name == "b":
        kinds = [EqualTo, EqualNullSafe]
    tests += [kind(path, literal) for kind in kinds for literal in LITERALS[name]]
    tests += [In(path, tuple(LITERALS[name])), In(path, (LITERALS[name][0], None)), In(path, ())]
    for test in tests:
        for each in (test, Not(test), Not(Not(test))):
            wanted = [row for row in range(5) if oracle(each, row) is True]
            assert selected(each) == wanted, each


@pytest.mark.parametrize(
    "test",
    [
        EqualTo(("g",), 0.0),
        EqualTo(("g",), -0.0),
        In(("g",), (0.0, 1.5)),
        LessThan(("g",), float("nan")),
        LessThan(("g",), float("inf")),
        EqualTo(("f",), 0.1),
        EqualTo(("i",), True),
        EqualTo(("w",), Decimal("2.5")),
        EqualTo(("d",), NOON),
        EqualTo(("t",), NOON.replace(tzinfo=None)),
        GreaterThan(("t",), NOON + dt.timedelta(microseconds=1)),
        EqualTo(("s",), b"a"),
        EqualTo(("raw",), b"a"),
        EqualTo(("tags",), ("a",)),
        EqualTo(("v", "x"), 1.0),
        EqualTo(("hue",), 1),
        StringEndsWith(("tags",), "a"),
        StringContains(("tags",), "a"),
    ],
    ids=str,
)
def test_what_may_differ_stays_with_spark(test: Filter) -> None:
    assert formula_of(test, OWNER) is None
    assert formula_of(Not(test), OWNER) is None


def test_nulls_of_every_column_and_the_ends_of_edges() -> None:
    for name in ("raw", "tags", "v"):
        assert selected(IsNull((name,))) == [0]
    assert selected(GreaterThan(("id",), "r2")) == [3, 4]
    edge = CATALOG.edges["E"]
    assert formula_of(EqualTo(("src",), "a"), edge) is not None
    assert formula_of(EqualTo(("from",), "a"), edge) is None
