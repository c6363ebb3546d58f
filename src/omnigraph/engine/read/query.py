"""Read queries: from text to rows, at one snapshot."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from omnigraph.catalog.scalars import as_instant
from omnigraph.core.bounds import current_bounds
from omnigraph.core.cancel import NEVER, Cancellation
from omnigraph.core.errors import WrongQueryKind
from omnigraph.core.events import listen
from omnigraph.core.ids import show_branch
from omnigraph.engine.read.access import NO_ORDINALS, decide, run_chain
from omnigraph.engine.read.caches import ReadCaches
from omnigraph.engine.read.flow import Flow, Mode
from omnigraph.engine.read.frame import FEW_ROWS, SINGLE, Frame
from omnigraph.engine.read.limits import Limits
from omnigraph.engine.read.match import Matcher
from omnigraph.engine.read.project import result_columns, shown
from omnigraph.engine.read.reading import Reading, Searched
from omnigraph.engine.read.result import Rows
from omnigraph.planning import ir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from omnigraph.engine.read.explain import Explanation
    from omnigraph.engine.read.prepared import Prepared
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot

_caches: ReadCaches | None = None
_caches_lock = threading.Lock()


def _start_afresh_in_child() -> None:
    # A thread that does not exist in a forked child may hold any lock of the caches.
    global _caches, _caches_lock
    _caches, _caches_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_start_afresh_in_child)


def read_caches(session: GraphSession) -> ReadCaches:
    """The read caches of this process; the first handle decides how large they may grow."""
    global _caches  # noqa: PLW0603 - shared by all handles on purpose
    with _caches_lock:
        if _caches is None:
            _caches = ReadCaches(session.settings.cache_bytes)
        return _caches


def run_query(
    session: GraphSession,
    snapshot: Snapshot,
    text: str,
    params: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    at_commit: str | None = None,
    cancellation: Cancellation = NEVER,
) -> Rows:
    """Run one read query against one snapshot. `at_commit` is set when the caller named a commit.

    Raises QuerySyntaxError, QueryTypeError, WrongQueryKind, the ParamError family, EmbedderError,
    ResourceLimit, DeadlineExceeded or Cancelled; never changes anything.
    """
    run = _Run(session, snapshot, text, params, name, cancellation)
    prepared = run.prepared
    branch = None if at_commit is not None else show_branch(snapshot.branch)
    return Rows(
        run.columns(),
        prepared.schema,
        prepared.plan.name,
        branch,
        at_commit,
        snapshot.commit.id,
        prepared.names,
    )


def explain_query(
    session: GraphSession,
    snapshot: Snapshot,
    text: str,
    params: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    analyze: bool = False,
    cancellation: Cancellation = NEVER,
) -> Explanation:
    """How a query would be answered at a snapshot; with `analyze` it is run and measured.

    Raises as a run does; but no text is embedded unless the query is run.
    """
    from omnigraph.engine.read.explain import Explanation, Trace, describe  # noqa: PLC0415  rare

    try:
        run = _Run(session, snapshot, text, params, name, cancellation)
    except WrongQueryKind as error:
        raise WrongQueryKind(error.message, hint="explain is for queries that read") from None
    if not analyze:
        run.reading.accesses = decide(run.reading, run.prepared)
        operators = describe(run.reading, run.prepared)
        return Explanation(run.prepared.plan.name, snapshot.commit.id, operators, run.prepared.order)
    run.reading.trace = trace = Trace()
    begun = time.perf_counter()
    with listen(trace):
        rows = len(run.columns()[0])
    seconds = time.perf_counter() - begun - trace.aside_seconds
    measured = describe(run.reading, run.prepared, trace, rows)
    return Explanation(
        run.prepared.plan.name,
        snapshot.commit.id,
        measured,
        run.prepared.order,
        analyzed=True,
        rows=rows,
        seconds=seconds,
        storage_calls=trace.calls,
        requests=trace.requests,
        bytes=trace.bytes,
        memory_bytes_max=run.reading.limits.peak_bytes,
    )


class _Run:
    """One query bound to a snapshot, its parameters and its limits."""

    __slots__ = ("prepared", "reading")

    def __init__(
        self,
        session: GraphSession,
        snapshot: Snapshot,
        text: str,
        params: Mapping[str, Any] | None,
        name: str | None,
        cancellation: Cancellation,
    ) -> None:
        caches = _caches or read_caches(session)
        view, self.prepared = caches.find(session, snapshot, text, name)
        prepared = self.prepared
        settings, plan, values = session.settings, prepared.plan, prepared.bind(params)
        if plan.limit_by is not None or plan.offset_by is not None:
            plan = ir.cut_by(plan, values)
        seconds = settings.query_seconds
        memory = current_bounds().memory_bytes
        self.reading = Reading(
            view,
            values,
            _now(session) if plan.uses_now else None,
            Limits(
                memory if memory is not None else settings.query_memory_bytes,
                None if seconds is None else time.monotonic() + seconds,
                cancellation,
            ),
            caches,
            None if plan.limit is None else plan.offset + plan.limit,
        )
        if prepared.has_choice:
            self.prepared = caches.ordered(self.reading, prepared)
        if plan is not prepared.plan:
            self.prepared = replace(self.prepared, plan=plan)

    def columns(self) -> list[Any]:
        """The result columns: arrays, or Python values when the rows are few."""
        prepared, reading = self.prepared, self.reading
        if prepared.searches:
            reading.searched = Searched(_embedded(reading, prepared.embedded))
        reading.accesses = accesses = decide(reading, prepared)
        done, frame, chain = 0, SINGLE, accesses.chain
        if chain is not None:
            done, nodes = run_chain(reading, prepared, chain)
            if done == len(prepared.steps) and prepared.references is not None and len(nodes) <= FEW_ROWS:
                return shown(reading, prepared, prepared.references, nodes)
            ordinals = np.array(nodes, dtype=np.int64)
            frame = Frame(len(nodes), {chain.variable_after(done): ordinals})
        matcher = Matcher(reading, as_set=prepared.as_set)
        if prepared.plan.is_aggregate:
            from omnigraph.engine.read.aggregate import aggregate_columns  # noqa: PLC0415  most queries sum nothing

            return aggregate_columns(matcher, prepared, done, frame)
        if done < len(prepared.steps):
            frame = _matched(matcher, prepared, done, frame)
        return result_columns(reading, prepared, frame)


def _matched(matcher: Matcher, prepared: Prepared, done: int, frame: Frame) -> Frame:
    """The rows of a match whose first steps gave the frame; no more than are asked for, in no order."""
    plan, limits = prepared.plan, matcher.reading.limits
    steps, needed = prepared.steps[done:], prepared.needed[done:]
    if prepared.searches:  # a search may be answered for all rows at once
        return matcher.run(steps, frame, needed)
    enough = plan.limit if not plan.order and plan.ranking is None and not plan.distinct else None
    made: list[Frame] = []
    rows = 0
    for piece in Flow(matcher, steps, needed, Mode.SET if prepared.as_set else Mode.ROWS).frames(frame):
        made.append(piece)
        rows += piece.rows
        if enough is not None and rows >= enough:
            break
        limits.step, limits.width = steps[-1], len(piece.columns)
        limits.claim(rows)
    if len(made) == 1:
        return made[0]
    if not made:
        return Frame(0, dict.fromkeys(needed[-1], NO_ORDINALS))
    return Frame.joined(made)


def _embedded(reading: Reading, texts: Sequence[ir.Nearest]) -> Mapping[tuple[str, int], NDArray[np.float32]]:
    """The vectors of texts, before anything is searched: whether a query can be answered does not depend on
    the rows.
    """
    if not texts:
        return {}
    from omnigraph.engine.search.embedding import embed_texts  # noqa: PLC0415  most queries embed nothing

    return embed_texts(reading.session.embedder, texts, reading.value, reading.limits)


def _now(session: GraphSession) -> dt.datetime:
    return as_instant(dt.datetime.fromtimestamp(session.clock.now_us() / 1_000_000, dt.UTC))
