"""The fork of a table that a dead writer was making, or that a power cut damaged."""

import json

from omnigraph.core.errors import StorageNotFound, StoragePermanent, StoragePrecondition, StorageUnknown
from omnigraph.core.events import Warned, emit
from omnigraph.core.ids import BranchName
from omnigraph.manifest.forks import ForkStatus, classify_fork
from omnigraph.manifest.state import TableEntry
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.sidecar import SidecarPin
from omnigraph.storage.branches import UNREADABLE, BranchIdentifier
from omnigraph.storage.layout import branch_directory, branch_reference


def fork_head(
    context: RecoveryContext, pin: SidecarPin, location: str, entry: TableEntry | None
) -> int | None:
    """HEAD on the branch a writer was to commit to; None when its fork never came to exist.

    A fork that the branch shows exists, whatever became of its reference: nothing of it is touched, and a
    reference that was lost is written again. Of a fork that was being made, a directory without a reference,
    a torn reference or a reference without its first version is removed: it would be in the way of the next.
    """
    branch = pin.table_branch
    if branch is None:
        return context.storage.head_version(location, None, at_least=pin.expected_version)
    if entry is not None and entry.branch == branch:
        _restore_reference(context, entry, branch)
        return context.storage.head_version(location, branch, at_least=pin.expected_version)
    if _is_made(context, pin, location, branch):
        return context.storage.head_version(location, branch, at_least=pin.expected_version)
    _remove_unmade(context, pin, location, branch)
    return None


def _is_made(context: RecoveryContext, pin: SidecarPin, location: str, branch: BranchName) -> bool:
    if context.storage.branch_identifier(location, branch) in {None, UNREADABLE}:
        return False
    try:
        context.storage.open_version(pin.table_key, location, branch, pin.expected_version)
    except (StorageNotFound, StoragePermanent, StorageUnknown):
        return False
    return True


def _remove_unmade(context: RecoveryContext, pin: SidecarPin, location: str, branch: BranchName) -> None:
    """Remove what is left of a fork, if nothing at all shows it."""
    names = (branch_reference(location, branch), branch_directory(location, branch))
    if not any(context.adapter.exists(name) for name in names):
        return
    if classify_fork(context.manifest, pin.table_key, branch) is ForkStatus.ORPHAN:
        try:
            context.storage.delete_branch(location, branch)
        except StoragePrecondition as error:
            emit(Warned(f"what is left of an unfinished fork of '{pin.table_key}' stays", str(error)))


def _restore_reference(context: RecoveryContext, entry: TableEntry, branch: BranchName) -> None:
    """Write the reference of a shown fork again, from what the manifest says of it, where it is lost."""
    if context.storage.branch_identifier(entry.location, branch) not in {None, UNREADABLE}:
        return
    *ancestors, (version, _) = entry.branch_identifier or ((0, ""),)
    parent = _restored_parent(context, entry, tuple(ancestors)) if ancestors else None
    if version == 0 or (ancestors and parent is None):
        raise StoragePermanent(
            f"{context.adapter.address(branch_reference(entry.location, branch))}: the reference is lost",
            hint="restore this file from a backup; the rows themselves are untouched",
        )
    fields = {
        "parentBranch": parent,
        "identifier": {"version_mapping": [list(pair) for pair in entry.branch_identifier]},
        "parentVersion": version,
        "createAt": context.clock.now_us() // 1_000_000,
        "manifestSize": 0,
        "metadata": {},
    }
    context.adapter.write_text(branch_reference(entry.location, branch), json.dumps(fields))
    emit(Warned(f"the lost reference of branch '{branch}' on '{entry.table_key}' was written again"))


def _restored_parent(
    context: RecoveryContext, entry: TableEntry, identifier: BranchIdentifier
) -> BranchName | None:
    """The branch of the table with this incarnation, its own reference written again where it is lost too."""
    for shown in context.manifest.readable().values():
        parent = shown.entries.get(entry.table_key)
        if parent is not None and parent.branch is not None and parent.branch_identifier == identifier:
            _restore_reference(context, parent, parent.branch)
            return parent.branch
    return None
