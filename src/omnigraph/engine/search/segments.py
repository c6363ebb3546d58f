"""Structures over one column, in segments: what a commit adds becomes one more, the others stay.

A segment covers a range of ordinals and says which rows of it were absent when it was made. It serves every
state of the table that has the same fragments in that range and shows none of those rows.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

import numpy as np
import pyarrow as pa

from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import MIB
from omnigraph.engine.tables.cache_files import mark, name_of
from omnigraph.engine.tables.cache_work import BACKGROUND
from omnigraph.engine.tables.layout import begins_with, layout_facts, layout_of, save_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Ordinals
    from omnigraph.engine.tables.cache_files import Stored
    from omnigraph.engine.tables.derived import DerivedCache
    from omnigraph.engine.tables.images import TableImage
    from omnigraph.engine.tables.layout import Layout

JOIN_RATIO: Final = 4
"""A segment is joined with the one before it while that is less than this many times as long."""
JOINED_ROWS_MAX: Final = 1 << 20
"""A segment of this length is left alone."""
GROUP_BYTES_MAX: Final = 512 * MIB
"""Values a segment is made of at once; far below what one array of strings can hold."""
SAVED_ROWS_MIN: Final = 10_000
SAVED_SHARE_MIN: Final = 0.2
"""Segments are kept in a file once this many rows, and this share of all, are in no file yet."""
STREAMED_ROWS: Final = 1 << 17
"""Rows of a segment that is made for one question and dropped."""


class Segment(Protocol):
    """A structure over the rows of a range of ordinals."""

    @property
    def first(self) -> int:
        """The first ordinal."""
        ...

    @property
    def rows(self) -> int:
        """How many ordinals it covers."""
        ...

    @property
    def absent(self) -> NDArray[np.int64]:
        """Rows of the range, from 0, that were not there when it was made."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...


S = TypeVar("S", bound=Segment)


@dataclass(frozen=True, slots=True, eq=False)
class Segments(Generic[S]):
    """The segments over all rows of one state of a table, in order."""

    layout: Layout
    parts: tuple[S, ...]
    saved: int = 0
    """How many of the rows a cache file knows."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(part.nbytes for part in self.parts)

    @property
    def extent(self) -> int:
        """One more than the greatest ordinal."""
        return self.parts[-1].first + self.parts[-1].rows if self.parts else 0


@dataclass(frozen=True, slots=True)
class _Latest:
    """Which state of a column was looked at last, by place; a hint only."""

    states: dict[tuple[str, str, str, str], Any] = field(default_factory=dict[tuple[str, str, str, str], Any])
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class SegmentKind(Generic[S]):
    """How one kind of segment is made and joined, and kept in files if that is worthwhile."""

    name: str
    build: Callable[[Any, Ordinals, int, int], S]
    """From the values of the rows shown, their ordinals, the first ordinal of the range and its length."""
    join: Callable[[S, S], S]
    freeze: Callable[[S], dict[str, NDArray[Any]]] | None = None
    """The segment as arrays; None: it is as quickly made from the table as read from a file."""
    thaw: Callable[[int, dict[str, NDArray[Any]]], S] | None = None
    """From its first ordinal and those arrays."""


def segments_of(cache: DerivedCache, image: TableImage, column: str, kind: SegmentKind[S]) -> Segments[S]:
    """The segments of a column at a state of its table, made from those of an earlier state where they fit.

    Cost: nothing when they are there, else reading the column of the fragments no segment covers.
    """
    stored = image.handle.column_identity(column)
    key = (image.contents, kind.name, stored)

    def build() -> Segments[Any]:
        latest = cache.get(("latest segments",), _Latest, _Latest)
        place = (image.identity, image.handle.location, kind.name, stored)
        earlier = latest.states.get(place)
        base: Segments[S] | None = None
        if earlier is not None:
            base = cast("Segments[S] | None", cache.peek((earlier, kind.name, stored), Segments))
        if base is None or not _fits(base, image):
            base = _from_files(image, column, kind)
        made = _extended(image, column, kind, base)
        latest.states[place] = image.contents
        return _saved(image, column, kind, made)

    return cache.get(key, Segments, build)


def _place(image: TableImage, column: str, kind: SegmentKind[Any]) -> str:
    return f"{kind.name}-{mark(image.handle.location, image.handle.column_identity(column))}"


def _from_files(image: TableImage, column: str, kind: SegmentKind[S]) -> Segments[S] | None:
    """Segments another process kept: of exactly this state, or of one that this state continues."""
    files = image.keys.files_of(image.identity)
    if files is None or kind.thaw is None:
        return None
    place = _place(image, column, kind)
    exact = files.load(place, name_of(image.contents))
    for stored in (exact,) if exact is not None else files.newest(place):
        found = _thawed(stored, image, column, kind.thaw)
        if found is not None and _fits(found, image):
            return found
    return None


def _thawed(
    stored: Stored, image: TableImage, column: str, thaw: Callable[[int, dict[str, NDArray[Any]]], S]
) -> Segments[S] | None:
    facts = stored.facts
    if (facts["location"], facts["column"]) != (image.handle.location, image.handle.column_identity(column)):
        return None
    layout = layout_of(facts["layout"])
    parts: list[S] = []
    for number, first in enumerate(facts["firsts"]):
        prefix = f"{number}."
        mine = {
            name.removeprefix(prefix): array
            for name, array in stored.arrays.items()
            if name.startswith(prefix)
        }
        try:
            parts.append(thaw(first, mine))
        except KeyError:
            return None  # written by another version of this program
    return Segments(layout, tuple(parts), sum(part.rows for part in parts))


def _saved(image: TableImage, column: str, kind: SegmentKind[S], made: Segments[S]) -> Segments[S]:
    """The same segments; kept in a file when that spares another process much of the work."""
    files = image.keys.files_of(image.identity)
    fresh = made.extent - made.saved
    if files is None or not files.writable or kind.freeze is None:
        return made
    if fresh < max(SAVED_ROWS_MIN, SAVED_SHARE_MIN * made.extent):
        return made
    freeze = kind.freeze

    def save() -> None:
        facts = {
            "location": image.handle.location,
            "column": image.handle.column_identity(column),
            "layout": layout_facts(made.layout),
            "firsts": [part.first for part in made.parts],
        }
        arrays = {
            f"{number}.{name}": array
            for number, part in enumerate(made.parts)
            for name, array in freeze(part).items()
        }
        save_layout(files, image.handle.location, image.layout)
        files.save(_place(image, column, kind), name_of(image.contents), facts, arrays)

    BACKGROUND.submit(image.identity, (kind.name, image.handle.location, column), save)
    return Segments(made.layout, made.parts, made.extent)


def are_ready(cache: DerivedCache, image: TableImage, column: str, kind: SegmentKind[Any]) -> bool:
    """Whether the segments of exactly this state are in memory."""
    return cache.has((image.contents, kind.name, image.handle.column_identity(column)))


def are_kept(image: TableImage, column: str, kind: SegmentKind[Any]) -> bool:
    """Whether a file has the segments of exactly this state."""
    files = image.keys.files_of(image.identity)
    return files is not None and files.load(_place(image, column, kind), name_of(image.contents)) is not None


def live_mask(image: TableImage) -> NDArray[np.bool_] | None:
    """By ordinal, which rows are shown; None: all."""
    if not image.has_dead:
        return None
    mask = np.zeros(image.extent, np.bool_)
    mask[image.live()] = True
    return mask


def _fits(base: Segments[Any], image: TableImage) -> bool:
    if not begins_with(image.layout, base.layout):
        return False
    absent = [part.absent + part.first for part in base.parts if len(part.absent)]
    if not absent:
        return True
    live = live_mask(image)
    return live is not None and not live[np.concatenate(absent)].any()


def _extended(image: TableImage, column: str, kind: SegmentKind[S], base: Segments[S] | None) -> Segments[S]:
    parts: list[S] = [] if base is None else list(base.parts)
    begin = 0 if base is None else base.extent
    for ordinals, values in _groups(image, column, begin):
        # A part ends where its last row does; what lies between two parts was not shown.
        end = int(ordinals[-1]) + 1
        parts.append(kind.build(values, ordinals, begin, end - begin))
        begin = end
    if begin < image.extent:
        none = pa.array([], image.handle.schema.field(column).type)
        parts.append(kind.build(none, np.empty(0, np.int64), begin, image.extent - begin))
    while len(parts) > 1 and parts[-2].rows < min(JOIN_RATIO * parts[-1].rows, JOINED_ROWS_MAX):
        right, left = parts.pop(), parts.pop()
        parts.append(kind.join(left, right))
    return Segments(image.layout, tuple(parts), 0 if base is None else base.saved)


def _groups(image: TableImage, column: str, after: int) -> Iterator[tuple[Ordinals, Any]]:
    """The rows from an ordinal on, as many at a time as one segment is made of."""
    ordinals: list[Ordinals] = []
    values: list[Any] = []
    rows = size = 0
    for shown, batch in image.read_live([column], after=after):
        ordinals.append(shown)
        values.append(whole(batch.column(column)))
        rows += len(shown)
        size += values[-1].nbytes
        if rows >= JOINED_ROWS_MAX or size >= GROUP_BYTES_MAX:
            yield np.concatenate(ordinals), pa.concat_arrays(values)
            ordinals, values, rows, size = [], [], 0, 0
    if rows:
        yield np.concatenate(ordinals), pa.concat_arrays(values)


def stream_parts(image: TableImage, column: str, kind: SegmentKind[S]) -> Iterator[S]:
    """The segments of a column one after the other, none of them kept. Each pass reads the column."""
    for ordinals, table in image.read_live([column]):
        values = whole(table.column(column))
        for begin in range(0, len(ordinals), STREAMED_ROWS):
            mine = ordinals[begin : begin + STREAMED_ROWS]
            first = int(mine[0])
            part = values.slice(begin, STREAMED_ROWS)
            yield kind.build(part, mine, first, int(mine[-1]) + 1 - first)


def whole(column: Any) -> Any:
    """A column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 0:
        return pa.array([], column.type)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
