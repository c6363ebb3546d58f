"""The graphs a server serves: opened when it starts, left out when they cannot be."""

from __future__ import annotations

import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omnigraph.api.graph import open_graph, open_read_only
from omnigraph.core.errors import BadRequest, GraphNotFound, OmnigraphError
from omnigraph.core.limits import GRAPHS_OPENED_AT_ONCE
from omnigraph.server.log import log
from omnigraph.server.stored import NO_QUERIES, StoredQueries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from omnigraph.api.graph import Graph
    from omnigraph.core.permission import Policy
    from omnigraph.core.settings import Settings

_ID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_RESERVED_IDS: Final = frozenset({"policies", "healthz", "openapi", "graphs"})


@dataclass(frozen=True, slots=True)
class GraphToServe:
    """What the operator says about one graph."""

    id: str
    store: str
    policy: Policy
    read_only: bool = False
    queries: StoredQueries = NO_QUERIES


@dataclass(frozen=True, slots=True)
class ServedGraph:
    """One open graph and who may do what with it."""

    id: str
    graph: Graph
    policy: Policy
    store: str
    read_only: bool
    queries: StoredQueries


@dataclass(frozen=True, slots=True)
class ServedGraphs:
    """All open graphs, and the places of all graphs that were named, open or not."""

    by_id: Mapping[str, ServedGraph]
    quarantined: tuple[str, ...]
    places: tuple[str, ...]

    def find(self, graph_id: str) -> ServedGraph:
        """The graph of an id. Raises BadRequest for a text that can be none, and GraphNotFound."""
        check_id(graph_id)
        found = self.by_id.get(graph_id)
        if found is None:
            raise GraphNotFound(graph_id, hint="ask the operator which graphs this server has")
        return found

    def close(self) -> None:
        """Close every graph."""
        for each in self.by_id.values():
            each.graph.close()


class Retired:
    """The sets of graphs that are served no more and that requests may still use. Thread-safe."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._users: Final = Counter[int]()
        """How many requests use each set, by its identity."""
        self._sets: Final[list[ServedGraphs]] = []

    def begin(self, current: Callable[[], ServedGraphs]) -> ServedGraphs:
        """The set that is served now; one more request uses it."""
        with self._lock:
            graphs = current()
            self._users[id(graphs)] += 1
        return graphs

    def end(self, graphs: ServedGraphs, current: Callable[[], ServedGraphs]) -> None:
        """One request less uses a set. After the last one a set that is not served is closed, elsewhere."""
        with self._lock:
            self._users[id(graphs)] -= 1
            if self._users[id(graphs)]:
                return
            del self._users[id(graphs)]
            unused = self._unused(current())
        if unused:
            threading.Thread(target=_close_all, args=(unused,), name="omnigraph-retired").start()

    def replace(self, before: ServedGraphs, put: Callable[[], ServedGraphs]) -> None:
        """`put` serves another set from the next request on. What nobody uses is closed. It blocks."""
        with self._lock:
            current = put()
            self._sets.append(before)
            unused = self._unused(current)
        _close_all(unused)

    def close(self) -> None:
        """Close what is left."""
        for each in self._sets:
            each.close()

    def _unused(self, current: ServedGraphs) -> list[Graph]:
        """The graphs of sets without a user that are in no other set; these sets are forgotten."""
        idle = [each for each in self._sets if not self._users[id(each)]]
        if not idle:
            return []
        self._sets[:] = [each for each in self._sets if self._users[id(each)]]
        kept = {id(one.graph) for each in (current, *self._sets) for one in each.by_id.values()}
        return [one.graph for each in idle for one in each.by_id.values() if id(one.graph) not in kept]


def _close_all(graphs: Sequence[Graph]) -> None:
    for each in graphs:
        each.close()


def check_id(graph_id: str) -> None:
    """Refuse what cannot be the id of a graph. Raises BadRequest."""
    if not _ID.fullmatch(graph_id) or graph_id in _RESERVED_IDS:
        raise BadRequest("a graph id has 1 to 64 ASCII letters, digits and '-', and is no reserved word")


def open_all(
    wanted: Sequence[GraphToServe],
    settings: Settings,
    *,
    all_of_them: bool,
    before: Mapping[str, ServedGraph] | None = None,
) -> ServedGraphs:
    """Open the graphs, a few at a time. One that cannot be opened is left out.

    What is open in `before` stays open, with the policy and the queries of now. Raises the first failure when
    all of them are required, when none could be opened, or when one is left out that was served before.
    """
    for each in wanted:
        check_id(each.id)
    stores = [_place(each.store) for each in wanted]
    if len({*stores}) < len(stores) or len({each.id for each in wanted}) < len(wanted):
        raise BadRequest("two graphs have the same id or the same store", hint="name every store once")
    with ThreadPoolExecutor(GRAPHS_OPENED_AT_ONCE) as pool:
        opened = list(pool.map(partial(_open, settings=settings, before=before or {}), wanted))
    healthy = [each for each in opened if isinstance(each, ServedGraph)]
    failures = [each for each in opened if isinstance(each, OmnigraphError)]
    served = ServedGraphs(
        {each.id: each for each in healthy},
        tuple(
            each.id for each, found in zip(wanted, opened, strict=True) if isinstance(found, OmnigraphError)
        ),
        tuple({place for each in wanted for place in (each.store, _place(each.store))}),
    )
    lost = any(each in (before or {}) for each in served.quarantined)
    if failures and (all_of_them or lost or not healthy):
        for each in healthy:
            if before is None or each.graph is not getattr(before.get(each.id), "graph", None):
                each.graph.close()
        raise failures[0]
    for each in healthy:
        # The engine asks as well, so that a route without its question cannot write.
        each.graph.session.policy = each.policy
    return served


def _open(
    wanted: GraphToServe, settings: Settings, before: Mapping[str, ServedGraph]
) -> ServedGraph | OmnigraphError:
    known = before.get(wanted.id)
    if known is not None and (known.store, known.read_only) == (wanted.store, wanted.read_only):
        graph = known.graph
    else:
        known, graph = None, None
    try:
        if graph is None:
            opening = open_read_only if wanted.read_only else open_graph
            graph = opening(wanted.store, settings=settings)
        wanted.queries.check(graph.catalog())
        return ServedGraph(wanted.id, graph, wanted.policy, wanted.store, wanted.read_only, wanted.queries)
    except OmnigraphError as error:
        if graph is not None and known is None:
            graph.close()
        log().error("graph_left_out", graph=wanted.id, kind=error.kind)
        return error


def _place(store: str) -> str:
    return store.rstrip("/") if "://" in store else str(Path(store).resolve())
