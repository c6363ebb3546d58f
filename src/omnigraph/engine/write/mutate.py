"""Mutations: the statements of one call, or of several that wait together, become one atomic write."""

from __future__ import annotations

from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from omnigraph.catalog.schema import EdgeType
from omnigraph.core.bounds import NO_BOUNDS, within
from omnigraph.core.cancel import NEVER
from omnigraph.core.errors import (
    ExpectedVersionMismatch,
    IdempotencyMismatch,
    InternalError,
    PreconditionFailed,
    ReadSetConflict,
    RecoveryRequired,
    ResourceBusy,
)
from omnigraph.core.ids import CommitId, OperationId, TableKey, new_ulid, show_branch
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import REPREPARE_ATTEMPTS_MAX
from omnigraph.engine.write.afterwards import after_commit
from omnigraph.engine.write.calls import Call, call_line
from omnigraph.engine.write.commit import finalize_under
from omnigraph.engine.write.embedded import with_vectors
from omnigraph.engine.write.entering import settled_for_write
from omnigraph.engine.write.gathered import MutationStaging
from omnigraph.engine.write.ground import ReadSetMoved, queue_keys
from omnigraph.engine.write.parts import WriteIntent
from omnigraph.engine.write.prepare import PreparedMutation, prepare_mutation
from omnigraph.engine.write.requests import MutationRequest, MutationResult
from omnigraph.recovery.sidecar import WriterKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from omnigraph.catalog.schema import Catalog
    from omnigraph.core.ids import Branch
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.calls import Waiting
    from omnigraph.engine.write.protocol import Finished
    from omnigraph.manifest.commit_record import CommitRecord
    from omnigraph.manifest.state import Snapshot
    from omnigraph.manifest.store import Head
    from omnigraph.recovery.outcome import WriteCourse

OPTIMISTIC_ATTEMPTS: Final = 3
"""Attempts without locks; later ones are prepared under the queues of everything the write reads or
writes, as the next before the lease.
"""
GROUP_ROWS_MAX: Final = 2000
"""With more rows than this gathered, no further call joins a commit: each is validated with all before it."""


def run_mutation(session: GraphSession, request: MutationRequest) -> MutationResult:
    """Run a mutation as one commit on its branch, alone or with calls that wait beside it, or change nothing.

    The caller has been through `entering_write`. A write of inserts only is prepared again when something it
    read moved, at most `REPREPARE_ATTEMPTS_MAX` times; one with updates or deletes fails with
    `ExpectedVersionMismatch`. A condition (`if_commit`) is never retried.
    """
    request = with_vectors(session, request)
    call = Call(request)
    if request.may_share:
        call_line(session).run(call, lambda waiting: _carry_group(session, request, waiting))
    else:
        _carry_out(session, [call], request.course)
    return call.outcome()


def _carry_group(session: GraphSession, leader: MutationRequest, waiting: Waiting) -> None:
    """Run everybody who waits as one commit.

    Where the last write met one of another process, the leader first waits until it is the next who writes:
    whoever comes meanwhile is with it, and it is prepared while the one before it is still at work.
    """
    if not session.disturbed or leader.assigns_blobs:
        _carry_out(session, *waiting.take())
        return
    catalog = session.catalog_of(session.manifest.current(leader.branch))
    tables = set[TableKey]().union(*(_tables_of(each.request, catalog) for each in waiting.calls()))
    with _Turn(session, leader.branch, tables) as turn:
        _carry_out(session, *waiting.take(), turn)


def _tables_of(request: MutationRequest, catalog: Catalog) -> set[TableKey]:
    """What its inserts touch for certain: their tables, and those of the ends of their edges."""
    types = [each.type for each in request.plan.statements]
    ends = [
        catalog.nodes[end]
        for edge in types
        if isinstance(edge, EdgeType)
        for end in (edge.source, edge.target)
        if end in catalog.nodes  # another process may have changed the schema; the attempt finds that out
    ]
    return {TableKey(each.table_key) for each in (*types, *ends)}


class _Turn(ExitStack):
    """The queues of some tables, and the next place before the lease, or the lease once it was entered.

    Closed early by a write that has landed, or that must begin anew with more tables.
    """

    def __init__(self, session: GraphSession, branch: Branch, tables: Iterable[TableKey]) -> None:
        super().__init__()
        try:
            self.guards = self.enter_context(session.queues.acquire_many(queue_keys(branch, tables)))
            self.enter_context(session.lease.approach())
        except BaseException:
            self.close()
            raise


def _carry_out(
    session: GraphSession, calls: list[Call], course: WriteCourse, turn: _Turn | None = None
) -> None:
    """Run these calls of one branch and actor as one commit; tell each its outcome, or give it back.

    A call that fails leaves alone. One that fails behind others may fail because of them, so it is given
    back, to be the first of a later group: errors are always about what is committed.
    """
    try:
        # A lone call has its own bounds; what several share is stopped by none of them.
        with within(calls[0].request.bounds if len(calls) == 1 else NO_BOUNDS):
            _run_attempts(session, calls, course, turn)
    except Exception as error:  # noqa: BLE001  told to the calls, whatever it is
        if turn is not None:
            turn.close()
        together = [call for call in calls if not call.is_settled]
        if len(together) > 1 and not course.begun and not isinstance(error, ResourceBusy):
            # Nothing has happened. Perhaps it is about one of them only: then the others are not to blame.
            for call in together:
                call.course = call.request.course
                _carry_out(session, [call], call.request.course)
            return
        for call in together:
            call.fail(error if len(together) == 1 else copy(error))


def _run_attempts(session: GraphSession, calls: list[Call], course: WriteCourse, turn: _Turn | None) -> None:
    """Attempts, until nobody comes between reading and landing. The first is made in `turn`, if any.

    One that is lost in a turn has entered the lease: the next, in the same turn, meets nobody.
    """
    commit_id = CommitId(new_ulid())
    branch = calls[0].request.branch
    moved: ReadSetMoved | None = None
    touched: set[TableKey] = set()
    optimistic = OPTIMISTIC_ATTEMPTS if turn is None else 0
    settled = False
    with ExitStack() as held:
        for attempt in range(REPREPARE_ATTEMPTS_MAX):
            if turn is None and touched and attempt >= optimistic:
                turn = held.enter_context(_Turn(session, branch, touched))
            try:
                landed = _attempt(session, calls, commit_id, course, turn, first=attempt == 0)
            except _AttemptLost as lost:
                moved = lost.moved
                touched |= lost.tables
                if turn is not None and turn.guards.covers(queue_keys(branch, touched)):
                    continue
            except RecoveryRequired:
                # Somebody who was alive when this write began has died on one of its tables.
                if course.begun or settled:
                    raise
                _close(turn)
                settled_for_write(session)
                settled = True
            else:
                _close(turn)
                if landed is not None:
                    landed.tell(session)
                return
            _close(turn)
            turn = None
    if moved is None:
        raise InternalError("a mutation ended without an outcome")
    raise moved.given_up(REPREPARE_ATTEMPTS_MAX)


def _close(turn: _Turn | None) -> None:
    if turn is not None:
        turn.close()


class _AttemptLost(Exception):  # noqa: N818  control flow inside this module
    """The attempt had no effect; `tables` is what it read or would have written."""

    def __init__(self, moved: ReadSetMoved, tables: set[TableKey]) -> None:
        super().__init__(str(moved))
        self.moved = moved
        self.tables = tables


@dataclass(frozen=True, slots=True)
class _Gathered:
    """A call whose rows are in the staging."""

    call: Call
    prepared: PreparedMutation


@dataclass(frozen=True, slots=True)
class _Landed:
    """An attempt that is published, and the calls it carried."""

    gathered: Sequence[_Gathered]
    finished: Finished

    def tell(self, session: GraphSession) -> None:
        for each in self.gathered:
            commit = self.finished.snapshot.commit
            each.call.succeed(_result(each.call.request, each.prepared, commit))
        after_commit(session, self.finished)


def _attempt(
    session: GraphSession,
    calls: list[Call],
    commit_id: CommitId,
    course: WriteCourse,
    turn: _Turn | None,
    *,
    first: bool,
) -> _Landed | None:
    """One attempt, in a `turn` if there is one; None when no call is left."""
    branch = calls[0].request.branch
    guards = None if turn is None else turn.guards
    # In a turn the one before is still at work: who reads nothing need not read the state before that one's.
    waits = first and turn is not None and all(each.request.reads_nothing for each in calls)
    head_of = session.manifest.lately if waits else session.manifest.head
    staging, gathered = _gather(calls, course, session, head_of)
    if not gathered:
        return None
    if guards is not None and not guards.covers(queue_keys(branch, staging.touched)):
        # The write touches more than was known: give everything back and start with the larger set.
        raise _AttemptLost(_moved_elsewhere(staging), staging.touched)
    intent = _intent(staging, gathered, commit_id)
    cancel = gathered[0].call.request.cancel if len(gathered) == 1 else NEVER
    try:
        return _Landed(gathered, finalize_under(session, staging, intent, cancel=cancel, guards=guards))
    except ReadSetMoved as moved:
        raise _AttemptLost(moved, staging.touched) from moved


def _gather(
    calls: list[Call], course: WriteCourse, session: GraphSession, head_of: Callable[[Branch], Head]
) -> tuple[MutationStaging, list[_Gathered]]:
    """Prepare the calls one after the other on one staging, until nobody of them has left meanwhile.

    Those that cannot come along are given back, and are no part of this write any more.
    """
    branch = calls[0].request.branch
    while True:
        head = head_of(branch)
        staging = MutationStaging(
            head.snapshot, OperationId(new_ulid()), branch_identity=head.token or "", course=course
        )
        gathered: list[_Gathered] = []
        for call in [each for each in calls if not each.is_settled]:
            alone = len(calls) == 1
            if not alone and (call.is_gone or staging.row_count > GROUP_ROWS_MAX):
                calls.remove(call)
                call.give_back()
                continue
            prepared = _prepared(session, staging, call, gathered)
            if prepared is not None:
                gathered.append(_Gathered(call, prepared))
            elif not call.is_settled:
                calls.remove(call)
                call.give_back()
        if len(calls) == 1 or not any(each.call.is_gone for each in gathered):
            return staging, gathered


def _prepared(
    session: GraphSession, staging: MutationStaging, call: Call, gathered: Sequence[_Gathered]
) -> PreparedMutation | None:
    """What one call adds to the staging; None when it adds nothing.

    Then it has its outcome, unless it failed behind others or repeats one of them.
    """
    request, first, saved = call.request, staging.is_empty, staging.savepoint()
    if request.key is not None:
        if any(each.call.request.names(request.key) for each in gathered):
            return None  # the next group finds what became of that one
        if _answered(session, staging.snapshot, call):
            return None
    try:
        request.cancel.raise_if_requested()
        _check_condition(session, staging.snapshot, request)
        with within(request.bounds):
            prepared = prepare_mutation(session, staging, request)
    except Exception as error:  # noqa: BLE001  told to the call, whatever it is
        staging.go_back_to(saved)
        if first:
            call.fail(error)
        return None
    if first and staging.is_empty:
        call.succeed(_result(request, prepared, None))
        return None
    return prepared


def _answered(session: GraphSession, snapshot: Snapshot, call: Call) -> bool:
    """Whether an earlier request with the same key has been carried out; then that is the outcome."""
    request, key = call.request, call.request.key
    try:
        found = None if key is None else session.request_keys.answer(snapshot, key)
    except IdempotencyMismatch as mismatch:
        call.fail(mismatch)
        return True
    if found is None:
        return False
    commit, first = found
    counts = PreparedMutation(affected_nodes=first.nodes, affected_edges=first.edges)
    call.succeed(replace(_result(request, counts, commit), repeated=True))
    return True


def _intent(staging: MutationStaging, gathered: Sequence[_Gathered], commit_id: CommitId) -> WriteIntent:
    request = gathered[0].call.request
    summary: dict[str, dict[str, int]] = {}
    for each in gathered:
        for key, counts in each.prepared.summary.items():
            total = summary.setdefault(key, {})
            for what, rows in counts.items():
                total[what] = total.get(what, 0) + rows
    return WriteIntent(
        kind=WriterKind.MUTATION,
        operation=request.operation,
        operation_id=staging.operation_id,
        commit_id=commit_id,
        actor=request.actor,
        if_commit=request.if_commit,
        summary=summary,
        requests=len(gathered),
        keys=tuple(
            replace(key, nodes=each.prepared.affected_nodes, edges=each.prepared.affected_edges)
            for each in gathered
            if (key := each.call.request.key) is not None
        ),
    )


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
