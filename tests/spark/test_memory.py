"""A load of ten times the input needs about the same memory: whole commands, all their processes watched."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks._memory import PeakMemory

from graphs import make_graph
from omnigraph.api.graph import open_graph

COMMAND = Path(sys.executable).with_name("omnigraph")
GROWTH_MAX = 1.3
"""Peak memory of the tenfold input over that of the baseline, with the same 1 GiB for Spark."""
MEGABYTES_MAX = 2_500
DIMENSION = 1024
PARTS = 4
ROWS_AT_ONCE = 1_250
VECTORS = f"node Doc {{ k: String @key  v: Vector({DIMENSION}) }}"
PEOPLE = """
node Person { name: String @key  age: I32?  city: String?  @range(age, 0..150) }
edge Knows: Person -> Person { since: Date? }
"""


def peak_of_load(graph: Path, source: Path) -> float:
    """The most memory that the command and everything it started held at one time, in megabytes."""
    arguments = ["--data", source, "--mode", "append", "--store", graph, "--spark-conf", "driver.memory=1g"]
    command = subprocess.Popen([COMMAND, "load", *arguments, "--json"], stdout=subprocess.PIPE, text=True)
    with PeakMemory(command.pid) as memory:
        output, _ = command.communicate()
    assert command.returncode == 0
    report = json.loads(output)
    parts = ", ".join(f"{name} {size:.0f}" for name, size in sorted(memory.parts.items()))
    print(f"{report['total_entities']:,} rows, at most {memory.peak_mb:.0f} MB ({parts})")
    return memory.peak_mb


def compare(home: Path, schema: str, write: Callable[[Path, int], Path], baseline: int) -> None:
    peaks: list[float] = []
    for count in (baseline, 10 * baseline):
        place = home / f"g{count}"
        make_graph(place, schema).close()
        peaks.append(peak_of_load(place, write(home, count)))
        with open_graph(place) as graph:
            held = {key: entry.row_count for key, entry in graph.snapshot().entries.items()}
        assert next(rows for key, rows in held.items() if key.startswith("node:")) == count
    assert peaks[1] <= GROWTH_MAX * peaks[0]
    assert peaks[1] <= MEGABYTES_MAX


def documents(home: Path, count: int) -> Path:
    """Vectors as Parquet: a directory of as many files whatever their size, so that as many tasks run."""
    directory = home / str(count) / "Doc"
    directory.mkdir(parents=True)
    random = np.random.default_rng(count)
    schema = pa.schema({"k": pa.string(), "v": pa.list_(pa.float32())})
    for part, first in enumerate(range(0, count, count // PARTS)):
        with pq.ParquetWriter(directory / f"Doc.{part:05}.parquet", schema, compression="none") as out:
            for begin in range(first, first + count // PARTS, ROWS_AT_ONCE):
                values = pa.array(random.random(ROWS_AT_ONCE * DIMENSION, np.float32))
                offsets = pa.array(np.arange(0, ROWS_AT_ONCE * DIMENSION + 1, DIMENSION, np.int32))
                keys = pa.array([f"d{n}" for n in range(begin, begin + ROWS_AT_ONCE)])
                out.write_table(pa.table([keys, pa.ListArray.from_arrays(offsets, values)], schema=schema))
    return directory


def people(home: Path, count: int) -> Path:
    """Persons and five times as many edges as JSON lines."""
    path = home / f"people-{count}.jsonl"
    random = np.random.default_rng(count)
    with path.open("w") as out:
        for n in range(count):
            out.write(
                f'{{"type":"Person","data":{{"name":"person-{n:08d}","age":{n % 90},"city":"city {n % 999}"}}}}\n'
            )
        for begin in range(0, 5 * count, count):
            ends = random.integers(0, count, (count, 2)).tolist()
            out.writelines(
                f'{{"edge":"Knows","from":"person-{a:08d}","to":"person-{b:08d}","data":{{"since":{begin % 9000}}}}}\n'
                for a, b in ends
            )
    return path


@pytest.mark.slow
def test_fifty_thousand_long_vectors(tmp_path: Path) -> None:
    compare(tmp_path, VECTORS, documents, 5_000)


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_six_million_rows(tmp_path: Path) -> None:
    compare(tmp_path, PEOPLE, people, 100_000)
