"""Branches of one table's dataset: references, their identity, and what a crash may leave of them."""

import json
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from omnigraph.core.errors import StoragePermanent, StoragePrecondition
from omnigraph.core.events import DurableOperation, StorageCall, emit
from omnigraph.core.ids import Branch, BranchName
from omnigraph.storage.datasets import DatasetPool
from omnigraph.storage.failures import is_commit_conflict, substrate
from omnigraph.storage.layout import branch_directory, branch_reference
from omnigraph.storage.manifest_files import manifest_name

if TYPE_CHECKING:
    from lance import LanceDataset


UNREADABLE: Final = ((0, ""),)
"""The incarnation of a reference that was cut short: like no other's."""

BranchIdentifier = tuple[tuple[int, str], ...]
"""Lance's incarnation list of a branch: one (version, token) per ancestor; empty for main."""


def list_branches(pool: DatasetPool, location: str) -> dict[BranchName, BranchIdentifier]:
    """Every branch reference of the dataset with its incarnation. Cost: a listing and a read per branch.

    The references are read here, not by Lance: its listing fails when a reference is deleted beside it.
    """
    emit(StorageCall("list_branches", pool.root.dataset_uri(location)))
    found: dict[BranchName, BranchIdentifier] = {}
    for name in pool.adapter.list_dir(f"{location}/_refs/branches"):
        if name.endswith(".json"):
            branch = BranchName(unquote(name.removesuffix(".json")))
            identifier = branch_identifier(pool, location, branch)
            if identifier is not None:
                found[branch] = identifier
    return found


def branch_identifier(pool: DatasetPool, location: str, branch: Branch) -> BranchIdentifier | None:
    """The incarnation of a branch; () for main, None when there is no such reference. Cost: one read.

    A branch that was deleted and made again under its old name has another incarnation.
    """
    if branch is None:
        return ()
    try:
        text = pool.adapter.read_text_if_exists(branch_reference(location, branch))
        if text is None:
            return None
        chain = json.loads(text)["identifier"]["version_mapping"]
        return tuple((int(version), str(token)) for version, token in chain)
    except (ValueError, KeyError, TypeError, StoragePermanent):
        # A power cut may cut a reference short before the fork was acknowledged. Nothing names it, so it is
        # reclaimed like any other orphan; a listing must not fail over it.
        return UNREADABLE


def has_branch(pool: DatasetPool, location: str, branch: BranchName) -> bool:
    """Whether the reference exists. Cost: one existence probe."""
    return pool.adapter.identity(branch_reference(location, branch)) is not None


def create_branch(
    pool: DatasetPool, location: str, name: BranchName, from_branch: Branch, from_version: int
) -> "tuple[LanceDataset, tuple[str, ...]]":
    """Make a branch that starts at exactly the given version; the dataset there and its new local files.

    Raises StoragePrecondition when the reference exists. The error of the substrate cannot tell that case
    from others, so the reference itself is looked up.
    """
    uri = pool.root.dataset_uri(location, name)
    source = pool.private(location, from_branch, from_version)
    # A directory without a reference would make Lance fail in its own ways.
    if has_branch(pool, location, name) or pool.adapter.exists(branch_directory(location, name)):
        raise StoragePrecondition(f"{uri}: the branch, or something of it, exists already")
    emit(StorageCall("create_branch", uri))
    emit(DurableOperation("create_branch", uri, "before"))
    with substrate(lambda: pool.circumstances(location, name, directory=_local(pool, location))):
        try:
            source.create_branch(name, (from_branch, from_version), storage_options=pool.storage_options)
        except (OSError, ValueError) as error:
            if is_commit_conflict(error) or has_branch(pool, location, name):
                raise StoragePrecondition(f"{uri}: the branch exists already") from error
            raise
    emit(DurableOperation("create_branch", uri, "after"))
    pool.evict(location, name)
    dataset = pool.at_version(location, name, from_version)
    if not pool.root.is_local:
        return dataset, ()
    root = pool.root.uri
    files = (f"{root}/{branch_reference(location, name)}", f"{uri}/_versions/{manifest_name(from_version)}")
    return dataset, files


def delete_branch(pool: DatasetPool, location: str, name: BranchName) -> None:
    """Remove a branch and all its files; a branch that is not there, or only in part, is fine.

    Done through the adapter: Lance neither deletes what is there in part (a directory without a reference
    blocks a new branch of that name) nor works beside another delete. Raises StoragePrecondition while other
    branches grew out of this one or lie below its directory: their rows would go with it.
    """
    uri = pool.root.dataset_uri(location, name)
    listed = list_branches(pool, location)
    bound = [other for other in listed if other.startswith(f"{name}/")]
    if name in listed:
        bound += [other for other, chain in listed.items() if _grew_from(chain, listed[name])]
    if bound:
        raise StoragePrecondition(f"{uri}: other branches depend on it: {', '.join(sorted(set(bound)))}")
    emit(DurableOperation("delete_branch", uri, "before"))
    # The reference first: without it the branch is gone, and what a crash leaves is removed by the next call.
    # A reference that came back after a power cut would name files that are gone, so it is synced away.
    pool.adapter.delete(branch_reference(location, name), durable=True)
    pool.evict(location, name)
    if pool.adapter.exists(branch_directory(location, name)):
        pool.adapter.delete_prefix(branch_directory(location, name))
    emit(DurableOperation("delete_branch", uri, "after"))


def _grew_from(chain: BranchIdentifier, parent: BranchIdentifier) -> bool:
    return len(chain) > len(parent) and chain[: len(parent)] == parent


def _local(pool: DatasetPool, location: str) -> str | None:
    return pool.root.dataset_uri(location) if pool.root.is_local else None
