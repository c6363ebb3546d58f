"""What a user would pick instead, each answering the questions of `benchmarks.reads` about the same people.

Every peer gives `asks`: for each question it can answer a function of one key that ends in Python rows, in
whatever form the peer makes them. Statements are prepared once where a peer can do that.
"""

import multiprocessing
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

import omnigraph
from omnigraph.core.settings import Settings

FAST = Settings(durability="os", cache_bytes=4 << 30)

Ask = Callable[[str], Any]
Asks = dict[str, Ask]


@contextmanager
def omnigraph_asks(where: Path, workloads: dict[str, Any]) -> Iterator[Asks]:
    with omnigraph.open(where / "graph", settings=FAST) as graph:

        def ask(text: str, *, keyed: bool) -> Ask:
            return lambda key: graph.query(text, {"n": key} if keyed else None).to_dicts()

        yield {name: ask(each.ours, keyed=each.keyed) for name, each in workloads.items()}


@contextmanager
def _cypher_asks(module: Any, where: Path, file: str, workloads: dict[str, Any]) -> Iterator[Asks]:
    made = (where / file).exists()
    database = module.Database(str(where / file))
    connection = module.Connection(database, num_threads=1)
    if not made:
        connection.execute("create node table Person(name string, age int32, city string, primary key(name))")
        connection.execute("create rel table Knows(from Person to Person, since int32)")
        for name in ("Person", "Knows"):
            connection.execute(f"copy {name} from '{where / name}.parquet'")

    def ask(text: str, *, keyed: bool) -> Ask:
        prepared = connection.prepare(text)
        return lambda key: connection.execute(prepared, {"n": key} if keyed else {}).get_all()

    yield {name: ask(each.cypher, keyed=each.keyed) for name, each in workloads.items()}
    connection.close()
    database.close()


@contextmanager
def ladybug_asks(where: Path, workloads: dict[str, Any]) -> Iterator[Asks]:
    import ladybug

    with _cypher_asks(ladybug, where, "ladybug.db", workloads) as asks:
        yield asks


def _kuzu_serves(where: Path, workloads: dict[str, Any], pipe: Any) -> None:
    import kuzu

    with _cypher_asks(kuzu, where, "kuzu.db", workloads) as asks:
        pipe.send(None)
        while (asked := pipe.recv()) is not None:
            name, key = asked
            begun = time.perf_counter()
            answer = asks[name](key)
            pipe.send((time.perf_counter() - begun, answer))


class Timed(tuple):
    """Seconds and answer of a peer that lives in a process of its own and times itself."""

    __slots__ = ()


@contextmanager
def kuzu_asks(where: Path, workloads: dict[str, Any]) -> Iterator[Asks]:
    """Kuzu and ladybug register the same native types and cannot be loaded by one process."""
    context = multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    child = context.Process(target=_kuzu_serves, args=(where, workloads, other))
    child.start()
    try:
        mine.recv()

        def ask(name: str) -> Ask:
            def asked(key: str) -> Timed:
                mine.send((name, key))
                return Timed(mine.recv())

            return asked

        yield {name: ask(name) for name in workloads}
    finally:
        mine.send(None)
        child.join()


@contextmanager
def duckdb_asks(where: Path, workloads: dict[str, Any]) -> Iterator[Asks]:
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

    def ask(text: str, *, keyed: bool) -> Ask:
        return lambda key: connection.execute(text, [key] if keyed else []).fetchall()

    yield {name: ask(each.sql, keyed=each.keyed) for name, each in workloads.items()}
    connection.close()


@contextmanager
def sqlite_asks(where: Path, workloads: dict[str, Any]) -> Iterator[Asks]:
    made = (where / "sqlite.db").exists()
    connection = sqlite3.connect(where / "sqlite.db")
    if not made:
        connection.execute("create table person(name text primary key, age int, city text) without rowid")
        connection.execute("create table knows(src text, dst text, since int)")
        for name in ("Person", "Knows"):
            for batch in pq.ParquetFile(where / f"{name}.parquet").iter_batches():
                values = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                connection.executemany(f"insert into {name.lower()} values (?, ?, ?)", values)
        connection.execute("create index knows_src on knows(src, dst)")
        connection.commit()

    def ask(text: str, *, keyed: bool) -> Ask:
        return lambda key: connection.execute(text, [key] if keyed else []).fetchall()

    yield {name: ask(each.sql, keyed=each.keyed) for name, each in workloads.items()}
    connection.close()


def lance_tables(where: Path) -> dict[str, str]:
    """Where the two tables of our graph lie: the bare table format reads the same files."""
    from omnigraph.storage.handles import lance_dataset

    with omnigraph.open_read_only(where / "graph", settings=FAST) as graph:
        entries = graph.snapshot().entries
        return {
            str(key): lance_dataset(graph.session.open_entry(entry)).uri for key, entry in entries.items()
        }


@contextmanager
def pylance_asks(where: Path, workloads: dict[str, Any]) -> Iterator[Asks]:
    """The bare table format: indexed lookups for the first two questions; it has no joins."""
    import lance

    tables = {key: lance.dataset(uri) for key, uri in lance_tables(where).items()}

    def point(key: str) -> Any:
        found = tables["node:Person"].to_table(columns=["age", "city"], filter=f"id = '{key}'")
        return found.to_pylist()

    def hop(key: str) -> Any:
        ends = tables["edge:Knows"].to_table(columns=["dst"], filter=f"src = '{key}'").column("dst")
        if not len(ends):
            return []
        names = ", ".join(f"'{end}'" for end in set(ends.to_pylist()))
        return tables["node:Person"].to_table(columns=["name", "age"], filter=f"id in ({names})").to_pylist()

    yield {name: ask for name, ask in (("point", point), ("1 hop", hop)) if name in workloads}


@contextmanager
def numpy_asks(where: Path, workloads: dict[str, Any]) -> Iterator[Asks]:
    """The limit: arrays in memory, one question hard-wired in each function, no plan, no snapshot."""
    people, knows = pq.read_table(where / "Person.parquet"), pq.read_table(where / "Knows.parquet")
    names, cities = people.column("name").to_pylist(), people.column("city").to_pylist()
    place = {name: number for number, name in enumerate(names)}
    age = people.column("age").to_numpy()
    codes = people.column("city").combine_chunks().dictionary_encode()
    city = np.asarray(codes.indices)
    heads, tails = (
        np.asarray(pc.cast(pc.utf8_slice_codeunits(knows.column(end), 7), "int64")) for end in ("from", "to")
    )
    order = np.lexsort((tails, heads))
    heads, tails = heads[order], tails[order]
    offsets = np.searchsorted(heads, np.arange(len(names) + 1))

    def around(nodes: Any) -> Any:
        begins = offsets[nodes]
        lengths = offsets[nodes + 1] - begins
        ends = np.cumsum(lengths)
        if not len(ends):
            return nodes
        return np.unique(tails[np.repeat(begins - ends + lengths, lengths) + np.arange(ends[-1])])

    def one(key: str) -> Any:
        start = place[key]
        return np.unique(tails[offsets[start] : offsets[start + 1]])

    def filtered(key: str) -> Any:
        found = around(around(one(key)))
        return [(names[n],) for n in found[age[found] > 90].tolist()]

    def grouped(_: str) -> Any:
        sums = np.concatenate([[0], np.cumsum(age[tails], dtype=np.int64)])
        per_head = np.diff(sums[offsets])
        averages = np.bincount(city, weights=per_head) / np.bincount(city, weights=np.diff(offsets))
        return list(zip(codes.dictionary.to_pylist(), averages.tolist(), strict=True))

    asks: Asks = {
        "point": lambda key: [(int(age[place[key]]), cities[place[key]])],
        "1 hop": lambda key: [(names[n], int(age[n])) for n in one(key).tolist()],
        "2 hops distinct": lambda key: [(names[n],) for n in around(one(key)).tolist()],
        "3 hops, filter": filtered,
        "group-by over all edges": grouped,
    }
    yield {name: ask for name, ask in asks.items() if name in workloads}


PEERS = {
    "omnigraph": omnigraph_asks,
    "ladybug": ladybug_asks,
    "kuzu": kuzu_asks,
    "duckdb": duckdb_asks,
    "sqlite": sqlite_asks,
    "pylance": pylance_asks,
    "numpy": numpy_asks,
}
