"""Durable writes beside what a user would pick instead, interleaved in one run and printed as ratios.

Run by `python -m benchmarks.writes [--rows N] [--rounds N]`. Every round measures every contender once, so
that a busy machine slows all of them alike. `raw` is an append of 128 bytes with fdatasync; `create` is the
median cost of making an empty file, which rises for half a minute after mass deletes: nothing is deleted
before the end.
"""

import argparse
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import omnigraph
from omnigraph.api.graph import Graph
from omnigraph.core.ids import CommitId, OperationId, TableKey, new_ulid
from omnigraph.core.settings import Settings
from omnigraph.engine.cancel import NEVER
from omnigraph.engine.commit import WriteIntent, finalize
from omnigraph.engine.staging import MutationOpKind, MutationStaging, PendingMode
from omnigraph.recovery.sidecar import WriterKind

TABLES = 8
SCHEMA = "\n".join(f"node T{n} {{ name: String @key  age: I32?  city: String? }}" for n in range(TABLES))
EIGHT = (
    "query eight($k: String) { "
    + " ".join(f'insert T{n} {{ name: $k, age: {n}, city: "c" }}' for n in range(TABLES))
    + " }"
)
ONE = 'query one($k: String) { insert T0 { name: $k, age: 1, city: "c" } }'
GOALS = {
    ("one row", "raw"): 45.0,
    ("one row", "pylance"): 3.5,
    ("one row into 8 tables", "pylance"): 1.5,
    ("10k upsert", "pylance"): 0.25,
}

Contender = Callable[[int], object]


def rows(names: list[str], ages: np.ndarray) -> pa.Table:
    return pa.table(
        {
            "id": names,
            "age": pa.array(ages, pa.int32()),
            "city": pa.repeat(pa.scalar("city"), len(names)),
            "name": names,
        }
    )


def timed(work: Contender, number: int) -> float:
    start = time.perf_counter()
    work(number)
    return time.perf_counter() - start


def race(title: str, contenders: dict[str, Contender], rounds: int) -> dict[str, float]:
    """Medians of interleaved rounds, printed with the ratios to the first contender's."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, work in contenders.items():
            taken[name].append(timed(work, number))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    ours = medians["omnigraph"]
    print(f"\n{title} (median of {rounds})")
    for name, median in medians.items():
        goal = GOALS.get((title, name))
        met = goal is not None and ours / median <= goal
        verdict = "" if goal is None else f"   goal <= {goal}x: {'met' if met else 'MISSED'}"
        ratio = "" if name == "omnigraph" else f"   omnigraph is {ours / median:7.2f}x{verdict}"
        print(f"  {name:<22}{median * 1000:9.3f} ms{ratio}")
    return medians


def raw_append(place: Path) -> Contender:
    descriptor = os.open(place / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def work(_number: int) -> None:
        os.write(descriptor, b"x" * 128)
        os.fdatasync(descriptor)

    return work


def file_create(place: Path) -> Contender:
    home = place / "created"
    home.mkdir()
    return lambda number: os.close(os.open(home / str(number), os.O_CREAT | os.O_WRONLY))


def sqlite_insert(place: Path, tables: int) -> Contender:
    connection = sqlite3.connect(place / f"sqlite{tables}.db", isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    for n in range(tables):
        connection.execute(f"create table t{n} (name text primary key, age int, city text)")

    def work(number: int) -> None:
        connection.execute("begin")
        for n in range(tables):
            connection.execute(f"insert into t{n} values (?, ?, ?)", (f"s{number}", n, "c"))
        connection.execute("commit")

    return work


def pylance_append(place: Path, tables: int) -> Contender:
    """Neither atomic over the tables nor durable."""
    uris = [str(place / f"bare{tables}-{n}.lance") for n in range(tables)]
    for uri in uris:
        lance.write_dataset(rows(["first"], np.array([0])), uri)

    def work(number: int) -> None:
        one = rows([f"b{number}"], np.array([number]))
        for uri in uris:
            lance.write_dataset(one, uri, mode="append")

    return work


def embedded_peers(place: Path) -> dict[str, Contender]:
    """Durable single-row inserts of the graph and SQL engines that are installed."""
    found: dict[str, Contender] = {}
    try:
        import duckdb
    except ImportError:
        print("duckdb is not installed and left out")
    else:
        duck = duckdb.connect(str(place / "peer.duckdb"))
        duck.execute("create table t0 (name text primary key, age int, city text)")
        found["duckdb"] = lambda number: duck.execute("insert into t0 values (?, 1, 'c')", [f"d{number}"])
    try:
        import ladybug
    except ImportError:
        print("ladybug is not installed and left out")
    else:
        connection = ladybug.Connection(ladybug.Database(str(place / "peer.lbug")))
        connection.execute("create node table T0(name string primary key, age int32, city string)")
        found["ladybug"] = lambda number: connection.execute(
            "create (:T0 {name: $n, age: 1, city: 'c'})", {"n": f"l{number}"}
        )
    return found


def stage_and_publish(graph: Graph, table: pa.Table, mode: PendingMode, kind: MutationOpKind) -> None:
    """A bulk write through the same stage, commit and publish as every mutation."""
    session = graph.session
    snapshot = session.manifest.current(None)
    staging = MutationStaging(
        snapshot, OperationId(new_ulid()), branch_identity=session.branch_identity(None)
    )
    staging.push(session.catalog_of(snapshot).nodes["T0"], table, mode, kind)
    intent = WriteIntent(WriterKind.LOAD, "load", CommitId(new_ulid()))
    finalize(session, staging, intent, cancel=NEVER)


def upsert_contenders(place: Path, count: int) -> dict[str, Contender]:
    graph = omnigraph.init(place / "big", schema=SCHEMA)
    names = [f"person-{n:08d}" for n in range(count)]
    whole = rows(names, np.arange(count) % 90)
    stage_and_publish(graph, whole, PendingMode.APPEND, MutationOpKind.INSERT)
    bare = lance.write_dataset(whole, str(place / "big.lance"))
    bare.create_scalar_index("id", "BTREE")
    generator = np.random.default_rng(1)

    def batch() -> pa.Table:
        chosen = generator.choice(count, min(10_000, count), replace=False)
        return rows([names[n] for n in chosen], chosen % 50)

    def ours(_number: int) -> None:
        stage_and_publish(graph, batch(), PendingMode.MERGE, MutationOpKind.MERGE)

    def theirs(_number: int) -> None:
        dataset = lance.dataset(str(place / "big.lance"))
        dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(batch())

    ours(0)  # builds the key index, which a process does once
    return {"omnigraph": ours, "pylance": theirs}


def publish_growth(graph: Graph, commits: int) -> None:
    """The publish alone, early and late in a history."""
    publisher, manifest = graph.session.publisher, graph.session.manifest
    from omnigraph.manifest.changes import CommitIntent

    def publish(_number: int) -> None:
        publisher.publish(None, [], {}, CommitIntent(CommitId(new_ulid()), "benchmark"))

    early = statistics.median(timed(publish, n) for n in range(20))
    while manifest.current(None).manifest_version < commits:
        publish(0)
    late = statistics.median(timed(publish, n) for n in range(20))
    print(f"\npublish alone: {early * 1000:.2f} ms early, {late * 1000:.2f} ms after {commits} commits")
    print(f"  growth {late / early:.2f}x   goal <= 1.5x: {'met' if late / early <= 1.5 else 'MISSED'}")


def run(place: Path, *, row_count: int, rounds: int, commits: int, durability: str) -> None:
    settings = Settings(durability=durability)
    graph = omnigraph.init(place / "small", schema=SCHEMA, settings=settings)
    print(f"durability {durability}")
    base = {"raw": raw_append(place), "create": file_create(place)}
    race(
        "one row",
        {
            "omnigraph": lambda n: graph.mutate(ONE, {"k": f"one{n}"}),
            **base,
            "sqlite": sqlite_insert(place, 1),
            "pylance": pylance_append(place, 1),
            **embedded_peers(place),
        },
        rounds,
    )
    race(
        "one row into 8 tables",
        {
            "omnigraph": lambda n: graph.mutate(EIGHT, {"k": f"eight{n}"}),
            "raw": base["raw"],
            "sqlite": sqlite_insert(place, TABLES),
            "pylance": pylance_append(place, TABLES),
        },
        rounds,
    )
    if row_count:
        race("10k upsert", upsert_contenders(place, row_count), max(5, rounds // 10))
    if commits:
        publish_growth(graph, commits)
    assert graph.session.manifest.current(None).entries[TableKey("node:T0")].row_count >= rounds
    graph.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="table upserted into; 0: skip")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--commits", type=int, default=2_000, help="history of the publish; 0: skip")
    parser.add_argument("--durability", default="full", choices=["full", "os", "syncfs"])
    chosen = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="omnigraph-bench-"))
    try:
        run(
            place,
            row_count=chosen.rows,
            rounds=chosen.rounds,
            commits=chosen.commits,
            durability=chosen.durability,
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
