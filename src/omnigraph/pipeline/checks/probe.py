"""Committed keys by lookup instead of by scan: a small load into a large table asks for what it names."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from omnigraph.arrays.addresses import ABSENT, ADDRESS
from omnigraph.arrays.keys import string_array
from omnigraph.catalog.schema import EdgeType, TableType
from omnigraph.core.ids import TableKey
from omnigraph.core.load_options import LoadMode
from omnigraph.pipeline.checks.committed import ScanTask, TableNeed, add_committed, committed_columns
from omnigraph.pipeline.checks.exchange import FactFiles, FactWriter, read_facts
from omnigraph.pipeline.plan import (
    LoadPlan,
    end_space,
    id_space,
    unique_space,
)
from omnigraph.storage.fragments import open_pinned, open_tables
from omnigraph.storage.tables import TableStorage

if TYPE_CHECKING:
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot
    from omnigraph.storage.handles import SnapshotHandle

PROBED_KEYS_MAX: Final = 10_000
"""Up to this many records of the input, a table is asked for the keys they name."""
FOUND_KEYS_MAX: Final = 500_000
ROWS_PER_FOUND_ID: Final = 4
"""The same bound for ids that an index in memory finds, at about a microsecond each. With fewer rows per id
than this, a scan is as quick.
"""
INDEXED_ROWS_MAX: Final = 4_000_000
INDEXED_ROWS_PER_RECORD: Final = 100
"""An index is made for a load when the table has at most this many rows, and at most this many per record:
asking for a record by name costs as much as reading a hundred ids, and the index serves whatever comes next.
"""
PROBED_ROWS_MIN: Final = 50_000
"""A smaller table is read as a whole."""

FindIds = Callable[[pa.StringArray], Any]
"""The row address of each id, or `ABSENT`."""


@dataclass(frozen=True, slots=True)
class KeyIndexes:
    """The key indexes this process has, or makes, of what a load is checked against."""

    session: "GraphSession"
    snapshot: "Snapshot"

    def of(self, table_key: str, records: int) -> FindIds | None:
        """What finds ids in a table; None where an index is neither there nor worth making."""
        session = self.session
        handle = session.open_entry(self.snapshot.entries[TableKey(table_key)])
        known = session.keys.known(session.root.identity, session.storage, handle)
        if known is not None:
            return known.index.find
        if handle.row_count > min(INDEXED_ROWS_MAX, records * INDEXED_ROWS_PER_RECORD):
            return None
        return partial(session.keys.addresses, session.root.identity, session.storage, handle)


def probe_committed(
    plan: LoadPlan, wanted: Mapping[str, TableNeed], files: FactFiles, records: int, indexes: KeyIndexes
) -> tuple[FactFiles, dict[str, TableNeed]]:
    """Facts of the committed rows that a small input names, and the tables that still have to be scanned.

    Cost: follows the number of records, whatever the size of the tables (given their indexes).
    """
    if records > FOUND_KEYS_MAX or plan.mode is LoadMode.OVERWRITE:
        return {}, dict(wanted)
    store = open_tables(plan.root, plan.settings, plan.operation_id)
    writer = FactWriter(plan.root, plan.exchange, plan.partitions)
    left: dict[str, TableNeed] = {}
    for key, need in wanted.items():
        table_type = plan.catalog.type_of(key)
        rows = plan.target(table_type).rows
        if rows < PROBED_ROWS_MIN or not _can_probe(table_type, need):
            left[key] = need
            continue
        few = records <= PROBED_KEYS_MAX
        found = records * ROWS_PER_FOUND_ID <= rows and not _needs_rows(plan, table_type, need)
        # Asked for only where it decides: an index may have to be brought up to the snapshot.
        find = indexes.of(key, records) if need.ids and (few or found) else None
        if few or (found and find is not None):
            _Probe(plan, table_type, files, store, writer, find).run(need)
        else:
            left[key] = need
    writer.flush()
    return writer.files, left


def _needs_rows(plan: LoadPlan, table_type: TableType, need: TableNeed) -> bool:
    """Whether more of a committed row decides than that its id is there, and where."""
    ends = tuple(sorted(need.ends))
    task = ScanTask(plan, table_type.table_key, (), ids=need.ids, unique=need.unique, ends=ends)
    return committed_columns(task, table_type) != ["id"]


def _can_probe(table_type: TableType, need: TableNeed) -> bool:
    return not need.unique or all(_text_member(table_type, group) is not None for group in table_type.unique)


def _text_member(table_type: TableType, group: tuple[str, ...]) -> int | None:
    """The position of a member of a unique group whose stored value is its own canonical text."""
    for at, name in enumerate(group):
        prop = table_type.get(name)
        if prop is None or prop.type.is_string:
            return at
    return None


class _Probe:
    """Lookups in one table."""

    def __init__(
        self,
        plan: LoadPlan,
        table_type: TableType,
        files: FactFiles,
        store: TableStorage,
        writer: FactWriter,
        find: FindIds | None,
    ) -> None:
        self.plan = plan
        self.type = table_type
        self.files = files
        self.store = store
        self.writer = writer
        self.find = find
        target = plan.target(table_type)
        self.handle: SnapshotHandle = open_pinned(
            store, target.table_key, target.location, target.branch, target.version
        )

    def run(self, need: TableNeed) -> None:
        key = self.type.table_key
        former: pa.StringArray = pa.array([], pa.string())
        if need.ids:
            ids = [self._keys(id_space(key), "id")]
            for edge in self.plan.catalog.edges.values():
                ends = (("src", edge.source), ("dst", edge.target))
                ids += [
                    self._keys(end_space(edge.table_key, side), "node")
                    for side, name in ends
                    if name == self.type.name and not isinstance(self.type, EdgeType)
                ]
            rows = self._add(pa.concat_arrays(ids), "id", ids=True, unique=need.unique, ends=())
            if rows is not None and "src" in rows.column_names:
                former = string_array(rows.column("src"))
        if need.unique:
            for group, names in enumerate(self.type.unique):
                self._probe_unique(group, names)
        if need.ends:
            # A source that an upsert vacates keeps its other edges: they count too.
            sources = pa.concat_arrays([self._keys(end_space(key, "src"), "node"), former])
            self._add(sources, "src", ids=False, unique=False, ends=tuple(sorted(need.ends)))

    def _probe_unique(self, group: int, names: tuple[str, ...]) -> None:
        at = _text_member(self.type, names) or 0
        tuples = self._keys(unique_space(self.type.table_key, group), "tuple").unique()
        texts = pa.array([json.loads(each)[at] for each in tuples.to_pylist()], pa.string())
        self._add(texts, names[at], ids=False, unique=True, ends=())

    def _keys(self, space: str, column: str) -> pa.StringArray:
        found = [
            read_facts(self.plan.root, self.files, space, number) for number in range(self.plan.partitions)
        ]
        parts = [string_array(table.column(column)) for table in found if table is not None]
        return pa.concat_arrays(parts) if parts else pa.array([], pa.string())

    def _add(
        self, keys: pa.StringArray, column: str, *, ids: bool, unique: bool, ends: tuple[str, ...]
    ) -> pa.Table | None:
        distinct = keys.drop_null().unique()
        if len(distinct) == 0:
            return None
        task = ScanTask(self.plan, self.type.table_key, (), ids=ids, unique=unique, ends=ends)
        rows = self._rows(string_array(distinct), column, committed_columns(task, self.type))
        if rows.num_rows == 0:
            return None
        add_committed(task, self.type, rows, self.writer)
        return rows

    def _rows(self, keys: pa.StringArray, column: str, wanted: list[str]) -> pa.Table:
        """The committed rows whose column holds one of the keys, with their addresses."""
        if column == "id" and self.find is not None:
            found = self.find(keys)
            there = found != ABSENT
            addresses, known = found[there], {"id": keys.filter(pa.array(there))}
        else:
            addresses, known = np.asarray(self.store.addresses_of(self.handle, keys, column), np.uint64), {}
        if len(addresses) == 0 or known.keys() == set(wanted):
            rows = pa.table(known)
        else:
            addresses.sort()
            rows = self.store.take(self.handle, addresses, wanted)
        return rows.append_column(ADDRESS, pa.array(addresses))
