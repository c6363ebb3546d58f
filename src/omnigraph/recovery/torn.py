"""Newest version files that a power cut left incomplete, removed before anything opens the datasets."""

from pathlib import Path

from omnigraph.core.errors import ResourceBusy, StoragePermanent
from omnigraph.core.ids import Branch
from omnigraph.core.limits import LEASE_OPEN_WAIT_S_MAX
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.sidecar import Sidecar
from omnigraph.storage.layout import COMMIT_ACTORS, COMMIT_RECOVERIES, COMMITS, MANIFEST
from omnigraph.storage.torn import TornManifest, find_torn_manifest, remove_torn_manifests


def repair_torn_manifests(
    context: RecoveryContext, *, wait_s_max: float = LEASE_OPEN_WAIT_S_MAX
) -> tuple[TornManifest, ...]:
    """Make the datasets of a graph openable again; the first step of a read-write open.

    Looks at the newest version of `__manifest` on every branch, of the commit tables, and of every table a
    sidecar names. A torn version was never acknowledged: it is removed. When tables moved and no sidecar
    explains it, the torn file was a published state: it stays, and the error names it. While another process
    writes nothing is touched: what looks torn may be its file in the making. Cost: one listing per dataset
    looked at; nothing on object stores.
    """
    if not context.root.is_local:
        return ()
    sidecars = context.sidecars.pending()
    places = _places(context, sidecars)
    if not any(find_torn_manifest(context.root, location, branch) for location, branch in places):
        return ()
    try:
        with context.lease.hold(wait_s_max=wait_s_max):
            return _repair(context, sidecars, places)
    except ResourceBusy:
        return ()


def _places(context: RecoveryContext, sidecars: tuple[Sidecar, ...]) -> list[tuple[str, Branch]]:
    """Every dataset and branch a write may have been cut off in; the states of the graph come last."""
    prefix = f"{context.root.uri}/"
    places: list[tuple[str, Branch]] = [(name, None) for name in (COMMITS, COMMIT_ACTORS, COMMIT_RECOVERIES)]
    places.extend(
        (pin.table_path.removeprefix(prefix), pin.table_branch) for each in sidecars for pin in each.tables
    )
    places.extend((MANIFEST, branch) for branch in (None, *context.manifest.all_branches()))
    return list(dict.fromkeys(places))


def _repair(
    context: RecoveryContext, sidecars: tuple[Sidecar, ...], places: list[tuple[str, Branch]]
) -> tuple[TornManifest, ...]:
    removed: list[TornManifest] = []
    for location, branch in places:
        if location == MANIFEST:
            removed.extend(_repair_states(context, branch, sidecars))
        else:
            removed.extend(remove_torn_manifests(context.root, location, branch))
    return tuple(removed)


def _repair_states(
    context: RecoveryContext, branch: Branch, sidecars: tuple[Sidecar, ...]
) -> tuple[TornManifest, ...]:
    """Remove torn states of one branch, unless what they showed proves that they were published."""
    torn = find_torn_manifest(context.root, MANIFEST, branch)
    if torn is None:
        return ()
    kept = Path(torn.path).read_bytes()
    removed = remove_torn_manifests(context.root, MANIFEST, branch)
    if not any(each.branch == branch for each in sidecars) and _drifted(context, branch):
        Path(torn.path).write_bytes(kept)
        raise StoragePermanent(
            f"{torn.path}: the newest published state is damaged",
            hint="restore this file from a backup; the rows themselves are untouched",
        )
    return removed


def _drifted(context: RecoveryContext, branch: Branch) -> bool:
    context.manifest.forget(branch)
    entries = context.manifest.current(branch).entries.values()
    return any(
        context.storage.head_version(each.location, each.branch) > each.version
        for each in entries
        if each.branch == branch
    )
