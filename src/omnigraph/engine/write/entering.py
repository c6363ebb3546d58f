"""The one way into a write, for every call that writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.core.errors import BadRequest, SchemaContractMissing, SchemaDrift
from omnigraph.core.ids import refuse_reserved_actor
from omnigraph.engine.upkeep import refresh_session

if TYPE_CHECKING:
    from omnigraph.core.permission import Question
    from omnigraph.engine.schema_contract import SchemaContract
    from omnigraph.engine.session import GraphSession


def entering_write(
    session: GraphSession,
    actor: str | None,
    question: Question,
    *more: Question,
    heal: bool = True,
    waits: bool = True,
) -> SchemaContract:
    """What every call that writes does first; returns the accepted schema.

    The actor is not one that only the engine itself may be, and the policy of the handle permits everything
    that is going to happen. Then as `settled_for_write`. Raises what that raises, Forbidden, ActorRequired.
    """
    refuse_reserved_actor(actor)
    session.ask(actor, question, *more)
    return settled_for_write(session, heal=heal, waits=waits)


def settled_for_write(session: GraphSession, *, heal: bool = True, waits: bool = True) -> SchemaContract:
    """What a write does that nobody has to permit, or that begins anew; returns the accepted schema.

    The handle is open and may write, and the schema on disk is the accepted one. With `heal`, what dead
    writers finished is visible afterwards, and no schema apply is under way. Calls that move no table, and
    index builds, go without it: they settle nobody's write. Unless it `waits`, a pending write is left alone
    while its writer may be alive in another process; a call that can begin again does so only when that one
    turns out to be in its way.
    Raises BadRequest, SchemaDrift, and ConflictError during a schema apply.
    """
    from omnigraph.recovery.heal import heal_pending_sidecars_roll_forward  # noqa: PLC0415  a reader never does

    if session.read_only:
        raise BadRequest("the graph was opened read-only", hint="open it with omnigraph.open")
    try:
        contract = session.contract()
    except (SchemaDrift, SchemaContractMissing):
        # Perhaps a schema apply died between two of its renames: then it is completed first.
        refresh_session(session)
        contract = session.contract()
    if not heal:
        return contract
    if heal_pending_sidecars_roll_forward(session.recovery, waits=waits).anything:
        contract = session.contract()  # what was healed may be a schema change
    session.manifest.refuse_during_schema_apply()
    return contract
