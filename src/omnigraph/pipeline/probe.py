"""Committed keys by lookup instead of by scan: a small load into a large table asks for what it names."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from omnigraph.catalog.schema import EdgeType, TableType
from omnigraph.engine.key_segments import string_array
from omnigraph.pipeline.exchange import FactFiles, FactWriter, read_facts
from omnigraph.pipeline.fragments import ScanTask, add_committed, committed_columns
from omnigraph.pipeline.needs import TableNeed
from omnigraph.pipeline.plan import LoadMode, LoadPlan, end_space, id_space, unique_space
from omnigraph.storage.fragments import open_pinned, open_tables
from omnigraph.storage.tables import TableStore

if TYPE_CHECKING:
    from omnigraph.storage.handles import SnapshotHandle

PROBED_KEYS_MAX: Final = 10_000
"""Keys of the input up to which a table is asked for them by name."""
PROBED_ROWS_MIN: Final = 50_000
"""A smaller table is read as a whole."""


def probe_committed(
    plan: LoadPlan, wanted: Mapping[str, TableNeed], files: FactFiles, records: int
) -> tuple[FactFiles, dict[str, TableNeed]]:
    """Facts of the committed rows that a small input names, and the tables that still have to be scanned.

    Cost: follows the number of records, whatever the size of the tables (given their indexes).
    """
    if records > PROBED_KEYS_MAX or plan.mode is LoadMode.OVERWRITE:
        return {}, dict(wanted)
    store = open_tables(plan.root, plan.settings, plan.operation_id)
    writer = FactWriter(plan.root, plan.exchange, plan.partitions)
    left: dict[str, TableNeed] = {}
    for key, need in wanted.items():
        table_type = plan.catalog.type_of(key)
        if plan.target(table_type).rows < PROBED_ROWS_MIN or not _can_probe(table_type, need):
            left[key] = need
        else:
            _Probe(plan, table_type, files, store, writer).run(need)
    writer.flush()
    return writer.files, left


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
        self, plan: LoadPlan, table_type: TableType, files: FactFiles, store: TableStore, writer: FactWriter
    ) -> None:
        self.plan = plan
        self.type = table_type
        self.files = files
        self.store = store
        self.writer = writer
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
        addresses = np.asarray(self.store.addresses_of(self.handle, distinct, column), np.uint64)
        if len(addresses) == 0:
            return None
        task = ScanTask(self.plan, self.type.table_key, (), ids=ids, unique=unique, ends=ends)
        rows = self.store.take(self.handle, addresses, committed_columns(task, self.type))
        rows = rows.append_column("_rowaddr", pa.array(addresses))
        add_committed(task, self.type, rows, self.writer)
        return rows
