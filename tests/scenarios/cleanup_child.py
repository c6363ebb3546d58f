"""A process that writes or reads at random: `cleanup_child.py <uri> <options> <what> <seed> <acts>`.

A writer prints one JSON line for each act: the commit it made with a digest of what the commit shows, the
tag it made, the rows of main that nobody takes away. A reader prints how much it read.
"""

import base64
import hashlib
import json
import random
import sys
import tempfile
from contextlib import suppress
from typing import Any

import omnigraph
from omnigraph.api.graph import Graph
from omnigraph.core.errors import NotFoundError, OmnigraphError, RecoveryRequired
from omnigraph.core.settings import Settings

FAST = Settings(durability="os")
OTHERS_IN_THE_WAY = {
    "manifest_conflict",
    "read_set_conflict",
    "branch_in_use",
    "key_conflict",
    "bad_request",
    "resource_busy",
}


def digest(graph: Graph, at: str) -> str:
    return hashlib.sha256(graph.export(at=at).encode()).hexdigest()


def tell(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


class Writer:
    """Writes main beside others, and branches of its own, forks of forks too."""

    def __init__(self, graph: Graph, seed: str) -> None:
        self.graph, self.seed = graph, seed
        self.random = random.Random(seed)
        self.number = 0

    def name(self) -> str:
        self.number += 1
        return f"{self.seed}x{self.number}"

    def mine(self) -> list[str]:
        return [each for each in self.graph.branches.list() if each.startswith(f"{self.seed}x")]

    def anywhere(self) -> str:
        return self.random.choice(["main", *self.mine()])

    def act(self) -> None:
        acts = [self.insert, self.load, self.change, self.branch, self.tag, self.merge, self.drop, self.tidy]
        chosen = self.random.choices(acts, [6, 2, 3, 3, 1, 2, 1, 1])[0]
        try:
            chosen()
        except RecoveryRequired:  # another writer died; an open settles what it left
            self.graph.close()
            self.graph = opened()
        except OmnigraphError as error:
            if not isinstance(error, NotFoundError) and error.kind not in OTHERS_IN_THE_WAY:
                raise
            tell(act=chosen.__name__, refused=error.kind)

    def shown(self, commit: str, **more: Any) -> None:
        with suppress(NotFoundError):  # a cleanup was quicker
            more["digest"] = digest(self.graph, commit)
        tell(commit=commit, **more)

    def insert(self) -> None:
        branch, name = self.anywhere(), self.name()
        large = base64.b64encode(name.encode() * 10_000).decode()
        blob = f', face: "base64:{self.random.choice(["QUJDRA==", large])}"' if self.number % 3 == 0 else ""
        tell(begins=name)
        text = (
            f'insert P {{ name: "{name}"{blob} }} insert Q {{ name: "{name}" }}'
            f' insert Likes {{ from: "{name}", to: "{name}" }}'
        )
        done = self.graph.mutate(f"query m() {{ {text} }}", branch=branch)
        self.shown(done.commit.id, **({"row": name} if branch == "main" else {}))

    def load(self) -> None:
        branch, name = self.anywhere(), self.name()
        tell(begins=name)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for of in ("P", "Q"):
                file.write(json.dumps({"type": of, "data": {"name": name}}) + "\n")
            file.flush()
            done = self.graph.load(file.name, mode="append", branch=branch, engine="local")
        self.shown(done.commit.id, **({"row": name} if branch == "main" else {}))

    def change(self) -> None:
        branch = self.anywhere()
        text = f"update P set {{ n: {self.number} }} where name != 'nobody'".replace("'", '"')
        done = self.graph.mutate(f"query m() {{ {text} }}", branch=branch).commit
        if done is not None:
            self.shown(done.id)

    def branch(self) -> None:
        if len(self.mine()) < 3:
            self.graph.branches.create(self.name(), from_branch=self.anywhere())
            tell(act="branch")

    def tag(self) -> None:
        name, branch = self.name(), self.anywhere()
        self.graph.tags.create(name, at=branch)
        tell(tag=name, digest=digest(self.graph, name))

    def merge(self) -> None:
        source = self.anywhere()
        if source != "main":
            self.graph.branches.merge(source, into="main", on_conflict="theirs")
            tell(act="merge")

    def drop(self) -> None:
        branch = self.anywhere()
        if branch != "main":
            self.graph.branches.delete(branch)
            tell(act="drop")

    def tidy(self) -> None:
        self.graph.optimize(branch=self.anywhere())
        tell(act="tidy")


def read(graph: Graph, seed: str, acts: int) -> None:
    """What a state shows does not change while it is there; what is gone says so."""
    chance, seen = random.Random(seed), {}
    reads = gone = 0
    while reads + gone < acts:
        with suppress(NotFoundError):
            history = graph.commits.list(branch=chance.choice(graph.branches.list()))
            commit = chance.choice(history[:6]).id
            try:
                found = digest(graph, commit)
            except NotFoundError:
                gone += 1
                continue
            assert seen.setdefault(commit, found) == found, commit
            reads += 1
    tell(reads=reads, gone=gone)


def opened() -> Graph:
    return omnigraph.open(sys.argv[1], settings=FAST, storage_options=json.loads(sys.argv[2]))


def main() -> None:
    what, seed, acts = sys.argv[3:]
    graph = opened()
    tell(ready=True)
    if what == "read":
        read(graph, seed, int(acts))
        graph.close()
        return
    writer = Writer(graph, seed)
    for _ in range(int(acts)):
        writer.act()
    writer.graph.close()
    tell(ended=True)


if __name__ == "__main__":
    main()
