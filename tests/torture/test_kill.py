"""Writers killed at random moments: no acknowledged commit is lost, nothing is half done, nothing stays pending."""

import json
import os
import random
import signal
import threading
import time

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

    def __init__(self, children, path, prefix, number, seed, directory):
        self.prefix = prefix
        self.log = directory / f"{prefix}log"
        self.log.unlink(missing_ok=True)
        self.status = None
        command = {
            "path": str(path),
            "prefix": prefix,
            "number": number,
            "seed": seed,
            "log": str(self.log),
        }
        self._thread = threading.Thread(target=self._run, args=(children, command))
        self._thread.start()

    def _run(self, children, command):
        self.status = children.run("kill_writer", **command)

    def wait_until_writing(self):
        """Return once the first operation was announced."""
        deadline = time.monotonic() + 60
        while not self.log.exists() or self.log.read_text().count("\n") < 2:
            assert self._thread.is_alive()
            assert time.monotonic() < deadline, "the writer did not start"
            self._thread.join(0.005)

    def kill(self):
        os.kill(json.loads(self.log.read_text().splitlines()[0])[1], signal.SIGKILL)
        self._thread.join(60)
        return self.status


@pytest.mark.timeout(SECONDS + 600)
def test_killed_writers_lose_nothing(tmp_path):
    seed = int(os.environ.get("OMNIGRAPH_TORTURE_SEED", time.time_ns() % 2**32))
    print(f"\nseed {seed}")
    randomness = random.Random(seed)
    path = tmp_path / "graph"
    omnigraph.init(path, schema=SCHEMA).close()
    slots = {f"w{number}-": Slot() for number in range(WRITERS)}
    kills = acknowledged = rounds = 0
    ended = time.monotonic() + SECONDS
    with Children() as recoverer, Children() as first, Children() as second:
        servers = (first, second)
        while time.monotonic() < ended or kills < KILLS_MIN:
            rounds += 1
            victims = [
                Victim(server, path, prefix, rounds * 100_000, randomness.random(), tmp_path)
                for server, prefix in zip(servers, slots, strict=True)
            ]
            for victim in victims:
                victim.wait_until_writing()
            for victim in victims:
                threading.Event().wait(randomness.uniform(0, 0.4))
                assert victim.kill() == -signal.SIGKILL
                kills += 1
            result = tmp_path / "result.json"
            assert recoverer.run("recover", path=str(path), result=str(result)) == 0
            found = json.loads(result.read_text())
            assert found["violations"] == [], f"round {rounds}, seed {seed}"
            for victim in victims:
                allowed, count = promised(victim.log.read_text().splitlines(), slots[victim.prefix])
                now = Slot.read(found["exports"]["main"], victim.prefix)
                assert now in allowed, f"round {rounds}, seed {seed}, writer {victim.prefix}"
                slots[victim.prefix] = now
                acknowledged += count
    print(
        f"{kills} kills in {rounds} rounds, {acknowledged} acknowledged writes, "
        f"{len(found['recoveries'])} recoveries, {found['commits']} commits"
    )
    assert kills >= KILLS_MIN
    assert found["recoveries"], "the kills never hit a write in its middle"
