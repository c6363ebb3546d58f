"""Column chunks read without building Arrow arrays: as numpy for numbers, as Python values for few rows.

Both are views over the memory of the chunks; what small chunks and nulls make them copy they count. What they
give is exactly what `take` gives, which the tests compare.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from omnigraph.arrays.text_buffers import text_bounds, text_bytes
from omnigraph.core.errors import ResourceLimit
from omnigraph.core.limits import ARRAY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Mask, Ordinals

    Pick = Callable[[Sequence[int]], list[Any]]
    """The Python values at some offsets of one chunk, none of them negative."""


NUMBER_TYPES: Final[dict[pa.DataType, type[np.generic]]] = {
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.uint32(): np.uint32,
    pa.uint64(): np.uint64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}
JOINED_ROWS_MAX: Final = 1 << 12
"""Chunks of numbers up to this many rows are copied together with their neighbours."""

_TEXT: Final = pa.string()
_BOOL: Final = pa.bool_()
_NUMBER_BYTES: Final = 8
_OFFSET_BYTES: Final = 4
"""Where a text or a list ends."""


# Sizes ---------------------------------------------------------------------------------------------------


def fixed_bytes(kind: pa.DataType) -> int | None:
    """What every value of a type takes; None where values differ in size."""
    if pa.types.is_fixed_size_list(kind):
        each = fixed_bytes(kind.value_type)
        return None if each is None else kind.list_size * each
    try:
        return max(kind.bit_width // 8, 1)
    except ValueError:
        return None


def bytes_at(chunk: pa.Array, places: Ordinals) -> NDArray[np.int64]:
    """What the values at some offsets of a chunk take in an Arrow array. Nothing of them is copied."""
    kind: Any = chunk.type
    each = fixed_bytes(kind)
    if each is not None:
        return np.full(len(places), each, np.int64)
    if not pa.types.is_string(kind) and not pa.types.is_binary(kind) and not pa.types.is_list(kind):
        return np.full(len(places), chunk.nbytes // max(len(chunk), 1), np.int64)
    ends = text_bounds(chunk)
    begin, end = ends[places].astype(np.int64), ends[places + 1].astype(np.int64)
    if not pa.types.is_list(kind):
        return end - begin + _OFFSET_BYTES
    inner = fixed_bytes(kind.value_type)
    if inner is not None:
        return (end - begin) * inner + _OFFSET_BYTES
    lists: Any = chunk
    texts = text_bounds(lists.values)
    return texts[end].astype(np.int64) - texts[begin] + (end - begin + 1) * _OFFSET_BYTES


def outgrown(what: str, size: int) -> ResourceLimit:
    """The refusal of values that together are too large for one array; `size` may be an estimate."""
    return ResourceLimit(
        resource="array_bytes",
        limit=ARRAY_BYTES_MAX,
        actual=max(size, ARRAY_BYTES_MAX + 1),
        place=what,
        hint="narrow the match, or limit the rows",
    )


# Numbers -------------------------------------------------------------------------------------------------


class Numbers:
    """A number column by ordinal. Made once per column of an image and shared; never changed."""

    __slots__ = ("__weakref__", "_bases", "_known", "_values", "always_known", "dtype", "nbytes_copied")

    def __init__(self, chunks: Sequence[pa.Array], bases: Ordinals, kind: pa.DataType) -> None:
        self.dtype: np.dtype[Any] = np.dtype(NUMBER_TYPES[kind])
        groups = _runs(chunks)
        self._bases = bases[[*(group.start for group in groups), len(chunks)]]
        parts = [
            _joined(chunks[each.start : each.stop], bases[each.start : each.stop + 1], self.dtype)
            for each in groups
        ]
        self._values = [values for values, _ in parts]
        self._known = [known for _, known in parts]
        self.always_known = all(known is None for known in self._known)
        """Whether no row has a null; dead rows may count as null."""
        self.nbytes_copied: int = sum(
            (values.nbytes if len(group) > 1 else 0) + (0 if known is None else known.nbytes)
            for group, (values, known) in zip(groups, parts, strict=True)
        )
        """Memory beside that of the chunks."""

    def gather(self, ordinals: Ordinals) -> tuple[NDArray[Any], Mask | None]:
        """The values at the ordinals, and which are known; None when all are. Zero stands for -1."""
        if not len(ordinals):
            return np.empty(0, self.dtype), None
        absent = ordinals < 0 if ordinals.min() < 0 else None
        if absent is not None:
            ordinals = np.where(absent, 0, ordinals)
        if not self._bases.item(-1):
            return np.zeros(len(ordinals), self.dtype), np.zeros(len(ordinals), np.bool_)
        if len(self._values) == 1:
            values = self._values[0][ordinals]
            mine = self._known[0]
            known = None if mine is None else mine[ordinals]
        else:
            values, known = self._gather_chunks(ordinals)
        if absent is not None:
            known = ~absent if known is None else known & ~absent
            values[absent] = 0
        return values, known

    def _gather_chunks(self, ordinals: Ordinals) -> tuple[NDArray[Any], Mask | None]:
        owner = np.searchsorted(self._bases, ordinals, side="right") - 1
        first = owner.item(0)
        if (owner == first).all():
            offsets = ordinals - self._bases.item(first)
            mine = self._known[first]
            return self._values[first][offsets], None if mine is None else mine[offsets]
        values = np.empty(len(ordinals), self.dtype)
        known = None if self.always_known else np.ones(len(ordinals), np.bool_)
        present = np.zeros(len(self._values), np.bool_)
        present[owner] = True
        for position in np.flatnonzero(present).tolist():
            rows = np.flatnonzero(owner == position)
            offsets = ordinals[rows] - self._bases.item(position)
            values[rows] = self._values[position][offsets]
            mine = self._known[position]
            if known is not None and mine is not None:
                known[rows] = mine[offsets]
        return values, known


def _runs(chunks: Sequence[pa.Array]) -> list[range]:
    """The chunks in order, small neighbours together: a table that was written row by row has one for each
    commit, and a gather over all of them would look at its rows once for each.
    """
    found: list[range] = []
    for at, chunk in enumerate(chunks):
        if found and len(chunk) <= JOINED_ROWS_MAX and len(chunks[found[-1].start]) <= JOINED_ROWS_MAX:
            found[-1] = range(found[-1].start, at + 1)
        else:
            found.append(range(at, at + 1))
    return found


def _joined(
    chunks: Sequence[pa.Array], bases: Ordinals, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], Mask | None]:
    """The numbers of neighbouring chunks as one, and which are known; one chunk alone is not copied."""
    if len(chunks) == 1:
        return _raw_numbers(chunks[0], dtype), _validity(chunks[0])
    begins = (bases - bases[0]).tolist()
    values = np.zeros(begins[-1], dtype)
    known = np.ones(begins[-1], np.bool_)
    for chunk, begin in zip(chunks, begins, strict=False):
        mine = _validity(chunk)
        values[begin : begin + len(chunk)] = _raw_numbers(chunk, dtype)
        if mine is not None:
            known[begin : begin + len(chunk)] = mine
    return values, None if known.all() else known


def _raw_numbers(chunk: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    data = chunk.buffers()[1]
    if data is None or not len(chunk):
        return np.zeros(len(chunk), dtype)
    return np.frombuffer(memoryview(data), dtype, len(chunk), chunk.offset * dtype.itemsize)


def _validity(chunk: pa.Array) -> Mask | None:
    if not chunk.null_count:
        return None
    return np.asarray(chunk.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


# Python values -------------------------------------------------------------------------------------------


class Picker:
    """A column by ordinal, as Python values, for few rows. Made once per column of an image and shared."""

    __slots__ = ("_bases", "_ones", "_picks", "_sizes", "is_plain", "one", "present")

    def __init__(self, chunks: Sequence[pa.Array], bases: Ordinals) -> None:
        self._picks: list[Pick] = [_pick_of(chunk) for chunk in chunks]
        self._bases: list[int] = bases.tolist()
        self.present: Pick = self._picks[0] if len(self._picks) == 1 else self._from_chunks
        """The values at ordinals of which none is -1; None where a value is null."""
        self._ones: list[Callable[[int], Any]] = [_value_of(chunk) for chunk in chunks]
        self.one: Callable[[int], Any] = self._ones[0] if len(self._ones) == 1 else self._from_chunk
        """The value at an ordinal that is not -1; None where it is null."""
        kind = chunks[0].type if chunks else None
        self.is_plain: bool = kind in NUMBER_TYPES or kind in {_TEXT, _BOOL}
        """Whether its values are text, numbers or booleans."""
        self._sizes = [_size_of(chunk) for chunk in chunks] if kind == _TEXT else None

    def size(self, ordinal: int) -> int:
        """The bytes of the value at an ordinal that is not -1, of a plain column."""
        if self._sizes is None:
            return _NUMBER_BYTES
        position = bisect_right(self._bases, ordinal) - 1
        return self._sizes[position](ordinal - self._bases[position])

    def pick(self, ordinals: Sequence[int]) -> list[Any]:
        """The values at the ordinals; None where the value is null and at -1."""
        if len(ordinals) == 1:
            return self.present(ordinals) if ordinals[0] >= 0 else [None]
        if not ordinals or min(ordinals) >= 0:
            return self.present(ordinals)
        return [None if ordinal < 0 else self.present((ordinal,))[0] for ordinal in ordinals]

    def _from_chunk(self, ordinal: int) -> Any:
        position = bisect_right(self._bases, ordinal) - 1
        return self._ones[position](ordinal - self._bases[position])

    def _from_chunks(self, ordinals: Sequence[int]) -> list[Any]:
        bases, picks = self._bases, self._picks
        found: list[Any] = []
        for ordinal in ordinals:
            position = bisect_right(bases, ordinal) - 1
            found += picks[position]((ordinal - bases[position],))
        return found


def _size_of(chunk: pa.Array) -> Callable[[int], int]:
    """How many bytes the text at an offset has."""
    if not len(chunk):
        return lambda _: 0
    end, _ = _text_of(chunk)
    return lambda at: end(at + 1) - end(at)


def _value_of(chunk: pa.Array) -> Callable[[int], Any]:
    """What `_pick_of` gives for one offset, without a list around it."""
    kind = chunk.type
    if not len(chunk) or (kind not in NUMBER_TYPES and kind != _TEXT):
        pick = _pick_of(chunk)
        return lambda at: pick((at,))[0]
    value: Callable[[int], Any]
    if kind == _TEXT:
        end, text = _text_of(chunk)
        value = lambda at: str(text[end(at) : end(at + 1)], "utf-8")  # noqa: E731 - one of two
    else:
        value = _raw_numbers(chunk, np.dtype(NUMBER_TYPES[kind])).item
    if not chunk.null_count:
        return value
    known = _bit_reader(chunk.buffers()[0], chunk.offset)
    return lambda at: value(at) if known(at) else None


def _pick_of(chunk: pa.Array) -> Pick:
    kind = chunk.type
    if not len(chunk):
        return lambda _: []
    if kind in NUMBER_TYPES:
        item = _raw_numbers(chunk, np.dtype(NUMBER_TYPES[kind])).item
        return _unless_null(chunk, lambda offsets: list(map(item, offsets)))
    if kind == _TEXT:
        return _unless_null(chunk, _text_pick(chunk))
    if kind == _BOOL:
        bit = _bit_reader(chunk.buffers()[1], chunk.offset)
        return _unless_null(chunk, lambda offsets: [bit(at) for at in offsets])
    return lambda offsets: [chunk[at].as_py() for at in offsets]


def _text_pick(chunk: pa.Array) -> Pick:
    end, text = _text_of(chunk)
    return lambda offsets: [str(text[end(at) : end(at + 1)], "utf-8") for at in offsets]


def _text_of(chunk: pa.Array) -> tuple[Callable[[int], int], memoryview]:
    """Where each text ends, and all of them."""
    return text_bounds(chunk).item, text_bytes(chunk)


def _unless_null(chunk: pa.Array, pick: Pick) -> Pick:
    if not chunk.null_count:
        return pick
    known = _bit_reader(chunk.buffers()[0], chunk.offset)
    return lambda offsets: [pick((at,))[0] if known(at) else None for at in offsets]


def _bit_reader(buffer: Any, offset: int) -> Callable[[int], bool]:
    bits = memoryview(buffer).cast("B")
    return lambda at: bool(bits[(at + offset) >> 3] >> ((at + offset) & 7) & 1)
