"""Reading what branches show, and the branches themselves.

A branch of the graph is a Lance branch of `__manifest`; that reference alone decides whether it exists.
"""

import threading
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import orjson

from omnigraph.core.errors import (
    AlreadyInitialized,
    BranchNotFound,
    ConflictError,
    GraphNotFound,
    OmnigraphError,
    SnapshotNotFound,
    StorageNotFound,
    StoragePermanent,
    StoragePrecondition,
    StorageTransient,
    StorageUnknown,
    VersionReclaimed,
)
from omnigraph.core.events import Warned, emit, listening
from omnigraph.core.ids import Branch, BranchName, CommitId, show_branch
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.settings import Settings
from omnigraph.manifest.branches import BranchStore
from omnigraph.manifest.changes import genesis_snapshot
from omnigraph.manifest.commit_record import CommitRecord
from omnigraph.manifest.commits import CommitLog
from omnigraph.manifest.dataset import ControlDataset, is_contention
from omnigraph.manifest.fences import Fence, unfenced
from omnigraph.manifest.names import INTERNAL_NAMES, SCHEMA_APPLY_LOCK, unknown_branch
from omnigraph.manifest.state import (
    STAMP,
    BranchIdentifier,
    Snapshot,
    TableEntry,
    columns_of,
    decode,
    digest,
    encode,
    manifest_schema,
    stamp_of,
)
from omnigraph.manifest.tags import TagStore
from omnigraph.storage.checksums import FileRecord, FileSum
from omnigraph.storage.datasets import WALK_STEPS_MAX
from omnigraph.storage.durability import DurabilityMode
from omnigraph.storage.layout import MANIFEST, GraphRoot, branch_reference, tag_reference
from omnigraph.storage.objects import StorageAdapter
from omnigraph.storage.torn_files import find_torn_manifest, remove_torn_manifests

if TYPE_CHECKING:
    from lance import LanceDataset

    from omnigraph.manifest.watch import Watch

_SNAPSHOTS_KEPT_MAX: Final = 64
LATELY_MAX: Final = 8
"""After this many publishes by others, a state is not one of lately any more."""
_FIRST_STATE: Final = 3
"""The manifest version that makes a graph exist: after the empty dataset and its configuration."""
_CONFIG: Final = {"table_version_management": "true"}


@dataclass(frozen=True, slots=True)
class Head:
    """The newest state of a branch together with the open version it was read from."""

    handle: "LanceDataset"
    snapshot: Snapshot
    stamp: int
    token: str | None
    """The identity of the branch's reference as the store tells it; None on main."""
    incarnation: str
    """The branch's own identity, written in its reference; empty on main."""
    hint: str | None

    @property
    def version(self) -> int:
        """The manifest version."""
        return self.snapshot.manifest_version


@dataclass(frozen=True, slots=True)
class BranchReference:
    """What the reference of a branch says: where it began, and which incarnation it is."""

    name: BranchName
    parent: Branch
    parent_version: int
    identifier: BranchIdentifier

    @property
    def incarnation(self) -> str:
        """What tells the branch from every other one, whatever their names."""
        return self.identifier[-1][1]


class _Coordinators:
    """The coordinator locks of this process: one per graph root and branch, shared by all handles."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, Branch], threading.RLock] = {}
        self._lock = threading.Lock()

    def of(self, root: GraphRoot, branch: Branch) -> "threading.RLock":
        with self._lock:
            return self._locks.setdefault((root.identity, branch), threading.RLock())


_coordinators: Final = _Coordinators()


class ManifestStore:
    """The states of a graph's branches, always read fresh, kept while they do not change.

    Thread-safe. Every handle of a process may have its own store; their publishes meet at the coordinator
    lock.
    """

    def __init__(
        self, root: GraphRoot, settings: Settings, adapter: StorageAdapter, *, read_only: bool = False
    ) -> None:
        self.root = root
        self.adapter = adapter
        durability = DurabilityMode(settings.durability)
        self.dataset: Final = ControlDataset(root, MANIFEST, adapter, durability)
        self.commits: Final = CommitLog(self, root, adapter, durability, read_only=read_only)
        self.references: Final = BranchStore(self)
        self.tags: Final = TagStore(self)
        self._heads: dict[Branch, Head] = {}
        self._watched: tuple[Head, Watch] | None = None
        """The head of main, where it is cheap to tell that it is the newest."""
        self._past: OrderedDict[tuple[Branch, str | None, int], Snapshot] = OrderedDict()
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        """Held while a newer state is read: threads that find it together read it once."""

    # ---- creation

    def exists(self) -> bool:
        """Whether a complete graph is here: a manifest that shows a state."""
        if not self.dataset.exists():
            return False
        try:
            self.head(None)
        except GraphNotFound:
            return False
        return True

    def drop_unfinished_creation(self) -> None:
        """Remove what a power cut left torn of a creation, so that it can be repeated.

        Only versions up to the first state are removed: an acknowledged one is whole, and later ones are not
        part of the creation.
        """
        torn = find_torn_manifest(self.root, MANIFEST, None)
        if torn is not None and torn.version <= _FIRST_STATE:
            remove_torn_manifests(self.root, MANIFEST, None)

    def create(
        self, entries: Sequence[TableEntry], genesis: CommitRecord, files: Sequence[FileSum] = ()
    ) -> Snapshot:
        """Make the graph exist with these tables and its first commit.

        The graph exists from the one swap that writes the first state; what a creator that died before it
        left is taken over. `genesis` carries the schema hash; its branch and version are set here. `files`
        are the checksums of what the tables consist of.
        Raises AlreadyInitialized when the graph exists.
        """
        with self.coordinator(None):
            empty = self._empty_manifest()
            record = replace(genesis, home=None, manifest_version=empty.version + 1)
            snapshot = genesis_snapshot(entries, record)
            rows = self.dataset.write_rows(empty, None, encode(columns_of(snapshot)), replacing=True)
            self.dataset.sync(*rows.names)
            kept = FileRecord(tuple(files), rows=digest(columns_of(snapshot)), commit=snapshot.head)
            handle = self.dataset.commit_overwrite(empty, None, manifest_schema(), rows, kept)
            if handle is None:
                raise AlreadyInitialized(self.root.uri)
            self.adopt(handle, snapshot, None)
        self.commits.remember(snapshot.commit)
        self.commits.flush_or_warn()
        return snapshot

    def _empty_manifest(self) -> "LanceDataset":
        """A manifest without rows: made now, or left by a creator that died.

        Raises AlreadyInitialized when there are rows, or when another creator is at work right now.
        """
        try:
            if self.dataset.exists():
                handle = self.dataset.open_head(None)
                if handle.count_rows() > 0:
                    raise AlreadyInitialized(self.root.uri)
            else:
                handle = self.dataset.create(manifest_schema())
            if handle.config().get("table_version_management") != "true":
                self._configure(handle)
        except StoragePrecondition as error:
            raise AlreadyInitialized(self.root.uri) from error
        except OSError as error:
            if not is_contention(error):
                raise
            raise AlreadyInitialized(self.root.uri) from error
        return handle

    def _configure(self, empty: "LanceDataset") -> None:
        try:
            self.dataset.update_config(empty, _CONFIG)
        except StorageUnknown as error:
            # Two changes of one entry collide without an error of their own; that another creator was first
            # shows by the version.
            if self.dataset.open_head(None).version > empty.version:
                raise AlreadyInitialized(self.root.uri) from error
            raise

    # ---- reading

    def coordinator(self, branch: Branch) -> "threading.RLock":
        """The lock under which one publish of a branch at a time runs in this process."""
        return _coordinators.of(self.root, branch)

    def current(self, branch: Branch) -> Snapshot:
        """What the branch shows now. Raises BranchNotFound, GraphNotFound.

        Cost when nothing changed: two or three existence probes, no listing.
        """
        return self.head(branch).snapshot

    def resting(self) -> Head | None:
        """The newest state of main, when a look at local files tells that it still is; else None.

        Nobody may be listening: else every probe is to be reported, one by one.
        """
        known, watched = self._heads.get(None), self._watched
        if known is None or watched is None or watched[0] is not known or listening():
            return None
        return known if watched[1].at_rest() else None

    def head(self, branch: Branch) -> Head:
        """The newest state of the branch and its open version."""
        if branch is None and (resting := self.resting()) is not None:
            return resting
        known = self._heads.get(branch)
        token = None if branch is None else self._token(branch)
        if known is None or known.token != token:
            return self._load_newest(branch, token)
        version = known.version
        while self.dataset.has_version(branch, version + 1):
            version += 1
            if version - known.version >= WALK_STEPS_MAX:
                return self._load_newest(branch, token)
        if version > known.version:
            return self._load_version(branch, token, version, known.hint)
        # Clean-up may have removed the next version while this one is kept by a tag. The hint shows that
        # something was committed since; without a hint the version itself must still be there.
        hint = self.dataset.newest_hint(branch)
        if hint is None:
            return known if self.dataset.has_version(branch, version) else self._load_newest(branch, token)
        if hint == known.hint:
            if branch is None:
                watch = self.dataset.watch(branch, version)
                if watch is not None and watch.is_seen_with(hint):
                    self._watched = (known, watch)
            return known
        newest = self.dataset.newest_version(known.handle)
        if newest != version:
            return self._load_newest(branch, token)
        return self._keep(branch, replace(known, hint=hint))

    def lately(self, branch: Branch) -> Head:
        """A state of the branch that was its newest a few publishes ago at most: the one this process saw
        last, if that is new enough. For who looks again before anything depends on it.

        Cost: a few probes, also beside busy writers of other processes. On an object store as `head`.
        """
        known = self._heads.get(branch)
        if known is None or not self.root.is_local:
            return self.head(branch)
        version, there = known.version, self.dataset.has_version
        # Without the next one nothing came since, or a cleanup left a gap.
        moved = there(branch, version + 1) and not there(branch, version + LATELY_MAX)
        if moved and there(branch, version) and (branch is None or self._token(branch) == known.token):
            return known
        return self.head(branch)

    def at_version(self, branch: Branch, manifest_version: int) -> Snapshot:
        """What the branch showed at a manifest version.

        Raises VersionReclaimed when a cleanup removed it, SnapshotNotFound when it never was.
        """
        try:
            head = self.head(branch)
        except (StoragePermanent, StorageUnknown):
            # Its newest state is damaged; the older ones need not be.
            return self.read_version(branch, manifest_version)
        if head.version == manifest_version:
            return head.snapshot
        if not 0 < manifest_version < head.version:
            raise SnapshotNotFound(f"{show_branch(branch)}@{manifest_version}")
        key = (branch, head.token, manifest_version)
        with self._lock:
            kept = self._past.get(key)
        if kept is not None and self.dataset.has_version(branch, manifest_version):
            return kept
        try:
            snapshot = self.read_version(branch, manifest_version)
        except SnapshotNotFound as error:
            raise self.gone(branch, manifest_version, error) from error
        with self._lock:
            self._past[key] = snapshot
            while len(self._past) > _SNAPSHOTS_KEPT_MAX:
                self._past.popitem(last=False)
        return snapshot

    def at_commit(self, commit_id: CommitId) -> Snapshot:
        """What the commit's branch showed when the commit was published.

        Raises CommitNotFound, and SnapshotNotFound when the branch or the version is gone.
        """
        record = self.commits.show(commit_id)
        try:
            snapshot = self.at_version(record.home, record.manifest_version)
        except VersionReclaimed as error:
            if record.incarnation != self.head(record.home).incarnation:
                raise SnapshotNotFound(commit_id) from error
            raise VersionReclaimed(commit_id, branch=error.branch, oldest=error.oldest) from error
        except OmnigraphError as error:
            raise SnapshotNotFound(commit_id) from error
        if snapshot.commit.id != commit_id:
            # The branch was deleted and its name used again.
            raise SnapshotNotFound(commit_id)
        return snapshot

    def read_version(self, branch: Branch, version: int) -> Snapshot:
        """As `at_version`, always from storage."""
        try:
            rows = self.dataset.read(self.dataset.open_version(branch, version))
        except StorageNotFound as error:
            raise SnapshotNotFound(f"{show_branch(branch)}@{version}") from error
        if rows.num_rows == 0:
            raise SnapshotNotFound(f"{show_branch(branch)}@{version}")
        return decode(rows, branch=branch, manifest_version=version)

    @contextmanager
    def reading(self, snapshot: Snapshot) -> Generator[None]:
        """Around what reads a state: a file that is missing is an error of the state when that is gone."""
        try:
            yield
        except StorageNotFound as error:
            raise self.gone(snapshot.branch, snapshot.manifest_version, error) from error

    def gone(self, branch: Branch, version: int, error: OmnigraphError) -> OmnigraphError:
        """What a failure to read a state means.

        VersionReclaimed when its version is not there any more, SnapshotNotFound when its branch is not.
        """
        if not self.branch_exists(branch):
            return SnapshotNotFound(f"{show_branch(branch)}@{version}")
        if self.dataset.has_version(branch, version):
            return error
        for number in self.dataset.versions(branch):
            with suppress(SnapshotNotFound):
                oldest = self.read_version(branch, number).head
                name = show_branch(branch)
                return VersionReclaimed(f"{name}@{version}", branch=name, oldest=oldest)
        return error

    def _load_version(self, branch: Branch, token: str | None, version: int, before: str | None) -> Head:
        with self._loading:
            known = self._heads.get(branch)
            if known is not None and known.token == token and known.version >= version:
                return known
            return self._read_version(branch, token, version, before)

    def _read_version(self, branch: Branch, token: str | None, version: int, before: str | None) -> Head:
        hint = self.dataset.newest_hint(branch)
        if not self.dataset.is_walked_to_end(branch, version, before=before, now=hint):
            return self._load_newest(branch, token)
        try:
            handle = self.dataset.open_version(branch, version)
            return self._keep(branch, self._read_head(branch, handle, token, hint))
        except StorageNotFound:
            return self._load_newest(branch, token)

    def _load_newest(self, branch: Branch, token: str | None) -> Head:
        """The newest state. A cleanup may take away the one that is being read, once there are newer ones:
        then it is looked for again, as long as states keep going.
        """
        read = 0
        while True:
            version = 0
            hint = self.dataset.newest_hint(branch)
            if branch is None and not self.dataset.exists():
                raise GraphNotFound(self.root.uri)
            try:
                handle = self.dataset.open_head(branch)
                version = handle.version
                return self._keep(branch, self._read_head(branch, handle, token, hint))
            except StorageNotFound as error:
                if branch is not None and not self.branch_exists(branch):
                    raise self.unknown_branch(branch) from error
                if version <= read or self.dataset.has_version(branch, version):
                    raise
                read = version

    def _read_head(self, branch: Branch, handle: "LanceDataset", token: str | None, hint: str | None) -> Head:
        rows = self.dataset.read(handle)
        if rows.num_rows == 0:
            raise GraphNotFound(
                self.root.uri, hint="`omnigraph init --force` takes over what an interrupted creation left"
            )
        snapshot = decode(rows, branch=branch, manifest_version=handle.version)
        incarnation = "" if branch is None else self.branch_reference(branch).incarnation
        return Head(handle, snapshot, stamp_of(rows.schema), token, incarnation, hint)

    def _keep(self, branch: Branch, head: Head) -> Head:
        with self._lock:
            known = self._heads.get(branch)
            if known is not None and known.token == head.token and known.version > head.version:
                return known
            self._heads[branch] = head
        return head

    def adopt(self, handle: "LanceDataset", snapshot: Snapshot, base: Head | None) -> None:
        """Take over a state this process has just published on `base`, without reading it back."""
        hint = self.dataset.newest_hint(snapshot.branch)
        token, incarnation = (None, "") if base is None else (base.token, base.incarnation)
        self._keep(snapshot.branch, Head(handle, snapshot, STAMP, token, incarnation, hint))

    def _token(self, branch: BranchName) -> str:
        token = self.dataset.reference_token(branch)
        if token is None:
            with self._lock:
                self._heads.pop(branch, None)
            raise self.unknown_branch(branch)
        return token

    # ---- branches

    def branches(self) -> list[BranchName]:
        """The branches beside main, sorted, without internal ones. Cost: one listing."""
        return [name for name in self.all_branches() if name not in INTERNAL_NAMES]

    def all_branches(self) -> list[BranchName]:
        """Every branch of the manifest beside main, internal ones included."""
        files = self.adapter.list_dir(f"{MANIFEST}/_refs/branches")
        suffix = ".json"
        return sorted(BranchName(unquote(f.removesuffix(suffix))) for f in files if f.endswith(suffix))

    def readable(self, branches: Sequence[Branch] | None = None) -> dict[Branch, Snapshot]:
        """What these branches show, or all but internal ones; those that cannot be read are left out.

        A damaged one is reported as a warning and does not stop the others. A failure that may pass is
        raised: not knowing must not look like an answer.
        """
        found: dict[Branch, Snapshot] = {}
        for branch in (None, *self.branches()) if branches is None else branches:
            try:
                found[branch] = self.current(branch)
            except StorageTransient:
                raise
            except OmnigraphError as error:
                if branch is None:
                    raise
                if self.branch_exists(branch):
                    emit(Warned(f"branch '{branch}' cannot be read", error.message))
        return found

    def create_branch(self, name: str, from_branch: Branch = None) -> Snapshot:
        """Make a branch that shows what `from_branch` shows now (`BranchStore.create`)."""
        return self.references.create(name, from_branch)

    def delete_branch(self, name: str, fence: Fence = unfenced) -> bool:
        """Remove a branch from the manifest (`BranchStore.delete`)."""
        return self.references.delete(name, fence)

    def branch_exists(self, branch: Branch) -> bool:
        """Whether the branch exists. Cost: one probe."""
        return branch is None or self.dataset.reference_token(branch) is not None

    def unknown_branch(self, branch: str) -> BranchNotFound:
        """The error for a branch that does not exist. Cost: one probe, one listing."""
        is_tag = self.adapter.exists(tag_reference(MANIFEST, branch))
        return unknown_branch(branch, self.branches(), is_tag=is_tag)

    def branch_reference(self, branch: BranchName) -> BranchReference:
        """Where a branch began and which incarnation it is. Raises BranchNotFound."""
        name = branch_reference(MANIFEST, branch)
        text = self.adapter.read_text_if_exists(name)
        if text is None:
            raise self.unknown_branch(branch)
        reference = _reference_from(branch, text)
        if reference is None:
            raise StoragePermanent(
                f"{self.adapter.address(name)}: the reference of branch '{branch}' is damaged",
                hint="restore this file from a backup, or delete the branch",
            )
        return reference

    def published_since(self, branch: Branch, newest: Mapping[str, int]) -> bool:
        """Whether the branch may show commits after the newest version in `newest`, by incarnation.

        A branch without a commit of its own shows what it began with, which is its parent's affair.
        Cost: a few probes.
        """
        if branch is None:
            version = newest.get("", 0)
        else:
            reference = self.branch_reference(branch)
            version = newest.get(reference.incarnation, reference.parent_version)
        return self.dataset.has_version(branch, version + 1) or not self.dataset.has_version(branch, version)

    def branch_incarnation(self, branch: Branch) -> BranchIdentifier:
        """What tells a branch from a later one of the same name; empty for main."""
        return () if branch is None else self.branch_reference(branch).identifier

    def schema_apply_in_progress(self) -> bool:
        """Whether some process holds the schema-apply lock branch. Cost: one probe."""
        return self.dataset.reference_token(SCHEMA_APPLY_LOCK) is not None

    def refuse_during_schema_apply(self) -> None:
        """Raise a conflict while a schema apply runs."""
        if self.schema_apply_in_progress():
            raise ConflictError(
                "a schema apply is in progress; nothing can be written until it ends",
                hint="try again when it has finished",
            )

    def make_found_durable(self, branch: Branch, manifest_version: int) -> None:
        """Return once a state that somebody is about to build on survives a power cut.

        Its publisher, or the creator of its branch, may have died before its sync. What lies before the state
        needs no sync: whoever published it has built on that. Cost: one or two probes when it was done
        before.
        """
        names = [self.dataset.version_file(branch, manifest_version)]
        if branch is not None:
            names.append(branch_reference(MANIFEST, branch))
        self.dataset.sync_found(*names)

    def forget(self, branch: Branch) -> None:
        """Drop what is kept of a branch."""
        with self._lock:
            self._heads.pop(branch, None)


def _reference_from(branch: BranchName, text: str) -> BranchReference | None:
    """What the reference of a branch says; None when it is cut short."""
    try:
        fields = orjson.loads(text)
        parent = fields["parentBranch"]
        pairs = [(int(version), str(token)) for version, token in fields["identifier"]["version_mapping"]]
        version = int(fields["parentVersion"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    if not pairs:
        return None
    return BranchReference(branch, None if parent is None else BranchName(parent), version, tuple(pairs))
