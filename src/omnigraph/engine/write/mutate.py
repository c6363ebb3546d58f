"""Mutations: the statements of one query become one atomic write."""

from __future__ import annotations

import datetime as dt
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from omnigraph.catalog.scalars import as_instant
from omnigraph.core.cancel import NEVER, Cancellation
from omnigraph.core.errors import (
    ExpectedVersionMismatch,
    InternalError,
    PreconditionFailed,
    ReadSetConflict,
)
from omnigraph.core.ids import Branch, CommitId, OperationId, TableKey, new_ulid, show_branch
from omnigraph.core.limits import REPREPARE_ATTEMPTS_MAX
from omnigraph.engine.write.afterwards import after_commit
from omnigraph.engine.write.commit import finalize_under
from omnigraph.engine.write.gathered import MutationStaging
from omnigraph.engine.write.ground import ReadSetMoved, queue_keys
from omnigraph.engine.write.parts import WriteIntent
from omnigraph.engine.write.prepare import InsertedEntity, PreparedMutation, prepare_mutation
from omnigraph.manifest.commit_record import commit_dict
from omnigraph.recovery.sidecar import WriterKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.commit_record import CommitRecord
    from omnigraph.manifest.state import Snapshot
    from omnigraph.planning.ir import MutationPlan
    from omnigraph.planning.values import Value
    from omnigraph.recovery.outcome import WriteCourse

OPTIMISTIC_ATTEMPTS: Final = 3
"""Attempts without locks; later ones are prepared under the queues of everything the write reads or
writes.
"""


@dataclass(frozen=True, slots=True)
class MutationResult:
    """What a mutation did. `commit` is None when nothing was selected or inserted."""

    branch: str
    query_name: str
    affected_nodes: int
    affected_edges: int
    actor: str | None
    commit: CommitRecord | None
    inserted: tuple[InsertedEntity, ...] = ()
    """One per insert statement that made a new entity or replaced one, with its id."""

    def to_dict(self) -> dict[str, Any]:
        """The shape the command line and the service give."""
        return {
            "branch": self.branch,
            "query_name": self.query_name,
            "affected_nodes": self.affected_nodes,
            "affected_edges": self.affected_edges,
            "actor_id": self.actor,
            "commit": None if self.commit is None else commit_dict(self.commit),
            "inserted": [{"type": each.type_name, "id": each.id} for each in self.inserted],
        }

    def to_arrow(self) -> pa.Table:
        """The counts as one row: `affected_nodes` and `affected_edges`, both unsigned."""
        counts = {"affected_nodes": [self.affected_nodes], "affected_edges": [self.affected_edges]}
        return pa.table(counts, schema=pa.schema([(name, pa.uint64()) for name in counts]))

    def _repr_html_(self) -> str:
        from omnigraph.core import html  # noqa: PLC0415  only a notebook needs it

        about = {
            "branch": self.branch,
            "nodes": self.affected_nodes,
            "edges": self.affected_edges,
            "actor": self.actor,
            "commit": "nothing to commit" if self.commit is None else self.commit.id,
        }
        return html.facts(f"mutation {self.query_name}", about)


@dataclass(frozen=True, slots=True)
class MutationRequest:
    """One call of `mutate`, the same for every attempt: `now` and the commit id do not change between
    them.
    """

    plan: MutationPlan
    params: Mapping[str, Value]
    branch: Branch
    schema_hash: str
    actor: str | None
    if_commit: CommitId | None
    now: dt.datetime
    commit_id: CommitId
    cancel: Cancellation
    course: WriteCourse


def run_mutation(
    session: GraphSession,
    plan: MutationPlan,
    params: Mapping[str, Value],
    *,
    branch: Branch,
    schema_hash: str,
    actor: str | None = None,
    if_commit: CommitId | None = None,
    cancel: Cancellation = NEVER,
    course: WriteCourse,
) -> MutationResult:
    """Run a mutation as one commit on `branch`, or change nothing.

    `schema_hash` names the schema the plan was made for. The caller has been through `entering_write`.
    A write of inserts only is prepared again when something it read moved, at most `REPREPARE_ATTEMPTS_MAX`
    times; one with updates or deletes fails with `ExpectedVersionMismatch`. `if_commit` is never retried.
    `course` is told how far the write has come.
    """
    now = as_instant(dt.datetime.fromtimestamp(session.clock.now_us() / 1_000_000, dt.UTC))
    request = MutationRequest(
        plan, params, branch, schema_hash, actor, if_commit, now, CommitId(new_ulid()), cancel, course
    )
    moved: ReadSetMoved | None = None
    held: set[TableKey] = set()
    for attempt in range(REPREPARE_ATTEMPTS_MAX):
        try:
            return _attempt(session, request, held if attempt >= OPTIMISTIC_ATTEMPTS else None)
        except _AttemptLost as lost:
            moved = lost.moved
            held |= lost.tables
    if moved is None:
        raise InternalError("a mutation ended without an outcome")
    raise moved.given_up(REPREPARE_ATTEMPTS_MAX)


class _AttemptLost(Exception):  # noqa: N818  control flow inside this module
    """The attempt had no effect; `tables` is what it read or would have written."""

    def __init__(self, moved: ReadSetMoved, tables: set[TableKey]) -> None:
        super().__init__(str(moved))
        self.moved = moved
        self.tables = tables


def _attempt(session: GraphSession, request: MutationRequest, hold: set[TableKey] | None) -> MutationResult:
    """One attempt. `hold`: tables whose queues are taken, with the lease, before anything is read."""
    with ExitStack() as stack:
        guards = None
        if hold:
            guards = stack.enter_context(session.queues.acquire_many((key, request.branch) for key in hold))
            stack.enter_context(session.lease.hold())
        head = session.manifest.head(request.branch)
        _check_condition(session, head.snapshot, request)
        staging = MutationStaging(
            head.snapshot,
            OperationId(new_ulid()),
            branch_identity=head.token or "",
            course=request.course,
        )
        prepared = prepare_mutation(
            session, staging, request.plan, request.params, request.now, request.cancel
        )
        if staging.is_empty:
            return _result(request, prepared, None)
        intent = WriteIntent(
            kind=WriterKind.MUTATION,
            operation="mutation",
            operation_id=staging.operation_id,
            commit_id=request.commit_id,
            actor=request.actor,
            if_commit=request.if_commit,
            summary=prepared.summary,
        )
        if guards is not None and not guards.covers(queue_keys(request.branch, staging.touched)):
            # The write touches more than last time: give everything back and start with the larger set.
            raise _AttemptLost(_moved_elsewhere(staging), staging.touched)
        try:
            finished = finalize_under(session, staging, intent, cancel=request.cancel, guards=guards)
        except ReadSetMoved as moved:
            raise _AttemptLost(moved, staging.touched) from moved
    after_commit(session, finished)
    return _result(request, prepared, finished.snapshot.commit)


def _moved_elsewhere(staging: MutationStaging) -> ReadSetMoved:
    key = staging.written_tables()[0]
    pin = staging.expected_versions[key]
    return ReadSetMoved(ExpectedVersionMismatch(table_key=key, expected=pin, actual=pin))


def _check_condition(session: GraphSession, snapshot: Snapshot, request: MutationRequest) -> None:
    expected = request.if_commit
    if expected is not None and not session.commits.shows_rows_of(snapshot.commit, expected):
        raise PreconditionFailed(expected=expected, actual=snapshot.head)
    if snapshot.schema_hash != request.schema_hash:
        raise ReadSetConflict(
            "schema", message="the schema changed while this write was prepared; re-read and retry"
        )


def _result(
    request: MutationRequest, prepared: PreparedMutation, commit: CommitRecord | None
) -> MutationResult:
    return MutationResult(
        branch=show_branch(request.branch),
        query_name=request.plan.name,
        affected_nodes=prepared.affected_nodes,
        affected_edges=prepared.affected_edges,
        actor=request.actor,
        commit=commit,
        inserted=tuple(prepared.inserted),
    )
