"""The predicates that mutations, merges and loads share, against rules written out one row at a time."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.catalog.build import compile_schema
from omnigraph.engine.write import rules

CATALOG = compile_schema(
    """
node P { k: String @key  d: Date?  t: DateTime?  @unique(d, t) }
edge Some: P -> P @card(1..2)
edge Any: P -> P
"""
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(*[st.one_of(st.none(), st.sampled_from(["", "a", "b", "ab"]))] * 3), min_size=1))
def test_tuple_codes_are_equal_for_equal_tuples_only(rows) -> None:
    for members in (1, 2, 3):
        texts = [pa.array([row[n] for row in rows], pa.string()) for n in range(members)]
        codes = rules.tuple_codes(texts)
        for i, left in enumerate(row[:members] for row in rows):
            assert (codes[i] == -1) == (None in left)
            for j, right in enumerate(row[:members] for row in rows):
                if None not in left and None not in right:
                    assert (codes[i] == codes[j]) == (left == right)


rows = st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 2), st.integers(0, 1000)), max_size=12)


@settings(deadline=None, max_examples=300)
@given(rows)
@pytest.mark.slow
def test_rows_share_a_tuple_with_each_other_or_with_a_committed_row(rows) -> None:
    """`held` may differ between rows of one tuple: a record never conflicts with the row it replaces."""
    ranks = [rank * 100 + at for at, (_, _, rank) in enumerate(rows)]
    codes, held = [code for code, _, _ in rows], [holder for _, holder, _ in rows]
    found = rules.shared_tuples(
        np.array(codes, np.int64), np.array(held, np.int64), np.array(ranks, np.int64)
    )
    by_rank = sorted(range(len(rows)), key=lambda row: ranks[row])
    broken = {
        code
        for code in set(codes) - {-1}
        if codes.count(code) > 1 or any(held[row] >= 0 for row in by_rank if codes[row] == code)
    }
    assert found.rows.tolist() == [row for row in by_rank if codes[row] in broken]
    groups = {code: [row for row in by_rank if codes[row] == code] for code in broken}
    heads = sorted((group[0] for group in groups.values()), key=lambda row: ranks[row])
    assert found.heads.tolist() == heads
    for head, other, holder in zip(heads, found.others.tolist(), found.holders.tolist(), strict=True):
        group = groups[codes[head]]
        assert other == (group[1] if len(group) > 1 else -1)
        assert holder == next((held[row] for row in group if held[row] >= 0), -1)


@pytest.mark.parametrize("hashed_from", [0, 1 << 30])
def test_membership_is_the_same_for_few_and_many_texts(
    hashed_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "HASHED_ROWS_MIN", hashed_from)
    values, among = pa.array(["a", "b", "", "b"]), pa.array(["b", "c"])
    assert rules.are_among(values, among).tolist() == [False, True, False, True]
    assert rules.are_among(values, among.slice(0, 0)).tolist() == [False] * 4
    assert rules.are_among(values.slice(0, 0), among).tolist() == []


def test_counts_and_their_bounds() -> None:
    some = CATALOG.edges["Some"]
    counts = rules.count_each(pa.array(["a", "b", "c"]), pa.array(["c", "a", "c", "x", "c"]))
    assert counts.tolist() == [1, 0, 3]
    assert rules.out_of_bounds(some, counts).tolist() == [False, True, True]
    assert [rules.wrong_count(some, "s", count).message for count in (0, 1, 3)] == [
        "Some: source 's' would have 0 edges (at least 1)",
        "Some: source 's' would have 1 edge (at least 1)",
        "Some: source 's' would have 3 edges (at most 2)",
    ]
    assert [rules.is_bounded(each) for each in (some, CATALOG.edges["Any"], CATALOG.nodes["P"])] == [
        True, False, False,
    ]  # fmt: skip


def test_values_are_written_as_people_write_them() -> None:
    node = CATALOG.nodes["P"]
    found = rules.shared_value(node, ("d", "t"), ["-1", "-1"], ["b", "a"], "b")
    assert found.message == "P.(d, t): ('1969-12-31', '1969-12-31T23:59:59.999Z') is held by 'a' and 'b'"
    assert (found.rule, found.entity_kind, found.entity_id, found.property) == ("unique", "node", "b", "d, t")
