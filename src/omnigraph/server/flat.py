"""The routes that belong to no graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from omnigraph import __version__
from omnigraph.core.errors import Forbidden
from omnigraph.core.formats import INTERNAL_SCHEMA_VERSION
from omnigraph.core.permission import Action, Question
from omnigraph.server.answers import JSON, Answer, document
from omnigraph.server.bodies import Body, Nothing
from omnigraph.server.log import audit
from omnigraph.server.telemetry import MEDIA_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnigraph.core.permission import Decision
    from omnigraph.server.app import Application
    from omnigraph.server.served import ServedGraph


class Caller(NamedTuple):
    """Who asks, and under which id of a request."""

    actor: str | None
    request_id: str

    def may(self, served: ServedGraph, question: Question) -> Decision:
        """The answer to a question of this caller, which is also written down."""
        decision = served.policy.decide(self.actor, question)
        audit(self.actor, self.request_id, served.id, question, decision)
        return decision


@dataclass(frozen=True, slots=True)
class FlatRoute:
    """One thing a client can ask of the server itself. Its work never blocks, unless it says so."""

    operation: str
    method: str
    path: str
    summary: str
    protected: bool
    work: Callable[[Application, Caller], Answer]
    said: type[Body] = Nothing
    gives: tuple[str, ...] = (JSON,)
    blocks: bool = False


def _health(app: Application, caller: Caller) -> Answer:
    del app, caller
    return document(
        {"status": "ok", "version": __version__, "internal_schema_version": INTERNAL_SCHEMA_VERSION}
    )


def _ready(app: Application, caller: Caller) -> Answer:
    del caller
    ready = bool(app.graphs.by_id) and not app.draining
    said = {
        "status": "ready" if ready else "not_ready",
        "graphs_ready": len(app.graphs.by_id),
        "graphs_quarantined": len(app.graphs.quarantined),
    }
    answer = document(said)
    return answer if ready else Answer(answer.content, JSON, 503)


def _openapi(app: Application, caller: Caller) -> Answer:
    del caller
    return _described(secured=bool(app.tokens))


@cache
def _described(*, secured: bool) -> Answer:
    from omnigraph.server.openapi import openapi  # noqa: PLC0415  it reads the table this module is part of

    return document(openapi(secured=secured))


def _graphs(app: Application, caller: Caller) -> Answer:
    """What the actor may read; the rest does not exist for them."""
    question = Question(Action.READ, "main")
    readable = [
        {"graph_id": each.id}
        for _, each in sorted(app.graphs.by_id.items())
        if caller.may(each, question).allowed
    ]
    return document({"graphs": readable})


def _metrics(app: Application, caller: Caller) -> Answer:
    del caller
    under_way = {str(lane): workers.under_way for lane, workers in app.workers.items()}
    return Answer(app.metrics.text(under_way), MEDIA_TYPE)


def _reload(app: Application, caller: Caller) -> Answer:
    """Read everything again, for who may keep up every graph."""
    question = Question(Action.ADMIN)
    for each in app.graphs.by_id.values():
        decision = caller.may(each, question)
        if not decision.allowed:
            raise Forbidden(decision.message, hint="ask the operator of the server")
    app.reload()
    found = app.graphs
    return document({"graphs_ready": len(found.by_id), "graphs_quarantined": len(found.quarantined)})


FLAT_ROUTES: Final[tuple[FlatRoute, ...]] = (
    FlatRoute("health", "GET", "/healthz", "Whether the process runs.", False, _health),
    FlatRoute("ready", "GET", "/readyz", "Whether it serves.", False, _ready),
    FlatRoute("openapi", "GET", "/openapi.json", "This document.", False, _openapi),
    FlatRoute("listGraphs", "GET", "/graphs", "The graphs the caller may read.", True, _graphs),
    FlatRoute(
        "reload",
        "POST",
        "/admin/reload",
        "Read graphs, policies and tokens again.",
        True,
        _reload,
        blocks=True,
    ),
    FlatRoute("metrics", "GET", "/metrics", "Counts and durations.", True, _metrics, gives=(MEDIA_TYPE,)),
)
