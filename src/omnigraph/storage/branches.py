"""Branches of one table's dataset: references, their identity, and what a crash may leave of them."""

from typing import Any

from omnigraph.core.errors import StoragePrecondition
from omnigraph.core.events import DurableOperation, StorageCall, emit
from omnigraph.core.ids import Branch, BranchName
from omnigraph.storage.datasets import DatasetPool, manifest_name
from omnigraph.storage.failures import is_commit_conflict, substrate
from omnigraph.storage.layout import branch_directory, branch_reference

BranchIdentifier = tuple[tuple[int, str], ...]
"""Lance's incarnation list of a branch: one (version, token) per ancestor; empty for main."""


def list_branches(pool: DatasetPool, location: str) -> dict[BranchName, BranchIdentifier]:
    """Every branch reference of the dataset with its incarnation. Cost: a listing and a read per branch."""
    emit(StorageCall("list_branches", pool.root.dataset_uri(location)))
    dataset = pool.at_head(location, None)
    with substrate(lambda: pool.circumstances(location, None)):
        listed: dict[str, Any] = dataset.branches.list()
    return {BranchName(name): _identifier(facts) for name, facts in listed.items()}


def branch_identifier(pool: DatasetPool, location: str, branch: Branch) -> BranchIdentifier | None:
    """The incarnation of a branch; () for main, None when there is no such reference.

    A branch that was deleted and made again under its old name has another incarnation.
    """
    if branch is None:
        return ()
    if not has_branch(pool, location, branch):
        return None
    return list_branches(pool, location).get(branch)


def has_branch(pool: DatasetPool, location: str, branch: BranchName) -> bool:
    """Whether the reference exists. Cost: one existence probe."""
    return pool.adapter.identity(branch_reference(location, branch)) is not None


def create_branch(
    pool: DatasetPool, location: str, name: BranchName, from_branch: Branch, from_version: int
) -> tuple[Any, tuple[str, ...]]:
    """Make a branch that starts at exactly the given version; the dataset there and its new local files.

    Raises StoragePrecondition when the reference exists. The error of the substrate cannot tell that case
    from others, so the reference itself is looked up.
    """
    uri = pool.root.dataset_uri(location, name)
    source = pool.private(location, from_branch, from_version)
    if has_branch(pool, location, name):
        raise StoragePrecondition(f"{uri}: the branch exists already")
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

    A directory without a reference (a crash between the two) is invisible to Lance and blocks a new branch of
    that name, so it is removed through the adapter. Raises StoragePrecondition while other branches grew out
    of this one: their rows lie in its files.
    """
    uri = pool.root.dataset_uri(location, name)
    emit(DurableOperation("delete_branch", uri, "before"))
    if has_branch(pool, location, name):
        children = [
            other
            for other, chain in list_branches(pool, location).items()
            if other != name and _grew_from(chain, list_branches(pool, location)[name])
        ]
        if children:
            raise StoragePrecondition(f"{uri}: branches grew out of it: {', '.join(sorted(children))}")
        dataset = pool.at_head(location, None)
        with substrate(lambda: pool.circumstances(location, name, directory=_local(pool, location))):
            try:
                dataset.branches.delete(name)
            except (OSError, ValueError):
                # Another process may have removed it between the probe and the call.
                if has_branch(pool, location, name):
                    raise
    pool.evict(location, name)
    if pool.adapter.exists(branch_directory(location, name)):
        pool.adapter.delete_prefix(branch_directory(location, name))
    emit(DurableOperation("delete_branch", uri, "after"))


def _identifier(facts: dict[str, Any]) -> BranchIdentifier:
    return tuple((int(version), str(token)) for version, token in facts["branch_identifier"])


def _grew_from(chain: BranchIdentifier, parent: BranchIdentifier) -> bool:
    return len(chain) > len(parent) and chain[: len(parent)] == parent


def _local(pool: DatasetPool, location: str) -> str | None:
    return pool.root.dataset_uri(location) if pool.root.is_local else None
