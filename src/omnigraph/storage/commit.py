"""Moving the HEAD of one table by exactly one version, or saying precisely why not."""

import uuid
from typing import TYPE_CHECKING, Final

from omnigraph.core.errors import OmnigraphError, StorageNotFound
from omnigraph.core.events import DurableOperation, StorageCall, TableCommitted, emit, listening
from omnigraph.core.ids import Branch
from omnigraph.storage.checksums import FileSum
from omnigraph.storage.datasets import DatasetPool, read_transaction
from omnigraph.storage.failures import (
    CommitConflict,
    CommitUncertain,
    ForeignCommit,
    is_commit_conflict,
    substrate,
)
from omnigraph.storage.handles import (
    RECOVERY_OF,
    RESTORE_TO,
    TABLE_KEY,
    SnapshotHandle,
    TransactionInfo,
    lance_dataset,
)
from omnigraph.storage.manifest_files import manifest_object
from omnigraph.storage.version_files import circumstances

if TYPE_CHECKING:
    from lance import LanceDataset, LanceOperation
    from lance.dataset import Transaction


UNREADABLE: Final = "Unreadable"


def commit_exactly(
    pool: DatasetPool,
    base: SnapshotHandle,
    operation: "LanceOperation.BaseOperation",
    *,
    transaction_uuid: str,
    properties: dict[str, str],
    operation_id: str,
    files: tuple[str, ...],
    sums: tuple[FileSum, ...] = (),
) -> SnapshotHandle:
    """Commit a Lance operation on top of `base`, which must be the HEAD.

    Zero retries are not enough to be exact: Lance still carries a compatible commit over versions it did not
    know. So the version reached is compared, and any other than the next one raises ForeignCommit.
    """
    from lance.dataset import Transaction  # noqa: PLC0415  a heavy package

    transaction = Transaction(base.version, operation, transaction_uuid, properties)
    dataset = _commit(pool, base, transaction, operation_id)
    version = int(dataset.version)
    if version != base.version + 1:
        pool.evict(base.location, base.branch)
        raise ForeignCommit(
            table_key=base.table_key, expected=base.version + 1, actual=version, operation_id=operation_id
        )
    pool.remember(base.location, base.branch, dataset)
    if listening():
        emit(TableCommitted(base.table_key, version))
    made = (*base.new_files, *files, *manifest_files(pool, base.location, base.branch, version))
    return SnapshotHandle(
        base.table_key, base.location, base.branch, version, dataset, made, sums=(*base.sums, *sums)
    )


def manifest_files(pool: DatasetPool, location: str, branch: Branch, version: int) -> tuple[str, ...]:
    """The local file that makes a version exist; nothing on an object store."""
    if not pool.root.is_local:
        return ()
    return (pool.root.local_path(manifest_object(location, branch, version)),)


def transaction_of(pool: DatasetPool, location: str, branch: Branch, version: int) -> TransactionInfo | None:
    """What the commit that made a version says about itself; None when the version does not exist.

    The operation is `UNREADABLE` where the library cannot tell it.
    """
    try:
        dataset = pool.at_version(location, branch, version)
    except StorageNotFound:
        return None
    if listening():
        emit(StorageCall("read_transaction", pool.root.dataset_uri(location, branch)))
    with substrate(lambda: pool.circumstances(location, branch)):
        try:
            transaction = read_transaction(dataset, version)
        except TypeError:  # a rewrite that carried indexes over: pylance 14 fails to make its value
            return TransactionInfo("", {}, UNREADABLE)
    if transaction is None:
        return None
    properties = dict(transaction.transaction_properties or {})
    return TransactionInfo(str(transaction.uuid), properties, type(transaction.operation).__name__)


def _commit(
    pool: DatasetPool, base: SnapshotHandle, transaction: "Transaction", operation_id: str
) -> "LanceDataset":
    from lance import LanceDataset  # noqa: PLC0415  a heavy package

    uri = pool.root.dataset_uri(base.location, base.branch)
    if listening():
        emit(StorageCall("commit", uri))
        emit(DurableOperation("commit_table", uri, "before"))
    try:
        with substrate(lambda: circumstances(pool, base, writes=True)):
            made = LanceDataset.commit(
                lance_dataset(base), transaction, max_retries=0, storage_options=pool.storage_options
            )
            # A restore takes over the bases of the old manifest as they were written.
            dataset = pool.at_home(base.location, base.branch, made)
    except OmnigraphError:
        if not _landed(pool, base, transaction.uuid, operation_id):
            raise
        dataset = pool.at_version(base.location, base.branch, base.version + 1)
    except OSError as error:
        if not is_commit_conflict(error):
            raise
        if not _landed(pool, base, transaction.uuid, operation_id):
            raise CommitConflict(
                table_key=base.table_key,
                base_version=base.version,
                retryable=bool(getattr(error, "retryable", False)),
            ) from error
        dataset = pool.at_version(base.location, base.branch, base.version + 1)
    if listening():
        emit(DurableOperation("commit_table", uri, "after"))
    return dataset


def _landed(pool: DatasetPool, base: SnapshotHandle, transaction_uuid: str, operation_id: str) -> bool:
    """Whether the next version is this very commit, although its acknowledgement was lost.

    The store's client repeats a request it got no answer to; the repeated one then meets its own object and
    looks like a conflict. Only the version itself knows. Raises CommitUncertain when it cannot be asked.
    """
    try:
        found = transaction_of(pool, base.location, base.branch, base.version + 1)
    except OmnigraphError as error:
        raise CommitUncertain(
            table_key=base.table_key, cause=error.message, operation_id=operation_id
        ) from error
    return found is not None and found.uuid == transaction_uuid


def commit_beside(
    pool: DatasetPool,
    handle: SnapshotHandle,
    operation: "LanceOperation.BaseOperation",
    transaction_uuid: str,
) -> "LanceDataset":
    """The version that the operation would make, under a number of its own: the HEAD stays where it is."""
    from lance import LanceDataset  # noqa: PLC0415  a heavy package
    from lance.dataset import Transaction  # noqa: PLC0415

    with substrate(lambda: circumstances(pool, handle, writes=True)):
        return LanceDataset.commit(
            lance_dataset(handle),
            Transaction(handle.version, operation, uuid=transaction_uuid),
            detached=True,
            storage_options=pool.storage_options,
        )


def restore(pool: DatasetPool, head: SnapshotHandle, to_version: int, operation_id: str) -> SnapshotHandle:
    """Append one version whose content is that of `to_version`, in the name of the write that is undone."""
    from lance import LanceOperation  # noqa: PLC0415

    return commit_exactly(
        pool,
        head,
        LanceOperation.Restore(to_version),
        transaction_uuid=str(uuid.uuid4()),
        properties={RECOVERY_OF: operation_id, RESTORE_TO: str(to_version), TABLE_KEY: head.table_key},
        operation_id=operation_id,
        files=(),
    )
