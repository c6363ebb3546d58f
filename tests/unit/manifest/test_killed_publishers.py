"""Publishers of three branches that die at random moments: nothing acknowledged is lost, nothing is doubled."""

import contextlib
import random
import subprocess
import sys
from pathlib import Path

import lance
import pytest

from omnigraph.core.ids import BranchName, show_branch
from omnigraph.manifest.store import ManifestStore
from unit.manifest import killed_child
from unit.manifest.ground import new_store, open_store

CHILDREN = 3


def run_and_kill(root: Path, log: Path, kills: int) -> None:
    """Keep three publishers going and kill one after another, each after some more publishes of any of them."""
    chance = random.Random(7)
    running: list[subprocess.Popen] = []
    started = 0
    try:
        for _ in range(kills):
            while len(running) < CHILDREN:
                started += 1
                command = [sys.executable, killed_child.__file__, str(root), str(started), str(log)]
                running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
            victim = running.pop(chance.randrange(CHILDREN))
            until = len(lines_of(log)) + chance.randrange(1, 60)
            while len(lines_of(log)) < until and victim.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    victim.wait(0.02)
            kill(victim)
    finally:
        for child in running:
            kill(child)


def lines_of(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def kill(child: subprocess.Popen) -> None:
    ended_by_itself = child.poll()
    child.kill()
    _, complaint = child.communicate(timeout=30)
    assert ended_by_itself is None, complaint


def stored_ids(root: Path, name: str) -> list[str]:
    return lance.dataset(str(root / name)).to_table()["graph_commit_id"].to_pylist()


def check_branch(store: ManifestStore, branch: BranchName | None, done: dict[str, list[str]]) -> None:
    history = store.commits.list(branch)
    assert [record.parent for record in history[:-1]] == [record.id for record in history[1:]]
    own = [record for record in history if record.home == branch]
    versions = [record.manifest_version for record in own]
    assert versions == list(range(versions[0], versions[0] - len(versions), -1)) if versions else True
    for record in own:
        if record.id in done:
            assert done[record.id] == [show_branch(branch), str(record.manifest_version)]
    # Every commit moved exactly one of the three tables by one.
    assert sum(entry.version for entry in store.current(branch).entries.values()) - 3 == len(history) - 1


@pytest.mark.parametrize(
    "kills", [pytest.param(5, marks=pytest.mark.crash), pytest.param(60, marks=pytest.mark.torture)]
)
def test_killed_publishers_lose_and_double_nothing(tmp_path: Path, kills: int) -> None:
    root, log = tmp_path / "graph", tmp_path / "log"
    store = new_store(root, durability="os")
    store.create_branch("a")
    store.create_branch("b/c", BranchName("a"))
    run_and_kill(root, log, kills)
    lines = [line.split() for line in lines_of(log)]
    tried = {line[1] for line in lines if line[0] == "tried"}
    done = {line[1]: line[2:] for line in lines if line[0] == "done" and len(line) == 4}
    assert done

    after = open_store(root, durability="os")
    after.commits.complete()
    ids = stored_ids(root, "_graph_commits.lance")
    actors = stored_ids(root, "_graph_commit_actors.lance")
    assert len(ids) == len(set(ids))
    assert len(actors) == len(set(actors))
    assert set(done) <= set(ids)
    first = after.commits.list()[-1].id
    assert set(ids) - tried == {first}
    assert set(actors) == set(ids) - {first}
    for branch in killed_child.BRANCHES:
        check_branch(after, branch, done)
