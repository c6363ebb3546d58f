"""Hops of which only the ends, or only the spans, are wanted agree with hops that are made."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.engine.edges import traverse
from omnigraph.engine.edges.traverse import expand, neighbours, reached, spans

NODES = 12
edge_lists = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=40)
starts = st.one_of(
    st.lists(st.integers(-1, NODES - 1), max_size=14),
    # Nodes that follow each other: their entries are one piece of the index.
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES)).map(
        lambda ends: list(range(min(ends), max(ends)))
    ),
)


def index_of(edges):
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return neighbours(pairs[:, 0], pairs[:, 1], NODES)


class Claims:
    def __init__(self) -> None:
        self.most = 0

    def __call__(self, pairs: int) -> None:
        self.most = max(self.most, pairs)


@pytest.mark.parametrize("few", [0, traverse.FEW_NODES], ids=["gathered", "sliced"])
@given(edge_lists, starts)
def test_ends_alone_are_those_of_the_pairs(few, edges, nodes):
    index, claims = index_of(edges), Claims()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traverse, "FEW_NODES", few)
        rows, tails = expand(index, np.array(nodes, dtype=np.int64), Claims())
        assert reached(index, np.array(nodes, dtype=np.int64), claims).tolist() == tails.tolist()
    expected = [(r, b) for r, n in enumerate(nodes) for b in sorted({b for a, b in edges if a == n})]
    assert list(zip(rows.tolist(), tails.tolist(), strict=True)) == expected
    assert claims.most == len(expected)


@pytest.mark.slow
@given(edge_lists, starts)
def test_spans_hold_the_entries_of_each_node_in_turn(edges, nodes):
    index, claims = index_of(edges), Claims()
    lengths, where = spans(index.offsets, np.array(nodes, dtype=np.int64), claims)
    rows, tails = expand(index, np.array(nodes, dtype=np.int64), Claims())
    assert index.tails[where].tolist() == tails.tolist()
    assert np.repeat(np.arange(len(nodes)), lengths).tolist() == rows.tolist()
    assert claims.most == len(tails)
