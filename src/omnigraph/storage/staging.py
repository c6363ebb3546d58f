"""The staged primitives: every one writes files that nobody points at and returns what would point at them.

None of them moves a HEAD. Whatever happens to the process here, the table reads as before; the files are
garbage until `commit_staged`.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from omnigraph.arrays.addresses import ADDRESS, by_fragment
from omnigraph.arrays.sets import distinct
from omnigraph.arrays.types import Addresses
from omnigraph.core.errors import InternalError
from omnigraph.core.events import DurableOperation, StorageCall, TableStaged, emit, listening
from omnigraph.core.late_dataclass import dataclass
from omnigraph.planning.filters import FilterText
from omnigraph.storage.checksums import FileSum
from omnigraph.storage.datasets import DatasetPool, field_ids
from omnigraph.storage.failures import substrate
from omnigraph.storage.handles import (
    Fragment,
    SnapshotHandle,
    StagedHandle,
    Stamp,
    lance_dataset,
    lance_fragment,
    staged_work,
)
from omnigraph.storage.key_probe import probe_addresses
from omnigraph.storage.parallel import each_of, side_by_side
from omnigraph.storage.short_files import file_name, require_whole, written_sizes
from omnigraph.storage.version_files import base_roots, circumstances, fragment_files

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceOperation
    from lance.fragment import FragmentMetadata

    from omnigraph.storage.failures import Circumstances

ROWS_PER_FILE_MAX: Final = 1024 * 1024
KEY_COLUMN: Final = "id"
SIDE_BY_SIDE_ROWS_MIN: Final = 256
"""From this many replaced rows, they are hidden while the new ones are written."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a staged handle keeps for its commit."""

    operation: "LanceOperation.BaseOperation | None"
    """The Lance operation; None while its deletion files cannot be written yet (before a fork)."""
    stamp: Stamp
    new_fragments: "tuple[FragmentMetadata, ...]" = ()
    addresses: Addresses | None = None
    data_root: str = ""
    """Dataset directory below which the new data files lie."""


def stage_append(
    pool: DatasetPool, handle: SnapshotHandle, data: Any, stamp: Stamp, primitive: str
) -> StagedHandle:
    """Write rows as new fragments. `data` is a table or a reader; a reader is drained lazily, once."""
    fragments = _write_rows(pool, handle, data, mode="append")
    return _staged_append(pool, handle, fragments, stamp, primitive)


def stage_merge_insert(
    pool: DatasetPool,
    handle: SnapshotHandle,
    data: Any,
    stamp: Stamp,
    *,
    addresses: Any = None,
    before_fork: bool = False,
) -> StagedHandle:
    """Write rows that replace those with the same id and join where there is none.

    `addresses` are the row addresses of the replaced rows, from whoever knows them, or a call that gives
    them; None means the ids are looked up here. With `before_fork` only the rows are written: the deletion
    files follow in `rebase`, on the branch that does not exist yet. Raises InternalError when the source
    names one id twice.
    """
    ids, source = _keys_of(data)

    def replaced() -> Addresses:
        return _as_addresses(addresses() if callable(addresses) else addresses)

    def hide() -> tuple[Addresses, Hidden]:
        where = replaced()
        return where, hide_rows(pool, handle, where)

    def write() -> "list[FragmentMetadata]":
        fragments = _write_rows(pool, handle, source, mode="append")
        _require_unique(ids(), handle)
        return fragments

    beside = callable(addresses) or (addresses is not None and len(addresses) >= SIDE_BY_SIDE_ROWS_MIN)
    if beside and not before_fork:
        (where, hidden), fragments = side_by_side(hide, write)
        return _staged_merge(pool, handle, tuple(fragments), where, stamp, hidden=hidden)
    fragments = write()
    where = probe_addresses(pool, handle, KEY_COLUMN, ids()) if addresses is None else replaced()
    hidden = None if before_fork else hide_rows(pool, handle, where)
    return _staged_merge(pool, handle, tuple(fragments), where, stamp, hidden=hidden)


def stage_overwrite(
    pool: DatasetPool, handle: SnapshotHandle, data: Any, schema: "pa.Schema | None", stamp: Stamp
) -> StagedHandle:
    """Write the complete new content; None is no rows at all. `schema=None` keeps the table's own."""
    from lance import LanceOperation  # noqa: PLC0415

    dataset = lance_dataset(handle)
    new = None if schema is None or schema.equals(dataset.schema, check_metadata=True) else schema
    if data is None:
        fragments: list[FragmentMetadata] = []
    elif new is not None:
        fragments = _write_rows(pool, handle, data, mode="overwrite", schema=new)
    else:
        # As if appended, so that the fields keep their ids: fragments written for either purpose fit.
        fragments = _write_rows(pool, handle, data, mode="append")
    # The complete schema with its metadata: an overwrite from bare data would silently drop annotations.
    operation = LanceOperation.Overwrite(dataset.lance_schema if new is None else new, fragments)
    work = Work(operation, stamp, tuple(fragments), data_root=str(dataset.uri))
    return _staged(pool, handle, "stage_overwrite", work, removed=handle.row_count)


def stage_delete(
    pool: DatasetPool,
    handle: SnapshotHandle,
    stamp: Stamp,
    *,
    addresses: Any = None,
    predicate: FilterText | None = None,
    before_fork: bool = False,
) -> StagedHandle | None:
    """Write deletion files for the rows at `addresses` or matching `predicate`; None when no row matches."""
    if (addresses is None) == (predicate is None):
        raise InternalError("a delete names its rows by addresses or by a predicate, and by one of them only")
    where = _matching(pool, handle, predicate) if predicate is not None else _as_addresses(addresses)
    if len(where) == 0:
        return None
    operation = None if before_fork else _delete_operation(pool, handle, where)
    work = Work(operation, stamp, addresses=where, data_root=str(lance_dataset(handle).uri))
    return _staged(pool, handle, "stage_delete", work, removed=len(where))


def stage_fragments(
    pool: DatasetPool,
    handle: SnapshotHandle,
    fragments: Sequence[Fragment],
    mode: Literal["append", "overwrite", "merge"],
    stamp: Stamp,
    *,
    addresses: Any = None,
    before_fork: bool = False,
) -> StagedHandle:
    """Adopt fragments that tasks elsewhere wrote under the dataset of this handle."""
    from lance import LanceOperation  # noqa: PLC0415

    metadata = [_lance_fragment(each.metadata) for each in fragments]
    _require_known_fields(handle, metadata)
    match mode:
        case "append":
            staged = _staged_append(pool, handle, metadata, stamp, "stage_fragments")
        case "overwrite":
            dataset = lance_dataset(handle)
            operation = LanceOperation.Overwrite(dataset.lance_schema, metadata)
            work = Work(operation, stamp, tuple(metadata), data_root=str(dataset.uri))
            staged = _staged(pool, handle, "stage_fragments", work, removed=handle.row_count)
        case "merge":
            where = np.empty(0, np.uint64) if addresses is None else _as_addresses(addresses)
            hidden = None if before_fork else hide_rows(pool, handle, where)
            staged = _staged_merge(pool, handle, tuple(metadata), where, stamp, hidden=hidden)
    return replace(staged, sums=tuple(each for one in fragments for each in _sums_of(one)))


def _sums_of(fragment: Fragment) -> list[FileSum]:
    """The checksums that came with a fragment of one file, whose size is that of the fragment."""
    if len(fragment.files) != 1 or len(fragment.crcs) != 1:
        return []
    return [FileSum(fragment.files[0], fragment.bytes, fragment.crcs[0])]


def stage_rewrite(
    pool: DatasetPool, handle: SnapshotHandle, fragments: Sequence[int], stamp: Stamp
) -> StagedHandle:
    """Write the live rows of some fragments as one, in this order; no row changes, only where it lies.

    Indexes do not cover the new fragment. Not for tables with blobs: a scan gives only descriptions of them.
    """
    dataset = lance_dataset(handle)
    replaced = [lance_fragment(handle, number) for number in fragments]
    with substrate(lambda: circumstances(pool, handle)):
        rows = dataset.scanner(fragments=replaced, scan_in_order=True).to_reader()
    written = _write_rows(pool, handle, rows, mode="append")
    return staged_rewrite(pool, handle, [([fragment.metadata for fragment in replaced], written)], stamp)


def staged_rewrite(
    pool: DatasetPool,
    handle: SnapshotHandle,
    groups: "Sequence[tuple[list[FragmentMetadata], list[FragmentMetadata]]]",
    stamp: Stamp,
    *,
    adopted: StagedHandle | None = None,
) -> StagedHandle:
    """The commit that puts new fragments in the place of old ones, group by group, with the same rows.

    `adopted`: the same rewrite on an older version.
    """
    from lance import LanceOperation  # noqa: PLC0415

    new = tuple(fragment for _, written in groups for fragment in written)
    operation = LanceOperation.Rewrite([LanceOperation.RewriteGroup(*group) for group in groups], [])
    work = Work(operation, stamp, new, data_root=str(lance_dataset(handle).uri))
    before = sum(int(fragment.num_rows) for old, _ in groups for fragment in old)
    staged = _staged(pool, handle, "stage_rewrite", work, removed=before, adopted=adopted)
    if staged.rows != before:
        raise InternalError(f"{before} rows of '{handle.table_key}' were rewritten as {staged.rows}")
    return staged


def rebase(
    pool: DatasetPool, staged: StagedHandle, handle: SnapshotHandle, *, addresses: Any = None
) -> StagedHandle:
    """The same write against another base: a newer version, or the branch that was forked meanwhile.

    Data files stay where they are. Appends and overwrites may move to any base. A write that hides rows may
    move to a fork of its own base, where row addresses mean the same, or anywhere with new `addresses`.
    Indexes and rewritten fragments may move to a version with the fragments they were made of, which the
    caller has compared, and never to another branch, which does not look for their files here.
    """
    from lance import LanceOperation  # noqa: PLC0415

    work: Work = staged_work(staged)
    moved = tuple(_seen_from(fragment, work.data_root, handle) for fragment in work.new_fragments)
    if not isinstance(work.operation, LanceOperation.Overwrite):
        _require_known_fields(handle, moved)
    match staged.primitive, work.operation:
        case "stage_overwrite" | "stage_fragments", LanceOperation.Overwrite() as operation:
            fresh = LanceOperation.Overwrite(operation.new_schema, list(moved))
            return _staged(
                pool,
                handle,
                staged.primitive,
                replace(work, operation=fresh),
                removed=handle.row_count,
                adopted=staged,
            )
        case _, LanceOperation.Append():
            fresh = LanceOperation.Append(list(moved))
            return _staged(pool, handle, staged.primitive, replace(work, operation=fresh), adopted=staged)
        case "stage_rewrite", LanceOperation.Rewrite() if work.data_root == str(lance_dataset(handle).uri):
            return _staged(pool, handle, staged.primitive, work, removed=staged.rows_removed, adopted=staged)
        case "stage_indexes", LanceOperation.CreateIndex() as operation if work.data_root == str(
            lance_dataset(handle).uri
        ):
            built = [copy(index) for index in operation.new_indices]
            for index in built:
                index.dataset_version = handle.version
            fresh = LanceOperation.CreateIndex(built, operation.removed_indices)
            return replace(staged, base_version=handle.version, _work=replace(work, operation=fresh))
        case _:
            pass
    if work.addresses is None:
        raise InternalError(f"a {staged.primitive} cannot move to another base")
    if addresses is None and handle.version != staged.base_version:
        raise InternalError("row addresses of one version mean nothing in another")
    where = work.addresses if addresses is None else _as_addresses(addresses)
    if staged.primitive == "stage_delete":
        fresh = _delete_operation(pool, handle, where)
    else:
        fresh = _update_operation(handle, list(moved), hide_rows(pool, handle, where))
    kept = replace(work, operation=fresh, addresses=where)
    return _staged(pool, handle, staged.primitive, kept, removed=len(where), adopted=staged)


def _write_rows(
    pool: DatasetPool,
    handle: SnapshotHandle,
    data: Any,
    *,
    mode: Literal["append", "overwrite"],
    schema: "pa.Schema | None" = None,
) -> "list[FragmentMetadata]":
    from lance.fragment import write_fragments  # noqa: PLC0415

    dataset = lance_dataset(handle)
    if listening():
        emit(StorageCall("write_fragments", str(dataset.uri)))
        emit(DurableOperation("stage_rows", str(dataset.uri), "before"))
    source = _Source(data)

    def about() -> "Circumstances":
        # Asked for after a failure only: the size of a table cannot be told without letting other threads in.
        return circumstances(pool, handle, writes=True, bytes_written=int(getattr(data, "nbytes", 0)))

    with source, substrate(about):
        fragments = write_fragments(
            source.rows,
            dataset,
            schema=schema or handle.schema,
            mode=mode,
            max_rows_per_file=ROWS_PER_FILE_MAX,
            storage_options=pool.storage_options,
            session=pool.session,
        )
    if listening():
        emit(DurableOperation("stage_rows", str(dataset.uri), "after"))
    return fragments


class _Source:
    """Rows to write; when reading them fails, that failure surfaces, not the one Lance makes of it."""

    def __init__(self, data: Any) -> None:
        import pyarrow as pa  # noqa: PLC0415

        self._failure: BaseException | None = None
        if isinstance(data, (pa.Table, pa.RecordBatch)):
            self.rows: Any = data
        else:
            self.rows = pa.RecordBatchReader.from_batches(data.schema, self._watched(data))

    def _watched(self, data: Iterable[Any]) -> Iterable[Any]:
        try:
            yield from data
        except BaseException as failure:
            self._failure = failure
            raise

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._failure is not None and not isinstance(self._failure, GeneratorExit):
            raise self._failure from None


def _staged_append(
    pool: DatasetPool,
    handle: SnapshotHandle,
    fragments: "list[FragmentMetadata]",
    stamp: Stamp,
    primitive: str,
) -> StagedHandle:
    from lance import LanceOperation  # noqa: PLC0415

    work = Work(
        LanceOperation.Append(fragments), stamp, tuple(fragments), data_root=str(lance_dataset(handle).uri)
    )
    return _staged(pool, handle, primitive, work)


def _staged_merge(
    pool: DatasetPool,
    handle: SnapshotHandle,
    fragments: "tuple[FragmentMetadata, ...]",
    where: Addresses,
    stamp: Stamp,
    *,
    hidden: "Hidden | None",
) -> StagedHandle:
    """`hidden`: None while the deletion files cannot be written yet."""
    operation = None if hidden is None else _update_operation(handle, list(fragments), hidden)
    work = Work(operation, stamp, fragments, where, str(lance_dataset(handle).uri))
    return _staged(pool, handle, "stage_merge_insert", work, removed=len(where))


def _staged(
    pool: DatasetPool,
    handle: SnapshotHandle,
    primitive: str,
    work: Work,
    *,
    removed: int = 0,
    adopted: StagedHandle | None = None,
) -> StagedHandle:
    rows = sum(int(fragment.num_rows) for fragment in work.new_fragments)
    size = sum(file.file_size_bytes or 0 for fragment in work.new_fragments for file in fragment.files)
    staged = StagedHandle(
        table_key=handle.table_key,
        primitive=primitive,
        base_version=handle.version,
        transaction_uuid=_transaction_uuid(work.stamp) if adopted is None else adopted.transaction_uuid,
        rows=rows,
        rows_removed=removed,
        bytes=size,
        files=_new_files(pool, handle, work) if pool.root.is_local else (),
        _work=work,
        sums=() if adopted is None else adopted.sums,
    )
    require_whole(staged.files, written_sizes(work.new_fragments, work.data_root))
    if listening() and adopted is None:
        emit(TableStaged(handle.table_key, primitive, rows, size))
    return staged


def _transaction_uuid(stamp: Stamp) -> str:
    return stamp.transaction_uuid or str(uuid.uuid4())


def _new_files(pool: DatasetPool, handle: SnapshotHandle, work: Work) -> tuple[str, ...]:
    own_root = pool.root.dataset_uri(handle.location, handle.branch)
    files = [
        f"{work.data_root}/data/{file_name(file)}"
        for fragment in work.new_fragments
        for file in fragment.files
    ]
    changed = (*work.new_fragments, *getattr(work.operation, "updated_fragments", ()))
    hiding = [each for each in changed if each.deletion_file is not None]
    bases = base_roots(lance_dataset(handle)) if hiding else {}
    for fragment in hiding:
        _, deletions = fragment_files(fragment, own_root, bases)
        if deletions is not None:
            files.append(deletions)
    return tuple(files)


def _update_operation(
    handle: SnapshotHandle, fragments: "list[FragmentMetadata]", hidden: "Hidden"
) -> "LanceOperation.Update":
    from lance import LanceOperation  # noqa: PLC0415

    updated, removed = hidden
    return LanceOperation.Update(
        removed_fragment_ids=removed,
        updated_fragments=updated,
        new_fragments=fragments,
        update_mode="rewrite_rows",
        fields_for_preserving_frag_bitmap=field_ids(lance_dataset(handle)),
    )


def _delete_operation(pool: DatasetPool, handle: SnapshotHandle, where: Addresses) -> "LanceOperation.Delete":
    from lance import LanceOperation  # noqa: PLC0415

    updated, removed = hide_rows(pool, handle, where)
    return LanceOperation.Delete(updated, removed, "by row address")


def hide_rows(pool: DatasetPool, handle: SnapshotHandle, where: Addresses) -> "Hidden":
    """Write one deletion file per touched fragment; fragments with new deletions, ids of those emptied."""
    updated: list[FragmentMetadata] = []
    removed: list[int] = []
    if len(where) == 0:
        return updated, removed
    dataset = lance_dataset(handle)
    if listening():
        emit(DurableOperation("stage_deletions", str(dataset.uri), "before"))

    def hide(part: tuple[int, npt.NDArray[np.uint32], slice]) -> "tuple[int, FragmentMetadata | None]":
        number, offsets, _ = part
        fragment = dataset.get_fragment(number)
        if fragment is None:
            raise InternalError(f"row addresses name fragment {number}, which version {handle.version} lacks")
        return number, fragment.delete_rows(offsets.tolist())

    with substrate(lambda: circumstances(pool, handle, writes=True)):
        for number, metadata in each_of(hide, list(by_fragment(np.sort(where)))):
            if metadata is None:
                removed.append(number)
            else:
                updated.append(metadata)
    if listening():
        emit(DurableOperation("stage_deletions", str(dataset.uri), "after"))
    return updated, removed


Hidden: TypeAlias = "tuple[list[FragmentMetadata], list[int]]"
"""Metadata of the fragments that have more deleted rows now, and the ids of those without any row left."""


def _matching(pool: DatasetPool, handle: SnapshotHandle, predicate: FilterText) -> Addresses:
    dataset = lance_dataset(handle)
    if listening():
        emit(StorageCall("scan", str(dataset.uri)))
    with substrate(lambda: circumstances(pool, handle)):
        found = dataset.to_table(columns=[], filter=predicate, with_row_address=True)
    return _as_addresses(found[ADDRESS])


def _as_addresses(values: Any) -> Addresses:
    if hasattr(values, "combine_chunks"):
        values = values.combine_chunks()
    array = values.to_numpy(zero_copy_only=False) if hasattr(values, "to_numpy") else np.asarray(values)
    return distinct(array.astype(np.uint64, copy=False))


def _keys_of(data: Any) -> tuple[Callable[[], Any], Any]:
    """The id column of the source, known once the source is drained, and the source to drain."""
    import pyarrow as pa  # noqa: PLC0415

    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return lambda: data.column(KEY_COLUMN), data
    seen: list[Any] = []

    def batches() -> Iterable[Any]:
        for batch in data:
            seen.append(batch.column(KEY_COLUMN))
            yield batch

    return lambda: pa.chunked_array(
        seen, data.schema.field(KEY_COLUMN).type
    ), pa.RecordBatchReader.from_batches(data.schema, batches())


def _require_unique(keys: Any, handle: SnapshotHandle) -> None:
    if len(keys) < 2:
        return
    given = keys.drop_null()
    # Making the distinct keys takes half the time of counting them.
    if len(given.unique()) != len(given):
        raise InternalError(f"the rows staged for '{handle.table_key}' name one id twice")


def _require_known_fields(handle: SnapshotHandle, fragments: "Sequence[FragmentMetadata]") -> None:
    """Refuse fragments written for another schema: Lance would read their columns under wrong names."""
    known = set(field_ids(lance_dataset(handle)))
    for fragment in fragments:
        for file in fragment.files:
            if not known.issuperset(number for number in file.fields if number >= 0):
                raise InternalError(f"fragments for '{handle.table_key}' were written for another schema")


def _lance_fragment(described: str) -> "FragmentMetadata":
    from lance.fragment import FragmentMetadata  # noqa: PLC0415

    return FragmentMetadata.from_json(described)


def _seen_from(fragment: "FragmentMetadata", data_root: str, handle: SnapshotHandle) -> "FragmentMetadata":
    """The fragment as the handle's branch has to name it: files elsewhere get the number of their base."""
    dataset = lance_dataset(handle)
    own = str(dataset.uri)
    if own == data_root:
        base_id = None
    else:
        known = {path: number for number, path in base_roots(dataset).items()}
        base_id = known.get(data_root)
        if base_id is None:
            raise InternalError(f"files staged under {data_root} cannot be reached from {own}")
    described = fragment.to_json()
    for file in described["files"]:
        file["base_id"] = base_id
    return _lance_fragment(json.dumps(described))
