"""Patterns of many joins beside engines that are made for them: answers compared, times as ratios.

Run by `python -m benchmarks.patterns [--edges N] [--where DIR] [--only WORDS] [--without PEER...]`. The
network is generated once into DIR and kept. Every contender runs in a process of its own, which tells the
wall time and the processor time of each answer; the latter is what counts while a machine is shared. A
pattern is asked in three orders of its clauses. The first time is that of the first run in a process.
"""

import argparse
import gc
import json
import math
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks._pattern_network import EDGES, NODES, SCHEMA, make_network, write_network
from benchmarks._pattern_texts import PATTERNS, cypher_text, our_text, sql_text

import omnigraph
from omnigraph.core.settings import Settings

FAST = Settings(durability="os")
ORDERS = 3
ANSWER_SECONDS_MAX = 120.0
MEAN_GOAL, WORST_GOAL, ORDER_GOAL, FIRST_GOAL, PEAK_GOAL_MB = 0.7, 1.5, 1.2, 1.5, 1536

Answer = list[tuple[Any, ...]]
Ask = Callable[[str, int], Answer]


# --- contenders ------------------------------------------------------------------------------------------


@contextmanager
def _ours(where: Path) -> Generator[Ask]:
    if not (where / "graph").exists():
        with omnigraph.init(where / "graph", schema=SCHEMA, settings=FAST) as graph:
            for name in (*NODES, *EDGES):
                graph.load(where / "ours" / f"{name}.parquet", mode="append", engine="local", type_name=name)
    with omnigraph.open(where / "graph", settings=FAST) as graph:
        yield lambda name, order: [
            tuple(row.values()) for row in graph.query(our_text(PATTERNS[name], order)).to_dicts()
        ]


@contextmanager
def _duckdb(where: Path) -> Generator[Ask]:
    duckdb: Any = import_module("duckdb")
    made = (where / "duck.db").exists()
    connection = duckdb.connect(str(where / "duck.db"))
    if not made:
        for name in (*NODES, *EDGES):
            file = where / "peers" / f"{name}.parquet"
            connection.execute(f"create table {name} as select * from read_parquet('{file}')")
    yield lambda name, _: connection.execute(sql_text(PATTERNS[name])).fetchall()
    connection.close()


@contextmanager
def _cypher(module: Any, where: Path, file: str) -> Generator[Ask]:
    made = (where / file).exists()
    database = module.Database(str(where / file))
    connection = module.Connection(database)
    if not made:
        for name in NODES:
            connection.execute(
                f"create node table {name}(key int64, name string, size int32, primary key(key))"
            )
        for name, (source, target) in EDGES.items():
            connection.execute(f"create rel table {name}(from {source} to {target})")
        for name in (*NODES, *EDGES):
            connection.execute(f"copy {name} from '{where / 'peers' / name}.parquet'")
    connection.set_query_timeout(int(ANSWER_SECONDS_MAX * 1000))
    yield lambda name, _: [tuple(row) for row in connection.execute(cypher_text(PATTERNS[name])).get_all()]
    connection.close()
    database.close()


@contextmanager
def _ladybug(where: Path) -> Generator[Ask]:
    with _cypher(import_module("ladybug"), where, "ladybug.db") as ask:
        yield ask


@contextmanager
def _kuzu(where: Path) -> Generator[Ask]:
    with _cypher(import_module("kuzu"), where, "kuzu.db") as ask:
        yield ask


CONTENDERS = {"omnigraph": _ours, "duckdb": _duckdb, "ladybug": _ladybug, "kuzu": _kuzu}


def _serve(contender: str, where: Path, pipe: Any) -> None:
    with CONTENDERS[contender](where) as ask:
        pipe.send(None)
        while (asked := pipe.recv()) is not None:
            gc.collect()
            wall, processor = time.perf_counter(), time.process_time()
            try:
                answer: Any = sorted(ask(*asked), key=repr)
            except Exception as error:
                answer = f"{type(error).__name__}: {str(error)[:200]}"
            took = (time.perf_counter() - wall, time.process_time() - processor)
            pipe.send((answer, *took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


class Contender:
    """A process that answers; one that takes too long is ended and started again."""

    def __init__(self, name: str, where: Path) -> None:
        self.name, self.where = name, where
        self.peak_mb = 0.0
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(self.name, self.where, other))
        self._process.start()
        self._pipe.recv()

    def ask(self, pattern: str, order: int) -> tuple[Any, float, float]:
        """The answer, its wall time and its processor time."""
        self._pipe.send((pattern, order))
        if not self._pipe.poll(ANSWER_SECONDS_MAX):
            self._process.kill()
            self._process.join()
            self._begin()
            return f"no answer in {ANSWER_SECONDS_MAX:.0f} s", math.inf, math.inf
        answer, wall, processor, peak = self._pipe.recv()
        self.peak_mb = max(self.peak_mb, peak)
        return answer, wall, processor

    def end(self) -> None:
        self._pipe.send(None)
        self._process.join()


# --- measuring -------------------------------------------------------------------------------------------


def measure(names: list[str], contenders: dict[str, Contender], rounds: int) -> Iterator[dict[str, Any]]:
    """For each pattern: the times of everybody and whether the answers are equal."""
    for name in names:
        facts: dict[str, Any] = {
            "pattern": name,
            "first": {},
            "first cpu": {},
            "warm": {},
            "cpu": {},
            "answers": {},
        }
        for contender in contenders.values():
            answer, wall, processor = contender.ask(name, 0)
            facts["first"][contender.name], facts["answers"][contender.name] = wall, answer
            facts["first cpu"][contender.name] = processor
        for _ in range(rounds):
            for contender in contenders.values():
                orders = range(ORDERS) if contender.name == "omnigraph" else range(1)
                for order in orders:
                    if math.isinf(facts["first"][contender.name]):
                        continue
                    answer, wall, processor = contender.ask(name, order)
                    label = (contender.name, order)
                    facts["warm"][label] = min(wall, facts["warm"].get(label, math.inf))
                    facts["cpu"][label] = min(processor, facts["cpu"].get(label, math.inf))
                    if answer != facts["answers"][contender.name]:
                        facts["answers"][f"{contender.name} in order {order}"] = answer
        yield facts


def judge(facts: dict[str, Any], clock: str) -> dict[str, float]:
    """The ratios of one pattern, by the wall or by the processor."""
    times = facts["warm" if clock == "wall" else "cpu"]
    ours = [time for (name, _), time in times.items() if name == "omnigraph"] or [math.inf]
    peers = {name: time for (name, _), time in times.items() if name != "omnigraph"}
    best = min(peers.values(), default=math.nan)
    first = facts["first" if clock == "wall" else "first cpu"]
    others = [time for name, time in first.items() if name != "omnigraph"]
    return {
        "ours": max(ours),
        "best": best,
        "ratio": max(ours) / best,
        "orders": max(ours) / min(ours),
        "first": first["omnigraph"] / min(others, default=math.nan),
    }


def answers_differ(facts: dict[str, Any]) -> list[str]:
    """Whose answer is not that of the others; a peer that gave none is not asked."""
    ours = facts["answers"]["omnigraph"]
    return [
        f"{name}: {str(answer)[:160]}"
        for name, answer in facts["answers"].items()
        if name != "omnigraph" and answer != ours and not (isinstance(answer, str) and name in CONTENDERS)
    ] + ([f"omnigraph: {ours}"] if isinstance(ours, str) else [])


def _show(facts: dict[str, Any], clock: str) -> dict[str, float]:
    found = judge(facts, clock)
    peers = "  ".join(
        f"{name} {facts['warm'].get((name, 0), math.inf) * 1000:.0f}"
        for name in facts["first"]
        if name != "omnigraph"
    )
    ours = "/".join(f"{facts['warm'].get(('omnigraph', n), math.inf) * 1000:.0f}" for n in range(ORDERS))
    print(
        f"{facts['pattern']:38} {found['ratio']:6.2f}x  orders {found['orders']:5.2f}x"
        f"  first {found['first']:5.2f}x  ms: ours {ours}  {peers}",
        flush=True,
    )
    for line in answers_differ(facts):
        print(f"    DIFFERENT {line}", flush=True)
    return found


def prepare(where: Path, edges: int) -> None:
    """Generate the files unless they are there."""
    if (where / "made").exists():
        return
    network = make_network(edges)
    for _ in write_network(network, where):
        pass
    (where / "made").write_text(json.dumps({"edges": network.edges, "nodes": network.counts}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--where", type=Path, default=None)
    parser.add_argument("--only", default="")
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    chosen = parser.parse_args()
    where = chosen.where or Path(tempfile.gettempdir()) / f"omnigraph-patterns-{chosen.edges}"
    prepare(where, chosen.edges)
    print((where / "made").read_text())
    names = [name for name in PATTERNS if chosen.only in name]
    contenders = {name: Contender(name, where) for name in CONTENDERS if name not in chosen.without}
    missed: list[str] = []
    ratios: list[float] = []
    for facts in measure(names, contenders, chosen.rounds):
        found = _show(facts, chosen.clock)
        ratios.append(found["ratio"])
        name = facts["pattern"]
        missed += [f"{name}: answers"] if answers_differ(facts) else []
        for fact, goal in (("ratio", WORST_GOAL), ("orders", ORDER_GOAL), ("first", FIRST_GOAL)):
            missed += [f"{name}: {fact} {found[fact]:.2f}"] if found[fact] > goal else []
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    missed += [f"geometric mean {mean:.2f}"] if mean > MEAN_GOAL else []
    for contender in contenders.values():
        print(f"peak of {contender.name}: {contender.peak_mb:.0f} MB")
        contender.end()
    if contenders["omnigraph"].peak_mb > PEAK_GOAL_MB:
        missed.append("peak memory")
    print(f"geometric mean {mean:.2f}x of the best peer")
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
