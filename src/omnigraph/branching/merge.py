"""`branch_merge`: the public operation over planning and writing, and its preview."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from omnigraph.branching.merge_planning import MergeOutcome, plan_merge
from omnigraph.branching.merge_report import MergePreview, MergeReport
from omnigraph.branching.merge_writing import MergeRecord, write_merge
from omnigraph.branching.settling import UNRESOLVED
from omnigraph.core.cancel import NEVER
from omnigraph.core.errors import BadRequest, MergeConflicts
from omnigraph.core.ids import show_branch
from omnigraph.core.permission import Action, Question
from omnigraph.engine.evolve.adopt import adopt_schema
from omnigraph.engine.write.entering import entering_write, settled_for_write
from omnigraph.manifest.names import INTERNAL_NAMES
from omnigraph.recovery.outcome import WriteCourse

if TYPE_CHECKING:
    from collections.abc import Generator

    from omnigraph.branching.delta_engine import BulkDeltas
    from omnigraph.branching.merge_planning import MergePlan
    from omnigraph.branching.merge_report import ConflictList
    from omnigraph.branching.settling import Resolution
    from omnigraph.core.cancel import Cancellation
    from omnigraph.core.ids import Branch
    from omnigraph.engine.session import GraphSession


class _Mutexes:
    """One merge at a time per graph in this process."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def of(self, identity: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(identity, threading.Lock())


_mutexes = _Mutexes()


@contextmanager
def merging(session: GraphSession, actor: str | None, question: Question | None) -> Generator[None]:
    """The surroundings of every merge: one at a time, after what dead writers left is settled.

    Without a `question` it is part of a write that was permitted already.
    """
    if question is not None:
        session.ask(actor, question)
    with _mutexes.of(session.root.identity):
        if question is None:
            settled_for_write(session)
        else:
            entering_write(session, actor, question)
        yield


def branch_merge(
    session: GraphSession,
    *,
    source: Branch,
    target: Branch,
    actor: str | None = None,
    resolution: Resolution | ConflictList = UNRESOLVED,
    cancel: Cancellation = NEVER,
    bulk: BulkDeltas | None = None,
    permitted: bool = False,
) -> MergeReport:
    """Merge the head of `source` into `target` as one commit with two parents, or change nothing.

    Raises `MergeConflicts` with every conflict, `ExpectedVersionMismatch` when the target moved meanwhile.
    The source may move: the head seen at the start is merged. `bulk` computes deltas that are too large for
    this process. `permitted`: it is part of a write that the policy was asked about already. An interrupt
    (Ctrl-C) carries a note about the outcome.
    """
    _refuse_names(source, target)
    asked = None if permitted else Question(Action.BRANCH_MERGE, show_branch(source), show_branch(target))
    with WriteCourse("the merge") as course, merging(session, actor, asked):
        adopt_schema(session, target)
        plan = plan_merge(session, source, target, resolution, bulk)
        if plan.outcome is MergeOutcome.ALREADY_UP_TO_DATE:
            return MergeReport.of(plan, actor, None)
        refuse_conflicts(plan)
        record = MergeRecord("merge", actor, plan.source.head)
        published = write_merge(session, plan, record, cancel, course)
        return MergeReport.of(plan, actor, published.commit)


def preview_merge(
    session: GraphSession,
    *,
    source: Branch,
    target: Branch,
    resolution: Resolution | ConflictList = UNRESOLVED,
    bulk: BulkDeltas | None = None,
) -> MergePreview:
    """What `branch_merge` would do now, from the same plan; writes nothing."""
    _refuse_names(source, target)
    return MergePreview.of(plan_merge(session, source, target, resolution, bulk))


def refuse_conflicts(plan: MergePlan, hint: str | None = None, *, what: str = "merge") -> None:
    """Raise `MergeConflicts` when anything stands against the plan; `hint` says what else to do about it."""
    if plan.conflicts:
        raise MergeConflicts(
            [each.to_dict() for each in plan.conflicts],
            total=plan.conflicts_total,
            hint=plan.advice if hint is None else hint,
            what=what,
        )


def _refuse_names(source: Branch, target: Branch) -> None:
    for branch in (source, target):
        if branch in INTERNAL_NAMES:
            raise BadRequest(f"'{branch}' is an internal branch and cannot be merged")
    if source == target:
        raise BadRequest(f"'{show_branch(source)}' cannot be merged into itself; name two different branches")
