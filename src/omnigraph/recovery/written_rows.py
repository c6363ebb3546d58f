"""The part of a table version that a writer made: it must be readable and durable before it is published."""

from pathlib import Path

from omnigraph.core.errors import StorageNotFound, StoragePermanent, StorageUnknown
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.sidecar import SidecarPin
from omnigraph.storage.datasets import manifest_object
from omnigraph.storage.durability import DurabilityMode, make_durable
from omnigraph.storage.handles import FragmentInfo, SnapshotHandle
from omnigraph.storage.layout import branch_directory


def rows_readable(context: RecoveryContext, pin: SidecarPin, location: str, version: int) -> bool:
    """Whether every row the writer added or hid can be read back.

    A power cut may keep a commit and lose bytes it points at. An object store acknowledges whole objects, so
    there is nothing to check. Cost: the ids of the changed fragments.
    """
    if not context.root.is_local:
        return True
    try:
        handle, changed = _changed(context, pin, location, version)
        numbers = [each.id for each in changed]
        batches = context.storage.scan(handle, columns=["id"], fragments=numbers) if changed else ()
        return sum(batch.num_rows for batch in batches) == sum(each.live_rows for each in changed)
    except (StorageNotFound, StoragePermanent, StorageUnknown):
        return False


def make_version_durable(context: RecoveryContext, pin: SidecarPin, location: str, version: int) -> None:
    """Sync what the writer made: it may have died before it could, and a publish must not name lost files."""
    mode = DurabilityMode(context.settings.durability)
    if not context.root.is_local or mode is DurabilityMode.OS:
        return
    _, changed = _changed(context, pin, location, version)
    names = [manifest_object(location, pin.table_branch, number) for number in _made(pin, version)]
    for fragment in changed:
        names.extend(fragment.files)
        if fragment.deletions is not None:
            names.append(fragment.deletions)
    root = Path(context.root.uri)
    paths = {root / name for name in names}
    # Which index files a version uses is known to Lance alone; few exist and most are clean already.
    indices = root / branch_directory(location, pin.table_branch) / "_indices"
    paths.update(path for path in indices.rglob("*") if path.is_file())
    make_durable([str(path) for path in sorted(paths) if path.exists()], mode, root=context.root.uri)


def _made(pin: SidecarPin, version: int) -> range:
    return range(pin.expected_version + 1, version + 1)


def _changed(
    context: RecoveryContext, pin: SidecarPin, location: str, version: int
) -> tuple[SnapshotHandle, list[FragmentInfo]]:
    """The version, and its fragments that the version the writer started from does not have."""
    storage = context.storage
    handle = storage.open_version(pin.table_key, location, pin.table_branch, version)
    base = storage.open_version(pin.table_key, location, pin.table_branch, pin.expected_version)
    known = {(each.files, each.deletions) for each in storage.fragments(base)}
    return handle, [each for each in storage.fragments(handle) if (each.files, each.deletions) not in known]
