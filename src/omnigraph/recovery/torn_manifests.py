"""Newest version files that a power cut left incomplete, removed before anything opens the datasets."""

from pathlib import Path

from omnigraph.core.errors import ResourceBusy, StoragePermanent
from omnigraph.core.ids import Branch
from omnigraph.core.limits import LEASE_OPEN_WAIT_S_MAX
from omnigraph.manifest.state import Snapshot
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.sidecar import Sidecar, SidecarPin
from omnigraph.storage.layout import COMMIT_ACTORS, COMMIT_RECOVERIES, COMMITS, MANIFEST
from omnigraph.storage.torn_manifests import TornManifest, find_torn_manifest, remove_torn_manifests


def repair_torn_manifests(
    context: RecoveryContext, *, wait_s_max: float = LEASE_OPEN_WAIT_S_MAX
) -> tuple[TornManifest, ...]:
    """Make the datasets of a graph openable again; the first step of a read-write open.

    Looks at the newest version of `__manifest` on every branch, of the commit tables, and of every table a
    sidecar names. A version nobody was promised is removed. A published one (the manifest shows it, or tables
    moved and no sidecar explains it) stays, and the error names it. While another process writes nothing is
    touched: what looks torn may be its file in the making.
    Cost: one listing per dataset looked at; nothing on object stores.
    """
    if not context.root.is_local:
        return ()
    sidecars = context.sidecars.pending()
    places = [*_states(context), *_control_tables(), *_noted_tables(sidecars)]
    if not any(find_torn_manifest(context.root, location, branch) for location, branch in places):
        return ()
    try:
        with context.lease.hold(wait_s_max=wait_s_max):
            return _repair(context, sidecars)
    except ResourceBusy:
        return ()


def _states(context: RecoveryContext) -> list[tuple[str, Branch]]:
    return [(MANIFEST, branch) for branch in (None, *context.manifest.all_branches())]


def _control_tables() -> list[tuple[str, Branch]]:
    return [(name, None) for name in (COMMITS, COMMIT_ACTORS, COMMIT_RECOVERIES)]


def _noted_tables(sidecars: tuple[Sidecar, ...]) -> list[tuple[str, Branch]]:
    return [(pin.table_path, pin.table_branch) for each in sidecars for pin in each.tables]


def _repair(context: RecoveryContext, sidecars: tuple[Sidecar, ...]) -> tuple[TornManifest, ...]:
    """First what the branches show, then what may be compared with it."""
    removed: list[TornManifest] = []
    for _, branch in _states(context):
        removed.extend(_repair_states(context, branch, sidecars))
    for location, branch in _control_tables():
        removed.extend(remove_torn_manifests(context.root, location, branch))
    for sidecar in sidecars:
        if context.manifest.branch_exists(sidecar.branch):
            shown = context.manifest.current(sidecar.branch)
            for pin in sidecar.tables:
                removed.extend(_repair_table(context, pin, shown))
    return tuple(removed)


def _repair_table(context: RecoveryContext, pin: SidecarPin, shown: Snapshot) -> tuple[TornManifest, ...]:
    location = pin.table_path
    torn = find_torn_manifest(context.root, location, pin.table_branch)
    entry = shown.entries.get(pin.table_key)
    if torn is None or entry is None:
        return ()
    if entry.branch == pin.table_branch and torn.version <= entry.version:
        raise _damaged(torn)
    return remove_torn_manifests(context.root, location, pin.table_branch)


def _repair_states(
    context: RecoveryContext, branch: Branch, sidecars: tuple[Sidecar, ...]
) -> tuple[TornManifest, ...]:
    """Remove torn states of one branch, unless what they showed proves that they were published."""
    torn = find_torn_manifest(context.root, MANIFEST, branch)
    if torn is None:
        return ()
    kept = Path(torn.path).read_bytes()
    removed = remove_torn_manifests(context.root, MANIFEST, branch)
    if _unexplained_drift(context, branch, sidecars):
        Path(torn.path).write_bytes(kept)
        raise _damaged(torn)
    return removed


def _unexplained_drift(context: RecoveryContext, branch: Branch, sidecars: tuple[Sidecar, ...]) -> bool:
    context.manifest.forget(branch)
    return any(
        context.storage.head_version(each.location, each.branch) > each.version
        for each in context.manifest.current(branch).entries.values()
        if each.branch == branch and not any(note.covers(each.table_key, branch) for note in sidecars)
    )


def _damaged(torn: TornManifest) -> StoragePermanent:
    return StoragePermanent(
        f"{torn.path}: a published version is damaged",
        hint="restore this file from a backup; the rows themselves are untouched",
    )
