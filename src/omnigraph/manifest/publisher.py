"""The one door to visibility: a compare-and-swap of a branch's manifest."""

import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Final

from omnigraph.core.clock import SYSTEM_CLOCK, Clock
from omnigraph.core.errors import (
    CommitNotFound,
    InternalError,
    ReadSetConflict,
    RowLevelCasContention,
    StorageNotFound,
)
from omnigraph.core.events import Published, emit
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import Branch
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import PUBLISHER_RETRY_BUDGET
from omnigraph.manifest.changes import (
    Change,
    CommitIntent,
    Expectations,
    RegisterTable,
    SubTableUpdate,
    Tombstone,
    check_expectations,
    next_snapshot,
)
from omnigraph.manifest.dataset import WrittenRows, is_contention
from omnigraph.manifest.migrations import migrate
from omnigraph.manifest.state import Snapshot, columns_of, digest, encode, manifest_schema
from omnigraph.manifest.store import Head, ManifestStore
from omnigraph.storage.checksums import FileRecord, FileSum
from omnigraph.storage.layout import branch_reference

__all__ = [
    "Change",
    "CommitIntent",
    "ManifestBatchPublisher",
    "PreparedPublish",
    "RegisterTable",
    "SchemaLock",
    "SubTableUpdate",
    "Tombstone",
]

_WAIT_SECONDS_FIRST: Final = 0.010
_SCHEMA: Final = manifest_schema()


class SchemaLock(Enum):
    """What the schema-apply lock means to a publish."""

    RESPECTED = "respected"
    """The publish fails while the lock is taken."""
    HELD = "held"
    """The caller holds the lock: it is the schema apply itself, or the recovery of one."""


@dataclass(frozen=True, slots=True)
class PreparedPublish:
    """A publish whose new manifest rows are written already. Nothing points at them.

    A caller with files of its own to sync does all of them and `files` in one round, and says so to
    `publish_prepared`.
    """

    branch: Branch
    changes: tuple[Change, ...]
    expected: Expectations
    intent: CommitIntent
    schema_lock: SchemaLock
    base: Head
    snapshot: Snapshot
    rows: WrittenRows

    @property
    def files(self) -> tuple[str, ...]:
        """Graph-relative names of the files that must be durable before the swap."""
        return self.rows.names


class ManifestBatchPublisher:
    """Publishes on the branches of one graph. Thread-safe.

    Publishers of one process take turns at the coordinator lock of the branch; between processes the swap
    decides, and the loser reads the new state and compares its expectations again.
    """

    def __init__(self, store: ManifestStore, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._clock = clock

    def publish(
        self,
        branch: Branch,
        changes: Sequence[Change],
        expected_table_versions: Expectations,
        intent: CommitIntent | None,
        *,
        schema_lock: SchemaLock = SchemaLock.RESPECTED,
        files: Sequence[FileSum] = (),
    ) -> Snapshot:
        """Make every change visible at once together with its commit, or change nothing.

        `files`: the checksums of what the commits of the tables made; they are kept with the commit.

        Returns the new state. Without changes and without an intent it only compares the expectations. The
        only call in the code base, beside `publish_prepared`, that changes what a reader of a branch can see.

        Raises ExpectedVersionMismatch (first table in key order, never retried), PreconditionFailed,
        RowLevelCasContention after `PUBLISHER_RETRY_BUDGET` retries, FormatTooNew, ConflictError during a
        schema apply, InternalError for changes no correct caller asks for; then nothing was published.
        Raises StorageError when the outcome is not known; reading the branch again tells.
        Cost: one data file and one manifest file, whatever the history.
        """
        if intent is None:
            if changes:
                raise InternalError("a publish that changes tables must record a commit")
            snapshot = self._store.current(branch)
            check_expectations(snapshot, expected_table_versions)
            return snapshot
        with self._store.coordinator(branch):
            snapshot = self._publish(branch, changes, expected_table_versions, intent, schema_lock, files)
        self._announce(snapshot)
        return snapshot

    def prepare(
        self,
        branch: Branch,
        changes: Sequence[Change],
        expected_table_versions: Expectations,
        intent: CommitIntent,
        *,
        schema_lock: SchemaLock = SchemaLock.RESPECTED,
    ) -> PreparedPublish:
        """Write the rows of a publish ahead of it, while the tables it names are still being committed.

        Everything a publish compares and refuses is compared and refused here first. The result goes to
        `publish_prepared`, which starts over when the branch has moved, or to `discard`.
        """
        base = self._ground(branch, intent)
        snapshot = self._plan(base, changes, expected_table_versions, intent, schema_lock)
        rows = self._write(base, snapshot)
        expected = dict(expected_table_versions)
        return PreparedPublish(branch, tuple(changes), expected, intent, schema_lock, base, snapshot, rows)

    def publish_prepared(
        self, prepared: PreparedPublish, *, files_synced: bool = False, files: Sequence[FileSum] = ()
    ) -> Snapshot:
        """Publish what was prepared, as `publish` does.

        `files_synced`: the `files` of `prepared` are durable already.
        """
        with self._store.coordinator(prepared.branch):
            snapshot = self._publish_prepared(prepared, files, files_synced=files_synced)
        self._announce(snapshot)
        return snapshot

    def discard(self, prepared: PreparedPublish) -> None:
        """Remove the rows of a prepared publish that will not happen."""
        self._store.dataset.discard(prepared.rows)

    def _publish_prepared(
        self, prepared: PreparedPublish, files: Sequence[FileSum], *, files_synced: bool
    ) -> Snapshot:
        attempts_made = 0
        if self._load(prepared.branch).handle is prepared.base.handle:
            self._respect_schema_lock(prepared.schema_lock)
            if not files_synced:
                self._store.dataset.sync(*prepared.files)
            landed = self._swap(prepared.base, prepared.snapshot, prepared.rows, files)
            if landed is not None:
                return landed
            attempts_made = 1
        else:
            self.discard(prepared)
        return self._publish(
            prepared.branch,
            prepared.changes,
            prepared.expected,
            prepared.intent,
            prepared.schema_lock,
            files,
            attempts_made=attempts_made,
        )

    def _publish(
        self,
        branch: Branch,
        changes: Sequence[Change],
        expected: Expectations,
        intent: CommitIntent,
        schema_lock: SchemaLock,
        files: Sequence[FileSum],
        *,
        attempts_made: int = 0,
    ) -> Snapshot:
        attempts = PUBLISHER_RETRY_BUDGET + 1
        for attempt in range(attempts_made, attempts):
            if attempt:
                _wait(attempt)
            base = self._ground(branch, intent)
            snapshot = self._plan(base, changes, expected, intent, schema_lock)
            rows = self._write(base, snapshot)
            self._store.dataset.sync(*rows.names)
            landed = self._swap(base, snapshot, rows, files)
            if landed is not None:
                return landed
        raise RowLevelCasContention(attempts=attempts)

    def _load(self, branch: Branch) -> Head:
        """The branch's state, read freshly, at the format this program writes."""
        head = migrate(self._store, self._store.head(branch))
        failpoint(Window.PUBLISH_AFTER_STATE_LOAD)
        return head

    def _ground(self, branch: Branch, intent: CommitIntent) -> Head:
        """The branch's state, durable like everything else the commit will name as its parents."""
        head = self._load(branch)
        self._store.make_found_durable(branch, head.version)
        if intent.merged_parent is not None:
            # A source that is gone has its commits in the commit tables already.
            with suppress(CommitNotFound, StorageNotFound):
                merged = self._store.commits.show(intent.merged_parent)
                self._store.make_found_durable(merged.home, merged.manifest_version)
        return head

    def _plan(
        self,
        base: Head,
        changes: Sequence[Change],
        expected: Expectations,
        intent: CommitIntent,
        schema_lock: SchemaLock,
    ) -> Snapshot:
        self._respect_schema_lock(schema_lock)
        check_expectations(base.snapshot, expected)
        return next_snapshot(
            base.snapshot, changes, intent, time_us=self._clock.now_us(), incarnation=base.incarnation
        )

    def _respect_schema_lock(self, schema_lock: SchemaLock) -> None:
        if schema_lock is SchemaLock.RESPECTED:
            self._store.refuse_during_schema_apply()

    def _swap(
        self, base: Head, snapshot: Snapshot, rows: WrittenRows, files: Sequence[FileSum]
    ) -> Snapshot | None:
        """Replace `base` by `snapshot`, durably; None when another publisher was first.

        The rows must be durable already: a durable manifest must not point at rows that are not.
        """
        dataset = self._store.dataset
        try:
            failpoint(Window.PUBLISH_RETRYABLE_CONTENTION)
        except OSError as error:
            if not is_contention(error):
                raise
            made = dataset.settle_contention(base.version, snapshot.branch, rows)
        else:
            made = dataset.commit_overwrite(
                base.handle, snapshot.branch, _SCHEMA, rows, self._record(base, snapshot, rows, files)
            )
        if made is None:
            return None
        failpoint(Window.GRAPH_PUBLISH_AFTER_MANIFEST_COMMIT)
        if made.version != snapshot.manifest_version:
            raise InternalError(
                f"a publish reached manifest version {made.version} instead of {snapshot.manifest_version}"
            )
        self._refuse_dead_branch(base)
        self._store.adopt(made, snapshot, base)
        return snapshot

    def _write(self, base: Head, snapshot: Snapshot) -> WrittenRows:
        """The rows of a snapshot in new files, with every sum that can be taken ahead of the publish."""
        dataset = self._store.dataset
        columns = columns_of(snapshot)
        rows = dataset.write_rows(base.handle, snapshot.branch, encode(columns), replacing=True)
        return replace(rows, shown=digest(columns))

    def _record(
        self, base: Head, snapshot: Snapshot, rows: WrittenRows, files: Sequence[FileSum]
    ) -> FileRecord:
        """The checksums that go with a commit; the first one of a branch keeps that of its reference."""
        dataset, branch = self._store.dataset, snapshot.branch
        references = () if branch is None or base.snapshot.commit.home == branch else (branch,)
        before = dataset.sums_found(branch_reference(dataset.location, name) for name in references)
        return FileRecord(tuple(files), before, rows.shown, snapshot.head)

    def _refuse_dead_branch(self, base: Head) -> None:
        """Never acknowledge a publish on a branch that was deleted under it.

        The lease keeps writers and deletions apart; a writer without one would otherwise leave storage that
        no reference names and believe that it had published.
        """
        branch = base.snapshot.branch
        if branch is not None and self._store.dataset.reference_token(branch) != base.token:
            raise ReadSetConflict("branch", message=f"branch '{branch}' was deleted during the publish")

    def _announce(self, snapshot: Snapshot) -> None:
        failpoint(Window.GRAPH_PUBLISH_BEFORE_COMMIT_APPEND)
        self._store.commits.remember(snapshot.commit)
        emit(Published(snapshot.branch, snapshot.manifest_version, snapshot.commit.id))


def _wait(attempt: int) -> None:
    """Let the other processes finish: a random time that grows with the attempts made."""
    threading.Event().wait(random.uniform(0.5, 1.5) * _WAIT_SECONDS_FIRST * attempt)  # noqa: S311
