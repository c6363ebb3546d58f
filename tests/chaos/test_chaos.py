"""Everything at once: several processes and threads on one graph, killed, stopped, interrupted, without room, in
another time. Nothing acknowledged is lost, nothing is there twice, everybody can write afterwards.

`make chaos` runs it for an hour (`OMNIGRAPH_CHAOS_SECONDS`), `make torture` for two minutes.
"""

import compileall
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import omnigraph
from chaos.actions import SCHEMA, found_in
from chaos.ledger import Ledger
from stores import local_store, s3_store

SECONDS = float(os.environ.get("OMNIGRAPH_CHAOS_SECONDS", "120"))
SPARK = os.environ.get("OMNIGRAPH_CHAOS_SPARK", "1") == "1"
WORKER = Path(__file__).with_name("worker.py")
PROCESSES, THREADS = 3, 2
ROUND_S = 45.0
END_S_MAX = 600
STALL_S = 60.0
"""Without an acknowledgement for so long, everybody's stacks are printed. A busy machine may be the reason."""
EXPIRY_S = 4.0
"""The life of a lease on the object store, so that a short stop is longer than it."""
STACKS_S = 2.0
OUTCOME = ("rounds", "acknowledged", "refused", "unknown", "lost", "doubled", "stuck", "stalls")
FAULTS = ("kill", "kill", "stop", "interrupt", "interrupt", "disk", "clock")


class Worker:
    """A process with the lanes of one number, from its start to its end."""

    def __init__(self, chaos, number, ledgers):
        self.ledgers = ledgers
        spark = SPARK and number == 0
        # A JVM takes longer to start than most workers live: every other one is left alone until it has loaded.
        self._awaited = "load_spark" if spark and chaos.numbered % 2 else None
        self._running = {}
        told = {
            "uri": chaos.store.uri,
            "options": chaos.store.storage_options,
            "expiry_s": EXPIRY_S if chaos.store.storage_options else 0,
            "spark": spark,
            "lanes": {name: ledger.to_json() for name, ledger in ledgers.items()},
            "without": chaos.without,
            "first": chaos.number() * 1_000_000,
        }
        self.errors = (chaos.directory / f"worker{number}.txt").open("a+")
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            # Without room for files Python would leave half a compiled module behind, for everybody.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            text=True,
        )
        self.writing = threading.Event()
        """Set once a lane has got an acknowledgement, of a Spark load where one is awaited."""
        self._begun = threading.Event()
        """Set once it can be asked for its stacks, which is before it opens the graph."""
        self._heard = chaos.heard
        self._reader = threading.Thread(target=self._follow)
        self._reader.start()

    def _follow(self):
        for line in self.process.stdout:
            try:
                lane, word, value = json.loads(line)
            except ValueError:
                return  # torn by the kill: what it was to tell is not told
            if word == "begun":
                self._begun.set()
                continue
            if word != "retried":
                self.ledgers[lane].note(word, value)
            if word == "start":
                self._running[lane] = value[0]
            elif word == "ok":
                self._heard()
                if self._awaited in {None, self._running[lane]}:
                    self.writing.set()

    def tell(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return  # it has ended, which its end will show

    def stacks(self):
        """Where its threads are, as far as it can still tell."""
        if self._begun.is_set() and self.process.poll() is None:
            begin = self.errors.seek(0, os.SEEK_END)
            self.process.send_signal(signal.SIGUSR1)
            threading.Event().wait(STACKS_S)
            self.errors.seek(begin)
            return self.errors.read()
        return "it has not begun yet, or has ended"

    def ended(self):
        """Wait until everything it said was heard; the exit status."""
        status = self.process.wait()
        self._reader.join()
        for ledger in self.ledgers.values():
            ledger.end()
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()
        return status


class Chaos:
    """One graph and everything that is done to it."""

    def __init__(self, store, directory, *, without=None):
        self.store = store
        self.without = without
        """A part of the protocol that is switched off in the workers, to show that it is noticed."""
        self.directory = directory
        self.numbered = 0
        self.counts = Counter()
        self.problems = []
        self.seed = int(os.environ.get("OMNIGRAPH_CHAOS_SEED", time.time_ns() % 2**32))
        self._chance = random.Random(self.seed)
        self._heard_at = time.monotonic()
        compileall.compile_dir(Path(omnigraph.__file__).parent, quiet=2)
        omnigraph.init(store.uri, schema=SCHEMA, storage_options=store.storage_options).close()
        self._ledgers = [
            {f"w{process}t{thread}-": Ledger(f"w{process}t{thread}-") for thread in range(THREADS)}
            for process in range(PROCESSES)
        ]

    def number(self):
        """One that no process had before."""
        self.numbered += 1
        return self.numbered

    def heard(self):
        """Somebody has got an acknowledgement."""
        self._heard_at = time.monotonic()

    def round(self, seconds):
        """Start everybody, let faults happen, end; then look at everything."""
        self.heard()
        workers = [Worker(self, number, ledgers) for number, ledgers in enumerate(self._ledgers)]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            number = self._chance.randrange(PROCESSES)
            if workers[number].writing.wait(1.0):
                workers[number] = self._fault(self._chance.choice(FAULTS), workers[number], number)
            if time.monotonic() - self._heard_at > STALL_S:
                self.counts["stalls"] += 1
                self._tell_stacks("nothing was acknowledged for a while", workers)
                self.heard()
        for worker in workers:
            worker.tell("finish")
        for number, worker in enumerate(workers):
            self._end(worker, number)
        self.counts["rounds"] += 1
        self._judge()
        outcome = {name: self.counts[name] for name in OUTCOME}
        print(
            f"round {self.counts['rounds']}: {sum(self.counts[kind] for kind in set(FAULTS))} faults, {outcome}"
        )
        sys.stdout.flush()

    def _tell_stacks(self, why, workers):
        for worker in workers:
            print(f"\n{why}; process {worker.process.pid}:\n{worker.stacks()}", flush=True)

    def _fault(self, kind, worker, number):
        self.counts[kind] += 1
        pause = threading.Event().wait  # nothing sets it: any instant will do
        pause(self._chance.random() * 0.4)
        if kind == "kill":
            worker.process.kill()
            worker.ended()
            return Worker(self, number, worker.ledgers)
        if kind == "stop":
            worker.process.send_signal(signal.SIGSTOP)
            pause(EXPIRY_S * 1.5)
            worker.process.send_signal(signal.SIGCONT)
        elif kind == "interrupt":
            worker.process.send_signal(signal.SIGINT)
        elif kind == "disk":
            worker.tell(f"disk {self._chance.choice((0, 600, 3000, 20000))}")
            pause(self._chance.random())
            worker.tell("disk")
        else:
            worker.tell(f"clock {self._chance.choice((-3600, -30, 0, 30, 3600))}")
        return worker

    def _end(self, worker, number):
        try:
            worker.process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self.counts["stuck"] += 1
            self._tell_stacks("did not end", [worker])
            self.problems.append(f"worker {number} did not end")
            worker.process.kill()
        status = worker.ended()
        if status not in {0, -signal.SIGKILL}:
            said = (self.directory / f"worker{number}.txt").read_text()
            self.problems.append(f"worker {number} ended by itself with {status}: {said[-2000:]}")

    def _judge(self):
        with omnigraph.open(self.store.uri, storage_options=self.store.storage_options) as graph:
            report = graph.verify()
            self.problems += [
                f"verify: {each.rule} {each.where}: {each.message}" for each in report.violations
            ]
            for ledger in itertools.chain(*(each.values() for each in self._ledgers)):
                try:
                    ledger.look(found_in(graph, ledger.lane))
                except AssertionError as error:
                    ledger.problems.append(str(error))
                self.problems += ledger.problems
                self.counts += ledger.counts
                ledger.problems.clear()
                ledger.counts.clear()
        self.counts["doubled"] += sum("doubled" in each for each in self.problems)

    def said(self):
        """What the workers printed: refusals that each should have a reason, stacks."""
        return "\n".join(each.read_text() for each in sorted(self.directory.glob("worker*.txt")))

    def told(self):
        """The counts in two lines: what was done to the graph, and what became of it."""
        faults = {kind: self.counts[kind] for kind in dict.fromkeys(FAULTS)}
        return (
            f"{self.store.uri}: seed {self.seed}, faults {faults}\n"
            f"{ {name: self.counts[name] for name in OUTCOME} }\n"
            f"{ {name: count for name, count in sorted(self.counts.items()) if ' ' in name} }"
        )


@pytest.mark.torture
@pytest.mark.crash
@pytest.mark.timeout(SECONDS * 3 + 1800)
@pytest.mark.parametrize("make", [local_store, pytest.param(s3_store, marks=pytest.mark.s3)])
def test_chaos_loses_nothing_doubles_nothing_and_leaves_nobody_stuck(make, tmp_path):
    chaos = Chaos(make(tmp_path), tmp_path)
    deadline = time.monotonic() + SECONDS / 2
    while time.monotonic() < deadline and not chaos.problems:
        chaos.round(min(ROUND_S, SECONDS / 4))
    print(f"\n{chaos.said()}\n{chaos.told()}")
    assert chaos.problems == [], chaos.told()
    assert chaos.counts["acknowledged"] > 0
    assert (chaos.counts["lost"], chaos.counts["doubled"], chaos.counts["stuck"]) == (0, 0, 0)


@pytest.mark.torture
@pytest.mark.crash
@pytest.mark.timeout(SECONDS * 3 + 1800)
def test_chaos_notices_writers_that_announce_nothing(tmp_path):
    """Without the durable intent of Phase A a kill leaves tables that nobody explains."""
    chaos = Chaos(local_store(tmp_path), tmp_path, without="phase_a")
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and not chaos.problems:
        chaos.round(ROUND_S)
    print(f"\nwithout phase A, after {chaos.counts['kill']} kills: {chaos.problems[:1]}")
    assert chaos.problems, "nobody noticed"
