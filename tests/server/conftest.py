"""Servers for tests: a real one in a thread of this process, on a port that the system chose."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from graphs import FAST, make_graph
from omnigraph.api.graph import Graph
from omnigraph.core.permission import WRITERS, Policy
from omnigraph.server.app import Application
from omnigraph.server.served import GraphToServe, open_all
from omnigraph.server.serving import Server, listening
from omnigraph.server.stored import NO_QUERIES, StoredQueries
from omnigraph.server.tokens import TOKEN_JSON, read_tokens

SHIPS = """
node Ship { imo: String @key  name: String  tonnage: I32? }
node Port { code: String @key  name: String }
edge CallsAt: Ship -> Port { berth: String? }
"""
SEED = """
query seed() {
  insert Ship { imo: "S1", name: "Aurora", tonnage: 9000 }
  insert Ship { imo: "S2", name: "Boreas", tonnage: 12000 }
  insert Port { code: "LIS", name: "Lisbon" }
  insert CallsAt { from: "S1", to: "LIS", berth: "4B" }
}
"""
BY_IMO = "query ship_by_imo($imo: String) { match { $s: Ship { imo: $imo } } return { $s.imo, $s.name } }"
ADD = "query add_ship($imo: String, $name: String) { insert Ship { imo: $imo, name: $name } }"
RENAME = "query rename($imo: String, $name: String) { update Ship set { name: $name } where imo = $imo }"


@dataclass
class Running:
    """One running server. `ask` sends one request with the token of somebody, or without one."""

    url: str
    application: Application
    server: Server
    tokens: Mapping[str, str]
    thread: threading.Thread

    def stopped(self) -> None:
        """Waits until the server has ended."""
        self.thread.join(60)
        assert not self.thread.is_alive()

    def client(self, who: str | None = None, **named: Any) -> httpx2.Client:
        headers = {} if who is None else {"Authorization": f"Bearer {self.tokens[who]}"}
        # There is no TLS here; reading the certificates of the machine takes longer than most requests.
        named = {"timeout": 60, "trust_env": False, "verify": False, **named}
        return httpx2.Client(base_url=self.url, headers=headers, **named)

    def ask(self, method: str, path: str, who: str | None = None, **named: Any) -> httpx2.Response:
        with self.client(who) as client:
            return client.request(method, path, **named)

    def post(self, path: str, body: Any, who: str | None = None, **named: Any) -> httpx2.Response:
        return self.ask("POST", f"/graphs/harbor{path}", who, json=body, **named)


Serve = Callable[..., Running]


@contextmanager
def kept_log() -> Iterator[list[str]]:
    """The log lines of servers in this process, instead of on stderr: the last ones come when a test is over."""
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omnigraph.server.log.write_line", lines.append)
        yield lines


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What the servers of a test have logged so far."""
    with kept_log() as lines:
        yield lines


@pytest.fixture
def harbor(tmp_path: Path) -> Iterator[Graph]:
    with make_graph(tmp_path / "harbor.omni", SHIPS) as graph:
        graph.mutate(SEED)
        yield graph


@pytest.fixture
def serve(harbor: Graph, logged: list[str]) -> Iterator[Serve]:
    """Starts servers of the graph `harbor`, and of others beside it; all are stopped at the end."""
    with ExitStack() as running:

        def start(
            tokens: Mapping[str, str] | None = None,
            policy: Policy = WRITERS,
            others: Sequence[GraphToServe] = (),
            queries: StoredQueries = NO_QUERIES,
            **named: Any,
        ) -> Running:
            import json

            known = read_tokens({TOKEN_JSON: json.dumps(tokens)} if tokens else {})
            wanted = [GraphToServe("harbor", harbor.uri, policy, queries=queries), *others]
            application = Application(open_all(wanted, FAST, all_of_them=not others), known, **named)
            sock = running.enter_context(listening("127.0.0.1:0"))
            server = Server(application, drain_s=5)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
            thread.start()

            def stop() -> None:
                server.stop()
                made.stopped()
                application.close()

            url = f"http://127.0.0.1:{sock.getsockname()[1]}"
            made = Running(url, application, server, tokens or {}, thread)
            running.callback(stop)
            return made

        yield start
