"""What recovery needs of one graph, handed in by whoever opened it."""

from enum import StrEnum

from omnigraph.core.clock import Clock
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.settings import Settings
from omnigraph.manifest.commits import CommitLog
from omnigraph.manifest.publisher import ManifestBatchPublisher
from omnigraph.manifest.recoveries import RecoveryLog
from omnigraph.manifest.store import ManifestStore
from omnigraph.recovery.lease import Lease, lease_of
from omnigraph.recovery.queues import WriteQueueManager, queues_of
from omnigraph.recovery.sidecar import SidecarStore
from omnigraph.storage.durability import DurabilityMode
from omnigraph.storage.layout import GraphRoot
from omnigraph.storage.objects import StorageAdapter
from omnigraph.storage.tables import TableStorage


class RecoveryMode(StrEnum):
    """What a pass may do."""

    FULL = "full"
    """Everything; needs the lease alone, because a restore drops commits it does not know."""
    ROLL_FORWARD_ONLY = "roll_forward_only"
    """Whatever needs no restore; the rest waits for the next read-write open."""


@dataclass(frozen=True, slots=True)
class RecoveryContext:
    """The parts of one open graph that sweep, heal and verify work with."""

    root: GraphRoot
    adapter: StorageAdapter
    storage: TableStorage
    manifest: ManifestStore
    publisher: ManifestBatchPublisher
    commits: CommitLog
    queues: WriteQueueManager
    lease: Lease
    sidecars: SidecarStore
    recoveries: RecoveryLog
    settings: Settings
    clock: Clock


def recovery_context(
    root: GraphRoot,
    adapter: StorageAdapter,
    storage: TableStorage,
    manifest: ManifestStore,
    publisher: ManifestBatchPublisher,
    settings: Settings,
    clock: Clock,
) -> RecoveryContext:
    """The context of a graph, with the queues and the lease every handle of this process shares."""
    return RecoveryContext(
        root=root,
        adapter=adapter,
        storage=storage,
        manifest=manifest,
        publisher=publisher,
        commits=manifest.commits,
        queues=queues_of(root.identity),
        lease=lease_of(root, adapter, clock),
        sidecars=SidecarStore(adapter),
        recoveries=RecoveryLog(root, adapter, DurabilityMode(settings.durability)),
        settings=settings,
        clock=clock,
    )
