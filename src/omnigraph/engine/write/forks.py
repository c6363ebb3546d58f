"""A branch's own references on tables: made at the first write; a leftover in the way is reclaimed."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from omnigraph.core.errors import (
    ConflictError,
    ExpectedVersionMismatch,
    InternalError,
    StoragePrecondition,
)
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.manifest.forks import ForkStatus, classify_fork

if TYPE_CHECKING:
    from omnigraph.core.ids import Branch, BranchName
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import TableEntry
    from omnigraph.storage.handles import SnapshotHandle


def fork_table(session: GraphSession, entry: TableEntry, branch: Branch) -> SnapshotHandle:
    """Give `branch` its own reference on a table, at exactly the version `entry` names.

    A leftover of that name is reclaimed. Raises `ExpectedVersionMismatch` when another writer was first and
    `ConflictError` when a leftover cannot be judged or removed; then nothing has changed.
    """
    if branch is None:
        raise InternalError("main inherits from nobody")
    shown = session.manifest.current(branch).entries.get(entry.table_key)
    if shown is not None and shown.branch == branch:
        raise _lost(session, entry, branch)
    try:
        return _create(session, entry, branch)
    except StoragePrecondition:
        return reclaim_orphaned_fork_and_refork(session, entry, branch)


def reclaim_orphaned_fork_and_refork(
    session: GraphSession, entry: TableEntry, branch: BranchName
) -> SnapshotHandle:
    """Remove a reference nobody reads and fork again, once."""
    failpoint(Window.FORK_BEFORE_CLASSIFY)
    status = classify_fork(session.manifest, entry.table_key, branch)
    match status:
        case ForkStatus.LEGITIMATE:
            raise _lost(session, entry, branch)
        case ForkStatus.INDETERMINATE:
            raise ConflictError(
                f"'{entry.table_key}' has a reference of branch '{branch}'; whether it is used could not "
                "be verified; it was left alone",
                hint="refresh and try again",
            )
        case ForkStatus.ORPHAN:
            _reclaim(session, entry, branch)
        case _:
            assert_never(status)
    try:
        return _create(session, entry, branch)
    except StoragePrecondition as error:
        raise _lost(session, entry, branch) from error


def _create(session: GraphSession, entry: TableEntry, branch: BranchName) -> SnapshotHandle:
    return session.storage.create_branch(entry.table_key, entry.location, branch, entry.branch, entry.version)


def _reclaim(session: GraphSession, entry: TableEntry, branch: BranchName) -> None:
    failpoint(Window.FORK_BEFORE_RECLAIM)
    try:
        session.storage.delete_branch(entry.location, branch)
    except StoragePrecondition as error:
        raise ConflictError(
            f"a leftover of an earlier branch '{branch}' on '{entry.table_key}' cannot be removed, because "
            f"child branches grew out of it: {error.message}",
            hint="use another branch name; or delete those branches, if they exist, and send the write again",
        ) from error


def _lost(session: GraphSession, entry: TableEntry, branch: Branch) -> ExpectedVersionMismatch:
    actual = session.manifest.current(branch).pin(entry.table_key)
    return ExpectedVersionMismatch(table_key=entry.table_key, expected=entry.version, actual=actual)
