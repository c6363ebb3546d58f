"""Files that a power cut left empty or cut off: newest manifest files, references.

Lance publishes a manifest file before we can sync it, and a dataset whose newest manifest is torn cannot be
opened at all. Such a version was never acknowledged, so removing the file loses nothing that was promised.
"""

import os
from itertools import islice
from typing import Final

from omnigraph.core.events import DurableOperation, StorageCall, Warned, emit
from omnigraph.core.ids import Branch
from omnigraph.core.late_dataclass import dataclass
from omnigraph.storage.failures import translated
from omnigraph.storage.layout import GraphRoot, branch_directory
from omnigraph.storage.manifest_files import (
    HINT,
    hinted_version,
    is_one_bit_away,
    is_torn_manifest,
    manifest_name,
    version_of,
)

_NAMES_AFTER_THE_HINT: Final = 16
"""So many names after the one the hint gives are looked for before it is believed."""


@dataclass(frozen=True, slots=True)
class TornManifest:
    """A version file that is not a whole manifest."""

    location: str
    branch: Branch
    version: int
    path: str
    size: int


def has_versions(root: GraphRoot, location: str, branch: Branch, *, at_least: int = 1) -> bool:
    """Whether so many versions of a branch of a local dataset have a file, whole or not.

    Cost: the first few names of a listing, however many there are.
    """
    directory = _directory(root, location, branch)
    emit(StorageCall("probe", directory))
    with translated(directory):
        try:
            with os.scandir(directory) as entries:
                numbers = (entry.name for entry in entries if version_of(entry.name) is not None)
                return len(list(islice(numbers, at_least))) == at_least
        except (FileNotFoundError, NotADirectoryError):
            return False


def _newest_found(root: GraphRoot, location: str, branch: Branch) -> int | None:
    """The newest version that has a file: of names of this form the least is the newest, so one is read."""
    names = _names(root, location, branch)
    # A name of another form that comes before all of them tells nothing.
    return version_of(min(names, default="")) or max(filter(None, map(version_of, names)), default=None)


def _names(root: GraphRoot, location: str, branch: Branch) -> list[str]:
    directory = _directory(root, location, branch)
    emit(StorageCall("list_dir", directory))
    with translated(directory):
        try:
            return os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []


def _directory(root: GraphRoot, location: str, branch: Branch) -> str:
    return root.local_path(f"{branch_directory(location, branch)}/_versions")


def is_cut_short(path: str) -> bool:
    """Whether a local JSON object, such as a reference, is empty, cut off or filled up with zeros."""
    with translated(path):
        try:
            with open(path, "rb") as file:
                return is_cut_short_text(file.read())
        except FileNotFoundError:
            return False


def is_cut_short_text(text: bytes) -> bool:
    """As `is_cut_short` for what was read. A last bracket with a flipped bit is damage: the text is whole."""
    end = text.rstrip(b"\0\n ")[-1:]
    return end != b"}" and not is_one_bit_away(end, b"}")


def may_be_torn(root: GraphRoot, location: str, branch: Branch) -> bool:
    """Whether the newest version file of a branch of one of the engine's own datasets may be torn.

    The hint of the table format is believed where the file it names is whole and none of the names that
    follow exists; else `find_torn_manifest` is asked. These datasets grow by one version at a time, and a
    version is on the device before the next one is made on it; so a power cut leaves no gap below a torn
    file, except in a commit table, a gap as long as the line of writers that died there before their syncs.
    Cost: a few probes and the last bytes of one file, however many versions there are.
    """
    if not root.is_local:
        return False
    directory = _directory(root, location, branch)
    emit(StorageCall("probe", directory))
    try:
        with open(f"{directory}/{HINT}", "rb") as file:
            hinted = hinted_version(file.read())
        if (
            hinted is not None
            and not is_torn_manifest(f"{directory}/{manifest_name(hinted)}")
            and not any(
                os.access(f"{directory}/{manifest_name(hinted + step)}", os.F_OK)
                for step in range(1, _NAMES_AFTER_THE_HINT + 1)
            )
        ):
            return False
    except OSError:
        pass  # the listing tells what is there
    return find_torn_manifest(root, location, branch) is not None


def find_torn_manifest(root: GraphRoot, location: str, branch: Branch) -> TornManifest | None:
    """The newest version file of a branch of a dataset if it is torn, else None.

    Object stores show an object whole or not at all, so nothing is torn there. Cost: one listing and the last
    bytes of one file.
    """
    if not root.is_local:
        return None
    version = _newest_found(root, location, branch)
    if version is None:
        return None
    path = root.local_path(f"{branch_directory(location, branch)}/_versions/{manifest_name(version)}")
    with translated(path):
        size = os.path.getsize(path)
        if not is_torn_manifest(path):
            return None
    return TornManifest(location, branch, version, path, size)


def remove_torn_manifests(root: GraphRoot, location: str, branch: Branch) -> tuple[TornManifest, ...]:
    """Remove torn newest version files until the newest one is whole; what was removed.

    Only under the lease and before anything opens the dataset: a live writer's file may look torn at first.
    """
    removed: list[TornManifest] = []
    while (torn := find_torn_manifest(root, location, branch)) is not None:
        emit(DurableOperation("remove_torn_manifest", torn.path, "before"))
        with translated(torn.path):
            os.unlink(torn.path)
            descriptor = os.open(os.path.dirname(torn.path), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        emit(DurableOperation("remove_torn_manifest", torn.path, "after"))
        emit(Warned("a version that a power cut left incomplete was removed", torn.path))
        removed.append(torn)
    return tuple(removed)
