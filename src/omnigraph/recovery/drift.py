"""The drift guard: a write never builds on a table whose HEAD is not what the branch shows."""

from collections.abc import Mapping

from omnigraph.core.errors import DRIFT_WAY_OUT, DriftError, InternalError, OmnigraphError, RecoveryRequired
from omnigraph.core.errors.base import said
from omnigraph.core.ids import Branch, TableKey, show_branch
from omnigraph.manifest.state import Snapshot, TableEntry
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.sidecar import Sidecar

_SEND_AGAIN = "a pending recovery sidecar is rolled forward by the next write — send the write again"
_REOPEN = "a pending recovery sidecar requires rollback — reopen the graph read-write"


def drift_guard(context: RecoveryContext, entry: TableEntry, branch: Branch) -> None:
    """Raise unless the HEAD of the table is the version the branch shows.

    A table that `branch` only inherits cannot have drifted there: its own lineage does not exist yet.
    Cost: two existence probes when the table is where it should be.
    """
    if entry.branch != branch:
        return
    head = context.storage.head_version(entry.location, branch, at_least=entry.version)
    if head != entry.version:
        raise drift_failure(context, entry.table_key, branch, pin=entry.version, head=head)


def refuse_drift(context: RecoveryContext, shown: Mapping[Branch, Snapshot]) -> None:
    """Raise unless every table of these branches is where its branch shows it; as `drift_guard` for each."""
    for branch, snapshot in shown.items():
        for entry in snapshot.entries.values():
            drift_guard(context, entry, branch)


def drift_failure(
    context: RecoveryContext, table_key: TableKey, branch: Branch, *, pin: int, head: int
) -> OmnigraphError:
    """The error for a table whose HEAD differs from its pin, naming the way out. The write had no effect."""
    where = f"{table_key} on {show_branch(branch)}"
    if head < pin:
        return InternalError(f"{where} is shown at version {pin}, but its newest version is {head}")
    found = f"{where} is at version {head} while version {pin} is published"
    try:
        covering = [each for each in context.sidecars.pending() if each.covers(table_key, branch)]
    except Exception as error:  # noqa: BLE001  whatever stops the listing, the write must not go on
        return RecoveryRequired(
            f"{found}; the recovery notes could not be listed ({said(error)}): either {_REOPEN},"
            " or none explains it",
            hint=f"reopen the graph read-write; if the write is refused again: {DRIFT_WAY_OUT}",
        )
    for sidecar in covering:
        if _waits_for_open(context, sidecar):
            hint = "nothing of this write has happened: reopen the graph read-write, then send it again"
            return RecoveryRequired(f"{found}: {_REOPEN}", sidecar.operation_id, hint=hint)
    if covering:
        hint = "nothing of this write has happened: send it again, which completes the pending one first"
        return RecoveryRequired(f"{found}: {_SEND_AGAIN}", covering[0].operation_id, hint=hint)
    return DriftError(table_key=table_key, branch=show_branch(branch), pin=pin, head=head)


def _waits_for_open(context: RecoveryContext, sidecar: Sidecar) -> bool:
    from omnigraph.recovery.settle import waits_for_open  # noqa: PLC0415  only a write that is refused asks

    try:
        return waits_for_open(context, sidecar)
    except Exception:  # noqa: BLE001  what cannot be judged beside live writers is judged by an open
        return True
