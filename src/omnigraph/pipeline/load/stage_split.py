"""What a task does with its piece of the input: parse, judge values, give ids, stage rows, write key facts.

The functions here take small frozen values and return small picklable ones. A Spark task and the local engine
call the same functions; neither knows which one it is.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.catalog.canonical import node_ids, unique_tuples
from omnigraph.catalog.schema import EdgeType, NodeType, TableType
from omnigraph.core.errors import InternalError
from omnigraph.core.limits import MIB
from omnigraph.core.load_options import LoadMode
from omnigraph.engine.write.rules import is_bounded
from omnigraph.engine.write.values import value_findings
from omnigraph.pipeline.checks.exchange import FactFiles, FactWriter
from omnigraph.pipeline.input.reader import SplitReader
from omnigraph.pipeline.input.records import ParsedRows, keep
from omnigraph.pipeline.input.sources import expected_bytes, stored_bytes
from omnigraph.pipeline.load.blobs import BlobFinding, ExternalBlobs
from omnigraph.pipeline.load.ids import new_ids
from omnigraph.pipeline.load.known_edges import named_by_ends
from omnigraph.pipeline.load.patch import filled_from_committed
from omnigraph.pipeline.load.table_writers import TableWriters, table_writers
from omnigraph.pipeline.load.vectors import with_vectors
from omnigraph.pipeline.plan import (
    LoadPlan,
    Split,
    end_space,
    id_space,
    unique_space,
)
from omnigraph.pipeline.problems import Problem, ProblemLog, order_of, problem_of
from omnigraph.pipeline.spark.executors import part_done, raise_if_stopped
from omnigraph.storage.fragments import (
    open_pinned,
    open_tables,
    remove_fragments,
    write_uncommitted_fragments,
)
from omnigraph.storage.handles import Fragment
from omnigraph.storage.memory import give_back

STAGED_BYTES_MAX: Final = 64 * MIB
"""Arrow bytes of rows a task holds before it writes them out."""

_OUTSIDE_KINDS: Final = frozenset({"blob_policy", "blob_source", "resource_limit"})
"""Problems that may lie in a blob, or in what a handle may read. A record that is too long is among them."""


@dataclass(slots=True)
class SplitResult:
    """What one split gave. `records` = rows staged + `refused` + `at_fault` + skipped, always."""

    split: int
    lines: int = 0
    records: int = 0
    bytes: int = 0
    fragments: dict[str, list[Fragment]] = field(default_factory=dict[str, list[Fragment]])
    """What was written and nobody points at, per table."""
    rows: dict[str, int] = field(default_factory=dict[str, int])
    """Rows staged, per table."""
    read: dict[str, int] = field(default_factory=dict[str, int])
    """Records whose type is known, per table; those of a wrong form count."""
    given_ids: dict[str, int] = field(default_factory=dict[str, int])
    """Records whose id the caller chose, per table."""
    facts: FactFiles = field(default_factory=FactFiles)
    log: ProblemLog = field(default_factory=ProblemLog)
    refused: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Orders of records whose form is wrong: never staged, in no fact."""
    at_fault: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Orders of records that break a value rule: never staged, but their ids count in the checks."""
    skipped: int = 0

    def staged(self) -> Iterator[Fragment]:
        """The fragments of all tables."""
        return itertools.chain.from_iterable(self.fragments.values())

    @property
    def judged_surroundings(self) -> bool:
        """Whether a record was refused for something outside of the input, which may have changed since."""
        return not _OUTSIDE_KINDS.isdisjoint(self.log.totals)


@dataclass(frozen=True, slots=True)
class StageTask:
    """Stage one split. `skip` are orders to leave out (refused or superseded ones, in a second run)."""

    plan: LoadPlan
    split: Split
    skip: NDArray[np.int64]
    write_facts: bool = True


def sizes_of(tasks: Sequence[StageTask]) -> list[int]:
    """The stored bytes each task reads."""
    return stored_bytes([task.split for task in tasks])


def stage_split(task: StageTask) -> SplitResult:
    """Read one split and stage its rows by type. Memory is bounded whatever the size of the split."""
    with table_writers(task.plan) as writers:
        stage = _SplitStage(task, writers)
        try:
            return _staged(stage, task)
        except BaseException:
            remove_fragments(task.plan.root, stage.result.staged())  # nobody will ever hear of them
            raise


def _staged(stage: "_SplitStage", task: StageTask) -> SplitResult:
    plan = task.plan
    reader = SplitReader(
        plan.catalog,
        task.split,
        presence=plan.mode is LoadMode.PATCH,
        embeds=plan.embedder is not None,
    )
    expected = expected_bytes(task.split)
    for parsed in reader.parsed(stage.result.log):
        raise_if_stopped()
        for rows in parsed:
            stage.take(rows)
        stage.write_out(STAGED_BYTES_MAX)
        if expected:
            part_done(reader.bytes / expected)
    stage.write_out(0)
    stage.facts.flush()
    result = stage.result
    result.lines, result.records, result.bytes = reader.lines, reader.records, reader.bytes
    for key, count in reader.refused_of.items():
        result.read[key] = result.read.get(key, 0) + count
    base = order_of(task.split.number, 0)
    refused = np.unique(np.array([*reader.refused, *stage.refused], np.int64)) + base
    result.refused = refused
    result.at_fault = np.unique(np.concatenate(stage.at_fault)) if stage.at_fault else result.at_fault
    result.facts = stage.facts.files
    return result


def prove_nothing_lost(results: Iterable[SplitResult]) -> None:
    """Every record read was staged, refused or left out on purpose; anything else would be a lost row."""
    for result in results:
        accounted = sum(result.rows.values()) + len(result.refused) + len(result.at_fault) + result.skipped
        if accounted != result.records:
            raise InternalError(
                f"split {result.split} read {result.records} records and accounts for {accounted}"
            )


class _SplitStage:
    """The rows of one split on their way to fragments."""

    def __init__(self, task: StageTask, writers: TableWriters) -> None:
        self.plan = task.plan
        self.skip = task.skip
        self.base = order_of(task.split.number, 0)
        self.result = SplitResult(task.split.number, log=ProblemLog(kept_max=task.plan.problems_kept))
        self.blobs = ExternalBlobs(task.plan)
        self.facts = FactWriter(task.plan.root, task.plan.exchange, task.plan.partitions)
        self.write_facts = task.write_facts
        self.refused: list[int] = []
        self.at_fault: list[NDArray[np.int64]] = []
        self._held: dict[str, list[pa.Table]] = {}
        self._held_bytes = 0
        self._writers = writers
        self._store = open_tables(task.plan.root, task.plan.settings, task.plan.operation_id)

    def take(self, rows: ParsedRows) -> None:
        """Finish, judge and hold the records of one type."""
        plan, result = self.plan, self.result
        key = rows.type.table_key
        result.read[key] = result.read.get(key, 0) + rows.rows
        if plan.mode.upserts:
            rows = named_by_ends(rows, _with_defaults(rows), plan, self._store)
        if plan.mode is LoadMode.PATCH:
            rows = with_vectors(rows, plan.embedder, mentioned=True)
            rows = filled_from_committed(rows, plan, self._store)
        rows = with_vectors(_with_defaults(rows), plan.embedder, mentioned=False)
        rows, table, given = self._identified(rows)
        if rows.rows == 0:
            return
        orders = self.base + rows.lines
        result.given_ids[key] = result.given_ids.get(key, 0) + int(given.sum())
        bad = self._judge(table, rows, orders)
        if self.write_facts:
            self._add_facts(table, rows.type, orders, given)
        left_out = np.isin(orders, self.skip) & ~bad if len(self.skip) else np.zeros(len(bad), np.bool_)
        result.skipped += int(left_out.sum())
        keep_rows = ~(bad | left_out)
        if not keep_rows.all():
            table = table.filter(pa.array(keep_rows))
        if table.num_rows:
            for piece in self.blobs.pieces(table, rows.type):
                stored = piece.cast(rows.type.arrow_schema)
                self._held.setdefault(key, []).append(stored)
                self._held_bytes += int(stored.nbytes)
                self.write_out(STAGED_BYTES_MAX)

    def _identified(self, rows: ParsedRows) -> tuple[ParsedRows, pa.Table, NDArray[np.bool_]]:
        """Give every record its id; `given` marks ids that the caller chose."""
        columns = pa.table(dict(rows.columns)) if rows.columns else None
        if isinstance(rows.type, NodeType) and rows.type.key and columns is not None:
            ids = node_ids(columns, rows.type)
            wrong = _true(pc.and_kleene(pc.is_valid(rows.ids), pc.not_equal(rows.ids, ids)))
            if wrong.any():
                self._refuse_ids(rows, ids, wrong)
                rows = keep(rows, ~wrong)
                ids = ids.filter(pa.array(~wrong))
            given = _true(pc.is_valid(ids))
        else:
            given = _true(pc.is_valid(rows.ids))
            ids = rows.ids if given.all() else pc.coalesce(rows.ids, new_ids(rows.rows))
        names = ["id", *([] if rows.sources is None else ["src", "dst"]), *rows.columns]
        ends = [end for end in (rows.sources, rows.targets) if end is not None]
        return rows, pa.table([ids, *ends, *rows.columns.values()], names=names), given

    def _refuse_ids(self, rows: ParsedRows, ids: pa.StringArray, wrong: NDArray[np.bool_]) -> None:
        at = np.flatnonzero(wrong)
        self.refused += rows.lines[at].tolist()

        def problems() -> Iterator[Problem]:
            for row in at.tolist():
                given, derived = rows.ids[row].as_py(), ids[row].as_py()
                yield Problem(
                    kind="format",
                    order=self.base + int(rows.lines[row]),
                    message=f"{rows.type.name}: the id '{given}' is not the key's id '{derived}'",
                    entity_kind="node",
                    type_name=rows.type.name,
                    entity_id=given,
                    property="id",
                )

        self.result.log.add("format", problems(), len(at))

    def _judge(self, table: pa.Table, rows: ParsedRows, orders: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Rules about single rows, by the functions a mutation uses."""
        bad = np.zeros(table.num_rows, np.bool_)
        ids = table.column("id")
        for finding in value_findings(table, rows.type):
            bad[finding.rows] = True
            problems = (
                problem_of(finding.violation(rows.type, row, ids[row].as_py()), int(orders[row]))
                for row in finding.rows.tolist()
            )
            self.result.log.add(finding.rule, problems, len(finding.rows))
        for finding in self.blobs.findings(table, rows.type):
            bad[finding.rows] = True
            refusals = (
                self._blob_problem(finding, row, rows.type, int(orders[row]), ids[row].as_py())
                for row in finding.rows.tolist()
            )
            self.result.log.add(finding.rule, refusals, len(finding.rows))
        if bad.any():
            self.at_fault.append(orders[bad])
        return bad

    def _blob_problem(
        self, finding: BlobFinding, row: int, table_type: TableType, order: int, entity_id: str | None
    ) -> Problem:
        resource, limit, actual = finding.limit(row) or (finding.property, None, None)
        return Problem(
            kind=finding.rule,
            order=order,
            message=f"{table_type.name}.{finding.describe(row)}",
            entity_kind=table_type.kind.value,
            type_name=table_type.name,
            entity_id=entity_id,
            property=resource,
            limit=limit,
            actual=actual,
        )

    def _add_facts(
        self, table: pa.Table, table_type: TableType, orders: NDArray[np.int64], given: NDArray[np.bool_]
    ) -> None:
        """The key columns the checks over the whole input need; nothing for ids nobody else can name."""
        key = table_type.table_key
        order = pa.array(orders)
        tuples = [unique_tuples(table, group, table_type) for group in table_type.unique]
        given_ids = _only_given(table.column("id"), given)
        if given.any():
            columns: dict[str, pa.Array | pa.ChunkedArray] = {"id": table.column("id"), "order": order}
            if self.plan.mode.upserts:
                if is_bounded(table_type):
                    columns["src"] = table.column("src")
                columns |= {f"u{group}": values for group, values in enumerate(tuples)}
            facts = pa.table(columns)
            self.facts.add(id_space(key), facts if given.all() else facts.filter(pa.array(given)))
        for group, values in enumerate(tuples):
            facts = pa.table({"tuple": values, "order": order, "id": given_ids})
            valid = values.is_valid()
            self.facts.add(unique_space(key, group), facts.filter(valid) if values.null_count else facts)
        if isinstance(table_type, EdgeType):
            for side in ("src", "dst"):
                facts = pa.table({"node": table.column(side), "order": order, "id": given_ids})
                self.facts.add(end_space(key, side), facts)

    def write_out(self, bytes_max: int) -> None:
        """Write held rows as fragments when they exceed `bytes_max`, and facts by a bound of their own."""
        self.facts.flush_when_full()
        if self._held_bytes <= bytes_max:
            return
        give_back()  # what parsing left in reserve would come on top of what writing needs
        held, self._held, self._held_bytes = self._held, {}, 0
        self._writers.write(held, self._write_table, self._wrote)
        give_back()

    def _write_table(self, key: str, pieces: list[pa.Table]) -> tuple[Fragment, ...]:
        rows = pa.concat_tables(pieces)
        target = self.plan.target(self.plan.catalog.type_of(key))
        handle = open_pinned(self._store, target.table_key, target.location, target.branch, target.version)
        written = write_uncommitted_fragments(
            self.plan.root,
            self._store,
            handle,
            rows,
            operation_id=self.plan.operation_id,
            replaces_all=self.plan.mode is LoadMode.OVERWRITE,
        )
        pieces.clear()  # other tables are still being written: their memory is enough
        return written

    def _wrote(self, key: str, written: tuple[Fragment, ...]) -> None:
        self.result.fragments.setdefault(key, []).extend(written)
        rows = sum(fragment.live_rows for fragment in written)
        self.result.rows[key] = self.result.rows.get(key, 0) + rows


def _only_given(ids: pa.ChunkedArray, given: NDArray[np.bool_]) -> pa.ChunkedArray | pa.Array:
    """The ids that the caller chose; a column without one takes no space."""
    if given.all():
        return ids
    if not given.any():
        return pa.nulls(len(ids))
    return pc.if_else(pa.array(given), ids, pa.scalar(None, pa.string()))


def _with_defaults(rows: ParsedRows) -> ParsedRows:
    """Properties that were not mentioned take their declared default; an explicit null does not."""
    defaults = rows.type.defaults
    if not defaults:
        return rows
    columns = dict(rows.columns)
    for name, value in defaults.items():
        absent = rows.absent.get(name)
        if absent is not None and absent.any():
            column = columns[name]
            columns[name] = pc.if_else(pa.array(absent), pa.scalar(value, column.type), column)
    return dataclasses.replace(rows, columns=columns)


def _true(condition: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(condition, False).to_numpy(zero_copy_only=False), np.bool_)
