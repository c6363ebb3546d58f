"""Where the other branches lie whose files a version of a dataset uses.

Lance writes their full addresses into the manifests of a branch. Read as they are written, they would lead a
graph that was moved or copied back to the place it came from. So whoever opens a dataset corrects them in
memory: a base lies where this graph has that branch of the dataset. Manifests that are written from then on
carry the new addresses; those on disk stay as they are.
"""

from typing import TYPE_CHECKING, Final

from omnigraph.core.errors import StoragePermanent
from omnigraph.core.ids import Branch
from omnigraph.storage.layout import GraphRoot
from omnigraph.storage.manifest_files import manifest_message, manifest_object, with_base_paths

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.dataset import Session

    from omnigraph.storage.objects import StorageAdapter


_moved: Final[set[str]] = set()
"""Graphs with a manifest that was written in another place: the next one opened may be such, too."""


class BaseOutsideGraph(StoragePermanent):
    """A version uses files of a place that is not a branch of its own table. No writer of this graph wrote
    that.
    """

    def __init__(self, file: str, base: str) -> None:
        super().__init__(
            f"{file}: the version uses files below '{base}', which is not part of this graph",
            hint="a graph reads no files of other places; restore this file from a backup of the graph",
        )
        self.file = file
        self.base = base


class Bases:
    """Opens the datasets of one graph with the addresses their bases have in this place. Thread-safe."""

    def __init__(self, root: GraphRoot, adapter: "StorageAdapter") -> None:
        self._root = root
        self._adapter = adapter

    def open(
        self, location: str, branch: Branch, version: int | None, session: "Session | None" = None
    ) -> "LanceDataset":
        """The dataset at a version, or at its newest one.

        Cost: about what Lance takes to open it, in a moved graph as well.
        """
        import lance  # noqa: PLC0415  the room is imported before it is used

        if branch is not None and version is not None and self._root.identity in _moved:
            corrected = self._corrected(location, branch, version, session)
            if corrected is not None:
                return corrected
        dataset = lance.dataset(
            self._root.dataset_uri(location, branch),
            version=version,
            session=session,
            storage_options=self._root.storage_options or None,
        )
        return self.at_home(location, branch, dataset, session)

    def at_home(
        self, location: str, branch: Branch, dataset: "LanceDataset", session: "Session | None" = None
    ) -> "LanceDataset":
        """The dataset itself, or the same version with corrected bases where its own are of another place."""
        bases = dataset.base_paths()
        home = self._root.dataset_uri(location) if bases else ""
        if all(_is_below(str(base.path), home) for base in bases.values()):
            return dataset
        version = int(dataset.version)
        corrected = self._corrected(location, branch, version, session)
        _moved.add(self._root.identity)
        if corrected is None:
            file = self._adapter.address(manifest_object(location, branch, version))
            raise StoragePermanent(f"{file}: the file is damaged", hint="restore it from a backup")
        return corrected

    def _corrected(
        self, location: str, branch: Branch, version: int, session: "Session | None"
    ) -> "LanceDataset | None":
        """The version with corrected bases; None when its manifest is not whole: Lance then says so."""
        from lance import LanceDataset  # noqa: PLC0415  a heavy package

        message = manifest_message(self._adapter.read_bytes(manifest_object(location, branch, version)))
        if message is None:
            return None
        return LanceDataset(
            self._root.dataset_uri(location, branch),
            version,
            serialized_manifest=with_base_paths(
                message, lambda path: self._here(location, branch, version, path)
            ),
            session=session,
            storage_options=self._root.storage_options or None,
        )

    def _here(self, location: str, branch: Branch, version: int, path: str) -> str:
        found = base_here(self._root, location, path)
        if found is None:
            raise BaseOutsideGraph(self._adapter.address(manifest_object(location, branch, version)), path)
        return found


def base_here(root: GraphRoot, location: str, path: str) -> str | None:
    """Where a base of the dataset at a location lies in this graph; None when it is none of its branches."""
    home = root.dataset_uri(location)
    if _is_below(path, home):
        return path
    if path.endswith(f"/{location}"):
        return home
    _, found, branch = path.partition(f"/{location}/tree/")
    return f"{home}/tree/{branch}" if found and branch else None


def _is_below(path: str, home: str) -> bool:
    return path == home or path.startswith(f"{home}/tree/")
