"""Finalize: stage every table of a write, commit each table once, publish once.

Staging (`engine.write.stage`) writes files nobody points at. Everything after it runs under the queues and
the lease: fresh pins, drift guard, sidecar (Phase A), forks, one commit per table (Phase B), the publish
(Phase C), the deletion of the sidecar (Phase D). A process that dies before Phase A leaves unreferenced
files; after it, recovery settles the sidecar.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from omnigraph.core.errors import (
    ExpectedVersionMismatch,
    PreconditionFailed,
    ReadSetConflict,
)
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.engine.write.early import Ahead
from omnigraph.engine.write.gathered import MutationStaging, ReadSetMoved
from omnigraph.engine.write.stage import (
    STAGE_THREADS,
    PlannedTable,
    StagedTable,
    StagedWrite,
    plan_tables,
    restage,
    stage_tables,
)
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.recovery.drift import drift_guard
from omnigraph.recovery.outcome import left_to_recovery
from omnigraph.recovery.sidecar import Sidecar, SidecarPin, SidecarRead, WriterKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from omnigraph.core.cancel import Cancellation
    from omnigraph.core.ids import Branch, CommitId, TableKey
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.publisher import PreparedPublish
    from omnigraph.manifest.record import TableSummary
    from omnigraph.manifest.state import Snapshot
    from omnigraph.recovery.queues import Guards
    from omnigraph.storage.handles import SnapshotHandle

COMMITTED_SIDE_BY_SIDE_MIN: Final = 4
"""Tables of a write from which on two are committed at once; with fewer the hand-over costs what it saves."""


@dataclass(frozen=True, slots=True)
class WriteIntent:
    """What the commit record and the sidecar of a write say."""

    kind: WriterKind
    operation: str
    commit_id: CommitId
    actor: str | None = None
    if_commit: CommitId | None = None
    """The head the caller based the write on; another head refuses it."""
    summary: TableSummary = field(default_factory=dict[str, "Mapping[str, int]"])


@dataclass(frozen=True, slots=True)
class CommittedTable:
    """One table whose HEAD has moved."""

    update: SubTableUpdate
    handle: SnapshotHandle
    table: StagedTable


# --- commit --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FinishedWrite:
    """A write that is visible and whose sidecar is gone."""

    snapshot: Snapshot
    tables: Sequence[CommittedTable]


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
    session.after_commit(finished.snapshot, finished.tables)
    return finished.snapshot


def finalize_under(
    session: GraphSession,
    staging: MutationStaging,
    intent: WriteIntent,
    *,
    cancel: Cancellation,
    guards: Guards | None,
    stage_threads: int = STAGE_THREADS,
) -> FinishedWrite:
    """As `finalize`, under queues the caller may hold already.

    The caller releases them and then calls `session.after_commit`, which needs queues of its own.
    """
    planned = plan_tables(session, staging)
    ahead = _prepare_ahead(session, staging, planned, intent)
    syncs = _Syncs(session)
    try:
        write = stage_tables(session, staging, planned, threads=stage_threads)
        failpoint(Window.MUTATION_POST_STAGE_PRE_QUEUE)
        cancel.raise_if_requested()
        keys = queue_keys(staging)
        with ExitStack() as held:
            if guards is None:
                held.enter_context(session.queues.acquire_many(keys))
            else:
                guards.require(keys)
            held.enter_context(session.lease.hold())
            return _commit_and_publish(session, write, intent, cancel, ahead, syncs)
    finally:
        if ahead is not None:
            ahead.discard()


def queue_keys(staging: MutationStaging) -> list[tuple[TableKey, Branch]]:
    """The queues a write holds from before its last look at the pins until its sidecar is gone.

    The tables it only read belong to them: if one could move after the check and before the publish, the
    publish would refuse a write whose tables have moved already. The lease keeps other processes out in the
    same way. A writer that dies lets both go, so its sidecar names what it read, for recovery to compare.
    """
    return [(key, staging.branch) for key in sorted({*staging.written_tables(), *staging.read_set})]


def _prepare_ahead(
    session: GraphSession,
    staging: MutationStaging,
    planned: Mapping[TableKey, PlannedTable],
    intent: WriteIntent,
) -> Ahead | None:
    """Begin to write the sidecar and the rows of the publish beside the staging, if that looks worthwhile.

    Not when the last write of this handle met another writer, or one is at work now: its publish would make
    the rows useless. Not where the versions are not known before: a fork gets its identity when it is made.
    """
    if session.disturbed or session.lease.held or not planned:
        return None
    if any(table.entry.branch != staging.branch for table in planned.values()):
        return None
    if not all(table.is_announced for table in planned.values()):
        return None
    expected = _expected(staging, staging.snapshot)
    record = _record(staging, intent, staging.snapshot.head)

    def prepare() -> PreparedPublish:
        changes = [table.announced() for table in planned.values()]
        return session.publisher.prepare(staging.branch, changes, expected, record)

    return Ahead(session, _sidecar(session, staging, planned, intent), prepare)


def _expected(staging: MutationStaging, current: Snapshot) -> dict[TableKey, int]:
    """What the publish compares: the pins of the tables that were read, and of those that are written."""
    return {**staging.read_set, **{key: current.pin(key) for key in staging.written_tables()}}


def _staged_files(tables: Mapping[TableKey, StagedTable]) -> list[str]:
    return [path for table in tables.values() for path in table.staged.files]


def _commit_and_publish(
    session: GraphSession,
    write: StagedWrite,
    intent: WriteIntent,
    cancel: Cancellation,
    ahead: Ahead | None,
    syncs: _Syncs,
) -> FinishedWrite:
    """Phases A to D, under the queues and the lease.

    What does not depend on each other overlaps. Nothing moves before the sidecar is durable; nothing is
    published before every file is.
    """
    staging = write.staging
    head = session.manifest.head(staging.branch)
    current = head.snapshot
    # Again, now that nothing can come between: no table may move for a publish that will be refused.
    session.manifest.refuse_during_schema_apply()
    # The handle's flag belongs to all its threads; whether *this* write may use what it prepared does not.
    moved = current is not staging.snapshot
    session.disturbed = moved
    _check_authority(session, staging, current, head.token or "", intent)
    tables = _settle(session, write, current)
    expected, record = _expected(staging, current), _record(staging, intent, current.head)
    cancel.raise_if_requested()
    staging.course.intends(staging.operation_id)
    if ahead is not None and not moved:
        prepared = ahead.place()
        # Not before: two rounds of syncs at once wait for each other, and nothing moves without the sidecar.
        rows = () if prepared is None else prepared.files
        syncs.start([*_staged_files(tables), *(session.root.local_path(name) for name in rows)])
    else:
        prepared = _write_now(session, staging, tables, expected, intent, record, syncs)
    failpoint(Window.MUTATION_POST_SIDECAR_PRE_COMMIT)
    forked = _fork_all(session, staging, tables)
    committed = _commit_tables(session, staging, forked, syncs, threads=_commit_threads(intent, forked))
    published = _publish(session, staging, committed, expected, record, prepared)
    staging.course.published()
    session.sidecars.delete_or_warn(staging.operation_id)
    return FinishedWrite(published, committed)


def _write_now(
    session: GraphSession,
    staging: MutationStaging,
    tables: Mapping[TableKey, StagedTable],
    expected: Mapping[TableKey, int],
    intent: WriteIntent,
    record: CommitIntent,
    syncs: _Syncs,
) -> PreparedPublish | None:
    """Phase A, with the rows of the publish and the syncs of the staged files beside it."""
    sidecar = _sidecar(session, staging, tables, intent)
    sidecar_written = session.submit(session.sidecars.write, sidecar)
    syncs.start(_staged_files(tables))
    prepared = None
    try:
        prepared = _prepare_publish(session, staging, tables, expected, record)
        if prepared is not None:
            syncs.start([session.root.local_path(name) for name in prepared.files])
    finally:
        sidecar_written.result()
    return prepared


def _prepare_publish(
    session: GraphSession,
    staging: MutationStaging,
    tables: Mapping[TableKey, StagedTable],
    expected: Mapping[TableKey, int],
    record: CommitIntent,
) -> PreparedPublish | None:
    """Write the rows of the publish ahead of the commits, whose versions are known: each is the pin plus one.

    None where they are not: a fork gets its identity when it is made.
    """
    if any(table.entry.branch != staging.branch for table in tables.values()):
        return None
    changes = [_announced(table) for _, table in sorted(tables.items())]
    return session.publisher.prepare(staging.branch, changes, expected, record)


def _announced(table: StagedTable) -> SubTableUpdate:
    entry, staged = table.entry, table.staged
    return SubTableUpdate(
        table_key=entry.table_key,
        table_version=entry.version + 1,
        table_branch=entry.branch,
        row_count=entry.row_count + staged.rows - staged.rows_removed,
        transaction_uuid=staged.transaction_uuid,
        branch_identifier=entry.branch_identifier,
    )


def _check_authority(
    session: GraphSession,
    staging: MutationStaging,
    current: Snapshot,
    branch_identity: str,
    intent: WriteIntent,
) -> None:
    """Refuse a write whose ground is gone: the caller's condition, the branch itself, the schema."""
    expected = intent.if_commit
    if expected is not None and not session.commits.shows_rows_of(current.commit, expected):
        raise PreconditionFailed(expected=expected, actual=current.head)
    if branch_identity != staging.branch_identity:
        raise ReadSetConflict(
            "branch",
            message=f"{staging.branch} was created anew while this write was prepared; re-read and retry",
        )
    if current.schema_hash != staging.snapshot.schema_hash:
        raise ReadSetConflict(
            "schema", message="the schema changed while this write was prepared; re-read and retry"
        )


def _settle(session: GraphSession, write: StagedWrite, current: Snapshot) -> dict[TableKey, StagedTable]:
    """The staged tables against the pins of now; raises when the write may not land on them."""
    staging = write.staging
    settled: dict[TableKey, StagedTable] = {}
    for key in sorted({*write.tables, *staging.read_set}):
        pin = current.pin(key)
        for seen in (staging.read_set.get(key), staging.expected_versions.get(key)):
            if seen is None or seen == pin:
                continue
            mismatch = ExpectedVersionMismatch(table_key=key, expected=seen, actual=pin)
            # Upkeep moves a table and changes no row: what was read still holds, only not where it was.
            if staging.strict and not session.commits.shows_rows_of(current.commit, staging.snapshot.head):
                raise mismatch
            if staging.strict:
                raise ReadSetMoved(mismatch)
            if key in staging.read_set:
                raise ReadSetMoved(mismatch)
    for key in sorted(write.tables):
        table = write.tables[key]
        entry = current.entries.get(key)
        if entry is None:
            raise ReadSetConflict("schema", message=f"'{key}' is not a table of this branch any more")
        drift_guard(session.recovery, entry, staging.branch)
        settled[key] = (
            table if entry.version == table.entry.version else restage(session, staging, table, entry)
        )
    return settled


def _sidecar(
    session: GraphSession,
    staging: MutationStaging,
    tables: Mapping[TableKey, StagedTable] | Mapping[TableKey, PlannedTable],
    intent: WriteIntent,
) -> Sidecar:
    pins = [
        SidecarPin(
            table_key=key,
            table_path=table.entry.location,
            expected_version=table.entry.version,
            post_commit_pin=table.entry.version + 1,
            table_branch=staging.branch,
        )
        for key, table in sorted(tables.items())
    ]
    return Sidecar(
        operation_id=staging.operation_id,
        started_at_us=session.clock.now_us(),
        branch=staging.branch,
        actor=intent.actor,
        writer_kind=intent.kind,
        tables=tuple(pins),
        reads=tuple(
            SidecarRead(key, version)
            for key, version in sorted(staging.read_set.items())
            if all(pin.table_key != key for pin in pins)
        ),
    )


def _fork_all(
    session: GraphSession, staging: MutationStaging, tables: Mapping[TableKey, StagedTable]
) -> dict[TableKey, StagedTable]:
    """Give the branch its own reference on every table it writes for the first time."""
    forked = dict(tables)
    for key in sorted(tables):
        table = tables[key]
        if table.entry.branch == staging.branch:
            continue
        failpoint(Window.MUTATION_POST_SIDECAR_PRE_FORK)
        handle = session.fork_table(table.entry, staging.branch)
        failpoint(Window.MUTATION_POST_FORK_PRE_COMMIT)
        forked[key] = replace(table, handle=handle, staged=session.storage.rebase(table.staged, handle))
    return forked


class _Syncs:
    """Files on their way to the device beside the write. All of them are awaited before the publish.

    Threads that commit side by side may share it.
    """

    def __init__(self, session: GraphSession) -> None:
        self._session = session
        self._begun: set[str] = set()
        self._running: list[Future[None]] = []

    def start(self, paths: Sequence[str]) -> None:
        """Begin to sync what is not begun yet."""
        if new := self._new(paths):
            self._running.append(self._session.submit(self._session.make_durable, new))

    def finish(self, paths: Sequence[str]) -> None:
        """Sync these here, and return once everything begun is on the device."""
        self._session.make_durable(self._new(paths))
        for running in self._running:
            running.result()

    def _new(self, paths: Sequence[str]) -> list[str]:
        if not self._session.syncs:
            return []
        new = [path for path in paths if path not in self._begun]
        self._begun.update(new)
        return new


def _commit_threads(intent: WriteIntent, tables: Mapping[TableKey, StagedTable]) -> int:
    """How many tables are committed at once. Those of a load one after the other: next to its staging that
    costs nothing, and how far one came can then be told from the names alone.
    """
    small = intent.kind is WriterKind.LOAD or len(tables) < COMMITTED_SIDE_BY_SIDE_MIN
    return 1 if small else STAGE_THREADS


def _commit_tables(
    session: GraphSession,
    staging: MutationStaging,
    tables: Mapping[TableKey, StagedTable],
    syncs: _Syncs,
    *,
    threads: int,
) -> list[CommittedTable]:
    """Phase B: move each HEAD once, begun in key order, and make everything the publish will name durable."""
    committed: dict[TableKey, CommittedTable] = {}
    moved: set[TableKey] = set()

    def commit(key: TableKey) -> None:
        table = tables[key]
        handle = session.storage.commit_staged(table.handle, table.staged)
        moved.add(key)  # at once: what follows may fail, and the table has moved
        committed[key] = CommittedTable(_update(session, table, handle), handle, table)
        failpoint(Window.MUTATION_POST_TABLE_COMMIT)

    with left_to_recovery("the write", staging.operation_id, moved=lambda: bool(moved)):
        session.share(commit, sorted(tables), threads=threads)
        syncs.finish([path for each in committed.values() for path in session.storage.new_files(each.handle)])
    return [committed[key] for key in sorted(committed)]


def _update(session: GraphSession, table: StagedTable, handle: SnapshotHandle) -> SubTableUpdate:
    if table.entry.branch == handle.branch:
        identifier = table.entry.branch_identifier
    else:
        identifier = session.storage.branch_identifier(handle.location, handle.branch) or ()
    return SubTableUpdate(
        table_key=handle.table_key,
        table_version=handle.version,
        table_branch=handle.branch,
        row_count=handle.row_count,
        transaction_uuid=table.staged.transaction_uuid,
        branch_identifier=identifier,
    )


def _publish(
    session: GraphSession,
    staging: MutationStaging,
    committed: Sequence[CommittedTable],
    expected: Mapping[TableKey, int],
    record: CommitIntent,
    prepared: PreparedPublish | None,
) -> Snapshot:
    changes = [each.update for each in committed]
    with left_to_recovery("the write", staging.operation_id, moved=lambda: True):
        failpoint(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER)
        if prepared is not None:
            if tuple(changes) == prepared.changes:
                return session.publisher.publish_prepared(prepared, files_synced=True)
            session.publisher.discard(prepared)
        return session.publisher.publish(staging.branch, changes, expected, record)


def _record(staging: MutationStaging, intent: WriteIntent, head: CommitId) -> CommitIntent:
    """`head` was found to show what the caller's condition names."""
    return CommitIntent(
        commit_id=intent.commit_id,
        operation=intent.operation,
        actor=intent.actor,
        operation_id=staging.operation_id,
        summary=intent.summary,
        expected_head=None if intent.if_commit is None else head,
    )


__all__ = [
    "CommittedTable",
    "FinishedWrite",
    "StagedTable",
    "StagedWrite",
    "WriteIntent",
    "finalize",
    "finalize_under",
    "queue_keys",
]
