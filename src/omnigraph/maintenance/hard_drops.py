"""Hard drops: what a schema change took out of the schema goes out of the files too.

The change itself is published already and is a drop like any other. Here tables that lost a property are
written anew without it, and the older states of these tables and of dropped types go by the way cleanups go.
What a tag, a branch or a clone asked for stays, and is named.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omnigraph.catalog.table_changes import catalog_change
from omnigraph.core.bounds import lift_bounds
from omnigraph.core.errors import SnapshotNotFound
from omnigraph.core.ids import TableKey
from omnigraph.maintenance.cleanup import only_cleanup, refuse_unsettled
from omnigraph.maintenance.cleanup_marks import Forgotten
from omnigraph.maintenance.erase_rewrite import rewrite_files
from omnigraph.maintenance.forgetting import clear_caches, reclaim_forgotten

if TYPE_CHECKING:
    from collections.abc import Collection

    from omnigraph.catalog.schema import TableType
    from omnigraph.core.cancel import Cancellation
    from omnigraph.core.ids import CommitId
    from omnigraph.engine.evolve.rows import BulkWork
    from omnigraph.engine.session import GraphSession
    from omnigraph.maintenance.cleanup import Look
    from omnigraph.maintenance.cleanup_plan import StagedLoads
    from omnigraph.manifest.state import Snapshot
    from omnigraph.recovery.outcome import WriteCourse


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What went of dropped types and properties, and what keeps the rest."""

    bytes: int
    kept_by: tuple[str, ...]
    """Tags, branches and clones that show a state from before the drop."""


def reclaim_dropped(
    session: GraphSession,
    commit: CommitId | None,
    loads: StagedLoads,
    *,
    actor: str | None,
    course: WriteCourse,
    cancel: Cancellation,
    bulk: BulkWork | None,
) -> Reclaimed:
    """Take what a schema change dropped out of the files, as far as nobody asked for an older state.

    `commit=None`: the change that made the accepted schema. What an earlier call has done is not done again,
    so that one that was stopped is completed. Raises as a cleanup does; the change stays as it is then.
    Cost: the files with dropped values are written anew; a cleanup.
    """
    with only_cleanup(session):
        refuse_unsettled(session)
        cancel.raise_if_requested()
        lift_bounds()  # from here on it stops at its own places only
        shown = session.manifest.current(None)
        dropped = _Dropped.by(session, shown if commit is None else session.manifest.at_commit(commit))
        lost = dropped.lost
        if not dropped.properties:
            return Reclaimed(0, ())
        files = _files_with_dropped(session, shown, lost)
        after = shown
        if files:
            after = rewrite_files(session, None, lost, files, actor=actor, course=course, bulk=bulk)
        since = {
            (entry.location, entry.branch): entry.version
            for entry in after.entries.values()
            if entry.location in lost
        }
        forgotten = Forgotten(lost | dropped.gone, since)
        clear_caches(session)
        done = reclaim_forgotten(session, forgotten, loads, cancel)
        kept = dropped.shown_by(session, done.look)
        return Reclaimed(done.bytes, tuple(sorted(kept)))


def _files_with_dropped(session: GraphSession, shown: Snapshot, lost: Collection[str]) -> set[str]:
    """The data files of these tables that hold values of columns which are gone."""
    files: set[str] = set()
    for entry in shown.entries.values():
        if entry.location in lost:
            handle = session.open_entry(entry)
            outlived = set(session.storage.outlived_fragments(handle))
            found = session.storage.fragments(handle)
            files.update(name for each in found if each.id in outlived for name in each.files)
    return files


@dataclass(frozen=True, slots=True)
class _Dropped:
    """What a change took away: by location of tables, and by number."""

    lost: frozenset[str]
    """Tables that lost a property."""
    gone: frozenset[str]
    """Tables of dropped types."""
    properties: frozenset[int]

    @classmethod
    def by(cls, session: GraphSession, after: Snapshot) -> _Dropped:
        """What the change that made the schema of a state dropped."""
        catalog = session.catalog_of(after)
        if catalog.parent is None:
            return cls(frozenset(), frozenset(), frozenset())
        change = catalog_change(session.schemas.catalog(catalog.parent), catalog)
        lost = {each.new_key: _numbers(each.before) - _numbers(each.after) for each in change.kept}
        shown = {entry.location for entry in after.entries.values()}
        gone = {after.registrations[TableKey(each.table_key)] for each in change.dropped}
        return cls(
            frozenset(after.entries[key].location for key, numbers in lost.items() if numbers),
            frozenset(gone - shown),
            frozenset[int]().union(*lost.values(), *(_numbers(each) for each in change.dropped)),
        )

    def shown_by(self, session: GraphSession, look: Look) -> set[str]:
        """Why states stay that show some of it."""
        kept: set[str] = set()
        for state, why in look.marks.states.items():
            with suppress(SnapshotNotFound):  # the first versions of a manifest show nothing
                catalog = session.catalog_of(session.manifest.at_version(*state))
                known = frozenset[int]().union(*map(_numbers, catalog.tables()))
                if known & self.properties:
                    kept.add(why)
        return kept


def _numbers(table_type: TableType) -> frozenset[int]:
    return frozenset(prop.property_id for prop in table_type.properties)
