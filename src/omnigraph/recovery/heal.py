"""The in-process heal at the entry of every write."""

from dataclasses import dataclass

from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import OperationId
from omnigraph.manifest.recoveries import RecoveryKind, RecoveryRecord
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.queues import SCHEMA_APPLY_KEY, QueueKey
from omnigraph.recovery.settle import RecoveryMode, settle_or_wait
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


def heal_pending_sidecars_roll_forward(context: RecoveryContext) -> Healed:
    """Finish the writes whose writers died after their last table commit.

    Passes by the sidecars of writers of this process that are at work. Every other one is settled under the
    queues of its tables and the lease, which its writer holds for the sidecar's whole life. Never restores:
    that could drop rows a live writer is adding.
    Safe to call any number of times and beside live writers. Cost: one listing when nothing is pending.
    """
    names = [name for name in context.sidecars.list() if not context.queues.is_alive(operation_of(name))]
    if not names:
        return NOTHING
    failpoint(Window.RECOVERY_POST_LIST_PRE_READ)
    settled: list[RecoveryRecord] = []
    deferred: list[OperationId] = []
    schema_changed = False
    for name in names:
        noted = context.sidecars.read(name)
        if noted is None:
            continue
        with context.queues.acquire_many(queue_keys(noted)), context.lease.hold():
            # Its writer may have finished, or confirmed, while we waited for it.
            sidecar = context.sidecars.read(name)
            if sidecar is None:
                continue
            record = settle_or_wait(context, sidecar, RecoveryMode.ROLL_FORWARD_ONLY)
            if record is None:
                deferred.append(sidecar.operation_id)
            else:
                settled.append(record)
                forward = record.recovery_kind is RecoveryKind.ROLLED_FORWARD
                changes_schema = sidecar.writer_kind is WriterKind.SCHEMA_APPLY
                schema_changed = schema_changed or (forward and changes_schema)
    return Healed(tuple(settled), tuple(deferred), schema_changed)


def queue_keys(sidecar: Sidecar) -> tuple[QueueKey, ...]:
    """The queues whose possession proves that the sidecar's writer is dead or done."""
    keys = sidecar.queue_keys()
    return (SCHEMA_APPLY_KEY, *keys) if sidecar.writer_kind is WriterKind.SCHEMA_APPLY else keys
