"""Warm reads beside what a user would pick instead, interleaved in one run and printed as ratios.

Run by `python -m benchmarks.reads [--persons N] [--edges N] [--keys N] [--where DIR]`. The graph is made once
into DIR and kept; 30 % of the edges start at few, very busy people. Every answer is compared with every
peer's before anything is timed. Each key is asked of every contender in turn, so that a busy machine slows
all of them alike; p50 of whole calls that end in Python rows.
"""

import argparse
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import omnigraph
from omnigraph.core.settings import Settings

SCHEMA = """
node Person { name: String @key  age: I32?  city: String? }
edge Knows: Person -> Person { since: I32? }
"""
CITIES = 200
FAST = Settings(durability="os", cache_bytes=4 << 30)

Ask = Callable[[str], Any]
"""A question about one person, answered as a comparable value."""


@dataclass(frozen=True)
class Workload:
    """One question: ours, ladybug's, the SQL of the others, and the goal for our time over a peer's."""

    ours: str
    cypher: str
    sql: str
    peer: str
    goal: float
    keyed: bool = True


JOIN = "from knows k join person x on x.name = k.dst"
SECOND = "from knows a join knows b on b.src = a.dst where a.src = ?"
THIRD = "from knows a join knows b on b.src = a.dst join knows c on c.src = b.dst where a.src = ?"
START = "match { $p: Person { name: $n }"

WORKLOADS = {
    "point": Workload(
        f"query q($n: String) {{ {START} }} return {{ $p.age, $p.city }} }}",
        "match (p:Person {name: $n}) return p.age, p.city",
        "select age, city from person where name = ?",
        "ladybug",
        0.5,
    ),
    "1 hop": Workload(
        f"query q($n: String) {{ {START} $p knows $x }} return {{ $x.name, $x.age }} }}",
        "match (p:Person {name: $n})-[:Knows]->(x:Person) return distinct x.name, x.age",
        f"select distinct x.name, x.age {JOIN} where k.src = ?",
        "ladybug",
        0.5,
    ),
    "2 hops distinct": Workload(
        f"query q($n: String) {{ {START} $p knows $y $y knows $x }} return distinct {{ $x }} }}",
        "match (p:Person {name: $n})-[:Knows]->(:Person)-[:Knows]->(x:Person) return distinct x.name",
        f"select distinct b.dst {SECOND}",
        "ladybug",
        0.25,
    ),
    "3 hops, filter": Workload(
        f"query q($n: String) {{ {START} $p knows $y $y knows $z $z knows $x $x.age > 90 }}"
        " return distinct { $x } }",
        "match (p:Person {name: $n})-[:Knows]->(:Person)-[:Knows]->(:Person)-[:Knows]->(x:Person)"
        " where x.age > 90 return distinct x.name",
        f"select distinct x.name from (select distinct c.dst as d {THIRD}) join person x on x.name = d"
        " where x.age > 90",
        "ladybug",
        0.25,
    ),
    "group-by over all edges": Workload(
        "query q() { match { $p: Person $p knows $x } return { $p.city, avg($x.age) as a } }",
        "match (p:Person)-[:Knows]->(x:Person) with distinct p, x return p.city, avg(x.age)",
        "select p.city, avg(x.age) from (select distinct src, dst from knows) k"
        " join person p on p.name = k.src join person x on x.name = k.dst group by p.city",
        "duckdb",
        0.15,
        keyed=False,
    ),
}


# --- data ------------------------------------------------------------------------------------------------


def make_data(where: Path, persons: int, edges: int) -> None:
    """The people and their ties as Parquet, and our graph loaded from it."""
    rng = np.random.default_rng(7)
    keys = pa.array([f"person-{number:08d}" for number in range(persons)])
    cities = pa.array([f"city-{number:03d}" for number in range(CITIES)])
    heads = rng.integers(0, persons, edges)
    busy = rng.random(edges) < 0.3
    heads[busy] = np.minimum((rng.pareto(1.0, int(busy.sum())) * 10).astype(np.int64), persons - 1)
    people = {
        "name": keys,
        "age": pa.array(rng.integers(0, 100, persons).astype(np.int32)),
        "city": cities.take(pa.array(rng.integers(0, CITIES, persons))),
    }
    knows = {
        "from": keys.take(pa.array(heads)),
        "to": keys.take(pa.array(rng.integers(0, persons, edges))),
        "since": pa.array(rng.integers(1990, 2026, edges).astype(np.int32)),
    }
    where.mkdir(parents=True)
    pq.write_table(pa.table(people), where / "Person.parquet")
    pq.write_table(pa.table(knows), where / "Knows.parquet")
    with omnigraph.init(where / "graph", schema=SCHEMA, settings=FAST) as graph:
        for name in ("Person", "Knows"):
            graph.load(where / f"{name}.parquet", mode="append", engine="local", type_name=name)


# --- contenders ------------------------------------------------------------------------------------------


def comparable(rows: Any) -> Any:
    """Rows as a sorted list; averages rounded, because their sums are made in another order."""
    return sorted(
        tuple(round(value, 6) if isinstance(value, float) else value for value in row) for row in rows
    )


@contextmanager
def omnigraph_asks(where: Path) -> Iterator[dict[str, Ask]]:
    with omnigraph.open(where / "graph", settings=FAST) as graph:

        def ask(workload: Workload) -> Ask:
            return lambda key: [
                tuple(row.values())
                for row in graph.query(workload.ours, {"n": key} if workload.keyed else None).to_dicts()
            ]

        yield {name: ask(workload) for name, workload in WORKLOADS.items()}


@contextmanager
def ladybug_asks(where: Path) -> Iterator[dict[str, Ask]]:
    import ladybug

    made = (where / "ladybug.db").exists()
    database = ladybug.Database(str(where / "ladybug.db"))
    connection = ladybug.Connection(database, num_threads=1)
    if not made:
        connection.execute("create node table Person(name string, age int32, city string, primary key(name))")
        connection.execute("create rel table Knows(from Person to Person, since int32)")
        for name in ("Person", "Knows"):
            connection.execute(f"copy {name} from '{where / name}.parquet'")

    def ask(workload: Workload) -> Ask:
        return lambda key: [
            tuple(row)
            for row in connection.execute(workload.cypher, {"n": key} if workload.keyed else {}).get_all()
        ]

    yield {name: ask(workload) for name, workload in WORKLOADS.items()}


@contextmanager
def duckdb_asks(where: Path) -> Iterator[dict[str, Ask]]:
    import duckdb

    connection = duckdb.connect(str(where / "duck.db"))
    connection.execute("set threads = 1")
    connection.execute(
        f"create table if not exists person as select * from read_parquet('{where}/Person.parquet')"
    )
    connection.execute(
        'create table if not exists knows as select "from" as src, "to" as dst, since'
        f" from read_parquet('{where}/Knows.parquet')"
    )
    connection.execute("create index if not exists person_name on person(name)")
    connection.execute("create index if not exists knows_src on knows(src)")

    def ask(workload: Workload) -> Ask:
        return lambda key: connection.execute(workload.sql, [key] if workload.keyed else []).fetchall()

    yield {name: ask(workload) for name, workload in WORKLOADS.items()}
    connection.close()


@contextmanager
def sqlite_asks(where: Path) -> Iterator[dict[str, Ask]]:
    made = (where / "sqlite.db").exists()
    connection = sqlite3.connect(where / "sqlite.db")
    if not made:
        connection.execute("create table person(name text primary key, age int, city text) without rowid")
        connection.execute("create table knows(src text, dst text, since int)")
        for name, marks in (("Person", "?, ?, ?"), ("Knows", "?, ?, ?")):
            for batch in pq.ParquetFile(where / f"{name}.parquet").iter_batches():
                values = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                connection.executemany(f"insert into {name.lower()} values ({marks})", values)
        connection.execute("create index knows_src on knows(src, dst)")
        connection.commit()

    def ask(workload: Workload) -> Ask:
        return lambda key: connection.execute(workload.sql, [key] if workload.keyed else []).fetchall()

    yield {name: ask(workload) for name, workload in WORKLOADS.items()}
    connection.close()


@contextmanager
def pylance_asks(where: Path) -> Iterator[dict[str, Ask]]:
    """The bare table format: indexed lookups for the first two questions; it has no joins."""
    import lance

    from omnigraph.storage.handles import lance_dataset

    with omnigraph.open_read_only(where / "graph", settings=FAST) as graph:
        entries = graph.snapshot().entries
        tables = {
            key: lance.dataset(lance_dataset(graph.session.open_entry(entry)).uri)
            for key, entry in entries.items()
        }

    def point(key: str) -> Any:
        found = tables["node:Person"].to_table(columns=["age", "city"], filter=f"id = '{key}'")
        return [tuple(row.values()) for row in found.to_pylist()]

    def hop(key: str) -> Any:
        ends = tables["edge:Knows"].to_table(columns=["dst"], filter=f"src = '{key}'").column("dst")
        if not len(ends):
            return []
        names = ", ".join(f"'{end}'" for end in set(ends.to_pylist()))
        found = tables["node:Person"].to_table(columns=["name", "age"], filter=f"id in ({names})")
        return [tuple(row.values()) for row in found.to_pylist()]

    yield {"point": point, "1 hop": hop}


CONTENDERS = {
    "omnigraph": omnigraph_asks,
    "ladybug": ladybug_asks,
    "duckdb": duckdb_asks,
    "sqlite": sqlite_asks,
    "pylance": pylance_asks,
}
SLOW_S = 0.05
"""A contender that needs longer for one key is asked for few of them."""


# --- measuring -------------------------------------------------------------------------------------------


def timed(ask: Ask, key: str) -> tuple[float, Any]:
    begun = time.perf_counter()
    answer = ask(key)
    return time.perf_counter() - begun, answer


def measure(name: str, asks: dict[str, dict[str, Ask]], keys: list[str]) -> dict[str, list[float]]:
    """Seconds per call of each contender, after all of them agreed on the first keys."""
    mine = {who: each[name] for who, each in asks.items() if name in each}
    agreed = keys[:5] if WORKLOADS[name].keyed else keys[:1]
    spent = dict.fromkeys(mine, 0.0)
    for key in agreed:
        expected = None
        for who, ask in mine.items():
            seconds, answer = timed(ask, key)
            spent[who] = max(spent[who], seconds)
            found = comparable(answer)
            if expected is None:
                expected = found
            elif found != expected:
                raise SystemExit(f"{name}: {who} and omnigraph differ about {key}")
    times: dict[str, list[float]] = {who: [] for who in mine}
    for number, key in enumerate(keys if WORKLOADS[name].keyed else keys[:5]):
        for who, ask in mine.items():
            if spent[who] < SLOW_S or number < 5:
                times[who].append(timed(ask, key)[0])
    return times


def report(name: str, times: dict[str, list[float]]) -> tuple[list[str], bool]:
    workload = WORKLOADS[name]
    ours = statistics.median(times["omnigraph"])
    lines = [f"{name}: omnigraph {ours * 1e6:,.0f} us"]
    met = True
    for who, seconds in times.items():
        if who == "omnigraph":
            continue
        ratio = ours / statistics.median(seconds)
        goal = ""
        if who == workload.peer:
            met = ratio <= workload.goal
            goal = f"  goal {workload.goal} {'met' if met else 'MISSED'}"
        lines.append(f"    {who:<8} {statistics.median(seconds) * 1e6:>12,.0f} us   ratio {ratio:.2f}{goal}")
    return lines, met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--persons", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--keys", type=int, default=300)
    parser.add_argument("--where", type=Path, default=None)
    parser.add_argument("--without", nargs="*", default=[], choices=[*CONTENDERS])
    chosen = parser.parse_args()
    root = chosen.where or Path(tempfile.gettempdir()) / "omnigraph-bench-reads"
    where = root / f"{chosen.persons}-{chosen.edges}"
    if not where.exists():
        make_data(where, chosen.persons, chosen.edges)
    numbers = np.random.default_rng(1).integers(0, chosen.persons, chosen.keys)
    keys = [f"person-{number:08d}" for number in numbers]
    used = [who for who in CONTENDERS if who not in chosen.without]
    opened = {who: CONTENDERS[who](where) for who in used}
    asks = {who: context.__enter__() for who, context in opened.items()}
    print(f"{chosen.persons:,} persons, {chosen.edges:,} edges, {chosen.keys} keys, one thread each")
    missed = 0
    for name in WORKLOADS:
        lines, met = report(name, measure(name, asks, keys))
        missed += not met
        print("\n".join(lines), flush=True)
    for context in opened.values():
        context.__exit__(None, None, None)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
