"""Reads beside what a user would pick instead, in one run and printed as ratios.

Run by `python -m benchmarks.reads [--persons N] [--edges N] [--keys N] [--where DIR] [--without PEER...]`.
The graph and the peers' databases are made once into DIR and kept; 30 % of the edges start at few, very busy
people. Every answer is compared with every peer's before anything is timed. Contenders take turns, a few
keys at a time, so that a busy machine slows all of them alike. A time is that of a whole call that ends in
Python rows: plan or prepared statement, parameters, freshness, answer.

Keyed questions are asked of processes that are warm, with other keys before; then about every key in two
rounds. The figures are over both rounds. The second round alone, whose keys everybody has seen, is printed
below them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks._read_peers import FAST, PEERS, Ask, Asks, Timed, lance_tables

import omnigraph

SCHEMA = """
node Person { name: String @key  age: I32?  city: String? }
edge Knows: Person -> Person { since: I32? }
"""
CITIES = 200


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
        "query q() { match { $p: Person $p $k: knows $x } return { $p.city, avg($x.age) as a } }",
        "match (p:Person)-[:Knows]->(x:Person) return p.city, avg(x.age)",
        "select p.city, avg(x.age) from knows k"
        " join person p on p.name = k.src join person x on x.name = k.dst group by p.city",
        "duckdb",
        0.15,
        keyed=False,
    ),
    "group-by over distinct pairs": Workload(
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


# --- measuring -------------------------------------------------------------------------------------------

ROUNDS = 2
TURN = 100
"""Keys asked of one contender before the next has its turn: long enough for its code to be in the processor's
caches again, as it is in a process that only reads."""
SLOW_S = 0.02
"""A contender that needs longer for one key is asked for few of them."""
FEW = 5
COLD_GOAL = 2.0
LONG_S = 5.0
"""A contender that needs longer for a question about everybody is not asked again."""


def comparable(rows: Any) -> Any:
    """Rows of any form as a sorted list; averages rounded, because their sums are made in another order."""
    plain = (row.values() if isinstance(row, dict) else row for row in rows)
    return sorted(
        tuple(round(value, 6) if isinstance(value, float) else value for value in row) for row in plain
    )


def timed(ask: Ask, key: str) -> tuple[float, Any]:
    begun = time.perf_counter()
    answer = ask(key)
    if isinstance(answer, Timed):
        return answer
    return time.perf_counter() - begun, answer


def measure(
    name: str, asks: dict[str, Asks], keys: list[str], others: list[str]
) -> tuple[dict[str, list[float]], ...]:
    """Seconds per call of each contender in each of two rounds, after all of them agreed about some keys and
    were warmed with other ones. A question about everybody has one round.
    """
    mine = {who: each[name] for who, each in asks.items() if name in each}
    if not WORKLOADS[name].keyed:
        return (measure_whole(name, mine),)
    slow: set[str] = set()
    for key in others[:FEW]:
        expected = None
        for who, ask in mine.items():
            if who in slow:
                continue
            expected = agreed(name, who, key, timed(ask, key)[1], expected)
            if timed(ask, key)[0] > SLOW_S:
                slow.add(who)
    for who, ask in mine.items():
        for key in () if who in slow else others:
            ask(key)
    rounds: list[dict[str, list[float]]] = []
    for _ in range(ROUNDS):
        times: dict[str, list[float]] = {who: [] for who in mine}
        for begin in range(0, len(keys), TURN):
            for who, ask in mine.items():
                if who in slow and begin:
                    continue
                some = keys[begin : begin + TURN][: FEW if who in slow else None]
                times[who] += [timed(ask, key)[0] for key in some]
        rounds.append(times)
    return tuple(rounds)


def measure_whole(name: str, asks: Asks) -> dict[str, list[float]]:
    """As `measure` for a question about everybody: three times after the first, which fills caches."""
    expected = None
    times: dict[str, list[float]] = {}
    for who, ask in asks.items():
        seconds, answer = timed(ask, "")
        expected = agreed(name, who, "everybody", answer, expected)
        times[who] = [seconds] if seconds > LONG_S else [timed(ask, "")[0] for _ in range(3)]
    return times


def agreed(name: str, who: str, about: str, answer: Any, expected: Any) -> Any:
    found = comparable(answer)
    if expected is not None and found != expected:
        raise SystemExit(f"{name}: {who} and omnigraph differ about {about}")
    return found


def shown(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us" if seconds < 0.01 else f"{seconds * 1e3:,.1f} ms"


def percentile(seconds: list[float], share: float) -> float:
    return sorted(seconds)[min(int(len(seconds) * share), len(seconds) - 1)]


def report_rounds(title: str, rounds: tuple[dict[str, list[float]], ...], goals: dict[str, float]) -> int:
    """Print one workload over all rounds, and the last one alone; how many goals it missed."""
    whole = {who: [each for times in rounds for each in times[who]] for who in rounds[0]}
    missed = report(title, whole, goals)
    if len(rounds) > 1:
        last = {who: statistics.median(times) for who, times in rounds[-1].items()}
        ours = last.pop("omnigraph")
        told = ", ".join(f"{who} {shown(each)} ({ours / each:.2f})" for who, each in last.items())
        print(f"    the second time about the same keys: omnigraph {shown(ours)}; {told}", flush=True)
    return missed


def report(title: str, times: dict[str, list[float]], goals: dict[str, float]) -> int:
    """Print one workload; how many goals it missed."""
    ours = statistics.median(times["omnigraph"])
    print(f"{title}: omnigraph p50 {shown(ours)}, p99 {shown(percentile(times['omnigraph'], 0.99))}")
    missed = 0
    for who, seconds in times.items():
        if who == "omnigraph":
            continue
        ratio = ours / statistics.median(seconds)
        verdict = ""
        if who in goals:
            met = ratio <= goals[who]
            missed += not met
            verdict = f"   goal {goals[who]} {'met' if met else 'MISSED'}"
        half, most = statistics.median(seconds), percentile(seconds, 0.99)
        tail = percentile(times["omnigraph"], 0.99) / most
        print(
            f"    {who:<8} p50 {shown(half):>11}  p99 {shown(most):>11}"
            f"   ratio {ratio:.3f} (p99 {tail:.2f}){verdict}",
            flush=True,
        )
    return missed


def busy_keys(where: Path, count: int) -> list[str]:
    """People with ten to ten thousand ties, spread over that range."""
    heads = pq.read_table(where / "Knows.parquet", columns=["from"]).column("from").value_counts()
    names, degrees = heads.field("values"), np.asarray(heads.field("counts"))
    some = np.flatnonzero((degrees >= 10) & (degrees <= 10_000))
    ordered = some[np.argsort(degrees[some], kind="stable")]
    wanted = np.geomspace(10, degrees[ordered[-1]], count)
    places = np.minimum(np.searchsorted(degrees[ordered], wanted), len(ordered) - 1)
    return [names[int(ordered[place])].as_py() for place in places]


def cold(what: str, where: Path, key: str) -> dict[str, Any]:
    """What a process that has read nothing yet reports."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._read_cold", what, str(where), key],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    return json.loads(done.stdout)


def report_opening(where: Path, keys: list[str], used: list[str]) -> int:
    """Opening to the first row, each time in a new process; what was read before is kept in files."""
    (where / "person.uri").write_text(lance_tables(where)["node:Person"], encoding="utf-8")
    times: dict[str, list[float]] = {}
    hops: dict[str, list[float]] = {}
    for key in keys[:7]:
        answers = []
        for who in ("omnigraph", "ladybug", "pylance"):
            if who in used:
                found = cold(f"open-{who}", where, key)
                times.setdefault(who, []).append(found["seconds"])
                hops.setdefault(who, []).append(found.get("then a hop", 0.0))
                answers.append(comparable(found["rows"]))
        if any(answer != answers[0] for answer in answers):
            raise SystemExit(f"open to first row: the answers about {key} differ")
    missed = report("open to first row", times, {"ladybug": 1.0, "pylance": 2.0})
    after = ", ".join(f"{who} {shown(statistics.median(each))}" for who, each in hops.items() if any(each))
    print(f"    a hop after that: {after}")
    return missed


def report_memory(where: Path) -> float:
    """A group-by over all edges in a process that has nothing, and what it takes once it has; the seconds of
    the first.
    """
    found = cold("group-by-cold", where, "")
    print(
        f"group-by over all edges, nothing kept: resident {found['rss before']:.0f} MB before,"
        f" {found['rss peak']:.0f} MB at most"
    )
    warm = cold("group-by-memory", where, "")
    print(
        f"group-by over all edges, structures in files: resident {warm['rss before']:.0f} MB before it,"
        f" {warm['rss peak']:.0f} MB at most"
    )
    return found["seconds"]


def report_cold(ours: float, duckdb: float) -> int:
    """The first group-by of a process, its read structures made from the tables, beside duckdb's warm one."""
    met = ours <= COLD_GOAL * duckdb
    print(
        f"    cold: omnigraph {ours:.2f} s, ratio {ours / duckdb:.3f} to duckdb warm"
        f"   goal {COLD_GOAL} {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


def make_databases(where: Path, persons: int, edges: int) -> None:
    """Everything the run reads: the graph, the peers' databases, and our read structures in their files."""
    if not (where / "graph").exists():
        make_data(where, persons, edges)
    for who, peer in PEERS.items():
        with peer(where, WORKLOADS) as asks:
            for ask in asks.values() if who == "omnigraph" else ():
                ask("person-00000000")
    (where / "made").touch()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--persons", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--where", type=Path, default=None)
    parser.add_argument("--without", nargs="*", default=[], choices=[*PEERS])
    parser.add_argument("--make", action="store_true", help="only make the graph and the peers' databases")
    chosen = parser.parse_args()
    root = chosen.where or Path(tempfile.gettempdir()) / "omnigraph-bench-reads"
    where = root / f"{chosen.persons}-{chosen.edges}"
    if chosen.make:
        make_databases(where, chosen.persons, chosen.edges)
        return 0
    if not (where / "made").exists():
        # In a process of its own: a peer lets go of its files when its process ends, not before.
        subprocess.run([sys.executable, "-m", "benchmarks.reads", *sys.argv[1:], "--make"], check=True)
    numbers = np.random.default_rng(1).integers(0, chosen.persons, 2 * chosen.keys)
    every = [f"person-{number:08d}" for number in numbers]
    keys, others = every[: chosen.keys], every[chosen.keys :]
    used = [who for who in PEERS if who not in chosen.without]
    print(f"{chosen.persons:,} persons, {chosen.edges:,} edges, {chosen.keys} keys, one thread each")
    missed = report_opening(where, keys, used)
    group_by_s = report_memory(where)
    opened = {who: PEERS[who](where, WORKLOADS) for who in used}
    asks = {who: context.__enter__() for who, context in opened.items()}
    for name, workload in WORKLOADS.items():
        rounds = measure(name, asks, keys, others)
        missed += report_rounds(name, rounds, {workload.peer: workload.goal})
        if name == "group-by over all edges" and "duckdb" in rounds[0]:
            missed += report_cold(group_by_s, statistics.median(rounds[0]["duckdb"]))
    graphs = {who: each for who, each in asks.items() if who in {"omnigraph", "ladybug", "kuzu", "numpy"}}
    for name in ("1 hop", "2 hops distinct", "3 hops, filter"):
        busy = busy_keys(where, 80)
        report_rounds(f"{name}, busy start", measure(name, graphs, busy[::2], busy[1::2]), {})
    for context in opened.values():
        context.__exit__(None, None, None)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
