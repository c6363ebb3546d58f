"""The application: one request from its first byte to the last one of its answer.

The order is always the same: who is it, which graph, what is asked for, may they, is there a place, then the
work. Nothing that blocks runs on the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from omnigraph.core.bounds import within
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import (
    BadRequest,
    BranchNotFound,
    CommitNotFound,
    Forbidden,
    MethodNotAllowed,
    OmnigraphError,
)
from omnigraph.core.ids import new_ulid
from omnigraph.core.limits import (
    PARSED_AT_ONCE_BYTES_MAX,
    SERVER_READERS_DEFAULT,
    SERVER_WRITERS_DEFAULT,
)
from omnigraph.core.permission import Action, Everyone, Question
from omnigraph.server import requests
from omnigraph.server.answers import JSON, LINES, Answer, Stream
from omnigraph.server.calls import EVERY_BRANCH, At, Call, IfMissing
from omnigraph.server.failures import as_typed, body_of, headers_of, status_of
from omnigraph.server.flat import Caller, FlatRoute
from omnigraph.server.log import audit, log, told
from omnigraph.server.routes import BY_OPERATION, GRAPH_ROUTES, Carried, GraphRoute, Lane
from omnigraph.server.routing import Routes
from omnigraph.server.served import Retired
from omnigraph.server.stored import NO_QUERIES, as_said
from omnigraph.server.telemetry import Metrics, spanning
from omnigraph.server.workers import Admission, Workers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping

    from starlette.types import Receive, Scope, Send

    from omnigraph.core.bounds import Bounds
    from omnigraph.core.permission import Decision
    from omnigraph.server.bodies import InvokeBody
    from omnigraph.server.served import ServedGraph, ServedGraphs
    from omnigraph.server.tokens import Tokens

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
INVOKE: Final = "invokeQuery"
HOSTS_KEPT_MAX: Final = 64
_BOUNDS_OF_A_REQUEST: Final = frozenset({"x-timeout-ms", "x-memory-bytes"})
WATCHED_AFTER_S: Final = 0.01
"""Reads that take less are over before anybody could leave."""


@dataclass(slots=True)
class Exchange:
    """One request while it is answered."""

    scope: Scope
    receive: Receive
    send: Send
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    request_id: str = ""
    operation: str = "none"
    graph_id: str | None = None
    actor: str | None = None
    status: int = 0
    """Of the answer; 0 before it has begun."""


class Application:
    """The ASGI application of one server."""

    def __init__(
        self,
        graphs: ServedGraphs,
        tokens: Tokens,
        *,
        hosts: frozenset[str] | None = LOOPBACK,
        readers: int = SERVER_READERS_DEFAULT,
        writers: int = SERVER_WRITERS_DEFAULT,
        admission: Admission | None = None,
        limits: requests.ReadLimits | None = None,
        read_again: Callable[[Mapping[str, ServedGraph]], tuple[ServedGraphs, Tokens]] | None = None,
    ) -> None:
        self.graphs = graphs
        self.tokens = tokens
        self._read_again: Final = read_again
        self._retired: Final = Retired()
        self._reloading: Final = threading.Lock()
        self.draining = False
        self.metrics: Final = Metrics()
        self.workers: Final = {Lane.READS: Workers("reads", readers), Lane.WRITES: Workers("writes", writers)}
        self._admission: Final = admission or Admission()
        self._hosts: Final = hosts
        self._limits: Final = limits or requests.ReadLimits()
        self._routes: Final = Routes(GRAPH_ROUTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        begun = time.perf_counter()
        try:
            await self._answer(exchange)
        except requests.Disconnected:
            exchange.status = exchange.status or 499
        except Exception as error:  # noqa: BLE001  whatever it is, the client gets an answer or a cut stream
            await self._fail(exchange, error)
        seconds = time.perf_counter() - begun
        self.metrics.answered(exchange.operation, exchange.status, seconds)
        told(
            "request",
            {
                "method": scope["method"],
                "operation": exchange.operation,
                "status": exchange.status,
                "ms": round(seconds * 1_000, 3),
                "graph": exchange.graph_id,
                "actor": exchange.actor,
                "request_id": exchange.request_id,
            },
        )

    def close(self) -> None:
        """Finish what is under way and close the graphs."""
        for each in self.workers.values():
            each.close()
        self.graphs.close()
        self._retired.close()

    def reload(self) -> None:
        """Read graphs, policies and tokens again, and serve them from the next request on.

        A failure changes nothing. It blocks. Raises what reading them raises.
        """
        if self._read_again is None:
            raise BadRequest("this server has nothing to read again")
        with self._reloading:
            before = self.graphs
            graphs, tokens = self._read_again(before.by_id)

            def put() -> ServedGraphs:
                self.graphs, self.tokens = graphs, tokens
                return graphs

            self._retired.replace(before, put)
        log().info("reloaded", graphs=len(graphs.by_id), left_out=len(graphs.quarantined))

    # --- the order of things -----------------------------------------------------------------------------

    async def _answer(self, exchange: Exchange) -> None:
        exchange.request_id = new_ulid()
        exchange.headers = requests.headers_in(exchange.scope)
        exchange.request_id = requests.request_id_in(exchange.headers) or exchange.request_id
        self._check_host(exchange.headers)
        requests.check_encoding(exchange.scope)
        route, names = self._routes.find(exchange.scope)
        exchange.operation = route.operation
        with spanning(route.operation):
            if isinstance(route, FlatRoute):
                if route.protected:
                    self._identify(exchange)
                requests.parameters_in(exchange.scope, route.said)
                caller = Caller(exchange.actor, exchange.request_id)
                if route.blocks:
                    writers = self.workers[Lane.WRITES]
                    await _send_whole(exchange, await writers.run(route.work, self, caller))
                else:
                    await _send_whole(exchange, route.work(self, caller))
            else:
                graphs = self._retired.begin(self._served)
                try:
                    await self._graph_call(exchange, route, graphs, dict(names))
                finally:
                    self._retired.end(graphs, self._served)

    def _served(self) -> ServedGraphs:
        return self.graphs

    async def _graph_call(
        self, exchange: Exchange, route: GraphRoute, graphs: ServedGraphs, names: dict[str, str]
    ) -> None:
        self._identify(exchange)
        served = graphs.find(names.pop("graph_id"))
        exchange.graph_id = served.id
        with ExitStack() as held:
            if route.carried is Carried.BODY:
                said = await requests.json_body(
                    exchange.headers, exchange.receive, route.said, empty=route.empty
                )
            else:
                said = requests.parameters_in(exchange.scope, route.said)
            if route.operation == INVOKE:
                route, said = self._stored(exchange, served, cast("InvokeBody", said), names["name"])
            await self._authorize(exchange, served, route, said, names)
            key = exchange.headers.get("idempotency-key")
            if key is not None and not route.keyed:
                raise BadRequest("this route takes no idempotency key", hint="leave the header out")
            call = Call(
                served.graph,
                said,
                names,
                exchange.actor,
                exchange.headers,
                Cancellation(),
                partial(_decided, exchange, served),
                key=key,
                stored=served.queries,
                rows_max=requests.rows_max_in(exchange.headers, self._limits),
            )
            if route.at_hand is not None and (answer := self._answer_at_hand(route, call)) is not None:
                await _send_whole(exchange, answer)
                return
            held.enter_context(self._place(exchange, route))
            if route.carried is Carried.RECORDS:
                requests.check_media_type(exchange.headers, LINES)
                records = held.enter_context(await requests.spooled_body(exchange.headers, exchange.receive))
                call = replace(call, records=records)
            await self._work(exchange, route, call)

    async def _work(self, exchange: Exchange, route: GraphRoute, call: Call[Any]) -> None:
        workers, reads = self.workers[route.lane], route.lane is Lane.READS
        most = self._limits.memory_bytes
        bounds = requests.bounds_in(
            exchange.headers,
            call.cancel,
            seconds_max=self._limits.seconds if reads else None,
            memory_max=most or call.graph.session.settings.query_memory_bytes,
        )
        if reads and most is not None and bounds.memory_bytes is None:
            bounds = replace(bounds, memory_bytes=most)
        if not reads:
            # It was admitted, so it goes on to its end, whoever is still there to hear about it.
            await _send_whole(exchange, cast("Answer", await workers.run(_done, route, call, bounds)))
            return
        async with _watching(exchange, call.cancel):
            answer = await workers.run(_done, route, call, bounds)
            if isinstance(answer, Stream):
                await _send_stream(exchange, answer, workers, call.cancel)
            else:
                await _send_whole(exchange, answer)

    def _answer_at_hand(self, route: GraphRoute, call: Call[Any]) -> Answer | None:
        """The answer, when it takes less than handing the work to a thread. Nothing waits for it, so it needs
        no place among those who wait, and nobody could leave meanwhile.

        A long request, and one with bounds of its own, is for the workers, which keep them.
        """
        headers = call.headers
        length = headers.get("content-length", "")
        if not length.isdigit() or int(length) > PARSED_AT_ONCE_BYTES_MAX:
            return None
        if self._limits.memory_bytes is not None or not _BOUNDS_OF_A_REQUEST.isdisjoint(headers):
            return None
        return None if route.at_hand is None else route.at_hand(call)

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        typed = as_typed(error)
        status = status_of(typed)
        if status >= 500:
            log().error(
                "failure",
                kind=typed.kind,
                error=type(error).__name__,
                operation=exchange.operation,
                graph=exchange.graph_id,
                request_id=exchange.request_id,
            )
        if exchange.status:
            # The answer has begun. Leaving it without an end is how the client learns that it is not whole.
            return
        body = body_of(typed, exchange.request_id, self.graphs.places)
        headers = headers_of(typed)
        if isinstance(error, MethodNotAllowed):
            headers["allow"] = str(typed.details["allow"])
        await _send_whole(exchange, Answer(body, JSON, status, headers))

    # --- checks ------------------------------------------------------------------------------------------

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """A page of a browser must not reach a server through a name or from a place that is not its own."""
        named, port = _name_and_port(headers.get("host", ""))
        if self._hosts is not None and named not in self._hosts:
            raise BadRequest("this server has another name", hint="serve with --allowed-host NAME to add one")
        origin = headers.get("origin")
        if origin is None:
            return
        own = urlsplit(origin)
        try:
            same = (own.hostname, own.port) == (named, port)
        except ValueError:
            same = False
        if not same:
            raise Forbidden("pages of other places may not use this server")

    def _identify(self, exchange: Exchange) -> None:
        if self.tokens:
            exchange.actor = self.tokens.actor(exchange.headers.get("authorization"))

    def _stored(
        self, exchange: Exchange, served: ServedGraph, said: InvokeBody, name: str
    ) -> tuple[GraphRoute, Any]:
        """The route a stored query goes on with, and what it says there.

        Raises StoredQueryNotFound, also for who may not invoke it, and BadRequest.
        """
        question = Question(Action.INVOKE_QUERY, query=name)
        decision = _decided(exchange, served, question)
        found = (served.queries if decision.allowed else NO_QUERIES).find(name)
        return BY_OPERATION["mutate" if found.mutation else "query"], as_said(found, said)

    async def _authorize(
        self, exchange: Exchange, served: ServedGraph, route: GraphRoute, said: Any, names: Mapping[str, str]
    ) -> None:
        readers = self.workers[Lane.READS]
        for asked in route.asks(said, names):
            questions, hidden = [asked], None
            if not isinstance(served.policy, Everyone):
                if isinstance(asked.branch, At):
                    hidden = CommitNotFound(asked.branch)
                    homes = await readers.run(_homes_of, served, asked.branch, hidden)
                    questions = [replace(asked, branch=each) for each in homes]
                elif asked.branch == EVERY_BRANCH or isinstance(asked.target, IfMissing):
                    there = await readers.run(served.graph.branches.list)
                    questions = (
                        [replace(asked, branch=name) for name in there]
                        if asked.branch == EVERY_BRANCH
                        else [asked] * (asked.target not in there)
                    )
            for question in questions:
                decision = _decided(exchange, served, question)
                if not decision.allowed:
                    raise hidden or Forbidden(decision.message, hint="ask the operator of the server")

    @contextmanager
    def _place(self, exchange: Exchange, route: GraphRoute) -> Generator[None]:
        with ExitStack() as held:
            # Without tokens nobody is told apart, so nobody can take the places of others.
            if route.lane is Lane.WRITES and exchange.actor is not None:
                held.enter_context(self._admission.write_of(exchange.actor))
            held.enter_context(self.workers[route.lane].admitted())
            yield


def _done(route: GraphRoute, call: Call[Any], bounds: Bounds) -> Answer | Stream:
    with within(bounds):
        return route.work(call)


def _decided(exchange: Exchange, served: ServedGraph, question: Question) -> Decision:
    """The answer to a question, which is also written down."""
    decision = served.policy.decide(exchange.actor, question)
    audit(exchange.actor, exchange.request_id, served.id, question, decision)
    return decision


def _homes_of(served: ServedGraph, at: str, hidden: OmnigraphError) -> tuple[str, ...]:
    """The branches that what `at` names belongs to: that of the commit, and the one it is named by.

    `topic~1` and `topic@2026-11-01` may mean another commit a moment later, but never one of a branch that
    was not asked about.
    """
    there = served.graph.branches.list()
    if at.strip() in there:
        return (at.strip(),)
    try:
        home = served.graph.commits.show(at).branch
    except (CommitNotFound, BranchNotFound):
        raise hidden from None
    named = at.partition("~")[0].rpartition("@")[0] or at.partition("~")[0]
    return (home, named.strip()) if named.strip() in there else (home,)


@lru_cache(HOSTS_KEPT_MAX)
def _name_and_port(host: str) -> tuple[str | None, int | None]:
    """What a Host header names. Raises BadRequest."""
    try:
        found = urlsplit(f"//{host}")
        named = found.hostname, found.port
    except ValueError:
        raise BadRequest("the Host header is not a name and a port") from None
    return named


@asynccontextmanager
async def _watching(exchange: Exchange, cancel: Cancellation) -> AsyncGenerator[None]:
    """While a read goes on: when its client leaves, the read is told to stop. A short one is not watched."""
    watchers: list[asyncio.Task[None]] = []

    async def watch() -> None:
        while (await exchange.receive())["type"] != "http.disconnect":
            pass
        cancel.request()

    loop = asyncio.get_running_loop()
    begin = loop.call_later(WATCHED_AFTER_S, lambda: watchers.append(loop.create_task(watch())))
    try:
        yield
    finally:
        begin.cancel()
        for each in watchers:
            each.cancel()


async def _send_head(exchange: Exchange, status: int, headers: Mapping[str, str]) -> None:
    exchange.status = status
    pairs = {**headers, "x-request-id": exchange.request_id, "x-content-type-options": "nosniff"}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs.items()]
    await exchange.send({"type": "http.response.start", "status": status, "headers": raw})


async def _send_whole(exchange: Exchange, answer: Answer) -> None:
    about = {"content-type": answer.media_type, "content-length": str(len(answer.content)), **answer.headers}
    await _send_head(exchange, answer.status, about)
    await exchange.send({"type": "http.response.body", "body": answer.content})


async def _send_stream(exchange: Exchange, stream: Stream, workers: Workers, cancel: Cancellation) -> None:
    """Send the pieces as the client takes them. An error or a departure leaves the answer without its end."""
    try:
        # The first piece comes before the headers: what fails at once is still an ordinary error.
        piece = await workers.run(next, stream.pieces, None)
        await _send_head(exchange, stream.status, {"content-type": stream.media_type, **stream.headers})
        while piece is not None:
            if piece:
                await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})
            if cancel.requested:
                return
            piece = await workers.run(next, stream.pieces, None)
        await exchange.send({"type": "http.response.body", "body": b""})
    finally:
        close = getattr(stream.pieces, "close", None)
        if close is not None:
            await workers.run(close)
