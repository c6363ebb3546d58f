"""Tags: immutable names of commits, kept where no clean-up of versions can lose what they name."""

import re
from typing import TYPE_CHECKING, Final

from omnigraph.core.errors import (
    BadRequest,
    Corrupt,
    OmnigraphError,
    SnapshotNotFound,
    StorageTransient,
    TagExists,
    TagNotFound,
)
from omnigraph.core.events import Warned, emit
from omnigraph.core.ids import Branch, CommitId
from omnigraph.language.diagnostics import near_names
from omnigraph.manifest.fences import Fence, unfenced
from omnigraph.manifest.state import Snapshot
from omnigraph.storage.layout import MANIFEST, tag_reference

if TYPE_CHECKING:
    from omnigraph.manifest.store import ManifestStore

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class TagStore:
    """The tags of a graph.

    Across processes the caller holds the writer lease while it creates or deletes, and `fence` asks for it.
    """

    def __init__(self, store: "ManifestStore") -> None:
        self._store = store

    def list(self) -> dict[str, CommitId]:
        """Every tag and the commit it names, by name. One whose branch cannot be read is left out."""
        found: dict[str, CommitId] = {}
        for name, place in sorted(self.places().items()):
            try:
                found[name] = self._snapshot(name, *place).head
            except StorageTransient:
                raise
            except OmnigraphError as error:
                emit(Warned(f"the tag '{name}' cannot be read", error.message))
        return found

    def find(self, name: str) -> Snapshot | None:
        """The state a tag names, or None when there is no such tag."""
        place = self.places().get(name)
        if place is None and name in self.damaged():
            raise Corrupt(tag_reference(MANIFEST, name), problem="does not say any more what it names")
        return None if place is None else self._snapshot(name, *place)

    def create(self, name: str, commit_id: CommitId, fence: Fence = unfenced) -> Snapshot:
        """Name a commit for good.

        Raises BadRequest for a bad name or one that a branch has, TagExists, CommitNotFound.
        """
        if not _NAME.fullmatch(name):
            raise BadRequest(
                f"'{name}' cannot be the name of a tag",
                hint="use letters, digits, '.', '-' and '_', and do not start with '.' or '-'",
            )
        if name == "main" or name in self._store.branches():
            raise BadRequest(f"'{name}' is the name of a branch", hint="choose another name for the tag")
        if name in self.places() or name in self.damaged():
            raise TagExists(name)
        snapshot = self._store.at_commit(commit_id)
        self._store.make_found_durable(snapshot.branch, snapshot.manifest_version)
        fence()
        if name in self.torn():
            self._store.dataset.delete_tag(name)
        self._store.dataset.create_tag(name, snapshot.branch, snapshot.manifest_version, fence)
        return snapshot

    def delete(self, name: str, fence: Fence = unfenced) -> None:
        """Forget a name; the commit stays. Raises TagNotFound."""
        places = self.places()
        if name not in places and name not in self.damaged():
            raise TagNotFound(name, candidates=near_names(name, places))
        fence()
        self._store.dataset.delete_tag(name)

    def on_branch(self, branch: Branch) -> "tuple[str, ...]":
        """The tags that name commits published on a branch: it cannot go while they are there."""
        return tuple(sorted(name for name, (home, _) in self.places().items() if home == branch))

    def places(self) -> dict[str, tuple[Branch, int]]:
        """The branch and the manifest version every tag names. A tag that a power cut left torn does not
        count.
        """
        return {name: place for name, place in self._store.dataset.tags().items() if place is not None}

    def damaged(self) -> "list[str]":
        """Tags that exist and do not say any more what they name."""
        return self._store.dataset.damaged_tags()

    def torn(self) -> "list[str]":
        """Tags that a power cut cut short: nobody was told that they exist."""
        return [name for name, place in self._store.dataset.tags().items() if place is None]

    def _snapshot(self, name: str, branch: Branch, version: int) -> Snapshot:
        try:
            return self._store.at_version(branch, version)
        except SnapshotNotFound as error:
            raise SnapshotNotFound(name) from error
