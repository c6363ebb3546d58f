"""What a writer did to a table after it had lost the lease and others had settled its operation.

A process may be stopped for longer than the lease lives. Another writer then takes the lease and rolls the
operation back, and its sidecar is gone. Should the first one move a table nevertheless, between its last look
at the lease and its commit, nothing but the audit explains that version. It is settled like the rest of the
operation was: the table gets its published content again.
"""

from omnigraph.core.events import Warned, emit
from omnigraph.core.formats import SIDECAR_SCHEMA_VERSION
from omnigraph.core.ids import Branch, OperationId, new_ulid
from omnigraph.manifest.recoveries import RecoveryKind, RecoveryRecord
from omnigraph.manifest.state import TableEntry
from omnigraph.recovery.classify import ClassificationMode, classification_mode
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.observe import observe
from omnigraph.recovery.roll_back import roll_back
from omnigraph.recovery.sidecar import Sidecar, SidecarPin, WriterKind
from omnigraph.storage.handles import OPERATION_ID


def settle_late_effects(context: RecoveryContext, entry: TableEntry, branch: Branch, head: int) -> bool:
    """Undo versions of a table that were made by operations already rolled back; whether that was the case.

    The caller holds the queue of the table and the lease: nobody else can commit to this table, so a restore
    drops nothing but what it names. A sidecar covers it, so that dying half-way is an ordinary recovery.
    False, and nothing is touched, when any of the versions has another origin.
    """
    settled = _settled_writer(context, entry, branch, head)
    if settled is None:
        return False
    emit(Warned(f"'{entry.table_key}' was moved by a writer that had lost the lease", settled.operation_id))
    kind = _undone(WriterKind(settled.sidecar_writer_kind))
    restore_published(context, entry, branch, kind=kind, actor=settled.recovery_for_actor)
    return True


def restore_published(
    context: RecoveryContext, entry: TableEntry, branch: Branch, *, kind: WriterKind, actor: str | None
) -> None:
    """Give a table the content that the branch shows of it again, as a new version that is published.

    The caller holds the queue of the table and the lease. `kind` is one whose leftovers recovery undoes.
    """
    sidecar = Sidecar(
        operation_id=OperationId(new_ulid()),
        started_at_us=context.clock.now_us(),
        branch=branch,
        actor=actor,
        writer_kind=kind,
        tables=(
            SidecarPin(
                table_key=entry.table_key,
                table_path=entry.location,
                expected_version=entry.version,
                post_commit_pin=entry.version + 1,
                table_branch=branch,
            ),
        ),
    )
    context.lease.check()
    context.sidecars.write(sidecar)
    roll_back(context, sidecar, observe(context, sidecar, context.manifest.current(branch)))


def _undone(kind: WriterKind) -> WriterKind:
    """A kind whose leftovers recovery undoes: of some kinds it would publish whatever it finds."""
    judged = classification_mode(kind, SIDECAR_SCHEMA_VERSION)
    return WriterKind.MUTATION if judged is ClassificationMode.LOOSE else kind


def _settled_writer(
    context: RecoveryContext, entry: TableEntry, branch: Branch, head: int
) -> RecoveryRecord | None:
    """The audit row of the operation that made the versions after the shown one, if each has such a row."""
    rolled_back = {
        each.operation_id: each
        for each in context.recoveries.list()
        if each.recovery_kind is RecoveryKind.ROLLED_BACK
    }
    found: RecoveryRecord | None = None
    for version in range(entry.version + 1, head + 1):
        made_by = context.storage.transaction_of(entry.location, branch, version)
        operation = None if made_by is None else made_by.properties.get(OPERATION_ID)
        found = None if operation is None else rolled_back.get(OperationId(operation))
        if found is None:
            return None
    return found
