"""Durable writes beside what a user would pick instead, interleaved in one run and printed as ratios.

Run by `python -m benchmarks.writes`. Every round measures every contender once, so that a busy machine slows
all of them alike, and begins with another one, so that none always pays for what the same one left. Growth is
measured in the same way, on a young and on an old graph in turn. `raw` is an append of 128 bytes with
fdatasync, `create` the making of an empty file: the latter rises for minutes after mass deletes nearby, which
slows everything that makes files (`_place`), so nothing is deleted before the end.
`pylance` is neither atomic over tables nor durable; `sqlite` (WAL, synchronous=full) and `ladybug` are both.
Exit status 1: a goal was missed.
"""

import argparse
import os
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks._place import area, work_directory
from benchmarks._slow_disk import watched_flushes

import omnigraph
from omnigraph.api.graph import Graph
from omnigraph.core.cancel import NEVER
from omnigraph.core.ids import CommitId, OperationId, new_ulid
from omnigraph.core.settings import Settings
from omnigraph.engine.write.commit import finalize
from omnigraph.engine.write.gathered import MutationOpKind, MutationStaging, PendingMode
from omnigraph.engine.write.parts import WriteIntent
from omnigraph.manifest.changes import CommitIntent
from omnigraph.recovery.sidecar import WriterKind

lance: Any = import_module("lance")

TABLES = 8
UPSERTED = 10_000
SCHEMA = "\n".join(f"node T{n} {{ name: String @key  age: I32?  city: String? }}" for n in range(TABLES))
EIGHT = (
    "query eight($k: String) { "
    + " ".join(f'insert T{n} {{ name: $k, age: {n}, city: "c" }}' for n in range(TABLES))
    + " }"
)
ONE = 'query one($k: String) { insert T0 { name: $k, age: 1, city: "c" } }'
OURS = "omnigraph"
GROWTH_GOAL = 1.2
PUBLISH_GROWTH_GOAL = 1.5
GOALS = {
    ("one row", "raw"): 45.0,
    ("one row", "pylance"): 3.0,
    ("one row into 8 tables", "pylance"): 1.2,
    ("10k upsert", "pylance"): 0.25,
}


SLOWED_BY_S = 0.002
"""What a flush takes longer on the disk that is slowed: as much as on many a cloud disk."""
FLUSH_GOALS = {"one row": (ONE, 4, 5.0), "one row into 8 tables": (EIGHT, 5, 12.0)}

"""Per write: how many times as long as one flush it may take, and how many milliseconds more."""
PYLANCE_TABLES = {"one row": 1, "one row into 8 tables": TABLES}


@dataclass(frozen=True)
class Contender:
    """What is timed, and what makes its input beforehand."""

    work: Callable[[Any], object]
    input: Callable[[int], Any] = lambda number: number


class Report:
    """Prints results and remembers what was missed."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def judge(self, title: str, ratio: float, goal: float | None) -> str:
        if goal is None:
            return f"{ratio:8.2f}x"
        if ratio > goal:
            self.missed.append(title)
        return f"{ratio:8.2f}x   goal <= {goal}x: {'met' if ratio <= goal else 'MISSED'}"

    def race(self, title: str, contenders: dict[str, Contender], rounds: int) -> None:
        """Interleaved rounds; medians, 95th percentiles and what we cost in terms of each other one."""
        taken = interleave(contenders, rounds)
        ours = statistics.median(taken[OURS])
        print(f"\n{title} (median and 95th percentile of {rounds})")
        for name, values in taken.items():
            median, late = statistics.median(values), sorted(values)[int(len(values) * 0.95)]
            verdict = self.judge(f"{title} / {name}", ours / median, GOALS.get((title, name)))
            said = "" if name == OURS else f"   {OURS} costs {verdict}"
            print(f"  {name:<14}{median * 1000:9.3f} {late * 1000:9.3f} ms{said}", flush=True)

    def growth(
        self, title: str, young: Contender, old: Contender, rounds: int, goal: float = GROWTH_GOAL
    ) -> None:
        """The same work on a young and on an old graph, in turn."""
        taken = interleave({"young": young, "old": old}, rounds)
        early, late = (statistics.median(taken[name]) for name in ("young", "old"))
        verdict = self.judge(f"growth: {title}", late / early, goal)
        print(f"  {title:<52}{early * 1000:9.3f} -> {late * 1000:9.3f} ms {verdict}", flush=True)


def interleave(contenders: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders.items())
    os.sync()
    for number in range(-2, rounds):  # two rounds to warm up
        order.append(order.pop(0))
        for name, contender in order:
            given = contender.input(number)
            start = time.perf_counter()
            contender.work(given)
            if number >= 0:
                taken[name].append(time.perf_counter() - start)
    return taken


def rows(names: list[str], ages: Any) -> pa.Table:
    return pa.table(
        {
            "id": names,
            "age": pa.array(ages, pa.int32()),
            "city": pa.repeat(pa.scalar("city"), len(names)),
            "name": names,
        }
    )


# --- the others ----------------------------------------------------------------------------------------


def raw_append(place: Path) -> Contender:
    descriptor = os.open(place / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def work(_number: int) -> None:
        os.write(descriptor, b"x" * 128)
        os.fdatasync(descriptor)

    return Contender(work)


def file_create(place: Path) -> Contender:
    home = area(place, "created")
    return Contender(lambda number: os.close(os.open(home / str(number), os.O_CREAT | os.O_WRONLY)))


def sqlite_tables(place: Path, name: str, tables: int) -> sqlite3.Connection:
    connection = sqlite3.connect(place / f"{name}.db", isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    for n in range(tables):
        connection.execute(f"create table t{n} (name text primary key, age int, city text)")
    return connection


def sqlite_insert(place: Path, tables: int) -> Contender:
    connection = sqlite_tables(place, f"rows{tables}", tables)

    def work(number: int) -> None:
        connection.execute("begin")
        for n in range(tables):
            connection.execute(f"insert into t{n} values (?, ?, ?)", (f"s{number}", n, "c"))
        connection.execute("commit")

    return Contender(work)


def pylance_append(place: Path, tables: int) -> Contender:
    home = area(place, "bare")
    uris = [str(home / f"{n}.lance") for n in range(tables)]
    for uri in uris:
        lance.write_dataset(rows(["first"], [0]), uri)

    def work(number: int) -> None:
        one = rows([f"b{number}"], [1])
        for uri in uris:
            lance.write_dataset(one, uri, mode="append")

    return Contender(work)


def ladybug_tables(place: Path, name: str, tables: int) -> Any:
    ladybug: Any = import_module("ladybug")

    connection = ladybug.Connection(ladybug.Database(str(place / f"{name}.lbug")))
    for n in range(tables):
        connection.execute(f"create node table T{n}(name string primary key, age int32, city string)")
    return connection


def ladybug_insert(place: Path, tables: int) -> Contender:
    connection = ladybug_tables(place, f"rows{tables}", tables)

    def work(number: int) -> None:
        connection.execute("begin transaction")
        for n in range(tables):
            connection.execute(f"create (:T{n} {{name: $n, age: 1, city: 'c'}})", {"n": f"l{number}"})
        connection.execute("commit")

    return Contender(work)


def duckdb_insert(place: Path, tables: int) -> Contender:
    duckdb: Any = import_module("duckdb")

    connection = duckdb.connect(str(place / f"rows{tables}.duckdb"))
    for n in range(tables):
        connection.execute(f"create table t{n} (name text primary key, age int, city text)")

    def work(number: int) -> None:
        connection.execute("begin")
        for n in range(tables):
            connection.execute(f"insert into t{n} values (?, 1, 'c')", [f"d{number}"])
        connection.execute("commit")

    return Contender(work)


def databases(place: Path, tables: int) -> dict[str, Contender]:
    """What else is installed; a package that is missing is named and left out."""
    found = {"sqlite": sqlite_insert(place, tables)}
    for name, make in (("ladybug", ladybug_insert), ("duckdb", duckdb_insert)):
        try:
            found[name] = make(place, tables)
        except ImportError:
            print(f"{name} is not installed and left out")
    return found


# --- ours ----------------------------------------------------------------------------------------------


def mutation(graph: Graph, query: str, prefix: str) -> Contender:
    return Contender(lambda number: graph.mutate(query, {"k": f"{prefix}{number}"}))


def stage_and_publish(graph: Graph, table: pa.Table, mode: PendingMode, kind: MutationOpKind) -> None:
    """A bulk write through the same stage, commit and publish as every mutation."""
    session = graph.session
    snapshot = session.manifest.current(None)
    staging = MutationStaging(
        snapshot, OperationId(new_ulid()), branch_identity=session.branch_identity(None)
    )
    staging.push(session.catalog_of(snapshot).nodes["T0"], table, mode, kind)
    intent = WriteIntent(WriterKind.LOAD, "load", staging.operation_id, CommitId(new_ulid()))
    finalize(session, staging, intent, cancel=NEVER)


def upsert(graph: Graph, batch: Callable[[int], pa.Table]) -> Contender:
    def work(table: pa.Table) -> None:
        stage_and_publish(graph, table, PendingMode.MERGE, MutationOpKind.MERGE)

    return Contender(work, batch)


def filled(place: Path, count: int, settings: Settings) -> Graph:
    graph = omnigraph.init(area(place, "filled") / "g", schema=SCHEMA, settings=settings)
    stage_and_publish(graph, people(count), PendingMode.APPEND, MutationOpKind.INSERT)
    return graph


def people(count: int) -> pa.Table:
    return rows([f"person-{n:08d}" for n in range(count)], np.arange(count) % 90)


def batches(count: int) -> Callable[[int], pa.Table]:
    generator = np.random.default_rng(1)

    def batch(_number: int) -> pa.Table:
        chosen = generator.choice(count, min(UPSERTED, count), replace=False)
        return rows([f"person-{n:08d}" for n in chosen], chosen % 50)

    return batch


def upsert_contenders(place: Path, graph: Graph, count: int) -> dict[str, Contender]:
    batch, whole = batches(count), people(count)
    found = {OURS: upsert(graph, batch)}
    uri = str(area(place, "big") / "t.lance")
    bare = lance.write_dataset(whole, uri)
    bare.create_scalar_index("id", "BTREE")

    def merge_insert(table: pa.Table) -> None:
        dataset = lance.dataset(uri)
        dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(table)

    found["pylance"] = Contender(merge_insert, batch)
    connection = sqlite_tables(place, "big", 1)

    def replace(values: list[tuple[Any, ...]]) -> None:
        connection.execute("begin")
        connection.executemany("insert or replace into t0 values (?, ?, ?)", values)
        connection.execute("commit")

    def tuples(table: pa.Table) -> list[tuple[Any, ...]]:
        return list(zip(*(table[name].to_pylist() for name in ("name", "age", "city")), strict=True))

    replace(tuples(whole))
    found["sqlite"] = Contender(replace, lambda number: tuples(batch(number)))
    try:
        found["ladybug"] = ladybug_upsert(place, whole, batch)
    except ImportError:
        print("ladybug is not installed and left out")
    return found


def upsert_by_load(place: Path, graph: Graph, count: int) -> Contender:
    """The same rows as a user brings them: a file, every check, and indexes of the new rows at the end."""
    batch = batches(count)

    def write(number: int) -> str:
        file = str(place / f"T0-{number}.parquet")
        pq.write_table(batch(number).select(["age", "city", "name"]), file)
        return file

    return Contender(lambda file: graph.load(file, mode="merge", type_name="T0", engine="local"), write)


def ladybug_upsert(place: Path, whole: pa.Table, batch: Callable[[int], pa.Table]) -> Contender:
    connection = ladybug_tables(place, "big", 1)
    file = place / "rows.parquet"

    def write(table: pa.Table) -> None:
        pq.write_table(table.select(["name", "age", "city"]).rename_columns(["n", "a", "c"]), file)

    def work(_number: int) -> None:
        connection.execute(f"load from '{file}' merge (p:T0 {{name: n}}) set p.age = a, p.city = c")

    write(whole)
    connection.execute(f"copy T0 from '{file}'")
    return Contender(work, lambda number: write(batch(number)))


# --- flushes -------------------------------------------------------------------------------------------


def flushes_per_write(report: Report, place: Path, graph: Graph, rounds: int) -> None:
    """How many flushes a write makes, and how many it waits for, on this disk and on one that is slowed; and
    there, too, what it costs beside pylance, which flushes nothing.
    """
    raw = raw_append(area(place, "flush"))
    bare = {title: pylance_append(place, tables) for title, tables in PYLANCE_TABLES.items()}
    with watched_flushes() as flushes:
        for slowed_s in (0.0, SLOWED_BY_S):
            flushes.extra_s = slowed_s
            kind = f"every flush {slowed_s * 1000:.0f} ms longer" if slowed_s else "the disk as it is"
            print(f"\nflushes, {kind} (medians of {rounds})")
            for title, (query, allowed, rest_ms) in FLUSH_GOALS.items():
                before = flushes.count
                prefix = f"flush{slowed_s}-"
                contenders = {OURS: mutation(graph, query, prefix), "raw": raw, "pylance": bare[title]}
                taken = interleave(contenders, rounds)
                # One of each round, warm-up included, is that of the raw append.
                made = (flushes.count - before) / (rounds + 2) - 1
                ours, one = (statistics.median(taken[name]) * 1000 for name in (OURS, "raw"))
                bound = allowed * one + rest_ms
                print(f"  {title}: {made:.1f} flushes made, {ours:.2f} ms, one flush {one:.2f} ms;", end=" ")
                told = report.judge(f"flushes, {kind}: {title}", ours / bound, 1.0)
                print(f"of {allowed} flushes + {rest_ms:.0f} ms {told}")
                beside = ours / (statistics.median(taken["pylance"]) * 1000)
                told = report.judge(f"{title} / pylance, {kind}", beside, GOALS[title, "pylance"])
                print(f"  {title}: of pylance {told}", flush=True)


# --- growth --------------------------------------------------------------------------------------------


def publish_alone(graph: Graph) -> Contender:
    publisher = graph.session.publisher
    return Contender(
        lambda _number: publisher.publish(None, [], {}, CommitIntent(CommitId(new_ulid()), "benchmark"))
    )


def with_history(place: Path, name: str, commits: int, settings: Settings, *, tables: int) -> Graph:
    """A graph of so many commits of one row each, in turn over so many tables; nobody looked after it but the
    graph itself.
    """
    # History is made without waiting for the device; the graph is opened anew for what is measured.
    home = area(place, name) / "g"
    quick = omnigraph.init(home, schema=SCHEMA, settings=Settings(durability="os"))
    for number in range(commits):
        table = f"T{number % tables}"
        quick.mutate(f"query h($k: String) {{ insert {table} {{ name: $k, age: 1 }} }}", {"k": f"h{number}"})
    quick.close()
    return omnigraph.open(home, settings=settings)


def growth(report: Report, place: Path, commits: int, rounds: int, settings: Settings) -> None:
    print(f"\ngrowth from 10 to {commits} commits of history, in turn (median of {rounds})")
    young = with_history(place, "young", 10, settings, tables=TABLES)
    old = with_history(place, "old", commits, settings, tables=TABLES)
    deep = with_history(place, "deep", commits, settings, tables=1)
    publishing = (publish_alone(young), publish_alone(old))
    report.growth("publish alone", *publishing, rounds, PUBLISH_GROWTH_GOAL)
    spread = (mutation(young, ONE, "a"), mutation(old, ONE, "a"))
    report.growth("one row, history spread over 8 tables", *spread, rounds)
    spread = (mutation(young, EIGHT, "b"), mutation(old, EIGHT, "b"))
    report.growth("one row into 8 tables, history spread over them", *spread, rounds)
    worst = (mutation(young, ONE, "c"), mutation(deep, ONE, "c"))
    report.growth("one row, all history in its table", *worst, rounds)
    for graph in (young, old, deep):
        graph.close()


def run(report: Report, place: Path, chosen: argparse.Namespace) -> None:
    settings = Settings(durability=chosen.durability)
    graph = omnigraph.init(area(place, "small") / "g", schema=SCHEMA, settings=settings)
    print(f"durability {chosen.durability}")
    raw, create = raw_append(place), file_create(place)
    one = {
        OURS: mutation(graph, ONE, "one"),
        "raw": raw,
        "create": create,
        "pylance": pylance_append(place, 1),
    }
    report.race("one row", {**one, **databases(place, 1)}, chosen.rounds)
    eight = {OURS: mutation(graph, EIGHT, "eight"), "raw": raw, "pylance": pylance_append(place, TABLES)}
    report.race("one row into 8 tables", {**eight, **databases(place, TABLES)}, chosen.rounds)
    counted = graph.session.manifest.current(None).entries
    assert sum(entry.row_count for entry in counted.values()) == (1 + TABLES) * (chosen.rounds + 2)
    if chosen.durability == "full":
        flushes_per_write(report, place, graph, max(5, chosen.rounds // 2))
    graph.close()
    few = max(5, chosen.rounds // 4)
    if chosen.rows:
        large = filled(place, chosen.rows, settings)
        others = upsert_contenders(place, large, chosen.rows)
        report.race("10k upsert", {**others, "raw": raw}, few)
        small_count = chosen.rows // 10
        small = filled(place, small_count, settings)
        print(f"\ngrowth from {small_count} to {chosen.rows} rows, in turn (median of {few})")
        sizes = (upsert(small, batches(small_count)), upsert(large, batches(chosen.rows)))
        interleave({OURS: sizes[0]}, few)  # as many as the large one has had
        report.growth("10k upsert", *sizes, few)
        large.ensure_indices()
        by_load = upsert_by_load(place, large, chosen.rows)
        report.race("10k upsert, a file by `load --engine local`", {**others, OURS: by_load}, few)
        large.close()
        small.close()
    if chosen.commits:
        growth(report, place, chosen.commits, max(10, chosen.rounds // 2), settings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="table upserted into; 0: skip")
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--commits", type=int, default=2_000, help="length of an old history; 0: skip")
    parser.add_argument("--durability", default="full", choices=["full", "os", "syncfs"])
    # Not the usual place for temporary files: that may be memory, where a sync costs nothing.
    home = "/var/tmp" if Path("/var/tmp").is_dir() else None
    parser.add_argument("--directory", default=home, help="where to write, on the disk to be measured")
    chosen = parser.parse_args()
    report = Report()
    with work_directory("omnigraph-bench-", chosen.directory) as place:
        run(report, place, chosen)
    print(f"\nmissed: {'; '.join(report.missed)}" if report.missed else "\nevery goal met")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
