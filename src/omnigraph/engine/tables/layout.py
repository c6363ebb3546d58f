"""The order of a table's fragments, by which its rows are numbered.

It is kept from version to version, and in a file from process to process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnigraph.engine.tables.cache_files import mark
from omnigraph.storage.handles import NO_NUMBER, Fragment

if TYPE_CHECKING:
    from omnigraph.engine.tables.cache_files import CacheFiles

Layout = tuple[Fragment, ...]
"""Fragments in the order of their ordinals, whatever was deleted in them."""

GHOST_SHARE_MAX = 0.25
"""Above this share of rows that a version does not have, its ordinals begin anew."""


def arrange(own: Layout, earlier: Layout) -> Layout:
    """The order of a version's fragments: as in an earlier layout, which may hold others, then the new ones;
    or `own` itself.

    A fragment whose rows are all dead leaves a version; keeping its place keeps every other ordinal. The
    version's own order is always kept, so that rows come in the same order whatever was read before.
    """
    if not earlier:
        return own
    places = {each.files: number for number, each in enumerate(earlier)}
    known = [places[each.files] for each in own if each.files in places]
    new = [each for each in own if each.files not in places]
    if known != sorted(known) or new != list(own[len(known) :]):
        return own
    absent = sum(each.physical_rows for each in earlier)
    absent -= sum(earlier[number].physical_rows for number in known)
    if absent > GHOST_SHARE_MAX * sum(each.physical_rows for each in own):
        return own
    return (*earlier, *new)


def begins_with(layout: Layout, first: Layout) -> bool:
    """Whether the rows of `first` are the first ones of a layout, at the same places."""
    return len(first) <= len(layout) and all(
        one is other or one.holds_rows_of(other) for one, other in zip(first, layout, strict=False)
    )


def layout_facts(layout: Layout) -> list[Any]:
    """The form of a layout in a cache file."""
    return [[list(each.files), each.physical_rows] for each in layout]


def layout_of(facts: list[Any]) -> Layout:
    """The layout that a cache file describes."""
    return tuple(Fragment(NO_NUMBER, tuple(names), rows) for names, rows in facts)


def save_layout(files: CacheFiles, location: str, layout: Layout) -> bool:
    """Keep the order of a table's fragments: the next process numbers its rows in the same way."""
    return files.save(_place(location), "newest", {"layout": layout_facts(layout)}, {})


def load_layout(files: CacheFiles, location: str) -> Layout:
    """The order of fragments that indexes in files follow; empty when there is none."""
    stored = files.load(_place(location), "newest")
    return () if stored is None else layout_of(stored.facts["layout"])


def _place(location: str) -> str:
    return f"layout-{mark(location)}"
