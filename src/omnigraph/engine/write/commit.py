"""Finalize: what a mutation or load has gathered is staged and carried through the write protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnigraph.core.failpoints import Window, failpoint
from omnigraph.engine.write.afterwards import after_commit
from omnigraph.engine.write.early import begin_ahead
from omnigraph.engine.write.ground import Ground, WhenMoved
from omnigraph.engine.write.parts import Windows
from omnigraph.engine.write.protocol import Staged, carry
from omnigraph.engine.write.stage import STAGE_THREADS, plan_tables, restage, stage_tables
from omnigraph.engine.write.syncs import Syncs
from omnigraph.recovery.sidecar import WriterKind

if TYPE_CHECKING:
    from omnigraph.core.cancel import Cancellation
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.gathered import MutationStaging
    from omnigraph.engine.write.parts import TableWrite, WriteIntent
    from omnigraph.engine.write.protocol import Finished
    from omnigraph.manifest.state import Snapshot, TableEntry
    from omnigraph.recovery.queues import Guards

COMMITTED_SIDE_BY_SIDE_MIN: Final = 4
"""A write with at least this many tables commits two at once; with fewer, the hand-over costs what it saves.
"""

WINDOWS: Final = Windows(
    post_sidecar=Window.MUTATION_POST_SIDECAR_PRE_COMMIT,
    pre_fork=Window.MUTATION_POST_SIDECAR_PRE_FORK,
    post_fork=Window.MUTATION_POST_FORK_PRE_COMMIT,
    pre_publish=Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER,
)


def finalize(
    session: GraphSession,
    staging: MutationStaging,
    intent: WriteIntent,
    *,
    cancel: Cancellation,
    stage_threads: int = STAGE_THREADS,
) -> Snapshot:
    """Stage, commit and publish one write; return what the branch shows afterwards.

    `stage_threads`: how many tables are staged at once.
    Raises `ExpectedVersionMismatch` when a strict write lost, `ReadSetMoved` when a relaxed one must be
    prepared again, `PreconditionFailed` when the caller's condition does not hold: nothing has happened then.
    Raises `RecoveryRequired` when it stopped after its first effect: the sidecar stays for recovery.
    """
    finished = finalize_under(
        session, staging, intent, cancel=cancel, guards=None, stage_threads=stage_threads
    )
    after_commit(session, finished)
    return finished.snapshot


def finalize_under(
    session: GraphSession,
    staging: MutationStaging,
    intent: WriteIntent,
    *,
    cancel: Cancellation,
    guards: Guards | None,
    stage_threads: int = STAGE_THREADS,
) -> Finished:
    """As `finalize`, under queues the caller may hold already.

    The caller releases them and then calls `after_commit`, which needs queues of its own.
    """
    ground = _ground(session, staging)
    planned = plan_tables(session, staging)
    ahead = begin_ahead(session, intent, ground, planned)
    try:
        tables = stage_tables(session, staging, planned, threads=stage_threads)
        syncs = None
        if guards is not None:
            # It waits for another writer now, and need not wait for the device afterwards.
            syncs = Syncs(session)
            syncs.start([path for table in tables.values() for path in table.files])
        failpoint(Window.MUTATION_POST_STAGE_PRE_QUEUE)
        staged = Staged(
            intent,
            ground,
            staging.course,
            tables,
            windows=WINDOWS,
            tables_at_once=_tables_at_once(intent, len(tables)),
            announces=True,
            ahead=ahead,
            syncs=syncs,
        )
        return carry(session, staged, cancel=cancel, guards=guards)
    finally:
        if ahead is not None:
            ahead.discard()


def _ground(session: GraphSession, staging: MutationStaging) -> Ground:
    """A strict write stands or falls with what it read; a relaxed one follows the tables it only writes."""

    def follow(table: TableWrite, entry: TableEntry) -> TableWrite:
        return restage(session, staging, table, entry)

    return Ground(
        snapshot=staging.snapshot,
        branch_identity=staging.branch_identity,
        when_moved=WhenMoved.REFUSE_OTHER_ROWS if staging.strict else WhenMoved.PREPARE_AGAIN,
        reads=frozenset(staging.read_set),
        restage=None if staging.strict else follow,
    )


def _tables_at_once(intent: WriteIntent, tables: int) -> int:
    """How many tables are committed at once.

    Those of a load are committed one after the other: next to its staging that costs nothing, and the names
    alone then tell how far it came.
    """
    small = intent.kind is WriterKind.LOAD or tables < COMMITTED_SIDE_BY_SIDE_MIN
    return 1 if small else STAGE_THREADS
