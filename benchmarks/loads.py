"""Bulk loads beside what a user would pick instead, in one run, printed as ratios.

`python -m benchmarks.loads [--people N] [--only NAME,NAME] [--home DIR]`: N persons and 5 N edges as JSON
lines and as Parquet, loaded with every check on, by Spark (warm session), in process, and by the whole
commands; then ten rows by the whole command. Beside them, in a process of their own each and without our
checks: ladybug, DuckDB, SQLite and bare pylance. Every answer is counted afterwards. What a goal names is
loaded in turn, several times, and the medians are compared; before each load the disk has everything the one
before it wrote, or it would pay for that. After a load by command, the first reads of a new process are
compared with those of a later one. With `--home` the input is kept.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from benchmarks._memory import PeakMemory
from benchmarks._place import area, work_directory

SCHEMA = """
node Person { name: String @key  age: I32?  city: String?  score: F64?  @range(age, 0..150) }
edge Knows: Person -> Person { since: Date? }
"""
EDGES_PER_PERSON = 5
BLOCK = 200_000
MEMORY_MB_MAX = 1_500
FIRST_READS_MAX = 1.5
"""The first reads after a load, over those of a later process."""
TEN_ROWS_SECONDS_MAX = {"spark": 7.0, "local": 1.0}
GOALS = {("jsonl", "ladybug"): 1.5, ("parquet", "ladybug"): 1.5}
"""Rows per second of a load until it returns, over the peer's: of Spark with a warm session, and of the whole
command in process, from its start to its exit. The peers check nothing and build no index but a primary key
(ladybug, SQLite). The index work that follows our publish is printed beside.
"""
JUDGED = ("spark", "command", "ladybug")
ROUNDS = 3
"""How often the judged ones are loaded, in turn; the others once."""


# --- input ---


def people_table(begin: int, end: int) -> pa.Table:
    n = np.arange(begin, end)
    return pa.table(
        {
            "name": pa.array([f"person-{each:08d}" for each in n.tolist()]),
            "age": pa.array(n % 90, pa.int32()),
            "city": pa.array([f"city {each}" for each in (n % 1000).tolist()]),
            "score": pa.array(np.round(n * 7 % 10007 / 13, 3)),
        }
    )


def knows_table(begin: int, end: int, people: int) -> pa.Table:
    """Edges with a skewed start: 30 % of them begin at one in a hundred persons."""
    random = np.random.default_rng(7 + begin)
    count = end - begin
    starts = random.integers(0, people, count)
    hot = random.random(count) < 0.3
    starts[hot] = random.integers(0, max(people // 100, 1), int(hot.sum()))
    ends = random.integers(0, people, count)
    days = (starts * 31 + ends) % 9000
    return pa.table(
        {
            "from": pa.array([f"person-{each:08d}" for each in starts.tolist()]),
            "to": pa.array([f"person-{each:08d}" for each in ends.tolist()]),
            "since": pa.array(days.astype(np.int32), pa.int32()).cast(pa.date32()),
        }
    )


def lines(table: pa.Table) -> str:
    if "name" in table.column_names:
        rows = zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)
        form = '{{"type":"Person","data":{{"name":"{}","age":{},"city":"{}","score":{}}}}}'
    else:
        rows = zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)
        form = '{{"edge":"Knows","from":"{}","to":"{}","data":{{"since":"{}"}}}}'
    return "\n".join(form.format(*row) for row in rows) + "\n"


def generate(home: Path, people: int) -> tuple[Path, Path]:
    """The same rows twice: one file of JSON lines, and a directory with a Parquet file per type."""
    source, directory = home / f"input-{people}.jsonl", home / f"parquet-{people}"
    if source.exists():
        return source, directory
    directory.mkdir(parents=True)
    part = source.with_suffix(".part")
    plan: list[tuple[str, int, Callable[[int, int], pa.Table]]] = [
        ("Person", people, people_table),
        ("Knows", people * EDGES_PER_PERSON, lambda begin, end: knows_table(begin, end, people)),
    ]
    with part.open("w") as out:
        for name, count, make in plan:
            writer = None
            for begin in range(0, count, BLOCK):
                table = make(begin, min(begin + BLOCK, count))
                writer = writer or pq.ParquetWriter(directory / f"{name}.parquet", table.schema)
                writer.write_table(table)
                out.write(lines(table))
            assert writer is not None
            writer.close()
    part.rename(source)
    return source, directory


# --- ours ---


def warm_up(home: Path) -> None:
    """A session is warm once its workers have loaded what a task needs: a load that makes every core work."""
    import omnigraph
    from omnigraph.pipeline.spark.session import spark_runtime

    spark_runtime()
    for n in range(4):
        (home / f"warm-{n}.jsonl").write_text(f'{{"type":"Person","data":{{"name":"p{n}"}}}}\n')
    with omnigraph.init(fresh(home, "warm"), schema=SCHEMA) as graph:
        graph.load(str(home / "warm-*.jsonl"), mode="append", engine="spark")


def fresh(home: Path, name: str) -> Path:
    """A new place: removing old graphs would slow down the creation of files for a while."""
    return area(home, name) / "g"


def ours(name: str, source: Path, home: Path) -> dict[str, float]:
    """One load in this process; the session is warm before the clock starts.

    `memory` is the Spark load again, watched: reading the memory maps of its processes slows them down.
    """
    import omnigraph

    engine = "local" if name == "local" else "spark"
    if engine == "spark":
        warm_up(home)
    with omnigraph.init(fresh(home, name), schema=SCHEMA) as graph:
        with PeakMemory() if name == "memory" else nullcontext() as memory:
            began = time.perf_counter()
            report = graph.load(source, mode="append", engine=engine)
            seconds = time.perf_counter() - began
        index = report.seconds.get("index", 0.0)
        stages = ", ".join(f"{stage} {took:.1f}" for stage, took in report.seconds.items())
        print(f"   {name}: {seconds:.1f} s ({stages})", flush=True)
        rows = sum(entry.row_count for entry in graph.snapshot().entries.values())
        counted = graph.query("query q() { match { $p: Person } return { count($p) as n } }")
        assert counted.to_arrow().column("n").to_pylist() == [report.nodes[0].inserted]
    found = {"rows": rows, "seconds": seconds, "index": index}
    if memory is not None:
        parts = ", ".join(f"{kind} {size:.0f}" for kind, size in sorted(memory.parts.items()))
        print(f"   {memory.peak_mb:.0f} MB at most ({parts})", flush=True)
        found["memory"] = memory.peak_mb
    return found


def command(engine: str, source: Path, home: Path) -> dict[str, float]:
    """The whole command from its start to its exit, then the first reads of two processes, one by one."""
    place, schema = fresh(home, f"command-{engine}"), home / "schema.pg"
    schema.write_text(SCHEMA)
    omnigraph = Path(sys.executable).with_name("omnigraph")
    subprocess.run([omnigraph, "init", "--schema", schema, place], check=True, capture_output=True)
    arguments = ["--data", source, "--mode", "append", "--engine", engine, "--store", place, "--json"]
    began = time.perf_counter()
    done = subprocess.run([omnigraph, "load", *arguments], check=True, capture_output=True, text=True)
    found = {"seconds": time.perf_counter() - began, "index": json.loads(done.stdout)["seconds"]["index"]}
    first, later = (apart("reads", place, home) for _ in range(2))
    for name in ("point", "hops", "groups"):
        found[name] = first[name] / later[name]
    return found | {"rows": first["rows"]}


READS = {
    "point": 'query q() { match { $p: Person { name: "person-00000077" } } return { $p.city } }',
    "hops": 'query q() { match { $p: Person { name: "person-00000077" } $p knows{1,2} $q } return { $q } }',
    "groups": "query q() { match { $p: Person $p knows $q } return { $q.age, count($p) as n } }",
}


def reads(place: Path) -> dict[str, float]:
    """Seconds of the first of each read in this process."""
    import omnigraph

    with omnigraph.open_read_only(place) as graph:
        found: dict[str, float] = {}
        for name, text in READS.items():
            began = time.perf_counter()
            assert len(graph.query(text))
            found[name] = time.perf_counter() - began
        return found | {"rows": sum(entry.row_count for entry in graph.snapshot().entries.values())}


# --- peers ---


def read_by_hand(source: Path) -> Iterator[tuple[str, pa.Table]]:
    """What one writes by hand over mixed JSON lines: one reader per type, by how a line begins."""
    person = pa.struct(
        [("name", pa.string()), ("age", pa.int32()), ("city", pa.string()), ("score", pa.float64())]
    )
    knows = pa.struct([("since", pa.string())])
    ends = [("edge", pa.string()), ("from", pa.string()), ("to", pa.string()), ("data", knows)]
    schemas = {
        b'{"type"': pa.schema([("type", pa.string()), ("data", person)]),
        b'{"edge"': pa.schema(ends),
    }
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
                table = table.drop_columns([name for name in ("type", "edge") if name in table.column_names])
                if "since" in table.column_names:
                    at = table.column_names.index("since")
                    table = table.set_column(at, "since", table.column(at).cast(pa.date32()))
                yield ("Person" if part.startswith(b'{"type"') else "Knows"), table


def tables_of(source: Path) -> Iterator[tuple[str, pa.Table]]:
    if source.is_file():
        yield from read_by_hand(source)
        return
    for name in ("Person", "Knows"):
        for batch in pq.ParquetFile(source / f"{name}.parquet").iter_batches(1 << 19):
            yield name, pa.Table.from_batches([batch])


def bare_pylance(source: Path, home: Path) -> int:
    """Appended in batches; neither atomic over the tables nor durable."""
    import lance

    for name, table in tables_of(source):
        uri = str(home / name)
        lance.write_dataset(table, uri, mode="append" if Path(uri).exists() else "create")
    return sum(lance.dataset(str(home / name)).count_rows() for name in ("Person", "Knows"))


def duckdb(source: Path, home: Path) -> int:
    import duckdb as duck

    base = duck.connect(str(home / "duck.db"))
    if source.is_dir():
        base.execute(f"create table person as select * from '{source}/Person.parquet'")
        base.execute(f"create table knows as select * from '{source}/Knows.parquet'")
    else:
        columns = "{'type': 'VARCHAR', 'edge': 'VARCHAR', 'from': 'VARCHAR', 'to': 'VARCHAR', 'data': 'JSON'}"
        reader = f"read_json('{source}', format='newline_delimited', columns={columns})"
        base.execute(
            f"""create table person as select data->>'name' as name, (data->>'age')::int as age,
                data->>'city' as city, (data->>'score')::double as score
                from {reader} where type = 'Person'"""
        )
        base.execute(
            f"""create table knows as select "from", "to", (data->>'since')::date as since
                from {reader} where edge = 'Knows'"""
        )
    counted = base.execute("select (select count(*) from person) + (select count(*) from knows)").fetchone()
    return int(counted[0])


def ladybug(source: Path, home: Path) -> int:
    """Its JSON reader takes one type per file, so lines go through Parquet first, as a user would do."""
    import ladybug as lbug

    if source.is_file():
        writers: dict[str, pq.ParquetWriter] = {}
        for name, table in tables_of(source):
            if name not in writers:
                writers[name] = pq.ParquetWriter(home / f"{name}.parquet", table.schema)
            writers[name].write_table(table)
        for writer in writers.values():
            writer.close()
        source = home
    base = lbug.Connection(lbug.Database(str(home / "lady.db")))
    base.execute(
        "create node table Person(name string, age int32, city string, score double, primary key(name))"
    )
    base.execute("create rel table Knows(from Person to Person, since date)")
    base.execute(f"copy Person from '{source}/Person.parquet'")
    base.execute(f"copy Knows from '{source}/Knows.parquet'")
    counts = [
        base.execute("match (p:Person) return count(*)").get_next()[0],
        base.execute("match (:Person)-[k:Knows]->(:Person) return count(*)").get_next()[0],
    ]
    return sum(counts)


def sqlite(source: Path, home: Path) -> int:
    import sqlite3

    base = sqlite3.connect(home / "sqlite.db")
    base.execute("create table person(name text primary key, age int, city text, score real)")
    base.execute("create table knows(src text, dst text, since text)")
    for name, table in tables_of(source):
        columns = [
            (column.cast(pa.string()) if pa.types.is_date(column.type) else column).to_pylist()
            for column in table.columns
        ]
        holes = ", ".join("?" for _ in columns)
        base.executemany(f"insert into {name.lower()} values ({holes})", zip(*columns, strict=True))
    base.commit()
    counted = base.execute("select (select count(*) from person) + (select count(*) from knows)")
    return int(counted.fetchone()[0])


PEERS: dict[str, Callable[[Path, Path], int]] = {
    "ladybug": ladybug,
    "duckdb": duckdb,
    "sqlite": sqlite,
    "pylance": bare_pylance,
}


COMMANDS = {"command": "local", "spark-command": "spark"}


# --- runs ---


def one(name: str, source: Path, home: Path) -> dict[str, float]:
    """One contender in this process."""
    if name == "reads":
        return reads(source)
    if name not in PEERS:
        return ours(name, source, home)
    place = fresh(home, name).parent
    began = time.perf_counter()
    rows = PEERS[name](source, place)
    return {"rows": rows, "seconds": time.perf_counter() - began}


def apart(name: str, source: Path, home: Path) -> dict[str, float]:
    """One contender in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loads", "--one", name, str(source), "--home", str(home)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    *shown, answer = done.stdout.splitlines()
    print("\n".join(shown), end="\n" if shown else "", flush=True)
    return json.loads(answer)


def contended(name: str, source: Path, home: Path) -> dict[str, float]:
    """One contender. A peer counts from the start of its process to its end, as a command does."""
    if name in COMMANDS:
        return command(COMMANDS[name], source, home)
    began = time.perf_counter()
    found = apart(name, source, home)
    return found | {"whole": time.perf_counter() - began}


def ten_rows(home: Path) -> dict[str, float]:
    """Seconds of the whole command for ten rows, once the class archive is there.

    Compiled modules are kept, as an installed package has them.
    """
    source = home / "ten.jsonl"
    source.write_text("".join(f'{{"type":"Person","data":{{"name":"p{n}"}}}}\n' for n in range(10)))
    schema = home / "schema.pg"
    schema.write_text(SCHEMA)
    command = Path(sys.executable).with_name("omnigraph")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**kept, "PYTHONPYCACHEPREFIX": str(home / "compiled")}
    took: dict[str, float] = {}
    for engine in TEN_ROWS_SECONDS_MAX:
        tries: list[float] = []
        for _ in range(4):
            place = fresh(home, f"ten-{engine}")
            subprocess.run([command, "init", "--schema", schema, place], check=True, capture_output=True)
            arguments = ["--data", source, "--mode", "append", "--engine", engine, "--store", place]
            began = time.perf_counter()
            subprocess.run([command, "load", *arguments], check=True, capture_output=True, env=environment)
            tries.append(time.perf_counter() - began)
        took[engine] = min(tries)
    return took


def compare(form: str, seconds: dict[str, float], whole: dict[str, float]) -> int:
    """Print how many times as fast as each peer we are. A command is compared with a peer's whole process."""
    missed = 0
    for peer in PEERS:
        for ours_ in ("spark", *COMMANDS):
            theirs = (whole if ours_ in COMMANDS else seconds).get(peer)
            if theirs is None or ours_ not in seconds:
                continue
            ratio = theirs / seconds[ours_]
            goal = GOALS.get((form, peer)) if ours_ in JUDGED else None
            verdict = "" if goal is None else f", goal >= {goal}x{' MISSED' if ratio < goal else ''}"
            missed += goal is not None and ratio < goal
            print(f"{form}: {ours_} / {peer}: {ratio:.2f}x{verdict}")
    return missed


def judge_first_reads(found: dict[str, float]) -> int:
    """Print how much slower the first reads after a load are than those of a later process."""
    missed = 0
    for name in READS:
        if name in found:
            late = found[name] > FIRST_READS_MAX
            missed += late
            goal = f"goal <= {FIRST_READS_MAX}x{' MISSED' if late else ''}"
            print(
                f"   first {name} after the load: {found[name]:.2f}x of a later process, {goal}", flush=True
            )
    return missed


def measure(home: Path, people: int, only: list[str], forms: list[str]) -> int:
    source, directory = generate(home, people)
    total = people * (1 + EDGES_PER_PERSON)
    print(f"{total:,} rows, {source.stat().st_size / 1e6:.0f} MB of JSON lines, {os.cpu_count()} cores")
    missed = 0
    for form in forms:
        taken: dict[str, list[float]] = {}
        whole: dict[str, list[float]] = {}
        for number in range(ROUNDS):
            for name in only if number == 0 else [each for each in only if each in JUDGED]:
                os.sync()
                found = contended(name, source if form == "jsonl" else directory, home)
                assert found["rows"] == total, f"{name} holds {found['rows']:,} of {total:,} rows"
                taken.setdefault(name, []).append(found["seconds"])
                whole.setdefault(name, []).append(found.get("whole", found["seconds"]))
                index = f", of it {found['index']:.1f} s of index work" if "index" in found else ""
                krows = total / found["seconds"] / 1000
                print(f"{form:8} {name:8} {found['seconds']:7.1f} s {krows:7.0f} krows/s{index}", flush=True)
                missed += judge_first_reads(found)
                if found.get("memory", 0) > MEMORY_MB_MAX:
                    missed += 1
                    print(f"peak memory {found['memory']:.0f} MB, goal <= {MEMORY_MB_MAX} MB MISSED")
        medians = (
            {name: statistics.median(each) for name, each in times.items()} for times in (taken, whole)
        )
        missed += compare(form, *medians)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=1_000_000)
    parser.add_argument("--only", default=",".join(["spark", "local", *COMMANDS, *PEERS, "memory", "ten"]))
    parser.add_argument("--forms", default="jsonl,parquet")
    parser.add_argument("--home", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SOURCE"))
    asked = parser.parse_args()
    if asked.one is not None:
        name, source = asked.one
        print(json.dumps(one(name, Path(source), asked.home)))
        return 0
    with work_directory("omnigraph-bench-loads-") if asked.home is None else nullcontext(asked.home) as home:
        home.mkdir(exist_ok=True)
        return 1 if run(home, asked.people, asked.only.split(","), asked.forms.split(",")) else 0


def run(home: Path, people: int, only: list[str], forms: list[str]) -> int:
    """All that was asked for; how many goals were missed."""
    missed = measure(home, people, [name for name in only if name != "ten"], forms)
    if "ten" in only:
        for engine, seconds in ten_rows(home).items():
            late = seconds > TEN_ROWS_SECONDS_MAX[engine]
            missed += late
            goal = f"goal <= {TEN_ROWS_SECONDS_MAX[engine]:.0f} s{' MISSED' if late else ''}"
            print(f"ten rows, whole command, {engine}: {seconds:.2f} s, {goal}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
