"""The order of a table's fragments, by which its rows are numbered.

It is kept from version to version, and in a file from process to process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnigraph.engine.tables.cache_files import name_of

if TYPE_CHECKING:
    from omnigraph.engine.tables.cache_files import CacheFiles

Layout = tuple[tuple[tuple[str, ...], int], ...]
"""Fragments in the order of their ordinals: data files and physical rows."""

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
    places = {files: number for number, (files, _) in enumerate(earlier)}
    known = [places[files] for files, _ in own if files in places]
    new = [each for each in own if each[0] not in places]
    tail = own[len(known) :]
    if known != sorted(known) or len(tail) != len(new) or any(a != b for a, b in zip(tail, new, strict=True)):
        return own
    absent = sum(rows for _, rows in earlier) - sum(earlier[number][1] for number in known)
    if absent > GHOST_SHARE_MAX * sum(rows for _, rows in own):
        return own
    return (*earlier, *new)


def layout_facts(layout: Layout) -> list[Any]:
    """A layout as a cache file says it."""
    return [[list(names), rows] for names, rows in layout]


def layout_of(facts: list[Any]) -> Layout:
    """The layout that a cache file says."""
    return tuple((tuple(names), rows) for names, rows in facts)


def save_layout(files: CacheFiles, location: str, layout: Layout) -> bool:
    """Keep the order of a table's fragments: the next process numbers its rows in the same way."""
    return files.save(_place(location), "newest", {"layout": layout_facts(layout)}, {})


def load_layout(files: CacheFiles, location: str) -> Layout:
    """The order of fragments that indexes in files follow; empty when there is none."""
    stored = files.load(_place(location), "newest")
    return () if stored is None else layout_of(stored.facts["layout"])


def _place(location: str) -> str:
    return f"layout-{name_of(location)[:16]}"
