"""What branches and merges cost: `python -m benchmarks.merges`.

Branch creation at 8 and 112 tables; merges of a small delta into 8 tables of 100,000 rows, and into one of a
million; the same after 10 and after 2,000 commits. Prints medians in milliseconds beside the goals, which are
what the upstream system published.
`--durability full` syncs to the device as a user's graph does.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
from benchmarks._place import area, work_directory

import omnigraph
from omnigraph.core.ids import CommitId, OperationId, new_ulid
from omnigraph.core.settings import Settings
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.storage.handles import Stamp

CREATE_GOAL_MS = 20
HISTORIES = (10, 2_000)
"""Commits of history between which the figures may grow by no more than `GROWTH_MAX`."""
GROWTH_MAX = 1.2
MERGE_ROUNDS = GROWTH_ROUNDS = 9
"""Each round changes rows of its own; the first is not counted."""
STATEMENTS_MAX = 1_000
"""Rows changed by one mutation; more are loaded."""


def schema_of(types: int) -> str:
    return "\n".join(f"node T{n} {{ name: String @key  age: I32?  note: String? }}" for n in range(types))


def fill(graph, rows: int) -> None:
    """Put rows into every table, as one publish."""
    session = graph.session
    snapshot = session.manifest.current(None)
    names = pa.array([f"row{n:09d}" for n in range(rows)])
    operation = OperationId(new_ulid())
    changes = []
    for key, entry in snapshot.entries.items():
        handle = session.open_entry(entry)
        columns = {
            "id": names,
            "name": names,
            "age": pa.array(np.arange(rows, dtype=np.int32)),
            "note": pa.array(["some text of a usual length"] * rows),
        }
        data = pa.table([columns[name] for name in handle.schema.names], schema=handle.schema)
        staged = session.storage.stage_append(handle, data, Stamp(operation, key))
        made = session.storage.commit_staged(handle, staged)
        changes.append(
            SubTableUpdate(key, made.version, made.branch, made.row_count, staged.transaction_uuid)
        )
    intent = CommitIntent(CommitId(new_ulid()), "load", operation_id=operation)
    session.publisher.publish(None, changes, {}, intent)


def change(graph, branch: str, types: int, rows: int, run: int) -> None:
    """Spread inserts and updates, half of each, over the tables of a branch: one mutation."""
    fresh = [(n % types, f"{branch}-{run}-{n}", 1) for n in range(max(1, rows // 2))]
    known = [(n % types, f"row{run * 10_000 + n:09d}", run) for n in range(rows // 2)]
    if rows > STATEMENTS_MAX:
        load(graph, branch, fresh + known)
        return
    text = " ".join(f'insert T{table} {{ name: "{name}", age: {age} }}' for table, name, age in fresh + known)
    graph.mutate(f"query q() {{ {text} }}", branch=branch)


def load(graph, branch: str, rows: list[tuple[int, str, int]]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(
            json.dumps({"type": f"T{table}", "data": {"name": name, "age": age}}) + "\n"
            for table, name, age in rows
        )
        file.flush()
        graph.load(file.name, mode="merge", branch=branch, engine="local")


def timed(work) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


class Goals:
    """Prints each figure beside its goal and remembers what missed."""

    def __init__(self) -> None:
        self.missed = 0

    def tell(self, what: str, values: list[float], goal_ms: float | None = None) -> None:
        middle = statistics.median(values)
        shown = f"{what}: {middle:8.1f} ms  (best {min(values):.1f})"
        if goal_ms is not None:
            met = middle <= goal_ms
            self.missed += not met
            shown += f"  goal {goal_ms:g} ms: {middle / goal_ms:.2f}x{'' if met else '  MISSED'}"
        print(shown, flush=True)


def merges(
    home: Path,
    told: Goals,
    settings: Settings,
    size: tuple[int, int],
    delta: int,
    goal_ms: float | None = None,
    *,
    diverged: bool = False,
) -> None:
    types, rows = size
    with omnigraph.init(area(home, "merged") / "g", schema=schema_of(types), settings=settings) as graph:
        fill(graph, rows)
        times = []
        for number in range(MERGE_ROUNDS):
            branch = f"b{number}"
            graph.branches.create(branch)
            change(graph, branch, types, delta, number + 1)
            if diverged:
                change(graph, "main", types, 1, number + 100)
            times.append(timed(lambda name=branch: graph.branches.merge(name)))
        kind = "three-way" if diverged else "fast-forward"
        told.tell(f"merge {kind:12s} {types} x {rows:>9,} rows, delta {delta:>6,}", times[1:], goal_ms)


def creations(home: Path, told: Goals, settings: Settings, types: int) -> None:
    with omnigraph.init(area(home, "created") / "g", schema=schema_of(types), settings=settings) as graph:
        graph.mutate('query q() { insert T0 { name: "a" } }')
        times = [timed(lambda n=n: graph.branches.create(f"b{n}")) for n in range(15)]
        told.tell(f"branch create, {types:>3} tables", times[1:], CREATE_GOAL_MS)


def measure(graph, types: int, number: int, found: dict[str, list[float]]) -> None:
    """One creation and one merge of each small size on a graph as it is now."""
    for delta in (1, 50):
        branch = f"grown-{delta}-{number}"
        made = timed(lambda name=branch: graph.branches.create(name))
        change(graph, branch, types, delta, number + 1)
        merged = timed(lambda name=branch: graph.branches.merge(name))
        found.setdefault("branch create", []).append(made)
        found.setdefault(f"merge delta {delta}", []).append(merged)
        graph.branches.delete(branch)


def grown(
    home: Path, settings: Settings, types: int, rows: int, commits: int, *, fragments: bool
) -> omnigraph.Graph:
    """A graph with a history of so many commits."""
    graph = omnigraph.init(area(home, "grown") / "g", schema=schema_of(types), settings=settings)
    fill(graph, rows)
    for number in range(commits):
        name = f"h{number}" if fragments else "h"
        graph.mutate(f'query q() {{ insert T{number % types} {{ name: "{name}", age: {number} }} }}')
    return graph


def growth(
    home: Path,
    told: Goals,
    settings: Settings,
    types: int = 8,
    rows: int = 100_000,
    *,
    fragments: bool = False,
) -> None:
    """The same work, in turn, on a graph with a short and on one with a long history.

    The commits of the history replace the same few rows, so that only the history grows. With `fragments`
    each adds a row, and tables get more and more pieces until they are compacted: printed, without a goal.
    """
    with ExitStack() as open_graphs:
        graphs = [
            open_graphs.enter_context(grown(home, settings, types, rows, commits, fragments=fragments))
            for commits in HISTORIES
        ]
        found: list[dict[str, list[float]]] = [{} for _ in graphs]
        for number in range(GROWTH_ROUNDS):
            for graph, mine in zip(graphs, found, strict=True):
                measure(graph, types, number, mine)
    for what in found[0]:
        short, long = (statistics.median(mine[what][1:]) for mine in found)
        ratio = long / short
        missed = ratio > GROWTH_MAX and not fragments
        told.missed += missed
        goal = "in more fragments" if fragments else f"goal {GROWTH_MAX}x{'  MISSED' if missed else ''}"
        print(
            f"growth of {what}: {short:.1f} ms after {HISTORIES[0]} commits, {long:.1f} ms after "
            f"{HISTORIES[1]:,}: {ratio:.2f}x  {goal}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--durability", default="full", choices=["full", "os", "syncfs"])
    parser.add_argument("--growth", action="store_true", help="only compare a short with a long history")
    given = parser.parse_args()
    settings = Settings(durability=given.durability)
    told = Goals()
    with work_directory("omnigraph-bench-merges-") as home:
        if given.growth:
            for fragments in (False, True):
                growth(home, told, settings, fragments=fragments)
            return 1 if told.missed else 0
        for types in (8, 112):
            creations(home, told, settings, types)
        for delta, goal in ((1, 79), (50, 130), (10_000, None)):
            merges(home, told, settings, (8, 100_000), delta, goal)
        merges(home, told, settings, (8, 100_000), 50, diverged=True)
        merges(home, told, settings, (1, 1_000_000), 50)
        growth(home, told, settings)
    return 1 if told.missed else 0


if __name__ == "__main__":
    sys.exit(main())
