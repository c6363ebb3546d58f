"""Order, grouping and numbering of result rows, spelled out value by value."""

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphs
from omnigraph.catalog.types import PropertyType, ScalarKind
from omnigraph.core.errors import ResourceLimit
from omnigraph.engine.read import project
from omnigraph.engine.read.compare import Constant, as_array
from omnigraph.engine.read.encoded import encode
from omnigraph.engine.tables.images import TableImage

values = st.lists(st.one_of(st.none(), st.integers(-2, 2)), min_size=5, max_size=5)
texts = st.lists(st.one_of(st.none(), st.sampled_from(["", "a", "b"])), min_size=5, max_size=5)
ways = st.sampled_from(["ascending", "descending"])


@pytest.mark.slow
@given(values, ways, texts, ways)
def test_null_sorts_below_every_value_whatever_the_direction(first, one, second, two):
    columns = [(pa.array(first, pa.int32()), one), (pa.array(second, pa.string()), two)]
    order = project._sorted(columns, 5).tolist()
    expected = list(range(5))
    for items, way in ((second, two), (first, one)):
        expected.sort(
            key=lambda row: (items[row] is not None, items[row] or items[row]), reverse=way == "descending"
        )
    wanted = [(first[row], second[row]) for row in expected]
    assert [(first[row], second[row]) for row in order] == wanted


def test_without_keys_rows_stay_as_they_are() -> None:
    assert project._sorted([], 3).tolist() == [0, 1, 2]


@pytest.mark.slow
@given(values, st.lists(st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5])), min_size=5, max_size=5))
def test_rows_are_one_group_exactly_where_all_columns_are_equal(numbers, floats):
    codes = project._group_codes([pa.array(numbers, pa.int64()), pa.array(floats, pa.float64())])
    rows = list(zip(numbers, floats, strict=True))
    for a in range(5):
        for b in range(5):
            assert (codes[a] == codes[b]) == (rows[a] == rows[b])


@pytest.mark.slow
@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, 1), max_size=2)), min_size=4, max_size=4))
def test_lists_have_codes_too(lists):
    codes = project._codes(pa.array(lists, pa.list_(pa.int32())))
    for a in range(4):
        for b in range(4):
            assert (codes[a] == codes[b]) == (lists[a] == lists[b])


ELEMENTS = {
    pa.int32(): st.sampled_from([-300, -1, 0, 1, 300]),
    pa.float64(): st.sampled_from([-1.5, -0.0, 0.0, 2.5]),
    pa.string(): st.sampled_from(["", "a", "ab", "b", "é"]),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("ms", "UTC"): st.sampled_from(
        [dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (1, 1999)]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(ELEMENTS), ids=str)
@given(data=st.data())
def test_lists_break_ties_element_by_element(kind, data):
    elements = st.lists(ELEMENTS[kind], max_size=3)
    lists = data.draw(st.lists(st.one_of(st.none(), elements), max_size=6))
    # A slice, so that nothing is read at the place of another row.
    column = pa.array([[], None, *lists], pa.list_(kind)).slice(2)
    order = project._sorted(project._column_ties([column]), len(lists)).tolist()
    expected = sorted(lists, key=lambda items: (items is not None, items or []))
    assert [lists[row] for row in order] == expected


def test_vectors_break_ties_too() -> None:
    vectors = [[1.0, 2.0], None, [1.0, -2.0], [0.5, 9.0]]
    column = pa.array(vectors, pa.list_(pa.float32(), 2))
    order = project._sorted(project._column_ties([column]), 4).tolist()
    assert order == [1, 3, 2, 0]


@pytest.mark.slow
@given(st.lists(st.integers(0, 9), max_size=12), st.sampled_from([10, project.DENSE_CODES_MAX + 1]))
def test_groups_are_numbered_without_gaps_in_the_order_of_their_codes(items, width):
    dense, groups = project._dense(np.array(items, dtype=np.int64), width)
    ranks = {code: number for number, code in enumerate(sorted(set(items)))}
    assert dense.tolist() == [ranks[item] for item in items]
    assert groups == len(ranks)


@given(texts)
@pytest.mark.slow
def test_every_code_has_a_row_that_shows_it(items):
    codes = encode(pa.array(items, pa.string()))
    assert len(codes.codes) == len(items) + 1
    for ordinal, item in enumerate(items):
        sample = codes.samples[codes.codes[ordinal]]
        assert items[sample] == item
    null = codes.codes[-1]
    assert codes.samples[null] == (items.index(None) if None in items else -1)


SCHEMA = """
node Person { name: String @key  age: I32? }
node Paper { title: String @key  body: String?  year: I32? }
edge Read: Person -> Paper
"""
PEOPLE = [("ann", 30), ("bob", None), ("cat", 25), ("dan", 30)]
PAPERS = [("p", "same", 2001), ("q", None, 2002), ("r", "other", 2001)]


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    with graphs.make_graph(tmp_path_factory.mktemp("readers") / "g", SCHEMA) as made:
        lines = [f'insert Person {{ name: "{name}" age: {age or "null"} }}' for name, age in PEOPLE]
        for title, body, year in PAPERS:
            lines.append(f'insert Paper {{ title: "{title}" body: {json.dumps(body)} year: {year} }}')
        lines += [f'insert Read {{ from: "{n}", to: "{t}" }}' for n, _ in PEOPLE for t, _, _ in PAPERS]
        made.mutate(f"query seed() {{ {' '.join(lines)} }}")
        yield made


@pytest.fixture
def fetched(monkeypatch):
    """The most rows that were fetched of each column."""
    most: dict[str, int] = {}
    take = TableImage.take

    def counted(self, column, ordinals):
        most[column] = max(most.get(column, 0), len(ordinals))
        return take(self, column, ordinals)

    monkeypatch.setattr(TableImage, "take", counted)
    return most


def pairs(graph, tail):
    found = graph.query(f"query q() {{ match {{ $a: Person  $a read $b }} {tail} }}")
    return [tuple(row.values()) for row in found]


def test_what_no_order_needs_is_fetched_for_the_rows_that_stay(readers, fetched):
    found = pairs(readers, "return { $b.body, $a.name } order { $a.age desc, $b.year } limit 2 offset 1")
    assert found == [("other", "ann"), ("same", "dan")]
    assert fetched["body"] == fetched["name"] == 2


@pytest.mark.parametrize("by", ["$b.body", "b"])
@pytest.mark.parametrize("way", ["asc", "desc"])
def test_a_text_that_many_rows_share_is_fetched_once_to_order_them(readers, fetched, by, way):
    found = pairs(readers, f"return {{ $b.body as b, $a.name, $b.title }} order {{ {by} {way} }} limit 5")
    rows = [(body, name, title) for name, _ in PEOPLE for title, body, _ in PAPERS]
    # Sorted by the ids, which are the keys, and then stably by the text.
    expected = sorted(rows, key=lambda row: row[1:])
    expected.sort(key=lambda row: (row[0] is not None, row[0] or ""), reverse=way == "desc")
    assert found == expected[:5]
    assert max(fetched["body"], fetched["id"]) == 5


def test_an_order_column_that_is_no_property_is_made_once(readers):
    found = pairs(readers, "return { $a as who, $b.title } order { who desc } limit 2")
    assert found == [("dan", "p"), ("dan", "q")]


def test_an_absent_text_sorts_below_every_other(readers):
    text = """query q() {
        match { $a: Person  $c: Person  maybe { $a read $b  $a.age = 25 } }
        return { $a.name, $b.body } order { $b.body desc, $a.name } limit 14 offset 6
    }"""
    found = [tuple(row.values()) for row in readers.query(text)]
    names = ["ann"] * 4 + ["bob"] * 4 + ["cat"] * 4 + ["dan"] * 4
    absent = [(name, None) for name in names]
    assert found == ([("cat", "same")] * 4 + [("cat", "other")] * 4 + absent)[6:20]


def test_a_text_that_many_rows_share_is_tested_once(readers, fetched):
    condition = '$b.body contains "e"  ["same", "none"] contains $b.body'
    text = f"query q() {{ match {{ $a: Person  maybe {{ $a read $b }}  {condition} }} return {{ $a.name }} }}"
    assert sorted(row["a.name"] for row in readers.query(text)) == ["ann", "bob", "cat", "dan"]
    assert fetched["body"] <= len(PAPERS)


@pytest.mark.parametrize(
    "query",
    [
        "match { $a: Person  $a read $b } return { $a.name, $b.body }",
        "match { $a: Person  $a read $b } return { $a.name, min($b.body) as m }",
        "match { $a: Person  $a read $b  $b.body != $a.name } return { $a.name }",
    ],
)
def test_values_too_large_for_one_array_are_refused(readers, monkeypatch, query):
    take = TableImage._take

    def overflows(self, column, ordinals):
        if column == "body" and len(ordinals) > len(PAPERS):
            raise pa.ArrowInvalid("Take operation overflowed binary array capacity")
        return take(self, column, ordinals)

    monkeypatch.setattr(TableImage, "_take", overflows)
    monkeypatch.setattr(project, "FEW_ROWS", 0)
    with pytest.raises(ResourceLimit, match="the values of 'body'") as caught:
        readers.query(f"query q() {{ {query} }}")
    assert caught.value.actual > caught.value.limit == 2**31 - 1


def test_a_constant_too_large_for_one_array_is_refused() -> None:
    text = Constant("x" * 1024, PropertyType(ScalarKind.STRING))
    assert len(as_array(text, 3)) == 3
    with pytest.raises(ResourceLimit, match="a constant on every row"):
        as_array(text, 2**21)
