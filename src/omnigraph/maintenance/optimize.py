"""Optimize: few large fragments, no deleted rows in them, indexes that know every row. No row changes.

It is the work of the reconciler without its bounds: everything is staged before the sidecar, so other writers
wait for metadata commits only, and one publish shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from omnigraph.core import html
from omnigraph.core.errors import InternalError, RecoveryRequired
from omnigraph.core.ids import CommitId, TableKey, show_branch
from omnigraph.engine.entities.export import select_types
from omnigraph.maintenance.indices import IndexWork, ensure_indices
from omnigraph.maintenance.read_structures import make_ready
from omnigraph.recovery.outcome import WriteCourse
from omnigraph.recovery.sidecar import operation_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from omnigraph.core.ids import Branch
    from omnigraph.engine.evolve.rows import BulkWork
    from omnigraph.engine.session import GraphSession
    from omnigraph.maintenance.indices import IndexesEnsured, PendingIndex
    from omnigraph.manifest.state import Snapshot, TableEntry

OPTIMIZING: Final = "the optimization"
DRIFT: Final = "drift_needs_repair"
INHERITED: Final = "inherited"
EMPTY: Final = "empty"


@dataclass(frozen=True, slots=True)
class OptimizedTable:
    """What became of one table."""

    table_key: str
    type_name: str
    fragments_removed: int
    fragments_added: int
    committed: bool
    skipped: str | None
    """Why nothing was looked at: `drift_needs_repair`, `inherited` or `empty`."""
    manifest_version: int
    """The version of the table that the branch shows."""
    lance_head_version: int
    """The newest version that exists; another one than is shown has drifted."""
    pending_indexes: tuple[PendingIndex, ...]
    """Declared indexes that cannot be built yet."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "type_key": self.table_key,
            "fragments_removed": self.fragments_removed,
            "fragments_added": self.fragments_added,
            "committed": self.committed,
            "skipped": self.skipped,
            "published_dataset_version": self.manifest_version,
            "lance_head_version": self.lance_head_version,
            "pending_indexes": [{"property": p.column, "reason": p.reason} for p in self.pending_indexes],
        }


@dataclass(frozen=True, slots=True)
class OptimizeReport(html.Shown):
    """What one run did."""

    branch: str
    tables: tuple[OptimizedTable, ...]
    commit_id: str | None
    """The commit that shows it; None when there was nothing to do."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "branch": self.branch,
            "graph_commit_id": self.commit_id,
            "datasets": [each.to_dict() for each in self.tables],
        }

    def _shown(self) -> html.Pieces:
        rows = [
            (each.type_name, each.fragments_removed, each.fragments_added, each.skipped or "")
            for each in self.tables
        ]
        about = {"commit": self.commit_id or "nothing to do"}
        head = ("type", "fragments removed", "added", "skipped")
        return html.facts(f"optimize {self.branch}", about) + html.table(head, rows)


def optimize(
    session: GraphSession,
    branch: Branch,
    *,
    types: Sequence[str] | None = None,
    actor: str | None = None,
    course: WriteCourse | None = None,
    bulk: BulkWork | None = None,
) -> OptimizeReport:
    """Compact the tables of a branch and bring their indexes up to date, as one commit or none.

    Tables that the branch only inherits are left to the branch that owns them. A table whose HEAD nobody
    published is skipped. Raises `TypeNotFound` for a type the branch does not have, `RecoveryRequired` while
    an interrupted write waits for an open.
    `bulk` rewrites the tables that are too large for this process.
    Cost: metadata when nothing is to be done, else what is rewritten, in bounded memory.
    """
    course = WriteCourse(OPTIMIZING) if course is None else course
    require_settled(session)
    shown = session.manifest.current(branch)
    entries = _chosen(session, shown, types)
    skipped = {key: why for key, entry in entries.items() if (why := _reason(session, shown, entry))}
    done = ensure_indices(
        session,
        branch,
        tables=[key for key in entries if key not in skipped],
        work=IndexWork.ALL,
        actor=actor,
        course=course,
        bulk=bulk,
    )
    steps = [(session.manifest.at_commit(state.commit.parents[0]), state) for state in _states(session, done)]
    tables = [_table(session, key, shown, steps, skipped.get(key), done.pending) for key in sorted(entries)]
    rewritten = [TableKey(each.table_key) for each in tables if each.fragments_removed]
    if rewritten:
        make_ready(session, session.manifest.current(branch), rewritten)
    return OptimizeReport(show_branch(branch), tuple(tables), done.commit_id)


def _states(session: GraphSession, done: IndexesEnsured) -> list[Snapshot]:
    return [session.manifest.at_commit(CommitId(each)) for each in done.commit_ids]


def require_settled(session: GraphSession) -> None:
    """Raise while an interrupted write waits for an open. The caller has settled the others.

    Under the lease every note is one of a dead writer, or of a writer of this process that is at work.
    """
    with session.lease.hold():
        names = session.sidecars.list()
    waiting = [each for each in map(operation_of, names) if not session.queues.is_alive(each)]
    if waiting:
        raise RecoveryRequired(
            "an interrupted write has to be rolled back first",
            waiting[0],
            hint="reopen the graph read-write, which settles it, then try again",
        )


def _chosen(
    session: GraphSession, shown: Snapshot, types: Sequence[str] | None
) -> Mapping[TableKey, TableEntry]:
    wanted = select_types(session.catalog_of(shown), types)
    keys = [TableKey(each.table_key) for each in wanted]
    return {key: shown.entries[key] for key in keys if key in shown.entries}


def _reason(session: GraphSession, shown: Snapshot, entry: TableEntry) -> str | None:
    """Why a table is left alone."""
    if entry.branch != shown.branch:
        return INHERITED
    if entry.row_count == 0:
        return EMPTY
    head = session.storage.head_version(entry.location, entry.branch, at_least=entry.version)
    if head < entry.version:
        raise InternalError(f"'{entry.table_key}' is shown at {entry.version}, its newest version is {head}")
    return DRIFT if head != entry.version else None


def _table(
    session: GraphSession,
    key: TableKey,
    shown: Snapshot,
    steps: Sequence[tuple[Snapshot, Snapshot]],
    skipped: str | None,
    pending: Iterable[PendingIndex],
) -> OptimizedTable:
    """What the commits of a run, each with the state before it, did to a table."""
    last = steps[-1][1] if steps else shown
    name, entry = session.catalog_of(last).type_of(key).name, last.entries[key]
    removed, added, committed = 0, 0, False
    for before, after in steps:
        old, new = (set(session.open_entry(each.entries[key]).fragment_ids) for each in (before, after))
        removed, added = removed + len(old - new), added + len(new - old)
        committed = committed or before.entries[key] != after.entries[key]
    return OptimizedTable(
        table_key=key,
        type_name=name,
        fragments_removed=removed,
        fragments_added=added,
        committed=committed,
        skipped=skipped,
        manifest_version=entry.version,
        lance_head_version=session.storage.head_version(entry.location, entry.branch, at_least=entry.version),
        pending_indexes=tuple(each for each in pending if each.type_name == name),
    )
