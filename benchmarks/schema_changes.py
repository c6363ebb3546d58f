"""What changes of a schema cost, as ratios inside one run: `python -m benchmarks.schema_changes`.

An additive change on a large table of vectors beside the same on 1,000 rows, and beside many branches; a
constant fill and a wider integer beside a full rewrite of the same table; and the memory that all of them
take on the large one. In every round each of them is done once, in turn, and a ratio is the median of those
of the rounds, so that a busy machine slows all alike. Exit status 1: a ratio, the memory or a byte of data is
above its goal.
`--rows`, `--dimensions`, `--fill-rows` and `--branches` make it smaller.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from benchmarks._memory import PeakMemory
from benchmarks._place import area, work_directory

import omnigraph
from omnigraph.core.events import TableStaged, listen
from omnigraph.core.ids import CommitId, OperationId, TableKey, new_ulid
from omnigraph.core.settings import Settings
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.storage.handles import Stamp

ITEM = TableKey("node:Item")
FEW_ROWS = 1_000
FILL_DIMENSIONS = 256
ADDITIVE_ROUNDS = 15
COLUMN_ROUNDS = 5
PIECE = 50_000
GOALS = {"additive_rows": 1.5, "additive_branches": 1.2, "fill": 0.1, "widen": 0.1}
PEAK_MB_MAX = 512
FAST = Settings(durability="os")


def schema_of(dimensions: int, members: str = "", widened: int = 0) -> str:
    """Items with a vector and as many integers as there are rounds; the first `widened` of them are wide."""
    numbers = " ".join(f"n{place}: I{64 if place < widened else 32}?" for place in range(COLUMN_ROUNDS + 1))
    return f"node Item {{ name: String @key  {numbers}  v: Vector({dimensions})?  {members} }}\n"


def made(place: Path, rows: int, dimensions: int, branches: int = 0) -> Path:
    """A graph with one table of vectors, written in pieces so that memory does not follow it."""
    random = np.random.default_rng(7)
    with omnigraph.init(place, schema=schema_of(dimensions), settings=FAST) as graph:
        session = graph.session
        handle = session.open_entry(session.manifest.current(None).entries[ITEM])

        def pieces() -> Iterator[pa.RecordBatch]:
            for start in range(0, rows, PIECE):
                count = min(rows, start + PIECE) - start
                names = pa.array([f"item{number:09d}" for number in range(start, start + count)])
                values = pa.array(random.random(count * dimensions, np.float32))
                columns = {
                    f"n{each}": pa.array(np.arange(count, dtype=np.int32))
                    for each in range(COLUMN_ROUNDS + 1)
                }
                columns |= {
                    "id": names,
                    "name": names,
                    "v": pa.FixedSizeListArray.from_arrays(values, dimensions),
                }
                arrays = [columns[name] for name in handle.schema.names]
                yield pa.RecordBatch.from_arrays(arrays, schema=handle.schema)

        reader = pa.RecordBatchReader.from_batches(handle.schema, pieces())
        staged = session.storage.stage_append_stream(handle, reader, Stamp(new_ulid(), ITEM))
        done = session.storage.commit_staged(handle, staged)
        update = SubTableUpdate(ITEM, done.version, None, done.row_count, staged.transaction_uuid, ())
        intent = CommitIntent(CommitId(new_ulid()), "load", operation_id=OperationId(new_ulid()))
        session.publisher.publish(None, [update], {}, intent)
        for number in range(branches):
            graph.branches.create(f"team{number}")
    return place


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turn(works: dict[str, Callable[[int], object]], rounds: int) -> dict[str, list[float]]:
    """The seconds of each work in each round but the first; every round begins with another one."""
    names, taken = list(works), {name: list[float]() for name in works}
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            seconds = timed(lambda name=name, number=number: works[name](number))
            if number:
                taken[name].append(seconds)
    return taken


def ratio(taken: dict[str, list[float]], one: str, other: str) -> float:
    return statistics.median(a / b for a, b in zip(taken[one], taken[other], strict=True))


def additive(places: dict[str, Path], dimensions: int) -> tuple[dict[str, list[float]], int]:
    """The seconds of additive changes of several graphs, and the bytes of data that they wrote."""
    written: list[int] = []
    with ExitStack() as stack:
        graphs = {
            name: stack.enter_context(omnigraph.open(place, settings=FAST)) for name, place in places.items()
        }
        stack.enter_context(
            listen(lambda event: written.append(event.bytes) if isinstance(event, TableStaged) else None)
        )

        def adds(name: str) -> Callable[[int], object]:
            return lambda number: graphs[name].apply_schema(
                schema_of(dimensions, " ".join(f"p{each}: String?" for each in range(number + 1)))
            )

        return in_turn({name: adds(name) for name in graphs}, ADDITIVE_ROUNDS), sum(written)


def columns(place: Path, rounds: int) -> dict[str, list[float]]:
    """The seconds of constant fills, wider integers and full rewrites of one table."""
    with omnigraph.open(place, settings=FAST) as graph:
        session = graph.session
        done = {"filled": 0, "widened": 0}

        def apply(what: str) -> None:
            done[what] += 1
            members = " ".join(f'tier{each}: String @default("basic")' for each in range(done["filled"]))
            graph.apply_schema(schema_of(FILL_DIMENSIONS, members, done["widened"]))

        def rewrite(_number: int) -> None:
            handle = session.open_entry(session.manifest.current(None).entries[ITEM])
            session.storage.stage_overwrite(handle, session.storage.scan(handle), Stamp(new_ulid(), ITEM))

        works: dict[str, Callable[[int], object]] = {
            "fill": lambda _number: apply("filled"),
            "widen": lambda _number: apply("widened"),
            "rewrite": rewrite,
        }
        return in_turn(works, rounds)


def peak(place: Path, dimensions: int) -> float:
    """Megabytes that a process holds at most that adds, fills and widens a column of a large table."""
    with PeakMemory() as memory, omnigraph.open(place, settings=FAST) as graph:
        added = " ".join(f"p{each}: String?" for each in range(ADDITIVE_ROUNDS + 1))
        graph.apply_schema(schema_of(dimensions, f"{added} q: String?"))
        graph.apply_schema(schema_of(dimensions, f'{added} q: String?  tier: String @default("basic")'))
        graph.apply_schema(schema_of(dimensions, f'{added} q: String?  tier: String @default("basic")', 1))
    return memory.peak_mb


def measure(place: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Every figure of one run."""
    sizes = {"few": (FEW_ROWS, 0), "one": (FEW_ROWS, 1), "many": (FEW_ROWS, given.branches)}
    sizes["large"] = (given.rows, 0)
    graphs = {
        name: made(area(place, name) / "g", rows, given.dimensions, branches)
        for name, (rows, branches) in sizes.items()
    }
    adding, data_bytes = additive(graphs, given.dimensions)
    changing = columns(made(area(place, "table") / "g", given.fill_rows, FILL_DIMENSIONS), COLUMN_ROUNDS)
    again = ["--peak", str(graphs["large"]), "--dimensions", str(given.dimensions)]
    asked = [sys.executable, "-m", "benchmarks.schema_changes", *again]
    held = subprocess.run(asked, capture_output=True, check=True, text=True)
    ms = {name: round(statistics.median(seconds) * 1e3, 1) for name, seconds in (adding | changing).items()}
    return {
        "rows": given.rows,
        "dimensions": given.dimensions,
        "branches": given.branches,
        "fill_rows": given.fill_rows,
        "ms": ms,
        "ratios": {
            "additive_rows": round(ratio(adding, "large", "few"), 3),
            "additive_branches": round(ratio(adding, "many", "one"), 3),
            "fill": round(ratio(changing, "fill", "rewrite"), 3),
            "widen": round(ratio(changing, "widen", "rewrite"), 3),
        },
        "goals": GOALS,
        "additive_data_bytes": data_bytes,
        "peak_mb": round(float(held.stdout), 1),
        "peak_mb_max": PEAK_MB_MAX,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dimensions", type=int, default=768)
    parser.add_argument("--fill-rows", type=int, default=200_000)
    parser.add_argument("--branches", type=int, default=100)
    parser.add_argument("--peak", type=Path, help="print the memory that changes of this graph take")
    given = parser.parse_args()
    if given.peak is not None:
        print(peak(given.peak, given.dimensions))
        return 0
    with work_directory("omnigraph-schema-") as place:
        found = measure(place, given)
    print(json.dumps(found, indent=2))
    ratios = found["ratios"]
    met = all(ratios[name] <= goal for name, goal in GOALS.items())
    return 0 if met and not found["additive_data_bytes"] and found["peak_mb"] <= PEAK_MB_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
