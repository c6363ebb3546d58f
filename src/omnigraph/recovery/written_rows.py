"""The part of a table version that a writer made: it must be readable and durable before it is published."""

from collections.abc import Iterable
from pathlib import Path

from omnigraph.core.errors import StorageNotFound, StoragePermanent, StorageUnknown
from omnigraph.core.ids import Branch
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.sidecar import SidecarPin
from omnigraph.storage.durability import DurabilityMode, make_durable
from omnigraph.storage.handles import Fragment, SnapshotHandle
from omnigraph.storage.layout import branch_directory, branch_reference
from omnigraph.storage.manifest_files import manifest_object


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
    if not _syncs(context):
        return
    # Which index files a version uses is known to Lance alone; few exist and most are clean already.
    indexes = _files_below(context, f"{branch_directory(location, pin.table_branch)}/_indices")
    _make_durable(context, [*files_made(context, pin, location, version), *indexes])


def files_made(context: RecoveryContext, pin: SidecarPin, location: str, version: int) -> list[str]:
    """Graph-relative names of what the writer made, without the files of indexes."""
    _, changed = _changed(context, pin, location, version)
    names = _versions(pin, location, version)
    for fragment in changed:
        names.extend(fragment.files)
        if fragment.deletions is not None:
            names.append(fragment.deletions)
    return names


def make_versions_durable(context: RecoveryContext, pin: SidecarPin, location: str, version: int) -> None:
    """As `make_version_durable` for a version that is undone: what it added is shown by nobody, but the
    versions after it stand on it, and on the fork it was made on.
    """
    if _syncs(context):
        _make_durable(context, _versions(pin, location, version))


def make_shown_durable(context: RecoveryContext, location: str, branch: Branch, version: int) -> None:
    """Sync a version that adds no rows of its own, and the reference of its branch: a pure fork."""
    if _syncs(context):
        _make_durable(context, [manifest_object(location, branch, version), *_reference(location, branch)])


def make_table_durable(context: RecoveryContext, location: str) -> None:
    """Sync everything of a table that a writer made anew."""
    if _syncs(context):
        _make_durable(context, _files_below(context, location))


def _syncs(context: RecoveryContext) -> bool:
    return context.root.is_local and context.settings.durability != DurabilityMode.OS


def _make_durable(context: RecoveryContext, names: Iterable[str]) -> None:
    paths = sorted({context.root.local_path(name) for name in names})
    mode = DurabilityMode(context.settings.durability)
    make_durable([path for path in paths if Path(path).exists()], mode, root=context.root.uri)


def _files_below(context: RecoveryContext, name: str) -> list[str]:
    root = Path(context.root.uri)
    return [str(path.relative_to(root)) for path in (root / name).rglob("*") if path.is_file()]


def _versions(pin: SidecarPin, location: str, version: int) -> list[str]:
    """The files of the versions that the writer made; on a branch also of its fork: the writer may have made
    that as well.
    """
    first = pin.expected_version + (1 if pin.table_branch is None else 0)
    made = [manifest_object(location, pin.table_branch, number) for number in range(first, version + 1)]
    return [*made, *_reference(location, pin.table_branch)]


def _reference(location: str, branch: Branch) -> list[str]:
    return [] if branch is None else [branch_reference(location, branch)]


def _changed(
    context: RecoveryContext, pin: SidecarPin, location: str, version: int
) -> tuple[SnapshotHandle, list[Fragment]]:
    """The version, and its fragments that the version the writer started from does not have."""
    storage = context.storage
    handle = storage.open_version(pin.table_key, location, pin.table_branch, version)
    base = storage.open_version(pin.table_key, location, pin.table_branch, pin.expected_version)
    known = {(each.files, each.deletions) for each in storage.fragments(base)}
    return handle, [each for each in storage.fragments(handle) if (each.files, each.deletions) not in known]
