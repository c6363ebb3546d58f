"""The in-process heal at the entry of every write."""

from dataclasses import field

from omnigraph.core.bounds import note_left, unbounded
from omnigraph.core.cancel import SETTLED
from omnigraph.core.errors import ResourceBusy
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import OperationId
from omnigraph.core.late_dataclass import dataclass
from omnigraph.manifest.recoveries import RecoveryKind, RecoveryRecord
from omnigraph.recovery.context import RecoveryContext, RecoveryMode
from omnigraph.recovery.queues import SCHEMA_APPLY_KEY, QueueKey
from omnigraph.recovery.sidecar import Sidecar, WriterKind, operation_of


@dataclass(frozen=True, slots=True)
class Healed:
    """What a pass did."""

    settled: tuple[RecoveryRecord, ...] = ()
    deferred: tuple[OperationId, ...] = ()
    """Operations that wait for a read-write open: they need a restore, or contradict the graph."""
    schema_changed: bool = False
    """Schema files were put in place: the catalog must be read again."""

    @property
    def anything(self) -> bool:
        """Whether the graph may look different now."""
        return bool(self.settled) or self.schema_changed


NOTHING = Healed()


def heal_pending_sidecars_roll_forward(context: RecoveryContext, *, waits: bool = True) -> Healed:
    """Finish the writes whose writers died after their last table commit.

    Passes by the sidecars of writers of this process that are at work. Every other one is settled under the
    queues of its tables and the lease, which its writer holds for the sidecar's whole life. Unless it
    `waits`, it passes by such a one too, while somebody holds them. Never restores: that could drop rows a
    live writer is adding. Safe to call any number of times and beside live writers.
    Cost: one listing when nothing is pending.
    """
    names = [name for name in context.sidecars.list() if not context.queues.is_alive(operation_of(name))]
    if not names:
        return NOTHING
    failpoint(Window.RECOVERY_POST_LIST_PRE_READ)
    found = _Found()
    for name in names:
        noted = context.sidecars.read(name)
        if noted is None:
            continue
        try:
            _heal(context, noted, found, wait_s_max=None if waits else 0.0)
        except ResourceBusy:
            if waits:
                raise
        if found.settled:
            note_left(SETTLED)
    return Healed(tuple(found.settled), tuple(found.deferred), found.schema_changed)


@dataclass(slots=True)
class _Found:
    settled: list[RecoveryRecord] = field(default_factory=list[RecoveryRecord])
    deferred: list[OperationId] = field(default_factory=list[OperationId])
    schema_changed: bool = False


def _heal(context: RecoveryContext, noted: Sidecar, found: _Found, *, wait_s_max: float | None) -> None:
    # Almost every write finds nothing to settle, and does not load what settles.
    from omnigraph.recovery.settle import settle_or_wait  # noqa: PLC0415

    with (
        context.queues.acquire_many(queue_keys(noted), wait_s_max=wait_s_max),
        context.lease.hold(wait_s_max=wait_s_max),
        unbounded(),
    ):
        # Its writer may have finished, or confirmed, while we waited for it.
        sidecar = context.sidecars.read(noted.name)
        if sidecar is None:
            return
        record = settle_or_wait(context, sidecar, RecoveryMode.ROLL_FORWARD_ONLY)
        if record is None:
            found.deferred.append(sidecar.operation_id)
            return
        found.settled.append(record)
        forward = record.recovery_kind is RecoveryKind.ROLLED_FORWARD
        changes_schema = sidecar.writer_kind is WriterKind.SCHEMA_APPLY
        found.schema_changed = found.schema_changed or (forward and changes_schema)


def queue_keys(sidecar: Sidecar) -> tuple[QueueKey, ...]:
    """The queues whose possession proves that the sidecar's writer is dead or done."""
    keys = sidecar.queue_keys()
    return (SCHEMA_APPLY_KEY, *keys) if sidecar.writer_kind is WriterKind.SCHEMA_APPLY else keys
