"""The committed rows a load is checked against: which key columns decide, and their scan as facts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from omnigraph.arrays.addresses import ADDRESS
from omnigraph.catalog.canonical import unique_tuples
from omnigraph.catalog.schema import EdgeType, TableType
from omnigraph.core.ids import node_table_key
from omnigraph.core.load_options import LoadMode
from omnigraph.engine.write.rules import is_bounded
from omnigraph.pipeline.checks.exchange import FactFiles, FactWriter
from omnigraph.pipeline.plan import (
    LoadPlan,
    committed_end_space,
    committed_id_space,
    committed_unique_space,
)
from omnigraph.storage.fragments import open_pinned, open_tables


@dataclass(slots=True)
class TableNeed:
    """What the checks want to know about the committed rows of one table."""

    ids: bool = False
    unique: bool = False
    ends: set[str] = field(default_factory=set[str])


def needs(plan: LoadPlan, touched: Iterable[str], given_ids: Mapping[str, int]) -> dict[str, TableNeed]:
    """Which committed key columns decide about this load. A table without rows is never read."""
    wanted: dict[str, TableNeed] = {}
    keys = set(touched)
    overwrite = plan.mode is LoadMode.OVERWRITE

    def need(key: str) -> TableNeed:
        return wanted.setdefault(key, TableNeed())

    for key in keys:
        table_type = plan.catalog.type_of(key)
        if not overwrite:
            need(key).ids |= given_ids.get(key, 0) > 0
            need(key).unique |= bool(table_type.unique)
        if isinstance(table_type, EdgeType):
            if is_bounded(table_type):
                need(key).ends.add("src")
            for name in (table_type.source, table_type.target):
                node = node_table_key(name)
                if not (overwrite and node in keys):
                    need(node).ids = True
    if overwrite:
        for edge in plan.catalog.edges.values():
            if edge.table_key in keys:
                continue
            for side, name in (("src", edge.source), ("dst", edge.target)):
                if node_table_key(name) in keys:
                    need(edge.table_key).ends.add(side)
    return {key: each for key, each in wanted.items() if each.ids or each.unique or each.ends}


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Read key columns of some fragments of one committed table."""

    plan: LoadPlan
    table_key: str
    fragments: tuple[int, ...]
    ids: bool
    """Whether ids, addresses and what an upsert frees are wanted."""
    unique: bool
    ends: tuple[str, ...]
    """Endpoint columns that are wanted."""


def scan_committed(task: ScanTask) -> FactFiles:
    """Write the key facts of committed rows. Reads no property that no check needs."""
    plan = task.plan
    table_type = plan.catalog.type_of(task.table_key)
    target = plan.target(table_type)
    store = open_tables(plan.root, plan.settings, plan.operation_id)
    handle = open_pinned(store, target.table_key, target.location, target.branch, target.version)
    columns = committed_columns(task, table_type)
    writer = FactWriter(plan.root, plan.exchange, plan.partitions)
    reader = store.scan(handle, columns=columns, fragments=task.fragments, with_row_address=True)
    for batch in reader:
        add_committed(task, table_type, pa.Table.from_batches([batch]), writer)
        writer.flush_when_full()
    writer.flush()
    return writer.files


def committed_columns(task: ScanTask, table_type: TableType) -> list[str]:
    """The columns a scan of this table reads."""
    names = ["id", *task.ends]
    if is_bounded(table_type) and "src" not in names:
        names.append("src")
    if task.unique:
        names += [name for group in table_type.unique for name in group]
    return list(dict.fromkeys(names))


def add_committed(task: ScanTask, table_type: TableType, rows: pa.Table, writer: FactWriter) -> None:
    """Facts of committed rows that a scan or a probe returned."""
    key = task.table_key
    tuples = [unique_tuples(rows, group, table_type) for group in table_type.unique] if task.unique else []
    if task.ids:
        columns: dict[str, pa.Array | pa.ChunkedArray] = {
            "id": rows.column("id"),
            "address": rows.column(ADDRESS),
        }
        if task.plan.mode.upserts:
            if is_bounded(table_type):
                columns["src"] = rows.column("src")
            columns |= {f"u{group}": values for group, values in enumerate(tuples)}
        writer.add(committed_id_space(key), pa.table(columns))
    for group, values in enumerate(tuples):
        facts = pa.table({"tuple": values, "id": rows.column("id")})
        facts = facts.filter(values.is_valid()) if values.null_count else facts
        writer.add(committed_unique_space(key, group), facts)
    for side in task.ends:
        facts = pa.table({"node": rows.column(side), "id": rows.column("id")})
        writer.add(committed_end_space(key, side), facts)
