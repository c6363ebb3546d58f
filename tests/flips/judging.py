"""One bit of a graph's files is flipped: it is found, or it harms nobody.

A graph with every kind of file is made once. Each flip is made in a copy, and a child judges the copy, because
a damaged file may end the process that reads it.
"""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from graphs import make_graph, run

CHILD = Path(__file__).with_name("judge_child.py")
SCHEMA = """
node Person { name: String @key  age: I32? @index  bio: String? @index  face: Blob?  taste: Vector(4)? }
node Note { text: String }
edge Knows: Person -> Person { since: Date? }
"""


def make_whole(path: Path, source: Path) -> None:
    """A graph with data, deletion and index files, forks, a tag, merges, a load and several commits."""
    records = [
        {"type": "Person", "data": {"name": f"p{n}", "age": n % 90, "bio": f"likes {n} things"}}
        for n in range(200)
    ]
    records += [{"edge": "Knows", "from": f"p{n}", "to": f"p{n + 1}"} for n in range(199)]
    source.write_text("".join(json.dumps(each) + "\n" for each in records))
    with make_graph(path, SCHEMA) as graph:
        graph.load(str(source), mode="append", engine="local", actor="loader")
        run(graph, 'insert Person { name: "ada", age: 36, bio: "likes numbers", face: "base64:AAECAw==" }')
        graph.ensure_indices()
        run(graph, 'update Person set { age: 37 } where name = "ada"')
        run(graph, 'delete Knows where from = "p3"')
        graph.tags.create("v1")
        graph.branches.create("feat")
        run(graph, 'insert Person { name: "bob" } insert Note { text: "one" }', branch="feat", actor="bea")
        run(graph, 'insert Note { text: "two" }')
        graph.branches.merge("feat", into="main")
        run(graph, 'update Person set { age: 1 } where name = "bob"', branch="feat")
        graph.branches.create("idle")


KINDS = {
    "data": "/data/",
    "deletions": "/_deletions/",
    "indexes": "/_indices/",
    "transactions": "/_transactions/",
    "references": "/_refs/",
    "hints": "latest_version_hint.json",
    "versions": "/_versions/",
    "schemas": "schema",
    "caches": "__cache/",
}


def kind_of(name: str) -> str:
    """What a file is, and whose."""
    owner = "tables" if name.startswith(("nodes/", "edges/")) else name.split("/", maxsplit=1)[0]
    return next((f"{kind} of {owner}" for kind, mark in KINDS.items() if mark in name), owner)


@dataclass(frozen=True)
class Flip:
    """One bit of one file."""

    name: str
    byte: int
    bit: int

    def do(self, root: Path) -> None:
        path = root / self.name
        data = bytearray(path.read_bytes())
        data[self.byte] ^= 1 << self.bit
        path.write_bytes(bytes(data))


def flips(root: Path, count: int, seed: int) -> list[Flip]:
    """Random flips, as many in each kind of file as the kinds allow."""
    chance = random.Random(seed)
    by_kind: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.stat().st_size:
            by_kind.setdefault(kind_of(str(path.relative_to(root))), []).append(path)
    kinds = sorted(by_kind)
    made = []
    for number in range(count):
        path = chance.choice(by_kind[kinds[number % len(kinds)]])
        made.append(
            Flip(str(path.relative_to(root)), chance.randrange(path.stat().st_size), chance.randrange(8))
        )
    return made


@dataclass
class Verdicts:
    """What became of the flips."""

    found: Counter[str] = field(default_factory=Counter)
    harmless: Counter[str] = field(default_factory=Counter)
    bad: list[tuple[Flip, dict]] = field(default_factory=list)

    def add(self, flip: Flip, told: dict) -> None:
        if told.get("untyped") or told.get("died"):
            self.bad.append((flip, told))
        elif told["found"]:
            self.found[kind_of(flip.name)] += 1
        elif told["read"] == told["written"] == "equal":
            self.harmless[kind_of(flip.name)] += 1
        else:
            self.bad.append((flip, told))

    def __str__(self) -> str:
        return "\n".join(
            f"{kind}: {self.found[kind]} found, {self.harmless[kind]} harmless"
            for kind in sorted({*self.found, *self.harmless})
        )


class Judges:
    """A child that judges one copy after the other, started again when it dies."""

    def __init__(self, whole: Path) -> None:
        self._whole = whole
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def judge(self, root: Path) -> dict:
        """What a fresh handle makes of a copy."""
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, str(CHILD), str(self._whole)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{root}\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if answer:
            return json.loads(answer)
        status = self._child.wait()
        self._end()
        return {"died": status}

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.close()
            child.stdout.close()
            child.wait()


TOLD_EVERY = 250


def judged(whole: Path, scratch: Path, chosen: list[Flip]) -> Verdicts:
    """Every flip in a copy of its own. A long run says how far it is, so that its parts count."""
    verdicts = Verdicts()
    with Judges(whole) as judges:
        for number, flip in enumerate(chosen):
            copy = scratch / f"flip-{number}"
            shutil.copytree(whole, copy)
            flip.do(copy)
            verdicts.add(flip, judges.judge(copy))
            shutil.rmtree(copy)
            if (number + 1) % TOLD_EVERY == 0:
                found, harmless = verdicts.found.total(), verdicts.harmless.total()
                print(
                    f"{number + 1} flips: {found} found, {harmless} harmless, bad: {verdicts.bad}", flush=True
                )
    return verdicts
