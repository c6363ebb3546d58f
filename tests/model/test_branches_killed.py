"""A process that follows a branch program is killed at random moments: each operation happened or did not."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import omnigraph
from graphs import FAST, make_graph
from model.branch_programs import Verdict, follow, propose, read_state, root_of, seed
from model.history_model import SCHEMA, History

CHILD = Path(__file__).with_name("branch_child.py")
SECONDS = float(os.environ.get("OMNIGRAPH_TORTURE_SECONDS", "120"))
ANSWER_S_MAX = 60
OPERATIONS_OF_ONE_GRAPH = 150
KILL_SHARE = 0.35
MOMENT_S_MAX = 0.08


class Worker:
    """One process that does operations until it is killed."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def start(self, path):
        assert self.process.stdout.readline() == b"ready\n"
        self.process.stdin.write(f"{path}\n".encode())
        return self

    def perform(self, operation, seconds):
        """The answer, or None when there was none in time: then the process is dead."""
        self.process.stdin.write(json.dumps(operation).encode() + b"\n")
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            os.kill(self.process.pid, signal.SIGKILL)
            self.end()
            return None
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def names_and_states(model):
    return (
        sorted(model.branches),
        dict(model.tags),
        {branch: model.state(branch) for branch in model.branches},
    )


def seen(graph):
    branches = sorted(graph.branches.list())
    return branches, graph.tags.list(), {branch: read_state(graph, branch) for branch in branches}


def settle(path, model, verdict):
    """Open what the killed process left; the graph is as before or after. Returns which."""
    before = names_and_states(model)
    with omnigraph.open(path, settings=FAST) as graph:
        report = graph.verify()
        assert report.violations == ()
        assert report.pending == ()
        found = seen(graph)
        if verdict.changes_names:
            happened = found != before
            if happened:
                verdict.apply()
            assert found == names_and_states(model), "neither before nor after"
        elif verdict.branch is None:
            happened = False
            assert found == before, "an operation without effect had one"
        else:
            after = {**before[2], verdict.branch: verdict.state}
            assert found in (before, (*before[:2], after)), "neither before nor after"
            state = found[2][verdict.branch]
            fresh = follow(graph, model, verdict.branch, state, sure=False)
            happened = state == verdict.state and bool(fresh)
            if happened and state != before[2][verdict.branch] and verdict.merged_parent is not None:
                known = model.distances(model.branches[verdict.branch].head)
                assert verdict.merged_parent in known, "a merge is visible and not in the history"
    return happened


def run_program(path, randomness, counts, seconds):
    """One graph through one program, with kills on the way."""
    with make_graph(path, SCHEMA) as graph:
        seed(graph)
        model = History(root_of(graph))
    worker, standby = Worker().start(path), Worker()
    ended = time.monotonic() + seconds
    try:
        for _ in range(OPERATIONS_OF_ONE_GRAPH):
            if time.monotonic() > ended:
                break
            operation = propose(model, randomness.choice)
            verdict = Verdict(model, operation)
            killing = randomness.random() < KILL_SHARE
            answer = worker.perform(
                operation, randomness.uniform(0, MOMENT_S_MAX) if killing else ANSWER_S_MAX
            )
            if answer is None:
                assert killing, f"no answer to {operation}"
                counts["killed"] += 1
                counts["happened"] += settle(path, model, verdict)
                worker, standby = standby.start(path), Worker()
                continue
            counts["answered"] += 1
            judge(path, model, verdict, answer, operation)
    finally:
        for each in (worker, standby):
            if each.process.poll() is None:
                each.process.kill()
                each.end()


def judge(path, model, verdict, answer, operation):
    """An answered operation has happened as the model says."""
    refusals = verdict.expected.get("refused")
    expected = refusals if isinstance(refusals, set) else {refusals}
    assert answer.get("refused") in expected, (operation, answer)
    verdict.apply()
    if verdict.branch is not None:
        with omnigraph.open_read_only(path, settings=FAST) as graph:
            assert read_state(graph, verdict.branch) == verdict.state, operation
            follow(graph, model, verdict.branch, verdict.state)


@pytest.mark.torture
@pytest.mark.timeout(SECONDS + 600)
def test_killed_branch_programs_are_before_or_after(tmp_path):
    number = int(os.environ.get("OMNIGRAPH_TORTURE_SEED", time.time_ns() % 2**32))
    print(f"\nseed {number}")
    randomness = random.Random(number)
    counts = Counter()
    ended = time.monotonic() + SECONDS
    while (left := ended - time.monotonic()) > 0 or counts["killed"] == 0:
        counts["graphs"] += 1
        run_program(tmp_path / f"g{counts['graphs']}", randomness, counts, max(left, 10))
    print(dict(counts))
    assert counts["happened"], "no kill came after the moment of truth"
    assert counts["happened"] < counts["killed"], "no kill came before it"
