"""Bulk loads beside what a user would pick instead, in one run, printed as ratios.

Run by `python -m benchmarks.loads [--people N]`: N persons and 5 N edges as one file of JSON lines, loaded
with every check on, by Spark (warm session) and in process. Beside them, without any check: bare pylance
behind pyarrow's JSON reader, and DuckDB when it is installed. Every answer is counted afterwards.
"""

import argparse
import importlib.util
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.json as pj

import omnigraph
from omnigraph.pipeline.session import spark_runtime

SCHEMA = """
node Person { name: String @key  age: I32?  city: String?  score: F64?  @range(age, 0..150) }
edge Knows: Person -> Person { since: Date? }
"""
EDGES_PER_PERSON = 5
GOALS = {"duckdb": 0.87, "pylance": 0.67}
"""Rows per second of the Spark load until everything is visible, as a share of the peer's. The peers check
nothing and build no index; the index work that follows our publish is printed beside.
"""


index_seconds: dict[str, float] = {}


def generate(path: Path, people: int) -> int:
    """Persons, then edges with a skewed start: 30 % of them begin at one in a hundred persons."""
    random = np.random.default_rng(7)
    edges = people * EDGES_PER_PERSON
    starts = random.integers(0, people, edges)
    hot = random.random(edges) < 0.3
    starts[hot] = random.integers(0, max(people // 100, 1), int(hot.sum()))
    ends = random.integers(0, people, edges)
    with path.open("w") as out:
        for n in range(people):
            out.write(
                f'{{"type":"Person","data":{{"name":"person-{n:08d}","age":{n % 90},"city":"city {n % 1000}",'
                f'"score":{(n * 7 % 10007) / 13:.3f}}}}}\n'
            )
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            out.write(
                f'{{"edge":"Knows","from":"person-{start:08d}","to":"person-{end:08d}",'
                f'"data":{{"since":"20{start % 25:02d}-0{1 + end % 9}-1{start % 9}"}}}}\n'
            )
    return people + edges


def warm_up(home: Path) -> None:
    """A session is warm once its workers have loaded what a task needs: a load that makes every core work."""
    spark_runtime()
    for n in range(4):
        (home / f"warm-{n}.jsonl").write_text(f'{{"type":"Person","data":{{"name":"p{n}"}}}}\n')
    with omnigraph.init(home / "warm", schema=SCHEMA) as graph:
        graph.load(str(home / "warm-*.jsonl"), mode="append", engine="spark")


def load_with(engine: str) -> Callable[[Path, Path], int]:
    def run(source: Path, home: Path) -> int:
        with omnigraph.init(home / engine, schema=SCHEMA) as graph:
            began = time.perf_counter()
            report = graph.load(source, mode="append", engine=engine)
            stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in report.seconds.items())
            print(f"   {engine}: {time.perf_counter() - began:.1f} s ({stages})")
            index_seconds[engine] = report.seconds.get("index", 0.0)
            entries = graph.snapshot().entries
            return sum(entry.row_count for entry in entries.values())

    return run


def bare_pylance(source: Path, home: Path) -> int:
    """What one writes by hand: two readers over the lines of one type each, appended in batches."""
    person = pa.struct(
        [("name", pa.string()), ("age", pa.int32()), ("city", pa.string()), ("score", pa.float64())]
    )
    knows = pa.struct([("since", pa.string())])
    schemas = {
        b'{"type"': pa.schema([("type", pa.string()), ("data", person)]),
        b'{"edge"': pa.schema(
            [("edge", pa.string()), ("from", pa.string()), ("to", pa.string()), ("data", knows)]
        ),
    }
    rows = 0
    with source.open("rb") as file:
        while chunk := file.read(64 << 20):
            chunk += file.readline()
            cut = chunk.find(b'\n{"edge"') + 1
            parts = [chunk[:cut], chunk[cut:]] if cut and chunk.startswith(b'{"type"') else [chunk]
            for part in parts:
                table = pj.read_json(
                    pa.BufferReader(part),
                    read_options=pj.ReadOptions(block_size=8 << 20),
                    parse_options=pj.ParseOptions(explicit_schema=schemas[part[:7]]),
                ).flatten()
                table = table.rename_columns([name.removeprefix("data.") for name in table.column_names])
                if "since" in table.column_names:
                    at = table.column_names.index("since")
                    table = table.set_column(at, "since", table.column(at).cast(pa.date32()))
                uri = str(home / ("people" if part.startswith(b'{"type"') else "knows"))
                lance.write_dataset(table, uri, mode="append" if Path(uri).exists() else "create")
                rows += table.num_rows
    return rows


def duckdb_tables(source: Path, home: Path) -> int:
    import duckdb

    base = duckdb.connect(str(home / "duck.db"))
    columns = "{'type': 'VARCHAR', 'edge': 'VARCHAR', 'from': 'VARCHAR', 'to': 'VARCHAR', 'data': 'JSON'}"
    reader = f"read_json('{source}', format='newline_delimited', columns={columns})"
    base.execute(
        f"""create table person as select data->>'name' as name, (data->>'age')::int as age,
            data->>'city' as city, (data->>'score')::double as score from {reader} where type = 'Person'"""
    )
    base.execute(
        f"""create table knows as select "from", "to", (data->>'since')::date as since
            from {reader} where edge = 'Knows'"""
    )
    counted = base.execute("select (select count(*) from person) + (select count(*) from knows)").fetchone()
    return int(counted[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=200_000)
    people = parser.parse_args().people
    home = Path(tempfile.mkdtemp(prefix="omnigraph-bench-loads-"))
    source = home / "input.jsonl"
    total = generate(source, people)
    print(f"{total:,} rows, {source.stat().st_size / 1e6:.0f} MB of JSON lines")
    warm_up(home)
    contenders: dict[str, Callable[[Path, Path], int]] = {
        "spark": load_with("spark"),
        "local": load_with("local"),
        "pylance": bare_pylance,
    }
    if importlib.util.find_spec("duckdb") is not None:
        contenders["duckdb"] = duckdb_tables
    speed: dict[str, float] = {}
    for name, contender in contenders.items():
        began = time.perf_counter()
        counted = contender(source, home)
        seconds = time.perf_counter() - began - index_seconds.get(name, 0.0)
        assert counted == total, f"{name} holds {counted:,} of {total:,} rows"
        speed[name] = total / seconds
        indexes = f", then {index_seconds[name]:.1f} s of index work" if name in index_seconds else ""
        print(f"{name:10} {seconds:7.1f} s {speed[name] / 1000:8.0f} krows/s{indexes}", flush=True)
    driver = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"peak memory of this process: {driver} MB")
    missed = 0
    for peer, goal in GOALS.items():
        if peer in speed:
            ratio = speed["spark"] / speed[peer]
            missed += ratio < goal
            print(f"spark / {peer}: {ratio:.2f}x, goal >= {goal}x {'MISSED' if ratio < goal else 'met'}")
    shutil.rmtree(home, ignore_errors=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
