"""`TableStorage`: all the engine can do with tables. No write here moves a HEAD as a side effect."""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from omnigraph.catalog.table_changes import ColumnMap
from omnigraph.core.bounds import NO_BOUNDS, check_bounds, claim_memory, current_bounds
from omnigraph.core.errors import InternalError
from omnigraph.core.events import DurableOperation, StorageCall, emit, listening
from omnigraph.core.ids import Branch, BranchName, TableKey
from omnigraph.core.settings import Settings
from omnigraph.planning.filters import FilterText
from omnigraph.storage import branches, columns, compaction, file_rows, following, indexes, staging
from omnigraph.storage.branches import BranchIdentifier
from omnigraph.storage.checksums import FileSum, Summing, sum_file
from omnigraph.storage.commit import commit_exactly, manifest_files, restore, transaction_of
from omnigraph.storage.compaction import Compacted
from omnigraph.storage.datasets import DatasetPool
from omnigraph.storage.deletions import dead_rows
from omnigraph.storage.durability import DurabilityMode, make_durable
from omnigraph.storage.failures import substrate
from omnigraph.storage.following import Followed
from omnigraph.storage.handles import (
    Fragment,
    SnapshotHandle,
    StagedHandle,
    Stamp,
    TransactionInfo,
    lance_dataset,
    lance_fragment,
    staged_work,
)
from omnigraph.storage.indexes import IndexCoverage, IndexPlan
from omnigraph.storage.key_probe import probe_addresses
from omnigraph.storage.layout import GraphRoot
from omnigraph.storage.manifest_files import manifest_object
from omnigraph.storage.objects import StorageAdapter
from omnigraph.storage.residual import InlineCommitResidual
from omnigraph.storage.search import ScanReport, TableSearch
from omnigraph.storage.version_files import UsedFiles, circumstances, describe_fragments, used_files
from omnigraph.storage.views import seen, stored_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset
    from lance.dataset import LanceScanner


@final
class TableStorage:
    """Reads, staged writes, exact commits and branches of the tables of one graph root on Lance.

    The surface is sealed: nothing may stand in for this class. Thread-safe. Raises the storage errors of
    `core.errors`; a table version or data file that is gone is `StorageNotFound` and names the object.
    """

    def __init_subclass__(cls) -> None:
        raise TypeError(f"{cls.__qualname__}: TableStorage of {__name__} has no subclass")

    def __init__(self, root: GraphRoot, settings: Settings, adapter: StorageAdapter) -> None:
        self._root = root
        self._mode = DurabilityMode(settings.durability)
        self._pool = DatasetPool(root, adapter, settings.cache_bytes)
        self._residual = InlineCommitResidual(self._pool)

    def storage_inline_residual(self) -> InlineCommitResidual:
        """The writes that move a HEAD by themselves; only for maintenance that covered itself first."""
        return self._residual

    # -- opening ------------------------------------------------------------------------------------------

    def create_table(
        self,
        table_key: TableKey,
        location: str,
        schema: "pa.Schema",
        stamp: Stamp,
        indexes: Sequence[IndexPlan] = (),
    ) -> SnapshotHandle:
        """Create an empty table, with its declared indexes. Raises StoragePrecondition when one is there."""
        uri = self._root.dataset_uri(location)
        emit(DurableOperation("create_table", uri, "before"))
        dataset = self._pool.create(location, schema, stamp.properties)
        emit(DurableOperation("create_table", uri, "after"))
        files = manifest_files(self._pool, location, None, int(dataset.version))
        handle = self._handle(table_key, location, None, dataset, files)
        staged = self.stage_indexes(handle, indexes, stamp) if indexes else None
        return handle if staged is None else self.commit_staged(handle, staged)

    def open_version(
        self, table_key: TableKey, location: str, branch: Branch, version: int
    ) -> SnapshotHandle:
        """The table at exactly this version. Cost: one probe when it is open already; never a listing."""
        return self._handle(table_key, location, branch, self._pool.at_version(location, branch, version), ())

    def open_head(self, table_key: TableKey, location: str, branch: Branch) -> SnapshotHandle:
        """The table at its newest version. Cost: two probes when the last known one is the newest."""
        return self._handle(table_key, location, branch, self._pool.at_head(location, branch), ())

    def head_version(self, location: str, branch: Branch, *, at_least: int = 0) -> int:
        """The newest version. Cost: two probes when the last known one is the newest.

        Whoever knows that a branch shows a version says so by `at_least`: a cleanup leaves gaps before it.
        """
        return self._pool.head_version(location, branch, at_least=at_least)

    def has_version(self, location: str, branch: Branch, version: int) -> bool:
        """Whether a version exists. Cost: one probe."""
        return self._pool.adapter.identity(manifest_object(location, branch, version)) is not None

    def seen_as(self, handle: SnapshotHandle, columns: ColumnMap) -> SnapshotHandle:
        """The table with the columns of another type: under its names, in its types, null where it has none.

        For reading; filters name what is stored. A view has no indexes.
        """
        return replace(handle, view=columns, _asked={})

    # -- reading ------------------------------------------------------------------------------------------

    def scan(
        self,
        handle: SnapshotHandle,
        *,
        columns: Sequence[str] | None = None,
        filter: FilterText | None = None,  # noqa: A002  the word of the language
        with_row_address: bool = False,
        fragments: Iterable[int] | None = None,
        batch_rows: int | None = None,
        limit: int | None = None,
    ) -> "pa.RecordBatchReader":
        """Batches of the live rows, in row order, read as the caller asks for them."""
        import pyarrow as pa  # noqa: PLC0415

        report = ScanReport(handle)
        scanner = self._scanner(
            handle, columns, filter, with_row_address, fragments, batch_rows, limit, **report.options()
        )
        about = self._about(handle)

        view = handle.view

        def batches() -> Iterable[Any]:
            with substrate(about):
                for batch in scanner.to_batches():
                    check_bounds()
                    yield batch if view is None else seen(view, columns, batch)
            report.tell()

        with substrate(about):
            schema = scanner.projected_schema
        if view is not None:
            schema = seen(view, columns, schema.empty_table()).schema
        return pa.RecordBatchReader.from_batches(schema, batches())

    def read(
        self,
        handle: SnapshotHandle,
        *,
        columns: Sequence[str] | None = None,
        filter: FilterText | None = None,  # noqa: A002
        with_row_address: bool = False,
        fragments: Iterable[int] | None = None,
        limit: int | None = None,
    ) -> "pa.Table":
        """The rows of `scan` as one table."""
        report = ScanReport(handle)
        scanner = self._scanner(
            handle, columns, filter, with_row_address, fragments, None, limit, **report.options()
        )
        with substrate(self._about(handle)):
            table = scanner.to_table()
        report.tell()
        _claim(table, handle)
        return table if handle.view is None else seen(handle.view, columns, table)

    def count_rows(self, handle: SnapshotHandle, filter: FilterText | None = None) -> int:  # noqa: A002
        """Live rows, or those that match."""
        if filter is None:
            return handle.row_count
        self._called("count_rows", handle)
        with substrate(self._about(handle)):
            return int(lance_dataset(handle).count_rows(filter=filter))

    def take(
        self, handle: SnapshotHandle, addresses: Any, columns: Sequence[str] | None = None
    ) -> "pa.Table":
        """The rows at these addresses, in this order. Cost: follows the number of rows, not the table."""
        self._called("take", handle)
        wanted = addresses.to_pylist() if hasattr(addresses, "to_pylist") else np.asarray(addresses).tolist()
        dataset = lance_dataset(handle)
        view = handle.view
        asked = columns and list(columns) if view is None else stored_columns(view, columns)
        with substrate(self._about(handle)), ScanReport(handle).of_take(dataset):
            # Stable row ids are off, so Lance's row ids are row addresses.
            rows = dataset._take_rows(wanted, columns=asked)  # noqa: SLF001
        _claim(rows, handle)
        return rows if view is None else seen(view, columns, rows)

    def addresses_of(self, handle: SnapshotHandle, keys: Any, column: str = "id") -> Any:
        """Sorted addresses (numpy) of the rows whose key is among an Arrow string array."""
        return probe_addresses(self._pool, handle, column, keys)

    def used_files(self, location: str, branch: Branch, version: int) -> UsedFiles:
        """Every file the version needs beside its manifest. Cost: one open; the handle is not kept."""
        dataset = self._pool.private(location, branch, version)
        with substrate(lambda: self._pool.circumstances(location, branch)):
            return used_files(self._root, dataset)

    def fragments(
        self, handle: SnapshotHandle, *, above: int = -1, also: Collection[int] = ()
    ) -> tuple[Fragment, ...]:
        """The fragments of the version, in row order: those numbered above `above`, and those in `also`.

        Cost: metadata only.
        """
        return describe_fragments(self._pool, handle, above=above, also=also)

    def dead_rows(self, handle: SnapshotHandle, fragment: Fragment) -> Any:
        """Numbers (numpy) of the deleted rows of a fragment of the version (`storage.deletions`)."""
        with substrate(self._about(handle)):
            return dead_rows(self, self._root, handle, fragment)

    def outlived_fragments(self, handle: SnapshotHandle) -> list[int]:
        """The fragments whose files still hold values of dropped columns. Cost: metadata only."""
        return columns.outlived_fragments(handle)

    def rows_with(self, name: str, columns: Sequence[str], value: str) -> int:
        """How many rows of a data file, deleted ones too, have the text in one of these columns."""
        return file_rows.rows_with(self._root, name, columns, value)

    def transaction_of(self, location: str, branch: Branch, version: int) -> TransactionInfo | None:
        """What the commit that made this version says about itself; None when the version does not exist."""
        return transaction_of(self._pool, location, branch, version)

    # -- staging ------------------------------------------------------------------------------------------

    def stage_append(self, handle: SnapshotHandle, data: "pa.Table", stamp: Stamp) -> StagedHandle:
        """Write rows that will join the table."""
        return staging.stage_append(self._pool, handle, data, stamp, "stage_append")

    def stage_append_stream(
        self, handle: SnapshotHandle, reader: "pa.RecordBatchReader | pa.Table", stamp: Stamp
    ) -> StagedHandle:
        """As `stage_append`, reading the source lazily: memory does not follow the number of rows."""
        return staging.stage_append(self._pool, handle, reader, stamp, "stage_append_stream")

    def stage_merge_insert(
        self,
        handle: SnapshotHandle,
        data: Any,
        stamp: Stamp,
        *,
        addresses: Any = None,
        before_fork: bool = False,
    ) -> StagedHandle:
        """Write rows (table or reader) that replace those with the same id and join where there is none.

        `addresses`: of the rows replaced, when the caller knows them, or a call that gives them, made while
        the rows are written; None looks the ids up. `before_fork`: the target branch does not own the table
        yet; `rebase` writes the deletion files after the fork.
        """
        return staging.stage_merge_insert(
            self._pool, handle, data, stamp, addresses=addresses, before_fork=before_fork
        )

    def stage_overwrite(
        self, handle: SnapshotHandle, data: Any, stamp: Stamp, *, schema: "pa.Schema | None" = None
    ) -> StagedHandle:
        """Write the complete new content (table, reader, None for no rows); `schema=None` keeps its own."""
        return staging.stage_overwrite(self._pool, handle, data, schema, stamp)

    def stage_delete(
        self,
        handle: SnapshotHandle,
        stamp: Stamp,
        *,
        addresses: Any = None,
        predicate: FilterText | None = None,
        before_fork: bool = False,
    ) -> StagedHandle | None:
        """Hide the rows at these addresses or those that match; None, and nothing written, for no rows."""
        return staging.stage_delete(
            self._pool, handle, stamp, addresses=addresses, predicate=predicate, before_fork=before_fork
        )

    def stage_fragments(
        self,
        handle: SnapshotHandle,
        fragments: Sequence[Fragment],
        mode: Literal["append", "overwrite", "merge"],
        stamp: Stamp,
        *,
        addresses: Any = None,
        before_fork: bool = False,
    ) -> StagedHandle:
        """Adopt fragments that tasks elsewhere wrote under this handle's dataset (`describe_staged`)."""
        return staging.stage_fragments(
            self._pool, handle, fragments, mode, stamp, addresses=addresses, before_fork=before_fork
        )

    def stage_rewrite(self, handle: SnapshotHandle, fragments: Sequence[int], stamp: Stamp) -> StagedHandle:
        """Write the live rows of these fragments as one fragment. Not for tables with blobs."""
        return staging.stage_rewrite(self._pool, handle, fragments, stamp)

    def compact(self, handle: SnapshotHandle, group: Sequence[int], *, bytes_max: int) -> Compacted:
        """Write neighbouring fragments as one, without their deleted rows. Nobody points at it yet."""
        return compaction.compact(self._pool, handle, group, bytes_max=bytes_max)

    def stage_compaction(
        self, handle: SnapshotHandle, groups: Sequence[Compacted], stamp: Stamp
    ) -> StagedHandle:
        """Put what was compacted, here or by tasks elsewhere, in the place of the old fragments."""
        return compaction.stage_compaction(self._pool, handle, groups, stamp)

    def previewed(
        self, handle: SnapshotHandle, staged: StagedHandle
    ) -> AbstractContextManager[SnapshotHandle]:
        """The version a staged write would make, for building on it ahead; nobody else sees it."""
        return compaction.previewed(self._pool, handle, staged)

    def stage_indexes(
        self,
        handle: SnapshotHandle,
        plans: Sequence[IndexPlan],
        stamp: Stamp,
        *,
        rebuild: bool = False,
        segments_max: int | None = None,
    ) -> StagedHandle | None:
        """Build what the indexes do not cover yet, all in one later commit; None when all is covered."""
        return indexes.stage_indexes(
            self._pool, handle, plans, stamp, rebuild=rebuild, segments_max=segments_max
        )

    def stage_columns(
        self,
        handle: SnapshotHandle,
        change: ColumnMap,
        stamp: Stamp,
        written: Sequence[Fragment] = (),
    ) -> StagedHandle:
        """Add, rename, drop, loosen or tighten columns without writing a row. An empty table is overwritten
        by nothing. Columns that get values have been written by `write_columns`.
        """
        return columns.stage_columns(self._pool, handle, change, stamp, written)

    def write_columns(
        self,
        handle: SnapshotHandle,
        fragment: int,
        names: Sequence[str],
        make: "Callable[[pa.RecordBatch], pa.RecordBatch]",
    ) -> Fragment:
        """Write new columns of one fragment, made from the stored columns `names`; nobody points at them."""
        self._called("write_columns", handle)
        return columns.write_columns(self._pool, handle, fragment, names, make)

    def rebase(self, staged: StagedHandle, handle: SnapshotHandle, *, addresses: Any = None) -> StagedHandle:
        """The same staged write against another base: a newer version, or a branch forked meanwhile."""
        return staging.rebase(self._pool, staged, handle, addresses=addresses)

    def followed(self, staged: StagedHandle, before: SnapshotHandle, now: SnapshotHandle) -> Followed | None:
        """What of a rewrite or an index build on one version also holds on a later one; None: nothing."""
        return following.followed(self, self._pool, staged, before, now)

    # -- committing ---------------------------------------------------------------------------------------

    def commit_staged(self, handle: SnapshotHandle, staged: StagedHandle) -> SnapshotHandle:
        """Move the HEAD of the table by exactly one version.

        Raises CommitConflict when another commit was first and nothing landed, ForeignCommit when this one
        landed on top of an unknown one: the caller keeps its sidecar and recovery settles it.
        """
        work = staged_work(staged)
        if work.operation is None:
            raise InternalError(f"a {staged.primitive} prepared before a fork must be rebased onto it")
        if staged.base_version != handle.version:
            raise InternalError(
                f"staged on version {staged.base_version}, committed on {handle.version}: rebase first"
            )
        return commit_exactly(
            self._pool,
            handle,
            work.operation,
            transaction_uuid=staged.transaction_uuid,
            properties=work.stamp.properties,
            operation_id=work.stamp.operation_id,
            files=staged.files,
            sums=staged.sums,
        )

    def restore(self, head: SnapshotHandle, to_version: int, *, operation_id: str) -> SnapshotHandle:
        """Append one version whose content is that of `to_version`. Only for recovery, alone in the lease."""
        return restore(self._pool, head, to_version, operation_id)

    def new_files(self, made: SnapshotHandle | StagedHandle) -> tuple[str, ...]:
        """Local files that must be on the device before the result may be published."""
        return made.files if isinstance(made, StagedHandle) else made.new_files

    def sums(self, made: Iterable[SnapshotHandle]) -> list[FileSum]:
        """The checksums of every file that the commits behind these handles made.

        Without references of forks: recovery makes a lost one again, and what counts in it, the identity of
        the fork, is in the entry that shows it.
        """
        start = len(self._root.uri) + 1
        sums: dict[str, FileSum] = {}
        for one in made:
            sums.update((each.name, each) for each in one.sums)
            for path in one.new_files:
                if path[start:] not in sums and "/_refs/" not in path:
                    sums[path[start:]] = sum_file(path, path[start:])
        return list(sums.values())

    def summed(self, staged: StagedHandle) -> StagedHandle:
        """The staged write with the checksums of its files, so that its commit need not read them."""
        start = len(self._root.uri) + 1
        return replace(staged, sums=tuple(sum_file(path, path[start:]) for path in staged.files))

    def since(self, handle: SnapshotHandle, shown: SnapshotHandle) -> SnapshotHandle:
        """The version with everything that came after an earlier one as its new files, whoever made them."""
        if not self._root.is_local:
            return handle
        names = self.files_of(handle) - self.files_of(shown)
        for version in range(shown.version + 1, handle.version):
            names.add(manifest_object(handle.location, handle.branch, version))
        return replace(handle, _files=tuple(self._root.local_path(name) for name in sorted(names)))

    def sum_of(self, name: str) -> FileSum:
        """The checksum of one file, by its graph-relative name, as it is now. Raises StorageNotFound."""
        check_bounds()
        if self._root.is_local:
            return sum_file(self._root.local_path(name), name)
        running = Summing()
        for chunk in self._pool.adapter.read_chunks(name):
            running.add(chunk)
        return running.named(name)

    def files_of(self, handle: SnapshotHandle) -> set[str]:
        """Graph-relative names of the files a version is read from: rows, deletions, indexes, itself."""
        return {
            manifest_object(handle.location, handle.branch, handle.version),
            *(name for each in self.fragments(handle) for name in each.files),
            *(each.deletions for each in self.fragments(handle) if each.deletions is not None),
            *indexes.index_files(self._pool, handle),
        }

    def make_durable(self, made: Iterable[SnapshotHandle | StagedHandle]) -> None:
        """Sync all files behind these handles and the directories that name them: one round."""
        if self._root.is_local:
            paths = [path for one in made for path in self.new_files(one)]
            make_durable(paths, self._mode, root=self._root.uri)

    # -- branches -----------------------------------------------------------------------------------------

    def branch_identifier(self, location: str, branch: Branch) -> BranchIdentifier | None:
        """The incarnation of a branch: () for main, None when there is no such reference."""
        return branches.branch_identifier(self._pool, location, branch)

    def list_branches(self, location: str) -> dict[BranchName, BranchIdentifier]:
        """Every branch reference of a table with its incarnation. Cost: a listing and a read per branch."""
        return branches.list_branches(self._pool, location)

    def create_branch(
        self, table_key: TableKey, location: str, name: BranchName, from_branch: Branch, from_version: int
    ) -> SnapshotHandle:
        """Fork the table at exactly this version. Raises StoragePrecondition when the reference exists."""
        dataset, files = branches.create_branch(self._pool, location, name, from_branch, from_version)
        return self._handle(table_key, location, name, dataset, files)

    def delete_branch(self, location: str, name: BranchName) -> None:
        """Remove a branch, or what a crash left of one; absent is fine."""
        branches.delete_branch(self._pool, location, name)

    # -- indexes ------------------------------------------------------------------------------------------

    def index_coverage(self, handle: SnapshotHandle, column: str | None = None) -> tuple[IndexCoverage, ...]:
        """What the indexes of this version cover. Cost: metadata only."""
        if handle.view is not None:
            return ()
        return indexes.index_coverage(handle, column)

    @property
    def search(self) -> TableSearch:
        """Searches answered from indexes of the table format."""
        return TableSearch(self._pool)

    # -- inside -------------------------------------------------------------------------------------------

    def _handle(
        self,
        table_key: TableKey,
        location: str,
        branch: Branch,
        dataset: "LanceDataset",
        files: tuple[str, ...],
    ) -> SnapshotHandle:
        return SnapshotHandle(table_key, location, branch, int(dataset.version), dataset, files)

    def _scanner(
        self,
        handle: SnapshotHandle,
        columns: Sequence[str] | None,
        wanted: FilterText | None,
        with_row_address: bool,  # noqa: FBT001
        fragments: Iterable[int] | None,
        batch_rows: int | None,
        limit: int | None,
        **options: Any,
    ) -> "LanceScanner":
        self._called("scan", handle)
        dataset = lance_dataset(handle)
        if handle.view is not None:
            columns = stored_columns(handle.view, columns)
        with substrate(self._about(handle)):
            chosen = None if fragments is None else [lance_fragment(handle, number) for number in fragments]
            return dataset.scanner(
                columns=columns if columns is None else list(columns),
                filter=wanted,
                with_row_address=with_row_address,
                fragments=chosen,
                batch_size=batch_rows,
                limit=limit,
                scan_in_order=True,
                **options,
            )

    def _called(self, kind: str, handle: SnapshotHandle) -> None:
        check_bounds()
        if listening():
            emit(StorageCall(kind, self._root.dataset_uri(handle.location, handle.branch)))

    def _about(self, handle: SnapshotHandle) -> Callable[[], Any]:
        return lambda: circumstances(self._pool, handle)


def _claim(rows: "pa.Table", handle: SnapshotHandle) -> None:
    if current_bounds() is not NO_BOUNDS:
        claim_memory(rows.nbytes, handle.table_key)
