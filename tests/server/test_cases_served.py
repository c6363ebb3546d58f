"""The cases of reads, mutations, merges and loads, over a server: the same rows, reports and refusals as in process.

The steps are those of `tests/cases`; only the graph that a case works on is behind a server. In the ordinary run every
read and some of the writes go this way, in the long one all of them.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from threading import Thread
from typing import Any

import pytest

import omnigraph
from cases import runner
from cases.test_cases import CASES
from omnigraph.api.graph import Graph
from omnigraph.core.errors import NotRemote
from omnigraph.core.permission import WRITERS
from omnigraph.server.app import Application
from omnigraph.server.served import ServedGraph, ServedGraphs
from omnigraph.server.serving import Server, listening
from omnigraph.server.stored import NO_QUERIES
from omnigraph.server.tokens import read_tokens
from server.conftest import kept_log

pytestmark = pytest.mark.slow  # the same cases run in process among the quick ones

WRITES_SHOWN = 5
"""Of so many cases that write, one goes over a server in the ordinary run."""


BY_CLASS = {"LE4", "M27", "M49b", "Q98"}
"""They name a class of error that has no kind of its own, or a text of it; over a server the kind says what it was."""


LOCAL_ONLY = {"LC4", "LC5", "LC7", "LC8", "LC9", "LF1", "LF2", "LF3"}
"""They set records aside, or read files that are no JSON lines: that is not there over a server."""


class _NotThere(Exception):
    """The case asked for what cannot be remote."""


def chosen() -> Iterator[Any]:
    number = count()
    for case in CASES:
        kind = case.file.parent.name
        if case.label in BY_CLASS:
            continue
        if kind == "read":
            yield pytest.param(case, id=case.id)
        elif kind in {"mutation", "merge", "load"}:
            marks = () if next(number) % WRITES_SHOWN == 0 else (pytest.mark.torture,)
            yield pytest.param(case, id=case.id, marks=marks)


class Behind:
    """A graph behind a server; what a case looks up in the storage is looked up there."""

    def __init__(self, graph: Graph, remote: omnigraph.RemoteGraph) -> None:
        self._graph, self._remote = graph, remote

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph if name in {"pending", "verify"} else self._remote, name)


@pytest.fixture(scope="module")
def behind() -> Iterator[Callable[[Graph], Any]]:
    """Puts graphs behind one server, and gives what a client has of each."""
    application = Application(ServedGraphs({}, (), ()), read_tokens({}))
    with listening("127.0.0.1:0") as sock, ExitStack() as held:
        held.enter_context(kept_log())
        server = Server(application, drain_s=5)
        thread = Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        held.callback(application.close)
        held.callback(thread.join, 60)
        held.callback(server.stop)
        ids = count()
        known: dict[int, Any] = {}

        def put(graph: Graph) -> Any:
            if id(graph) not in known:
                name = f"g{next(ids)}"
                read_only = graph.session.read_only
                one = ServedGraph(name, graph, WRITERS, graph.uri, read_only, NO_QUERIES)
                application.graphs = ServedGraphs({**application.graphs.by_id, name: one}, (), ())
                url = f"http://127.0.0.1:{sock.getsockname()[1]}"
                known[id(graph)] = Behind(graph, held.enter_context(omnigraph.connect(url, graph=name)))
            return known[id(graph)]

        yield put


@pytest.mark.parametrize("case", list(chosen()))
def test_a_case_means_the_same_over_a_server(
    case: runner.Case, behind: Callable[[Graph], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(world: runner.World, name: str, value: Any) -> None:
        if isinstance(value, NotRemote):
            raise _NotThere
        world.facts[name] = behind(value) if name == "graph" and isinstance(value, Graph) else value

    monkeypatch.setattr(runner.World, "__setitem__", keep)
    there = True
    try:
        runner.run_case(case)
    except _NotThere:
        there = False
    assert there is (case.label not in LOCAL_ONLY)
