"""Writing groups of fragments as one each: in this process, or on Spark when that is too much for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from omnigraph.core.failpoints import Window
from omnigraph.core.ids import new_ulid
from omnigraph.engine.evolve.rows import is_large
from omnigraph.engine.write.parts import LaterPart, StagedPart
from omnigraph.storage.fragments import open_pinned, open_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from omnigraph.core.ids import Branch, TableKey
    from omnigraph.core.settings import Settings
    from omnigraph.engine.evolve.rows import BulkWork
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.parts import Part
    from omnigraph.storage.compaction import Compacted
    from omnigraph.storage.handles import SnapshotHandle, StagedHandle, Stamp
    from omnigraph.storage.layout import GraphRoot

STAGE: Final = "compact"


@dataclass(frozen=True, slots=True)
class _Group:
    """Fragments of one table version that become one. It can be pickled."""

    root: GraphRoot
    settings: Settings
    occasion: str
    table_key: TableKey
    location: str
    branch: Branch
    version: int
    fragments: tuple[int, ...]
    bytes_max: int


def compacted(
    session: GraphSession, handle: SnapshotHandle, groups: Sequence[Sequence[int]], bulk: BulkWork | None
) -> list[Compacted]:
    """Write each group as one fragment. Above the bounds for work in one process `bulk` does it.

    Cost: what is rewritten; the rows in memory follow the settings of maintenance.
    """
    settings = session.settings
    share = settings.maintenance_bytes // settings.maintenance_concurrency
    rows, size = work_of(session, handle, groups)
    if bulk is None or not is_large(settings, rows, size):
        return [session.storage.compact(handle, group, bytes_max=share) for group in groups]
    occasion = new_ulid()
    place = (handle.table_key, handle.location, handle.branch, handle.version)
    tasks = [_Group(session.root, settings, occasion, *place, tuple(group), share) for group in groups]
    return bulk.map(session, STAGE, _compact, tasks)


def stage_compaction(
    session: GraphSession,
    handle: SnapshotHandle,
    groups: Sequence[Sequence[int]],
    stamp: Stamp,
    index: Callable[[SnapshotHandle], StagedHandle | None],
    bulk: BulkWork | None,
    dropped: Callable[[], None],
) -> tuple[Part, ...]:
    """Rewrite a table and build the indexes of what it will be, so that only commits are left for Phase B.

    The indexes are built on the version that the rewrite would make, where the fragments have the numbers
    that they will have. `dropped` is told when they do not fit behind what others did meanwhile.
    """
    written = compacted(session, handle, groups, bulk)
    rewritten = session.storage.stage_compaction(handle, written, stamp)
    with session.storage.previewed(handle, rewritten) as ahead:
        built = index(ahead)
    # Now, not while other writers wait.
    session.make_durable([*rewritten.files, *(() if built is None else built.files)])
    rewritten = session.storage.summed(rewritten)
    built = None if built is None else session.storage.summed(built)

    def attach(on: SnapshotHandle) -> StagedHandle | None:
        if built is None:
            return None
        fitting = session.storage.followed(built, handle, on)
        if fitting is None or not fitting.whole:
            dropped()
        return None if fitting is None else fitting.staged

    before = Window.ENSURE_INDICES_POST_STAGE_PRE_COMMIT_BTREE
    after = Window.OPTIMIZE_POST_COMPACT_PRE_REINDEX
    return (StagedPart(rewritten, before=before, after=after), LaterPart(attach))


def work_of(
    session: GraphSession, handle: SnapshotHandle, groups: Sequence[Sequence[int]]
) -> tuple[int, int]:
    """Rows and bytes of the fragments. Cost: metadata only."""
    wanted = {number for group in groups for number in group}
    chosen = [each for each in session.storage.fragments(handle) if each.id in wanted]
    return sum(each.live_rows for each in chosen), sum(each.bytes for each in chosen)


def _compact(group: _Group) -> Compacted:
    store = open_tables(group.root, group.settings, group.occasion)
    handle = open_pinned(store, group.table_key, group.location, group.branch, group.version)
    return store.compact(handle, group.fragments, bytes_max=group.bytes_max)
