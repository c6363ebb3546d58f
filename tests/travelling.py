"""A graph with something of everything, for tests that move and copy graphs; and what they compare."""

import base64
import json
import threading
from pathlib import Path
from typing import Any, Self

import omnigraph
from crash.harness import CUT, run_script
from graphs import FAST, run
from omnigraph.api.graph import Graph
from omnigraph.core.failpoints import Window
from stores import Store

SCHEMA = """
node Person {
  handle: String @key
  name: String?
  age: I32?
  bio: String? @index
  face: Vector(4)? @index
  photo: Blob?
  nick: String? @unique
}
node City { name: String @key }
node Note { text: String }
edge Knows: Person -> Person { since: Date? }
edge LivesIn: Person -> City
"""
SMALL = "node P { k: String @key  n: I32? }\nedge E: P -> P"
PEOPLE = 40
PICTURE = b"\x89PNG\r\n" + bytes(range(256)) * 8

DYING = """
import json, sys, omnigraph
from omnigraph.core.settings import Settings
uri, options, branch = sys.argv[1:]
with omnigraph.open(uri, settings=Settings(durability="os"), storage_options=json.loads(options)) as graph:
    graph.mutate('query q() { insert Person { handle: "dead", nick: "dead" }'
                 ' insert Knows { from: "dead", to: "p1" } insert Note { text: "dead" } }', branch=branch)
"""
"""A write of three tables."""


def opened(store: Store, *, read_only: bool = False) -> Graph:
    how = omnigraph.open_read_only if read_only else omnigraph.open
    return how(store.uri, settings=FAST, storage_options=store.storage_options)


def write_people(place: Path) -> Path:
    file = place / "people.jsonl"
    records = [
        {
            "type": "Person",
            "data": {
                "handle": f"p{n}",
                "name": f"Person {n}",
                "age": n,
                "bio": f"likes maps and trip {n}",
                "face": [float(n), 1.0, 0.0, 0.5],
                "nick": f"n{n}",
            },
        }
        for n in range(PEOPLE)
    ]
    records += [{"type": "City", "data": {"name": f"c{n}"}} for n in range(4)]
    records += [{"edge": "Knows", "from": f"p{n}", "to": f"p{(n + 1) % PEOPLE}"} for n in range(PEOPLE)]
    records += [{"edge": "LivesIn", "from": f"p{n}", "to": f"c{n % 4}"} for n in range(PEOPLE)]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def make(store: Store, scratch: Path) -> None:
    """Branches that inherit, fork and fork again, merges both ways, tags, indexes, blobs, deletions."""
    made = omnigraph.init(store.uri, schema=SCHEMA, settings=FAST, storage_options=store.storage_options)
    with made as graph:
        graph.load(write_people(scratch), mode="append", engine="local")
        run(graph, 'delete Person where handle = "p3"')
        graph.ensure_indices()
        graph.tags.create("v1")
        graph.branches.create("lazy")
        graph.branches.create("team/own")
        run(graph, 'insert Person { handle: "own", bio: "maps" }', branch="team/own")
        photo = "base64:" + base64.b64encode(PICTURE).decode()
        run(
            graph,
            'update Person set { photo: $p } where handle = "p5"',
            {"p": photo},
            types="$p: Blob",
            branch="team/own",
        )
        graph.branches.create("kid", from_branch="team/own")
        run(graph, 'update Person set { age: 99 } where handle = "p7"', branch="kid")
        run(
            graph,
            'insert Note { text: "kid" } insert Knows { from: "own", to: "p7" }',
            branch="kid",
        )
        graph.ensure_indices(branch="kid")
        run(graph, 'insert City { name: "north" } insert LivesIn { from: "p9", to: "north" }')
        graph.branches.create("short")
        run(graph, 'insert City { name: "short" }', branch="short")
        graph.branches.merge("short")
        graph.branches.delete("short")
        graph.branches.merge("team/own")
        graph.branches.merge("main", into="kid")
        run(graph, 'delete Person where handle = "p8"', branch="kid")
        graph.tags.create("v2", at="kid")
        run(graph, 'update Person set { name: "later" } where handle = "p1"')


def die(store: Store, window: Window, branch: str = "kid", action: str = "kill") -> None:
    """Leave a sidecar: a process dies in the middle of a write."""
    status, errors = run_script(
        DYING, store.uri, json.dumps(store.storage_options), branch, failpoints=f"{window.value}={action}"
    )
    assert status == CUT, (status, errors)


def states(graph: Graph) -> dict[str, str]:
    """Everything a graph can show: the rows of every branch, tag and commit, and what names them."""
    found: dict[str, str] = {}
    for branch in graph.branches.list():
        found[f"branch {branch}"] = graph.export(branch=branch)
        history = graph.commits.list(branch=branch, merged=True)
        for commit in history:
            if commit.id not in found:
                found[commit.id] = _rows_at(graph, commit.id)
        found[f"history of {branch}"] = repr([(each.id, each.parents, each.actor) for each in history])
    for tag, commit_id in graph.tags.list().items():
        found[f"tag {tag}"] = commit_id + graph.export(at=tag)
    return found


def _rows_at(graph: Graph, commit_id: str) -> str:
    try:
        return graph.export(at=commit_id)
    except omnigraph.errors.SnapshotNotFound:
        return "gone with its branch"


def goes_on(graph: Graph) -> None:
    """Writes of every kind work, and the graph is whole afterwards."""
    for number, branch in enumerate(graph.branches.list()):
        run(
            graph,
            f'insert Person {{ handle: "on{number}", bio: "maps" }} insert Note {{ text: "on" }}'
            f' insert Knows {{ from: "on{number}", to: "p2" }}',
            branch=branch,
        )
        run(graph, 'update Person set { age: 1 } where handle = "p2"', branch=branch)
        run(graph, 'delete Person where handle = "p6"', branch=branch)
        assert (
            graph.query(
                'query q() { match { $p: Person { handle: "p2" } $f knows $p } return { $f.handle } }',
                branch=branch,
            )
            .to_arrow()["f.handle"]
            .to_pylist()
            .count(f"on{number}")
            == 1
        )
    graph.branches.create("fork-of-kid", from_branch="kid")
    run(graph, 'insert City { name: "fork" }', branch="fork-of-kid")
    graph.branches.merge("fork-of-kid", into="kid")
    graph.branches.merge("lazy", on_conflict="theirs")
    graph.branches.merge("kid", on_conflict="theirs")
    graph.ensure_indices()
    graph.ensure_indices(branch="kid")
    graph.revert(graph.commits.list(branch="lazy")[0].id, branch="lazy")
    graph.tags.create("arrived")
    found = graph.query(
        'query q() { match { $p: Person search($p.bio, "maps") } return { $p.handle } }', branch="main"
    )
    assert "on0" in found.to_arrow()["p.handle"].to_pylist()
    assert graph.blob("Person", "p5", "photo").read() == PICTURE
    report = graph.verify()
    assert report.violations == ()


def cloned(source: Store, target: Store, **words: Any) -> omnigraph.CloneReport:
    """Clone from one place to another."""
    return omnigraph.clone(
        source.uri,
        target.uri,
        settings=FAST,
        storage_options=source.storage_options,
        target_options=target.storage_options,
        **words,
    )


def files_of(store: Store) -> dict[str, int]:
    """Every object of a place, without its lock files."""
    return {name: size for name, size in store.adapter().sizes().items() if not name.startswith("__lease")}


class Writing:
    """Publishes again and again, on every branch, until it is told to stop."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._work)
        self.rounds = 0

    def _work(self) -> None:
        try:
            with omnigraph.open(self._uri, settings=FAST) as graph:
                while not self._stop.is_set():
                    self.rounds += 1
                    for branch in ("main", "b", "lazy"):
                        run(graph, f'insert P {{ k: "{branch}{self.rounds}" }}', branch=branch)
                    graph.branches.merge("main", into="lazy")
                    graph.branches.merge("b", into="main")
                    graph.branches.create(f"t{self.rounds}", from_branch="b")
                    graph.branches.delete(f"t{self.rounds}")
        except BaseException as error:
            self._failed.append(error)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._failed == []


def published(graph: Graph, target: Store) -> None:
    """A clone shows commits that were published, of one moment."""
    with opened(target, read_only=True) as clone:
        assert clone.verify().violations == ()
        for branch in clone.branches.list():
            head = clone.commits.list(branch=branch)[0]
            shown = clone.export(branch=branch)
            try:
                assert shown == graph.export(at=head.id)
            except omnigraph.errors.SnapshotNotFound:
                assert branch.startswith("t"), "only the short-lived branches may be gone"
