"""What a write leaves in writing: its sidecar, its commit record, the changes of its publish.

They are made here and nowhere else outside recovery.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from omnigraph.manifest.changes import CommitIntent, RegisterTable, SubTableUpdate, Tombstone
from omnigraph.recovery.sidecar import (
    Sidecar,
    SidecarPin,
    SidecarRead,
    SidecarRegistration,
    SidecarSwitch,
    SidecarTombstone,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from omnigraph.core.clock import Clock
    from omnigraph.core.ids import Branch, CommitId, TableKey
    from omnigraph.engine.write.ground import Ground
    from omnigraph.engine.write.parts import Reshape, Switch, WriteIntent
    from omnigraph.manifest.changes import Change
    from omnigraph.manifest.state import Snapshot, TableEntry


class Announced(Protocol):
    """A table whose next entry may be known before its commit is made."""

    @property
    def entry(self) -> TableEntry:
        """What the branch shows of it now."""
        ...

    @property
    def is_announced(self) -> bool:
        """Whether `coming` is known."""
        ...

    def coming(self) -> TableEntry:
        """The entry the commit will make. May have to wait for a part of it."""
        ...


def is_announceable(branch: Branch, tables: Iterable[Announced]) -> bool:
    """Whether the rows of the publish can be written before the tables have moved.

    The version of a commit is the pin plus one; only a fork gets its identity when it is made.
    """
    return all(table.entry.branch == branch and table.is_announced for table in tables)


def announced_changes(tables: Iterable[Announced]) -> list[Change]:
    """The changes of the publish, before the tables have moved."""
    return [shown(each.coming()) for each in sorted(tables, key=lambda table: table.entry.table_key)]


def entry_after(
    entry: TableEntry, transaction_uuid: str, *, rows_added: int, rows_removed: int
) -> TableEntry:
    """What one commit makes of a table that the branch owns."""
    return replace(
        entry,
        version=entry.version + 1,
        row_count=entry.row_count + rows_added - rows_removed,
        transaction_uuid=transaction_uuid,
    )


def shown(entry: TableEntry) -> SubTableUpdate:
    """The change that makes a branch show this entry."""
    return SubTableUpdate(
        table_key=entry.table_key,
        table_version=entry.version,
        table_branch=entry.branch,
        row_count=entry.row_count,
        transaction_uuid=entry.transaction_uuid,
        branch_identifier=entry.branch_identifier,
    )


def changes_to(current: Snapshot, entries: Iterable[TableEntry]) -> tuple[Change, ...]:
    """The changes that make a branch show these entries, in key order.

    Tables that are new to it are registered, those of a name that it knows from before a drop, too.
    """
    changes: list[Change] = []
    for entry in sorted(entries, key=lambda each: each.table_key):
        if entry.table_key not in current.entries:
            changes.append(RegisterTable(entry.table_key, entry.location))
        changes.append(shown(entry))
    return tuple(changes)


def reshaped(current: Snapshot, entries: Iterable[TableEntry], reshape: Reshape) -> tuple[Change, ...]:
    """As `changes_to`, for a write that may also make, rename and drop tables.

    A table with a new key is shown under it at the place where it lies; what is not shown any more gets a
    tombstone behind its last version.
    """
    after = {entry.table_key: entry for entry in entries}
    moved = {old: after.pop(old, None) or current.entries[old] for old in reshape.renamed}
    made = {each.table_key: after.pop(each.table_key) for each in reshape.created}
    made |= {new: replace(moved[old], table_key=new) for old, new in reshape.renamed.items()}
    changes: list[Change] = [RegisterTable(key, entry.location) for key, entry in sorted(made.items())]
    changes.extend(changes_to(current, after.values()))
    changes.extend(shown(entry) for _, entry in sorted(made.items()))
    changes.extend(Tombstone(old, entry.version + 1) for old, entry in sorted(moved.items()))
    changes.extend(Tombstone(key, current.pin(key) + 1) for key in sorted(reshape.dropped))
    return tuple(changes)


def commit_record(intent: WriteIntent, head: CommitId) -> CommitIntent:
    """What the publish records. `head` was found to show what the caller's condition names."""
    return CommitIntent(
        commit_id=intent.commit_id,
        operation=intent.operation,
        actor=intent.actor,
        operation_id=intent.operation_id,
        merged_parent=intent.merged_parent,
        summary=intent.summary,
        expected_head=None if intent.if_commit is None else head,
        schema_hash=intent.schema_hash,
        requests=intent.requests,
        keys=intent.keys,
    )


def sidecar_of(
    clock: Clock,
    intent: WriteIntent,
    ground: Ground,
    entries: Mapping[TableKey, TableEntry],
    switches: Mapping[TableKey, Switch],
    reshape: Reshape | None = None,
) -> Sidecar:
    """The note of a write that commits to the tables `entries` names, each as it is before that.

    The version expected after the commit is exact for writers of one commit, a lower bound for the others.
    """
    branch = ground.branch
    return Sidecar(
        operation_id=intent.operation_id,
        started_at_us=clock.now_us(),
        branch=branch,
        actor=intent.actor,
        writer_kind=intent.kind,
        tables=tuple(
            SidecarPin(
                table_key=key,
                table_path=entry.location,
                expected_version=entry.version,
                post_commit_pin=entry.version + 1,
                table_branch=branch,
            )
            for key, entry in sorted(entries.items())
        ),
        merge_source_commit_id=intent.merged_parent,
        switches=tuple(
            SidecarSwitch(
                table_key=key,
                table_path=switch.entry.location,
                expected_version=ground.snapshot.pin(key),
                table_version=switch.entry.version,
                table_branch=branch if switch.forks else switch.entry.branch,
            )
            for key, switch in sorted(switches.items())
        ),
        reads=tuple(
            SidecarRead(key, ground.snapshot.pin(key))
            for key in sorted(ground.reads)
            if key not in entries and key not in switches
        ),
        additional_registrations=() if reshape is None else _registrations(ground, reshape),
        tombstones=() if reshape is None else _tombstones(ground, reshape),
        schema_hash=intent.schema_hash if branch is not None else None,
        requests=intent.requests,
        keys=intent.keys,
    )


def _registrations(ground: Ground, reshape: Reshape) -> tuple[SidecarRegistration, ...]:
    """What a schema change registers: new tables, and old ones under their new keys."""
    entries = ground.snapshot.entries
    return (
        *(SidecarRegistration(each.table_key, each.location) for each in reshape.created),
        *(
            SidecarRegistration(new, entries[old].location, entries[old].branch)
            for old, new in sorted(reshape.renamed.items())
        ),
    )


def _tombstones(ground: Ground, reshape: Reshape) -> tuple[SidecarTombstone, ...]:
    return tuple(SidecarTombstone(key, ground.snapshot.pin(key) + 1) for key in sorted(reshape.hidden))
