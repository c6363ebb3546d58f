"""Writes that Lance can only do together with their commit: each moves the HEAD of its table by itself.

Kept apart from `TableStorage` so that nobody reaches for one by accident. The engine's writers use the staged
forms; maintenance, which covers itself with a sidecar first, uses what has no staged form.
"""

from typing import TYPE_CHECKING, Any

from omnigraph.core.events import DurableOperation, StorageCall, TableCommitted, emit
from omnigraph.planning.filters import FilterText
from omnigraph.storage.commit import manifest_files
from omnigraph.storage.datasets import DatasetPool
from omnigraph.storage.failures import substrate
from omnigraph.storage.handles import SnapshotHandle
from omnigraph.storage.indexes import IndexKind, IndexPlan, default_options
from omnigraph.storage.version_files import circumstances

if TYPE_CHECKING:
    from collections.abc import Callable

    from lance import LanceDataset


class InlineCommitResidual:
    """The inline-committing writes. Every call moves the HEAD, or raises and leaves it."""

    def __init__(self, pool: DatasetPool) -> None:
        self._pool = pool

    def delete_where(self, handle: SnapshotHandle, predicate: FilterText) -> SnapshotHandle:
        """Delete the matching rows. HEAD moves by one."""
        return self._moved(handle, "delete_where", lambda dataset: dataset.delete(predicate))

    def create_vector_index(self, handle: SnapshotHandle, column: str, **options: Any) -> SnapshotHandle:
        """Build a vector index over all rows. HEAD moves by one."""
        plan = IndexPlan(IndexKind.VECTOR, column, options)

        def build(dataset: "LanceDataset") -> None:
            dataset.create_index(
                column, plan.kind.value, name=plan.name, replace=True, **default_options(dataset, plan)
            )

        return self._moved(handle, "create_vector_index", build)

    def optimize_indices(self, handle: SnapshotHandle, **options: Any) -> SnapshotHandle:
        """Fold new rows into the existing indexes. HEAD moves by one, or not when nothing is to be done."""
        return self._moved(
            handle, "optimize_indices", lambda dataset: dataset.optimize.optimize_indices(**options)
        )

    def _moved(
        self, handle: SnapshotHandle, kind: str, write: "Callable[[LanceDataset], object]"
    ) -> SnapshotHandle:
        pool = self._pool
        uri = pool.root.dataset_uri(handle.location, handle.branch)
        emit(StorageCall(kind, uri))
        emit(DurableOperation(kind, uri, "before"))
        with substrate(lambda: circumstances(pool, handle, writes=True)):
            # Lance moves the dataset object itself; the handle's own must keep showing its version.
            dataset = pool.private(handle.location, handle.branch, handle.version)
            write(dataset)
        emit(DurableOperation(kind, uri, "after"))
        pool.evict(handle.location, handle.branch)
        version = int(dataset.version)
        pool.remember(handle.location, handle.branch, dataset)
        emit(TableCommitted(handle.table_key, version))
        files = manifest_files(pool, handle.location, handle.branch, version)
        return SnapshotHandle(handle.table_key, handle.location, handle.branch, version, dataset, files)
