"""Looking at what a sidecar's writer left: each table once, and whether its write is visible already."""

from omnigraph.core.errors import (
    SnapshotNotFound,
    StorageNotFound,
    StoragePermanent,
    StorageUnknown,
)
from omnigraph.core.ids import OperationId
from omnigraph.core.late_dataclass import dataclass
from omnigraph.manifest.commit_record import CommitRecord
from omnigraph.manifest.state import Snapshot
from omnigraph.recovery.classify import (
    Owner,
    RolledPastExpected,
    TableClass,
    TableFacts,
    UnexpectedAtP1,
    classification_mode,
    classify,
)
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.forks import fork_head
from omnigraph.recovery.sidecar import Sidecar, SidecarPin
from omnigraph.recovery.written_rows import rows_readable
from omnigraph.storage.handles import OPERATION_ID, TransactionInfo


@dataclass(frozen=True, slots=True)
class Observation:
    """One pinned table as it was seen; nobody looks at its HEAD again while the sidecar is settled."""

    pin: SidecarPin
    location: str
    facts: TableFacts
    table_class: TableClass


def observe(context: RecoveryContext, sidecar: Sidecar, snapshot: Snapshot) -> tuple[Observation, ...]:
    """Classify every table of a sidecar against a fresh snapshot of its branch."""
    mode = classification_mode(sidecar.writer_kind, sidecar.schema_version)
    observations: list[Observation] = []
    for pin in sidecar.tables:
        location = location_of(pin, snapshot)
        shown = snapshot.pin(pin.table_key)
        found = fork_head(context, pin, location, snapshot.entries.get(pin.table_key))
        head = shown if found is None else found
        owner = _owner(context, sidecar.operation_id, pin, location, head)
        if owner is not Owner.OURS and _inherits(snapshot, pin):
            # The writer died before its fork, and what is in its place is the reference of an earlier branch
            # of that name: its versions say nothing about this write, and its rows must never be shown.
            head = shown
        facts = TableFacts(
            head=head,
            pin=shown,
            expected=pin.expected_version,
            post_commit=pin.post_commit_pin,
            confirmed=pin.confirmed_version,
            owner=owner,
        )
        table_class = classify(facts, mode)
        if isinstance(table_class, RolledPastExpected) and not rows_readable(context, pin, location, head):
            table_class = UnexpectedAtP1()
        observations.append(Observation(pin, location, facts, table_class))
    return tuple(observations)


def location_of(pin: SidecarPin, snapshot: Snapshot) -> str:
    """The graph-relative place of a pinned table: the registration is the authority."""
    return snapshot.registrations.get(pin.table_key) or pin.table_path


def published_record(context: RecoveryContext, sidecar: Sidecar, snapshot: Snapshot) -> CommitRecord | None:
    """The commit that made this operation visible, or that settled it earlier; None when there is none.

    Every publish names the operation it belongs to, so this is a proof and not a comparison of numbers: a
    later writer that advanced the same tables is not mistaken for this one. Walks back from the newest state
    of the branch to the one the operation started from. Cost: one read per commit made since.
    """
    current = snapshot
    while True:
        record = current.commit
        if sidecar.operation_id in {record.operation_id, record.recovers}:
            return record
        before_writer = all(current.pin(pin.table_key) <= pin.expected_version for pin in sidecar.tables)
        if before_writer and record.time_us < sidecar.started_at_us:
            return None
        try:
            current = context.manifest.at_version(snapshot.branch, current.manifest_version - 1)
        except SnapshotNotFound:
            return None


def transaction(
    context: RecoveryContext, pin: SidecarPin, location: str, version: int
) -> TransactionInfo | None:
    """The transaction of a table version, or None when it cannot be read any more.

    Failures that may pass are raised: not knowing must not look like an answer.
    """
    try:
        return context.storage.transaction_of(location, pin.table_branch, version)
    except (StorageNotFound, StoragePermanent, StorageUnknown):
        return None


def _owner(
    context: RecoveryContext, operation_id: OperationId, pin: SidecarPin, location: str, version: int
) -> Owner:
    found = transaction(context, pin, location, version)
    if found is None:
        return Owner.UNREADABLE
    return Owner.OURS if found.properties.get(OPERATION_ID) == operation_id else Owner.FOREIGN


def _inherits(snapshot: Snapshot, pin: SidecarPin) -> bool:
    """Whether the branch shows the table on another Lance branch than the one the writer was to make."""
    entry = snapshot.entries.get(pin.table_key)
    return entry is not None and entry.branch != pin.table_branch
