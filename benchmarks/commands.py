"""Whole commands, from the shell's point of view: start, work, exit.

Run by `python -m benchmarks.commands`. Each is timed beside `python -c pass`, which no command in this
language can beat, and `python -c "import lance"`, which every command that opens a graph pays for. Median of
several runs, taken in turns so that a busy moment meets all of them alike; compiled modules are kept, as an
installed package has them. Processor time, of the process and all its threads, is printed beside the time on
the clock: other work on the machine changes it little.

`--before PATH` names the `src` of an older checkout. Its commands take their turns among these, on a graph
of their own, and each command has to cost at most half the processor time it cost there.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
RUNS = 9
VERSION_SECONDS_MAX = 0.4
"""The goal for a command that opens no graph."""
QUERY_OVER_LANCE_MAX = 2.5
"""The goal for a query on a small graph, as a multiple of importing Lance."""

OF_BEFORE_MAX = 0.5
"""The goal for the processor time of a command, as a part of what it took in the older checkout."""

SCHEMA = "node Person { handle: String @key  name: String }\nedge Knows: Person -> Person\n"
SEED = """query seed() {
  insert Person { handle: "ada", name: "Ada" }
  insert Person { handle: "ben", name: "Ben" }
  insert Knows { from: "ada", to: "ben" }
}
"""
FRIENDS = 'query f() { match { $p: Person { handle: "ada" } $p knows $f } return { $f.name } }'


def commands(store: Path) -> dict[str, list[str]]:
    command = str(Path(sys.executable).with_name("omnigraph"))
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        'python -c "import lance"': [sys.executable, "-c", "import lance"],
        "omnigraph version": [command, "version"],
        "omnigraph lint": [command, "lint", "--schema", str(store.with_name("schema.pg"))],
        "omnigraph query, small graph": [command, "query", "-e", FRIENDS, "--store", str(store)],
        "omnigraph mutate, small graph": [
            command,
            "mutate",
            "-e",
            'query m() { insert Person { handle: "cyd", name: "Cyd" } }',
            "--store",
            str(store),
            "--quiet",
        ],
    }


def processor_seconds() -> float:
    """What the processes that ended so far took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(
    chosen: dict[str, list[str]], environment: dict[str, str]
) -> tuple[dict[str, float], dict[str, float]]:
    """The medians of each command in seconds: on the clock, and of the processor."""
    times: dict[str, list[float]] = {name: [] for name in chosen}
    used: dict[str, list[float]] = {name: [] for name in chosen}
    for turn in range(RUNS + 1):
        for name, command in chosen.items():
            before, start = processor_seconds(), time.perf_counter()
            subprocess.run(command, env=environment, check=True, capture_output=True)
            # The first turn compiles modules and fills the page cache.
            if turn:
                times[name].append(time.perf_counter() - start)
                used[name].append(processor_seconds() - before)
    medians = [{name: statistics.median(each) for name, each in kept.items()} for kept in (times, used)]
    return medians[0], medians[1]


def measure_both(
    place: Path, environment: dict[str, str], before: Path
) -> tuple[dict[str, float], dict[str, float]]:
    """The processor time of each command here, and in the older checkout, in turns."""
    used: dict[str, dict[str, list[float]]] = {}
    sources = {"now": SOURCES, "before": before}
    for side, source in sources.items():
        prepare(place / f"{side}.omni", {**environment, "PYTHONPATH": str(source)})
    for turn in range(RUNS + 1):
        for side, source in sources.items():
            for name, command in commands(place / f"{side}.omni").items():
                start = processor_seconds()
                subprocess.run(
                    command,
                    env={**environment, "PYTHONPATH": str(source)},
                    check=True,
                    capture_output=True,
                )
                if turn:
                    used.setdefault(side, {}).setdefault(name, []).append(processor_seconds() - start)
    now, then = (
        {name: statistics.median(each) for name, each in used[side].items() if name.startswith("omnigraph")}
        for side in sources
    )
    return now, then


def prepare(store: Path, environment: dict[str, str]) -> None:
    """Make the small graph by commands of the same checkout."""
    command = str(Path(sys.executable).with_name("omnigraph"))
    schema = store.with_name("schema.pg")
    schema.write_text(SCHEMA)
    for words in (
        ["init", "--schema", str(schema), str(store)],
        ["mutate", "-e", SEED, "--store", str(store)],
    ):
        subprocess.run([command, *words], env=environment, check=True, capture_output=True)


def compare(now: dict[str, float], before: dict[str, float]) -> int:
    """Print the processor time beside that of the older checkout. Returns whether a goal was missed."""
    missed = 0
    print(f"\n{'processor time':32} {'now':>10} {'before':>10} {'part':>6}")
    for name, seconds in now.items():
        part = seconds / before[name]
        said = "" if part <= OF_BEFORE_MAX else f"  missed: the goal is {OF_BEFORE_MAX}"
        missed |= bool(said)
        print(f"{name:32} {seconds * 1000:7.0f} ms {before[name] * 1000:7.0f} ms {part:6.2f}{said}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="the src of an older checkout")
    before = parser.parse_args().before
    with tempfile.TemporaryDirectory(prefix="omnigraph-bench-") as directory:
        place = Path(directory)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMNIGRAPH_"))
        }
        environment = {
            **kept,
            "PYTHONPYCACHEPREFIX": str(place / "compiled"),
            "OMNIGRAPH_HOME": str(place / "home"),
            "PYTHONPATH": str(SOURCES),
        }
        prepare(place / "small.omni", environment)
        found, used = measure(commands(place / "small.omni"), environment)
        both = None if before is None else measure_both(place, environment, before.resolve())
    bare, lance = found["python -c pass"], found['python -c "import lance"']
    titles = f"{'median':>9} {'x pass':>8} {'x import lance':>15} {'processor':>10} {'x import lance':>15}"
    print(f"{'command':32} {titles}")
    of_lance = used['python -c "import lance"']
    for name, seconds in found.items():
        beside = f"{used[name] * 1000:7.0f} ms {used[name] / of_lance:15.2f}"
        print(f"{name:32} {seconds * 1000:7.0f} ms {seconds / bare:8.1f} {seconds / lance:15.2f} {beside}")
    version, query = found["omnigraph version"], found["omnigraph query, small graph"]
    missed = 0 if both is None else compare(*both)
    if version >= VERSION_SECONDS_MAX:
        print(f"missed: omnigraph version takes {version:.2f} s, the goal is {VERSION_SECONDS_MAX} s")
        missed = 1
    if query > QUERY_OVER_LANCE_MAX * lance:
        print(f"missed: a query takes {query / lance:.1f}x of importing Lance, not {QUERY_OVER_LANCE_MAX}x")
        missed = 1
    return missed


if __name__ == "__main__":
    sys.exit(main())
