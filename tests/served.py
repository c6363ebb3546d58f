"""A plugin: `pytest -p served tests/scenarios` runs the tests with every graph of this process behind a server.

The methods of a graph that a client has go over HTTP to the very graph they were called on; what cannot be
remote, and what names an actor, is called directly. So a scenario that holds in process has to hold here, too.
"""

import functools
import inspect
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import pytest

import omnigraph
from omnigraph.api.branches import Branches, Commits
from omnigraph.api.graph import Graph
from omnigraph.api.history import Feed, Tags
from omnigraph.client.parts import RemoteBranches, RemoteCommits, RemoteFeed, RemoteTags
from omnigraph.client.remote import RemoteGraph
from omnigraph.core.errors import NotRemote
from omnigraph.core.permission import WRITERS
from omnigraph.server.app import Application
from omnigraph.server.served import ServedGraph, ServedGraphs
from omnigraph.server.serving import Server, listening
from omnigraph.server.stored import NO_QUERIES
from omnigraph.server.tokens import read_tokens

PAIRS = (
    (Graph, RemoteGraph, None),
    (Branches, RemoteBranches, "branches"),
    (Commits, RemoteCommits, "commits"),
    (Tags, RemoteTags, "tags"),
    (Feed, RemoteFeed, "feed"),
)
HERE = {"close", "at", "uri"}
"""They say something about the handle itself."""
WORKERS = "omnigraph-"
"""How threads of a server are called: what they call has arrived."""

SENT: Final = Counter[str]()
"""Calls that went over the server, by name."""


class _Everything:
    """One server for all graphs of the process."""

    def __init__(self) -> None:
        self._application = Application(ServedGraphs({}, (), ()), read_tokens({}))
        self._socket = listening("127.0.0.1:0")
        self._server = Server(self._application, drain_s=5)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._thread.start()
        self._ids = count()
        self._lock = threading.Lock()
        self.graphs: weakref.WeakValueDictionary[int, Graph] = weakref.WeakValueDictionary()
        self._remotes: weakref.WeakKeyDictionary[Graph, RemoteGraph] = weakref.WeakKeyDictionary()

    def remote(self, graph: Graph) -> RemoteGraph:
        with self._lock:
            if graph not in self._remotes:
                name = f"g{next(self._ids)}"
                one = ServedGraph(name, graph, WRITERS, graph.uri, graph.session.read_only, NO_QUERIES)
                self._application.graphs = ServedGraphs({name: one, **self._application.graphs.by_id}, (), ())
                url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
                self._remotes[graph] = omnigraph.connect(url, graph=name)
            return self._remotes[graph]

    def close(self) -> None:
        self._server.stop()
        self._thread.join(60)
        self._socket.close()


def _over(every: _Everything, part: str | None, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def went(self: Any, *given: Any, **named: Any) -> Any:
        graph = self if part is None else every.graphs.get(id(self._session))
        here = threading.current_thread().name.startswith(WORKERS) or named.get("actor") is not None
        if here or graph is None or graph.session._closed:
            return call(self, *given, **named)
        remote = every.remote(graph)
        try:
            answer = getattr(remote if part is None else getattr(remote, part), name)(*given, **named)
        except NotRemote:
            return call(self, *given, **named)
        SENT[name] += 1
        return answer

    return went


def pytest_configure(config: pytest.Config) -> None:
    """Put everything behind one server."""
    every = _Everything()
    patch = pytest.MonkeyPatch()
    patch.setattr("omnigraph.server.log.write_line", lambda _line: None)
    begin = Graph.__init__

    def known(self: Graph, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        every.graphs[id(self.session)] = self

    patch.setattr(Graph, "__init__", known)
    for local, remote, part in PAIRS:
        for name in dir(remote):
            if name.startswith("_") or name in HERE or not hasattr(local, name):
                continue
            if inspect.isfunction(inspect.getattr_static(local, name)):
                patch.setattr(local, name, _over(every, part, name, getattr(local, name)))
    config.add_cleanup(every.close)
    config.add_cleanup(patch.undo)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how much went this way."""
    terminalreporter.write_line(f"{SENT.total()} calls went over the server")
