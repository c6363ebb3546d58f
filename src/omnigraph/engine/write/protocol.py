"""The write protocol: from staged tables to a published commit. Every writer goes this way.

Each stage is a value, and each step takes the value of the step before it, so that none can be left out:

    Staged     every file that can be written ahead exists; nobody points at them
    Grounded   queues and lease are held; what the write was prepared on still holds; no table has drifted
    Covered    Phase A: the sidecar is durable; no table has moved
    Committed  Phase B: every table has moved, durably, confirmed where the kind confirms; nothing is visible
    Published  Phase C: one compare-and-swap; visible, with its commit record
    Finished   Phase D: the sidecar is gone

A process that dies before Phase A leaves unreferenced files. After it, recovery settles the sidecar.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from omnigraph.core.bounds import lift_bounds, unbounded
from omnigraph.core.cancel import NEVER
from omnigraph.core.errors import DriftError, RecoveryRequired
from omnigraph.core.failpoints import failpoint
from omnigraph.core.formats import SIDECAR_SCHEMA_VERSION
from omnigraph.core.ids import TableKey
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import MIB
from omnigraph.engine.write.forks import fork_table
from omnigraph.engine.write.ground import (
    check_authority,
    check_keys,
    check_pins,
    check_switches,
    queue_keys,
    settled_on,
)
from omnigraph.engine.write.parts import LaterPart, Reshape, StagedPart, Windows
from omnigraph.engine.write.records import (
    announced_changes,
    commit_record,
    is_announceable,
    reshaped,
    sidecar_of,
)
from omnigraph.engine.write.syncs import Syncs
from omnigraph.manifest.publisher import SchemaLock
from omnigraph.manifest.state import TableEntry
from omnigraph.recovery.classify import ClassificationMode, classification_mode
from omnigraph.recovery.late_writes import settle_late_effects
from omnigraph.recovery.outcome import left_to_recovery
from omnigraph.recovery.sidecar import WriterKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from omnigraph.core.cancel import Cancellation
    from omnigraph.core.failpoints import Window
    from omnigraph.core.ids import Branch
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.early import Ahead
    from omnigraph.engine.write.ground import Ground
    from omnigraph.engine.write.parts import NewTable, Part, Switch, TableWrite, WriteIntent
    from omnigraph.manifest.changes import Change, CommitIntent
    from omnigraph.manifest.publisher import PreparedPublish
    from omnigraph.manifest.state import Snapshot
    from omnigraph.recovery.lease import Hold
    from omnigraph.recovery.outcome import WriteCourse
    from omnigraph.recovery.queues import Guards
    from omnigraph.recovery.sidecar import Sidecar
    from omnigraph.storage.checksums import FileSum
    from omnigraph.storage.handles import SnapshotHandle, StagedHandle

NO_RESHAPE = Reshape()
SUMS_BESIDE_BYTES_MIN: Final = MIB // 4
"""From this size on, checksums are taken by another thread while the device works."""

# --- the stages ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Staged:
    """Every file of the write that can be written ahead exists, and nobody points at them."""

    intent: WriteIntent
    ground: Ground
    course: WriteCourse
    """The course of the call the write belongs to; it is told how far the write has come."""
    tables: Mapping[TableKey, TableWrite]
    switches: Mapping[TableKey, Switch] = field(default_factory=dict["TableKey", "Switch"])
    windows: Windows = field(default_factory=Windows)
    tables_at_once: int = 1
    """How many tables are committed side by side."""
    announces: bool = False
    """Whether the rows of the publish are written before the tables have moved, where they are known."""
    reshape: Reshape = NO_RESHAPE
    """What a change of the schema does beside the commits of tables."""
    ahead: Ahead | None = None
    """What was written beside the staging, in the hope that nobody else publishes meanwhile."""
    syncs: Syncs | None = None
    """Where its files are on their way to the device already."""

    @property
    def branch(self) -> Branch:
        """The graph branch the write publishes to."""
        return self.ground.branch

    @property
    def touched(self) -> set[TableKey]:
        """Every table that is written, shown at another version, made, hidden, or read."""
        created = (each.table_key for each in self.reshape.created)
        return {*self.tables, *self.switches, *self.ground.reads, *created, *self.reshape.hidden}


@dataclass(frozen=True, slots=True)
class Grounded:
    """The write may land: queues and lease are held, and everything it depends on is as it was."""

    write: Staged
    hold: Hold
    """The stay inside the lease, over when the sidecar is gone."""
    current: Snapshot
    tables: Mapping[TableKey, TableWrite]
    """The staged tables against the pins of `current`."""
    expected: Mapping[TableKey, int]
    """What the publish compares."""
    record: CommitIntent


@dataclass(frozen=True, slots=True)
class _Effects:
    """How far Phase B has come; threads that commit side by side share it."""

    moved: set[TableKey] = field(default_factory=set["TableKey"])
    complete: set[TableKey] = field(default_factory=set["TableKey"])


@dataclass(frozen=True, slots=True)
class Covered:
    """Phase A is over: the intent is durable. Tables may move from here on."""

    grounded: Grounded
    sidecar: Sidecar | None
    """None: no table will move, so there is nothing to recover."""
    prepared: PreparedPublish | None
    """The rows of the publish, where they were known ahead of the commits."""
    syncs: Syncs
    effects: _Effects = field(default_factory=_Effects)


@dataclass(frozen=True, slots=True)
class CommittedTable:
    """One table whose HEAD has moved."""

    entry: TableEntry
    """What the publish shows of it."""
    handle: SnapshotHandle
    write: TableWrite
    """What was committed, on the version that the first commit came after."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Phase B is over: every table has moved and everything the publish names is durable."""

    covered: Covered
    tables: tuple[CommittedTable, ...]
    changes: tuple[Change, ...]
    sums: tuple[FileSum, ...]
    """The checksums of every file that was made."""


@dataclass(frozen=True, slots=True)
class Published:
    """Phase C is over: the write is visible."""

    committed: Committed
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Finished:
    """A write that is visible and whose sidecar is gone, or left for the next write to delete."""

    snapshot: Snapshot
    tables: tuple[CommittedTable, ...]


# --- the way through them --------------------------------------------------------------------------------


def carry(
    session: GraphSession,
    staged: Staged,
    *,
    cancel: Cancellation = NEVER,
    guards: Guards | None = None,
    queue_wait_s_max: float | None = None,
) -> Finished:
    """Make a staged write visible as one commit, or change nothing a reader can see.

    `guards`: queues the caller holds already.
    Raises `ReadSetMoved` when it must be prepared again, `ExpectedVersionMismatch`, `PreconditionFailed` and
    `ReadSetConflict` when its ground is gone, `ResourceBusy` when a queue stays taken: nothing has happened
    then. Raises `RecoveryRequired` when it stopped after its first effect: the sidecar stays for recovery.
    """
    cancel.raise_if_requested()
    course, operation_id = staged.course, staged.intent.operation_id
    keys = queue_keys(staged.branch, staged.touched)
    with ExitStack() as held:
        if guards is None:
            guards = held.enter_context(session.queues.acquire_many(keys, wait_s_max=queue_wait_s_max))
        else:
            guards.require(keys)
        hold = held.enter_context(session.lease.hold())
        grounded = check_ground(session, staged, hold)
        cancel.raise_if_requested()
        lift_bounds()
        course.intends(operation_id)
        guards.operation = operation_id
        covered = cover(session, grounded)
        moved = covered.effects.moved
        with left_to_recovery(course.what, operation_id, moved=lambda: bool(moved)):
            committed = commit_tables(session, covered)
            _stage_schema(committed)
            published = publish(session, committed)
        course.published()
        return uncover(session, published)


def check_ground(session: GraphSession, staged: Staged, hold: Hold) -> Grounded:
    """Compare what the write was prepared on with what storage says now, under queues and lease."""
    ground, intent = staged.ground, staged.intent
    head = session.manifest.head(staged.branch)
    current = head.snapshot
    if staged.announces:
        session.disturbed = current is not ground.snapshot
    check_authority(session, ground, head, intent, staged.course.what)
    check_keys(session, ground, current, intent.keys)
    check_pins(session, ground, current, staged.touched)
    check_switches(session, staged.switches)
    try:
        tables = settled_on(session, ground, current, staged.tables)
    except DriftError as drift:
        entry = current.entries[TableKey(drift.table_key)]
        with unbounded():
            settled = settle_late_effects(session.recovery, entry, staged.branch, drift.head)
        # A writer that lost the lease may have published between the looks at the branch and at the table.
        if not settled and session.manifest.head(staged.branch).version == head.version:
            raise
        return check_ground(session, staged, hold)  # the table is shown at a newer version now
    expected = {key: current.latest_version(key) for key in staged.touched}
    return Grounded(staged, hold, current, tables, expected, commit_record(intent, current.head))


# --- Phase A ---------------------------------------------------------------------------------------------


def cover(session: GraphSession, grounded: Grounded) -> Covered:
    """Phase A: make the intent durable. When this raises, no table has moved."""
    write = grounded.write
    syncs = Syncs(session) if write.syncs is None else write.syncs
    files = [path for table in grounded.tables.values() for path in table.files]
    ahead = write.ahead
    if ahead is not None and grounded.current is write.ground.snapshot:
        prepared = ahead.rows()
        # One round with the name of the sidecar. Only that name is awaited before tables move.
        syncs.start([*files, *_row_files(session, prepared)])
        ahead.place()
        covered = Covered(grounded, ahead.sidecar, prepared, syncs)
    elif grounded.tables or write.intent.kind is WriterKind.SCHEMA_APPLY:
        covered = _cover_now(session, grounded, files, syncs)
    else:
        covered = Covered(grounded, None, None, syncs)
    _at(write.windows.post_sidecar)
    return covered


def _cover_now(session: GraphSession, grounded: Grounded, files: list[str], syncs: Syncs) -> Covered:
    """Write the sidecar, with the rows of the publish and the syncs of the staged files beside it."""
    write, tables = grounded.write, grounded.tables
    entries = {key: table.entry for key, table in tables.items()}
    sidecar = sidecar_of(session.clock, write.intent, write.ground, entries, write.switches, write.reshape)
    if _judged(write.intent) is ClassificationMode.LOOSE:
        # Recovery publishes whatever is there, and cannot tell a torn index file from a whole one.
        syncs.finish(files)
    if not write.announces:
        session.sidecars.write(sidecar)
        syncs.start(files)
        return Covered(grounded, sidecar, None, syncs)
    prepared = None
    written = session.submit(session.sidecars.write, sidecar)
    try:
        syncs.start(files)
        if is_announceable(write.branch, tables.values()):
            changes = announced_changes(tables.values())
            prepared = session.publisher.prepare(write.branch, changes, grounded.expected, grounded.record)
            syncs.start(_row_files(session, prepared))
    finally:
        written.result()
    return Covered(grounded, sidecar, prepared, syncs)


def _row_files(session: GraphSession, prepared: PreparedPublish | None) -> list[str]:
    return [] if prepared is None else [session.root.local_path(name) for name in prepared.files]


def _judged(intent: WriteIntent) -> ClassificationMode:
    """How recovery will judge what this write leaves, should it die."""
    return classification_mode(intent.kind, SIDECAR_SCHEMA_VERSION)


# --- Phase B ---------------------------------------------------------------------------------------------


def commit_tables(session: GraphSession, covered: Covered) -> Committed:
    """Phase B: references first, then every table's own commits, begun in key order.

    Returns once everything the publish will name is durable, and the sidecar confirmed where recovery asks
    for that.
    """
    write = covered.grounded.write
    created = [_created(session, covered, each) for each in write.reshape.created]
    tables = _fork_tables(session, covered)
    switched = [_switched(session, covered, switch) for _, switch in sorted(write.switches.items())]
    committed = session.share(
        lambda key: _commit_table(session, covered, tables[key]), sorted(tables), threads=write.tables_at_once
    )
    handles = [
        *(each.handle for each in committed),
        *(handle for _, handle in switched if handle is not None),
        *(handle for _, handle in created),
    ]
    sums = _summing(session, covered.grounded, handles)
    covered.syncs.finish([path for handle in handles for path in session.storage.new_files(handle)])
    if covered.sidecar is not None and _judged(write.intent) is ClassificationMode.CONFIRMED:
        _at(write.windows.pre_confirm)
        achieved = {each.entry.table_key: each.entry.version for each in committed}
        covered.grounded.hold.check()
        session.sidecars.confirm_sidecar_phase_b(covered.sidecar, achieved)
    entries = [
        *(each.entry for each in committed),
        *(entry for entry, _ in switched),
        *(entry for entry, _ in created),
    ]
    changes = reshaped(covered.grounded.current, entries, write.reshape)
    return Committed(covered, tuple(committed), changes, tuple(sums()))


def _summing(
    session: GraphSession, grounded: Grounded, handles: Sequence[SnapshotHandle]
) -> Callable[[], list[FileSum]]:
    """What gives the checksums of the new files.

    They are taken while the device works and cost a large write no time. To hand the few bytes of a small one
    to another thread would take longer than to sum them.
    """
    parts = [part for table in grounded.tables.values() for part in table.parts]
    known = sum(part.staged.bytes for part in parts if isinstance(part, StagedPart))
    if known < SUMS_BESIDE_BYTES_MIN and not any(isinstance(part, LaterPart) for part in parts):
        sums = session.storage.sums(handles)
        return lambda: sums
    return session.submit(session.storage.sums, handles).result


def _created(session: GraphSession, covered: Covered, new: NewTable) -> tuple[TableEntry, SnapshotHandle]:
    """A new table and what the publish shows of it."""
    covered.grounded.hold.check()
    handle = new.make()
    covered.effects.moved.add(new.table_key)
    _at(covered.grounded.write.windows.post_create)
    made_by = session.storage.transaction_of(handle.location, None, handle.version)
    uuid = "" if made_by is None else made_by.uuid
    return TableEntry(new.table_key, new.location, handle.version, None, handle.row_count, uuid), handle


def _stage_schema(committed: Committed) -> None:
    """Write the schema that the publish will name; from here on recovery completes the write."""
    write = committed.covered.grounded.write
    if write.reshape.stage_schema is None:
        return
    _at(write.windows.pre_schema)
    committed.covered.grounded.hold.check()
    write.reshape.stage_schema()
    _at(write.windows.post_schema)


def _fork_tables(session: GraphSession, covered: Covered) -> dict[TableKey, TableWrite]:
    """The tables, each on a reference of the branch itself, where its first commit can be made."""
    write = covered.grounded.write
    tables = dict(covered.grounded.tables)
    inherited = [key for key, table in sorted(tables.items()) if table.entry.branch != write.branch]
    forks = {key: _fork(session, covered, tables[key].entry) for key in inherited}

    def moved_to_fork(key: TableKey) -> TableWrite:
        table, handle = tables[key], forks[key]
        first, *rest = table.parts
        staged = _ready(session, first, handle, rebased=True)
        ready = () if staged is None else (StagedPart(staged, before=first.before, after=first.after),)
        return replace(table, handle=handle, parts=(*ready, *rest))

    made = session.share(moved_to_fork, inherited, threads=write.tables_at_once)
    return {**tables, **dict(zip(inherited, made, strict=True))}


def _fork(session: GraphSession, covered: Covered, origin: TableEntry) -> SnapshotHandle:
    windows = covered.grounded.write.windows
    _at(windows.pre_fork)
    covered.grounded.hold.check()
    handle = fork_table(session, origin, covered.grounded.write.branch)
    _at(windows.post_fork)
    return handle


def _switched(
    session: GraphSession, covered: Covered, switch: Switch
) -> tuple[TableEntry, SnapshotHandle | None]:
    """What the publish shows of a table that gets no rows; a fork has files to sync."""
    if not switch.forks:
        return switch.entry, switch.found
    handle = _fork(session, covered, switch.entry)
    made_by = session.storage.transaction_of(handle.location, handle.branch, handle.version)
    return _entry(session, switch.entry, handle, "" if made_by is None else made_by.uuid), handle


def _commit_table(session: GraphSession, covered: Covered, table: TableWrite) -> CommittedTable:
    """The commits of one table, in turn."""
    key, handle = table.entry.table_key, table.handle
    effects, write = covered.effects, covered.grounded.write
    last: StagedHandle | None = None
    for part in table.parts:
        staged = _ready(session, part, handle, rebased=last is not None)
        if staged is None:
            continue
        _at(part.before)
        covered.grounded.hold.check()
        handle = session.storage.commit_staged(handle, staged)
        effects.moved.add(key)  # at once: what follows may fail, and the table has moved
        last = staged
        _at(part.after)
    if last is None:
        raise RecoveryRequired(f"nothing was written to '{key}'", write.intent.operation_id)
    effects.complete.add(key)
    if len(effects.complete) < len(covered.grounded.tables):
        _at(write.windows.between_tables)
    return CommittedTable(_entry(session, table.entry, handle, last.transaction_uuid), handle, table)


def _ready(
    session: GraphSession, part: Part, handle: SnapshotHandle, *, rebased: bool
) -> StagedHandle | None:
    """The files of a part on the version it is committed to.

    `rebased`: the part was staged on an earlier one, from which a fork or commits of this write lead here.
    """
    if isinstance(part, LaterPart):
        return part.stage(handle)
    if not rebased:
        return part.staged
    # Commits of one write only add rows or hide other rows, so addresses keep their meaning.
    return session.storage.rebase(part.staged, handle, addresses=part.hidden)


def _entry(
    session: GraphSession, before: TableEntry, handle: SnapshotHandle, transaction_uuid: str
) -> TableEntry:
    """What a branch shows of a table once `handle` is published."""
    identifier = before.branch_identifier
    if before.branch != handle.branch:
        identifier = session.storage.branch_identifier(handle.location, handle.branch) or ()
    return replace(
        before,
        version=handle.version,
        branch=handle.branch,
        row_count=handle.row_count,
        transaction_uuid=transaction_uuid,
        branch_identifier=identifier,
    )


# --- Phases C and D --------------------------------------------------------------------------------------


def publish(session: GraphSession, committed: Committed) -> Published:
    """Phase C: one compare-and-swap makes everything visible together."""
    covered, grounded = committed.covered, committed.covered.grounded
    if covered.sidecar is not None:
        _at(grounded.write.windows.pre_publish)
    grounded.hold.check()
    prepared = covered.prepared
    if prepared is not None and committed.changes != prepared.changes:
        session.publisher.discard(prepared)
        prepared = None
    if prepared is not None:
        snapshot = session.publisher.publish_prepared(prepared, files_synced=True, files=committed.sums)
    else:
        intent = grounded.write.intent
        holds = intent.changes_accepted_schema(grounded.write.branch)
        lock = SchemaLock.HELD if holds else SchemaLock.RESPECTED
        snapshot = session.publisher.publish(
            grounded.write.branch,
            committed.changes,
            grounded.expected,
            grounded.record,
            files=committed.sums,
            schema_lock=lock,
        )
    return Published(committed, snapshot)


def uncover(session: GraphSession, published: Published) -> Finished:
    """Phase D. The write has succeeded: a sidecar that cannot be deleted is a warning.

    Raises `RecoveryRequired` when the schema that was published could not be put in place: the sidecar stays.
    """
    committed = published.committed
    write = committed.covered.grounded.write
    if write.reshape.place_schema is not None:
        with left_to_recovery(write.course.what, write.intent.operation_id, moved=lambda: True):
            _at(write.windows.post_publish)
            write.reshape.place_schema()
    if committed.covered.sidecar is not None:
        session.sidecars.delete_or_warn(committed.covered.sidecar.operation_id)
    return Finished(published.snapshot, committed.tables)


def _at(window: Window | None) -> None:
    if window is not None:
        failpoint(window)
