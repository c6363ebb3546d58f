"""Repair: tables that somebody moved without publishing, and whose HEAD no note explains.

Nothing a reader sees depends on such a HEAD, and no write builds on it. What moved it is read from the
transactions since the version that is shown. Only what certainly kept every row is published just like that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from omnigraph.core import html
from omnigraph.core.bounds import check_bounds, lift_bounds
from omnigraph.core.errors import (
    BadRequest,
    InternalError,
    OmnigraphError,
    RecoveryRequired,
    StorageTransient,
)
from omnigraph.core.ids import CommitId, OperationId, TableKey, new_ulid, show_branch
from omnigraph.engine.write.ground import Ground, WhenMoved, queue_keys
from omnigraph.engine.write.parts import Switch, WriteIntent
from omnigraph.engine.write.protocol import Staged, carry
from omnigraph.maintenance.optimize import require_settled
from omnigraph.recovery.late_writes import restore_published
from omnigraph.recovery.outcome import WriteCourse
from omnigraph.recovery.sidecar import WriterKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.core.ids import Branch
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot, TableEntry
    from omnigraph.recovery.queues import Guards
    from omnigraph.storage.handles import SnapshotHandle

REPAIRING: Final = "the repair"
OPERATION: Final = "repair"
ACTOR: Final = "omnigraph:repair"
FORCING_ACTOR: Final = "omnigraph:repair:force"
_REWRITE: Final = "Rewrite"
_UNNAMED: Final = "BaseOperation"
"""What Lance tells of operations that Python has no class for; the reservation of numbers is one."""


_UNREADABLE: Final = "Unreadable"
_RESERVATION: Final = "ReserveFragments"


class Classification(StrEnum):
    """What the versions after the shown one are."""

    NO_DRIFT = "no_drift"
    VERIFIED_MAINTENANCE = "verified_maintenance"
    """Rewrites of fragments and reservations of numbers: every row is as it was."""
    SUSPICIOUS = "suspicious"
    """Some other operation: rows may have changed."""
    UNVERIFIABLE = "unverifiable"
    """What some version was made by cannot be read."""


class Action(StrEnum):
    """What was done about a table."""

    NO_OP = "no_op"
    PREVIEW = "preview"
    HEALED = "healed"
    FORCED = "forced"
    RESTORED = "restored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RepairedTable:
    """One table: what is shown, what is there, what that is, and what was done."""

    table_key: str
    manifest_version: int
    """The version that the branch showed."""
    lance_head_version: int
    classification: Classification
    action: Action
    operations: tuple[str, ...]
    """What made each version after the shown one, in turn."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "type_key": self.table_key,
            "published_dataset_version": self.manifest_version,
            "lance_head_version": self.lance_head_version,
            "classification": self.classification.value,
            "action": self.action.value,
            "operations": list(self.operations),
            "error": None,
        }


@dataclass(frozen=True, slots=True)
class RepairReport(html.Shown):
    """What one run found and did."""

    branch: str
    confirm: bool
    force: bool
    undoes: bool
    """Whether what could not be published was to be undone."""
    graph_manifest_version: int
    """The state that was looked at."""
    tables: tuple[RepairedTable, ...]

    @property
    def refused(self) -> bool:
        """Whether a table was left as it was although the caller confirmed."""
        return any(each.action is Action.REFUSED for each in self.tables)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "branch": self.branch,
            "confirm": self.confirm,
            "force": self.force,
            "restore": self.undoes,
            "graph_manifest_version": self.graph_manifest_version,
            "datasets": [each.to_dict() for each in self.tables],
        }

    def _shown(self) -> html.Pieces:
        rows = [
            (each.table_key, each.manifest_version, each.lance_head_version, each.classification, each.action)
            for each in self.tables
        ]
        head = ("table", "shown", "newest", "found", "done")
        return html.facts(f"repair {self.branch}", {"confirm": self.confirm}) + html.table(head, rows)


def repair(
    session: GraphSession,
    branch: Branch,
    *,
    confirm: bool = False,
    force: bool = False,
    restore: bool = False,
    course: WriteCourse | None = None,
) -> RepairReport:
    """Say which tables of a branch were moved by nobody, and with `confirm` do something about it.

    Confirmed, verified maintenance is published. `force` publishes the others too, whatever they hold;
    `restore` gives them back what the branch shows. Raises `BadRequest` for `force` or `restore` without
    `confirm` or together, `RecoveryRequired` while an interrupted write waits for an open.
    Cost: two probes per table, and a transaction per version that nobody published.
    """
    if (force or restore) and not confirm:
        raise BadRequest("force and restore need confirm", hint="look at the preview first")
    if force and restore:
        raise BadRequest("force publishes what restore would undo", hint="choose one of them")
    course = WriteCourse(REPAIRING) if course is None else course
    require_settled(session)
    head = session.manifest.head(branch)
    ground = Ground(head.snapshot, head.token or "", WhenMoved.REFUSE)
    found = [_look(session, entry) for entry in _own(head.snapshot)]
    drifted = [each for each in found if each.classification is not Classification.NO_DRIFT]
    if confirm and drifted:
        keys = queue_keys(branch, [entry.table_key for entry in _own(head.snapshot)])
        with session.queues.acquire_many(keys) as guards:
            require_settled(session)
            done = _act(session, ground, drifted, guards, course, force=force, restore=restore)
            found = [done.get(each.table_key, each) for each in found]
    return RepairReport(
        show_branch(branch), confirm, force, restore, head.snapshot.manifest_version, tuple(found)
    )


def _own(shown: Snapshot) -> list[TableEntry]:
    """The tables that have a HEAD on this branch; what it inherits cannot have drifted here."""
    return [entry for _, entry in sorted(shown.entries.items()) if entry.branch == shown.branch]


# --- what it is ------------------------------------------------------------------------------------------


def _look(session: GraphSession, entry: TableEntry) -> RepairedTable:
    head = session.storage.head_version(entry.location, entry.branch, at_least=entry.version)
    if head < entry.version:
        raise InternalError(f"'{entry.table_key}' is shown at {entry.version}, its newest version is {head}")
    kind, operations = _classified(session, entry, head)
    action = Action.NO_OP if kind is Classification.NO_DRIFT else Action.PREVIEW
    return RepairedTable(entry.table_key, entry.version, head, kind, action, tuple(operations))


def _classified(session: GraphSession, entry: TableEntry, head: int) -> tuple[Classification, Sequence[str]]:
    operations = [_operation(session, entry, version) for version in range(entry.version + 1, head + 1)]
    if not operations:
        return Classification.NO_DRIFT, ()
    told = [each or "unknown" for each in operations]
    if any(each is None for each in operations):
        return Classification.UNVERIFIABLE, told
    if all(each in {_REWRITE, _RESERVATION} for each in operations):
        return Classification.VERIFIED_MAINTENANCE, told
    return Classification.SUSPICIOUS, told


def _operation(session: GraphSession, entry: TableEntry, version: int) -> str | None:
    """What made a version; None when that cannot be told."""
    storage = session.storage
    try:
        made_by = storage.transaction_of(entry.location, entry.branch, version)
        if made_by is None or made_by.operation == _UNREADABLE:
            return None
        if made_by.operation != _UNNAMED:
            return made_by.operation
        before, after = (
            storage.open_version(entry.table_key, entry.location, entry.branch, each)
            for each in (version - 1, version)
        )
        return _RESERVATION if _shows_the_same(session, before, after) else None
    except StorageTransient:
        raise
    except OmnigraphError:
        return None


def _shows_the_same(session: GraphSession, before: SnapshotHandle, after: SnapshotHandle) -> bool:
    storage = session.storage
    return (
        storage.fragments(before) == storage.fragments(after)
        and before.schema.equals(after.schema, check_metadata=True)
        and storage.index_coverage(before) == storage.index_coverage(after)
    )


# --- what is done ----------------------------------------------------------------------------------------


def _act(
    session: GraphSession,
    ground: Ground,
    drifted: Sequence[RepairedTable],
    guards: Guards,
    course: WriteCourse,
    *,
    force: bool,
    restore: bool,
) -> dict[str, RepairedTable]:
    """Publish or restore what may be; the caller holds the queues of all tables."""
    entries = ground.snapshot.entries
    by_action: dict[Action, list[RepairedTable]] = {}
    for each in drifted:
        verified = each.classification is Classification.VERIFIED_MAINTENANCE
        otherwise = Action.FORCED if force else Action.RESTORED if restore else Action.REFUSED
        by_action.setdefault(Action.HEALED if verified else otherwise, []).append(each)
    published = [each for action in (Action.HEALED, Action.FORCED) for each in by_action.get(action, ())]
    if published:
        switches = {
            each.table_key: _switch(session, entries[TableKey(each.table_key)], each) for each in published
        }
        actor = FORCING_ACTOR if Action.FORCED in by_action else ACTOR
        carry(session, _staged(ground, course, switches, actor), guards=guards)
    check_bounds()  # what was published above has lifted them
    lift_bounds()
    for each in by_action.get(Action.RESTORED, ()):
        entry = entries[TableKey(each.table_key)]
        with session.lease.hold():
            newest = session.storage.head_version(entry.location, ground.branch, at_least=entry.version)
            if newest != each.lance_head_version:
                raise RecoveryRequired(f"'{each.table_key}' moved again meanwhile")
            restore_published(
                session.recovery,
                entry,
                ground.branch,
                kind=WriterKind.MUTATION,
                actor=ACTOR,
            )
    return {
        each.table_key: replace(each, action=action) for action, some in by_action.items() for each in some
    }


def _switch(session: GraphSession, entry: TableEntry, table: RepairedTable) -> Switch:
    """The table as its HEAD has it, with what nobody was shown yet as new files."""
    shown, handle = (
        session.storage.open_version(entry.table_key, entry.location, entry.branch, each)
        for each in (entry.version, table.lance_head_version)
    )
    handle = session.storage.since(handle, shown)
    made_by = session.storage.transaction_of(entry.location, entry.branch, handle.version)
    uuid = "" if made_by is None else made_by.uuid
    published = replace(entry, version=handle.version, row_count=handle.row_count, transaction_uuid=uuid)
    return Switch(published, found=handle)


def _staged(ground: Ground, course: WriteCourse, switches: dict[str, Switch], actor: str) -> Staged:
    intent = WriteIntent(
        kind=WriterKind.OPTIMIZE,
        operation=OPERATION,
        operation_id=OperationId(new_ulid()),
        commit_id=CommitId(new_ulid()),
        actor=actor,
    )
    return Staged(
        intent, ground, course, {}, switches={each.entry.table_key: each for each in switches.values()}
    )
