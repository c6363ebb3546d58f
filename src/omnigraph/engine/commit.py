"""Finalize: stage every table of a write, commit each table once, publish once.

`stage_all` writes files nobody points at. `commit_all` runs under the queues and the lease: fresh pins,
drift guard, sidecar (Phase A), forks, one commit per table (Phase B). `finalize` adds the publish (Phase C)
and the deletion of the sidecar (Phase D). A process that dies before Phase A leaves unreferenced files;
after it, recovery settles the sidecar.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from omnigraph.core.errors import (
    ExpectedVersionMismatch,
    InternalError,
    OmnigraphError,
    PreconditionFailed,
    ReadSetConflict,
    RecoveryRequired,
    RowLevelCasContention,
)
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.engine.key_segments import ABSENT, string_array
from omnigraph.engine.staging import MutationStaging, PendingMode, PendingTable, ReadSetMoved
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.recovery.drift import drift_guard
from omnigraph.recovery.sidecar import Sidecar, SidecarPin, WriterKind
from omnigraph.storage.handles import SnapshotHandle, StagedHandle, Stamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from omnigraph.core.ids import Branch, CommitId, OperationId, TableKey
    from omnigraph.engine.cancel import Cancellation
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.publisher import PreparedPublish
    from omnigraph.manifest.record import TableSummary
    from omnigraph.manifest.state import Snapshot, TableEntry
    from omnigraph.recovery.queues import Guards


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
class StagedTable:
    """One table's files, and what they were staged against."""

    entry: TableEntry
    handle: SnapshotHandle
    staged: StagedHandle
    ids: pa.StringArray | None
    """Ids of the written rows in the order of writing; None when only the executors know them."""
    hidden: NDArray[np.uint64]
    """Addresses of the rows of `handle` that the commit hides."""


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """Every table of a write is staged; nobody points at the files."""

    staging: MutationStaging
    tables: Mapping[TableKey, StagedTable]


@dataclass(frozen=True, slots=True)
class CommittedTable:
    """One table whose HEAD has moved."""

    update: SubTableUpdate
    handle: SnapshotHandle
    table: StagedTable


# --- stage ---------------------------------------------------------------------------------------------


def stage_all(session: GraphSession, staging: MutationStaging, *, threads: int = 1) -> StagedWrite:
    """Stage every touched table once. Holds no queue; a failure leaves unreferenced files only."""
    keys = [key for key in staging.written_tables() if key not in staging.inline_committed]
    tables = session.map_tables(
        lambda key: _stage(session, staging, key, staging.snapshot.entries[key]), keys, threads=threads
    )
    present = {key: table for key, table in zip(keys, tables, strict=True) if table is not None}
    return StagedWrite(staging, present)


def _stage(
    session: GraphSession, staging: MutationStaging, table_key: TableKey, entry: TableEntry
) -> StagedTable | None:
    handle = session.open_entry(entry)
    stamp = Stamp(staging.operation_id, table_key)
    before_fork = entry.branch != staging.branch
    removal = staging.deletions.get(table_key)
    if removal is not None:
        addresses = removal.all_addresses()
        staged = session.storage.stage_delete(handle, stamp, addresses=addresses, before_fork=before_fork)
        return None if staged is None else StagedTable(entry, handle, staged, _NO_IDS, addresses)
    pending = staging.pending[table_key]
    if pending.fragments:
        return _stage_fragments(session, pending, entry, handle, stamp, before_fork=before_fork)
    rows = pending.combined()
    ids = string_array(rows.column("id"))
    rows = rows.cast(handle.schema)
    match pending.mode:
        case PendingMode.APPEND:
            staged = session.storage.stage_append(handle, rows, stamp)
            return StagedTable(entry, handle, staged, ids, _NO_ADDRESSES)
        case PendingMode.OVERWRITE:
            content = rows if rows.num_rows else None
            staged = session.storage.stage_overwrite(handle, content, stamp)
            return StagedTable(entry, handle, staged, None, _NO_ADDRESSES)
        case PendingMode.MERGE:
            same_base = entry.version == staging.expected_versions[table_key]
            addresses = _replaced(session, pending, handle, ids, same_base=same_base)
            staged = session.storage.stage_merge_insert(
                handle, rows, stamp, addresses=addresses, before_fork=before_fork
            )
            return StagedTable(entry, handle, staged, ids, addresses)


_NO_IDS = pa.array([], pa.string())
_NO_ADDRESSES: NDArray[np.uint64] = np.empty(0, np.uint64)


def _replaced(
    session: GraphSession,
    pending: PendingTable,
    handle: SnapshotHandle,
    ids: pa.StringArray,
    *,
    same_base: bool,
) -> NDArray[np.uint64]:
    """Addresses of the committed rows the pending rows replace."""
    known = pending.known_addresses(ids, same_base=same_base)
    found = (
        session.keys.addresses(session.root.identity, session.storage, handle, ids)
        if known is None
        else known
    )
    return found[found != ABSENT]


def _stage_fragments(
    session: GraphSession,
    pending: PendingTable,
    entry: TableEntry,
    handle: SnapshotHandle,
    stamp: Stamp,
    *,
    before_fork: bool,
) -> StagedTable:
    hidden = _NO_ADDRESSES if pending.fragment_addresses is None else pending.fragment_addresses
    staged = session.storage.stage_fragments(
        handle, pending.fragments, pending.mode.value, stamp, addresses=hidden, before_fork=before_fork
    )
    return StagedTable(entry, handle, staged, None, hidden)


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
    stage_threads: int = 1,
) -> Snapshot:
    """Stage, commit and publish one write; return what the branch shows afterwards.

    `stage_threads`: how many tables are staged at once (1 for mutations, the load concurrency for loads).
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
    stage_threads: int = 1,
) -> FinishedWrite:
    """As `finalize`, under queues the caller may hold already.

    The caller releases them and then calls `session.after_commit`, which needs queues of its own.
    """
    write = stage_all(session, staging, threads=stage_threads)
    failpoint(Window.MUTATION_POST_STAGE_PRE_QUEUE)
    cancel.raise_if_requested()
    keys = queue_keys(staging)
    with ExitStack() as held:
        if guards is None:
            held.enter_context(session.queues.acquire_many(keys))
        else:
            guards.require(keys)
        held.enter_context(session.lease.hold())
        return _commit_and_publish(session, write, intent, cancel)


def queue_keys(staging: MutationStaging) -> list[tuple[TableKey, Branch]]:
    """The queues a write holds from before its last look at the pins until its sidecar is gone.

    The tables it only read belong to them: if one could move after the check and before the publish, the
    publish would refuse a write whose tables have moved already, and recovery, which knows the written
    tables only, would finish it over the broken rule. The lease keeps other processes out in the same way.
    """
    return [(key, staging.branch) for key in sorted({*staging.written_tables(), *staging.read_set})]


def _commit_and_publish(
    session: GraphSession, write: StagedWrite, intent: WriteIntent, cancel: Cancellation
) -> FinishedWrite:
    """Phases A to D, under the queues and the lease.

    What does not depend on each other overlaps: the sidecar becomes durable and the staged files are synced
    while the rows of the publish are written. Nothing moves before the sidecar is durable; nothing is
    published before every file is.
    """
    staging = write.staging
    current = session.manifest.current(staging.branch)
    _check_authority(session, staging, current, intent)
    tables = _settle(session, write, current)
    expected = {**staging.read_set, **{key: current.pin(key) for key in staging.written_tables()}}
    cancel.raise_if_requested()
    sidecar = _sidecar(session, staging, tables, intent)
    sidecar_written = session.submit(session.sidecars.write, sidecar)
    syncs = _Syncs(session)
    syncs.start([path for table in tables.values() for path in table.staged.files])
    prepared = None
    try:
        prepared = _prepare_publish(session, staging, tables, expected, intent)
        if prepared is not None:
            syncs.start([session.root.local_path(name) for name in prepared.files])
    finally:
        sidecar_written.result()
    failpoint(Window.MUTATION_POST_SIDECAR_PRE_COMMIT)
    _check_inline(staging, current)
    forked = _fork_all(session, staging, tables)
    committed = _commit_tables(session, staging, forked, syncs)
    published = _publish(session, staging, committed, expected, intent, prepared)
    session.sidecars.delete_or_warn(sidecar.operation_id)
    return FinishedWrite(published, committed)


def _prepare_publish(
    session: GraphSession,
    staging: MutationStaging,
    tables: Mapping[TableKey, StagedTable],
    expected: Mapping[TableKey, int],
    intent: WriteIntent,
) -> PreparedPublish | None:
    """Write the rows of the publish ahead of the commits, whose versions are known: each is the pin plus one.

    None where they are not: a fork gets its identity when it is made, an inline commit has its own version.
    """
    forks = any(table.entry.branch != staging.branch for table in tables.values())
    if forks or staging.inline_committed:
        return None
    changes = [_announced(table) for _, table in sorted(tables.items())]
    return session.publisher.prepare(staging.branch, changes, expected, _record(staging, intent))


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
    session: GraphSession, staging: MutationStaging, current: Snapshot, intent: WriteIntent
) -> None:
    """Refuse a write whose ground is gone: the caller's condition, the branch itself, the schema."""
    if intent.if_commit is not None and current.head != intent.if_commit:
        raise PreconditionFailed(expected=intent.if_commit, actual=current.head)
    if session.branch_identity(staging.branch) != staging.branch_identity:
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
            if staging.strict:
                raise mismatch
            if key in staging.read_set:
                raise ReadSetMoved(mismatch)
    for key in sorted(write.tables):
        table = write.tables[key]
        entry = current.entries.get(key)
        if entry is None:
            raise ReadSetConflict("schema", message=f"'{key}' is not a table of this branch any more")
        drift_guard(session.recovery, entry, staging.branch)
        settled[key] = (
            table if entry.version == table.entry.version else _restage(session, staging, table, entry)
        )
    return settled


def _restage(
    session: GraphSession, staging: MutationStaging, table: StagedTable, entry: TableEntry
) -> StagedTable:
    """A relaxed write against a newer pin: appends move, upserts are staged again because others may be
    there now.
    """
    key = entry.table_key
    pending = staging.pending[key]
    if pending.mode is PendingMode.APPEND:
        handle = session.open_entry(entry)
        return replace(table, entry=entry, handle=handle, staged=session.storage.rebase(table.staged, handle))
    if pending.mode is PendingMode.OVERWRITE or pending.fragments:
        mismatch = ExpectedVersionMismatch(table_key=key, expected=table.entry.version, actual=entry.version)
        raise mismatch if pending.mode is PendingMode.OVERWRITE else ReadSetMoved(mismatch)
    again = _stage(session, staging, key, entry)
    if again is None:
        raise InternalError(f"nothing was staged for '{key}' the second time")
    return again


def _sidecar(
    session: GraphSession,
    staging: MutationStaging,
    tables: Mapping[TableKey, StagedTable],
    intent: WriteIntent,
) -> Sidecar:
    pins = [
        SidecarPin(
            table_key=key,
            table_path=session.root.dataset_uri(table.entry.location),
            expected_version=table.entry.version,
            post_commit_pin=table.entry.version + 1,
            table_branch=staging.branch,
        )
        for key, table in sorted(tables.items())
    ]
    pins.extend(
        SidecarPin(
            table_key=key,
            table_path=session.root.dataset_uri(staging.paths[key][0]),
            expected_version=staging.expected_versions[key],
            post_commit_pin=update.table_version,
            table_branch=update.table_branch,
        )
        for key, update in sorted(staging.inline_committed.items())
    )
    return Sidecar(
        operation_id=staging.operation_id,
        started_at_us=session.clock.now_us(),
        branch=staging.branch,
        actor=intent.actor,
        writer_kind=intent.kind,
        tables=tuple(sorted(pins, key=lambda pin: pin.table_key)),
    )


def _check_inline(staging: MutationStaging, current: Snapshot) -> None:
    for key in sorted(staging.inline_committed):
        expected, actual = staging.expected_versions[key], current.pin(key)
        if expected != actual:
            raise ExpectedVersionMismatch(table_key=key, expected=expected, actual=actual)


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
    """Files on their way to the device beside the write. All of them are awaited before the publish."""

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
        new = [path for path in paths if path not in self._begun]
        self._begun.update(new)
        return new


def _commit_tables(
    session: GraphSession, staging: MutationStaging, tables: Mapping[TableKey, StagedTable], syncs: _Syncs
) -> list[CommittedTable]:
    """Phase B: move each HEAD once, in key order, and make everything the publish will name durable.

    The version a commit made travels to the device while the next table is committed.
    """
    committed: list[CommittedTable] = []
    try:
        new_files: Sequence[str] = ()
        for key in sorted(tables):
            syncs.start(new_files)
            table = tables[key]
            handle = session.storage.commit_staged(table.handle, table.staged)
            committed.append(CommittedTable(_update(session, table, handle), handle, table))
            new_files = session.storage.new_files(handle)
            failpoint(Window.MUTATION_POST_TABLE_COMMIT)
        syncs.finish(new_files)
    except Exception as error:
        if committed:
            raise _stopped(staging.operation_id, error) from error
        raise
    return committed


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
    intent: WriteIntent,
    prepared: PreparedPublish | None,
) -> Snapshot:
    changes = [*(each.update for each in committed), *staging.inline_committed.values()]
    changes.sort(key=lambda change: change.table_key)
    try:
        failpoint(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER)
        if prepared is not None:
            if tuple(changes) == prepared.changes:
                return session.publisher.publish_prepared(prepared, files_synced=True)
            session.publisher.discard(prepared)
        return session.publisher.publish(staging.branch, changes, expected, _record(staging, intent))
    except RowLevelCasContention:
        raise
    except Exception as error:
        raise _stopped(staging.operation_id, error) from error


def _record(staging: MutationStaging, intent: WriteIntent) -> CommitIntent:
    return CommitIntent(
        commit_id=intent.commit_id,
        operation=intent.operation,
        actor=intent.actor,
        operation_id=staging.operation_id,
        summary=intent.summary,
        expected_head=intent.if_commit,
    )


def _stopped(operation_id: OperationId, error: Exception) -> OmnigraphError:
    """The write has moved tables and cannot say that nothing happened; its sidecar stays."""
    if isinstance(error, RecoveryRequired):
        return error
    return RecoveryRequired(f"the write stopped half-way and must be recovered: {error}", operation_id)


__all__ = [
    "CommittedTable",
    "FinishedWrite",
    "StagedTable",
    "StagedWrite",
    "WriteIntent",
    "finalize",
    "finalize_under",
    "queue_keys",
    "stage_all",
]
