"""The branches and the commits of a graph. Part of `Graph`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack

from omnigraph.api.arguments import text_checked_methods
from omnigraph.api.bulk import SPARK_WHEN_LARGE
from omnigraph.core.bounds import current_bounds
from omnigraph.core.errors import BadRequest, BranchNotFound, CommitNotFound
from omnigraph.core.ids import CommitId, normalize_branch, show_branch
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.permission import Action, Question
from omnigraph.engine.write.entering import entering_write
from omnigraph.manifest.branches import BranchStore
from omnigraph.manifest.commit_record import commit_dict
from omnigraph.manifest.names import INTERNAL_NAMES

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from omnigraph.branching.branches import BranchDeletion
    from omnigraph.branching.listing import BranchDetail
    from omnigraph.branching.merge_report import ConflictList, MergePreview, MergeReport
    from omnigraph.branching.settling import Resolution
    from omnigraph.core.bounds import CallLimits
    from omnigraph.core.ids import Branch
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.commit_record import CommitRecord


def writable_branch(name: str) -> Branch:
    """The branch a write names. Internal names are refused before any I/O."""
    branch = normalize_branch(name)
    if branch in INTERNAL_NAMES:
        raise BadRequest(f"'{name}' is an internal branch and cannot be written")
    return branch


@text_checked_methods
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
        merged: bool = False,
        upkeep: bool = True,
        **_limits: Unpack[CallLimits],
    ) -> list[CommitRecord]:
        """Commits of a branch, newest first.

        ```python
        [commit.id for commit in graph.commits.list(actor="omnigraph:recovery")]
        ```

        `actor` keeps those of one actor, `since_us` and `until_us` (both inclusive, microseconds since the
        epoch) those of a time, `before` those older than a commit of the branch. `merged` adds the commits of
        branches that were merged into it; every commit then comes before its parents. `upkeep=False` leaves
        out commits that changed no row, such as those of index builds.
        """
        self._session.check_open()
        return self._session.commits.list(
            normalize_branch(branch),
            actor=actor,
            limit=limit,
            since_us=since_us,
            until_us=until_us,
            before=None if before is None else CommitId(before),
            merged=merged,
            upkeep=upkeep,
        )

    def show(self, reference: str, **_limits: Unpack[CallLimits]) -> CommitRecord:
        """One commit: that of an id, a tag, or the head of a branch. Raises `CommitNotFound`."""
        from omnigraph.branching.references import resolve_commit  # noqa: PLC0415  a writer never needs it

        self._session.check_open()
        return resolve_commit(self._session, reference)

    def head(self, *, branch: str = "main", **_limits: Unpack[CallLimits]) -> CommitRecord:
        """The newest commit of a branch."""
        self._session.check_open()
        return self._session.manifest.current(normalize_branch(branch)).commit


@dataclass(frozen=True, slots=True)
class BranchCreation:
    """A new branch: its name, the branch it was made from, and the commit both show."""

    name: str
    from_branch: str
    commit: CommitRecord

    def to_dict(self) -> dict[str, Any]:
        """The creation as the command line and the service show it."""
        return {"name": self.name, "from": self.from_branch, "commit": commit_dict(self.commit)}


@text_checked_methods
class Branches:
    """The branches of a graph."""

    def __init__(self, session: GraphSession) -> None:
        self._session = session

    def create(
        self, name: str, *, from_branch: str = "main", actor: str | None = None, **_limits: Unpack[CallLimits]
    ) -> BranchCreation:
        """Make a branch that shows what `from_branch` shows now. Nothing is copied.

        ```python
        graph.branches.create("review").commit.id
        ```

        Raises `BranchExists`, `BranchPrefixClash`, `TagExists` for the name of a tag, `BranchNotFound`.
        """
        session = self._session
        base = normalize_branch(from_branch)
        making = Question(Action.BRANCH_CREATE, show_branch(base), name.strip())
        entering_write(session, actor, making, heal=False)
        try:
            with session.lease.hold() as hold:
                made = BranchStore(session.manifest).create(name, base, fence=hold.check)
        except BranchNotFound:
            _refuse_pinned(session, from_branch)
            raise
        return BranchCreation(show_branch(made.branch), from_branch.strip(), made.commit)

    def delete(self, name: str, *, actor: str | None = None, **_limits: Unpack[CallLimits]) -> BranchDeletion:
        """Delete a branch. Raises `BranchNotFound`, `BranchHasChildren`, `BadRequest` for main."""
        from omnigraph.branching.branches import delete_branch  # noqa: PLC0415  most processes never do

        return delete_branch(self._session, name, actor)

    def merge(
        self,
        source: str,
        *,
        into: str = "main",
        actor: str | None = None,
        on_conflict: str | Mapping[str, str] | None = None,
        resolve: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> MergeReport:
        """Merge the head of `source` into another branch as one commit with two parents, or change nothing.

        ```python
        graph.branches.merge("review", into="main", actor="ines", on_conflict={"Person": "theirs"})
        ```

        `on_conflict` is `ours` (the target wins) or `theirs`, for everything or per type; `resolve` is a
        conflict list written by `preview` and edited: its file, or what is in it. Raises `MergeConflicts`. A
        `KeyboardInterrupt` has a note that says what became of the merge.
        """
        from omnigraph.branching.merge import branch_merge  # noqa: PLC0415  most processes never merge

        return branch_merge(
            self._session,
            source=normalize_branch(source),
            target=writable_branch(into),
            actor=actor,
            resolution=_resolution(on_conflict, resolve),
            cancel=current_bounds().cancel,
            bulk=SPARK_WHEN_LARGE,
        )

    def preview(
        self,
        source: str,
        *,
        into: str = "main",
        on_conflict: str | Mapping[str, str] | None = None,
        resolve: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        **_limits: Unpack[CallLimits],
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

    def restore(
        self, name: str, *, to: str, actor: str | None = None, **_limits: Unpack[CallLimits]
    ) -> MergeReport:
        """Make a branch show the rows of a tag, a commit or another branch again, as a new commit.

        ```python
        graph.branches.restore("main", to="before-the-import", actor="ines")
        ```

        Nothing is lost: what the branch showed stays in its history. Without a difference nothing is written
        and the report has no commit.
        """
        from omnigraph.branching.references import resolve_commit  # noqa: PLC0415  most processes never do
        from omnigraph.branching.revert import restore_branch  # noqa: PLC0415

        branch = writable_branch(name)
        self._session.check_open()
        self._session.ask(actor, Question(Action.CHANGE, show_branch(branch)))
        return restore_branch(
            self._session,
            branch,
            to=resolve_commit(self._session, to).id,
            actor=actor,
            cancel=current_bounds().cancel,
            bulk=SPARK_WHEN_LARGE,
        )

    def list(self, **_limits: Unpack[CallLimits]) -> list[str]:
        """All branches, main first, then by name."""
        self._session.check_open()
        return [show_branch(None), *self._session.manifest.branches()]

    def details(self, **_limits: Unpack[CallLimits]) -> tuple[BranchDetail, ...]:
        """Every branch by name with its head and how far it and main are apart.

        ```python
        [(each.name, each.ahead, each.behind) for each in graph.branches.details()]
        ```
        """
        from omnigraph.branching.listing import branch_details  # noqa: PLC0415  a writer never needs it

        self._session.begin_read()
        return tuple(branch_details(self._session))


def _refuse_pinned(session: GraphSession, reference: str) -> None:
    """Say so when what a branch should start from is a commit or a tag: there is no branch to start from."""
    from omnigraph.branching.references import resolve_commit  # noqa: PLC0415  only after a mistake

    with suppress(CommitNotFound):
        resolve_commit(session, reference)
        raise BadRequest(
            f"'{reference}' is a commit; a branch starts at the head of another branch",
            hint=f"make the branch, then `omnigraph branch restore NAME --to {reference}`",
        )


def _resolution(
    on_conflict: str | Mapping[str, str] | None, resolve: str | os.PathLike[str] | Mapping[str, Any] | None
) -> Resolution | ConflictList:
    from omnigraph.branching.merge_report import chosen_sides, read_conflicts  # noqa: PLC0415

    if on_conflict is not None and resolve is not None:
        raise BadRequest("give either a side per type or an edited conflict list, not both")
    return chosen_sides(on_conflict) if resolve is None else read_conflicts(resolve)
