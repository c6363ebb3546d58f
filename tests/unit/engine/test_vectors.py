"""The nearest vectors against their definition: any size of number, ties, gaps, parts."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.engine.search.vectors import (
    build_vectors,
    distances_at,
    exact_distances,
    join_vectors,
    nearest_rows,
)

WIDTH = 3
numbers = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 1e-30, 1e15, 3e20, 1.0000001, 1.0000002]),
    st.floats(-1e6, 1e6, width=32),
)
vectors = st.lists(numbers, min_size=WIDTH, max_size=WIDTH)
columns = st.lists(st.one_of(st.none(), vectors), min_size=1, max_size=12)


def column_of(rows):
    return pa.array(rows, pa.list_(pa.float32(), WIDTH))


def truth(rows, query, depth, candidates):
    """Distance and position of the best candidates, the last one's equals included."""
    known = [
        (float(exact_distances(np.array([rows[c]], np.float32), query)[0]), position)
        for position, c in enumerate(candidates)
        if c >= 0 and rows[c] is not None
    ]
    known.sort()
    if len(known) > depth:
        known = [each for each in known if each[0] <= known[depth - 1][0]] if depth else []
    return sorted((position, distance) for distance, position in known)


@given(columns, vectors, st.integers(0, 6), st.data())
@pytest.mark.slow
def test_the_nearest_are_those_of_the_definition(rows, query, depth, data):
    wanted = np.array(query, np.float32)
    cut = data.draw(st.integers(0, len(rows)))
    ordinals = np.arange(len(rows))
    left = build_vectors(column_of(rows[:cut]), ordinals[:cut], 0, cut)
    right = build_vectors(column_of(rows[cut:]), ordinals[cut:], cut, len(rows) - cut)
    for segments in ([left, right], [join_vectors(left, right)]):
        places, distances = nearest_rows(segments, None, len(rows), wanted, depth)
        expected = truth(rows, wanted, depth, range(len(rows)))
        assert list(zip(places.tolist(), distances.tolist(), strict=True)) == expected
        candidates = data.draw(st.lists(st.integers(-1, len(rows) - 1), max_size=15))
        places, distances = nearest_rows(segments, np.array(candidates, np.int64), len(rows), wanted, depth)
        expected = truth(rows, wanted, depth, candidates)
        assert list(zip(places.tolist(), distances.tolist(), strict=True)) == expected


def test_rows_that_are_not_shown_have_no_vector():
    segment = build_vectors(column_of([[1, 0, 0], None, [0, 2, 0]]), np.array([4, 5, 7]), 3, 6)
    assert segment.absent.tolist() == [0, 3, 5]
    found = distances_at([segment], np.array([-1, 3, 4, 5, 6, 7, 8, 9]), np.zeros(3, np.float32))
    assert [None if np.isnan(each) else each for each in found] == [
        None,
        None,
        1.0,
        None,
        None,
        2.0,
        None,
        None,
    ]
    assert nearest_rows([segment], None, 9, np.zeros(3, np.float32), 5)[0].tolist() == [4, 7]


def test_many_near_ties_are_told_apart():
    """Distances that differ only beyond single precision."""
    base = np.full((5000, 64), 1000.0, np.float32)
    base[:, 0] += np.arange(5000, dtype=np.float32) / 8192  # a step of single precision at 1000
    query = np.zeros(64, np.float32)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(base.ravel()), 64)
    segment = build_vectors(flat, np.arange(5000), 0, 5000)
    places, found = nearest_rows([segment], None, 5000, query, 7)
    exact = exact_distances(base, query)
    assert places.tolist() == np.flatnonzero(exact <= np.sort(exact)[6]).tolist()
    assert found.tolist() == exact[places].tolist()
