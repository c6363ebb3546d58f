"""Which small fragments of a table are worth being written as one.

Every write leaves a fragment, and each fragment makes every later commit, search and open of the table a
little dearer. Fragments of about one size are folded together, like the tiers of a log-structured store: a
row is rewritten once for each tier it rises, so the work follows the rows written, not the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.core.limits import FOLDED_BYTES_MAX, FOLDED_ROWS_MAX, SMALL_FRAGMENTS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.storage.handles import Fragment


def foldable(fragments: Sequence[Fragment]) -> tuple[int, ...]:
    """The fragments to be written as one, in row order; none while no size has enough of them.

    What is folded of one size counts as one fragment of the next.
    """
    chosen: list[Fragment] = []
    tiers: dict[int, list[Fragment]] = {}
    for info in fragments:
        tiers.setdefault(_tier(info.live_rows), []).append(info)
    for tier in sorted(tiers):
        carried = 1 if chosen and _tier(_rows(chosen)) == tier else 0
        together = [*chosen, *tiers[tier]]
        if len(tiers[tier]) + carried >= SMALL_FRAGMENTS_MAX and _is_small(together):
            chosen = together
    numbers = {info.id for info in chosen}
    return tuple(info.id for info in fragments if info.id in numbers)


def _tier(rows: int) -> int:
    tier = 0
    while rows >= SMALL_FRAGMENTS_MAX:
        rows //= SMALL_FRAGMENTS_MAX
        tier += 1
    return tier


def _rows(fragments: Sequence[Fragment]) -> int:
    return sum(info.live_rows for info in fragments)


def _is_small(fragments: Sequence[Fragment]) -> bool:
    stored = sum(info.bytes for info in fragments)
    return _rows(fragments) <= FOLDED_ROWS_MAX and stored <= FOLDED_BYTES_MAX
