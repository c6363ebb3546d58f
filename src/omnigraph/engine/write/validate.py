"""The one validator: a complete staged change against the committed state it would land on.

Mutations, loads and merges hand over what they would change; every broken rule is collected, none is
reported twice. Order: value rules, uniqueness, endpoints, cardinality.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.arrays.keys import string_array
from omnigraph.catalog.canonical import column_texts
from omnigraph.catalog.schema import Catalog, EdgeType, TableType
from omnigraph.catalog.types import INTEGER_BOUNDS
from omnigraph.core.errors import ConstraintViolation, Violation
from omnigraph.core.ids import TableKey, node_table_key
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import VIOLATIONS_REPORTED_MAX
from omnigraph.engine.write.rules import (
    Positions,
    are_among,
    count_each,
    is_bounded,
    missing_end,
    out_of_bounds,
    shared_tuples,
    shared_value,
    tuple_codes,
    wrong_count,
)
from omnigraph.engine.write.values import positions, value_findings
from omnigraph.planning.filters import FilterText, InSet, filter_text, has_text

PROBED_VALUES_MAX: Final = 1000
"""Up to this many values the table is asked for them by name; above, the column is read once as a whole."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a write does to one table, reduced to one image per id."""

    type: TableType
    rows: pa.Table
    """The rows as they will be, all columns, one per id."""
    removed: pa.StringArray
    """Ids that will be gone and are not in `rows`."""
    former_sources: pa.StringArray | None = None
    """Edges: the sources that removed or changed edges had before."""
    replaces_all: bool = False
    """Whether committed rows of the table do not count at all."""
    adopted: bool = False
    """Whether the table will be, row by row, what another state under the same schema shows: the rules within
    the table hold already. Of a node table `rows` may then have ids only.
    """

    @property
    def ids(self) -> pa.StringArray:
        """The ids of `rows`."""
        return string_array(self.rows.column("id"))


class CommittedState(Protocol):
    """The committed side of a check, at the versions the write was prepared against."""

    def existing(self, table_key: TableKey, ids: pa.StringArray) -> NDArray[np.bool_]:
        """Which of these ids have a committed row."""
        ...

    def read(self, table_key: TableKey, columns: Sequence[str], where: FilterText | None) -> pa.Table:
        """Committed rows; one scan."""
        ...


@dataclass(slots=True)
class Violations:
    """What was found so far: the first ones in full, all of them counted."""

    found: list[Violation] = field(default_factory=list[Violation])
    total: int = 0

    def add(self, violations: Iterable[Violation], count: int) -> None:
        """Take `count` violations of which only as many are built as can be reported."""
        room = VIOLATIONS_REPORTED_MAX - len(self.found)
        self.total += count
        if room > 0:
            self.found.extend(violation for violation, _ in zip(violations, range(room), strict=False))

    def raise_if_any(self) -> None:
        """Raise `ConstraintViolation` when a rule was broken."""
        if self.found:
            raise ConstraintViolation(violations=self.found, total=self.total)


def validate(catalog: Catalog, changes: Mapping[TableKey, TableChange], committed: CommittedState) -> None:
    """Raise `ConstraintViolation` with every rule the change breaks; return when it breaks none.

    Cost: one pass over the changed rows, one probe of the committed side per unique group, endpoint type and
    constrained edge type, whatever the number of rows.
    """
    violations = Violations()
    ordered = [changes[key] for key in sorted(changes)]
    unproven = [change for change in ordered if not change.adopted]
    for change in unproven:
        _check_values(change, violations)
    for change in unproven:
        for group in change.type.unique:
            _check_unique(change, group, committed, violations)
    for change in ordered:
        if isinstance(change.type, EdgeType):
            _check_endpoints(change, change.type, changes, committed, violations)
    for change in ordered:
        if isinstance(change.type, EdgeType):
            _check_cardinality(change, change.type, catalog, changes, committed, violations)
    violations.raise_if_any()


def relates_rows(table_type: TableType) -> bool:
    """Whether a rule of the type speaks of several rows: otherwise each row holds, or does not, by itself."""
    return bool(table_type.unique) or isinstance(table_type, EdgeType)


def _check_values(change: TableChange, violations: Violations) -> None:
    if change.rows.num_rows == 0:
        return
    ids = change.ids
    for finding in value_findings(change.rows, change.type):
        built = (finding.violation(change.type, row, ids[row].as_py()) for row in finding.rows.tolist())
        violations.add(built, len(finding.rows))


# --- uniqueness ----------------------------------------------------------------------------------------


def _check_unique(
    change: TableChange, group: tuple[str, ...], committed: CommittedState, violations: Violations
) -> None:
    staged = change.rows.num_rows
    if staged == 0:
        return
    texts = column_texts(change.rows, group, change.type)
    others = None if change.replaces_all else _committed_holders(change, group, texts, committed)
    if others is None or others.num_rows == 0:
        codes, held = tuple_codes(texts), np.full(staged, -1, np.int64)
    else:
        theirs = column_texts(others, group, change.type)
        both = tuple_codes([pa.concat_arrays(pair) for pair in zip(texts, theirs, strict=True)])
        codes, held = both[:staged], _rows_holding(both[:staged], both[staged:])
    ids, holder_ids = change.ids, None if others is None else others.column("id")
    shared = shared_tuples(codes, held, np.arange(staged, dtype=np.int64))

    def describe(head: int, other: int, holder: int) -> Violation:
        second = ids[other] if other >= 0 or holder_ids is None else holder_ids[holder]
        values = [text[head].as_py() for text in texts]
        entity = ids[head].as_py()
        return shared_value(change.type, group, values, [entity, second.as_py()], entity)

    found = zip(shared.heads.tolist(), shared.others.tolist(), shared.holders.tolist(), strict=True)
    violations.add((describe(*each) for each in found), len(shared.heads))


def _rows_holding(codes: Positions, held: Positions) -> Positions:
    """For each code the first committed row that has it; -1 where none has."""
    first = np.full(int(max(codes.max(initial=0), held.max(initial=0))) + 1, -1, np.int64)
    rows = np.flatnonzero(held >= 0)[::-1]
    first[held[rows]] = rows
    return np.where(codes >= 0, first[codes], -1)


def _committed_holders(
    change: TableChange, group: tuple[str, ...], texts: Sequence[pa.StringArray], committed: CommittedState
) -> pa.Table | None:
    """Committed rows that may hold one of the staged tuples and stay as they are."""
    exempt = np.zeros(len(texts[0]), np.bool_)
    for text in texts:
        exempt |= np.asarray(text.is_null().to_numpy(zero_copy_only=False), np.bool_)
    if exempt.all():
        return None
    probe = None
    for name, text in zip(group, texts, strict=True):
        wanted = text.filter(pa.array(~exempt)).unique()
        if len(wanted) <= PROBED_VALUES_MAX:
            probe = _holding(change.type, name, wanted)
            if probe is not None:
                break
    columns = ["id", *(name for name in group if name != "id")]
    found = committed.read(TableKey(change.type.table_key), columns, probe)
    gone = pa.concat_arrays([change.ids, change.removed])
    return found.filter(pc.invert(pc.is_in(found.column("id"), gone)))


def _holding(table_type: TableType, name: str, canonical: pa.StringArray) -> FilterText | None:
    """A filter for the column from canonical texts; None where the text is not a literal of the column's
    type.
    """
    prop = table_type.get(name)
    if prop is None or prop.type.is_string:
        return filter_text(has_text(name, canonical.to_pylist()))
    if prop.type.is_scalar and prop.type.kind in INTEGER_BOUNDS:
        values = tuple(map(int, canonical.to_pylist()))
        return filter_text(InSet(name, values, prop.type.kind, wanted=True))
    return None


# --- endpoints -----------------------------------------------------------------------------------------


def nodes_after(
    node_type: str, ids: pa.StringArray, changes: Mapping[TableKey, TableChange], committed: CommittedState
) -> NDArray[np.bool_]:
    """Which of these ids name a node of the type once the write has landed."""
    table_key = node_table_key(node_type)
    change = changes.get(table_key)
    there = np.zeros(len(ids), np.bool_)
    if change is not None:
        there |= are_among(ids, change.ids)
        if change.replaces_all:
            return there
    asked = np.flatnonzero(~there)
    if len(asked):
        wanted = ids.take(pa.array(asked))
        found = committed.existing(table_key, wanted)
        if change is not None and len(change.removed):
            found &= ~are_among(wanted, change.removed)
        there[asked] = found
    return there


def _check_endpoints(
    change: TableChange,
    edge: EdgeType,
    changes: Mapping[TableKey, TableChange],
    committed: CommittedState,
    violations: Violations,
) -> None:
    if change.rows.num_rows == 0:
        return
    for column, node_type in (("src", edge.source), ("dst", edge.target)):
        ends = string_array(change.rows.column(column))
        distinct = ends.unique()
        there = nodes_after(node_type, distinct, changes, committed)
        if there.all():
            continue
        missing = distinct.filter(pa.array(~there))
        rows = positions(pc.is_in(ends, missing))
        ids = change.ids
        built = (missing_end(edge, column, ends[row].as_py(), ids[row].as_py()) for row in rows.tolist())
        violations.add(built, len(rows))


# --- cardinality ---------------------------------------------------------------------------------------


def _check_cardinality(
    change: TableChange,
    edge: EdgeType,
    catalog: Catalog,
    changes: Mapping[TableKey, TableChange],
    committed: CommittedState,
    violations: Violations,
) -> None:
    if not is_bounded(edge):
        return
    staged = string_array(change.rows.column("src"))
    parts = [staged] if change.former_sources is None else [staged, change.former_sources]
    sources = pa.concat_arrays(parts).unique()
    node_change = changes.get(node_table_key(catalog.nodes[edge.source].name))
    if node_change is not None and len(node_change.removed):
        sources = sources.filter(pa.array(~are_among(sources, node_change.removed)))
    if len(sources) == 0:
        return
    counts = count_each(sources, staged)
    if not change.replaces_all:
        probe = _holding(edge, "src", sources) if len(sources) <= PROBED_VALUES_MAX else None
        found = committed.read(TableKey(edge.table_key), ["id", "src"], probe)
        gone = pa.concat_arrays([change.ids, change.removed])
        kept = found.filter(pc.invert(pc.is_in(found.column("id"), gone)))
        counts += count_each(sources, string_array(kept.column("src")))
    rows = np.flatnonzero(out_of_bounds(edge, counts))
    built = (wrong_count(edge, sources[row].as_py(), int(counts[row])) for row in rows.tolist())
    violations.add(built, len(rows))
