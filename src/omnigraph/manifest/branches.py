"""Making and removing branches. No table is touched: tables fork at the first write on a branch."""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from omnigraph.core.errors import (
    BadRequest,
    BranchHasChildren,
    ConflictError,
    OmnigraphError,
    SnapshotNotFound,
    StorageError,
    StoragePermanent,
    TagExists,
)
from omnigraph.core.events import Warned, emit, tidying
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import Branch, BranchName, show_branch
from omnigraph.manifest.fences import Fence, taken_back, unfenced
from omnigraph.manifest.migrations import refuse_newer_format
from omnigraph.manifest.names import SCHEMA_APPLY_LOCK, checked_branch_name, refuse_taken
from omnigraph.manifest.state import Snapshot
from omnigraph.storage.layout import MANIFEST, branch_directory, branch_reference, tag_reference

if TYPE_CHECKING:
    from omnigraph.manifest.store import Head, ManifestStore


class BranchStore:
    """Creation and deletion of branches in the manifest.

    Across processes the caller holds the writer lease: a second creator of one name must not find the first
    one's half-made storage and clear it away. `fence` is asked before every step that others would see; it
    raises once another process has the lease, because the name may be that one's by then.
    """

    def __init__(self, store: "ManifestStore") -> None:
        self._store = store

    def create(
        self,
        name: str,
        from_branch: Branch = None,
        *,
        at: Snapshot | None = None,
        fence: Fence = unfenced,
    ) -> Snapshot:
        """Make a branch that shows what `from_branch` shows now, or showed at `at`.

        Raises BadRequest for a bad name, BranchExists, BranchPrefixClash, TagExists, BranchNotFound for the
        source, SnapshotNotFound when `at` is gone from it. A failure on the way leaves no branch. Cost:
        independent of the number of types and of the history.
        """
        branch = checked_branch_name(name)
        self._store.refuse_during_schema_apply()
        return self._create(branch, from_branch, at, fence)

    def refuse_taken(self, name: str) -> BranchName:
        """The name of a branch that may be made. Raises as `create` does for a name that may not."""
        branch = checked_branch_name(name)
        refuse_taken(branch, self._store.all_branches())
        if self._store.adapter.exists(tag_reference(MANIFEST, branch)):
            raise TagExists(branch)
        return branch

    def take_schema_apply_lock(self) -> None:
        """Make the internal branch that stops every other writer. Raises BranchExists when it is taken."""
        self._create(SCHEMA_APPLY_LOCK, None, None, unfenced)

    def release_schema_apply_lock(self) -> None:
        """Let writers go on. Releasing a lock nobody holds is fine."""
        self.remove(SCHEMA_APPLY_LOCK)

    def _create(self, branch: BranchName, from_branch: Branch, at: Snapshot | None, fence: Fence) -> Snapshot:
        store = self._store
        with store.coordinator(branch):
            refuse_taken(branch, store.all_branches())
            if store.adapter.exists(tag_reference(MANIFEST, branch)):
                raise TagExists(branch)
            source = store.head(from_branch)
            refuse_newer_format(source.stamp)
            shown = source.snapshot if at is None else self._still_there(from_branch, at)
            store.make_found_durable(from_branch, shown.manifest_version)
            fence()
            self._clear_leftover(branch)
            with taken_back(f"branch '{branch}'", fence, lambda: self.remove(branch, fence)):
                self._make_reference(branch, source, shown.manifest_version)
                failpoint(Window.BRANCH_CREATE_AFTER_MANIFEST_BRANCH_CREATE)
                self._sync(branch, shown.manifest_version)
            # What it shows is known: reading it back would cost more than making it.
            return replace(shown, branch=branch)

    def _still_there(self, branch: Branch, wanted: Snapshot) -> Snapshot:
        """A former state. A branch of the same name that was made anew has another one in its place."""
        found = self._store.at_version(branch, wanted.manifest_version)
        if found.head != wanted.head:
            raise SnapshotNotFound(f"{show_branch(branch)}@{wanted.manifest_version}")
        return found

    def _make_reference(self, branch: BranchName, source: "Head", version: int) -> None:
        main = source if source.snapshot.branch is None else self._store.head(None)
        self._store.dataset.create_branch(
            main.handle, branch, from_branch=source.snapshot.branch, from_version=version
        )

    def _sync(self, branch: BranchName, version: int) -> None:
        dataset = self._store.dataset
        dataset.sync(dataset.version_file(branch, version), branch_reference(MANIFEST, branch))

    def delete(self, name: str, fence: Fence = unfenced) -> bool:
        """Remove a branch from the manifest; from then on it does not exist. Returns as `remove` does.

        Its commits are written to the commit tables first: history that was merged elsewhere stays whole.
        Forks of tables are left to the caller. A damaged branch can be deleted like any other. Raises
        BranchNotFound, BranchHasChildren, BadRequest for main.
        """
        branch = BranchName(name.strip())
        if not branch or branch == "main":
            raise BadRequest("main cannot be deleted")
        store = self._store
        with store.coordinator(branch):
            if not store.branch_exists(branch):
                raise store.unknown_branch(branch)
            children = [other for other in store.branches() if self._parent_of(other, branch) == branch]
            if children:
                raise BranchHasChildren(branch, children)
            store.commits.complete_before_deletion(branch)
            return self.remove(branch, fence)

    def _parent_of(self, other: BranchName, deleted: BranchName) -> Branch:
        """The branch that another one was made from. Raises ConflictError when that cannot be told."""
        if other == deleted:
            return None
        try:
            return self._store.branch_reference(other).parent
        except StoragePermanent as error:
            with suppress(StorageError):
                return deleted if self._store.dataset.uses_files_of(other, deleted) else None
            raise ConflictError(
                f"whether '{other}' was made from '{deleted}' cannot be told: {error.message}",
                hint=f"delete '{other}' first, or restore its reference from a backup",
            ) from error

    def remove(self, branch: BranchName, fence: Fence = unfenced) -> bool:
        """Make sure that no branch of this name exists, nor anything of its storage in the manifest.

        Raises only while the branch is still there. Once it is gone a failure is a warning: leftovers are
        removed by the next branch of that name. Returns whether it stays away after a power cut; if that is
        not known, its storage is kept, because a reference that comes back must find it.
        """
        store = self._store
        store.forget(branch)
        if store.branch_exists(branch):
            fence()
            # The reference goes first and durably: a reference without storage could not be opened.
            store.adapter.delete(branch_reference(MANIFEST, branch))
            try:
                store.dataset.sync_directory(f"{MANIFEST}/_refs/branches")
            except OmnigraphError as error:
                emit(Warned(f"branch '{branch}' is gone, but may come back after a power cut", error.message))
                return False
        with tidying(f"states of the deleted branch '{branch}' remain"):
            fence()
            self._clear_leftover(branch)
        return True

    def _clear_leftover(self, branch: BranchName) -> None:
        """Remove storage that no reference names: it would block a branch of this name."""
        directory = branch_directory(MANIFEST, branch)
        if self._store.adapter.exists(directory):
            self._store.adapter.delete_prefix(directory)
