"""The hop kernels against the definitions of the query language, spelled out node by node."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.arrays.pair_filter import PairFilter
from omnigraph.engine.edges.traverse import (
    connected,
    expand,
    expand_edges,
    incidence,
    intersect,
    neighbours,
    reach,
)

NODES = 6
edge_lists = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=14)
starts = st.lists(st.integers(-1, NODES - 1), max_size=5)
pair_lists = st.lists(st.tuples(st.integers(-1, NODES - 1), st.integers(-1, NODES - 1)), max_size=8)


def unlimited(count: int) -> None:
    assert count >= 0


def columns(edges):
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def reachable(edges, start, lo, hi):
    """Section 7.4 of the query language, one node at a time."""
    visited, front, emitted = {start}, {start}, set()
    for hop in range(1, hi + 1):
        fresh = {b for a, b in edges if a in front} - visited
        loops = {a for a, b in edges if a == b and a in front}
        if lo <= hop:
            emitted |= fresh | loops
        visited |= fresh
        front = fresh
    return emitted


@pytest.mark.slow
@given(edge_lists, starts)
def test_each_distinct_neighbour_comes_once_a_row(edges, nodes):
    rows, tails = expand(neighbours(*columns(edges), NODES), np.array(nodes, dtype=np.int64), unlimited)
    expected = sorted((r, b) for r, n in enumerate(nodes) for b in {b for a, b in edges if a == n})
    assert sorted(zip(rows.tolist(), tails.tolist(), strict=True)) == expected


@pytest.mark.slow
@given(edge_lists, starts)
def test_bound_hops_keep_parallel_edges(edges, nodes):
    heads, tails = columns(edges)
    index = incidence(heads, tails, np.arange(len(edges), dtype=np.int64), NODES)
    got = zip(
        *(c.tolist() for c in expand_edges(index, np.array(nodes, dtype=np.int64), unlimited)), strict=True
    )
    expected = sorted((r, b, e) for r, n in enumerate(nodes) for e, (a, b) in enumerate(edges) if a == n)
    assert sorted(got) == expected


@pytest.mark.slow
@given(edge_lists, pair_lists)
def test_connected_asks_for_the_pair_itself(edges, pairs):
    heads, tails = columns(pairs)
    got = connected(neighbours(*columns(edges), NODES), heads, tails)
    assert got.tolist() == [pair in set(edges) for pair in pairs]


@pytest.mark.slow
@given(edge_lists, pair_lists, st.booleans())
def test_a_filter_of_pairs_spares_the_search_and_changes_no_answer(edges, pairs, each_tail_once):
    """Where no node has two edges to it, the filter alone knows the answer."""
    known = {b: (a, b) for a, b in edges}.values() if each_tail_once else set(edges)
    heads, tails = columns(sorted(known))
    filtered = PairFilter.of(heads, tails, NODES)
    assert filtered.is_exact or not each_tail_once
    got = connected(neighbours(heads, tails, NODES), *columns(pairs), filtered)
    assert got.tolist() == [pair in known for pair in pairs]


@pytest.mark.slow
@given(edge_lists, edge_lists, pair_lists)
def test_an_intersection_has_the_nodes_that_all_heads_lead_to(first, second, rows):
    """Whichever arm leads, for all rows or for each by itself, in the order of the rows."""
    indexes = [neighbours(*columns(edges), NODES) for edges in (first, second)]
    single = next((arm for arm, index in enumerate(indexes) if np.diff(index.offsets).max() <= 1), None)
    at, found = intersect(indexes, columns(rows), unlimited, lambda _: None)
    led = intersect(indexes, columns(rows), unlimited, lambda _: None, single)
    assert [each.tolist() for each in led] == [at.tolist(), found.tolist()]
    expected = [
        (row, node)
        for row, (a, b) in enumerate(rows)
        for node in range(NODES)
        if (a, node) in first and (b, node) in second
    ]
    assert list(zip(at.tolist(), found.tolist(), strict=True)) == expected


@pytest.mark.slow
@given(edge_lists, starts, st.integers(1, 4), st.integers(0, 3))
def test_reach_is_shortest_distance_with_self_loops(edges, nodes, lo, more):
    hi = lo + more
    rows, ends = reach(neighbours(*columns(edges), NODES), np.array(nodes, dtype=np.int64), lo, hi, unlimited)
    expected = sorted((r, b) for r, n in enumerate(nodes) if n >= 0 for b in reachable(edges, n, lo, hi))
    assert sorted(zip(rows.tolist(), ends.tolist(), strict=True)) == expected


@given(edge_lists, starts, st.integers(1, 4), st.integers(0, 3))
def test_a_search_from_the_other_end_finds_the_same_pairs(edges, nodes, lo, more):
    hi = lo + more
    heads, tails = columns(edges)
    index = neighbours(tails, heads, NODES)
    rows, found = reach(index, np.array(nodes, dtype=np.int64), lo, hi, unlimited, backward=True)
    expected = sorted(
        (row, start)
        for row, end in enumerate(nodes)
        for start in range(NODES)
        if end in reachable(edges, start, lo, hi)
    )
    assert sorted(zip(rows.tolist(), found.tolist(), strict=True)) == expected


def test_the_claim_is_asked_before_pairs_are_made():
    class TooMuch(Exception):
        pass

    def at_most_three(count: int) -> None:
        if count > 3:
            raise TooMuch

    index = neighbours(np.zeros(4, dtype=np.int64), np.arange(4, dtype=np.int64), 4)
    with pytest.raises(TooMuch):
        expand(index, np.zeros(2, dtype=np.int64), at_most_three)
