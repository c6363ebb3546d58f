"""What upkeep costs and what it saves: the decay of many small commits, and the price of a compaction.

`python -m benchmarks.upkeep [--only PART...] [--commits N] [--rows N] [--optimized N]` prints:
- a point read, two hops, a mutation and an open after many one-row commits beside the same after ten, with
  the upkeep after writes and without it (the tripwire: what it saves must be visible), and its share;
- the same on a graph with the metadata of 100,000 commits, which is made up (`benchmarks/_made_up`);
- compaction by copying pages beside writing the rows again;
- the peak memory of compacting vectors of 768 numbers and of building their index;
- the longest wait of another process that writes while a large table is optimized;
- opening a forked table, in its place and moved, beside an open that does not look where its bases lie.

What grows with commits: nothing that a read, a mutation or an open does.
- An open follows the hint that the table format writes beside the versions, on a local disk, also when it
  looks for states that a power cut left torn; on an object store it asks for one page of names, of which the
  newest come first. It reads the newest commit records, at most 2,048 rows however many there are; all of
  them only where a branch has been silent for that long.
- The first write of a process lists the versions of each table that it writes, a microsecond each: 0.1 s
  after 100,000 commits of one table without a cleanup. It is not measured here.
- Reads and writes open versions by their numbers and follow what the newest one names, not the history. The
  upkeep after writes keeps fragments few: fewer than 32 of each size, so below 128 for 100,000 rows that came
  one by one.
- Files: about eight for each commit, 800,000 without a cleanup; after one that keeps three states below 350.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from benchmarks._made_up import made_old
from benchmarks._place import work_directory

import omnigraph
from omnigraph.core.ids import TableKey
from omnigraph.core.settings import Settings
from omnigraph.storage import compaction
from omnigraph.storage.bases import Bases
from omnigraph.storage.layout import GraphRoot
from omnigraph.storage.objects import open_adapter
from omnigraph.storage.tables import TableStorage

PARTS = ("decay", "simulated", "copying", "memory", "waiting", "forks")
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
now = time.perf_counter
"""What the decay and a compaction by copy are measured with."""
FAST = Settings(durability="os")
YOUNG_COMMITS = 10
GROWTH_MAX = 1.5
SHARE_MAX = 0.2
COPY_MAX = 0.5
COMPACTION_MB_MAX = 1024
INDEX_MB_MAX = 1536
WAIT_S_MAX = 1.0
FORK_MAX = 1.1
DIM = 768
CALLS = 60
OPENS = 11

SCHEMA = "node Person { name: String @key  age: I32? @index }\nedge Knows: Person -> Person\n"
POINT = "query q($n: String) { match { $p: Person { name: $n } } return { $p.age } }"
HOPS = "query q($n: String) { match { $p: Person { name: $n } $p knows $f  $f knows $g } return { $g.name } }"
ADD = """query m($n: String, $o: String) {
  insert Person { name: $n, age: 1 }
  insert Knows { from: $n, to: $o }
}"""
VECTORS = f"node Doc {{ name: String @key  v: Vector({DIM})? @index }}"
DOC = TableKey("node:Doc")
TASK = "_task"
"""What describes a compaction to the table format; the measurement changes one word of it."""

LOOK = "at_home"
"""What looks where the bases of a table lie; the measurement leaves it out."""

OPTIMIZER = """
import sys, time, omnigraph
from omnigraph.core.settings import Settings
with omnigraph.open(sys.argv[1], settings=Settings(durability="os", bulk_rows_in_process_max=2**40,
                                                  bulk_bytes_in_process_max=2**50)) as graph:
    begun = time.perf_counter()
    graph.optimize()
    print(time.perf_counter() - begun)
"""
MEASURED = """
import json, sys, omnigraph
from benchmarks._memory import PeakMemory
from omnigraph.core.settings import Settings
settings = Settings(durability="os", vector_probes=int(sys.argv[3]) or None,
                    bulk_rows_in_process_max=2**40, bulk_bytes_in_process_max=2**50)
with PeakMemory() as memory, omnigraph.open(sys.argv[1], settings=settings) as graph:
    getattr(graph, sys.argv[2])()
print(json.dumps(memory.peak_mb))
"""


def main(arguments: list[str]) -> int:
    """Run all parts; 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--commits", type=int, default=2_000)
    parser.add_argument("--simulated", type=int, default=100_000, help="commits that are made up")
    parser.add_argument("--rows", type=int, default=1_000_000, help="vectors")
    parser.add_argument("--optimized", type=int, default=5_000_000, help="rows optimized beside a writer")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts, not all")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: for a busy machine")
    chosen = parser.parse_args(arguments)
    global now  # noqa: PLW0603  the clock of one run
    now = CLOCKS[chosen.clock]
    with work_directory("upkeep-") as place:
        parts: dict[str, Callable[[], list[str]]] = {
            "decay": lambda: decay(place, chosen.commits),
            "simulated": lambda: simulated(place / "simulated", chosen.simulated),
            "copying": lambda: copying(place, min(chosen.rows, 200_000)),
            "memory": lambda: memory(place, chosen.rows),
            "waiting": lambda: waiting(place, chosen.optimized),
            "forks": lambda: forks(place),
        }
        missed = [each for name in PARTS if name in chosen.only for each in parts[name]()]
    print("missed: " + ", ".join(missed) if missed else "every bound was met")
    return 1 if missed else 0


# --- the decay of many small commits ----------------------------------------------------------------------


def decay(place: Path, commits: int) -> list[str]:
    """Ratios of after many commits to after ten, with and without the upkeep after writes."""
    missed: list[str] = []
    worst: dict[str, float] = {}
    for name in ("with upkeep", "without"):
        young, old, share = aged(place / name.replace(" ", "-"), commits, upkeep=name == "with upkeep")
        ratios = growth(young, old)
        worst[name] = max(ratios.values())
        shown = ", ".join(f"{what} {ratio:.2f}x" for what, ratio in ratios.items())
        print(f"after {commits} commits {name}: {shown} of after {YOUNG_COMMITS}; upkeep took {share:.1%}")
        if name == "with upkeep":
            missed += [f"{what} grew {ratio:.2f}x" for what, ratio in ratios.items() if ratio > GROWTH_MAX]
            missed += [f"upkeep took {share:.0%} of the run"] if share > SHARE_MAX else []
    if worst["without"] <= worst["with upkeep"]:
        missed.append("without upkeep nothing decays: the measurement sees nothing")
    return missed


def simulated(place: Path, commits: int) -> list[str]:
    """The same ratios for a history that takes too long to be made."""
    old = place / "old"
    with omnigraph.init(old, schema=SCHEMA, settings=FAST) as graph:
        _first_commits(graph)
        shutil.copytree(old, place / "young")
        made_old(graph, YOUNG_COMMITS, commits)
    ratios = growth(place / "young", old)
    shown = ", ".join(f"{what} {ratio:.2f}x" for what, ratio in ratios.items())
    print(f"after the metadata of {commits:,} commits: {shown} of after {YOUNG_COMMITS}")
    return [f"{what} grew {ratio:.2f}x (simulated)" for what, ratio in ratios.items() if ratio > GROWTH_MAX]


def _first_commits(graph: omnigraph.Graph) -> None:
    graph.mutate('query m() { insert Person { name: "p0" } }')
    for number in range(1, YOUNG_COMMITS):
        graph.mutate(ADD, {"n": f"p{number}", "o": f"p{number - 1}"})


def aged(place: Path, commits: int, *, upkeep: bool) -> tuple[Path, Path, float]:
    """A graph after ten commits, the same after many, and the share of upkeep in the time between."""
    spent, old = 0.0, place / "old"
    with omnigraph.init(old, schema=SCHEMA, settings=FAST) as graph:
        within = graph.session.after_publish

        def timed(*given: Any, **named: Any) -> None:
            nonlocal spent
            begun = now()
            if within is not None:
                within(*given, **named)
            spent += now() - begun

        graph.session.after_publish = timed if upkeep else None
        _first_commits(graph)
        shutil.copytree(old, place / "young")
        spent, begun = 0.0, now()
        for number in range(YOUNG_COMMITS, commits):
            graph.mutate(ADD, {"n": f"p{number}", "o": f"p{number - 1}"})
        seconds = now() - begun
    return place / "young", old, spent / seconds


def growth(young: Path, old: Path) -> dict[str, float]:
    """What each call takes on the old graph, as a multiple of the young one; asked in turns."""
    seconds: dict[tuple[str, Path], list[float]] = {}

    def clock(what: str, where: Path, call: Callable[[], object]) -> None:
        begun = now()
        call()
        seconds.setdefault((what, where), []).append(now() - begun)

    for _ in range(OPENS):
        for where in (young, old):
            clock("open", where, lambda: omnigraph.open(where, settings=FAST).close())  # noqa: B023 - called at once
    opened = {where: omnigraph.open(where, settings=FAST) for where in (young, old)}
    for graph in opened.values():
        graph.session.after_publish = None
    for number in range(CALLS):
        for where, graph in opened.items():
            key = {"n": f"p{2 + number % 8}"}
            clock("point read", where, lambda: list(graph.query(POINT, key)))  # noqa: B023
            clock("2 hops", where, lambda: list(graph.query(HOPS, key)))  # noqa: B023
            new = {"n": f"new{number}", "o": "p1"}
            clock("mutation", where, lambda: graph.mutate(ADD, new))  # noqa: B023
    for graph in opened.values():
        graph.close()
    medians = {each: statistics.median(found) for each, found in seconds.items()}
    return {
        what: medians[what, old] / medians[what, young]
        for what in ("point read", "2 hops", "mutation", "open")
    }


# --- vectors ----------------------------------------------------------------------------------------------


def fill(graph: omnigraph.Graph, rows: int, fragments: int) -> None:
    """Rows with vectors, as that many commits."""
    generator, each = np.random.default_rng(0), rows // fragments
    session = graph.session
    session.after_publish = None
    for number in range(fragments):
        flat = pa.array(generator.standard_normal(each * DIM, dtype=np.float32))
        names = pa.array([f"d{number * each + row:08d}" for row in range(each)])
        frame = pa.table({"name": names, "v": pa.FixedSizeListArray.from_arrays(flat, DIM)})
        graph.load_frames({"Doc": frame}, mode="append", engine="local")


def copying(place: Path, rows: int) -> list[str]:
    """How long a compaction takes that copies pages, beside one that writes the rows again."""
    with omnigraph.init(place / "copying", schema=VECTORS, settings=FAST) as graph:
        fill(graph, rows, 16)
        handle = graph.session.open_entry(graph.snapshot().entries[DOC])
        taken: dict[str, float] = {}
        as_it_is: Callable[..., str] = getattr(compaction, TASK)
        for mode in ("TryBinaryCopy", "Reencode"):

            def described(*given: Any, mode: str = mode, **named: Any) -> str:
                return as_it_is(*given, **named).replace("TryBinaryCopy", mode)

            setattr(compaction, TASK, described)
            begun = now()
            graph.session.storage.compact(handle, handle.fragment_ids, bytes_max=1 << 29)
            taken[mode] = now() - begun
        setattr(compaction, TASK, as_it_is)
    ratio = taken["TryBinaryCopy"] / taken["Reencode"]
    print(f"compaction of {rows:,} x {DIM} by copy: {ratio:.2f}x of writing the rows again")
    return [f"copying took {ratio:.2f}x"] if ratio > COPY_MAX else []


def memory(place: Path, rows: int) -> list[str]:
    """Peaks of processes that compact vectors and that index them."""
    path = place / "memory"
    with omnigraph.init(path, schema=VECTORS, settings=FAST) as graph:
        fill(graph, rows, 64)
        # Some rows are deleted, so that pages cannot be copied.
        graph.mutate('query d() { delete Doc where name = "d00000001" }')
    missed: list[str] = []
    for what, call, probes, bound in (
        ("compaction", "optimize", 0, COMPACTION_MB_MAX),
        ("vector index", "ensure_indices", 8, INDEX_MB_MAX),
    ):
        program = [sys.executable, "-c", MEASURED, str(path), call, str(probes)]
        peak = json.loads(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
        print(f"{what} of {rows:,} x {DIM}: peak {peak:,.0f} MB (bound {bound:,})")
        missed += [f"{what} took {peak:,.0f} MB"] if peak > bound else []
    return missed


# --- other writers ----------------------------------------------------------------------------------------


def waiting(place: Path, rows: int) -> list[str]:
    """The longest mutation of this process while another one optimizes."""
    path, fragments = place / "waiting", 50
    settings = replace(FAST, bulk_rows_in_process_max=2**40)
    with omnigraph.init(path, schema=SCHEMA, settings=settings) as graph:
        graph.session.after_publish = None
        for number in range(fragments):
            first = number * (rows // fragments)
            names = pa.array([f"n{row}" for row in range(first, first + rows // fragments)])
            graph.load_frames({"Person": pa.table({"name": names})}, mode="append", engine="local")
        # Keys that this process has just loaded are made findable by the first lookups, and not by others.
        for number in range(YOUNG_COMMITS):
            graph.mutate("query m($n: String) { insert Person { name: $n } }", {"n": f"first{number}"})
        running = subprocess.Popen(
            [sys.executable, "-c", OPTIMIZER, str(path)], stdout=subprocess.PIPE, text=True
        )
        waits: list[float] = []
        while running.poll() is None:
            begun = time.perf_counter()
            graph.mutate("query m($n: String) { insert Person { name: $n } }", {"n": f"new{len(waits)}"})
            waits.append(time.perf_counter() - begun)
            time.sleep(0.05)
        printed = running.communicate()[0].strip() or "it failed"
    print(f"{len(waits)} mutations beside the optimization of {rows:,} rows ({printed} s)", end=": ")
    print(f"longest {max(waits):.2f} s")
    missed = [f"a writer waited {max(waits):.2f} s"] if max(waits) > WAIT_S_MAX else []
    return missed + (["the optimization failed"] if running.returncode else [])


# --- forks ------------------------------------------------------------------------------------------------


def forks(place: Path) -> list[str]:
    """What it takes to open a table of a branch, as a multiple of the same without a look at its bases."""
    with omnigraph.init(place / "forks", schema=SCHEMA, settings=FAST) as graph:
        graph.mutate('query m() { insert Person { name: "a" } }')
        graph.branches.create("kid")
        for number in range(YOUNG_COMMITS):
            graph.mutate(ADD, {"n": f"k{number}", "o": "a"}, branch="kid")
        entry = graph.snapshot(branch="kid").entries[TableKey("node:Person")]
    shutil.copytree(place / "forks", place / "moved")
    seconds: dict[str, list[float]] = {}
    look = getattr(Bases, LOOK)
    for _ in range(CALLS * 5):
        for where in ("unlooked", "forks", "moved"):
            store = tables_of(GraphRoot(str(place / where.replace("unlooked", "forks"))))
            setattr(Bases, LOOK, _unlooked if where == "unlooked" else look)
            begun = time.perf_counter()
            store.open_version(entry.table_key, entry.location, entry.branch, entry.version)
            seconds.setdefault(where, []).append(time.perf_counter() - begun)
    setattr(Bases, LOOK, look)
    least = {where: statistics.quantiles(found, n=4)[0] for where, found in seconds.items()}
    ratios = {where: least[where] / least["unlooked"] for where in ("forks", "moved")}
    print(f"opening a fork: {ratios['forks']:.2f}x of not looking at its bases, {ratios['moved']:.2f}x moved")
    return [f"opening a fork took {ratio:.2f}x" for ratio in ratios.values() if ratio > FORK_MAX]


def _unlooked(_: Bases, _location: str, _branch: object, dataset: Any, *_given: Any) -> Any:
    return dataset


def tables_of(root: GraphRoot) -> TableStorage:
    """The tables of a graph, of which nothing is open."""
    return TableStorage(root, FAST, open_adapter(root.uri, {}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
