"""Compaction as a staged write: many fragments become few, deleted rows leave the files, no row changes.

What is written here moves no HEAD. Where nothing is deleted, Lance copies the pages of the old files as they
are; else it reads and writes rows again, in batches that are bounded by bytes.
"""

import contextlib
import itertools
import json
import uuid
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from omnigraph.core.errors import InternalError
from omnigraph.core.events import StorageCall, emit
from omnigraph.core.formats import DATA_STORAGE_VERSION
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import COMPACTED_ROWS_MAX
from omnigraph.storage.commit import commit_beside
from omnigraph.storage.datasets import DatasetPool
from omnigraph.storage.failures import substrate
from omnigraph.storage.handles import (
    SnapshotHandle,
    StagedHandle,
    Stamp,
    lance_fragment,
    staged_work,
)
from omnigraph.storage.layout import branch_directory
from omnigraph.storage.manifest_files import manifest_name
from omnigraph.storage.staging import staged_rewrite
from omnigraph.storage.version_files import circumstances, transaction_name

if TYPE_CHECKING:
    from lance import LanceOperation

BATCHES_HELD: Final = 32
"""Batches that may be in memory at once: those read ahead, decoded, and gathered for a page."""
BATCH_ROWS_MAX: Final = 8_192
COPY_BYTES_MAX: Final = 16 * 1024 * 1024
NUMBERS_LEFT: Final = 4096
"""Numbers left free below those of compacted fragments, for what others add before these are committed."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A group of fragments that was written as one, as Lance describes both. It can be pickled."""

    before: tuple[str, ...]
    after: tuple[str, ...]


def compact(pool: DatasetPool, handle: SnapshotHandle, group: Sequence[int], *, bytes_max: int) -> Compacted:
    """Write a group of fragments, which are neighbours, as one; their deleted rows stay behind.

    Nobody points at what is written, so it may be done anywhere, and twice. Tables with blobs are compacted
    like others. The rows in memory have about `bytes_max` bytes.
    """
    from lance.optimize import CompactionTask  # noqa: PLC0415  a heavy package

    # A dataset of its own: a task borrows it, and readers of a shared one would wait.
    dataset = pool.private(handle.location, handle.branch, handle.version)
    emit(StorageCall("compact", str(dataset.uri)))
    with substrate(lambda: circumstances(pool, handle, writes=True)):
        made = CompactionTask.from_json(_task(handle, group, bytes_max)).execute(dataset)
        return Compacted(_texts(made.original_fragments), _texts(made.new_fragments))


def stage_compaction(
    pool: DatasetPool, handle: SnapshotHandle, groups: Sequence[Compacted], stamp: Stamp
) -> StagedHandle:
    """The commit that shows what was compacted. Indexes do not cover the new fragments.

    These get their numbers here and not from the commit, so that indexes know them ahead, also when others
    add fragments before it.
    """
    from lance.fragment import FragmentMetadata  # noqa: PLC0415

    free = itertools.count(next_number(pool, handle) + NUMBERS_LEFT)

    def described(texts: Sequence[str], *, anew: bool = False) -> list[Any]:
        members = [json.loads(text) for text in texts]
        if anew:
            members = [{**each, "id": next(free)} for each in members]
        return [FragmentMetadata.from_json(json.dumps(each)) for each in members]

    written = [(described(each.before), described(each.after, anew=True)) for each in groups]
    return staged_rewrite(pool, handle, written, stamp)


def next_number(pool: DatasetPool, handle: SnapshotHandle) -> int:
    """The number that the next fragment of a version gets; no earlier one, gone or not, has it.

    Nothing but a commit tells. This one lies beside the versions of the table and has no file.
    """
    from lance import LanceOperation  # noqa: PLC0415
    from lance.fragment import FragmentMetadata  # noqa: PLC0415

    nothing = FragmentMetadata.from_json(json.dumps({"id": 0, "files": [], "physical_rows": 1}))
    with beside(pool, handle, LanceOperation.Append([nothing])) as ahead:
        return max(ahead.fragment_ids)


def _texts(fragments: Sequence[Any]) -> tuple[str, ...]:
    return tuple(json.dumps(each.to_json()) for each in fragments)


def _task(handle: SnapshotHandle, group: Sequence[int], bytes_max: int) -> str:
    """One task of Lance's compaction, in its own words.

    Its planner would keep apart what indexes cover and what they do not, because it carries indexes over.
    Ours are built anew for what was rewritten, so that a second run finds nothing to do.
    """
    fragments = [lance_fragment(handle, number).metadata for number in group]
    stored = sum(file.file_size_bytes or 0 for each in fragments for file in each.files)
    row_bytes = max(1, stored // max(1, sum(each.physical_rows for each in fragments)))
    held = max(1, bytes_max // BATCHES_HELD)
    options: dict[str, Any] = {
        "target_rows_per_fragment": COMPACTED_ROWS_MAX,
        "max_rows_per_group": 1024,
        "materialize_deletions": True,
        "materialize_deletions_threshold": 0.0,
        "batch_size": max(1, min(BATCH_ROWS_MAX, held // row_bytes)),
        "defer_index_remap": False,
        "index_remap_mode": "Direct",
        "compaction_mode": "TryBinaryCopy",
        "enable_binary_copy": False,
        "enable_binary_copy_force": False,
        "binary_copy_read_batch_bytes": min(COPY_BYTES_MAX, held),
        "excluded_fragment_ids": [],
        "max_overlays_per_fragment": 10,
        "data_storage_version": DATA_STORAGE_VERSION,
    }
    return json.dumps(
        {
            "task": {"fragments": [each.to_json() for each in fragments]},
            "read_version": handle.version,
            "options": options,
        }
    )


def previewed(
    pool: DatasetPool, handle: SnapshotHandle, staged: StagedHandle
) -> AbstractContextManager[SnapshotHandle]:
    """The version that a staged write would make, for whoever builds indexes on it before it is committed."""
    work = staged_work(staged)
    if work.operation is None or staged.base_version != handle.version:
        raise InternalError(f"a {staged.primitive} on {staged.base_version} is not of {handle.version}")
    return beside(pool, handle, work.operation)


@contextlib.contextmanager
def beside(
    pool: DatasetPool, handle: SnapshotHandle, operation: "LanceOperation.BaseOperation"
) -> Generator[SnapshotHandle]:
    """The version that an operation would make.

    It lies beside the versions of the table under a name that no reader looks for, and is removed at the end,
    with the transaction that Lance keeps of it.
    """
    transaction = str(uuid.uuid4())
    dataset = commit_beside(pool, handle, operation, transaction)
    version = int(dataset.version)
    try:
        yield SnapshotHandle(handle.table_key, handle.location, handle.branch, version, dataset)
    finally:
        within = branch_directory(handle.location, handle.branch)
        pool.adapter.delete(f"{within}/_versions/{manifest_name(version)}")
        pool.adapter.delete(f"{within}/{transaction_name(handle.version, transaction)}")
