"""Which small fragments of a table are worth being written as one.

Every write leaves a fragment, and each fragment makes every later commit, search and open of the table a
little dearer. Fragments of about one size are folded together, like the tiers of a log-structured store: a
row is rewritten once for each tier it rises, so the work follows the rows written, not the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.core.limits import (
    COMPACTED_ROWS_MAX,
    FOLDED_BYTES_MAX,
    FOLDED_ROWS_MAX,
    SMALL_FRAGMENTS_MAX,
    WORN_SHARE_MIN,
)

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


def compactable(fragments: Sequence[Fragment]) -> tuple[tuple[int, ...], ...]:
    """The groups of neighbours that an optimization writes as one fragment each, in row order.

    A group is filled as long as its rows fit into one file. A fragment alone is written again only when many
    of its rows are deleted. What comes out of a run has no group: two neighbours would not fit into one.
    """
    groups: list[list[Fragment]] = [[]]
    for info in fragments:
        if info.live_rows >= COMPACTED_ROWS_MAX and not _is_worn(info):
            groups.append([])
            continue
        if _rows([*groups[-1], info]) > COMPACTED_ROWS_MAX:
            groups.append([])
        groups[-1].append(info)
    worth = (group for group in groups if len(group) > 1 or any(map(_is_worn, group)))
    return tuple(tuple(info.id for info in group) for group in worth)


def _is_worn(info: Fragment) -> bool:
    return info.deleted_rows > 0 and info.deleted_rows >= info.physical_rows * WORN_SHARE_MIN


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
