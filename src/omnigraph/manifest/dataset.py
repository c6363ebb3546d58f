"""Access to the engine's own small Lance datasets: `__manifest` and the two commit tables.

Every commit made here is a strict compare-and-swap: the operations used (a full Overwrite; an Update that
rewrites a named fragment) conflict with any other commit of the same kind on the same base, and the
substrate's own retries are off.
"""

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

import pyarrow as pa

from omnigraph.core.errors import (
    OmnigraphError,
    StorageError,
    StorageNotFound,
    StoragePermanent,
    StoragePrecondition,
)
from omnigraph.core.events import DurableOperation, StorageCall, emit, listening, tidying
from omnigraph.core.formats import DATA_STORAGE_VERSION
from omnigraph.core.ids import Branch, BranchName
from omnigraph.core.late_dataclass import dataclass
from omnigraph.manifest.fences import Fence, taken_back, unfenced
from omnigraph.manifest.watch import Watch
from omnigraph.planning.filters import FilterText
from omnigraph.storage.bases import Bases
from omnigraph.storage.checksums import NO_RECORD, PROPERTY, FileRecord, FileSum, record_text, sum_file
from omnigraph.storage.datasets import (
    WALK_STEPS_MAX,
    create_dataset,
)
from omnigraph.storage.durability import (
    DurabilityMode,
    make_durable,
    make_found_durable,
    sync_directories,
)
from omnigraph.storage.failures import Circumstances, UnsyncedCommit, is_commit_conflict, substrate
from omnigraph.storage.layout import CLEANUP, GraphRoot, branch_directory, branch_reference, tag_reference
from omnigraph.storage.manifest_files import HINT, hinted_version, manifest_object, version_of
from omnigraph.storage.objects import StorageAdapter
from omnigraph.storage.short_files import require_whole, written_sizes
from omnigraph.storage.torn_files import find_torn_manifest, has_versions, is_cut_short_text
from omnigraph.storage.version_files import UsedFiles, used_files

if TYPE_CHECKING:
    from lance import LanceDataset, LanceOperation
    from lance.fragment import DataFile, FragmentMetadata


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Data files that hold new rows of a dataset; nothing points at them."""

    fragments: "tuple[FragmentMetadata, ...]"
    names: tuple[str, ...]
    """Graph-relative names of the files."""
    sums: tuple[FileSum, ...] = ()
    """Their checksums."""
    follows: int = 0
    """The version they were written on."""
    before: tuple[FileSum, ...] = ()
    """The checksum of that version's file, which could not hold its own."""
    shown: int | None = None
    """The sum of the state that they show, where they show one."""


def is_contention(error: BaseException) -> bool:
    """Whether a commit was refused because another one was first: the one classification of contention."""
    return is_commit_conflict(error)


class ControlDataset:
    """One of the engine's own datasets, at a fixed place below the graph root. Holds no state."""

    def __init__(
        self, root: GraphRoot, location: str, adapter: StorageAdapter, durability: DurabilityMode
    ) -> None:
        self._root = root
        self.location = location
        self._adapter = adapter
        self._bases = Bases(root, adapter)
        self._durability = durability

    def create(self, schema: pa.Schema) -> "LanceDataset":
        """Create the dataset with no rows. Raises StoragePrecondition when it exists already."""
        uri = self._root.dataset_uri(self.location)
        made = create_dataset(uri, schema, {}, storage_options=self._options(), exists=self.exists)
        self.sync(self.version_file(None, made.version))
        return made

    def exists(self) -> bool:
        """Whether the dataset has a version on main, at whatever number.

        One whose only version a power cut left torn has none: it was never finished.
        """
        if not self._root.is_local:
            return self._adapter.exists(f"{self.location}/_versions")
        if (self._newest_hinted(None) or 0) > 1:
            return True
        if has_versions(self._root, self.location, None, at_least=2):
            return True
        only = has_versions(self._root, self.location, None)
        return only and find_torn_manifest(self._root, self.location, None) is None

    def open_head(self, branch: Branch) -> "LanceDataset":
        """The newest version of a branch.

        Cost: two probes beside the opening where the hint tells it, else one listing of the versions.
        """
        hinted = self._newest_hinted(branch)
        if hinted is not None:
            try:
                return self._open(branch, hinted)
            except StorageNotFound:
                pass  # removed since: the listing tells what is left
        return self._open(branch, None)

    def _newest_hinted(self, branch: Branch) -> int | None:
        """The newest version as the hint tells it; None where a listing has to.

        The hint is rewritten after the commit, so it may lag behind by what was committed just now, or where
        a writer died between the two: what follows it is probed by name.
        """
        if not self._root.is_local:
            return None
        version = hinted_version(self._hint_bytes(branch))
        if version is None or not self.has_version(branch, version):
            return None
        for newest in range(version, version + WALK_STEPS_MAX):
            if not self.has_version(branch, newest + 1):
                return newest
        return None

    def _hint_name(self, branch: Branch) -> str:
        return f"{branch_directory(self.location, branch)}/_versions/{HINT}"

    def open_version(self, branch: Branch, version: int) -> "LanceDataset":
        """One version of a branch, addressed by name: no listing."""
        return self._open(branch, version)

    def _open(self, branch: Branch, version: int | None) -> "LanceDataset":
        emit(StorageCall("open" if version is None else "open_version", self.location))

        def about() -> Circumstances:
            name = (
                f"{branch_directory(self.location, branch)}/_versions"
                if version is None
                else self.version_file(branch, version)
            )
            return Circumstances(self.location, needed=lambda: (name,), exists=self._adapter.exists)

        with substrate(about):
            return self._bases.open(self.location, branch, version)

    def read(
        self, handle: "LanceDataset", columns: Sequence[str] | None = None, where: FilterText | None = None
    ) -> pa.Table:
        """Rows of an opened version."""
        emit(StorageCall("read", self.location))
        with substrate(lambda: self._about_reading(handle)):
            return handle.to_table(columns=None if columns is None else list(columns), filter=where)

    def used_files(self, branch: Branch, version: int) -> UsedFiles:
        """Every file a version needs beside its manifest. Cost: one open."""
        handle = self.open_version(branch, version)
        with substrate(lambda: self._about_reading(handle)):
            return used_files(self._root, handle)

    def has_version(self, branch: Branch, version: int) -> bool:
        """Whether a version exists. Cost: one existence probe (about 2 microseconds locally)."""
        name = self.version_file(branch, version)
        if self._root.is_local:
            if listening():
                emit(StorageCall("probe", name))
            return os.access(self._root.local_path(name), os.F_OK)
        return self._adapter.identity(name) is not None

    def versions(self, branch: Branch) -> list[int]:
        """The versions of a branch that exist, oldest first. Cost: one listing."""
        names = self._adapter.list_dir(f"{branch_directory(self.location, branch)}/_versions")
        return sorted(number for name in names if (number := version_of(name)) is not None)

    def version_file(self, branch: Branch, version: int) -> str:
        """The graph-relative name of the file that makes a version exist."""
        return manifest_object(self.location, branch, version)

    def reference_token(self, branch: str) -> str | None:
        """Which incarnation of a branch exists, or None when none does. Cost: one probe."""
        return self._adapter.identity(branch_reference(self.location, branch))

    def newest_hint(self, branch: Branch) -> str | None:
        """A value that changes whenever the next version may be missing although there are newer ones.

        Locally the substrate rewrites a small file after each commit; its identity is enough, and there may
        be none. Elsewhere a cleanup, which leaves gaps, rewrites its note before it removes anything.
        """
        if not self._root.is_local:
            return self._adapter.identity(CLEANUP) or "never"
        return self._adapter.identity(self._hint_name(branch))

    def is_walked_to_end(self, branch: Branch, version: int, *, before: str | None, now: str | None) -> bool:
        """Whether a walk from version to version that ended here did not end at a gap.

        `before` and `now` are hints from before the walk and after it.
        """
        if not self._root.is_local:
            return before == now
        hinted = hinted_version(self._hint_bytes(branch))
        return hinted is not None and hinted <= version

    def _hint_bytes(self, branch: Branch) -> bytes | None:
        try:
            return Path(self._root.local_path(self._hint_name(branch))).read_bytes()
        except OSError:
            return None

    def watch(self, branch: Branch, version: int) -> Watch | None:
        """A watch on the newest version of a branch; None where the store has no cheap probes."""
        if not self._root.is_local:
            return None
        return Watch(
            self._root.local_path(self.version_file(branch, version + 1)),
            self._root.local_path(self._hint_name(branch)),
        )

    def write_rows(
        self, handle: "LanceDataset", branch: Branch, rows: pa.Table, *, replacing: bool
    ) -> WrittenRows:
        """Write the rows to new data files. Nothing points at them and nothing is synced yet."""
        from lance.fragment import write_fragments  # noqa: PLC0415

        emit(StorageCall("write", self.location))
        with substrate(self._about_writing(branch)):
            fragments = write_fragments(
                rows,
                handle,
                schema=rows.schema,
                mode="overwrite" if replacing else "append",
                data_storage_version=DATA_STORAGE_VERSION,
                storage_options=self._options(),
            )
        directory = branch_directory(self.location, branch)
        names = tuple(f"{directory}/data/{file.path}" for fragment in fragments for file in fragment.files)
        if self._root.is_local:
            sizes = written_sizes(fragments, self._root.local_path(directory))
            require_whole(sizes, sizes)
        before = self._sum_before(handle, branch)
        return WrittenRows(tuple(fragments), names, self.sums(names), handle.version, before)

    def last_fragment(
        self, handle: "LanceDataset", columns: list[str] | None = None
    ) -> tuple[int, pa.Table] | None:
        """The newest fragment of an opened version, by number, with its rows; None when there is none."""
        emit(StorageCall("read", self.location))
        with substrate(lambda: self._about_reading(handle)):
            fragments = handle.get_fragments()
            if not fragments:
                return None
            return fragments[-1].fragment_id, fragments[-1].to_table(columns=columns)

    def sums(self, names: Iterable[str]) -> tuple[FileSum, ...]:
        """The checksums of new files, by their graph-relative names."""
        if not self._root.is_local:
            return ()
        return tuple(sum_file(self._root.local_path(name), name) for name in names)

    def sums_found(self, names: Iterable[str]) -> tuple[FileSum, ...]:
        """As `sums` for files of an earlier commit; one that cannot be read now stays without."""
        found: list[FileSum] = []
        for name in names:
            with suppress(StorageError):
                found.extend(self.sums([name]))
        return tuple(found)

    def commit_overwrite(
        self,
        handle: "LanceDataset",
        branch: Branch,
        schema: pa.Schema,
        rows: WrittenRows,
        record: FileRecord = NO_RECORD,
    ) -> "LanceDataset | None":
        """Replace the content of `handle`'s version by the rows, which must be durable already.

        `record`: the checksums the commit keeps beside those of the rows and of the version it follows. None
        when another commit was first: then the rows' files are gone and nothing changed.
        """
        from lance import LanceOperation  # noqa: PLC0415

        operation = LanceOperation.Overwrite(schema, list(rows.fragments))
        return self._commit(handle, branch, operation, rows, record)

    def commit_rewrite(
        self, handle: "LanceDataset", removed: Sequence[int], rows: WrittenRows
    ) -> "LanceDataset | None":
        """Replace the named fragments of main by new rows; else as `commit_overwrite`.

        Strict as long as `removed` is not empty: two writers that replace one fragment cannot both land.
        """
        from lance import LanceOperation  # noqa: PLC0415

        operation = LanceOperation.Update(
            removed_fragment_ids=list(removed), new_fragments=list(rows.fragments), update_mode="rewrite_rows"
        )
        return self._commit(handle, None, operation, rows)

    def _commit(
        self,
        handle: "LanceDataset",
        branch: Branch,
        operation: "LanceOperation.BaseOperation",
        rows: WrittenRows,
        record: FileRecord = NO_RECORD,
    ) -> "LanceDataset | None":
        from lance import LanceDataset  # noqa: PLC0415
        from lance.dataset import Transaction  # noqa: PLC0415

        properties = self._kept_with(handle, branch, rows, record)
        emit(StorageCall("commit", self.location))
        emit(DurableOperation("commit_control", self.location, "before"))
        try:
            with substrate(self._about_writing(branch)):
                made = LanceDataset.commit(
                    handle,
                    Transaction(handle.version, operation, transaction_properties=properties),
                    max_retries=0,
                    storage_options=self._options(),
                )
        except OSError as error:
            if not is_contention(error):
                raise
            return self.settle_contention(handle.version, branch, rows)
        emit(DurableOperation("commit_control", self.location, "after"))
        try:
            self.sync(self.version_file(branch, made.version))
        except OmnigraphError as error:
            raise UnsyncedCommit(self.location, cause=error.message) from error
        return made

    def _kept_with(
        self, handle: "LanceDataset", branch: Branch, rows: WrittenRows, record: FileRecord
    ) -> dict[str, str]:
        """The properties of a commit: the checksums of its files, and of the version it follows.

        A version's file cannot hold its own sum; the next one does.
        """
        before = rows.before if rows.follows == handle.version else self._sum_before(handle, branch)
        kept = replace(record, files=(*rows.sums, *record.files), before=(*before, *record.before))
        return {PROPERTY: record_text(kept)}

    def _sum_before(self, handle: "LanceDataset", branch: Branch) -> tuple[FileSum, ...]:
        return self.sums_found([self.version_file(branch, handle.version)])

    def settle_contention(
        self, base_version: int, branch: Branch, rows: WrittenRows
    ) -> "LanceDataset | None":
        """After a refused commit: the version it made after all, or None once its files are removed.

        An object store may refuse a repeated request because the first one had succeeded; files that a
        version points at must not be removed on the strength of a refusal.
        """
        if self.has_version(branch, base_version + 1):
            made = self.open_version(branch, base_version + 1)
            names = set(self.data_names(made))
            if names.intersection(rows.names):
                return made
        self.discard(rows)
        return None

    def update_config(self, handle: "LanceDataset", values: Mapping[str, str]) -> None:
        """Set configuration entries; `handle` then is the version that has them."""
        emit(StorageCall("commit", self.location))
        with substrate(self._about_writing(None)):
            handle.update_config({**values})
        self.sync(self.version_file(None, handle.version))

    def newest_version(self, handle: "LanceDataset") -> int:
        """The newest version of the handle's branch. Cost: one listing."""
        emit(StorageCall("list_versions", self.location))
        with substrate(lambda: Circumstances(self.location)):
            return handle.latest_version

    def create_branch(
        self, handle: "LanceDataset", branch: str, *, from_branch: Branch, from_version: int
    ) -> None:
        """Make a branch at exactly one version of another one. `handle` is any version of main."""
        emit(StorageCall("create_branch", self.location))
        reference = from_version if from_branch is None else (from_branch, from_version)
        # A dataset of its own: the call borrows it exclusively and would fail beside a thread that reads it.
        own = self.open_version(None, handle.version)
        emit(DurableOperation("create_branch", self.location, "before"))
        with substrate(self._about_writing(None)):
            own.create_branch(branch, reference=reference, storage_options=self._options())
        emit(DurableOperation("create_branch", self.location, "after"))

    def uses_files_of(self, branch: BranchName, other: BranchName) -> bool:
        """Whether a branch was made from another one, as its newest version tells: it may need its files."""
        handle = self.open_head(branch)
        end = f"/{branch_directory(self.location, other)}"
        return any(str(base.path).rstrip("/").endswith(end) for base in handle.base_paths().values())

    def tags(self) -> "dict[str, tuple[Branch, int] | None]":
        """Every tag: its name, and the branch and version it names; None when it was cut short.

        Read here, not by Lance: its listing fails over one that a power cut left empty.
        """
        found: dict[str, tuple[Branch, int] | None] = {}
        for name, text in self._tag_texts():
            place = _tag_place(text)
            if place is not None or is_cut_short_text(text.encode()):
                found[name] = place
        return found

    def damaged_tags(self) -> list[str]:
        """Tags that were made and do not say any more what they said then."""
        return [
            name
            for name, text in self._tag_texts()
            if _tag_place(text) is None and not is_cut_short_text(text.encode())
        ]

    def _tag_texts(self) -> "Iterator[tuple[str, str]]":
        emit(StorageCall("list_tags", self.location))
        for file in self._adapter.list_dir(f"{self.location}/_refs/tags"):
            if file.endswith(".json"):
                name = unquote(file.removesuffix(".json"))
                try:
                    text = self._adapter.read_text_if_exists(tag_reference(self.location, name))
                except StoragePermanent:
                    text = "{}"  # bytes that are no text
                if text is not None:
                    yield name, text

    def create_tag(self, name: str, branch: Branch, version: int, fence: Fence = unfenced) -> None:
        """Name one version, durably, or leave no tag. Raises StoragePrecondition when the name is taken."""
        emit(StorageCall("create_tag", self.location))
        file = tag_reference(self.location, name)
        if self._adapter.exists(file):
            fence()
            raise StoragePrecondition(f"{self.location}: there is a tag '{name}' already")
        reference: Any = version if branch is None else (branch, version)
        emit(DurableOperation("create_tag", self.location, "before"))
        # Lance may fail after the tag is there, and one that is not durable must not be seen.
        with taken_back(f"the tag '{name}'", fence, lambda: self._adapter.delete(file)):
            with substrate(self._about_writing(None)):
                self.open_head(None).tags.create(name, reference)
            # Lance keeps what stands here and adds no checksum; a flipped bit would name another version.
            self._adapter.write_text(file, _with_checksum(self._adapter.read_text(file)))
            emit(DurableOperation("create_tag", self.location, "after"))
            self.sync(file)

    def delete_tag(self, name: str) -> None:
        """Forget a tag; one that is gone already is fine."""
        self._adapter.delete(tag_reference(self.location, name))
        with tidying(f"the tag '{name}' is gone, but may come back after a power cut"):
            self.sync_directory(f"{self.location}/_refs/tags")

    def discard(self, rows: WrittenRows) -> None:
        """Remove data files that are proven to be pointed at by nothing."""
        for name in rows.names:
            self._adapter.delete(name)

    def sync(self, *names: str) -> None:
        """Return once the named new files, and the directories that name them, survive a power cut."""
        if self._root.is_local and self._durability is not DurabilityMode.OS:
            make_durable(
                [self._root.local_path(name) for name in names], self._durability, root=self._root.uri
            )

    def sync_found(self, *names: str) -> None:
        """As `sync` for files that another process may have left unsynced; each once in this process."""
        if self._root.is_local and self._durability is not DurabilityMode.OS:
            paths = [self._root.local_path(name) for name in names]
            make_found_durable(paths, self._durability, root=self._root.uri)

    def sync_directory(self, name: str) -> None:
        """Return once entries added to or removed from a directory survive a power cut."""
        if self._root.is_local:
            sync_directories([self._root.local_path(name)], self._durability)

    def _about_reading(self, handle: "LanceDataset") -> Circumstances:
        def damaged() -> str | None:
            if not self._root.is_local:
                # An object store shows an object whole or not at all; only local files can be cut short.
                return None
            sizes = [file.file_size_bytes for file in _data_files(handle)]
            for name, size in zip(self.data_names(handle), sizes, strict=True):
                path = self._root.local_path(name)
                if size and os.path.getsize(path) != size:  # noqa: PTH202
                    return path
            return None

        return Circumstances(
            self.location,
            needed=lambda: self.data_names(handle),
            exists=self._adapter.exists,
            damaged=damaged,
        )

    def _about_writing(self, branch: Branch) -> Any:
        def about() -> Circumstances:
            directory = (
                self._root.local_path(branch_directory(self.location, branch))
                if self._root.is_local
                else None
            )
            return Circumstances(self.location, directory=directory)

        return about

    def data_names(self, handle: "LanceDataset") -> list[str]:
        """Graph-relative names of the data files of a version that lie below the dataset's own root."""
        directory = handle.uri.removeprefix(f"{self._root.uri}/")
        return [f"{directory}/data/{file.path}" for file in _data_files(handle)]

    def _options(self) -> dict[str, str] | None:
        return dict(self._root.storage_options) or None


_TAG_CHECKSUM: Final = "omnigraph.checksum"


def _with_checksum(text: str) -> str:
    fields = json.loads(text)
    return json.dumps({**fields, "metadata": {_TAG_CHECKSUM: _tag_checksum(fields)}}, indent=2)


def _tag_checksum(fields: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps([fields['branch'], fields['version']]).encode()):08x}"


def _tag_place(text: str) -> "tuple[Branch, int] | None":
    """What a tag names; None when its text is torn or damaged. One of an older program has no checksum."""
    try:
        fields = cast("dict[str, Any]", json.loads(text))
        branch, version = fields["branch"], int(fields["version"])
        kept = cast("dict[str, Any]", fields.get("metadata") or {}).get(_TAG_CHECKSUM)
        if kept not in {None, _tag_checksum(fields)}:
            return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return None if branch is None else BranchName(branch), version


def _data_files(handle: "LanceDataset") -> "list[DataFile]":
    """Lance's description of the data files that lie below the dataset's own root."""
    return [
        file
        for fragment in handle.get_fragments()
        for file in fragment.metadata.files
        if file.base_id is None
    ]
