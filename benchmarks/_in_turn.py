"""Reads and writes of this checkout beside those of another one, in turn, as ratios.

Run by `python -m benchmarks._in_turn OTHER [--rounds N]`; OTHER is a directory with another checkout. Each
checkout has a process and a graph of its own. In every round both do the same work, one after the other, and
the next round begins with the other one, so that a busy machine slows both alike. A ratio is the median of
those of the rounds. Exit status 1: a workload is slower than in the other checkout by more than the bound.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks._place import work_directory

BOUND = 1.05
PERSONS = 100_000
EDGES = 500_000
TABLES = 8
SCHEMA = (
    "node Person { name: String @key  age: I32  city: String }\nedge Knows: Person -> Person { since: I32 }\n"
    + "\n".join(f"node T{n} {{ name: String @key  age: I32?  city: String? }}" for n in range(TABLES))
)
ONE = 'query q($k: String) { insert T0 { name: $k, age: 1, city: "c" } }'
EIGHT = (
    "query q($k: String) { " + " ".join(f"insert T{n} {{ name: $k, age: {n} }}" for n in range(TABLES)) + " }"
)
POINT = "query q($k: String) { match { $p: Person { name: $k } } return { $p.age, $p.city } }"
ONE_HOP = "query q($k: String) { match { $p: Person { name: $k }  $p knows $f } return { $f.name } }"
TWO_HOPS = (
    "query q($k: String) { match { $p: Person { name: $k }  $p knows $f  $f knows $g }"
    " return { count($g) as n } }"
)
GROUPS = "query q() { match { $p: Person } return { $p.city, avg($p.age) as age } }"
WORKLOADS = {
    "point read": 3000,
    "1 hop": 1500,
    "2 hops": 800,
    "group-by": 50,
    "one row": 20,
    "one row into 8 tables": 5,
    "10k upsert": 1,
    "open and read": 3,
}
"""How often each is done in one round."""


def people(seed: int, count: int) -> pa.Table:
    """Persons of a given range of keys; the seed changes their ages."""
    ages = np.random.default_rng(seed).integers(0, 90, count, dtype=np.int32)
    return pa.table(
        {
            "name": [f"p{n}" for n in range(count)],
            "age": ages,
            "city": [f"c{n % 50}" for n in range(count)],
        }
    )


def fill(place: Path) -> None:
    """The files both graphs are loaded from."""
    pq.write_table(people(0, PERSONS), place / "Person.parquet")
    (place / "again").mkdir()
    pq.write_table(people(1, 10_000), place / "again" / "Person.parquet")
    ends = np.random.default_rng(2).integers(0, PERSONS, (2, EDGES))
    edges = {"src": [f"p{n}" for n in ends[0]], "dst": [f"p{n}" for n in ends[1]]}
    pq.write_table(pa.table({**edges, "since": pa.array(ends[0] % 50, pa.int32())}), place / "Knows.parquet")


def serve(place: Path, graph_path: Path) -> None:
    """One side: make the graph, then do what each line of stdin names and answer with the seconds it took."""
    import omnigraph

    graph = omnigraph.init(graph_path, schema=SCHEMA)
    for name in ("Person", "Knows"):
        graph.load(place / f"{name}.parquet", mode="append", engine="local")
    numbers = iter(range(10**9))

    def read(text: str) -> Callable[[], Any]:
        return lambda: graph.query(text, {"k": f"p{next(numbers) * 7919 % PERSONS}"}).to_arrow()

    def opened() -> None:
        with omnigraph.open(graph_path) as again:
            again.query(POINT, {"k": "p1"}).to_arrow()

    works: dict[str, Callable[[], Any]] = {
        "point read": read(POINT),
        "1 hop": read(ONE_HOP),
        "2 hops": read(TWO_HOPS),
        "group-by": lambda: graph.query(GROUPS).to_arrow(),
        "one row": lambda: graph.mutate(ONE, {"k": f"k{next(numbers)}"}),
        "one row into 8 tables": lambda: graph.mutate(EIGHT, {"k": f"k{next(numbers)}"}),
        "10k upsert": lambda: graph.load(place / "again" / "Person.parquet", mode="merge", engine="local"),
        "open and read": opened,
    }
    print("ready", flush=True)
    for line in sys.stdin:
        work, times = works[line.strip()], WORKLOADS[line.strip()]
        start = time.perf_counter()
        for _ in range(times):
            work()
        print(json.dumps((time.perf_counter() - start) / times), flush=True)
    graph.close()


class Side:
    """The process of one checkout."""

    def __init__(self, checkout: Path, place: Path, graph: Path) -> None:
        paths = [str(checkout / "src"), str(Path(__file__).parent.parent)]
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._in_turn", "--serve", str(place), str(graph)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            cwd=place,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> str:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            sys.exit("a side ended")
        return line

    def seconds(self, name: str) -> float:
        """How long one of these takes, in this round."""
        assert self._child.stdin is not None
        self._child.stdin.write(name + "\n")
        self._child.stdin.flush()
        return json.loads(self._answer())

    def close(self) -> None:
        """End the process."""
        self._child.communicate()


def compare(other: Path, rounds: int, place: Path) -> bool:
    """Print the ratios; whether each is within the bound."""
    fill(place)
    sides = [
        Side(checkout, place, place / f"g{n}")
        for n, checkout in enumerate((Path(__file__).parent.parent, other))
    ]
    held = True
    for name in WORKLOADS:
        for side in sides:
            side.seconds(name)  # once for nothing: caches are warm afterwards
        ratios: list[float] = []
        ours: list[float] = []
        for number in range(rounds):
            taken = {}
            for at in (0, 1) if number % 2 else (1, 0):
                taken[at] = sides[at].seconds(name)
            ratios.append(taken[0] / taken[1])
            ours.append(taken[0])
        ratio = statistics.median(ratios)
        held = held and ratio <= BOUND
        low, high = statistics.quantiles(ratios, n=4)[::2]
        print(
            f"{name:24} {statistics.median(ours) * 1e3:9.3f} ms   {ratio:5.2f} of the other"
            f"   (quartiles {low:.2f} to {high:.2f}){'' if ratio <= BOUND else '   MISSED'}",
            flush=True,
        )
    for side in sides:
        side.close()
    return held


def main() -> int:
    """Compare, or serve one side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--serve", nargs=2, type=Path)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(*chosen.serve)
        return 0
    with work_directory("in-turn") as place:
        return 0 if compare(chosen.other.absolute(), chosen.rounds, place) else 1


if __name__ == "__main__":
    sys.exit(main())
