"""Settling what dead writers left: when a graph is opened for writing, and on refresh."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from omnigraph.core.bounds import check_bounds, note_left, unbounded
from omnigraph.core.cancel import SETTLED
from omnigraph.core.errors import ResourceBusy, SchemaDrift
from omnigraph.core.events import Warned, emit
from omnigraph.core.limits import LEASE_OPEN_WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnigraph.engine.session import GraphSession
    from omnigraph.recovery.heal import Healed
    from omnigraph.recovery.sweep import Swept

T = TypeVar("T")


def settle_on_open(session: GraphSession) -> Swept:
    """What a read-write open does before it reads the schema, in this order.

    Torn state, internal migrations, interrupted schema renames, the full sweep, the commit tables. The bounds
    of the call hold between them: none is left half-way. Cost when nothing is pending: a few probes and
    listings.
    """
    # What settles is loaded by those who write.
    from omnigraph.recovery.sweep import sweep  # noqa: PLC0415
    from omnigraph.recovery.torn_state import repair_torn_state  # noqa: PLC0415

    _whole(lambda: repair_torn_state(session.recovery), bool)
    _whole(lambda: _migrated(session), bool)
    _whole(lambda: _reconcile_schema(session), bool)
    swept = _whole(lambda: sweep(session.recovery), lambda done: bool(done.settled))
    _whole(session.commits.complete)
    return swept


def _whole(step: Callable[[], T], changed: Callable[[T], bool] = lambda _: False) -> T:
    """One step, from beginning to end. Whoever is stopped behind it is told when it `changed` anything."""
    check_bounds()
    with unbounded():
        done = step()
    if changed(done):
        note_left(SETTLED)
    return done


def _migrated(session: GraphSession) -> bool:
    from omnigraph.manifest.migrations import migrate  # noqa: PLC0415  as above

    head = session.manifest.head(None)
    return migrate(session.manifest, head) is not head


def refresh_session(session: GraphSession) -> Healed:
    """Finish interrupted schema renames, then heal what can be healed beside live writers."""
    from omnigraph.recovery.heal import heal_pending_sidecars_roll_forward  # noqa: PLC0415  as above

    _reconcile_schema(session)
    healed = heal_pending_sidecars_roll_forward(session.recovery)
    session.schemas.current()
    return healed


def check_schema_published(session: GraphSession) -> None:
    """Raise `SchemaDrift` when main follows another schema than the one on disk.

    That is the state between the publish of a schema apply and its last rename: the new tables with the old
    schema would be misread.
    """
    contract = session.schemas.current()
    if session.manifest.current(None).schema_hash != contract.hash:
        raise SchemaDrift(
            "a schema change was published and its files are not in place yet",
            hint="open the graph read-write once, which completes the change",
        )


def _reconcile_schema(session: GraphSession) -> bool:
    """The stand-alone reconcile; with a pending sidecar the sidecar decides instead. Whether it did."""
    from omnigraph.recovery.queues import SCHEMA_APPLY_KEY  # noqa: PLC0415  as above
    from omnigraph.recovery.schema_state import (  # noqa: PLC0415
        reconcile_schema_state,
        staged_schema_files,
    )

    context = session.recovery
    if not staged_schema_files(context):
        return False
    try:
        with (
            context.queues.acquire_many([SCHEMA_APPLY_KEY]),
            context.lease.hold(wait_s_max=LEASE_OPEN_WAIT_S_MAX),
        ):
            if not any(each.changes_accepted_schema for each in context.sidecars.pending()):
                reconcile_schema_state(context)
                return True
    except ResourceBusy:
        # The staged files may belong to the process that is writing now.
        emit(Warned("an interrupted schema change was left alone", "another process is writing"))
    return False
