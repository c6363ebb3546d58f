"""Reads of a graph with a long history beside the same graph with a short one.

`python -m benchmarks.read_growth [--persons N] [--edges N] [--commits N]` loads two graphs alike.
One gets ten more commits, the other many: new edges and changed people by turns. Then both are asked the
questions of `benchmarks.reads` alternately, and opened by new processes. Nothing is compacted. What opening
the table of people costs bare pylance is printed beside it.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._place import area, work_directory
from benchmarks._read_peers import FAST, lance_tables
from benchmarks.reads import WORKLOADS, cold, make_data, shown

import omnigraph

YOUNG_COMMITS = 10
GOAL = 1.2
ROUNDS = 6
TURN = 100
OPENED = 21
"""How often each graph is opened by a new process."""
SETTLED_S = 3.0
"""After this long without a commit a reader asks the file system one question less."""
EDGE = "query m($a: String, $b: String) { insert Knows { from: $a, to: $b } }"
PERSON = "query m($a: String) { update Person set { age: 50 } where name = $a }"


def age(where: Path, keys: list[str], commits: int) -> None:
    """Make a history of so many commits."""
    with omnigraph.open(where / "graph", settings=FAST) as graph:
        for number in range(commits):
            one, other = keys[number % len(keys)], keys[(number + 7) % len(keys)]
            if number % 2:
                graph.mutate(PERSON, {"a": one})
            else:
                graph.mutate(EDGE, {"a": one, "b": other})


def ask(graph: Any, name: str, keys: list[str]) -> list[float]:
    """Seconds of each call of one question."""
    workload, seconds = WORKLOADS[name], list[float]()
    for key in keys if workload.keyed else keys[:1]:
        begun = time.perf_counter()
        graph.query(workload.ours, {"n": key} if workload.keyed else None).to_dicts()
        seconds.append(time.perf_counter() - begun)
    return seconds


def compare(young: Path, old: Path, keys: list[str]) -> int:
    """Ask both graphs in turns; how many questions grew beyond the goal."""
    missed = 0
    with (
        omnigraph.open(young / "graph", settings=FAST) as first,
        omnigraph.open(old / "graph", settings=FAST) as second,
    ):
        for name in WORKLOADS:  # fills the caches
            ask(first, name, keys[:TURN]), ask(second, name, keys[:TURN])
        time.sleep(SETTLED_S)
        for name in WORKLOADS:
            times: tuple[list[float], list[float]] = ([], [])
            for number in range(ROUNDS):
                turn = keys[number * TURN : (number + 1) * TURN]
                for graph, into in zip((first, second), times, strict=True):
                    into.extend(ask(graph, name, turn))
            missed += report(name, *(statistics.median(each) for each in times))
    opened = {who: open_to_first_row(who, (young, old), keys[:OPENED]) for who in ("omnigraph", "pylance")}
    missed += report("open to first row", *opened["omnigraph"])
    first, then = opened["pylance"]
    print(f"    bare pylance: {shown(first)} young, {shown(then)} old, ratio {then / first:.2f}", flush=True)
    return missed


def open_to_first_row(who: str, graphs: tuple[Path, Path], keys: list[str]) -> list[float]:
    """Seconds until new processes have a row of each graph, asked by turns."""
    times: dict[Path, list[float]] = {where: [] for where in graphs}
    os.sync()  # what was written to make the history does not concern those who open it
    for where in graphs:
        (where / "person.uri").write_text(lance_tables(where)["node:Person"], encoding="utf-8")
    for key in keys:
        for where in graphs:
            times[where].append(cold(f"open-{who}", where, key)["seconds"])
    return [statistics.median(times[where]) for where in graphs]


def report(name: str, young: float, old: float) -> int:
    met = old <= GOAL * young
    verdict = "met" if met else "MISSED"
    print(
        f"{name}: {shown(young)} young, {shown(old)} old, ratio {old / young:.2f}   goal {GOAL} {verdict}",
        flush=True,
    )
    return 0 if met else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--persons", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=500_000)
    parser.add_argument("--commits", type=int, default=2_000)
    chosen = parser.parse_args()
    numbers = np.random.default_rng(1).integers(0, chosen.persons, ROUNDS * TURN)
    keys = [f"person-{number:08d}" for number in numbers]
    with work_directory("omnigraph-read-growth-") as root:
        young, old = area(root, "young") / "data", area(root, "old") / "data"
        make_data(young, chosen.persons, chosen.edges)
        make_data(old, chosen.persons, chosen.edges)
        age(young, keys, YOUNG_COMMITS)
        age(old, keys, chosen.commits)
        commits = f"{YOUNG_COMMITS} and {chosen.commits:,} commits"
        print(f"{chosen.persons:,} persons, {chosen.edges:,} edges; {commits}", flush=True)
        return 1 if compare(young, old, keys) else 0


if __name__ == "__main__":
    sys.exit(main())
