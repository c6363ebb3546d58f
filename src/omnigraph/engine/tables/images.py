"""One version of a table as columns in memory, addressed by ordinals.

An ordinal is a row's physical position: fragments in order, rows as written, dead rows counted. So a commit
that adds rows or marks some dead leaves every other ordinal alone, and the columns of an unchanged fragment
are shared by all versions that hold it.
"""

from __future__ import annotations

import hashlib
import weakref
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from omnigraph.arrays.addresses import (
    ABSENT,
    OFFSET_BITS,
    OFFSET_MASK,
    addresses_in,
    addresses_of,
    fragments_of,
    offsets_of,
)
from omnigraph.arrays.sets import distinct
from omnigraph.core.errors import InternalError
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.tables.cache_work import BACKGROUND
from omnigraph.engine.tables.columns import NUMBER_TYPES, Numbers, Picker, bytes_at, outgrown
from omnigraph.engine.tables.layout import arrange
from omnigraph.storage.handles import NO_NUMBER, Fragment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from omnigraph.arrays.types import Addresses, Mask, Offsets, Ordinals
    from omnigraph.engine.tables.column_cache import ChunkKey, ColumnCache
    from omnigraph.engine.tables.key_cache import KeyIndexCache, KnownKeys
    from omnigraph.engine.tables.layout import Layout
    from omnigraph.planning.filters import FilterText
    from omnigraph.storage.indexes import IndexCoverage
    from omnigraph.storage.tables import SnapshotHandle, TableStorage


READ_ROWS = 1 << 18
"""Rows read at a time by those who keep nothing of them."""

SAMPLED_EXTENT_MIN = 100_000
SAMPLED_ROWS_MAX = 512
SAMPLES_MAX = 4
"""In a table of at least this many rows, up to this many rows of a column are read without loading the
column. After this many such reads the column is loaded.
"""

_NO_OFFSETS: Offsets = np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class TableImage:
    """The rows of one table at one version.

    Cost: a column is read once, on first use, for the fragments that no earlier version has read already.
    Thread-safety: may be shared; two threads may read the same column twice.
    """

    identity: str
    storage: TableStorage
    handle: SnapshotHandle
    keys: KeyIndexCache
    cache: ColumnCache
    layout: Layout = ()
    """Where an earlier image of the table put its fragments; kept where it fits, so that ordinals stay."""
    _fragments: list[Fragment] = field(init=False)
    """In the order of the ordinals. One that this version does not have keeps its place, without a number."""
    _fragment_ids: NDArray[np.int64] = field(init=False)
    _bases: NDArray[np.int64] = field(init=False)
    """The first ordinal of each fragment, and the end."""
    _base_of: dict[int, int] = field(init=False)
    _columns: dict[str, list[pa.Array]] = field(init=False, default_factory=dict[str, list[pa.Array]])
    _numbers: dict[str, Numbers] = field(init=False, default_factory=dict[str, Numbers])
    _pickers: dict[str, Picker] = field(init=False, default_factory=dict[str, Picker])
    _misses: dict[str, int] = field(init=False, default_factory=dict[str, int])
    """How often few rows of a column were read from the table."""
    _known_keys: weakref.ref[KnownKeys] | None = field(init=False, default=None)
    _seen_evictions: int = field(init=False, default=0)
    _live: Ordinals | None = field(init=False, default=None)
    _dead: dict[int, Offsets] = field(init=False, default_factory=dict[int, NDArray[np.int64]])
    _contents: tuple[str, bytes] | None = field(init=False, default=None)
    _indexes: dict[str, tuple[IndexCoverage, ...]] = field(
        init=False, default_factory=dict[str, "tuple[IndexCoverage, ...]"]
    )
    row_count: int = field(init=False)
    """Live rows."""

    def __post_init__(self) -> None:
        shown = self.keys.fragments(self.identity, self.storage, self.handle)
        own = tuple(shown.values())
        places = arrange(own, self.layout)
        self.layout = places
        if places is own:
            self._fragments = list(own)
        else:
            mine = {each.files: each for each in own}
            self._fragments = [mine.get(each.files) or each.gone() for each in places]
        self.row_count = sum(each.live_rows for each in self._fragments)
        self._fragment_ids = np.array([each.id for each in self._fragments], dtype=np.int64)
        sizes = np.array([each.physical_rows for each in self._fragments], dtype=np.int64)
        self._bases = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        self._base_of = dict(zip(self._fragment_ids.tolist(), self._bases[:-1].tolist(), strict=True))
        self._base_of.pop(NO_NUMBER, None)

    @property
    def contents(self) -> tuple[str, bytes]:
        """Names the rows, not the version: equal for versions that hold the same fragments and deletions."""
        if self._contents is None:
            shown = [
                (each.files, each.deletions, each.physical_rows, each.deleted_rows)
                for each in self._fragments
            ]
            digest = hashlib.blake2b(repr(shown).encode(), digest_size=16).digest()
            self._contents = (self.handle.location, digest)
        return self._contents

    @property
    def extent(self) -> int:
        """One more than the greatest ordinal: live and dead rows."""
        return int(self._bases[-1])

    @property
    def cached(self) -> frozenset[str]:
        """The columns that are in memory."""
        if self._seen_evictions != self.cache.evictions:
            self._forget_columns()
        return frozenset(self._columns)

    def indexes(self, column: str) -> tuple[IndexCoverage, ...]:
        """The indexes of the table format on a column; looked up once."""
        found = self._indexes.get(column)
        if found is None:
            found = self._indexes[column] = self.storage.index_coverage(self.handle, column)
        return found

    def fragment_rows(self) -> dict[int, int]:
        """Physical rows of each fragment, by its number."""
        return {each.id: each.physical_rows for each in self._fragments if each.id != NO_NUMBER}

    def live(self) -> Ordinals:
        """The ordinals of all live rows, ascending."""
        if self._live is None:
            gone = [
                self._bases.item(place) + self._dead_rows(each) for place, each in enumerate(self._fragments)
            ]
            everything = np.arange(self.extent, dtype=np.int64)
            self._live = np.delete(everything, np.concatenate(gone)) if self.has_dead else everything
        return self._live

    @property
    def has_dead(self) -> bool:
        """Whether some row of a fragment is not shown."""
        return self.row_count < self.extent

    def removed_since(self, before: TableImage) -> Ordinals | None:
        """The ordinals that `before` shows and this does not; None when ordinals are not comparable.

        Comparable: every fragment of `before` is here at the same place, and what was dead stayed dead.
        Cost: metadata, and the row addresses of fragments whose deletions changed.
        """
        if before.identity != self.identity or before.handle.location != self.handle.location:
            return None
        if len(before._fragments) > len(self._fragments):
            return None
        removed: list[Ordinals] = []
        for place, (then, now) in enumerate(zip(before._fragments, self._fragments, strict=False)):
            if then is now:
                continue
            if not then.holds_rows_of(now):
                return None
            if then.deletions == now.deletions and then.deleted_rows == now.deleted_rows:
                continue
            old, new = before._dead_rows(then), self._dead_rows(now)
            fresh = np.setdiff1d(new, old, assume_unique=True)
            if len(fresh) != len(new) - len(old):
                return None
            removed.append(self._bases.item(place) + fresh)
        return np.concatenate(removed) if removed else _NO_OFFSETS

    def _dead_rows(self, fragment: Fragment) -> Offsets:
        """The offsets of the dead rows of one fragment, ascending."""
        if fragment.deleted_rows == 0:
            return _NO_OFFSETS
        if fragment.id == NO_NUMBER:
            return np.arange(fragment.physical_rows, dtype=np.int64)
        found = self._dead.get(fragment.id)
        if found is None:
            known = self.keys.dead_rows(self.identity, self.handle, fragment.id)
            if known is None:
                known = self.storage.dead_rows(self.handle, fragment)
            found = known.astype(np.int64)
            self._dead[fragment.id] = found
        return found

    def from_addresses(self, addresses: Addresses) -> Ordinals:
        """Ordinals of row addresses; -1 where there is no row."""
        known = addresses != ABSENT
        if not self._fragments or not known.any():
            return np.full(len(addresses), -1, dtype=np.int64)
        if len(self._fragments) == 1:
            return np.where(known, offsets_of(addresses), -1)
        fragments = fragments_of(addresses).astype(np.int64)
        ids = self._fragment_ids
        order = np.argsort(ids)
        position = order[np.minimum(np.searchsorted(ids[order], fragments), len(ids) - 1)]
        ordinals = self._bases[position] + offsets_of(addresses)
        return np.where(known, ordinals, -1)

    def to_addresses(self, ordinals: Ordinals) -> Addresses:
        """Row addresses of the ordinals of live rows."""
        place = np.searchsorted(self._bases, ordinals, side="right") - 1
        fragments = self._fragment_ids[place]
        offsets = ordinals - self._bases[place]
        return addresses_of(fragments.astype(np.uint64), offsets)

    def at(self, handle: SnapshotHandle, layout: Layout) -> TableImage:
        """The image of another version of the table, with its fragments in this order."""
        return TableImage(self.identity, self.storage, handle, self.keys, self.cache, layout)

    def find(self, ids: pa.StringArray, *, referenced: bool = False) -> Ordinals:
        """The ordinal of each id; -1 where there is none. `referenced`: see `KeyIndex.find`."""
        found = self.keys.addresses(self.identity, self.storage, self.handle, ids, referenced=referenced)
        return self.from_addresses(found)

    def find_one(self, key: str) -> int:
        """The ordinal of one id; -1 where there is none."""
        if self.row_count == 0:
            return -1
        known = None if self._known_keys is None else self._known_keys()
        if known is None:
            known = self.keys.known(self.identity, self.storage, self.handle)
            if known is None:
                return self.find(pa.array([key], pa.string())).item(0)
            self._known_keys = weakref.ref(known)
        known.used = True
        address = known.find_one(key)
        return -1 if address is None else self._base_of[address >> OFFSET_BITS] + (address & OFFSET_MASK)

    def select(self, where: FilterText) -> Ordinals:
        """The ordinals of the live rows that satisfy a filter of the table format, ascending."""
        if self.handle.view is not None:
            raise InternalError(f"'{self.handle.table_key}' is seen as another type and cannot be filtered")
        reader = self.storage.scan(self.handle, columns=[], filter=where, with_row_address=True)
        addresses = [addresses_in(batch) for batch in reader]
        if not addresses:
            return np.empty(0, dtype=np.int64)
        return np.sort(self.from_addresses(np.concatenate(addresses)))

    def take(self, column: str, ordinals: Ordinals) -> pa.Array:
        """The values of a column at the given ordinals; null at -1. Blobs cannot be taken.

        Raises ResourceLimit when the values together are too large for one array.
        """
        try:
            return self._take(column, ordinals)
        except pa.ArrowInvalid as problem:
            stored = sum(chunk.nbytes for chunk in self._chunks([column])[column])
            size = stored * len(ordinals) // max(self.extent, 1)
            raise outgrown(f"the values of '{column}'", size) from problem

    def _take(self, column: str, ordinals: Ordinals) -> pa.Array:
        sample = self._sample([column], ordinals)
        if sample is not None:
            return sample.column(0).combine_chunks()
        chunks = self._chunks([column])[column]
        if len(ordinals) == 1 and (ordinal := ordinals.item()) >= 0:
            # One row is a slice: the answer of a point read must not cost more than finding it.
            position = 0 if len(chunks) == 1 else int(np.searchsorted(self._bases, ordinal, side="right")) - 1
            return chunks[position].slice(ordinal - self._bases.item(position), 1)
        missing = ordinals < 0
        if len(chunks) == 1:
            return chunks[0].take(pa.array(ordinals, mask=missing if missing.any() else None))
        empty = pa.nulls(len(ordinals), self._type_of(column))
        if not chunks or missing.all():
            return empty
        return _take_chunks(chunks, self._bases, ordinals, missing)

    def pick(self, column: str, ordinals: Sequence[int]) -> list[Any]:
        """As `take`, but as Python values, which is cheapest for few rows."""
        if self._seen_evictions != self.cache.evictions:
            self._forget_columns()
        picker = self._pickers.get(column)
        if picker is None:
            sample = self._sample([column], np.array(ordinals, dtype=np.int64))
            if sample is not None:
                return sample.column(0).to_pylist()
            picker = Picker(self._chunks([column])[column], self._bases)
            self._pickers[column] = picker
        return picker.pick(ordinals)

    def picker_at_hand(self, column: str) -> Picker | None:
        """What picks values of a column that is in memory, with plain text, numbers or booleans."""
        if self._seen_evictions != self.cache.evictions:
            return None
        picker = self._pickers.get(column)
        return picker if picker is not None and picker.is_plain else None

    def keys_at_hand(self) -> KnownKeys | None:
        """The keys, when a lookup has them in memory."""
        return None if self._known_keys is None else self._known_keys()

    def row(self, columns: Sequence[str], ordinal: int) -> list[Any]:
        """As `pick` of each column for one ordinal, not -1. What is not in memory is read at once."""
        if self._seen_evictions == self.cache.evictions:
            pickers = self._pickers
            try:
                return [pickers[name].one(ordinal) for name in columns]
            except KeyError:
                pass
        names = list(dict.fromkeys(columns))
        sample = self._sample(names, np.array([ordinal], dtype=np.int64))
        if sample is None:
            return [self.pick(name, (ordinal,))[0] for name in columns]
        found = {name: sample.column(name)[0].as_py() for name in names}
        return [found[name] for name in columns]

    def numbers(self, column: str) -> Numbers | None:
        """A column of numbers for numpy; None when it holds something else."""
        if self._seen_evictions != self.cache.evictions:
            self._forget_columns()
        found = self._numbers.get(column)
        if found is None:
            kind = self._type_of(column)
            if kind not in NUMBER_TYPES:
                return None
            found = Numbers(self._chunks([column])[column], self._bases, kind)
            if self.cache.hold(found):
                self._numbers[column] = found
        return found

    def sizes(self, column: str, ordinals: Ordinals) -> NDArray[np.int64]:
        """The bytes of the values that `take` would give; none for -1. The column is loaded."""
        chunks = self._chunks([column])[column]
        if len(chunks) == 1 and len(ordinals) and ordinals.min() >= 0:
            return bytes_at(chunks[0], ordinals)
        sizes = np.zeros(len(ordinals), dtype=np.int64)
        owner = np.searchsorted(self._bases, ordinals, side="right") - 1
        order = np.argsort(owner, kind="stable")
        ends = np.searchsorted(owner[order], np.arange(len(chunks) + 1))
        for position in np.flatnonzero(np.diff(ends)).tolist():
            rows = order[ends.item(position) : ends.item(position + 1)]
            sizes[rows] = bytes_at(chunks[position], ordinals[rows] - self._bases.item(position))
        return sizes

    def table(self, columns: Sequence[str], ordinals: Ordinals) -> pa.Table:
        """Several columns at the given ordinals."""
        sample = self._sample(columns, ordinals)
        if sample is not None:
            return sample
        self._chunks(columns)
        return pa.table({name: self.take(name, ordinals) for name in columns})

    def _sample(self, columns: Sequence[str], ordinals: Ordinals) -> pa.Table | None:
        """Few rows of columns that are not in memory, read from the table; None when the columns are
        better loaded. Columns that are asked for again and again are loaded beside the readers.
        """
        if self.extent < SAMPLED_EXTENT_MIN or len(ordinals) > min(SAMPLED_ROWS_MAX, self.extent // 8):
            return None
        absent = [name for name in columns if name not in self._columns]
        if not absent:
            return None
        for name in absent:
            self._misses[name] = self._misses.get(name, 0) + 1
        if max(self._misses[name] for name in absent) > SAMPLES_MAX:
            work = BACKGROUND.submit(
                self.identity, ("columns", self.contents, *absent), lambda: self._chunks(absent)
            )
            if not work and not BACKGROUND.is_open(self.identity):
                return None
        known = distinct(ordinals[ordinals >= 0])
        rows = self.storage.take(self.handle, self.to_addresses(known), columns)
        if rows.num_rows != len(known):
            return None  # dead rows were asked for as well; in a column they are null
        place = np.minimum(np.searchsorted(known, ordinals), max(len(known) - 1, 0))
        return rows.take(pa.array(place, mask=ordinals < 0))

    def read_live(
        self, columns: Sequence[str], *, after: int = 0
    ) -> Iterator[tuple[Ordinals, pa.RecordBatch]]:
        """The live rows from an ordinal on, with their ordinals, in parts; nothing is kept in memory.

        `after` is where a fragment begins, or the end.
        """
        first = int(np.searchsorted(self._bases[:-1], after))
        shown = [each for each in self._fragments[first:] if each.id != NO_NUMBER]
        if not shown:
            return
        ordinals = self._live_of(shown)
        reader = self.storage.scan(
            self.handle, columns=columns, fragments=[each.id for each in shown], batch_rows=READ_ROWS
        )
        begin = 0
        for batch in reader:
            yield ordinals[begin : begin + batch.num_rows], batch
            begin += batch.num_rows
        if begin != len(ordinals):
            raise InternalError(f"'{self.handle.table_key}' shows other rows than its fragments hold")

    def _live_of(self, fragments: Sequence[Fragment]) -> Ordinals:
        parts: list[Ordinals] = []
        for each in fragments:
            base = self._base_of[each.id]
            mine = np.arange(base, base + each.physical_rows, dtype=np.int64)
            dead = self._dead_rows(each)
            parts.append(np.delete(mine, dead) if len(dead) else mine)
        return np.concatenate(parts)

    def _type_of(self, column: str) -> pa.DataType:
        return self.handle.schema.field(column).type

    def _chunks(self, names: Sequence[str]) -> dict[str, list[pa.Array]]:
        if self._seen_evictions != self.cache.evictions:
            self._forget_columns()
        columns = self._columns
        wanted = [name for name in dict.fromkeys(names) if name not in columns]
        if wanted:
            # Another thread may forget the columns at any time; this call gives what it has read.
            columns = {**columns, **self._read(wanted)}
            self._columns = columns
        return columns

    def _forget_columns(self) -> None:
        self._seen_evictions = self.cache.evictions
        self._columns, self._numbers, self._pickers = {}, {}, {}

    def _chunk_key(self, fragment: Fragment, column: str) -> ChunkKey:
        return (self.identity, self.handle.location, fragment.files, self.handle.column_identity(column))

    def _read(self, names: list[str]) -> dict[str, list[pa.Array]]:
        chunks: dict[str, list[pa.Array | None]] = {
            name: [
                self.cache.get(self._chunk_key(each, name), self._dead_rows(each)) for each in self._fragments
            ]
            for name in names
        }
        absent = [p for p in range(len(self._fragments)) if any(chunks[name][p] is None for name in names)]
        if absent:
            self._scan(names, absent, chunks)
        return {name: [chunk for chunk in chunks[name] if chunk is not None] for name in names}

    def _scan(self, names: list[str], absent: list[int], chunks: dict[str, list[pa.Array | None]]) -> None:
        shown: dict[int, Fragment] = {}
        for place in absent:
            fragment = self._fragments[place]
            if fragment.id != NO_NUMBER:
                shown[place] = fragment
                continue
            for name in names:
                chunks[name][place] = pa.nulls(fragment.physical_rows, self._type_of(name))
        if not shown:
            return
        read = [each.id for each in shown.values()]
        table = self.storage.read(self.handle, columns=names, fragments=read)
        if table.num_rows != sum(each.live_rows for each in shown.values()):
            raise InternalError(f"'{self.handle.table_key}' shows other rows than its fragments hold")
        begin = 0
        for place, fragment in shown.items():
            dead = self._dead_rows(fragment)
            part = table.slice(begin, fragment.live_rows)
            begin += fragment.live_rows
            for name in names:
                chunk = _whole(part.column(name))
                if fragment.deleted_rows:
                    chunk = chunk.take(_with_gaps(fragment.physical_rows, dead))
                chunks[name][place] = chunk
                self.cache.put(self._chunk_key(fragment, name), chunk, dead)


def _with_gaps(rows: int, dead: Offsets) -> pa.Array:
    """For each physical row its place among the live ones; null for dead rows."""
    gone = np.zeros(rows, dtype=np.bool_)
    gone[dead] = True
    return pa.array(np.cumsum(~gone) - 1, mask=gone)


def _whole(column: pa.ChunkedArray) -> Any:
    if column.num_chunks == 0:
        return pa.array([], column.type)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _take_chunks(
    chunks: list[pa.Array], bases: NDArray[np.int64], ordinals: Ordinals, missing: Mask
) -> pa.Array:
    """Values in the order asked for: taken chunk by chunk, then put in order by one take."""
    owner = np.searchsorted(bases, ordinals, side="right") - 1
    owner[missing] = -1
    order = np.argsort(owner, kind="stable")
    parts: list[pa.Array] = []
    owners: list[int] = np.unique(owner[~missing]).tolist()
    for position in owners:
        wanted = ordinals[order[owner[order] == position]] - bases[position]
        parts.append(chunks[position].take(pa.array(wanted)))
    joined = pa.concat_arrays(parts)
    place = np.full(len(ordinals), -1, dtype=np.int64)
    place[order[int(missing.sum()) :]] = np.arange(len(joined), dtype=np.int64)
    return joined.take(pa.array(place, mask=missing if missing.any() else None))
