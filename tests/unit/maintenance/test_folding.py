"""Which fragments are folded, and how often a row is rewritten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.core.limits import FOLDED_BYTES_MAX, FOLDED_ROWS_MAX, SMALL_FRAGMENTS_MAX
from omnigraph.maintenance.folding import foldable
from omnigraph.storage.handles import Fragment

FEW = SMALL_FRAGMENTS_MAX


def fragments(*rows, size=100, dead=0):
    return [
        Fragment(number, (f"f{number}",), live + dead, "d" if dead else None, dead, size)
        for number, live in enumerate(rows)
    ]


def test_nothing_is_folded_while_no_size_has_enough():
    assert foldable([]) == ()
    assert foldable(fragments(*[1] * (FEW - 1), *[FEW] * (FEW - 2), 10**6)) == ()


def test_enough_of_one_size_are_folded_in_row_order():
    assert foldable(fragments(10**6, *[1] * FEW, 500)) == tuple(range(1, FEW + 1))


def test_what_is_folded_counts_as_one_of_the_next_size():
    together = fragments(*[FEW] * (FEW - 1), *[1] * FEW)
    assert foldable(together) == tuple(range(2 * FEW - 1))
    assert foldable(fragments(*[FEW] * (FEW - 2), *[1] * FEW)) == tuple(range(FEW - 2, 2 * FEW - 2))


def test_dead_rows_do_not_make_a_fragment_large():
    assert foldable(fragments(*[1] * FEW, dead=5000)) == tuple(range(FEW))


def test_many_rows_or_bytes_are_left_alone():
    assert foldable(fragments(*[FOLDED_ROWS_MAX // FEW] * FEW)) == tuple(range(FEW))
    assert foldable(fragments(*[FOLDED_ROWS_MAX // FEW + 1] * FEW)) == ()
    assert foldable(fragments(*[1] * FEW, size=FOLDED_BYTES_MAX // FEW)) == tuple(range(FEW))
    assert foldable(fragments(*[1] * FEW, size=FOLDED_BYTES_MAX // FEW + 1)) == ()


@pytest.mark.slow
@given(st.lists(st.integers(1, 40), min_size=200, max_size=2000))
def test_fragments_stay_few_and_a_row_is_rewritten_once_for_each_size(writes):
    present, rewritten, number = [], 0, 0
    for rows in writes:
        present.append(Fragment(number, (str(number),), rows, None, 0, 10 * rows))
        number += 1
        chosen = set(foldable(present))
        if chosen:
            folded = [info for info in present if info.id in chosen]
            live = sum(info.live_rows for info in folded)
            rewritten += live
            kept = [info for info in present if info.id not in chosen]
            present = [*kept, Fragment(number, (str(number),), live, None, 0, 10 * live)]
            number += 1
    assert sum(info.live_rows for info in present) == sum(writes)
    assert len(present) <= 4 * FEW
    assert rewritten <= 3 * sum(writes)
