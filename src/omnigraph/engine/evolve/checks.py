"""The rows that exist against the rules that a schema adds: the rules and sentences of loads, piece by piece.

Key columns are compared by hashes first, some of them at a time, so that memory does not follow the table.
Rows whose hashes are equal are read again and compared as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.arrays.keys import hash_keys, string_array
from omnigraph.catalog.canonical import column_texts, node_ids, unique_tuples
from omnigraph.catalog.codes import NULLABLE_TO_REQUIRED
from omnigraph.catalog.schema import EdgeType, NodeType
from omnigraph.core.errors import ConstraintViolation
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.evolve.filled import tell_misfits, with_fills
from omnigraph.engine.evolve.new_rules import new_rules
from omnigraph.engine.evolve.rows import NewRows, bytes_of
from omnigraph.engine.write.rules import (
    out_of_bounds,
    shared_tuples,
    shared_value,
    tuple_codes,
    wrong_count,
    wrong_id,
)
from omnigraph.engine.write.validate import Violations
from omnigraph.engine.write.values import positions, value_findings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from omnigraph.catalog.table_changes import CatalogChange
    from omnigraph.core.errors import Violation
    from omnigraph.core.ids import TableKey
    from omnigraph.engine.evolve.new_rules import NewRules
    from omnigraph.engine.evolve.rows import Piece, Run
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import TableEntry
    from omnigraph.planning.fills import Fill

HASHES_AT_ONCE: Final = 16_000_000
"""Keys that are compared with each other at a time: eight bytes each."""
HINT: Final = "correct these rows, then apply the schema again; nothing was changed"


@dataclass(frozen=True, slots=True)
class RowCheck:
    """One table whose rows are to be checked."""

    rows: NewRows
    rules: NewRules
    count: int
    """How many rows there are."""

    @property
    def bytes(self) -> int:
        """About how much is read."""
        return bytes_of(self.rows.type.arrow_schema, self.rules.columns, self.count)


def row_checks(
    session: GraphSession,
    change: CatalogChange,
    entries: Mapping[TableKey, TableEntry],
    fills: Mapping[TableKey, Sequence[Fill]],
) -> list[RowCheck]:
    """The tables whose rows a change of the schema puts under new rules, or gives values."""
    checks: list[RowCheck] = []
    for each in change.kept:
        entry, filled = entries.get(each.key), fills.get(each.new_key, ())
        rules = new_rules(each, [fill.name for fill in filled])
        if entry is not None and entry.row_count and rules.columns:
            checks.append(RowCheck(NewRows.of(session, entry, each, filled), rules, entry.row_count))
    return checks


def check_rows(check: RowCheck, run: Run) -> None:
    """Raise `ConstraintViolation` with the rows that break a new rule; return when none does.

    Cost: one pass over the columns of the rules, one more over those of a uniqueness that is broken; nothing
    where only constants are given.
    """
    if _are_constants_that_fit(check):
        return
    pieces = check.rows.pieces()
    violations = Violations()
    if any(fill.follows_row for fill in check.rows.fills):
        _take(violations, run(check_fills, pieces))
        _stop_if_any(violations, check.rows.fills)
    if check.rules.value_columns:
        _take(violations, run(check_values, [ValueTask(piece, check.rules) for piece in pieces]))
    buckets = 1 + check.count // HASHES_AT_ONCE
    for group in check.rules.unique:
        for bucket in range(buckets):
            tasks = [KeyTask(piece, group, bucket, buckets) for piece in pieces]
            _compare(check.rows, group, tasks, run, violations)
    edge = check.rows.type
    if check.rules.counts_edges and isinstance(edge, EdgeType):
        for bucket in range(buckets):
            counted = run(count_sources, [KeyTask(piece, ("src",), bucket, buckets) for piece in pieces])
            _check_counts(edge, counted, violations)
    _stop_if_any(violations, check.rows.fills)


def _are_constants_that_fit(check: RowCheck) -> bool:
    """Whether all that is asked is asked of constants, and these keep the rules: then no row is read."""
    rules, fills = check.rules, check.rows.fills
    constant = {fill.name for fill in fills if not fill.follows_row}
    asked = {prop.name for prop in rules.values.properties}
    if rules.unique or rules.key or rules.counts_edges or not asked <= constant:
        return False
    row = with_fills(pa.table({"id": [""]}), check.rows.type, fills, sorted(asked))
    return next(value_findings(row, rules.values), None) is None


def _stop_if_any(violations: Violations, fills: Sequence[Fill]) -> None:
    if not violations.found:
        return
    first, filled = violations.found[0], {fill.name for fill in fills}
    coded = first.rule == "required" and first.property not in filled
    hint = f"{HINT} [{NULLABLE_TO_REQUIRED}]" if coded else HINT
    raise ConstraintViolation(violations=violations.found, total=violations.total, hint=hint)


def _take(violations: Violations, parts: Iterable[Violations]) -> None:
    for each in parts:
        violations.add(each.found, each.total)


# --- single rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ValueTask:
    """Check the rows of one piece, each by itself."""

    piece: Piece
    rules: NewRules


def check_fills(piece: Piece) -> Violations:
    """The rows whose value does not fit the property that it is to fill."""
    violations = Violations()
    fills = [fill for fill in piece.rows.fills if fill.follows_row]
    for rows in piece.batches(
        list(dict.fromkeys(["id", *(name for fill in fills for name in fill.sources)]))
    ):
        for fill in fills:
            tell_misfits(rows, piece.rows.type, fill, violations)
    return violations


def check_values(task: ValueTask) -> Violations:
    """The rows that break a rule about single rows."""
    rules, violations = task.rules, Violations()
    for rows in task.piece.batches(rules.value_columns):
        ids = rows.column("id")
        for finding in value_findings(rows, rules.values):
            built = (finding.violation(rules.values, row, ids[row].as_py()) for row in finding.rows.tolist())
            violations.add(built, len(finding.rows))
        node = task.piece.rows.type
        if rules.key and isinstance(node, NodeType):
            _check_ids(node, rows, violations)
    return violations


def _check_ids(node: NodeType, rows: pa.Table, violations: Violations) -> None:
    """Every id is the text of its key: else a row would be two things at once."""
    ids, keys = string_array(rows.column("id")), node_ids(rows, node)
    # A key without a value is told by the rule that it must have one.
    wrong = positions(pc.not_equal(ids, keys))
    built = (wrong_id(node, ids[row].as_py(), keys[row].as_py()) for row in wrong.tolist())
    violations.add(built, len(wrong))


# --- uniqueness ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyTask:
    """Read the keys of one piece that fall into one of several buckets."""

    piece: Piece
    group: tuple[str, ...]
    bucket: int
    buckets: int
    wanted: bytes = b""
    """Hashes, sorted: only rows with one of them."""

    def chosen(self, keys: pa.StringArray) -> tuple[pa.Array, NDArray[np.uint64]]:
        """Which of the keys are of this bucket, and their hashes."""
        hashes = hash_keys(keys)
        at = np.flatnonzero(hashes % np.uint64(self.buckets) == np.uint64(self.bucket))
        return pa.array(at), hashes[at]


def hash_tuples(task: KeyTask) -> NDArray[np.uint64]:
    """The hashes of the tuples of a uniqueness; rows with a null in it are exempt."""
    found: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    for rows in task.piece.batches(task.group):
        tuples = unique_tuples(rows, task.group, task.piece.rows.type).drop_null()
        found.append(task.chosen(tuples)[1])
    return np.concatenate(found)


def rows_of_hashes(task: KeyTask) -> pa.Table:
    """The ids and key columns of the rows whose tuple has one of the wanted hashes."""
    wanted = np.frombuffer(task.wanted, np.uint64)
    columns = ["id", *(name for name in task.group if name != "id")]
    found: list[pa.Table] = []
    for rows in task.piece.batches(columns):
        tuples = unique_tuples(rows, task.group, task.piece.rows.type)
        named = rows.filter(tuples.is_valid()) if tuples.null_count else rows
        at, hashes = task.chosen(tuples.drop_null())
        place = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
        found.append(named.take(at.filter(pa.array(wanted[place] == hashes))))
    return pa.concat_tables(found)


def _compare(
    rows: NewRows,
    group: tuple[str, ...],
    tasks: Sequence[KeyTask],
    run: Run,
    violations: Violations,
) -> None:
    hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *run(hash_tuples, tasks)]))
    repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    if not len(repeated):
        return
    wanted = repeated.tobytes()
    again = [KeyTask(each.piece, group, each.bucket, each.buckets, wanted) for each in tasks]
    table = pa.concat_tables(run(rows_of_hashes, again))
    texts = column_texts(table, group, rows.type)
    shared = shared_tuples(
        tuple_codes(texts), np.full(table.num_rows, -1, np.int64), np.arange(table.num_rows, dtype=np.int64)
    )
    ids = table.column("id")

    def describe(head: int, other: int) -> Violation:
        values = [text[head].as_py() for text in texts]
        entity = ids[head].as_py()
        return shared_value(rows.type, group, values, [entity, ids[other].as_py()], entity)

    found = zip(shared.heads.tolist(), shared.others.tolist(), strict=True)
    violations.add((describe(*each) for each in found), len(shared.heads))


# --- cardinality -----------------------------------------------------------------------------------------


def count_sources(task: KeyTask) -> pa.Table:
    """How many edges each source of the bucket has in this piece."""
    found: list[pa.Table] = [pa.table({"src": pa.array([], pa.string()), "edges": pa.array([], pa.int64())})]
    for rows in task.piece.batches(["src"]):
        counted = rows.group_by("src").aggregate([("src", "count")])
        sources = string_array(counted.column("src"))
        at, _ = task.chosen(sources)
        found.append(pa.table({"src": sources.take(at), "edges": counted.column("src_count").take(at)}))
    return _summed(found)


def _summed(parts: Sequence[pa.Table]) -> pa.Table:
    return (
        pa.concat_tables(parts).group_by("src").aggregate([("edges", "sum")]).rename_columns(["src", "edges"])
    )


def _check_counts(edge: EdgeType, parts: Sequence[pa.Table], violations: Violations) -> None:
    table = _summed(parts)
    counts = np.asarray(table.column("edges").to_numpy(), np.int64)
    broken = np.flatnonzero(out_of_bounds(edge, counts))
    sources = table.column("src")
    built = (wrong_count(edge, sources[row].as_py(), int(counts[row])) for row in broken.tolist())
    violations.add(built, len(broken))
