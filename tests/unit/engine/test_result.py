"""Rows by number, by slice and by the name of a column."""

import pytest

import graphs

SCHEMA = "node P { k: String @key  n: I32?  d: Date? }"
ALL = "query q() { match { $p: P } return { $p.k, $p.n, $p.d as day } order { $p.k } }"


@pytest.fixture
def graph(tmp_path):
    with graphs.make_graph(tmp_path / "g", SCHEMA) as made:
        lines = [f'insert P {{ k: "k{n:02}", n: {n}, d: date("2026-01-{n + 1:02}") }}' for n in range(9)]
        graphs.run(made, " ".join([*lines, 'insert P { k: "none" }']))
        yield made


@pytest.mark.parametrize("limit", ["", " limit 2"])
def test_a_column_is_found_by_its_name(graph, limit):
    """Of many rows, which are arrays, and of few, which are Python values."""
    rows = graph.query(ALL.replace(" } }", " }" + limit + " }"))
    dicts = rows.to_dicts()
    for name in rows.columns:
        assert rows[name] == [row[name] for row in dicts]
    few = graph.query('query q() { match { $p: P { k: "k03" } } return { $p.k, $p.n } }')
    assert (few["p.k"], few["p.n"], few[0]) == (["k03"], [3], {"p.k": "k03", "p.n": 3})


def test_of_two_columns_of_one_name_the_later_counts(graph):
    rows = graph.query('query q() { match { $p: P { k: "k03" } } return { $p.k as x, $p.n as x } }')
    assert (rows[0], rows["x"]) == ({"x": 3}, [3])


def test_a_column_that_is_not_there_is_a_key_error_that_names_the_others(graph):
    rows = graph.query(ALL)
    with pytest.raises(KeyError, match=r"there is no column 'p.x'; the columns are p.k, p.n, day"):
        rows["p.x"]
    with pytest.raises(IndexError):
        rows[10]


def test_a_changed_list_of_values_does_not_change_the_rows(graph):
    few = graph.query('query q() { match { $p: P { k: "k03" } } return { $p.k } }')
    few["p.k"].clear()
    assert few["p.k"] == ["k03"]
