"""One process of the chaos run: `python worker.py <JSON>`; some lanes on one graph, until its input ends.

Members: `uri`, `options`, `expiry_s`, `spark`, `without` (a part of the protocol that is switched off), `lanes` (name to
possible states), `first` (the number of the first new row). Every line on the output is `[lane, word, value]` (see `ledger`). Lines of input: `disk N` (no file may grow
beyond N bytes; `disk` alone ends that), `clock S` (the clock is S seconds ahead), `finish`. SIGUSR1 prints the stacks of
all threads, from the line `begun` on.
"""

import faulthandler
import json
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

# What this process starts, such as a JVM, may outlive it: it must not hold the pipe to the parent open.
TOLD = os.dup(1)
os.dup2(2, 1)
saying = threading.Lock()


def say(lane, word, value=None):
    with saying:
        left = (json.dumps([lane, word, value]) + "\n").encode()
        while left:
            left = left[os.write(TOLD, left) :]


faulthandler.register(signal.SIGUSR1, all_threads=True)
say("", "begun")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import omnigraph  # noqa: E402
from chaos.actions import ACTIONS, State, found_in  # noqa: E402
from chaos.ledger import Ledger  # noqa: E402
from crash.child import break_protocol  # noqa: E402
from omnigraph.core.clock import SystemClock  # noqa: E402
from omnigraph.core.errors import OmnigraphError  # noqa: E402
from omnigraph.core.errors.kinds import FACTS  # noqa: E402
from omnigraph.recovery import process_lock  # noqa: E402

SPARK_WEIGHT = 3
SETTLE_S_MAX = 240
LOOKED_AT = ("storage", "internal", "drift")
"""Kinds of refusals that are printed whole: each should have a reason."""
finish = threading.Event()


class Lane:
    """One thread's work: chosen, run, told."""

    def __init__(self, told, name, graph):
        self.name = name
        self.inside = False
        self._told = told
        self._graph = graph
        self._ledger = Ledger(name, [State(**state) for state in told["lanes"][name]])
        self._chance = random.Random(f"{told['first']} {name}")
        self._number = told["first"]
        weights = {each.name: each.weight for each in ACTIONS.values()}
        weights["load_spark"] = SPARK_WEIGHT if told["spark"] and name.endswith("0-") else 0
        self._actions = [ACTIONS[each] for each, weight in weights.items() if weight]
        self._weights = [weight for weight in weights.values() if weight]

    def work(self):
        """Until the end of the round; then a write is acknowledged and the graph shows a promised state."""
        self.settle()
        first = [ACTIONS["load_spark"]] if ACTIONS["load_spark"] in self._actions else []
        while not finish.is_set():
            (action,) = [first.pop()] if first else self._chance.choices(self._actions, self._weights)
            planned = action.plan(self._ledger.states[0], self._chance, self._fresh())
            if planned is not None:
                self._act(action, planned)
                if len(self._ledger.states) > 1:
                    self.settle()
        self.settle()

    def settle(self):
        """Write once more, acknowledged, so that everything pending is healed, and look."""
        deadline = time.monotonic() + SETTLE_S_MAX
        while True:
            try:
                self._graph = self._open()
                if self._act(ACTIONS["insert"], ["main", [self._fresh()], 0]):
                    self._tell("found", vars(found_in(self._graph, self.name)))
                    return
            except AssertionError as error:
                self._tell("bad", str(error))
                return
            except OmnigraphError as error:
                self._tell("bad" if time.monotonic() > deadline else "retried", f"{error.kind}: {error}")
            if time.monotonic() > deadline:
                self._tell("bad", "this lane can no longer write")
                return

    def _act(self, action, arguments):
        """Whether the call returned; its outcome is told either way."""
        self._tell("start", [action.name, arguments])
        try:
            try:
                self.inside = True
                action.run(self._graph, self.name, arguments)
            finally:
                self.inside = False
        except AssertionError as error:
            self._tell("bad", str(error))
        except OmnigraphError as error:
            if error.kind.startswith(LOOKED_AT):
                traceback.print_exc()
            self._tell("refused" if FACTS[error.kind].effect_free else "unknown", error.kind)
        except KeyboardInterrupt:
            self.inside = False
            self._tell("unknown", "interrupt")
        except Exception as error:
            traceback.print_exc()
            self._tell("unknown", "untyped")
            self._tell("bad", f"{action.name} raised {type(error).__name__}: {error}"[:300])
        else:
            self._tell("ok")
            return True
        return False

    def _open(self):
        return omnigraph.open(self._told["uri"], storage_options=self._told["options"])

    def _fresh(self):
        self._number += 1
        return f"{self.name}{self._number}"

    def _tell(self, word, value=None):
        say(self.name, word, value)
        if word != "retried":
            self._ledger.note(word, value)


def room_again(hard):
    """No limit any more, neither here nor in a JVM that was started while there was one."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    below = {os.getpid()}
    while more := {pid for pid, above in found.items() if above in below} - below:
        below |= more
    for pid in below:
        with suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def listen_to_parent():
    now_us = SystemClock.now_us
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    for line in sys.stdin:
        match line.split():
            case ["disk", size]:
                resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), hard))
            case ["disk"]:
                room_again(hard)
            case ["clock", seconds]:
                ahead = int(seconds) * 1_000_000
                SystemClock.now_us = lambda self, ahead=ahead: now_us(self) + ahead
            case _:
                break
    room_again(hard)
    SystemClock.now_us = now_us
    finish.set()


def main():
    told = json.loads(sys.argv[1])
    break_protocol(told["without"])
    if told["expiry_s"]:
        process_lock.LEASE_EXPIRY_S = told["expiry_s"]
        process_lock.LEASE_CLOCK_SKEW_S_MAX = 0.0
    graph = omnigraph.open(told["uri"], storage_options=told["options"])
    first, *others = [Lane(told, name, graph) for name in told["lanes"]]

    def interrupt(_number, _frame):
        if first.inside:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    threading.Thread(target=listen_to_parent, daemon=True).start()
    threads = [threading.Thread(target=each.work) for each in others]
    for each in threads:
        each.start()
    first.work()
    for each in threads:
        each.join()
    os._exit(0)


if __name__ == "__main__":
    main()
