"""Rolling forward: publish what a dead writer finished."""

from collections.abc import Sequence
from contextlib import suppress

from omnigraph.core.errors import InternalError, OmnigraphError
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import TableKey
from omnigraph.manifest.changes import Change, RegisterTable, SubTableUpdate, Tombstone
from omnigraph.manifest.recoveries import RecoveryKind, RecoveryRecord, TableOutcome
from omnigraph.manifest.state import Snapshot
from omnigraph.recovery.audit import finish, publish_recovery
from omnigraph.recovery.classify import RolledPastExpected
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.observe import Observation, transaction
from omnigraph.recovery.sidecar import Sidecar, SidecarPin, SidecarRegistration, SidecarSwitch
from omnigraph.recovery.written_rows import (
    files_made,
    make_shown_durable,
    make_table_durable,
    make_version_durable,
)
from omnigraph.storage.checksums import FileSum
from omnigraph.storage.manifest_files import manifest_object


def roll_forward(
    context: RecoveryContext,
    sidecar: Sidecar,
    snapshot: Snapshot,
    observations: Sequence[Observation],
    *,
    schema_hash: str | None = None,
) -> RecoveryRecord:
    """Publish every table at the version it was classified at, in one publish, and record it.

    `schema_hash`: the schema the branch follows from now on, for a schema apply.
    Raises `ExpectedVersionMismatch`, leaving the sidecar, when the branch moved in another direction.
    """
    changes: list[Change] = []
    expected: dict[TableKey, int] = {}
    outcomes: list[TableOutcome] = []
    hidden = {each.table_key for each in sidecar.tombstones}
    pinned = {each.pin.table_key for each in observations}
    for each in observations:
        if not isinstance(each.table_class, RolledPastExpected):
            raise InternalError(f"'{each.pin.table_key}' is not finished and cannot be rolled forward")
        if each.pin.table_key in hidden:
            changes.append(Tombstone(each.pin.table_key, each.table_class.target + 1))
            expected[each.pin.table_key] = each.pin.expected_version
            continue
        changes.append(_shown_at(context, each.pin, each.location, each.table_class.target))
        expected[each.pin.table_key] = each.pin.expected_version
        outcomes.append(TableOutcome(each.pin.table_key, each.pin.expected_version, each.table_class.target))
    outcomes.extend(
        _register(context, registration, snapshot, changes, expected)
        for registration in sidecar.additional_registrations
    )
    outcomes.extend(_switch(context, each, snapshot, changes, expected) for each in sidecar.switches)
    for tombstone in sidecar.tombstones:
        if tombstone.table_key in snapshot.entries and tombstone.table_key not in pinned:
            changes.append(Tombstone(tombstone.table_key, tombstone.tombstone_version))
            expected[tombstone.table_key] = tombstone.tombstone_version - 1
    files = [each for seen in observations for each in _sums(context, seen)]
    registered = [each for each in sidecar.additional_registrations if each.table_key not in snapshot.entries]
    files.extend(each for one in registered for each in _sums_of_table(context, one))
    failpoint(Window.RECOVERY_BEFORE_ROLL_FORWARD_PUBLISH)
    published = publish_recovery(
        context,
        sidecar,
        branch=sidecar.branch,
        changes=changes,
        expected=expected,
        kind=RecoveryKind.ROLLED_FORWARD,
        outcomes=outcomes,
        merged_parent=sidecar.merge_source_commit_id,
        schema_hash=schema_hash,
        files=files,
    )
    return finish(
        context, sidecar, kind=RecoveryKind.ROLLED_FORWARD, commit_id=published.head, outcomes=outcomes
    )


def _sums(context: RecoveryContext, seen: Observation) -> tuple[FileSum, ...]:
    """The checksums of what the dead writer made of one table: whoever publishes it keeps them."""
    if not context.root.is_local or not isinstance(seen.table_class, RolledPastExpected):
        return ()
    pin, location, target = seen.pin, seen.location, seen.table_class.target
    names = {*files_made(context, pin, location, target)}
    storage = context.storage
    with suppress(OmnigraphError):  # an index may have lost files: it is made again, the rows are there
        made, base = (
            storage.open_version(pin.table_key, location, pin.table_branch, each)
            for each in (target, pin.expected_version)
        )
        names |= storage.files_of(made) - storage.files_of(base)
    return context.manifest.dataset.sums_found(name for name in sorted(names) if "/_refs/" not in name)


def _sums_of_table(context: RecoveryContext, registration: SidecarRegistration) -> tuple[FileSum, ...]:
    """As `_sums` for a table that nobody was shown before."""
    if not context.root.is_local:
        return ()
    key, location, branch = registration.table_key, registration.table_path, registration.table_branch
    head = context.storage.open_head(key, location, branch)
    before = {manifest_object(location, branch, number) for number in range(1, head.version)}
    return context.manifest.dataset.sums_found(sorted(context.storage.files_of(head) | before))


def _switch(
    context: RecoveryContext,
    switch: SidecarSwitch,
    snapshot: Snapshot,
    changes: list[Change],
    expected: dict[TableKey, int],
) -> TableOutcome:
    """Add the changes that show the version a merge wanted shown; returns its line of the audit."""
    key, version, branch = switch.table_key, switch.table_version, switch.table_branch
    there = snapshot.entries.get(key)
    location = switch.table_path if there is None else there.location
    expected[key] = switch.expected_version
    if there is None:
        # New to the branch, or another table than the one it knew under this name.
        changes.append(RegisterTable(key, location))
        expected[key] = snapshot.latest_version(key)
    handle = context.storage.open_version(key, location, branch, version)
    make_shown_durable(context, location, branch, version)
    pin = SidecarPin(key, location, 0, version, table_branch=branch)
    changes.append(update_of(context, pin, location, version, handle.row_count))
    return TableOutcome(key, switch.expected_version, version)


def converged(observations: Sequence[Observation], snapshot: Snapshot) -> bool:
    """Whether somebody else has published exactly what a roll-forward would have."""
    return all(
        isinstance(each.table_class, RolledPastExpected)
        and snapshot.pin(each.pin.table_key) == each.table_class.target
        for each in observations
    )


def _shown_at(context: RecoveryContext, pin: SidecarPin, location: str, version: int) -> SubTableUpdate:
    handle = context.storage.open_version(pin.table_key, location, pin.table_branch, version)
    make_version_durable(context, pin, location, version)
    return update_of(context, pin, location, version, handle.row_count)


def update_of(
    context: RecoveryContext, pin: SidecarPin, location: str, version: int, row_count: int
) -> SubTableUpdate:
    """The manifest change that shows one version of a pinned table."""
    made_by = transaction(context, pin, location, version)
    return SubTableUpdate(
        table_key=pin.table_key,
        table_version=version,
        table_branch=pin.table_branch,
        row_count=row_count,
        transaction_uuid="" if made_by is None else made_by.uuid,
        branch_identifier=context.storage.branch_identifier(location, pin.table_branch) or (),
    )


def _register(
    context: RecoveryContext,
    registration: SidecarRegistration,
    snapshot: Snapshot,
    changes: list[Change],
    expected: dict[TableKey, int],
) -> TableOutcome:
    """Add the changes that register one table, unless it is registered; returns its line of the audit."""
    key = registration.table_key
    if key in snapshot.entries:
        return TableOutcome(key, 0, snapshot.pin(key))
    location, branch = registration.table_path, registration.table_branch
    head = context.storage.open_head(key, location, branch)
    make_table_durable(context, location)
    pin = SidecarPin(key, location, 0, head.version, table_branch=branch)
    changes.append(RegisterTable(key, location))
    changes.append(update_of(context, pin, location, head.version, head.row_count))
    expected[key] = snapshot.latest_version(key)
    return TableOutcome(key, 0, head.version)
