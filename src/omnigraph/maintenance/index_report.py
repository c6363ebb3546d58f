"""What the indexes of a graph are worth: which exist, what they cover, and whether comparisons use them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from omnigraph.catalog.schema import EdgeType
from omnigraph.core import html
from omnigraph.core.ids import TableKey, show_branch
from omnigraph.engine.entities.export import select_types
from omnigraph.maintenance.indices import Unneeded, declared_plans, present_of, unneeded
from omnigraph.storage.indexes import IndexKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from omnigraph.catalog.schema import TableType
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot
    from omnigraph.storage.handles import SnapshotHandle
    from omnigraph.storage.indexes import IndexCoverage, IndexPlan


@dataclass(frozen=True, slots=True)
class Indexed:
    """An equality or range on the column is answered by an index that knows every row."""


@dataclass(frozen=True, slots=True)
class Degraded:
    """An equality or range on the column scans."""

    reason: str


Coverage = Indexed | Degraded


class IndexState(StrEnum):
    """How far an index has come."""

    COMPLETE = "complete"
    """It knows every row."""
    PARTIAL = "partial"
    """Some fragments are scanned beside it."""
    MISSING = "missing"
    """It is declared and not built yet."""
    EMPTY = "nothing to index yet"
    """It is declared, and the table has no row."""
    EXACT_SEARCH = f"not needed: {Unneeded.EXACT_SEARCH}"
    """It is declared and not built: a search compares every vector, and no part of them is asked for."""
    READ_STRUCTURES = f"not needed: {Unneeded.READ_STRUCTURES}"
    """It is not built: the key index, the adjacency or analysed words, kept in files, answer before it."""


@dataclass(frozen=True, slots=True)
class IndexReport:
    """One index, declared or built."""

    name: str
    kind: str
    declared: bool
    state: IndexState
    segments: int = 0
    covered: int = 0
    """Fragments whose rows it knows."""
    uncovered: int = 0
    """Fragments that a search has to scan."""
    bytes: int = 0
    """Of its files."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.name,
            "kind": self.kind,
            "declared": self.declared,
            "state": self.state.value,
            "segments": self.segments,
            "covered_fragments": self.covered,
            "uncovered_fragments": self.uncovered,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """One column of one type: the indexes on it and whether comparisons use one."""

    type_name: str
    column: str
    indexes: tuple[IndexReport, ...]
    coverage: Coverage

    @property
    def declared(self) -> tuple[str, ...]:
        """Kinds of the indexes the schema asks for."""
        return tuple(each.kind for each in self.indexes if each.declared)

    @property
    def present(self) -> tuple[str, ...]:
        """Names of the indexes that exist."""
        return tuple(sorted(each.name for each in self.indexes if each.segments))

    @property
    def uncovered(self) -> int:
        """Fragments that some existing or needed index does not know."""
        return max((each.uncovered for each in self.indexes), default=0)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        comparisons = {"state": "Indexed"} if isinstance(self.coverage, Indexed) else _degraded(self.coverage)
        return {
            "type_name": self.type_name,
            "column": self.column,
            "comparisons": comparisons,
            "indexes": [each.to_dict() for each in self.indexes],
        }


def _degraded(coverage: Degraded) -> dict[str, str]:
    return {"state": "Degraded", "reason": coverage.reason}


@dataclass(frozen=True, slots=True)
class IndexesReport(html.Shown):
    """The columns of a state, in the order of the schema, with their indexes."""

    branch: str
    commit_id: str
    columns: tuple[ColumnReport, ...]

    def __iter__(self) -> Iterator[ColumnReport]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "branch": self.branch,
            "graph_commit_id": self.commit_id,
            "columns": [each.to_dict() for each in self.columns],
        }

    def _shown(self) -> html.Pieces:
        rows = [
            (column.type_name, column.column, each.name, each.state.value, each.segments, each.uncovered)
            for column in self.columns
            for each in column.indexes
        ]
        head = ("type", "column", "index", "state", "segments", "uncovered fragments")
        return html.table(head, rows, caption=f"indexes of {self.branch}")


def index_report(
    session: GraphSession, snapshot: Snapshot, types: Sequence[str] | None = None
) -> IndexesReport:
    """Every column that has or could have an index, at one snapshot. Cost: metadata only.

    Raises TypeNotFound.
    """
    found: list[ColumnReport] = []
    for table_type in select_types(session.catalog_of(snapshot), types):
        entry = snapshot.entries.get(TableKey(table_type.table_key))
        if entry is not None:
            found.extend(_table_report(session, table_type, session.open_entry(entry)))
    return IndexesReport(show_branch(snapshot.branch), snapshot.head, tuple(found))


def column_coverage(handle: SnapshotHandle, column: str, existing: Sequence[IndexCoverage]) -> Coverage:
    """Whether comparisons on a column are served by one of the indexes of its table."""
    if column not in handle.schema.names:
        return Degraded(f"there is no column '{column}'")
    ordered = [
        each for each in existing if each.kind.upper() == IndexKind.BTREE.value and each.columns == (column,)
    ]
    if not ordered:
        return Degraded("no ordered index on the column")
    uncovered = min(len(each.uncovered) for each in ordered)
    if uncovered:
        return Degraded(f"{uncovered} fragments are not covered by the index")
    return Indexed()


def _table_report(session: GraphSession, table_type: TableType, handle: SnapshotHandle) -> list[ColumnReport]:
    plans = declared_plans(table_type)
    existing = session.storage.index_coverage(handle)
    fixed = ("id", "src", "dst") if isinstance(table_type, EdgeType) else ("id",)
    reports: list[ColumnReport] = []
    for column in dict.fromkeys((*fixed, *(prop.name for prop in table_type.properties))):
        mine = {plan.name: plan for plan in plans if plan.column == column}
        here = {each.role: each for each in existing if each.columns == (column,)}
        indexes = [
            _index(session, table_type, handle, name, mine.get(name), here.get(name))
            for name in dict.fromkeys((*mine, *here))
        ]
        coverage = column_coverage(handle, column, existing)
        reports.append(ColumnReport(table_type.name, column, tuple(indexes), coverage))
    return reports


def _index(
    session: GraphSession,
    table_type: TableType,
    handle: SnapshotHandle,
    name: str,
    plan: IndexPlan | None,
    there: IndexCoverage | None,
) -> IndexReport:
    built = there if plan is None or there is None else present_of(plan, {name: there})
    if plan is not None and (built is None or not built.covered):
        why = unneeded(session, table_type, plan, handle.row_count)
        if why is not None:
            return IndexReport(name, plan.kind.value, declared=True, state=IndexState(f"not needed: {why}"))
    if plan is not None and built is None:
        missed = handle.fragment_count
        state = IndexState.MISSING if missed else IndexState.EMPTY
        return IndexReport(name, plan.kind.value, declared=True, state=state, uncovered=missed)
    assert there is not None  # noqa: S101 - whoever has no plan was found in the table
    state = IndexState.PARTIAL if there.uncovered else IndexState.COMPLETE
    return IndexReport(
        name,
        there.kind.upper(),
        declared=plan is not None,
        state=state,
        segments=there.segments,
        covered=len(there.covered),
        uncovered=len(there.uncovered),
        bytes=there.bytes,
    )
