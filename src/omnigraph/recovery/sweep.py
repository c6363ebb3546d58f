"""The sweep of a read-write open: settle everything dead writers left."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final

from omnigraph.core.errors import ResourceBusy
from omnigraph.core.events import Warned, emit
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import OperationId
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import LEASE_OPEN_WAIT_S_MAX, LEASE_WAIT_S_MAX
from omnigraph.manifest.branches import BranchStore
from omnigraph.manifest.recoveries import RecoveryRecord
from omnigraph.recovery.context import RecoveryContext, RecoveryMode
from omnigraph.recovery.heal import queue_keys
from omnigraph.recovery.queues import SCHEMA_APPLY_KEY
from omnigraph.recovery.sidecar import Sidecar

UNFINISHED_AGE_S_MIN: Final = 2 * LEASE_WAIT_S_MAX
"""A sidecar without a name that is this old has no writer: nobody waits even half as long for the lease."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What the sweep did, and what it left."""

    settled: tuple[RecoveryRecord, ...] = ()
    pending: tuple[OperationId, ...] = ()
    """Left alone: their writers may live, or a restore was not possible beside other writers."""


def sweep(context: RecoveryContext, *, wait_s_max: float = LEASE_OPEN_WAIT_S_MAX) -> Swept:
    """Settle every sidecar, oldest first, each against a fresh snapshot of its branch.

    Restores only while it has the lease alone; beside a writing thread of this process it rolls forward only;
    while another process has the lease it touches nothing, because the sidecar may be that writer's. What is
    left is reported and the open goes on. Raises when a sidecar cannot be read or contradicts the graph.
    Cost: two listings and a probe when nothing is pending.
    """
    _drop_unfinished(context)
    swept = _settle_all(context, context.sidecars.list(), time.monotonic() + wait_s_max)
    _drop_dead_lock(context)
    return swept


def _settle_all(context: RecoveryContext, names: Sequence[str], deadline: float) -> Swept:
    if not names:
        return Swept()
    from omnigraph.recovery.settle import settle_or_wait  # noqa: PLC0415  there is something to settle

    failpoint(Window.RECOVERY_POST_LIST_PRE_READ)
    settled: list[RecoveryRecord] = []
    pending: list[OperationId] = []
    for name in names:
        noted = context.sidecars.read(name)
        if noted is None:
            continue
        with ExitStack() as held:
            mode = _enter(context, noted, held, deadline)
            # Its writer may have finished, or confirmed, while we waited for it.
            sidecar = context.sidecars.read(name)
            if sidecar is None:
                continue
            record = None if mode is None else settle_or_wait(context, sidecar, mode)
        if record is None:
            pending.append(noted.operation_id)
        else:
            settled.append(record)
    if pending:
        emit(Warned("interrupted writes are still pending", ", ".join(pending)))
    return Swept(tuple(settled), tuple(pending))


def _drop_unfinished(context: RecoveryContext) -> None:
    """Remove sidecars without a name, left by writers that died while they wrote them.

    Nobody writes one while this has the lease alone, and whoever waits for it gives up sooner than these are
    old. A writer that waited longer, for writers of its own process, writes its sidecar again.
    """
    if not context.sidecars.unfinished(age_s_min=UNFINISHED_AGE_S_MIN):
        return
    try:
        with context.lease.alone(wait_s_max=0):
            for each in context.sidecars.unfinished(age_s_min=UNFINISHED_AGE_S_MIN):
                # They cover nothing and no listing shows them: one that stays must not stop an open.
                with suppress(OSError):
                    context.sidecars.discard_prepared(each)
    except ResourceBusy:
        return  # somebody is writing; a later open finds them again


def _enter(
    context: RecoveryContext, sidecar: Sidecar, held: ExitStack, deadline: float
) -> RecoveryMode | None:
    """Acquire what settling needs; None when a writer may be alive."""
    try:
        held.enter_context(context.queues.acquire_many(queue_keys(sidecar), wait_s_max=_remaining(deadline)))
    except ResourceBusy:
        return None
    try:
        held.enter_context(context.lease.alone(wait_s_max=_remaining(deadline)))
    except ResourceBusy:
        pass
    else:
        return RecoveryMode.FULL
    try:
        held.enter_context(context.lease.hold(wait_s_max=0))
    except ResourceBusy:
        return None
    return RecoveryMode.ROLL_FORWARD_ONLY


def _drop_dead_lock(context: RecoveryContext) -> None:
    """Let writers go on after a schema apply that died: it has the lease for as long as it has its lock.

    While its sidecar is pending, nothing may be written that the sidecar does not know.
    """
    if not context.manifest.schema_apply_in_progress():
        return
    try:
        with context.queues.acquire_many([SCHEMA_APPLY_KEY], wait_s_max=0), context.lease.alone(wait_s_max=0):
            if not any(each.changes_accepted_schema for each in context.sidecars.pending()):
                BranchStore(context.manifest).release_schema_apply_lock()
    except ResourceBusy:
        return  # somebody is writing, perhaps the apply itself; a later open finds the lock again


def _remaining(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
