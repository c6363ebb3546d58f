"""Many small durable writes at once: threads, branches and processes, beside what a user would pick instead.

Run by `python -m benchmarks concurrent`. Every contender inserts one row per transaction, durably. Rounds are
interleaved, so that a busy machine slows all of them alike. A rate is the median over the rounds, a ratio the
median of the ratios within each round. `ladybug`, `sqlite` (WAL, synchronous=full) and `duckdb` are asked by
one thread and by as many as they take, each with a connection of its own; their best rate counts. With
`--before`, a checkout of an earlier version, one client of that version writes in turn with one of this one,
each in a process of its own. Exit status 1: a goal was missed.
"""  # noqa: A005  the word for what it measures; nobody imports it by that name

import argparse
import itertools
import os
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._place import area, work_directory

import omnigraph
from omnigraph.core.settings import Settings

if TYPE_CHECKING:
    from omnigraph.api.graph import Graph

SCHEMA = "node T { name: String @key  age: I32?  city: String? }"
INSERT = 'query one($k: String) { insert T { name: $k, age: 1, city: "c" } }'
MANY = 64
PROCESSES = 4
PEER_THREADS = 8
GOALS = {
    "64 threads / one thread": (">=", 10.0),
    "p99 / p50 of 64 threads": ("<=", 4.0),
    "two branches / one": (">=", 1.6),
    "4 processes / one process with as many threads": (">=", 0.8),
    "64 threads / ladybug's best": (">=", 0.3),
    "p50 of one client / before": ("<=", 1.05),
}
NOW, BEFORE = "one client", "one client, before"
HERE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Measured:
    """One round of one contender."""

    rate: float
    latencies: tuple[float, ...]


def measured(write: Callable[[int, int], object], threads: int, each: int) -> Measured:
    """So many threads that write so often; `write` gets the number of the thread and of the write."""
    taken: list[list[float]] = [[] for _ in range(threads)]
    failures: list[BaseException] = []
    start = threading.Barrier(threads + 1)

    def work(thread: int) -> None:
        start.wait()
        try:
            for number in range(each):
                began = time.perf_counter()
                write(thread, number)
                taken[thread].append(time.perf_counter() - began)
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in running:
        thread.join()
    seconds = time.perf_counter() - began
    if failures:
        raise failures[0]
    return Measured(threads * each / seconds, tuple(itertools.chain.from_iterable(taken)))


# --- ours ------------------------------------------------------------------------------------------------


class Ours:
    """A graph whose rows never collide, whoever writes them."""

    def __init__(self, home: Path, settings: Settings) -> None:
        self.home = home
        self.graph: Graph = omnigraph.init(home, schema=SCHEMA, settings=settings)
        self.graph.branches.create("side")
        self._numbers = itertools.count()
        self.written = 0

    def insert(self, branch: str = "main") -> None:
        self.graph.mutate(INSERT, {"k": f"k{next(self._numbers)}"}, branch=branch)

    def threads(self, count: int, each: int) -> Measured:
        self.written += count * each
        return measured(lambda _thread, _number: self.insert(), count, each)

    def two_branches(self, each: int) -> Measured:
        branches = ("main", "side")
        self.written += each
        return measured(lambda thread, _number: self.insert(branches[thread]), 2, each)

    def one_of_two(self, each: int) -> Measured:
        """As much as both branches together get, by one thread on one branch."""
        self.written += 2 * each
        return measured(lambda _thread, _number: self.insert(), 1, 2 * each)

    def processes(self, threads: int, each: int, tag: str) -> Measured:
        """As many threads in so many processes; each says when it is ready, having written once as everybody
        else has, and when it is done.
        """
        self.written += threads * each + PROCESSES
        asked = [str(self.home), str(threads // PROCESSES), str(each)]
        command = [sys.executable, "-m", "benchmarks.concurrent", "--child", *asked]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        running = [subprocess.Popen([*command, f"{tag}-{n}"], **pipes) for n in range(PROCESSES)]
        for each_process in running:
            assert each_process.stdout is not None
            assert each_process.stdout.readline() == "ready\n"
        began = time.perf_counter()
        for each_process in running:
            assert each_process.stdin is not None
            each_process.stdin.write("go\n")
            each_process.stdin.flush()
        for each_process in running:
            assert each_process.stdout is not None
            assert each_process.stdout.readline() == "done\n"
        seconds = time.perf_counter() - began
        for each_process in running:
            each_process.communicate()
        return Measured(threads * each / seconds, ())


class Client:
    """One client in a process of its own, of this version or of an earlier one."""

    def __init__(self, checkout: Path, home: Path, durability: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
        self._process = subprocess.Popen(
            # `-P`: not this directory, where a module has the name of one that Python brings along.
            [sys.executable, "-P", str(Path(__file__).with_name("_one_client.py")), str(home), durability],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def write(self, count: int) -> Measured:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        taken = tuple(map(float, self._process.stdout.readline().split()))
        assert len(taken) == count, "the client ended"
        return Measured(count / sum(taken), taken)

    def close(self) -> None:
        self._process.communicate()


def child(home: str, threads: int, each: int, tag: str) -> int:
    """One of several processes that write to the same graph."""
    with omnigraph.open(home) as graph:
        graph.mutate(INSERT, {"k": f"{tag}-first"})
        print("ready", flush=True)
        sys.stdin.readline()
        measured(lambda t, n: graph.mutate(INSERT, {"k": f"{tag}-{t}-{n}"}), threads, each)
        print("done", flush=True)
    return 0


# --- the others ------------------------------------------------------------------------------------------


def sqlite_writer(place: Path) -> Callable[[int, int], object]:
    file = area(place, "sqlite") / "t.db"
    numbers = itertools.count()
    local = threading.local()

    def connection() -> sqlite3.Connection:
        if not hasattr(local, "connection"):
            local.connection = sqlite3.connect(file, isolation_level=None, timeout=60)
            local.connection.execute("pragma synchronous = full")
        return local.connection

    connection().execute("pragma journal_mode = wal")
    connection().execute("create table t (name text primary key, age int, city text)")
    return lambda _thread, _number: connection().execute(
        "insert into t values (?, 1, 'c')", (f"k{next(numbers)}",)
    )


def ladybug_writer(place: Path) -> Callable[[int, int], object]:
    ladybug: Any = import_module("ladybug")

    database = ladybug.Database(str(area(place, "ladybug") / "t.lbug"))
    ladybug.Connection(database).execute(
        "create node table T(name string primary key, age int32, city string)"
    )
    numbers, local = itertools.count(), threading.local()
    turn = threading.Lock()

    def write(_thread: int, _number: int) -> None:
        if not hasattr(local, "connection"):
            local.connection = ladybug.Connection(database)
        with turn:  # it takes one writing transaction at a time and refuses the others
            local.connection.execute("create (:T {name: $n, age: 1, city: 'c'})", {"n": f"k{next(numbers)}"})

    return write


def duckdb_writer(place: Path) -> Callable[[int, int], object]:
    duckdb: Any = import_module("duckdb")

    database = duckdb.connect(str(area(place, "duckdb") / "t.duckdb"))
    database.execute("create table t (name text primary key, age int, city text)")
    numbers, local = itertools.count(), threading.local()

    def write(_thread: int, _number: int) -> None:
        if not hasattr(local, "cursor"):
            local.cursor = database.cursor()
        local.cursor.execute("insert into t values (?, 1, 'c')", [f"k{next(numbers)}"])

    return write


def peers(place: Path) -> dict[str, Callable[[int, int], object]]:
    """What else is installed; a package that is missing is named and left out."""
    found: dict[str, Callable[[int, int], object]] = {}
    makers = {"sqlite": sqlite_writer, "ladybug": ladybug_writer, "duckdb": duckdb_writer}
    for name, make in makers.items():
        try:
            found[name] = make(place)
        except ImportError:
            print(f"{name} is not installed and left out")
    return found


# --- the run ---------------------------------------------------------------------------------------------


def rounds_of(place: Path, ours: Ours, chosen: argparse.Namespace) -> dict[str, list[Measured]]:
    """Every contender once per round, beginning with another one each time."""
    each = chosen.each
    contenders: dict[str, Callable[[int], Measured]] = {
        "one thread": lambda _round: ours.threads(1, each * 4),
        f"{MANY} threads": lambda _round: ours.threads(MANY, each),
        "one branch": lambda _round: ours.one_of_two(each * 2),
        "two branches": lambda _round: ours.two_branches(each * 2),
        f"{PROCESSES} processes": lambda number: ours.processes(MANY, each, f"p{number}"),
    }
    clients: list[Client] = []
    if chosen.before is not None:
        for name, checkout in ((NOW, HERE), (BEFORE, chosen.before)):
            clients.append(client := Client(checkout, area(place, name) / "g", chosen.durability))
            contenders[name] = lambda _round, client=client: client.write(each * 4)
    for name, write in peers(place).items():
        contenders[f"{name}, one thread"] = lambda _round, write=write: measured(write, 1, each * 8)
        contenders[f"{name}, {PEER_THREADS} threads"] = lambda _round, write=write: measured(
            write, PEER_THREADS, each
        )
    taken: dict[str, list[Measured]] = {name: [] for name in contenders}
    order = list(contenders.items())
    for number in range(-1, chosen.rounds):  # one round to warm up
        order.append(order.pop(0))
        for name, contender in order:
            found = contender(number)
            if number >= 0:
                taken[name].append(found)
    for client in clients:
        client.close()
    return taken


def ratios_of(taken: dict[str, list[Measured]]) -> dict[str, float]:
    """What has a goal: of each round its own ratio, and of those the median."""

    def faster(name: str, *others: str) -> float:
        best = (max(rates) for rates in zip(*([e.rate for e in taken[each]] for each in others), strict=True))
        return statistics.median(a.rate / b for a, b in zip(taken[name], best, strict=True))

    many = f"{MANY} threads"
    late = sorted(itertools.chain.from_iterable(each.latencies for each in taken[many]))
    ratios = {
        "64 threads / one thread": faster(many, "one thread"),
        "p99 / p50 of 64 threads": late[int(len(late) * 0.99)] / late[len(late) // 2],
        "two branches / one": faster("two branches", "one branch"),
        "4 processes / one process with as many threads": faster(f"{PROCESSES} processes", many),
    }
    ladybug = [name for name in taken if name.startswith("ladybug")]
    if ladybug:
        ratios["64 threads / ladybug's best"] = faster(many, *ladybug)
    if BEFORE in taken:
        pairs = zip(taken[NOW], taken[BEFORE], strict=True)
        ratios["p50 of one client / before"] = statistics.median(
            statistics.median(now.latencies) / statistics.median(before.latencies) for now, before in pairs
        )
    return ratios


def report(taken: dict[str, list[Measured]]) -> list[str]:
    """Print every rate and every ratio beside its bound; return what was missed."""
    rates = {name: statistics.median(each.rate for each in found) for name, found in taken.items()}
    print(f"\nrows per second (median of {len(next(iter(taken.values())))} rounds)")
    for name, found in taken.items():
        late = sorted(itertools.chain.from_iterable(each.latencies for each in found))
        told = ""
        if late:
            p50, p99 = late[len(late) // 2], late[int(len(late) * 0.99)]
            told = f"   p50 {p50 * 1000:8.2f} ms   p99 {p99 * 1000:8.2f} ms"
        print(f"  {name:<24}{rates[name]:12.1f}{told}")
    ratios = ratios_of(taken)
    for name in GOALS.keys() - ratios.keys():
        print(f"\n  not judged: {name}; its other side was not there")
    missed: list[str] = []
    print()
    for name, ratio in ratios.items():
        sign, bound = GOALS[name]
        met = ratio >= bound if sign == ">=" else ratio <= bound
        print(f"  {name:<50}{ratio:8.2f}   goal {sign} {bound}: {'met' if met else 'MISSED'}")
        if not met:
            missed.append(name)
    return missed


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        home, threads, each, tag = sys.argv[2:]
        return child(home, int(threads), int(each), tag)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--each", type=int, default=10, help="writes per thread and round")
    parser.add_argument("--durability", default="full", choices=["full", "os", "syncfs"])
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version")
    home = "/var/tmp" if Path("/var/tmp").is_dir() else None
    parser.add_argument("--directory", default=home, help="where to write, on the disk to be measured")
    chosen = parser.parse_args()
    with work_directory("omnigraph-concurrent-", chosen.directory) as place:
        ours = Ours(area(place, "ours") / "g", Settings(durability=chosen.durability))
        missed = report(rounds_of(place, ours, chosen))
        rows = sum(each.row_count for each in ours.graph.snapshot().entries.values())
        assert rows == ours.written, f"{ours.written} rows were acknowledged, {rows} are there"
        assert ours.graph.verify().ok
        ours.graph.close()
    print(f"\nmissed: {'; '.join(missed)}" if missed else "\nevery goal met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
