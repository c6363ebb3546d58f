"""Read queries: from text to rows, at one snapshot."""

from __future__ import annotations

import datetime as dt
import threading
import time
from typing import TYPE_CHECKING, Any

from omnigraph.core.ids import show_branch
from omnigraph.engine.cancel import NEVER, Cancellation
from omnigraph.engine.frame import Frame
from omnigraph.engine.match import Matcher
from omnigraph.engine.project import result_arrays
from omnigraph.engine.reading import Limits, ReadCaches, Reading
from omnigraph.engine.result import Rows
from omnigraph.planning.params import bind_params
from omnigraph.planning.values import as_instant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot

_caches: ReadCaches | None = None
_caches_lock = threading.Lock()


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

    Raises QuerySyntaxError, QueryTypeError, WrongQueryKind, the ParamError family, ResourceLimit,
    DeadlineExceeded or Cancelled; never changes anything.
    """
    catalog = session.catalog_of(snapshot)
    caches = read_caches(session)
    plan = session.plans.read(text, name, catalog, snapshot.schema_hash)
    bound = bind_params(plan, params)
    seconds = session.settings.query_seconds
    prepared = caches.prepared(plan)
    reading = Reading(
        session=session,
        snapshot=snapshot,
        params=bound,
        now=_now(session) if plan.uses_now else None,
        limits=Limits(
            memory_bytes_max=session.settings.query_memory_bytes,
            deadline=None if seconds is None else time.monotonic() + seconds,
            cancellation=cancellation,
        ),
        caches=caches,
        rank_depth=None if plan.limit is None else plan.offset + plan.limit,
    )
    frame = Matcher(reading, catalog.nodes).run(prepared.steps, Frame.single())
    return Rows(
        arrays=tuple(result_arrays(reading, prepared, frame)),
        schema=prepared.schema,
        query_name=plan.name,
        branch=None if at_commit is not None else show_branch(snapshot.branch),
        snapshot=at_commit,
        commit_id=snapshot.commit.id,
    )


def _now(session: GraphSession) -> dt.datetime:
    return as_instant(dt.datetime.fromtimestamp(session.clock.now_us() / 1_000_000, dt.UTC))
