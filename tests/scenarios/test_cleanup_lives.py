"""Graphs that live at random and are cleaned meanwhile: what has to stay shows what it showed, byte for byte."""

import base64
import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from graphs import FAST, make_graph, rows_of, run
from omnigraph.api.graph import Graph
from omnigraph.core.errors import LoadNotResumable, OmnigraphError, SnapshotNotFound
from omnigraph.core.failpoints import Callback, InjectedFailure, Raise, Window, activate
from omnigraph.core.settings import Settings
from omnigraph.storage.layout import CHECKSUMS, CLEANUP
from stores import TABLE_STORES, Store

pytestmark = pytest.mark.slow

SCHEMA = (
    "node P { name: String @key  n: I32?  face: Blob? }\nnode Q { name: String @key }\nedge Likes: P -> Q"
)
AT_ONCE = Settings(durability="os", leftover_seconds=0)
RETENTIONS = (
    lambda keep: {"keep": keep},
    lambda keep: {"keep": keep, "older_than": timedelta(0)},
    lambda keep: {"older_than": timedelta(0)},
    lambda keep: {"older_than": timedelta(days=1)},
)
LOAD_DEATHS = (Window.LOAD_POST_STAGE, Window.LOAD_BETWEEN_CHECKS, Window.LOAD_POST_VERIFY)


def made(store: Store) -> Graph:
    graph = omnigraph.init(store.uri, schema=SCHEMA, settings=FAST, storage_options=store.storage_options)
    graph.session.after_publish = None
    return graph


def reopened(graph: Graph, settings: Settings = FAST) -> Graph:
    return omnigraph.open(graph.uri, settings=settings, storage_options=graph.session.root.storage_options)


def objects(graph: Graph) -> dict[str, int]:
    found = graph.session.adapter.sizes()
    return {
        name: size for name, size in found.items() if not name.startswith((CLEANUP, CHECKSUMS, "__lease"))
    }


def is_sound(graph: Graph) -> None:
    report = graph.verify(deep=True)
    assert (report.violations, report.corrupt) == ((), ())


@pytest.fixture
def graph(tmp_path):
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        graph.session.after_publish = None
        yield graph


def _disk_fails(_window: Window) -> None:
    raise OSError(5, "the disk fails")


class Life:
    """A graph that lives at random, and what every state of it must show."""

    def __init__(self, graph: Graph, place: Path, seed: int) -> None:
        self.graph, self.place = graph, place
        self.random = random.Random(seed)
        self.states: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.gone: set[str] = set()
        self.halves: dict[str, tuple[str, str]] = {}
        """Loads that died, by their ids: the branch and the row each would bring."""
        self.number = 0

    def step(self) -> None:
        act = self.random.choices(
            [
                self.insert,
                self.change,
                self.branch,
                self.tag,
                self.merge,
                self.drop,
                self.die,
                self.die_loading,
                self.resume,
                self.tidy,
                self.clean,
            ],
            [8, 4, 2, 1, 2, 1, 1, 2, 1, 1, 3],
        )[0]
        act()

    def name(self) -> str:
        self.number += 1
        return f"x{self.number}"

    def anywhere(self) -> str:
        return self.random.choice(self.graph.branches.list())

    def remember(self, branch: str) -> None:
        self.states[self.graph.commits.head(branch=branch).id] = self.graph.export(branch=branch)

    def insert(self) -> None:
        branch, name = self.anywhere(), self.name()
        large = base64.b64encode(name.encode() * 40_000).decode()
        blob = f', face: "base64:{self.random.choice(["QUJDRA==", large])}"' if self.number % 5 == 0 else ""
        run(
            self.graph,
            f'insert P {{ name: "{name}"{blob} }} insert Q {{ name: "{name}" }}'
            f' insert Likes {{ from: "{name}", to: "{name}" }}',
            branch=branch,
        )
        self.remember(branch)

    def change(self) -> None:
        branch = self.anywhere()
        names = sorted(rows_of(self.graph, "P", branch=branch))
        if names:
            name = self.random.choice(names)
            what = self.random.choice(
                [
                    f'delete P where name = "{name}"',
                    f'update P set {{ n: {self.number} }} where name = "{name}"',
                ]
            )
            run(self.graph, what, branch=branch)
            self.remember(branch)

    def branch(self) -> None:
        if len(self.graph.branches.list()) < 6:
            name = self.name()
            self.graph.branches.create(name, from_branch=self.anywhere())

    def tag(self) -> None:
        branch, name = self.anywhere(), self.name()
        self.graph.tags.create(name, at=branch)
        self.tags[name] = self.graph.export(branch=branch)

    def merge(self) -> None:
        source, target = self.anywhere(), self.anywhere()
        if source != target:
            self.graph.branches.merge(source, into=target, on_conflict="theirs")
            self.remember(target)

    def drop(self) -> None:
        branch = self.anywhere()
        if branch != "main":
            try:
                with activate(Window.BRANCH_DELETE_BEFORE_TABLE_CLEANUP, Raise()):
                    self.graph.branches.delete(branch)
            except OmnigraphError:
                return  # others need it

    def die(self) -> None:
        """A writer that stops half-way; the next open settles what it left."""
        branch, name = self.anywhere(), self.name()
        window = self.random.choice([Window.MUTATION_POST_STAGE_PRE_QUEUE, Window.MUTATION_POST_TABLE_COMMIT])
        with activate(window, Raise()), pytest.raises((InjectedFailure, OmnigraphError)):
            run(self.graph, f'insert P {{ name: "{name}" }} insert Q {{ name: "{name}" }}', branch=branch)
        with reopened(self.graph):
            pass

    def die_loading(self) -> None:
        """A load that stops half-way and can be resumed."""
        branch, name = self.anywhere(), self.name()
        file = self.place / f"{name}.jsonl"
        records = [{"type": of, "data": {"name": name}} for of in ("P", "Q")]
        file.write_text("".join(f"{json.dumps(each)}\n" for each in records))
        before = {each.id for each in self.graph.resumable_loads()}
        window = self.random.choice(LOAD_DEATHS)
        with activate(window, Callback(_disk_fails)), pytest.raises((OSError, OmnigraphError)):
            self.graph.load(file, mode="append", branch=branch, engine="local")
        (load,) = {each.id for each in self.graph.resumable_loads()} - before
        self.halves[load] = (branch, name)

    def resume(self) -> None:
        """Whatever cleanups did meanwhile, all that the load had staged is there."""
        branches = self.graph.branches.list()
        waiting = sorted(load for load, (branch, _) in self.halves.items() if branch in branches)
        if waiting:
            load = self.random.choice(waiting)
            branch, name = self.halves.pop(load)
            try:
                self.graph.load(resume=load, engine="local")
            except LoadNotResumable as refused:  # the branch got tables of its own since
                if "lies elsewhere" not in refused.message:
                    raise
                return
            assert name in rows_of(self.graph, "P", branch=branch)
            self.remember(branch)

    def tidy(self) -> None:
        self.graph.optimize(branch=self.anywhere())

    def clean(self) -> None:
        retention = self.random.choice(RETENTIONS)(self.random.randint(1, 4))
        if self.random.random() < 0.2:  # what nothing points at goes too, however young, and so do halves
            with reopened(self.graph, AT_ONCE) as impatient:
                self.clean_by(impatient, retention)
            self.halves.clear()
            assert self.graph.resumable_loads() == []
        else:
            self.clean_by(self.graph, retention)
        self.judge(retention.get("keep", 0))

    def clean_by(self, graph: Graph, retention: dict[str, Any]) -> None:
        dry = graph.cleanup(**retention, dry_run=True)
        before = objects(self.graph)
        assert {each.name: each.bytes for each in dry.fates if each.name in before} == before
        done = graph.cleanup(**retention)
        assert done.removed == dry.removed
        went = {each.name for each in done.removed}
        now = objects(self.graph)
        assert {n: s for n, s in now.items() if "_graph_commit" not in n} == {
            n: s for n, s in before.items() if n not in went and "_graph_commit" not in n
        }

    def judge(self, keep: int) -> None:
        """Every state that has to be there shows what it showed; what is gone says so."""
        with reopened(self.graph) as fresh:
            for branch in fresh.branches.list():
                history = fresh.commits.list(branch=branch)
                own = [each.id for each in history if each.branch == branch][:keep]
                for commit in own:
                    if commit in self.states and commit not in self.gone:
                        assert fresh.export(at=commit) == self.states[commit], (branch, commit)
            for tag, rows in self.tags.items():
                assert fresh.export(at=tag) == rows, tag
            for commit, rows in self.states.items():
                try:
                    assert fresh.export(at=commit) == rows
                except SnapshotNotFound:
                    self.gone.add(commit)
            is_sound(fresh)


@pytest.mark.parametrize("seed", range(4))
def test_lives_at_random_keep_every_state_they_should(graph, tmp_path, seed) -> None:
    life = Life(graph, tmp_path, seed)
    for _ in range(40):
        life.step()
    life.die_loading()
    life.clean()
    life.resume()
    life.clean()


@pytest.mark.s3
def test_a_life_at_random_on_an_object_store(tmp_path) -> None:
    (case,) = [each.values[0] for each in TABLE_STORES if hasattr(each, "values")]
    with made(case.make(tmp_path)) as graph:
        life = Life(graph, tmp_path, 11)
        for _ in range(20):
            life.step()
        life.die_loading()
        life.clean()
        life.resume()
