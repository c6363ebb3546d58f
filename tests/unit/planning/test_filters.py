"""Filters are printed from typed values: quoted, cast where the table format needs it, and joined."""

import datetime as dt

import lance
import pyarrow as pa
import pytest

from omnigraph.catalog.types import PropertyType, ScalarKind, arrow_type
from omnigraph.planning.filters import (
    ALWAYS,
    NEVER,
    HasValue,
    InSet,
    Some,
    both,
    every,
    filter_text,
    has_text,
    some,
)


def test_texts_are_quoted_and_printed_once() -> None:
    assert filter_text(has_text("name", ["it's", "a", "a"])) == "`name` IN ('it''s', 'a')"


def test_a_filter_that_is_there_already_is_joined_as_a_whole() -> None:
    one = filter_text(Some((has_text("src", ["a"]), has_text("dst", ["a"]))))
    other = filter_text(HasValue("since", wanted=True))
    assert both(None, other) == other
    assert both(one, other) == f"({one}) AND ({other})"


def test_constants_leave_a_formula() -> None:
    test = has_text("name", ["a"])
    assert every([test, ALWAYS]) == test
    assert every([test, NEVER]) == NEVER
    assert some([test, NEVER]) == test
    assert some([test, ALWAYS]) == ALWAYS


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (ScalarKind.STRING, ["", "it's", "`", "a\\b", "né"]),
        (ScalarKind.I32, [-(2**31), 0, 2**31 - 1]),
        (ScalarKind.I64, [-(2**63), 0, 2**63 - 1]),
        (ScalarKind.U32, [0, 2**32 - 1]),
        (ScalarKind.U64, [0, 2**63, 2**64 - 1]),
        (ScalarKind.F64, [-1.5, 1e300]),
        (ScalarKind.DATE, [dt.date(1, 1, 1), dt.date(2026, 6, 29)]),
        (ScalarKind.DATETIME, [dt.datetime(2026, 6, 29, 1, 2, 3, 4000, dt.UTC)]),
        (ScalarKind.BOOL, [True]),
    ],
)
def test_a_set_of_any_kind_finds_exactly_its_members(
    kind: ScalarKind, values: list[object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    stored = pa.array([*values, None], arrow_type(PropertyType(kind)))
    table = lance.write_dataset(
        pa.table({"odd name": stored}), str(tmp_path_factory.mktemp("filters") / "t.lance")
    )
    for value in values:
        one = filter_text(InSet("odd name", (value,), kind, wanted=True))
        assert table.to_table(filter=one).column(0).to_pylist() == [value]
    whole = InSet("odd name", tuple(values), kind, wanted=True)
    assert table.count_rows(filter_text(whole)) == len(values)
    assert table.count_rows(filter_text(InSet("odd name", tuple(values), kind, wanted=False))) == 0
