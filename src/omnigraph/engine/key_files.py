"""A key index as a cache file: its segments with their lookup tables, and the fragments it is right for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from omnigraph.engine.cache_files import name_of
from omnigraph.engine.key_segments import KeySegment
from omnigraph.engine.keys import FragmentRows, KeyIndex

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from omnigraph.engine.cache_files import CacheFiles, Stored

Seen = tuple[tuple[str, ...], str | None, int, int]
"""A fragment as a version shows it: data files, deletion file, physical rows, dead rows."""


def place_of(location: str) -> str:
    """The name of the files of one table."""
    return f"keys-{name_of(location)[:16]}"


def state_of(fragments: Mapping[int, Seen]) -> str:
    """The name of a set of fragments with their deletions."""
    return name_of(sorted(fragments.items()))


def save_index(files: CacheFiles, location: str, index: KeyIndex) -> bool:
    """Keep an index for other processes."""
    fragments = sorted(index.fragments.items())
    arrays: dict[str, NDArray[Any]] = {
        "dead": np.concatenate([np.empty(0, np.uint32), *(rows.dead for _, rows in fragments)])
    }
    told_apart: list[bool] = []
    for number, segment in enumerate(index.segments):
        hashes, slots = segment.table()
        offsets, values = _text_of(segment.keys)
        told_apart.append(segment.told_apart)
        arrays |= {
            f"{number}.offsets": offsets,
            f"{number}.values": values,
            f"{number}.addresses": segment.addresses,
            f"{number}.hashes": hashes,
            f"{number}.slots": slots,
        }
    seen: dict[int, Seen] = {
        number: (rows.files, rows.deletion, rows.rows, len(rows.dead)) for number, rows in fragments
    }
    gone = {number: list(names) for number, names in index.known_files.items() if number not in seen}
    facts = {
        "location": location,
        "fragments": [[number, *described] for number, described in seen.items()],
        "gone": list(gone.items()),
        "told_apart": told_apart,
    }
    return files.save(place_of(location), state_of(seen), facts, arrays)


def load_index(files: CacheFiles, location: str, fragments: Mapping[int, Seen]) -> KeyIndex | None:
    """An index of the table: of exactly these fragments if there is one, else the latest of another state."""
    exact = files.load(place_of(location), state_of(fragments))
    if exact is not None:
        return _index(exact, location)
    for stored in files.newest(place_of(location)):
        return _index(stored, location)
    return None


def _index(stored: Stored, location: str) -> KeyIndex | None:
    facts, arrays = stored.facts, stored.arrays
    if facts["location"] != location:
        return None
    fragments: dict[int, FragmentRows] = {}
    known: dict[int, tuple[str, ...]] = {number: tuple(names) for number, names in facts["gone"]}
    begin = 0
    for number, names, deletion, rows, dead in facts["fragments"]:
        known[number] = tuple(names)
        fragments[number] = FragmentRows(known[number], deletion, rows, arrays["dead"][begin : begin + dead])
        begin += dead
    segments: list[KeySegment] = []
    for number, told_apart in enumerate(facts["told_apart"]):
        offsets = arrays[f"{number}.offsets"]
        keys = pa.StringArray.from_buffers(
            len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(arrays[f"{number}.values"])
        )
        segments.append(
            KeySegment.stored(
                keys,
                arrays[f"{number}.addresses"],
                arrays[f"{number}.hashes"],
                arrays[f"{number}.slots"],
                told_apart=told_apart,
            )
        )
    return KeyIndex(fragments, tuple(segments), known)


def _text_of(keys: pa.StringArray) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Offsets from zero and bytes of a string array, whatever part of its buffers it uses."""
    _, offset_buffer, value_buffer = keys.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(keys) + 1, keys.offset * 4)
    first, last = int(offsets[0]), int(offsets[-1])
    values = np.empty(0, np.uint8)
    if value_buffer is not None and last > first:
        values = np.frombuffer(value_buffer, np.uint8, last - first, first)
    return offsets - np.int32(first) if first else offsets, values
