"""The handlers that write. Each of them is one commit, or changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.server.answers import document
from omnigraph.server.reading import query_text

if TYPE_CHECKING:
    from omnigraph.server.answers import Answer
    from omnigraph.server.bodies import LoadParameters, MutateBody
    from omnigraph.server.calls import Call


def mutate(call: Call[MutateBody]) -> Answer:
    """Run a query that writes."""
    said = call.said
    done = call.graph.mutate(
        query_text(said.query),
        said.params,
        name=said.name,
        branch=said.branch,
        actor=call.actor,
        if_commit=said.if_commit,
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
        engine="local",
        format="jsonl",
    )
    return document(report.to_dict())
