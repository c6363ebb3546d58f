"""Opening and creating Lance datasets: pinned format, one session, no listings on the hot path.

A dataset is opened by version, which never lists. Whether a newer version exists is one existence probe of
the next manifest name.
"""

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from omnigraph.core.errors import InternalError, StorageNotFound, StoragePrecondition
from omnigraph.core.events import StorageCall, emit, listening
from omnigraph.core.formats import DATA_STORAGE_VERSION
from omnigraph.core.ids import Branch
from omnigraph.core.late_dataclass import dataclass
from omnigraph.storage.bases import Bases
from omnigraph.storage.failures import Circumstances, substrate
from omnigraph.storage.layout import GraphRoot, branch_directory
from omnigraph.storage.manifest_files import is_whole_manifest, manifest_name, manifest_object, version_of
from omnigraph.storage.recent_versions import VersionsKept

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset
    from lance.dataset import Session, Transaction

    from omnigraph.storage.objects import StorageAdapter

HANDLES_KEPT_MAX: Final = 1024
"""Open datasets one pool keeps; the least recently used go first."""

INDEX_CACHE_SHARE: Final = 0.25
METADATA_CACHE_SHARE: Final = 0.125
"""Parts of the read-cache budget that Lance may fill; left alone it takes gigabytes per session."""

WALK_STEPS_MAX: Final = 16
"""Version names probed one by one before a listing is cheaper."""


@dataclass(frozen=True, slots=True)
class _Opened:
    dataset: "LanceDataset"
    identity: str
    """Names this incarnation of the version: a branch made again may reach the same number."""


class DatasetPool:
    """The open datasets of one graph root: one per (location, branch, version), sharing one Lance session.

    Thread-safe. A handle is only given out again while its manifest file is still the one it was opened from.
    """

    def __init__(self, root: GraphRoot, adapter: "StorageAdapter", cache_bytes: int) -> None:
        self.root = root
        self.adapter = adapter
        self._bases = Bases(root, adapter)
        self._cache_bytes = cache_bytes
        self._session: Session | None = None
        self._opened: OrderedDict[tuple[str, Branch, int], _Opened] = OrderedDict()
        self._heads: dict[tuple[str, Branch], int] = {}
        self._kept = VersionsKept[int]()
        self._lock = threading.Lock()

    @property
    def session(self) -> "Session":
        """The Lance session all datasets of this pool share."""
        with self._lock:
            if self._session is None:
                from lance.dataset import Session  # noqa: PLC0415  the room is imported before it is used

                self._session = Session(
                    index_cache_size_bytes=int(self._cache_bytes * INDEX_CACHE_SHARE),
                    metadata_cache_size_bytes=int(self._cache_bytes * METADATA_CACHE_SHARE),
                )
            return self._session

    @property
    def storage_options(self) -> dict[str, str] | None:
        """What Lance needs to reach the store; None for local graphs."""
        return self.root.storage_options or None

    def at_version(self, location: str, branch: Branch, version: int) -> "LanceDataset":
        """The dataset at a version. Raises StorageNotFound when that version does not exist.

        Cost: one existence probe when it is open already, else one open without a listing.
        """
        key = (location, branch, version)
        identity = self.adapter.identity(manifest_object(location, branch, version))
        if identity is None:
            self._forget(key)
            raise StorageNotFound(
                f"{self.root.dataset_uri(location, branch)}: version {version} does not exist",
                hint="restore the object from a backup; the graph itself was not changed",
            )
        with self._lock:
            kept = self._opened.get(key)
            if kept is not None and kept.identity == identity:
                self._opened.move_to_end(key)
                return kept.dataset
        dataset = self._open(location, branch, version)
        self.remember(location, branch, dataset, identity=identity)
        return dataset

    def private(self, location: str, branch: Branch, version: int) -> "LanceDataset":
        """The dataset at a version, shared with nobody.

        For calls that borrow the dataset exclusively: another thread that reads a shared one at that moment
        would make them fail.
        """
        return self._open(location, branch, version)

    def at_head(self, location: str, branch: Branch) -> "LanceDataset":
        """The dataset at its newest version.

        Cost: one probe of the next version's name when the last known one is still there, else one listing.
        """
        return self.at_version(location, branch, self.head_version(location, branch))

    def head_version(self, location: str, branch: Branch, *, at_least: int = 0) -> int:
        """The newest version. Raises StorageNotFound when there is no such dataset or branch.

        `at_least`: a version that a branch shows. None after it was ever removed; before it, there may be
        gaps that a walk from an older one would stop at. The first look of a process lists: a power cut may
        have taken a version and left a later one.
        """
        with self._lock:
            known = self._heads.get((location, branch))
            kept = self._opened.get((location, branch, known)) if known is not None else None
        if known is not None and at_least > known:
            if self.adapter.identity(manifest_object(location, branch, at_least)) is None:
                return self._newest_listed(location, branch)
            return self._walk(location, branch, at_least)
        if known is not None and kept is not None:
            identity = self.adapter.identity(manifest_object(location, branch, known))
            if identity == kept.identity:
                return self._walk(location, branch, known)
            self._forget((location, branch, known))
        return self._newest_listed(location, branch)

    def remember(
        self, location: str, branch: Branch, dataset: "LanceDataset", *, identity: str | None = None
    ) -> None:
        """Keep an open dataset for later callers; one of a newer version becomes the known head."""
        version = int(dataset.version)
        identity = identity or self.adapter.identity(manifest_object(location, branch, version))
        if identity is None:
            return
        with self._lock:
            self._opened[(location, branch, version)] = _Opened(dataset, identity)
            if version > self._heads.get((location, branch), 0):
                previous = self._heads.get((location, branch))
                self._heads[(location, branch)] = version
                if previous is not None:
                    # The former head is the one a long-running reader may still want: keep it, but let it
                    # leave first when room is needed.
                    self._opened.move_to_end((location, branch, version))
            leaving = self._kept.leaving((location, branch), version)
            if leaving is not None:
                self._opened.pop((location, branch, leaving), None)
            while len(self._opened) > HANDLES_KEPT_MAX:
                self._opened.popitem(last=False)

    def evict(self, location: str, branch: Branch = None, *, every_branch: bool = False) -> None:
        """Forget what is open of a branch of a dataset, or of all its branches."""
        with self._lock:
            for key in [k for k in self._opened if k[0] == location and (every_branch or k[1] == branch)]:
                del self._opened[key]
            for head in [h for h in self._heads if h[0] == location and (every_branch or h[1] == branch)]:
                del self._heads[head]

    def create(self, location: str, schema: "pa.Schema", properties: Mapping[str, str]) -> "LanceDataset":
        """Create the dataset with zero rows as version 1. Raises StoragePrecondition when one is there."""
        create_dataset(
            self.root.dataset_uri(location),
            schema,
            properties,
            exists=lambda: self.adapter.identity(manifest_object(location, None, 1)) is not None,
            storage_options=self.storage_options,
        )
        self.evict(location, every_branch=True)
        # Opened again, so that it shares the session of the pool.
        return self.at_version(location, None, 1)

    def versions_listed(self, location: str, branch: Branch) -> list[int]:
        """All versions that exist, newest first. Cost: one listing."""
        names = self.adapter.list_dir(f"{branch_directory(location, branch)}/_versions")
        return sorted((v for v in map(version_of, names) if v is not None), reverse=True)

    def circumstances(self, location: str, branch: Branch, **facts: Any) -> Circumstances:
        """What is known when a call on this dataset fails."""
        uri = self.root.dataset_uri(location, branch)
        return Circumstances(target=uri, exists=self.object_exists, **facts)

    def object_exists(self, address: str) -> bool:
        """Whether an object below the graph root exists, by its full address."""
        return self.adapter.identity(address.removeprefix(f"{self.root.uri}/")) is not None

    def _open(self, location: str, branch: Branch, version: int) -> "LanceDataset":
        uri = self.root.dataset_uri(location, branch)
        if listening():
            emit(StorageCall("open_dataset", uri))
        needed = f"{uri}/_versions/{manifest_name(version)}"

        def damaged() -> str | None:
            return needed if self.root.is_local and not is_whole_manifest(needed) else None

        with substrate(
            lambda: self.circumstances(location, branch, needed=lambda: (needed,), damaged=damaged)
        ):
            return self._bases.open(location, branch, version, self.session)

    def at_home(self, location: str, branch: Branch, dataset: "LanceDataset") -> "LanceDataset":
        """A dataset that Lance gave back, with the bases it has in this graph (`storage/bases`)."""
        return self._bases.at_home(location, branch, dataset, self.session)

    def _walk(self, location: str, branch: Branch, known: int) -> int:
        version = known
        while self.adapter.identity(manifest_object(location, branch, version + 1)) is not None:
            version += 1
            if version - known >= WALK_STEPS_MAX:
                return self._newest_listed(location, branch)
        return version

    def _newest_listed(self, location: str, branch: Branch) -> int:
        versions = self.versions_listed(location, branch)
        if not versions:
            raise StorageNotFound(f"{self.root.dataset_uri(location, branch)}: there is no table here")
        return versions[0]

    def _forget(self, key: tuple[str, Branch, int]) -> None:
        with self._lock:
            self._opened.pop(key, None)
            if self._heads.get(key[:2]) == key[2]:
                del self._heads[key[:2]]


def create_dataset(
    uri: str,
    schema: "pa.Schema",
    properties: Mapping[str, str],
    *,
    exists: Callable[[], bool],
    storage_options: dict[str, str] | None = None,
) -> "LanceDataset":
    """Create an empty dataset as version 1: the only creation site of the product.

    File format pinned, stable row ids off, no automatic clean-up of versions. Raises StoragePrecondition when
    a dataset is there already. Of many creators exactly one succeeds.
    """
    from lance import LanceDataset, LanceOperation  # noqa: PLC0415  a heavy package
    from lance.dataset import Transaction  # noqa: PLC0415

    if exists():
        raise StoragePrecondition(f"{uri}: there is a table here already")
    if listening():
        emit(StorageCall("create_dataset", uri))
    # Not write_dataset(mode="create"): measured, creators that race there may both succeed, the second one
    # with version 2. A commit on top of version 0 is exact.
    transaction = Transaction(
        0, LanceOperation.Overwrite(schema, []), transaction_properties=dict(properties)
    )
    directory = None if "://" in uri else uri
    with substrate(lambda: Circumstances(uri, directory=directory)):
        try:
            made = LanceDataset.commit(
                uri, transaction, max_retries=0, storage_options=storage_options, enable_stable_row_ids=False
            )
        except (OSError, ValueError) as error:
            if exists():
                raise StoragePrecondition(f"{uri}: another writer created a table here") from error
            raise
    if (made.version, made.data_storage_version) != (1, DATA_STORAGE_VERSION):
        raise InternalError(f"{uri}: created as version {made.version} in format {made.data_storage_version}")
    return made


def field_ids(dataset: "LanceDataset") -> list[int]:
    """Ids of all fields of the schema, nested ones included."""
    found: list[int] = []
    ahead = list(dataset.lance_schema.fields())
    while ahead:
        field = ahead.pop(0)
        found.append(field.id())
        ahead = [*field.children(), *ahead]
    return found


def read_transaction(dataset: "LanceDataset", version: int) -> "Transaction | None":
    """The commit that made a version, as Lance wrote it down.

    Asked of a copy, which shares everything and costs microseconds: the call borrows its dataset exclusively
    although it only reads, and the binding refuses every other thread until it has ended.
    """
    return copy.copy(dataset).read_transaction(version)
