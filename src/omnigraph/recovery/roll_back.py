"""Rolling back: give every table a dead writer moved its published content again."""

from collections.abc import Sequence

from omnigraph.core.failpoints import Window, failpoint
from omnigraph.manifest.recoveries import RecoveryKind, RecoveryRecord, TableOutcome
from omnigraph.recovery.audit import finish, publish_recovery
from omnigraph.recovery.classify import NoMovement
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.observe import Observation, transaction
from omnigraph.recovery.roll_forward import update_of
from omnigraph.recovery.sidecar import Sidecar
from omnigraph.recovery.written_rows import make_versions_durable
from omnigraph.storage.handles import OPERATION_ID, RECOVERY_OF, RESTORE_TO, SnapshotHandle


def roll_back(
    context: RecoveryContext, sidecar: Sidecar, observations: Sequence[Observation]
) -> RecoveryRecord:
    """Restore what moved, publish the restored versions at once, and record it.

    The caller has the lease alone: a restore silently drops a commit it does not know. The restore runs even
    when the fragments look alike; equal fragment ids do not prove equal content. Afterwards pin equals HEAD.
    """
    # A table the branch does not show has no published content to return to, and nobody reads it.
    moved = [
        each for each in observations if not isinstance(each.table_class, NoMovement) and each.facts.pin > 0
    ]
    outcomes: list[TableOutcome] = []
    restored: list[SnapshotHandle] = []
    for each in moved:
        make_versions_durable(context, each.pin, each.location, each.facts.head)
        handle, left_at = _restored(context, sidecar, each)
        restored.append(handle)
        outcomes.append(TableOutcome(each.pin.table_key, left_at, each.facts.pin))
        failpoint(Window.RECOVERY_POST_TABLE_RESTORE_PRE_PUBLISH)
    context.storage.make_durable(restored)
    published = publish_recovery(
        context,
        sidecar,
        branch=sidecar.branch,
        changes=[
            update_of(context, each.pin, each.location, handle.version, handle.row_count)
            for each, handle in zip(moved, restored, strict=True)
        ],
        expected={each.pin.table_key: each.facts.pin for each in moved},
        kind=RecoveryKind.ROLLED_BACK,
        outcomes=outcomes,
        files=context.storage.sums(restored),
    )
    failpoint(Window.RECOVERY_POST_ROLLBACK_PUBLISH_PRE_AUDIT)
    return finish(
        context, sidecar, kind=RecoveryKind.ROLLED_BACK, commit_id=published.head, outcomes=outcomes
    )


def remove_added_tables(context: RecoveryContext, sidecar: Sidecar) -> None:
    """Delete the datasets a rolled-back schema apply had created, so that a retry can create them.

    Only what no branch registers and what this very operation created; anything else is not ours to judge.
    """
    if not sidecar.additional_registrations:
        return
    branches = (None, *context.manifest.all_branches())
    shown = context.manifest.readable(branches)
    if len(shown) < len(branches):
        return  # a branch that cannot be read may register them
    registered = {location for each in shown.values() for location in each.registrations.values()}
    for added in sidecar.additional_registrations:
        if added.table_path in registered:
            continue
        made_by = context.storage.transaction_of(added.table_path, None, 1)
        if made_by is not None and made_by.properties.get(OPERATION_ID) == sidecar.operation_id:
            context.adapter.delete_prefix(added.table_path)


def _restored(context: RecoveryContext, sidecar: Sidecar, seen: Observation) -> tuple[SnapshotHandle, int]:
    """The table with its published content at HEAD, and the HEAD the writer had left."""
    pin, facts = seen.pin, seen.facts
    head = context.storage.open_version(pin.table_key, seen.location, pin.table_branch, facts.head)
    made_by = transaction(context, pin, seen.location, facts.head)
    if (
        made_by is not None
        and made_by.properties.get(RECOVERY_OF) == sidecar.operation_id
        and made_by.properties.get(RESTORE_TO) == str(facts.pin)
    ):
        # An earlier pass restored this table and died before its publish.
        return head, facts.head - 1
    context.lease.check()
    return context.storage.restore(head, facts.pin, operation_id=sidecar.operation_id), facts.head
