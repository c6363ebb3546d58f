"""Taking back what one commit did, as a new commit on top of everything that came after it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from omnigraph.branching.merge import merging, refuse_conflicts
from omnigraph.branching.merge_advice import revert_advice
from omnigraph.branching.merge_planning import MergeOutcome, plan_between
from omnigraph.branching.merge_report import MergeReport
from omnigraph.branching.merge_writing import MergeRecord, write_merge
from omnigraph.core.cancel import NEVER
from omnigraph.core.errors import BadRequest
from omnigraph.core.ids import show_branch
from omnigraph.core.permission import Action, Question
from omnigraph.engine.evolve.adopt import adopt_schema
from omnigraph.manifest.commit_record import SCHEMA_OPERATION
from omnigraph.recovery.outcome import WriteCourse

if TYPE_CHECKING:
    from omnigraph.branching.delta_engine import BulkDeltas
    from omnigraph.core.cancel import Cancellation
    from omnigraph.core.ids import Branch, CommitId
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.commit_record import CommitRecord


def revert_commit(
    session: GraphSession,
    commit_id: CommitId,
    *,
    branch: Branch,
    parent: CommitId | None = None,
    actor: str | None = None,
    cancel: Cancellation = NEVER,
    bulk: BulkDeltas | None = None,
) -> MergeReport:
    """Undo one commit on a branch: a merge whose base is the commit and whose source is its parent.

    `parent=None` means the first parent. What later commits changed stays; where they changed the same
    entities, `MergeConflicts` lists them and nothing happens. Raises `CommitNotFound`, and `BadRequest` for
    the first commit of a graph, a parent the commit does not have, and where there is nothing to take back.
    """
    with WriteCourse("the revert") as course, merging(session, actor, _changing(branch)):
        base = session.manifest.at_commit(commit_id)
        _refuse_upkeep(base.commit)
        adopt_schema(session, branch)
        source = session.manifest.at_commit(_parent(base.commit, parent))
        plan = plan_between(
            session,
            MergeOutcome.MERGED,
            bases=[base],
            source=source,
            target=session.manifest.current(branch),
            identity=session.branch_identity(branch),
            rows_only=True,
            bulk=bulk,
        )
        refuse_conflicts(plan, revert_advice(each.kind for each in plan.conflicts), what="revert")
        if not any(step.writes_rows for step in plan.steps):
            raise BadRequest(
                f"{show_branch(branch)} shows nothing of what commit '{commit_id}' did",
                hint="it was reverted already, or later commits took it back",
            )
        # Not a merge in the history: the parent it takes the old values from is an ancestor already.
        record = MergeRecord(f"revert:{commit_id}", actor, None)
        published = write_merge(session, plan, record, cancel, course)
        return MergeReport.of(plan, actor, published.commit)


def restore_branch(
    session: GraphSession,
    branch: Branch,
    *,
    to: CommitId,
    actor: str | None = None,
    cancel: Cancellation = NEVER,
    bulk: BulkDeltas | None = None,
) -> MergeReport:
    """Make a branch show the rows of a commit again, as a new commit on top of its history.

    Everything that came after stays in the history and can be restored in the same way. Where the branch
    shows exactly those rows already nothing is written. Cost: follows what differs.
    """
    with WriteCourse("the restore") as course, merging(session, actor, _changing(branch)):
        adopt_schema(session, branch)
        target = session.manifest.current(branch)
        plan = plan_between(
            session,
            MergeOutcome.MERGED,
            bases=[target],
            source=session.manifest.at_commit(to),
            target=target,
            identity=session.branch_identity(branch),
            rows_only=True,
            bulk=bulk,
        )
        refuse_conflicts(plan, revert_advice(each.kind for each in plan.conflicts), what="restore")
        if not any(step.writes_rows for step in plan.steps):
            return MergeReport.of(replace(plan, outcome=MergeOutcome.ALREADY_UP_TO_DATE), actor, None)
        published = write_merge(session, plan, MergeRecord(f"restore:{to}", actor, None), cancel, course)
    return MergeReport.of(plan, actor, published.commit)


def _changing(branch: Branch) -> Question:
    return Question(Action.CHANGE, show_branch(branch))


def _refuse_upkeep(commit: CommitRecord) -> None:
    if commit.operation == SCHEMA_OPERATION:
        raise BadRequest(
            f"commit '{commit.id}' changed the schema and no row",
            hint="apply the earlier schema; a property that was dropped is null then",
        )
    if commit.is_upkeep:
        raise BadRequest(
            f"commit '{commit.id}' changed no row: it is upkeep ({commit.operation})",
            hint=f"revert '{commit.parent}', the commit before it, or name the branch",
        )


def _parent(commit: CommitRecord, wanted: CommitId | None) -> CommitId:
    if commit.parent is None:
        raise BadRequest(f"commit '{commit.id}' is the first one and cannot be reverted")
    if wanted is None:
        return commit.parent
    if wanted not in commit.parents:
        raise BadRequest(
            f"'{wanted}' is not a parent of commit '{commit.id}'",
            hint=f"name one of {', '.join(commit.parents)}",
        )
    return wanted
