"""The handlers that write. Each of them is one commit, or changes nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from omnigraph.api.texts import Text
from omnigraph.core.errors import Forbidden, OmnigraphError
from omnigraph.core.permission import Action, Question
from omnigraph.server.answers import document
from omnigraph.server.failures import INTERNAL, INTERNAL_STATUS, status_of

if TYPE_CHECKING:
    from omnigraph.server import bodies
    from omnigraph.server.answers import Answer
    from omnigraph.server.bodies import LoadParameters, MutateBody
    from omnigraph.server.calls import Call


def mutate(call: Call[MutateBody]) -> Answer:
    """Run a query that writes."""
    said = call.said
    done = call.graph.mutate(
        Text(said.query),
        said.params,
        name=said.name,
        branch=said.branch,
        actor=call.actor,
        if_commit=said.if_commit,
        idempotency_key=call.key,
    )
    return document(done.to_dict())


def mutate_many(call: Call[bodies.MutateManyBody]) -> Answer:
    """Run a query that writes, once for each set of parameters, as one commit."""
    said = call.said
    done = call.graph.mutate_many(
        Text(said.query),
        said.parameter_sets,
        name=said.name,
        branch=said.branch,
        actor=call.actor,
        if_commit=said.if_commit,
        idempotency_key=call.key,
    )
    return document(done.to_dict())


def load(call: Call[LoadParameters]) -> Answer:
    """Load records as one commit."""
    said = call.said
    report = call.graph.load(
        call.records,
        mode=said.mode,
        branch=said.branch,
        base=said.base,
        actor=call.actor,
        if_commit=said.if_commit,
        idempotency_key=call.key,
        replace_types=said.replace_types,
        on_duplicate=said.on_duplicate,
        engine="local",
        format="jsonl",
    )
    return document(report.to_dict())


def make_branch(call: Call[bodies.BranchBody]) -> Answer:
    """Make a branch."""
    made = call.graph.branches.create(call.said.name, from_branch=call.said.base, actor=call.actor)
    return document({**made.to_dict(), "actor_id": call.actor})


def drop_branch(call: Call[bodies.Nothing]) -> Answer:
    """Delete a branch."""
    graph = call.graph
    gone = graph.branches.delete(call.names["branch"], actor=call.actor)
    return document({**gone.to_dict(), "actor_id": call.actor})


def merge(call: Call[bodies.MergeBody]) -> Answer:
    """Merge one branch into another."""
    said = call.said
    done = call.graph.branches.merge(
        said.source,
        into=said.target,
        actor=call.actor,
        on_conflict=said.on_conflict,
        resolve=said.resolve,
    )
    told = {**done.to_dict(), "actor_id": call.actor}
    return document({**told, **_deleted(call, done.source)} if said.deletes_source else told)


def _deleted(call: Call[bodies.MergeBody], source: str) -> dict[str, Any]:
    """What became of the source. The merge has happened, so that a refusal here is told and not raised."""
    decision = call.decided(Question(Action.BRANCH_DELETE, None, source))
    try:
        if not decision.allowed:
            raise Forbidden(decision.message)
        graph = call.graph
        graph.branches.delete(source, actor=call.actor)
    except OmnigraphError as error:
        why = INTERNAL if status_of(error) == INTERNAL_STATUS else error.message
        return {"branch_deleted": False, "branch_delete_error": why}
    return {"branch_deleted": True}


def create_tag(call: Call[bodies.TagBody]) -> Answer:
    """Name a commit."""
    named = call.graph.tags.create(call.said.name, at=call.said.at, actor=call.actor)
    return document({"name": call.said.name, "graph_commit_id": named, "actor_id": call.actor})


def delete_tag(call: Call[bodies.Nothing]) -> Answer:
    """Forget a name."""
    graph = call.graph
    graph.tags.delete(call.names["tag"], actor=call.actor)
    return document({"name": call.names["tag"], "actor_id": call.actor})


def revert(call: Call[bodies.RevertBody]) -> Answer:
    """Take back what one commit did."""
    said = call.said
    done = call.graph.revert(said.commit, branch=said.branch, parent=said.parent, actor=call.actor)
    return document(done.to_dict())


def show_again(call: Call[bodies.RestoreBody]) -> Answer:
    """Make a branch show an older state again."""
    graph = call.graph
    done = graph.branches.restore(call.said.branch, to=call.said.to, actor=call.actor)
    return document(done.to_dict())


def apply_schema(call: Call[bodies.SchemaBody]) -> Answer:
    """Make a text the schema of the graph, unless a stored query would mean nothing any more."""
    said = call.said
    if call.stored.by_name:
        source, file = said.schema_source.encode(), said.file
        plan = call.graph.plan_schema(
            source, file=file, allow_data_loss=said.allow_data_loss, fills=said.fills
        ).plan
        call.stored.check(plan.desired)
    done = call.graph.apply_schema(
        said.schema_source.encode(),
        file=said.file,
        actor=call.actor,
        dry_run=said.dry_run,
        allow_data_loss=said.allow_data_loss,
        fills=said.fills,
    )
    return document(done.to_dict())


def optimize(call: Call[bodies.OptimizeBody]) -> Answer:
    """Keep a branch fast."""
    said = call.said
    return document(call.graph.optimize(branch=said.branch, types=said.types, actor=call.actor).to_dict())


def cleanup(call: Call[bodies.CleanupBody]) -> Answer:
    """Remove states that nobody wants any more."""
    said = call.said
    age = None if said.older_than_s is None else timedelta(seconds=said.older_than_s)
    done = call.graph.cleanup(keep=said.keep, older_than=age, dry_run=said.dry_run, actor=call.actor)
    return document(done.to_dict(files=True))
