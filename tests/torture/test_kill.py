"""Writers killed at random moments: no acknowledged commit is lost, nothing is half done, nothing stays pending."""

import json
import os
import random
import signal
import threading
import time
from collections import Counter

import pytest

import omnigraph
from crash.harness import Children
from torture.kill_writer import SCHEMA, Slot, promised

pytestmark = pytest.mark.torture

SECONDS = float(os.environ.get("OMNIGRAPH_TORTURE_SECONDS", "120"))
KILLS_MIN = 100
WRITERS = 2


class Victim:
    """One writer process, from its start to its kill."""

    def __init__(self, children, prefix, directory, command):
        self.prefix = prefix
        self.log = directory / f"{prefix}log"
        self.log.unlink(missing_ok=True)
        self.status = None
        told = {**command, "prefix": prefix, "log": str(self.log)}
        self._thread = threading.Thread(target=self._run, args=(children, told))
        self._thread.start()

    def _run(self, children, command):
        self.status = children.run("kill_writer", **command)

    def wait_until_writing(self):
        """Return once the first operation was announced, or the writer failed."""
        deadline = time.monotonic() + 60
        while not self.log.exists() or self.log.read_text().count("\n") < 2:
            if not self._thread.is_alive():
                return
            assert time.monotonic() < deadline, "the writer did not start"
            self._thread.join(0.005)

    def wait_until_merging(self, seconds):
        """Return when it says that it begins to merge, or when the time is over."""
        deadline = time.monotonic() + seconds
        while '["merging"' not in self.log.read_text() and time.monotonic() < deadline:
            self._thread.join(0.002)

    def kill(self):
        """End it; returns whether it was writing until then."""
        if self._thread.is_alive():
            os.kill(json.loads(self.log.read_text().splitlines()[0])[1], signal.SIGKILL)
        self._thread.join(60)
        return self.status == -signal.SIGKILL


class Torture:
    """Two writers on one graph, killed and recovered round by round. Use as a context manager.

    `without` switches off a part of the protocol, in the writers and in the recovery.
    """

    def __init__(self, directory, *, without=None, merge_share=0.25):
        self.seed = int(os.environ.get("OMNIGRAPH_TORTURE_SEED", time.time_ns() % 2**32))
        self._randomness = random.Random(self.seed)
        self._directory = directory
        self._told = {"path": str(directory / "graph"), "without": without, "merge_share": merge_share}
        self._slots = {f"w{number}-": Slot() for number in range(WRITERS)}
        self.kills = self.acknowledged = self.rounds = 0
        self.found = {}
        omnigraph.init(directory / "graph", schema=SCHEMA).close()

    def __enter__(self):
        self._servers = [Children().__enter__() for _ in range(WRITERS + 1)]
        return self

    def __exit__(self, *_):
        for server in self._servers:
            server.__exit__()

    def round(self):
        """Start the writers, kill them, recover; returns the violations of the promise."""
        self.rounds += 1
        recoverer, *servers = self._servers
        victims = []
        for server, prefix in zip(servers, self._slots, strict=True):
            command = {**self._told, "number": self.rounds * 100_000, "seed": self._randomness.random()}
            victims.append(Victim(server, prefix, self._directory, command))
        for victim in victims:
            victim.wait_until_writing()
        problems = []
        for victim in victims:
            # Half of the kills aim at a merge, whose commits are a short part of its time.
            aimed = self._randomness.random() < 0.5
            if aimed:
                victim.wait_until_merging(1)
            threading.Event().wait(self._randomness.uniform(0, 0.1 if aimed else 0.4))
            if not victim.kill():
                problems.append(f"writer {victim.prefix} failed by itself")
            self.kills += 1
        result = self._directory / "result.json"
        if recoverer.run("recover", **self._told, result=str(result)) != 0:
            return [*problems, "the graph could not be opened"]
        self.found = json.loads(result.read_text())
        return [*problems, *self.found["violations"], *self._judge(victims)]

    def _judge(self, victims):
        for victim in victims:
            allowed, count = promised(victim.log.read_text().splitlines(), self._slots[victim.prefix])
            now = Slot.read(self.found["exports"]["main"], victim.prefix)
            if now not in allowed:
                yield f"writer {victim.prefix} was promised something else"
            self._slots[victim.prefix] = now
            self.acknowledged += count


@pytest.mark.timeout(SECONDS + 600)
def test_killed_writers_lose_nothing(tmp_path):
    with Torture(tmp_path) as torture:
        print(f"\nseed {torture.seed}")
        ended = time.monotonic() + SECONDS
        while time.monotonic() < ended or torture.kills < KILLS_MIN:
            assert torture.round() == [], f"round {torture.rounds}, seed {torture.seed}"
    kinds = Counter(kind for _, kind in torture.found["recoveries"])
    print(
        f"{torture.kills} kills in {torture.rounds} rounds, {torture.acknowledged} acknowledged writes, "
        f"{torture.found['commits']} commits, recoveries: {dict(kinds)}"
    )
    assert torture.kills >= KILLS_MIN
    assert {"RolledForward", "RolledBack"} <= set(kinds), "the kills never hit a write in its middle"


@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize(("part", "merge_share"), [("phase_a", 0.25), ("restore", 0.25), ("confirmation", 1)])
def test_the_torture_notices_a_broken_protocol(part, merge_share, tmp_path):
    """Without Phase A, without a real restore, or with merges that need no confirmation, some kill shows it."""
    problems = []
    with Torture(tmp_path, without=part, merge_share=merge_share) as torture:
        ended = time.monotonic() + SECONDS
        while not problems and time.monotonic() < ended:
            problems = torture.round()
    print(f"\nwithout {part}: {torture.kills} kills until {problems}")
    assert problems, f"nobody noticed that {part} was switched off, seed {torture.seed}"
