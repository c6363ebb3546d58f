"""The rules over the whole input and the committed rows: key columns only, one hash partition at a time.

What a rule says is in `engine/write/rules`; here it is asked of facts on disk. Pass one looks at ids:
duplicates, existing rows, what an upsert replaces. It hands on what it frees. Pass two looks at everything
that refers to something: unique tuples, endpoints, cardinality. Both are plain functions over Arrow tables;
Spark tasks and the local engine call the same ones.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.arrays.key_segments import KeySegment
from omnigraph.arrays.keys import hash_keys, string_array
from omnigraph.catalog.schema import EdgeType, NodeType, TableType
from omnigraph.core.errors import KeyConflict
from omnigraph.core.ids import node_table_key
from omnigraph.core.load_options import LoadMode, OnDuplicate
from omnigraph.engine.write.rules import (
    are_among,
    count_each,
    is_bounded,
    lost_end,
    missing_end,
    out_of_bounds,
    repeated_key,
    repeated_tuple,
    shared_tuples,
    shared_value,
    tuple_codes,
    wrong_count,
)
from omnigraph.pipeline.checks.exchange import FactFiles, FactWriter, read_facts
from omnigraph.pipeline.plan import (
    LoadPlan,
    committed_end_space,
    committed_id_space,
    committed_unique_space,
    end_space,
    freed_source_space,
    freed_unique_space,
    id_space,
    unique_space,
)
from omnigraph.pipeline.problems import NO_RECORD, Fault, Problem, ProblemLog, problem_of

Orders = NDArray[np.int64]
_NO_ORDERS: Orders = np.empty(0, np.int64)
_KEEP_ONE: Final = "--on-duplicate first or last (on_duplicate=) keeps one record of an entity"
_MERGE_EDGES: Final = "in merge and patch mode a record changes the edge that has its ends"
_NO_ORDER: Final = np.iinfo(np.int64).max


@dataclass(slots=True)
class Checked:
    """What one pass found in one partition."""

    log: ProblemLog = field(default_factory=ProblemLog)
    faults: list[Fault] = field(default_factory=list[Fault])
    """The records that take part in a violation."""
    superseded: dict[str, Orders] = field(default_factory=dict[str, Orders])
    """Per table: records that a later one of the same id makes void (merge only)."""
    replaced: dict[str, NDArray[np.uint64]] = field(default_factory=dict[str, NDArray[np.uint64]])
    """Per table: addresses of committed rows that this load replaces."""
    replaced_orders: dict[str, Orders] = field(default_factory=dict[str, Orders])
    """Per table: the records that replace them."""
    unblamed: int = 0
    """Violations that no record of the input causes."""
    facts: FactFiles = field(default_factory=FactFiles)

    def blame(
        self,
        kind: str,
        table_type: TableType,
        problems: Iterable[Problem],
        count: int,
        orders: Orders,
        codes: Orders | None = None,
    ) -> None:
        """Note `count` violations and the records that take part in them; those of one code in the same."""
        self.log.add(kind, problems, count)
        if len(orders):
            partners = None if codes is None else _partners(codes, orders)
            self.faults.append(Fault(kind, table_type.name, orders, partners))


def _partners(codes: Orders, orders: Orders) -> Orders:
    """For each record the first other one of its code; -1 where it is alone."""
    by_code = np.lexsort((orders, codes))
    starts = np.flatnonzero(np.r_[True, np.diff(codes[by_code]) != 0])
    sizes = np.diff(np.r_[starts, len(codes)])
    first = np.repeat(orders[by_code][starts], sizes)
    second = np.repeat(np.r_[orders[by_code], -1][np.where(sizes > 1, starts + 1, len(codes))], sizes)
    partners = np.empty(len(codes), np.int64)
    partners[by_code] = np.where(orders[by_code] == first, second, first)
    return partners


@dataclass(frozen=True, slots=True)
class CheckTask:
    """One pass over one partition."""

    plan: LoadPlan
    files: FactFiles
    partition: int
    touched: tuple[str, ...]
    """Table keys with at least one record, plus those an overwrite clears."""
    refused: Orders
    """Records already refused: they count as not there."""
    void: Orders = field(default_factory=lambda: _NO_ORDERS)
    """Records that a later one of the same id supersedes (pass two): they are not written."""

    def facts(self, space: str, *, with_void: bool = False) -> pa.Table | None:
        """The facts of this partition; those of refused and of void records are left out."""
        table = read_facts(self.plan.root, self.files, space, self.partition)
        left_out = self.refused if with_void else np.concatenate([self.refused, self.void])
        if table is None or not len(left_out) or "order" not in table.column_names:
            return table
        gone = np.isin(_orders(table), left_out)
        return table.filter(pa.array(~gone)) if gone.any() else table

    def types(self) -> list[TableType]:
        """The touched types in key order."""
        return [self.plan.catalog.type_of(key) for key in sorted(self.touched)]

    def replaces(self, table_key: str) -> bool:
        """Whether committed rows of the table do not count."""
        return self.plan.mode is LoadMode.OVERWRITE and table_key in self.touched


def _orders(table: pa.Table) -> Orders:
    return np.asarray(table.column("order").to_numpy(), np.int64)


def _texts(table: pa.Table, name: str) -> pa.StringArray:
    return string_array(table.column(name))


# --- pass one: ids -----------------------------------------------------------------------------------


def check_ids(task: CheckTask) -> Checked:
    """Duplicates within the input, ids that exist already, and what an upsert replaces and frees."""
    result = Checked(ProblemLog(kept_max=task.plan.problems_kept))
    writer = FactWriter(task.plan.root, task.plan.exchange, task.plan.partitions)
    for table_type in task.types():
        if task.plan.keeps_one and isinstance(table_type, EdgeType) and table_type.identity is not None:
            _drop_repeated_ends(table_type, table_type.identity, task, result)
        facts = task.facts(id_space(table_type.table_key))
        if facts is None or facts.num_rows == 0:
            continue
        kept = _check_duplicates(table_type, facts, task.plan, result)
        if not task.replaces(table_type.table_key):
            _check_existing(table_type, kept, task, result, writer)
    writer.flush()
    result.facts = writer.files
    return result


def _drop_repeated_ends(edge: EdgeType, identity: tuple[str, ...], task: CheckTask, result: Checked) -> None:
    """Keep one of several new edges with the same ends. One that has an id, given or known, is never dropped
    here: what it replaces is decided by its id.
    """
    facts = task.facts(unique_space(edge.table_key, edge.unique.index(identity)))
    if facts is None or facts.num_rows == 0:
        return
    nameless = facts.filter(facts.column("id").is_null())
    codes = tuple_codes([_texts(nameless, "tuple")])
    _supersede(edge, _repeated_orders(codes, _orders(nameless), task.plan), result)


def _repeated_orders(codes: NDArray[np.int64], orders: Orders, plan: LoadPlan) -> Orders:
    """The records that give way to another one of the same code."""
    first = plan.on_duplicate is OnDuplicate.FIRST
    kept = np.full(int(codes.max(initial=-1)) + 1, _NO_ORDER if first else -1, np.int64)
    (np.minimum if first else np.maximum).at(kept, codes, orders)
    return orders[orders != kept[codes]]


def _supersede(table_type: TableType, void: Orders, result: Checked) -> None:
    if len(void):
        key = table_type.table_key
        result.superseded[key] = np.concatenate([result.superseded.get(key, _NO_ORDERS), void])


def _check_duplicates(table_type: TableType, facts: pa.Table, plan: LoadPlan, result: Checked) -> pa.Table:
    """Refuse or coalesce records of one id; the facts that go on, one per id where coalesced."""
    ids = _texts(facts, "id")
    codes = tuple_codes([ids])
    counts = np.bincount(codes, minlength=1)
    if int(counts.max(initial=0)) < 2:
        return facts
    orders = _orders(facts)
    duplicate = counts[codes] > 1
    merged = plan.mode is LoadMode.MERGE and plan.on_duplicate is None and not _is_keyed(table_type)
    if merged or plan.keeps_one:
        void = _repeated_orders(codes, orders, plan)
        _supersede(table_type, void, result)
        return facts.filter(pa.array(~np.isin(orders, void)))
    at = np.flatnonzero(duplicate)
    at = at[np.argsort(orders[at], kind="stable")]
    _, first = np.unique(codes[at], return_index=True)
    heads = at[np.sort(first)]
    problems = (
        _repeated(table_type, ids[row].as_py(), int(counts[codes[row]]), int(orders[row]))
        for row in heads.tolist()
    )
    kind = "unique" if _is_keyed(table_type) else "key_conflict"
    result.blame(kind, table_type, problems, len(heads), orders[duplicate], codes[duplicate])
    return facts


def _is_keyed(table_type: TableType) -> TypeGuard[NodeType]:
    return isinstance(table_type, NodeType) and bool(table_type.key)


def _repeated(table_type: TableType, entity_id: str, times: int, order: int) -> Problem:
    """Several records have one id: with a key that breaks its uniqueness, else they are in conflict."""
    if _is_keyed(table_type):
        return problem_of(repeated_key(table_type, entity_id, times), order, hint=_KEEP_ONE)
    return _conflict(table_type, entity_id, order, times)


def _conflict(table_type: TableType, entity_id: str, order: int, times: int | None = None) -> Problem:
    kind, name = table_type.kind.value, table_type.name
    said = KeyConflict(entity_kind=kind, type_name=name, entity_id=entity_id, times=times).message
    return Problem("key_conflict", order, said, kind, name, entity_id, actual=times)


def _check_existing(
    table_type: TableType, facts: pa.Table, task: CheckTask, result: Checked, writer: FactWriter
) -> None:
    committed = task.facts(committed_id_space(table_type.table_key))
    if committed is None or committed.num_rows == 0:
        return
    ids = _texts(facts, "id")
    rows = np.arange(committed.num_rows, dtype=np.uint64)
    named, where = KeySegment(_texts(committed, "id"), rows).find(ids, hash_keys(ids))
    held = np.flatnonzero(named)
    if not len(held):
        return
    orders = _orders(facts)
    if task.plan.mode is LoadMode.APPEND:
        problems = (
            _conflict(table_type, ids[row].as_py(), int(orders[row]))
            for row in held[np.argsort(orders[held], kind="stable")].tolist()
        )
        result.blame("key_conflict", table_type, problems, len(held), orders[held])
        return
    found = where[held].astype(np.int64)
    addresses = np.asarray(committed.column("address").to_numpy(), np.uint64)
    result.replaced[table_type.table_key] = addresses[found]
    result.replaced_orders[table_type.table_key] = orders[held]
    _hand_on_freed(table_type, committed.take(pa.array(found)), orders[held], writer)


def _hand_on_freed(table_type: TableType, rows: pa.Table, orders: Orders, writer: FactWriter) -> None:
    """Sources and unique tuples of replaced rows, for pass two."""
    for group in range(len(table_type.unique)):
        name = f"u{group}"
        if name in rows.column_names:
            table = rows.select([name, "id"])
            writer.add(
                freed_unique_space(table_type.table_key, group), table.filter(table.column(0).is_valid())
            )
    if "src" in rows.column_names:
        table = pa.table({"src": rows.column("src"), "order": pa.array(orders)})
        writer.add(freed_source_space(table_type.table_key), table)


# --- pass two: references ----------------------------------------------------------------------------


def check_references(task: CheckTask) -> Checked:
    """Unique tuples, endpoints and cardinality of one partition."""
    result = Checked(ProblemLog(kept_max=task.plan.problems_kept))
    for table_type in task.types():
        for group, names in enumerate(table_type.unique):
            _check_unique(table_type, group, names, task, result)
    nodes: dict[str, pa.StringArray] = {}
    for edge in task.plan.catalog.edges.values():
        for side, name in (("src", edge.source), ("dst", edge.target)):
            _check_endpoint(edge, side, name, task, nodes, result)
    for table_type in task.types():
        if isinstance(table_type, EdgeType) and is_bounded(table_type):
            _check_cardinality(table_type, task, nodes, result)
    return result


def _check_unique(
    table_type: TableType, group: int, names: tuple[str, ...], task: CheckTask, result: Checked
) -> None:
    key = table_type.table_key
    # Two records of one input may not share a tuple, not even when one of them supersedes the other by
    # its id alone. Where one of several is to be kept, the others count as not there.
    facts = task.facts(unique_space(key, group), with_void=not task.plan.keeps_one)
    if facts is None or facts.num_rows == 0:
        return
    tuples, orders, ids = _texts(facts, "tuple"), _orders(facts), _texts(facts, "id")
    holders = _remaining_holders(table_type, group, task)
    holder_ids = _column(holders, "id")
    held = np.full(len(tuples), -1, np.int64)
    if holders is not None and holders.num_rows:
        segment = KeySegment(_texts(holders, "tuple"), np.arange(holders.num_rows, dtype=np.uint64))
        found, where = segment.find(tuples, hash_keys(tuples))
        named = np.asarray(found, np.bool_) & ~np.isin(orders, task.void)
        # The row that the record itself names is no other holder; that it exists is a fault of pass one.
        own = pc.equal(ids, holder_ids.take(pa.array(np.where(named, where, 0))))
        named &= ~np.asarray(pc.fill_null(own, False).to_numpy(zero_copy_only=False), np.bool_)
        held = np.where(named, where.astype(np.int64), -1)
    codes = tuple_codes([tuples])
    shared = shared_tuples(codes, held, orders)

    def problem(head: int, other: int, holder: int) -> Problem:
        # A record without an id of its own has none yet: its line tells it.
        entity = ids[head].as_py()
        second = ids[other].as_py() if other >= 0 else holder_ids[holder].as_py()
        values = json.loads(tuples[head].as_py())
        is_identity = isinstance(table_type, EdgeType) and names == table_type.identity
        if is_identity and other >= 0:
            repeated = repeated_tuple(table_type, names, values, entity)
            return problem_of(repeated, int(orders[head]), hint=_KEEP_ONE)
        held_twice = shared_value(table_type, names, values, [entity, second], entity)
        appends = is_identity and not task.plan.mode.upserts
        return problem_of(held_twice, int(orders[head]), hint=_MERGE_EDGES if appends else None)

    broken = zip(shared.heads.tolist(), shared.others.tolist(), shared.holders.tolist(), strict=True)
    problems = (problem(*each) for each in broken)
    result.blame("unique", table_type, problems, len(shared.heads), orders[shared.rows], codes[shared.rows])


def _remaining_holders(table_type: TableType, group: int, task: CheckTask) -> pa.Table | None:
    """Committed rows with a tuple of this partition that the load leaves as they are."""
    key = table_type.table_key
    if task.replaces(key):
        return None
    committed = task.facts(committed_unique_space(key, group))
    if committed is None or committed.num_rows == 0:
        return None
    freed = task.facts(freed_unique_space(key, group))
    if freed is None or freed.num_rows == 0:
        return committed
    gone = are_among(_texts(committed, "id"), _texts(freed, "id"))
    return committed.filter(pa.array(~gone))


def _node_ids(name: str, task: CheckTask, cache: dict[str, pa.StringArray]) -> pa.StringArray:
    """Ids of the nodes of a type in this partition once the load has landed."""
    if name not in cache:
        key = node_table_key(name)
        parts: list[pa.StringArray] = []
        facts = task.facts(id_space(key))
        if facts is not None:
            parts.append(_texts(facts, "id"))
        if not task.replaces(key):
            committed = task.facts(committed_id_space(key))
            if committed is not None:
                parts.append(_texts(committed, "id"))
        cache[name] = pa.concat_arrays(parts) if parts else pa.array([], pa.string())
    return cache[name]


def _check_endpoint(
    edge: EdgeType,
    side: str,
    node_name: str,
    task: CheckTask,
    nodes: dict[str, pa.StringArray],
    result: Checked,
) -> None:
    key = edge.table_key
    facts = task.facts(end_space(key, side))
    if facts is not None and facts.num_rows:
        ends = _texts(facts, "node")
        missing = np.flatnonzero(~are_among(ends, _node_ids(node_name, task, nodes)))
        if len(missing):
            orders, ids = _orders(facts), _texts(facts, "id")
            problems = (
                problem_of(missing_end(edge, side, ends[row].as_py(), ids[row].as_py()), int(orders[row]))
                for row in missing[np.argsort(orders[missing], kind="stable")].tolist()
            )
            result.blame("endpoint", edge, problems, len(missing), orders[missing])
    if task.replaces(node_table_key(node_name)) and not task.replaces(key):
        _check_left_dangling(edge, side, node_name, task, nodes, result)


def _check_left_dangling(
    edge: EdgeType,
    side: str,
    node_name: str,
    task: CheckTask,
    nodes: dict[str, pa.StringArray],
    result: Checked,
) -> None:
    """Committed edges of a type the load does not replace, whose node the load removes."""
    committed = task.facts(committed_end_space(edge.table_key, side))
    if committed is None or committed.num_rows == 0:
        return
    ends, ids = _texts(committed, "node"), _texts(committed, "id")
    missing = np.flatnonzero(~are_among(ends, _node_ids(node_name, task, nodes)))
    problems = (
        problem_of(lost_end(edge, side, ends[row].as_py(), ids[row].as_py(), write="load"), NO_RECORD)
        for row in missing.tolist()
    )
    result.unblamed += len(missing)
    result.blame("endpoint", edge, problems, len(missing), _NO_ORDERS)


def _check_cardinality(
    edge: EdgeType, task: CheckTask, nodes: dict[str, pa.StringArray], result: Checked
) -> None:
    """Count the edges of every touched source after the load."""
    key = edge.table_key
    facts = task.facts(end_space(key, "src"))
    committed = task.facts(committed_end_space(key, "src"))
    freed = task.facts(freed_source_space(key))
    replaces = task.replaces(key)
    new = _column(facts, "node")
    kept = _column(None if replaces else committed, "node")
    gone = _column(freed, "src")
    former = _column(committed, "node") if replaces else gone
    sources = pa.concat_arrays([new, former]).unique()
    if replaces and task.replaces(node_table_key(edge.source)):
        sources = sources.filter(pa.array(are_among(sources, _node_ids(edge.source, task, nodes))))
    if len(sources) == 0:
        return
    counts = count_each(sources, new) + count_each(sources, kept) - count_each(sources, gone)
    broken = np.flatnonzero(out_of_bounds(edge, counts))
    if len(broken):
        _blame_sources(edge, sources.take(pa.array(broken)), counts[broken], facts, freed, result)


def _blame_sources(
    edge: EdgeType,
    guilty: pa.StringArray,
    counts: NDArray[np.int64],
    facts: pa.Table | None,
    freed: pa.Table | None,
    result: Checked,
) -> None:
    orders: list[Orders] = []
    first = np.full(len(guilty), _NO_ORDER, np.int64)
    for table, column in ((facts, "node"), (freed, "src")):
        if table is None or table.num_rows == 0:
            continue
        part = table.filter(pc.is_in(table.column(column), value_set=guilty))
        orders.append(_orders(part))
        np.minimum.at(first, pc.index_in(part.column(column), value_set=guilty).to_numpy(), _orders(part))
    first[first == _NO_ORDER] = NO_RECORD
    result.unblamed += int(np.count_nonzero(first == NO_RECORD))
    problems = (
        problem_of(wrong_count(edge, guilty[row].as_py(), int(counts[row])), int(first[row]))
        for row in np.argsort(first, kind="stable").tolist()
    )
    blamed = np.concatenate(orders) if orders else _NO_ORDERS
    result.blame("cardinality", edge, problems, len(guilty), blamed)


def _column(table: pa.Table | None, name: str) -> pa.StringArray:
    return pa.array([], pa.string()) if table is None else _texts(table, name)
