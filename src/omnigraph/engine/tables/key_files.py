"""A key index as cache files: its segments with their lookup tables, and the fragments it is right for.

A *base* holds an index whole. A *tail* names a base and holds what came since: the keys of later commits, and
the fragments of its own version with their dead rows. It is small, so it is written after a few commits and
when a graph is closed, and the next process has nothing to follow. A tail without a base holds the fragments
of a table that has no index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from omnigraph.arrays.key_segments import KeySegment
from omnigraph.arrays.text_buffers import text_bounds, text_bytes
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.tables.cache_files import mark, name_of
from omnigraph.engine.tables.keys import NO_ROWS, KeyIndex
from omnigraph.storage.handles import Fragment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from omnigraph.engine.tables.cache_files import CacheFiles, Stored
    from omnigraph.engine.tables.keys import Fragments
    from omnigraph.storage.handles import SnapshotHandle

TAIL_ROWS_MIN: Final = 4096
TAIL_SHARE_MAX: Final = 1 / 16
"""A tail of more rows, and of a greater share of its base, becomes a new base."""


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """An index that a file holds: the name of the file, and the segments as they are in memory.

    `token` tells it from another index of the same version that a process made from another history: it
    answers alike, but knows other rows that are dead.
    """

    name: str
    token: str
    segments: tuple[KeySegment, ...]

    def has_room_for(self, index: KeyIndex) -> bool:
        """Whether a tail of this holds an index: it has these segments, and few rows in later ones."""
        if len(index.segments) < len(self.segments) or any(
            mine is not theirs for mine, theirs in zip(self.segments, index.segments, strict=False)
        ):
            return False
        rows = sum(map(len, self.segments))
        later = sum(map(len, index.segments[len(self.segments) :]))
        return later <= max(TAIL_ROWS_MIN, rows * TAIL_SHARE_MAX)


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """What files have about a table: of which version, its fragments and its index."""

    name: str
    version: int
    fragments: Fragments
    index: KeyIndex | None
    base: Base | None


def version_name(handle: SnapshotHandle) -> str | None:
    """The name of a version of a table, the same in every process; None when it cannot be told from another
    one that a branch of the same name may have had.
    """
    if not handle.transaction_uuid:
        return None
    return name_of(handle.location, handle.branch, handle.version, handle.transaction_uuid)


# --- writing ---------------------------------------------------------------------------------------------


def save_index(files: CacheFiles, handle: SnapshotHandle, index: KeyIndex, base: Base | None) -> Base | None:
    """Keep an index for other processes, as a tail of `base` where that is enough; the base that files now
    have of it, None when nothing was written.
    """
    name, shown = version_name(handle), index.seen(handle.fragment_ids)
    if name is None or shown is None:
        return None
    facts: dict[str, Any] = {"location": handle.location, "version": handle.version}
    arrays = _described(index, shown)
    if base is not None and base.has_room_for(index):
        tail = index.segments[len(base.segments) :]
        facts |= {"base": base.name, "token": base.token, "told_apart": [each.told_apart for each in tail]}
        # Small: whoever reads it checks it, and nobody waits here until its times have settled.
        saved = files.save(_place("tail", handle), name, facts, arrays | _packed(tail), settle=False)
        return base if saved else None
    token = uuid4().hex
    facts |= {"token": token, "told_apart": [segment.told_apart for segment in index.segments]}
    saved = files.save(_place("keys", handle), name, facts, arrays | _packed(index.segments))
    return Base(name, token, index.segments) if saved else None


def save_fragments(files: CacheFiles, handle: SnapshotHandle, fragments: Fragments) -> bool:
    """Keep the fragments of a version of a table that has no index."""
    name = version_name(handle)
    if name is None:
        return False
    facts: dict[str, Any] = {"location": handle.location, "version": handle.version}
    return files.save(_place("tail", handle), name, facts, _listed(fragments), settle=False)


def _place(kind: str, handle: SnapshotHandle) -> str:
    """The name of the files of one table."""
    return f"{kind}-{mark(handle.location)}"


def _described(index: KeyIndex, shown: Fragments) -> dict[str, NDArray[Any]]:
    """The fragments of the index, in the order of the version, and those that left before."""
    gone = {number: names for number, names in index.known_files.items() if number not in shown}
    dead = [index.dead[number] for number in shown if number in index.dead]
    return _listed(shown) | {
        "dead_rows": np.concatenate([NO_ROWS, *dead]),
        "gone": np.array(list(gone), np.int64),
        "gone_files": np.array([len(names) for names in gone.values()], np.int64),
        "gone_names": _text(name for names in gone.values() for name in names),
    }


def _listed(fragments: Fragments) -> dict[str, NDArray[Any]]:
    shown = fragments.values()
    numbers = [(each.id, len(each.files), each.physical_rows, each.deleted_rows) for each in shown]
    columns = np.array(numbers, np.int64).reshape(-1, 4)
    return {
        "fragments": columns[:, 0],
        "files": columns[:, 1],
        "rows": columns[:, 2],
        "dead": columns[:, 3],
        "names": _text(name for each in shown for name in each.files),
        "deletions": _text(each.deletions or "" for each in shown),
    }


def _text(names: Iterable[str]) -> NDArray[np.uint8]:
    return np.frombuffer("".join(f"{name}\n" for name in names).encode(), np.uint8)


def _packed(segments: Sequence[KeySegment]) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for number, segment in enumerate(segments):
        hashes, slots = segment.table()
        offsets, values = _text_of(segment.keys)
        arrays |= {
            f"{number}.offsets": offsets,
            f"{number}.values": values,
            f"{number}.addresses": segment.addresses,
            f"{number}.hashes": hashes,
            f"{number}.slots": slots,
        }
    return arrays


def _text_of(keys: pa.StringArray) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Offsets from zero and bytes of a string array, whatever part of its buffers it uses."""
    offsets = text_bounds(keys)
    first, last = int(offsets[0]), int(offsets[-1])
    values = np.frombuffer(text_bytes(keys)[first:last], np.uint8)
    return offsets - np.int32(first) if first else offsets, values


# --- reading ---------------------------------------------------------------------------------------------


def load_exact(files: CacheFiles, handle: SnapshotHandle) -> Saved | None:
    """What files have about exactly this version."""
    name = version_name(handle)
    if name is None:
        return None
    for kind in ("tail", "keys"):
        stored = files.load(_place(kind, handle), name)
        found = None if stored is None else _saved(files, handle, stored)
        if found is not None:
            return found
    return None


def load_near(files: CacheFiles, handle: SnapshotHandle) -> Saved | None:
    """The index of another version of the table, the later of the tail and the base that were saved last."""
    found = [next(_indexes(files, handle, kind), None) for kind in ("tail", "keys")]
    return max(filter(None, found), key=lambda each: each.version, default=None)


def _indexes(files: CacheFiles, handle: SnapshotHandle, kind: str) -> Iterator[Saved]:
    for stored in files.newest(_place(kind, handle)):
        saved = _saved(files, handle, stored)
        if saved is not None and saved.index is not None:
            yield saved


def _saved(files: CacheFiles, handle: SnapshotHandle, stored: Stored) -> Saved | None:
    """None for a file of another table, and for a tail whose base is gone."""
    facts, arrays = stored.facts, stored.arrays
    if facts["location"] != handle.location:
        return None
    fragments = _fragments(arrays)
    if "told_apart" not in facts:
        return Saved(stored.state, facts["version"], fragments, None, None)
    segments = _segments(stored)
    base = Base(stored.state, facts["token"], segments)
    if "base" in facts:
        whole = files.load(_place("keys", handle), facts["base"])
        if whole is None or whole.facts["token"] != facts["token"]:
            return None
        base = Base(facts["base"], facts["token"], _segments(whole))
        segments = base.segments + segments
    index = _index(fragments, segments, arrays)
    return Saved(stored.state, facts["version"], fragments, index, base)


def _fragments(arrays: Mapping[str, NDArray[Any]]) -> dict[int, Fragment]:
    names, deletions = _names(arrays["names"]), _names(arrays["deletions"])
    columns = [arrays[name].tolist() for name in ("fragments", "files", "rows", "dead")]
    found: dict[int, Fragment] = {}
    begin = 0
    for number, count, rows, dead, deletion in zip(*columns, deletions, strict=True):
        files = tuple(names[begin : begin + count])
        found[number] = Fragment(number, files, rows, deletion or None, dead)
        begin += count
    return found


def _names(text: NDArray[np.uint8]) -> list[str]:
    return text.tobytes().decode().split("\n")[:-1]


def _index(
    fragments: Fragments, segments: tuple[KeySegment, ...], arrays: Mapping[str, NDArray[Any]]
) -> KeyIndex:
    dead_rows = arrays["dead_rows"]
    ends = np.cumsum(arrays["dead"]).tolist()
    dead = {
        each.id: dead_rows[end - each.deleted_rows : end]
        for each, end in zip(fragments.values(), ends, strict=True)
        if each.deleted_rows
    }
    known = {number: each.files for number, each in fragments.items()}
    names = _names(arrays["gone_names"])
    begin = 0
    for number, count in zip(arrays["gone"].tolist(), arrays["gone_files"].tolist(), strict=True):
        known[number] = tuple(names[begin : begin + count])
        begin += count
    return KeyIndex(fragments, dead, segments, known)


def _segments(stored: Stored) -> tuple[KeySegment, ...]:
    arrays = stored.arrays
    found: list[KeySegment] = []
    for number, told_apart in enumerate(stored.facts["told_apart"]):
        offsets = arrays[f"{number}.offsets"]
        keys = pa.StringArray.from_buffers(
            len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(arrays[f"{number}.values"])
        )
        found.append(
            KeySegment.stored(
                keys,
                arrays[f"{number}.addresses"],
                arrays[f"{number}.hashes"],
                arrays[f"{number}.slots"],
                told_apart=told_apart,
            )
        )
    return tuple(found)
