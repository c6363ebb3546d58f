"""What checksums cost: the same writes with and without them, in turn, as ratios.

Both sides are processes of this checkout with a graph each; one takes no sums. In every round both do the
same work, one after the other, and the next round begins with the other one, so that a busy machine slows
both alike. A ratio is the median of those of the rounds, of the time that passed and of the processor time.
Exit status 1: a write takes more than 2 % longer with checksums.
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
from benchmarks._place import area, work_directory

BOUND = 1.02
PERSONS = 200_000
SCHEMA = (
    "node Person { name: String @key  age: I32  city: String  bio: String }\n"
    "node Note { name: String @key  age: I32? }\nedge Knows: Person -> Person"
)
ONE = "query q($k: String) { insert Note { name: $k, age: 1 } }"
WORKLOADS = {"load of 200,000 rows": 1, "one row": 40}
"""How often each is done in one round."""


def fill(place: Path) -> None:
    """The file that both graphs are loaded from."""
    numbers = np.random.default_rng(0)
    table = {
        "name": [f"p{n}" for n in range(PERSONS)],
        "age": numbers.integers(0, 90, PERSONS, dtype=np.int32),
        "city": [f"c{n % 50}" for n in range(PERSONS)],
        "bio": [f"likes {a} and {b}" for a, b in numbers.integers(0, 10**9, (PERSONS, 2))],
    }
    pq.write_table(pa.table(table), place / "Person.parquet")


def take_no_sums() -> None:
    """Switch off everything that commits do for checksums."""
    from omnigraph.manifest import publisher
    from omnigraph.manifest.dataset import ControlDataset
    from omnigraph.manifest.publisher import ManifestBatchPublisher
    from omnigraph.storage import fragments
    from omnigraph.storage.checksums import NO_RECORD
    from omnigraph.storage.tables import TableStorage

    def giving(value: object) -> Callable[..., object]:
        def give(*_: object) -> object:
            return value

        return give

    def unsummed(_root: object, fragment: object) -> object:
        return fragment

    replaced: tuple[tuple[object, str, Callable[..., object]], ...] = (
        (TableStorage, "sums", giving([])),
        (ControlDataset, "sums", giving(())),
        (ControlDataset, "_kept_with", giving({})),
        (ManifestBatchPublisher, "_record", giving(NO_RECORD)),
        (publisher, "digest", giving(None)),
        (fragments, "_with_sums", unsummed),
    )
    for place, name, instead in replaced:
        assert callable(getattr(place, name)), name
        setattr(place, name, instead)


def serve(place: Path, graph_place: Path, *, sums: bool) -> None:
    """One side: do what each line of stdin names, and answer with the seconds, passed and of processors."""
    import omnigraph

    if not sums:
        take_no_sums()
    notes = omnigraph.init(area(graph_place, "notes") / "g", schema=SCHEMA)
    numbers = iter(range(10**9))

    def load() -> None:
        with omnigraph.init(area(graph_place, "load") / "g", schema=SCHEMA) as graph:
            start.append((time.perf_counter(), time.process_time()))
            graph.load(place / "Person.parquet", mode="append", engine="local")

    start: list[tuple[float, float]] = []
    works: dict[str, Callable[[], Any]] = {
        "load of 200,000 rows": load,
        "one row": lambda: notes.mutate(ONE, {"k": f"k{next(numbers)}"}),
    }
    print("ready", flush=True)
    for line in sys.stdin:
        work, times = works[line.strip()], WORKLOADS[line.strip()]
        start[:] = [(time.perf_counter(), time.process_time())]
        for _ in range(times):
            work()
        begun, used = start[-1]
        taken = (time.perf_counter() - begun, time.process_time() - used)
        print(json.dumps([each / times for each in taken]), flush=True)
    kept = notes.verify(deep=True)
    assert (kept.commits_without_checksums == 0) is sums, "the side does not do what it is to show"
    notes.close()
    print("done", flush=True)


class Side:
    """The process of one side."""

    def __init__(self, place: Path, *, sums: bool) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.checksums", "--serve", str(place), str(int(sums))],
            cwd=Path(__file__).parent.parent,
            env=dict(os.environ),
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

    def seconds(self, name: str) -> tuple[float, float]:
        """How long one of these takes in this round: passed, and of processors."""
        assert self._child.stdin is not None
        self._child.stdin.write(name + "\n")
        self._child.stdin.flush()
        passed, used = json.loads(self._answer())
        return passed, used

    def close(self) -> None:
        """End the process, which looks once more whether it was the side that it was to be."""
        told, _ = self._child.communicate()
        if told.strip() != "done":
            sys.exit("a side did not do what it was to show")


def compare(rounds: int, place: Path) -> bool:
    """Print the ratios; whether each is within the bound."""
    fill(place)
    sides = [Side(place, sums=True), Side(place, sums=False)]
    held = True
    for name in WORKLOADS:
        for side in sides:
            side.seconds(name)  # once for nothing: what is made at the first call is made
        passed: list[float] = []
        used: list[float] = []
        for number in range(rounds):
            taken: dict[int, tuple[float, float]] = {}
            for at in (0, 1) if number % 2 else (1, 0):
                taken[at] = sides[at].seconds(name)
            passed.append(taken[0][0] / taken[1][0])
            used.append(taken[0][1] / taken[1][1])
        ratio = statistics.median(passed)
        held = held and ratio <= BOUND
        low, high = statistics.quantiles(passed, n=4)[::2]
        print(
            f"{name:24} {ratio:6.3f} of the time without checksums   (quartiles {low:.3f} to {high:.3f})"
            f"   processor time {statistics.median(used):6.3f}{'' if ratio <= BOUND else '   MISSED'}",
            flush=True,
        )
    for side in sides:
        side.close()
    return held


def main() -> int:
    """Compare, or serve one side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--serve", nargs=2)
    chosen = parser.parse_args()
    if chosen.serve:
        place = Path(chosen.serve[0])
        serve(place, place, sums=chosen.serve[1] == "1")
        return 0
    with work_directory("checksums") as place:
        return 0 if compare(chosen.rounds, place) else 1


if __name__ == "__main__":
    sys.exit(main())
