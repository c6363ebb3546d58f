"""Working rows in pieces: what they take, where they are cut, and that the answer is that of all at once."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphs
from omnigraph.engine.read import frame, match, pieces, project, reading
from omnigraph.engine.tables.columns import bytes_at

CHUNKS = [
    pa.array(["", "abc", None, "äö"]),
    pa.array([b"", b"abcd", None, b"x"]),
    pa.array([[1, 2], [], None, [3]], pa.list_(pa.int32())),
    pa.array([["a", "bc"], [], None, ["defg", None]], pa.list_(pa.string())),
    pa.array([[1.0, 2.0], None, [0.5, 0.5], [0.0, 1.0]], pa.list_(pa.float32(), 2)),
    pa.array([1, None, 3, 4], pa.int64()),
    pa.nulls(4, pa.string()),
]
SIZES = [
    [4, 7, 4, 8],
    [4, 8, 4, 5],
    [12, 4, 4, 8],
    [15, 4, 4, 16],
    [8, 8, 8, 8],
    [8, 8, 8, 8],
    [4, 4, 4, 4],
]


@pytest.mark.parametrize(("chunk", "sizes"), list(zip(CHUNKS, SIZES, strict=True)))
def test_values_are_counted_with_what_they_hold(chunk, sizes):
    places = np.array([3, 0, 1, 2, 1])
    assert bytes_at(chunk, places).tolist() == [sizes[place] for place in places]
    assert bytes_at(chunk.slice(1, 2), np.array([1, 0])).tolist() == [sizes[2], sizes[1]]
    assert bytes_at(chunk.slice(0, 0), np.empty(0, np.int64)).tolist() == []


@pytest.mark.slow
@given(st.lists(st.integers(0, 9), max_size=20), st.integers(0, 30))
def test_rows_are_cut_within_the_bound_or_stand_alone(sizes, bound):
    cuts = list(pieces._cuts(np.array(sizes, dtype=np.int64), bound))
    assert [place for first, last, _ in cuts for place in range(first, last)] == list(range(len(sizes)))
    for first, last, size in cuts:
        assert size == sum(sizes[first:last])
        assert size <= bound or last == first + 1


@pytest.mark.slow
@given(st.lists(st.tuples(st.none() | st.integers(0, 3), st.booleans()), max_size=40), st.integers(0, 9))
def test_the_first_rows_of_each_piece_hold_the_first_of_all(rows, first):
    columns = [
        (pa.array([number for number, _ in rows], pa.int32()), "descending"),
        (pa.array([flag for _, flag in rows], pa.bool_()), "ascending"),
    ]
    whole = project._sorted(columns, len(rows)).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(project, "PIECE_ROWS", 4 * max(first, 1))
        assert project._sorted(columns, len(rows), first).tolist()[:first] == whole[:first]


SCHEMA = """
node N { k: String @key  n: I32?  s: String?  d: Date?  t: [String]? }
edge E: N -> N
"""
BODIES = [
    "match { $a: N $b: N $a.s = $b.s $a.n < $b.n } return { $a.k, $b.k }",
    "match { $a: N $b: N $a.n < $b.n $c: N { n: 3 } $c.s != $b.s } return { $a.k, $b.k, $c.k }",
    'match { $a: N $b: N $b.s = "s1" $a.d <= $b.d } return { $a.k, $b.k }',
    "match { $a: N $b: N $a.t contains $b.s } return { $a.k, $b.k }",
    "match { $a: N maybe { $b: N $b.s = $a.s $b.n > $a.n } } return { $a.k, $b.k }",
    "match { $a: N not { $b: N $b.s = $a.s $b.n > $a.n } } return { $a.k }",
    "match { $a: N maybe { $a e $b } $c: N $c.s != $b.s } return { $a.k, $b.k, $c.k }",
    "match { $a: N $b: N } return { $a.s, count($b) as c, sum($b.n) as n, min($b.s) as m, max($b.d) as d }",
    "match { $a: N $b: N } return { $a.k, $b.s } order { $b.s desc, $a.n asc } limit 11",
    "match { $a: N $b: N } return distinct { $a.s, $b.n } order { $b.n }",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    with graphs.make_graph(tmp_path_factory.mktemp("pieces") / "g", SCHEMA) as graph:
        for begin in (0, 6):
            rows = [
                f'insert N {{ k: "k{n}", s: "s{n % 3}", n: {n % 5}, t: ["s{n % 2}"],'
                f' d: date("{dt.date(2026, 1, n + 1)}") }}'
                for n in range(begin, begin + 6)
            ]
            graphs.run(graph, " ".join([*rows, f'insert N {{ k: "empty{begin}" }}']))
        graphs.run(graph, 'insert E { from: "k0", to: "k1" } insert E { from: "k0", to: "empty0" }')
        yield graph


@pytest.mark.parametrize("body", BODIES)
def test_a_query_in_pieces_gives_what_it_gives_at_once(small, body, monkeypatch):
    text = f"query q() {{ {body} }}"
    whole = small.query(text).to_arrow()
    monkeypatch.setattr(pieces, "UNMEASURED_ROWS_MAX", 2)
    monkeypatch.setattr(match, "FEW_ROWS", 2)
    monkeypatch.setattr(frame, "PRODUCT_ROWS", 5)
    monkeypatch.setattr(pieces, "PIECE_BYTES_MAX", 40)
    for module in (pieces, match, reading, project):
        monkeypatch.setattr(module, "PIECE_ROWS", 16 if module is project else 5)
    assert small.query(text).to_arrow().equals(whole)
    assert whole.num_rows
