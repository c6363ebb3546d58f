"""Executing the statements of a mutation against a snapshot, in memory: rows gathered, counted and
validated.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.arrays.addresses import ABSENT, ADDRESS, addresses_in
from omnigraph.arrays.keys import string_array
from omnigraph.catalog.canonical import node_ids
from omnigraph.catalog.schema import EdgeType, NodeType
from omnigraph.core.bounds import current_bounds
from omnigraph.core.errors import ConstraintViolation, KeyConflict, OmnigraphError, ResourceLimit
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import TableKey, new_ulid
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import MUTATION_ROWS_MAX
from omnigraph.engine.write.blobs import assigned_blob, has_addresses, with_contents
from omnigraph.engine.write.committed import CommittedView
from omnigraph.engine.write.embedded import vectors_for
from omnigraph.engine.write.gathered import MutationOpKind, MutationStaging, PendingMode
from omnigraph.engine.write.known_edges import KnownEdges
from omnigraph.engine.write.known_rows import KnownRows, named_id
from omnigraph.engine.write.own_rows import Matched, RowFilter, scan_with_pending
from omnigraph.engine.write.requests import InsertedEntity
from omnigraph.engine.write.rows import constant, pending_schema, row_table
from omnigraph.engine.write.rules import missing_value
from omnigraph.engine.write.validate import PROBED_VALUES_MAX, TableChange, relates_rows, validate
from omnigraph.planning.assign import assigned_value
from omnigraph.planning.filters import filter_text, has_text, some
from omnigraph.planning.ir import DeleteOp, InsertOp, UpdateOp, value_of
from omnigraph.planning.predicate import evaluate, to_lance_filter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from omnigraph.catalog.schema import Catalog, TableType
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.gathered import PendingTable, Savepoint
    from omnigraph.engine.write.requests import MutationRequest
    from omnigraph.manifest.state import TableEntry
    from omnigraph.planning.ir import Predicate, ValueExpr
    from omnigraph.planning.values import Value
    from omnigraph.storage.blob_sources import BlobSources

_LOAD_HINT: Final = "use load, which has no ceiling"


@dataclass(slots=True)
class PreparedMutation:
    """What the statements did so far."""

    affected_nodes: int = 0
    affected_edges: int = 0
    inserted: list[InsertedEntity] = field(default_factory=list[InsertedEntity])
    summary: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])

    def count(self, table_type: TableType, what: str, rows: int) -> None:
        """Add to the affected count and to the commit's summary."""
        if rows == 0:
            return
        if isinstance(table_type, NodeType):
            self.affected_nodes += rows
        else:
            self.affected_edges += rows
        counts = self.summary.setdefault(table_type.table_key, {})
        counts[what] = counts.get(what, 0) + rows


def prepare_mutation(
    session: GraphSession, staging: MutationStaging, request: MutationRequest
) -> PreparedMutation:
    """Run every statement, once per parameter set, and validate the whole change; afterwards `staging` holds
    the write, beside what it held before.

    Nothing is written. Raises what the statements break; then nothing has happened, and `staging` is only
    good for going back to a savepoint. With several sets the error names the set, counted from 1.
    """
    before = staging.savepoint() if len(request.parameter_sets) > 1 else None
    run = _run_statements(session, staging, request)
    if not staging.is_empty:
        try:
            validate(run.catalog, run.changes(), run.view)
        except ConstraintViolation as broken:
            if before is None:
                raise
            raise broken.in_parameter_set(_first_guilty(session, staging, before, request)) from None
        for pending in staging.pending.values():
            pending.proven = len(pending.batches)
    return run.prepared


def _run_statements(session: GraphSession, staging: MutationStaging, request: MutationRequest) -> _Run:
    run = _Run(session, staging, request)
    for number, params in enumerate(request.parameter_sets, 1):
        try:
            _run_set(run, params)
        except OmnigraphError as error:
            if len(request.parameter_sets) == 1:
                raise
            raise error.in_parameter_set(number) from None
    run.finish_deletes()
    request.cancel.raise_if_requested()
    return run


def _run_set(run: _Run, params: Mapping[str, Value]) -> None:
    """All statements in order, with these parameters."""
    run.params = dict(params)
    for statement in run.plan.statements:
        run.request.cancel.raise_if_requested()
        match statement:
            case InsertOp():
                run.insert(statement)
            case UpdateOp():
                run.update(statement)
            case DeleteOp():
                run.delete(statement)
    run.read_blobs()


def _first_guilty(
    session: GraphSession, staging: MutationStaging, before: Savepoint, request: MutationRequest
) -> int:
    """The number of a set with which the change breaks a rule and without which, and what follows, it does
    not. Cost: the sets are prepared again, once per halving of their number.
    """
    holds, breaks = 0, len(request.parameter_sets)
    while breaks - holds > 1:
        middle = (holds + breaks) // 2
        staging.go_back_to(before)
        before = staging.savepoint()
        run = _run_statements(
            session, staging, replace(request, parameter_sets=request.parameter_sets[:middle])
        )
        try:
            if not staging.is_empty:
                validate(run.catalog, run.changes(), run.view)
            holds = middle
        except ConstraintViolation:
            breaks = middle
    return breaks


class _Run:
    """The statements of one call, against the snapshot and what is staged already."""

    def __init__(self, session: GraphSession, staging: MutationStaging, request: MutationRequest) -> None:
        self.request = request
        self.plan = request.plan
        self.parameter_sets = request.parameter_sets
        self.session = session
        self.staging = staging
        self.params: dict[str, Any] = {}
        self.now = request.now
        self.catalog: Catalog = session.catalog_of(staging.snapshot)
        self.view = CommittedView(session, staging)
        self.prepared = PreparedMutation()
        self._deleted: dict[TableKey, _Deleted] = {}
        self._known: dict[str, KnownEdges | None] = {}
        self._asked: set[TableKey] = set()
        self._named: dict[str, KnownRows | None] = {}

    # --- insert ----------------------------------------------------------------------------------------

    def insert(self, op: InsertOp) -> None:
        values = self._assigned_values(op)
        if isinstance(op.type, EdgeType):
            self._insert_edge(op, op.type, values)
        else:
            self._insert_node(op, op.type, values)
        self.prepared.count(op.type, "inserted", 1)
        self._check_limits(op.type)

    def _insert_node(self, op: InsertOp, node: NodeType, values: dict[str, Value]) -> None:
        generated = not node.key
        if generated:
            entity_id = new_ulid()
            rows = row_table(node, {"id": entity_id}, values)
            pending = self.staging.push(node, rows, PendingMode.APPEND, MutationOpKind.INSERT)
            if pending is not None:
                pending.generated.append(pa.array([entity_id], pa.string()))
        else:
            entity_id, rows = self._keyed_row(node, values)
            if op.new:
                self._refuse_existing(node, entity_id)
            self.staging.push(node, rows, PendingMode.MERGE, MutationOpKind.MERGE)
        self.prepared.inserted.append(InsertedEntity(node.name, entity_id, generated))

    def _keyed_row(self, node: NodeType, values: dict[str, Value]) -> tuple[str, pa.Table]:
        """The id that the key gives, and the row."""
        missing = [name for name in node.key if values.get(name) is None]
        if missing:
            raise ConstraintViolation(violations=[missing_value(node, name) for name in missing])
        if len(node.key) == 1 and node.property_named(node.key[0]).type.is_string:
            # The canonical text of a string is the string.
            entity_id = str(values[node.key[0]])
            return entity_id, row_table(node, {"id": entity_id}, values)
        rows = row_table(node, {"id": ""}, values)
        ids = node_ids(rows, node)
        return ids[0].as_py(), rows.set_column(0, rows.schema.field(0), ids)

    def _refuse_existing(self, node: NodeType, entity_id: str) -> None:
        key = TableKey(node.table_key)
        pending = self.staging.pending.get(key)
        wanted = pa.array([entity_id], pa.string())
        if (pending is not None and pending.has(entity_id)) or self.view.existing(key, wanted)[0]:
            raise self._exists(node, entity_id)

    def _exists(self, table_type: TableType, entity_id: str) -> KeyConflict:
        what = "another key" if isinstance(table_type, NodeType) else "other ends"
        return KeyConflict(
            entity_kind=table_type.kind.value,
            type_name=table_type.name,
            entity_id=entity_id,
            hint=f"leave out `new` to replace it, or give {what}",
        )

    def _insert_edge(self, op: InsertOp, edge: EdgeType, values: dict[str, Value]) -> None:
        ends: dict[str, str] = {}
        for column, side, expr in (("src", "from", op.source), ("dst", "to", op.target)):
            value = None if expr is None else self._value(expr)
            if value is None:
                raise ConstraintViolation(violations=[missing_value(edge, side)])
            ends[column] = str(value)
        rows = row_table(edge, {"id": new_ulid(), **ends}, values)
        known = self._known_edges(edge)
        named = None if known is None else known.of(rows)
        if named is not None and op.new:
            raise self._exists(edge, named)
        entity_id: str = named or rows.column("id")[0].as_py()
        if named is None:
            pending = self.staging.push(edge, rows, PendingMode.APPEND, MutationOpKind.INSERT)
            if pending is not None:
                pending.generated.append(pa.array([entity_id], pa.string()))
        else:
            same = rows.set_column(0, rows.schema.field(0), pa.array([named], pa.string()))
            self.staging.push(edge, same, PendingMode.MERGE, MutationOpKind.MERGE)
        if known is not None:
            known.add(rows, entity_id)
        self.prepared.inserted.append(InsertedEntity(edge.name, entity_id, generated=named is None))

    def _known_edges(self, edge: EdgeType) -> KnownEdges | None:
        """What finds the edge that an insert means; None where nothing but an id names one."""
        if edge.identity is None:
            return None
        if edge.name not in self._known:
            inserts = [op for op in self.plan.statements if isinstance(op, InsertOp) and op.type is edge]
            ends = {
                column: [
                    str(value_of(expr, params, self.now))
                    for params in self.parameter_sets
                    for expr in exprs
                    if expr is not None
                ]
                for column, exprs in (
                    ("src", [op.source for op in inserts]),
                    ("dst", [op.target for op in inserts]),
                )
            }
            pending = self.staging.pending.get(TableKey(edge.table_key))
            staged = None if pending is None else pending.combined()
            self._known[edge.name] = KnownEdges(edge, edge.identity, ends, self.view, staged)
        return self._known[edge.name]

    # --- update ----------------------------------------------------------------------------------------

    def update(self, op: UpdateOp) -> None:
        key = TableKey(op.type.table_key)
        pending = self.staging.pending.get(key)
        entry = self.staging.touch(key, MutationOpKind.UPDATE)
        schema = pending_schema(op.type)
        matched = self._named_row(op, entry, pending)
        if matched is None:
            if pending is not None:
                pending.join()
            matched = scan_with_pending(
                self.session.storage,
                self.session.open_entry(entry),
                None if pending is None else pending.combined(),
                projection=schema.names,
                condition=self._condition(op.type, op.predicate),
                key_column="id",
                limit=MUTATION_ROWS_MAX + 1,
            )
        self._refuse_too_many(op.type, matched.rows.num_rows, op.predicate)
        if matched.rows.num_rows == 0:
            if pending is None:
                # Nothing to write; but what was seen decided that, so it stays part of the read set.
                self.staging.record_read(key)
            return
        if isinstance(op.type, EdgeType) and not {name for name, _ in op.assignments}.isdisjoint(
            op.type.identity or ()
        ):
            # Whose name is whose is not followed further: the rule of uniqueness judges later inserts.
            self._known[op.type.name] = None
        rows = self._assigned(op, matched, schema)
        self.prepared.count(op.type, "updated", rows.num_rows)
        pushed = self.staging.push(op.type, rows, PendingMode.MERGE, MutationOpKind.UPDATE)
        if pushed is not None:
            known = matched.addresses != ABSENT
            pushed.located.append((matched.ids.filter(pa.array(known)), matched.addresses[known]))
        self._check_limits(op.type)

    def _named_row(self, op: UpdateOp, entry: TableEntry, pending: PendingTable | None) -> Matched | None:
        """What an update by key means, where others of the query are such updates, too, and the query has not
        written that row itself; None where it has to be searched for.
        """
        entity_id = named_id(op, self.params, self.now)
        if entity_id is None or (pending is not None and pending.has(entity_id)):
            return None
        if op.type.name not in self._named:
            updates = [
                each for each in self.plan.statements if isinstance(each, UpdateOp) and each.type is op.type
            ]
            sets = self.parameter_sets
            ids = {named_id(each, params, self.now) for params in sets for each in updates} - {None}
            self._named[op.type.name] = (
                KnownRows(self.session.storage, self.session.open_entry(entry), ids) if len(ids) > 1 else None
            )
        known = self._named[op.type.name]
        if known is None:
            return None
        columns = pending_schema(op.type).names
        found = known.of(entity_id, columns)
        return Matched(found.select(columns), addresses_in(found))

    def _assigned(self, op: UpdateOp, matched: Matched, schema: pa.Schema) -> pa.Table:
        rows = matched.rows
        columns: dict[str, pa.Array | pa.ChunkedArray] = {name: rows.column(name) for name in schema.names}
        for name, value in self._assigned_values(op).items():
            prop = op.type.property_named(name)
            if isinstance(value, str | bytes):
                # Before it is repeated: a long value in many rows may be more than the machine has.
                self._check_bytes(len(value) * rows.num_rows)
            columns[name] = constant(prop, value, rows.num_rows)
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _refuse_too_many(self, table_type: TableType, rows: int, predicate: Predicate) -> None:
        if rows <= MUTATION_ROWS_MAX:
            return
        handle = self.view.handle(TableKey(table_type.table_key))
        text = self._condition(table_type, predicate).text
        actual = rows if handle is None else max(rows, self.session.storage.count_rows(handle, text))
        raise self._too_many(table_type, actual)

    # --- delete ----------------------------------------------------------------------------------------

    def delete(self, op: DeleteOp) -> None:
        """Select against the state before the query; what several statements select counts once."""
        key = TableKey(op.type.table_key)
        handle = self.view.handle(key)
        self.staging.record_read(key)
        if handle is None:
            return
        columns = ["id", "src"] if isinstance(op.type, EdgeType) else ["id"]
        text = self._condition(op.type, op.predicate).text
        found = self.session.storage.read(handle, columns=columns, filter=text, with_row_address=True)
        self._add_deleted(op.type, found)

    def _add_deleted(self, table_type: TableType, found: pa.Table) -> None:
        if found.num_rows:
            removal = self._deleted.setdefault(TableKey(table_type.table_key), _Deleted(table_type))
            removal.parts.append(found)

    def finish_deletes(self) -> None:
        """Cascade to the edges of deleted nodes, then hand everything over, each entity once."""
        nodes = {d.type.name: d.ids() for d in self._deleted.values() if isinstance(d.type, NodeType)}
        if nodes:
            failpoint(Window.MUTATION_DELETE_NODE_PRE_PRIMARY_DELETE)
        for edge in self.catalog.edges.values():
            sources, targets = nodes.get(edge.source), nodes.get(edge.target)
            if sources is not None or targets is not None:
                self._add_deleted(edge, self._incident(edge, sources, targets))
        for key in sorted(self._deleted):
            removal = self._deleted[key]
            ids, addresses = removal.distinct()
            self.prepared.count(removal.type, "deleted", len(ids))
            self.staging.delete(removal.type, ids, addresses)

    def _incident(
        self, edge: EdgeType, sources: pa.StringArray | None, targets: pa.StringArray | None
    ) -> pa.Table:
        """Edges of the type that start at one of the sources or end at one of the targets."""
        key = TableKey(edge.table_key)
        handle = self.view.handle(key)
        self.staging.record_read(key)
        sides = [(c, ids) for c, ids in (("src", sources), ("dst", targets)) if ids is not None]
        if handle is None:
            return pa.table({"id": pa.array([], pa.string())})
        small = all(len(ids) <= PROBED_VALUES_MAX for _, ids in sides)
        ends = [has_text(column, ids.to_pylist()) for column, ids in sides] if small else []
        where = filter_text(some(ends)) if ends else None
        reader = self.session.storage.scan(
            handle, columns=["id", "src", "dst"], filter=where, with_row_address=True
        )
        kept: list[pa.RecordBatch] = []
        schema = reader.schema
        # Batch by batch: the edges of a few nodes may lie in a table that does not fit into memory.
        for batch in reader:
            masks = [pc.is_in(batch.column(column), value_set=ids) for column, ids in sides]
            kept.append(batch.filter(reduce(pc.or_, masks)))
        return pa.Table.from_batches(kept, schema).select(["id", "src", ADDRESS])

    # --- shared ----------------------------------------------------------------------------------------

    def _value(self, expr: ValueExpr) -> Value:
        return value_of(expr, self.params, self.now)

    def _assigned_values(self, op: InsertOp | UpdateOp) -> dict[str, Value]:
        """What the statement stores: what it assigns, and vectors made from that."""
        values = {name: self._assigned_value(op.type, name, expr) for name, expr in op.assignments}
        return values | vectors_for(op, values, self.request.vectors) if op.type.embeds else values

    def _assigned_value(self, table_type: TableType, name: str, expr: ValueExpr) -> Value:
        prop = table_type.property_named(name)
        value = assigned_value(expr, prop, table_type, params=self.params, now=self.now)
        if value is None or not prop.type.is_blob:
            return value
        self._asked.add(TableKey(table_type.table_key))
        return assigned_blob(table_type, prop, str(value))

    def read_blobs(self) -> None:
        """Copy in the bytes behind the addresses that no later statement replaced."""
        for key in sorted(self._asked):
            pending = self.staging.pending.get(key)
            if pending is None:
                continue
            rows = pending.combined()
            if has_addresses(pending.type, rows):
                pending.take_instead(with_contents(pending.type, rows, self._blob_sources, self._check_bytes))
                self._check_limits(pending.type)
        self._asked.clear()

    @cached_property
    def _blob_sources(self) -> BlobSources:
        from omnigraph.storage.blob_sources import BlobSources  # noqa: PLC0415  few statements assign blobs

        return BlobSources(self.session.settings.blob_sources, self.session.root)

    def _condition(self, table_type: TableType, predicate: Predicate) -> RowFilter:
        text = to_lance_filter(predicate, table_type, self.params, self.now)
        return RowFilter(text, lambda rows: evaluate(predicate, rows, table_type, self.params, self.now))

    def changes(self) -> dict[TableKey, TableChange]:
        """What is to be validated, one image per id: all rows of the write, or those of this call where no
        rule speaks of several rows.
        """
        held = self.staging.pending
        together = any(relates_rows(pending.type) for pending in held.values())
        changed = {
            key: TableChange(pending.type, pending.combined() if together else pending.unproven(), _NO_IDS)
            for key, pending in held.items()
        }
        for key, removal in self._deleted.items():
            ids, _ = removal.distinct()
            changed[key] = TableChange(
                removal.type, pending_schema(removal.type).empty_table(), ids, removal.sources()
            )
        return changed

    def _check_limits(self, table_type: TableType) -> None:
        pending = self.staging.pending[TableKey(table_type.table_key)]
        if pending.row_count > MUTATION_ROWS_MAX:
            raise self._too_many(table_type, pending.row_count)
        if sum(each.nbytes_max for each in self.staging.pending.values()) > self._bytes_max:
            self._check_bytes(sum(each.nbytes for each in self.staging.pending.values()))

    @property
    def _bytes_max(self) -> int:
        own = current_bounds().memory_bytes
        return self.session.settings.mutation_bytes if own is None else own

    def _check_bytes(self, size: int) -> None:
        limit = self._bytes_max
        if size > limit:
            raise ResourceLimit(resource="mutation_bytes", limit=limit, actual=size, hint=_LOAD_HINT)

    def _too_many(self, table_type: TableType, actual: int) -> ResourceLimit:
        return ResourceLimit(
            resource="mutation_rows",
            limit=MUTATION_ROWS_MAX,
            actual=actual,
            type_name=table_type.name,
            hint=_LOAD_HINT,
        )


_NO_IDS: Final = pa.array([], pa.string())


@dataclass(slots=True)
class _Deleted:
    """Rows of one table selected by delete statements or by the cascade; a row may occur several times."""

    type: TableType
    parts: list[pa.Table] = field(default_factory=list[pa.Table])

    def ids(self) -> pa.StringArray:
        return string_array(pa.chunked_array([c for p in self.parts for c in p.column("id").chunks])).unique()

    def distinct(self) -> tuple[pa.StringArray, NDArray[np.uint64]]:
        """Ids and addresses of the selected rows, each row once, by ascending address."""
        ids = pa.chunked_array([c for p in self.parts for c in p.column("id").chunks], pa.string())
        addresses = np.concatenate([addresses_in(part) for part in self.parts])
        once, first = np.unique(addresses, return_index=True)
        return string_array(ids.take(pa.array(first))), once

    def sources(self) -> pa.StringArray | None:
        """The sources the selected edges start at."""
        if not isinstance(self.type, EdgeType):
            return None
        return string_array(
            pa.chunked_array([c for p in self.parts for c in p.column("src").chunks])
        ).unique()
