"""Cleanups beside processes that write, branch, merge, tag, read and are killed; locally and on an object store.

Every commit is remembered by a digest of what it showed when it was made. Whatever is left shows the same.
"""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from graphs import FAST, rows_of
from omnigraph.api.graph import Graph
from omnigraph.core.errors import RecoveryRequired, ResourceBusy, SnapshotNotFound
from omnigraph.core.failpoints import Window
from omnigraph.storage.layout import CHECKSUMS, CLEANUP
from scenarios.cleanup_child import digest
from stores import Store, local_store, s3_store

SCHEMA = (
    "node P { name: String @key  n: I32?  face: Blob? }\nnode Q { name: String @key }\nedge Likes: P -> Q"
)
CHILD = Path(__file__).with_name("cleanup_child.py")
SETTLING_OPENS = 60
ROUNDS = int(os.environ.get("OMNIGRAPH_CLEANUP_ROUNDS", "12"))


class Child:
    """A process beside the cleanups, and what it said."""

    def __init__(self, store: Store, what: str, seed: str, acts: int, **environment: str) -> None:
        told = [store.uri, json.dumps(store.storage_options), what, seed, str(acts)]
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), *told],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        self.said: list[dict[str, Any]] = []

    def hear(self, lines: int) -> None:
        """Wait for so many lines more, or for the end."""
        assert self.process.stdout is not None
        for _ in range(lines):
            line = self.process.stdout.readline()
            if not line.endswith("\n"):
                return
            self.said.append(json.loads(line))

    def end(self) -> int:
        assert self.process.stdout is not None
        whole = (line for line in self.process.stdout if line.endswith("\n"))
        self.said.extend(json.loads(line) for line in whole)
        return self.process.wait(300)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def close(self) -> None:
        self.process.kill()
        with self.process:
            pass


class Beside:
    """One graph, many processes on it, and what every state of it must show."""

    def __init__(self, store: Store, graph: Graph, seed: int) -> None:
        self.store, self.graph, self.seed = store, graph, seed
        self.random = random.Random(seed)
        self.states: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.rows: set[str] = set()
        self.removed = 0

    def round(self, number: int, acts: int) -> None:
        """Writers and a reader at work, one of them killed, cleanups meanwhile; then everything is judged."""
        dying = {"OMNIGRAPH_FAILPOINTS": self.random.choice(DEATHS)}
        writers = [
            Child(self.store, "write", f"s{self.seed}r{number}a", acts),
            Child(self.store, "write", f"s{self.seed}r{number}b", 10_000),
            Child(self.store, "write", f"s{self.seed}r{number}c", acts, **dying),
        ]
        reader = Child(self.store, "read", f"s{self.seed}r{number}", acts)
        children = [*writers, reader]
        try:
            for child in children:
                child.hear(2)
            for _ in range(2):
                self.clean_beside()
                writers[1].hear(2)
            writers[1].kill()
            assert writers[0].end() == reader.end() == 0, (writers[0].said[-1:], reader.said)
            assert writers[2].end() in {0, -signal.SIGKILL}
        finally:
            for child in children:
                child.close()
        self.remember(writers)
        self.clean_alone()

    def clean_beside(self) -> None:
        try:
            done = self.graph.cleanup(keep=self.random.randint(1, 4))
        except RecoveryRequired:  # of the one that died
            self.reopen()
            return
        except ResourceBusy:
            return
        went = {each.name for each in done.removed}
        self.removed += len(went)
        assert not went & self.graph.session.adapter.sizes().keys()

    def settle(self) -> None:
        """Wait until nothing is left of those that died: on an object store their lease lives on for a while."""
        for _ in range(SETTLING_OPENS):
            with opened(self.store) as graph:
                try:
                    graph.cleanup(keep=9, dry_run=True)
                except (RecoveryRequired, ResourceBusy):
                    continue
                return
        raise AssertionError("what dead writers left cannot be settled")

    def reopen(self) -> None:
        with opened(self.store):
            pass

    def remember(self, writers: list[Child]) -> None:
        for said in (each for writer in writers for each in writer.said):
            if "commit" in said and "digest" in said:
                assert self.states.setdefault(said["commit"], said["digest"]) == said["digest"]
            if "tag" in said:
                self.tags[said["tag"]] = said["digest"]
            if "row" in said:
                self.rows.add(said["row"])

    def clean_alone(self) -> None:
        """Nobody writes: what the dry run says is what goes, byte for byte."""
        self.settle()
        keep = self.random.randint(1, 4)
        with opened(self.store) as graph:
            kept = self.newest(graph, keep)
            dry = graph.cleanup(keep=keep, dry_run=True)
            before = objects(graph)
            assert {each.name: each.bytes for each in dry.fates if each.name in before} == before
            done = graph.cleanup(keep=keep)
            assert [(each.name, each.bytes) for each in done.removed] == [
                (each.name, each.bytes) for each in dry.removed
            ]
            went = {each.name for each in done.removed}
            left = {name: size for name, size in before.items() if name not in went}
            assert _unprojected(objects(graph)) == _unprojected(left)
            self.removed += len(went)
            self.judge(graph, kept)

    def newest(self, graph: Graph, keep: int) -> dict[str, str]:
        """What the newest states of each branch show, as far as no cleanup before removed them."""
        found: dict[str, str] = {}
        for branch in graph.branches.list():
            found[branch] = digest(graph, branch)
            own = [each.id for each in graph.commits.list(branch=branch) if each.branch == branch]
            for commit in own[:keep]:
                with suppress(SnapshotNotFound):
                    found[commit] = digest(graph, commit)
        return found

    def judge(self, graph: Graph, kept: dict[str, str]) -> None:
        for name, shown in (kept | self.tags).items():
            assert digest(graph, name) == shown, name
        for commit, shown in self.states.items():
            try:
                found = digest(graph, commit)
            except SnapshotNotFound:
                continue
            assert found == shown, commit
        assert self.rows <= rows_of(graph, "P").keys()
        report = graph.verify(deep=True)
        assert (report.violations, report.corrupt) == ((), ())


DEATHS = (
    f"{Window.MUTATION_POST_STAGE_PRE_QUEUE.value}=pass,pass,kill",
    f"{Window.MUTATION_POST_TABLE_COMMIT.value}=pass,pass,kill",
    f"{Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER.value}=pass,pass,kill",
    f"{Window.LOAD_POST_STAGE.value}=kill",
    f"{Window.LOAD_POST_VERIFY.value}=kill",
)


def opened(store: Store) -> Graph:
    graph = omnigraph.open(store.uri, settings=FAST, storage_options=store.storage_options)
    graph.session.after_publish = None
    return graph


def objects(graph: Graph) -> dict[str, int]:
    found = graph.session.adapter.sizes()
    return {
        name: size for name, size in found.items() if not name.startswith((CLEANUP, CHECKSUMS, "__lease"))
    }


def _unprojected(found: dict[str, int]) -> dict[str, int]:
    """Without the copies of the commit records, which any call may complete."""
    return {name: size for name, size in found.items() if "_graph_commit" not in name}


def live(store: Store, *, rounds: int, acts: int, seed: int) -> Beside:
    with omnigraph.init(
        store.uri, schema=SCHEMA, settings=FAST, storage_options=store.storage_options
    ) as graph:
        beside = Beside(store, graph, seed)
        for number in range(rounds):
            beside.round(number, acts)
        return beside


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(3))
def test_cleanups_beside_processes_for_a_long_time(tmp_path, seed) -> None:
    beside = live(local_store(tmp_path), rounds=ROUNDS, acts=12, seed=seed)
    assert beside.removed
    sys.stdout.write(f"{beside.removed} files went, {len(beside.states)} states were remembered\n")


@pytest.mark.torture
@pytest.mark.s3
def test_cleanups_beside_processes_on_an_object_store(tmp_path) -> None:
    beside = live(s3_store(tmp_path), rounds=max(1, ROUNDS // 4), acts=8, seed=7)
    assert beside.removed
    sys.stdout.write(f"{beside.removed} files went, {len(beside.states)} states were remembered\n")
