"""Patterns of many joins beside engines that are made for them: answers compared, times as ratios.

Run by `python -m benchmarks.patterns [--edges N] [--where DIR] [--only WORDS] [--without PEER...]
[--patience SECONDS]`. The network is generated once into DIR and kept. Every contender runs in a process of
its own, which tells the wall time and the processor time of each answer; the latter is what counts while a
machine is shared, and `--clock` chooses (ratios of the other one are in parentheses). A pattern is asked in
three orders of its clauses, in turn, and what counts is the median. The first time is that of the first run
in a process.
"""

import argparse
import gc
import json
import math
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._pattern_network import EDGES, NODES, SCHEMA, make_network, write_network
from benchmarks._pattern_texts import PATTERNS, cypher_text, our_text, sql_text

import omnigraph
from omnigraph.core.settings import Settings

FAST = Settings(durability="os")
ORDERS = 3
ANSWER_SECONDS_MAX = 120.0
MEAN_GOAL, WORST_GOAL, ORDER_GOAL, FIRST_GOAL, PEAK_GOAL_MB = 0.7, 1.5, 1.2, 1.5, 1536

CLOCKS = ("wall", "processor")
ROUNDS_MAX, ROUNDS_SECONDS = 41, 1.0
"""Up to so many rounds are made of what takes less time together."""

Answer = list[tuple[Any, ...]]
Ask = Callable[[str, int], Answer]


class Spent(NamedTuple):
    """Seconds of one answer."""

    wall: float
    processor: float


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

    def __init__(self, name: str, where: Path, patience: float) -> None:
        self.name, self.where, self.patience = name, where, patience
        self.peak_mb = 0.0
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(self.name, self.where, other))
        self._process.start()
        self._pipe.recv()

    def ask(self, pattern: str, order: int) -> tuple[Any, Spent]:
        """The answer and what it took."""
        self._pipe.send((pattern, order))
        if not self._pipe.poll(self.patience):
            self._process.kill()
            self._process.join()
            self._begin()
            return f"no answer in {self.patience:.0f} s", Spent(math.inf, math.inf)
        answer, wall, processor, peak = self._pipe.recv()
        self.peak_mb = max(self.peak_mb, peak)
        return answer, Spent(wall, processor)

    def end(self) -> None:
        self._pipe.send(None)
        self._process.join()


# --- measuring -------------------------------------------------------------------------------------------


@dataclass
class Facts:
    """What was measured of one pattern; seconds by the wall and by the processor."""

    pattern: str
    first: dict[str, Spent] = field(default_factory=dict[str, Spent])
    warm: dict[tuple[str, int], list[Spent]] = field(default_factory=dict[tuple[str, int], list[Spent]])
    """By contender and order of the clauses."""
    answers: dict[str, Any] = field(default_factory=dict[str, Any])

    def ask(self, contender: Contender, order: int) -> Spent:
        """Ask once, and note an answer that is not the first one."""
        answer, spent = contender.ask(self.pattern, order)
        known = self.answers.setdefault(contender.name, answer)
        if known != answer and not math.isinf(spent.wall):
            self.answers[f"{contender.name} in order {order}"] = answer
        return spent

    def median(self, label: tuple[str, int], clock: str) -> float:
        return statistics.median(getattr(spent, clock) for spent in self.warm[label])


def measure(names: list[str], contenders: dict[str, Contender], rounds: int) -> Iterator[Facts]:
    """Each pattern asked of everybody: once for the first time, once for nothing where a text is new to us,
    then in turn. Of what takes a few milliseconds there are more rounds, or noise would be the result.
    """
    for name in names:
        facts = Facts(name)
        for contender in contenders.values():
            facts.first[contender.name] = facts.ask(contender, 0)
        ours = contenders["omnigraph"]
        once = max(facts.ask(ours, order).processor for order in range(ORDERS))
        asked = [
            (contender, order)
            for contender in contenders.values()
            for order in range(ORDERS if contender is ours else 1)
            if not math.isinf(facts.first[contender.name].wall)
        ]
        often = max(rounds, min(ROUNDS_MAX, int(ROUNDS_SECONDS / max(once, 0.001))))
        for turn in range(often):
            start = turn % len(asked)
            for contender, order in asked[start:] + asked[:start]:
                # Nobody needs a slow peer as often as us.
                if turn < rounds or contender is ours or facts.first[contender.name].wall < ROUNDS_SECONDS:
                    facts.warm.setdefault((contender.name, order), []).append(facts.ask(contender, order))
        yield facts


def judge(facts: Facts, clock: str) -> dict[str, float]:
    """The ratios of one pattern, by the wall or by the processor; that of the orders is of the same work by
    one engine, and always by the processor.
    """
    ours = [facts.median(label, clock) for label in facts.warm if label[0] == "omnigraph"] or [math.inf]
    orders = [facts.median(label, "processor") for label in facts.warm if label[0] == "omnigraph"] or [1.0]
    peers = [facts.median(label, clock) for label in facts.warm if label[0] != "omnigraph"]
    best = min(peers, default=math.nan)
    others = [getattr(spent, clock) for name, spent in facts.first.items() if name != "omnigraph"]
    return {
        "ours": max(ours),
        "best": best,
        "ratio": max(ours) / best,
        "orders": max(orders) / min(orders),
        "first": getattr(facts.first["omnigraph"], clock) / min(others, default=math.nan),
    }


def answers_differ(facts: Facts) -> list[str]:
    """Whose answer is not that of the others; a peer that gave none is not asked."""
    ours = facts.answers["omnigraph"]
    return [
        f"{name}: {str(answer)[:160]}"
        for name, answer in facts.answers.items()
        if name != "omnigraph" and answer != ours and not (isinstance(answer, str) and name in CONTENDERS)
    ] + ([f"omnigraph: {ours}"] if isinstance(ours, str) else [])


def _show(facts: Facts, clock: str) -> dict[str, float]:
    found, other = judge(facts, clock), judge(facts, next(each for each in CLOCKS if each != clock))
    times = {label: f"{facts.median(label, clock) * 1000:.1f}" for label in facts.warm}
    peers = "  ".join(f"{name} {shown}" for (name, _), shown in times.items() if name != "omnigraph")
    ours = "/".join(shown for (name, _), shown in times.items() if name == "omnigraph")
    firsts = " ".join(f"{getattr(spent, clock) * 1000:.0f}" for spent in facts.first.values())
    print(
        f"{facts.pattern:38} {found['ratio']:5.2f}x ({other['ratio']:.2f}x)  orders {found['orders']:.2f}x"
        f"  first {found['first']:.2f}x ({other['first']:.2f}x, {firsts})  ms: ours {ours}  {peers}",
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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--patience", type=float, default=ANSWER_SECONDS_MAX)
    chosen = parser.parse_args()
    where = chosen.where or Path(tempfile.gettempdir()) / f"omnigraph-patterns-{chosen.edges}"
    prepare(where, chosen.edges)
    print((where / "made").read_text())
    names = [name for name in PATTERNS if chosen.only in name]
    contenders = {
        name: Contender(name, where, chosen.patience) for name in CONTENDERS if name not in chosen.without
    }
    missed: list[str] = []
    ratios: list[float] = []
    for facts in measure(names, contenders, chosen.rounds):
        found = _show(facts, chosen.clock)
        ratios.append(found["ratio"])
        name = facts.pattern
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
