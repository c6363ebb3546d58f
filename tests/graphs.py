"""Graphs for tests: made in a temporary directory, seeded, inspected from outside the write path."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import omnigraph
from omnigraph.api.graph import Graph
from omnigraph.core.events import Event, listen
from omnigraph.core.ids import Branch, TableKey
from omnigraph.core.settings import Settings
from omnigraph.engine import session
from omnigraph.engine.read import query
from omnigraph.manifest.state import Snapshot

PEOPLE = """
node Person {
  name: String @key
  age: I32?
  nick: String? @unique
  repoName: String?
}
node Company { name: String @key }
node Note { text: String  kind: String? }
edge Knows: Person -> Person { since: Date? }
edge WorksAt: Person -> Company @card(0..1)
"""

FIXTURE_M = """
node Member {
  email: String @key
  nick: String? @unique
  age: I32?
  score: F64?
  role: enum(owner, guest)?
  joined: DateTime?
  pic: Blob?
  @range(age, 0..150)
  @check(nick, "^[a-z]+$")
}
node Club { slug: String @key  tier: I32 }
node Memo { text: String }
edge JoinedTo: Member -> Club @card(0..2) { since: Date? }
edge Knows: Member -> Member { @unique(src, dst) }
edge Leads: Member -> Club @card(1..)
"""

FIXTURE_M_ROWS = """
insert Member { email: "ana@x", nick: "ana", age: 30 }
insert Member { email: "bob@x", nick: "bob", age: 41 }
insert Member { email: "cat@x" }
insert Club { slug: "chess", tier: 1 }
insert Club { slug: "judo", tier: 2 }
insert JoinedTo { from: "ana@x", to: "chess" }
insert JoinedTo { from: "bob@x", to: "chess" }
insert JoinedTo { from: "bob@x", to: "judo" }
insert Knows { from: "ana@x", to: "bob@x" }
insert Leads { from: "ana@x", to: "chess" }
"""

FAST = Settings(durability="os")
"""Most tests do not test what survives a power cut."""


def make_graph(path: Path, schema: str = PEOPLE, *, settings: Settings = FAST) -> Graph:
    return omnigraph.init(path, schema=schema, settings=settings)


def reopen(graph: Graph, *, settings: Settings = FAST) -> Graph:
    """A second handle on the same graph."""
    return omnigraph.open(graph.uri, settings=settings)


def run(graph: Graph, statements: str, params: dict[str, Any] | None = None, **named: Any) -> Any:
    """Runs statements as one mutation. `types` declares parameters, as in `types="$a: I32?"`."""
    declared = named.pop("types", "")
    return graph.mutate(f"query q({declared}) {{ {statements} }}", params, **named)


def rows_of(graph: Graph, type_name: str, *, branch: str = "main") -> dict[str, dict[str, Any]]:
    """The entities of one type by id, read through export."""
    found: dict[str, dict[str, Any]] = {}
    for line in graph.export(branch=branch, types=[type_name]).splitlines():
        record = json.loads(line)
        data = record["data"]
        if "from" in record:
            data = {"from": record["from"], "to": record["to"], **data}
        assert data["id"] not in found, f"{type_name} {data['id']} occurs twice"
        found[data["id"]] = data
    return found


@dataclass(frozen=True)
class State:
    """Everything a failed write must leave as it was."""

    heads: dict[TableKey, int]
    pins: dict[TableKey, int]
    manifest_version: int
    sidecars: tuple[str, ...]
    commits: int
    rows: str


def pins_of(snapshot: Snapshot) -> dict[TableKey, int]:
    """The visible version of every visible table."""
    return {key: entry.version for key, entry in snapshot.entries.items()}


def state_of(graph: Graph, branch: Branch = None) -> State:
    session = graph.session
    snapshot = session.manifest.current(branch)
    heads = {
        key: session.storage.head_version(entry.location, entry.branch)
        for key, entry in snapshot.entries.items()
    }
    return State(
        heads=heads,
        pins=pins_of(snapshot),
        manifest_version=snapshot.manifest_version,
        sidecars=session.sidecars.list(),
        commits=len(session.commits.list(branch)),
        rows=graph.export(branch=branch or "main"),
    )


@contextmanager
def unchanged(graph: Graph, branch: Branch = None) -> Iterator[None]:
    """What happens inside leaves heads, manifest, sidecars, history and rows untouched."""
    before = state_of(graph, branch)
    yield
    assert state_of(graph, branch) == before


@dataclass
class Heard:
    """The events of a block, by class."""

    events: list[Event] = field(default_factory=list)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@contextmanager
def hear(*, everywhere: bool = False) -> Iterator[Heard]:
    heard = Heard()
    with listen(heard.events.append, everywhere=everywhere):
        yield heard


def forget_everything(monkeypatch: Any) -> None:
    """What a new process knows of tables it has read: nothing."""
    monkeypatch.setattr(session, "_key_indexes", None)
    monkeypatch.setattr(query, "_caches", None)
