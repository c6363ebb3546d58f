"""The branches and the commits of a graph. Part of `Graph`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.api.bulk import SPARK_WHEN_LARGE
from omnigraph.core.errors import BadRequest, CommitNotFound
from omnigraph.core.ids import CommitId, normalize_branch, show_branch
from omnigraph.engine.cancel import NEVER
from omnigraph.manifest.branches import BranchStore
from omnigraph.manifest.names import INTERNAL_NAMES

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from omnigraph.branching.branches import BranchDeletion
    from omnigraph.branching.merge_plan import Resolution
    from omnigraph.branching.report import ConflictList, MergePreview, MergeReport
    from omnigraph.core.ids import Branch
    from omnigraph.engine.cancel import Cancellation
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.record import CommitRecord
    from omnigraph.manifest.state import Snapshot


def writable_branch(name: str) -> Branch:
    """The branch a write names. Internal names are refused before any I/O."""
    branch = normalize_branch(name)
    if branch in INTERNAL_NAMES:
        raise BadRequest(f"'{name}' is an internal branch and cannot be written")
    return branch


class Commits:
    """The history of a graph."""

    def __init__(self, session: GraphSession) -> None:
        self._session = session

    def list(
        self,
        *,
        branch: str = "main",
        actor: str | None = None,
        limit: int | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        before: str | None = None,
    ) -> list[CommitRecord]:
        """Commits of a branch, newest first.

        ```python
        [commit.id for commit in graph.commits.list(actor="omnigraph:recovery")]
        ```

        `actor` keeps those of one actor, `since_us` and `until_us` (both inclusive, microseconds since the
        epoch) those of a time, `before` those older than a commit of the branch.
        """
        self._session.check_open()
        listing = self._session.commits.list
        if since_us is None and until_us is None and before is None:
            return listing(normalize_branch(branch), actor=actor, limit=limit)
        found = listing(normalize_branch(branch))
        if before is not None:
            ids = [commit.id for commit in found]
            if before not in ids:
                raise CommitNotFound(before)
            found = found[ids.index(CommitId(before)) + 1 :]
        kept = [
            commit
            for commit in found
            if (actor is None or commit.actor == actor)
            and (since_us is None or commit.time_us >= since_us)
            and (until_us is None or commit.time_us <= until_us)
        ]
        return kept[:limit]

    def show(self, commit_id: str) -> CommitRecord:
        """One commit. Raises `CommitNotFound`."""
        self._session.check_open()
        return self._session.commits.show(CommitId(commit_id))

    def head(self, *, branch: str = "main") -> CommitRecord:
        """The newest commit of a branch."""
        self._session.check_open()
        return self._session.manifest.current(normalize_branch(branch)).commit


class Branches:
    """The branches of a graph."""

    def __init__(self, session: GraphSession) -> None:
        self._session = session

    def create(self, name: str, *, from_branch: str = "main") -> Snapshot:
        """Make a branch that shows what `from_branch` shows now. Tables fork at their first write.

        ```python
        graph.branches.create("review")
        ```

        Raises `BranchExists`, `BranchPrefixClash`, `BranchNotFound`.
        """
        session = self._session
        session.begin_write()
        with session.lease.hold():
            return BranchStore(session.manifest).create(name, normalize_branch(from_branch))

    def delete(self, name: str) -> BranchDeletion:
        """Delete a branch. Raises `BranchNotFound`, `BranchHasChildren`, `BadRequest` for main."""
        from omnigraph.branching.branches import delete_branch  # noqa: PLC0415  most processes never do

        self._session.begin_write()
        return delete_branch(self._session, name)

    def merge(
        self,
        source: str,
        *,
        into: str = "main",
        actor: str | None = None,
        on_conflict: str | Mapping[str, str] | None = None,
        resolve: str | os.PathLike[str] | None = None,
        cancel: Cancellation | None = None,
    ) -> MergeReport:
        """Merge the head of `source` into another branch as one commit with two parents, or change nothing.

        ```python
        graph.branches.merge("review", into="main", actor="ines", on_conflict={"Person": "theirs"})
        ```

        `on_conflict` is `ours` (the target wins) or `theirs`, for everything or per type; `resolve` is a
        conflict list written by `preview` and edited. Raises `MergeConflicts`.
        """
        from omnigraph.branching.merge import branch_merge  # noqa: PLC0415  most processes never merge

        self._session.begin_write()
        return branch_merge(
            self._session,
            source=normalize_branch(source),
            target=writable_branch(into),
            actor=actor,
            resolution=_resolution(on_conflict, resolve),
            cancel=NEVER if cancel is None else cancel,
            bulk=SPARK_WHEN_LARGE,
        )

    def preview(
        self,
        source: str,
        *,
        into: str = "main",
        on_conflict: str | Mapping[str, str] | None = None,
        resolve: str | os.PathLike[str] | None = None,
    ) -> MergePreview:
        """What `merge` would do now, and every conflict; nothing is written.

        ```python
        preview = graph.branches.preview("review")
        preview.outcome, preview.stats, preview.conflicts_total
        ```
        """
        from omnigraph.branching.merge import preview_merge  # noqa: PLC0415

        self._session.begin_read()
        return preview_merge(
            self._session,
            source=normalize_branch(source),
            target=normalize_branch(into),
            resolution=_resolution(on_conflict, resolve),
            bulk=SPARK_WHEN_LARGE,
        )

    def list(self) -> list[str]:
        """All branches, main first, then by name."""
        self._session.check_open()
        return [show_branch(None), *self._session.manifest.branches()]


def _resolution(
    on_conflict: str | Mapping[str, str] | None, resolve: str | os.PathLike[str] | None
) -> Resolution | ConflictList:
    from omnigraph.branching.report import chosen_sides, read_conflicts  # noqa: PLC0415

    if on_conflict is not None and resolve is not None:
        raise BadRequest("give either a side per type or an edited conflict list, not both")
    return chosen_sides(on_conflict) if resolve is None else read_conflicts(resolve)
