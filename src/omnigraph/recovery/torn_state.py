"""What a power cut left incomplete, removed before anything opens the datasets.

A file that was acknowledged is synced, so one that is empty or cut off was promised to nobody: the newest
version of a dataset, the reference and the first state of a branch that was being made, a tag. What cannot be
that is damage: it stays, and the error or the report of `verify` names it.
"""

from collections.abc import Iterator
from pathlib import Path

from omnigraph.core.errors import (
    GraphNotFound,
    OmnigraphError,
    ResourceBusy,
    StoragePermanent,
    StorageTransient,
)
from omnigraph.core.events import Warned, emit
from omnigraph.core.ids import Branch, BranchName
from omnigraph.core.limits import LEASE_OPEN_WAIT_S_MAX
from omnigraph.manifest.state import Snapshot
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.sidecar import Sidecar, SidecarPin
from omnigraph.storage.failures import os_failure
from omnigraph.storage.layout import (
    COMMIT_ACTORS,
    COMMIT_RECOVERIES,
    COMMITS,
    MANIFEST,
    branch_directory,
    branch_reference,
)
from omnigraph.storage.torn_files import (
    TornManifest,
    find_torn_manifest,
    has_versions,
    is_cut_short,
    may_be_torn,
    remove_torn_manifests,
)

_PROJECTIONS = (COMMITS, COMMIT_ACTORS, COMMIT_RECOVERIES)


def repair_torn_state(
    context: RecoveryContext, *, wait_s_max: float = LEASE_OPEN_WAIT_S_MAX
) -> tuple[TornManifest, ...]:
    """Make the datasets of a graph openable again; the first step of a read-write open.

    Looks at the branches and tags of `__manifest` and its newest version on every branch, at the commit
    tables, and at every table a sidecar names. What nobody was promised is removed. A published version (the
    manifest shows it, or tables moved and no sidecar explains it) stays: on main the error names it, on a
    branch a warning does, because one broken branch must not stop the others. While another process writes
    nothing is touched: what looks torn may be its file in the making.
    Cost: some probes and a read per branch and commit table, however many versions there are; a listing per
    table of a pending sidecar; nothing on object stores.
    """
    if not context.root.is_local:
        return ()
    if not _is_anything_torn(context, context.sidecars.pending()):
        return ()
    try:
        # Alone: a branch that a thread of this process is making looks like one that was never finished.
        with context.lease.alone(wait_s_max=wait_s_max):
            return _repair(context, context.sidecars.pending())
    except ResourceBusy:
        return ()


def _is_anything_torn(context: RecoveryContext, sidecars: tuple[Sidecar, ...]) -> bool:
    branches: list[Branch] = [None, *context.manifest.all_branches()]
    states: list[tuple[str, Branch]] = [(MANIFEST, branch) for branch in branches]
    projections: list[tuple[str, Branch]] = [(location, None) for location in _PROJECTIONS]
    noted = [(pin.table_path, pin.table_branch) for each in sidecars for pin in each.tables]
    return (
        any(may_be_torn(context.root, *place) for place in (*states, *projections))
        or any(find_torn_manifest(context.root, *place) for place in noted)
        or any(True for _ in _unmade_branches(context))
        or any(True for _ in _nameless_states(context))
        or any(_is_without_version(context, location) for location in _PROJECTIONS)
        or bool(context.manifest.tags.torn())
    )


def _repair(context: RecoveryContext, sidecars: tuple[Sidecar, ...]) -> tuple[TornManifest, ...]:
    """First what exists at all, then what the branches show, then what may be compared with it."""
    _remove_unmade(context)
    removed: list[TornManifest] = []
    for branch in (None, *context.manifest.all_branches()):
        removed.extend(_repair_branch(context, branch, sidecars))
    for location in _PROJECTIONS:
        removed.extend(remove_torn_manifests(context.root, location, None))
        if _is_without_version(context, location):
            context.adapter.delete_prefix(location)
            emit(Warned("a commit table that a power cut left without a version is made again", location))
    return tuple(removed)


# --- what was being made


def _remove_unmade(context: RecoveryContext) -> None:
    for branch in list(_unmade_branches(context)):
        context.manifest.references.remove(branch)
        emit(Warned("a branch whose creation a power cut interrupted was removed", branch))
    for name in list(_nameless_states(context)):
        context.adapter.delete_prefix(branch_directory(MANIFEST, name))
    for tag in context.manifest.tags.torn():
        context.manifest.dataset.delete_tag(tag)
        emit(Warned("a tag whose creation a power cut interrupted was removed", tag))


def _unmade_branches(context: RecoveryContext) -> Iterator[BranchName]:
    """Branches that are left of a creation which never succeeded.

    Whoever publishes on a branch, or makes another one from it, syncs its reference and its first state. So
    one of these is torn and nothing else of the branch exists, or the file is damaged and not meant here.
    """
    for branch in context.manifest.all_branches():
        if has_versions(context.root, MANIFEST, branch, at_least=2):
            continue
        cut_short = is_cut_short(context.root.local_path(branch_reference(MANIFEST, branch)))
        empty = not has_versions(context.root, MANIFEST, branch)
        if empty or cut_short or _is_first_torn(context, branch):
            yield branch


def _is_first_torn(context: RecoveryContext, branch: BranchName) -> bool:
    """Whether the newest state of a branch is torn and the one it began with."""
    torn = find_torn_manifest(context.root, MANIFEST, branch)
    if torn is None:
        return False
    try:
        return context.manifest.branch_reference(branch).parent_version == torn.version
    except StoragePermanent:
        return False


def _nameless_states(context: RecoveryContext) -> Iterator[BranchName]:
    """Directories of branches of the manifest without a reference, in which nothing was ever published."""
    names = context.manifest.all_branches()
    top = Path(context.root.local_path(f"{MANIFEST}/tree"))

    def below(directory: Path) -> Iterator[BranchName]:
        inside = [each for each in directory.iterdir() if each.is_dir()] if directory.is_dir() else []
        name = BranchName(str(directory.relative_to(top)))
        if any(each.name in {"_versions", "_transactions"} for each in inside):
            in_use = any(other == name or other.startswith(f"{name}/") for other in names)
            if not in_use and not has_versions(context.root, MANIFEST, name, at_least=2):
                yield name
            return
        for each in inside:
            yield from below(each)

    yield from below(top)


def _is_without_version(context: RecoveryContext, location: str) -> bool:
    return context.adapter.exists(location) and not has_versions(context.root, location, None)


# --- newest versions


def _repair_branch(
    context: RecoveryContext, branch: Branch, sidecars: tuple[Sidecar, ...]
) -> tuple[TornManifest, ...]:
    """The torn states of one branch, and the torn versions of tables that writers to it were moving."""
    try:
        removed = list(_repair_states(context, branch, sidecars))
        for sidecar in sidecars:
            if sidecar.branch == branch:
                shown = context.manifest.current(branch)
                for pin in sidecar.tables:
                    removed.extend(_repair_table(context, pin, shown))
    except StorageTransient:
        raise
    except OmnigraphError as error:
        if branch is None:
            raise
        emit(Warned(f"branch '{branch}' cannot be repaired", error.message))
        return ()
    return tuple(removed)


def _repair_table(context: RecoveryContext, pin: SidecarPin, shown: Snapshot) -> tuple[TornManifest, ...]:
    torn = find_torn_manifest(context.root, pin.table_path, pin.table_branch)
    entry = shown.entries.get(pin.table_key)
    if torn is None or entry is None:
        return ()
    if entry.branch == pin.table_branch and torn.version <= entry.version:
        raise _damaged(torn)
    return remove_torn_manifests(context.root, pin.table_path, pin.table_branch)


def _repair_states(
    context: RecoveryContext, branch: Branch, sidecars: tuple[Sidecar, ...]
) -> tuple[TornManifest, ...]:
    """Remove torn states of one branch, unless what they showed proves that they were published."""
    torn = find_torn_manifest(context.root, MANIFEST, branch)
    if torn is None:
        return ()
    kept = Path(torn.path).read_bytes()
    removed = remove_torn_manifests(context.root, MANIFEST, branch)
    try:
        published = _unexplained_drift(context, branch, sidecars)
    except GraphNotFound:
        raise  # its creation was interrupted: nothing was ever shown
    except OmnigraphError:
        _put_back(torn, kept)
        raise
    if published:
        _put_back(torn, kept)
        raise _damaged(torn)
    return removed


def _put_back(torn: TornManifest, kept: bytes) -> None:
    try:
        Path(torn.path).write_bytes(kept)
    except OSError as error:
        raise os_failure(error, torn.path) from error


def _unexplained_drift(context: RecoveryContext, branch: Branch, sidecars: tuple[Sidecar, ...]) -> bool:
    context.manifest.forget(branch)
    return any(
        context.storage.head_version(each.location, each.branch, at_least=each.version) > each.version
        for each in context.manifest.current(branch).entries.values()
        if each.branch == branch and not any(note.covers(each.table_key, branch) for note in sidecars)
    )


def _damaged(torn: TornManifest) -> StoragePermanent:
    return StoragePermanent(
        f"{torn.path}: a published version is damaged",
        hint="restore this file from a backup; the rows themselves are untouched",
    )
