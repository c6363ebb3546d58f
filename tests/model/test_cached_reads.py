"""Reads are the same at every commit whatever the caches hold: cold, warm, deleted, damaged, of another
version, evicted; while threads and processes commit. The reference evaluator says what is right.
"""

import copy
import json
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

import omnigraph
from graphs import forget_everything, make_graph
from model.programs import SCHEMA
from model.reference import ModelGraph, run_reference
from omnigraph.catalog.build import compile_schema
from omnigraph.core import limits
from omnigraph.core.settings import Settings
from omnigraph.engine import session
from omnigraph.engine.edges import adjacency
from omnigraph.engine.read import query
from omnigraph.engine.read.caches import ReadCaches
from omnigraph.engine.tables import cache_files, images, key_cache, key_files
from omnigraph.engine.tables.cache_work import BACKGROUND
from omnigraph.engine.tables.key_cache import KeyIndexCache
from omnigraph.maintenance import folding, reconciler
from omnigraph.maintenance.indices import FOLD_OPERATION, OPERATION
from omnigraph.planning.compile import as_read, compile_query

CATALOG = compile_schema(SCHEMA)
FAST = Settings(durability="os")

QUERIES = [
    "query q() { match { $a: A $a e $b } return { $a, $b, $b.n } }",
    'query q() { match { $a: A { k: "a1" } $b e $a } return { $b } }',
    'query q() { match { $a: A { k: "a2" } $a <e>{1,2} $b } return { $b, $b.n } }',
    "query q() { match { $a: A $a $x:e $b } return { $a, $x.w, $b } }",
    "query q() { match { $a: A $a f $b not { $a e $a } } return { $a, $b, $b.n } }",
    "query q() { match { $a: A $a e $b $b e $a } return { $a, $b } }",
    "query q() { match { $a: A $a e $b } return { $b.n, count($a) as c } }",
]
PLANS = [as_read(compile_query(text, CATALOG)) for text in QUERIES]


@pytest.fixture(autouse=True, params=["fragments as written", "fragments folded"])
def _small_is_large(request, monkeypatch):
    """Every structure is kept in files, every overlay is soon folded, few rows are read without columns.

    Once with the fragments the commits leave, once with fragments that are written as one again and again.
    """
    if request.param == "fragments folded":
        monkeypatch.setattr(folding, "SMALL_FRAGMENTS_MAX", 3)
        monkeypatch.setattr(reconciler.reconcile, "_uncovered_max", 3)
    monkeypatch.setattr(limits, "CACHED_ROWS_MIN", 1)
    monkeypatch.setattr(key_cache, "LISTED_FRAGMENTS_MIN", 1)
    monkeypatch.setattr(key_cache, "SAVED_AFTER_COMMITS", 3)
    monkeypatch.setattr(key_files, "TAIL_ROWS_MIN", 4)
    monkeypatch.setattr(adjacency, "FOLD_CHANGES_MIN", 3)
    monkeypatch.setattr(adjacency, "FOLD_SHARE", 0.2)
    monkeypatch.setattr(adjacency, "OVERLAY_SHARE_MAX", 2.0)
    monkeypatch.setattr(images, "SAMPLED_EXTENT_MIN", 1)
    forget_everything(monkeypatch)


class Program:
    """Random commits, done to a graph and to a model of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.model = ModelGraph(nodes={"A": {}, "B": {}}, edges={"E": [], "F": []})

    def first(self) -> str:
        """Enough rows that a commit is a small part of them."""
        lines = []
        for number in range(8):
            lines += [self._node("A", f"a{number}"), self._node("B", f"b{number}")]
        for _ in range(24):
            lines += [self._edge("E"), self._edge("F")]
        return " ".join(lines)

    def next(self) -> str:
        """Statements of the next commit."""
        form = self.random.choice(["edge", "edges", "node", "again", "cut", "remove"])
        if form == "edge":
            return self._edge("E")
        if form == "edges":
            return " ".join([self._edge("E"), self._edge("F"), self._edge("E")])
        if form == "node":
            return self._node("A", f"a{self.random.randrange(30)}")
        if form == "again":
            return self._node("A", self.random.choice(sorted(self.model.nodes["A"])))
        name = self.random.choice(sorted(self.model.nodes["A"]))
        if form == "cut":
            if all(a != name for a, _, _ in self.model.edges["E"]):
                return self._edge("E")
            self._drop("E", lambda a, b: a == name)
            return f'delete E where from = "{name}"'
        if len(self.model.nodes["A"]) < 4:
            return self._edge("F")
        del self.model.nodes["A"][name]
        self._drop("E", lambda a, b: name in (a, b))
        self._drop("F", lambda a, b: name == a)
        return f'delete A where k = "{name}"'

    def _node(self, kind: str, name: str) -> str:
        number = self.random.randrange(3)
        row = {"k": name, "n": number, "s": None} if kind == "A" else {"k": name, "n": number}
        self.model.nodes[kind][name] = row
        return f'insert {kind} {{ k: "{name}", n: {number} }}'

    def _edge(self, kind: str) -> str:
        a = self.random.choice(sorted(self.model.nodes["A"]))
        b = self.random.choice(sorted(self.model.nodes["A" if kind == "E" else "B"]))
        weight = self.random.randrange(3)
        self.model.edges[kind].append((a, b, {"w": weight}))
        return f'insert {kind} {{ from: "{a}", to: "{b}", w: {weight} }}'

    def _drop(self, kind: str, gone) -> None:
        self.model.edges[kind] = [each for each in self.model.edges[kind] if not gone(each[0], each[1])]

    def answers(self) -> list[Counter]:
        return [Counter(run_reference(plan, self.model, {})) for plan in PLANS]


def asked(graph, text: str, **where) -> Counter:
    columns = graph.query(text, **where).table.columns
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


def commit(graph, statements: str) -> str:
    return graph.mutate(f"query m() {{ {statements} }}").commit.id


def history(graph, program: Program, commits: int) -> dict[str, list[Counter]]:
    """Run a program; the right answers at each commit. Reads in between warm the caches."""
    expected = {commit(graph, program.first()): program.answers()}
    for _ in range(commits):
        made = commit(graph, program.next())
        expected[made] = program.answers()
        check(graph, {made: expected[made]})
    return expected


def check(graph, expected: dict[str, list[Counter]]) -> None:
    for commit_id, answers in expected.items():
        for text, answer in zip(QUERIES, answers, strict=True):
            assert asked(graph, text, at=commit_id) == answer, (commit_id, text)


def check_latest(graph, expected: dict[str, list[Counter]]) -> None:
    for text, answer in zip(QUERIES, list(expected.values())[-1], strict=True):
        assert asked(graph, text) == answer, text


@pytest.mark.model
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_commit_warm_reopened_and_without_files(tmp_path, monkeypatch, seed):
    path = tmp_path / "g"
    with omnigraph.init(path, schema=SCHEMA, settings=FAST) as graph:
        expected = history(graph, Program(seed), 12)
        check(graph, expected)
        BACKGROUND.drain(graph.session.root.identity)
        check_latest(graph, expected)
        assert graph.verify().ok
    assert len(list((path / "__cache").glob("*.cache"))) > 3
    for order in (1, -1):
        forget_everything(monkeypatch)
        with omnigraph.open(path, settings=FAST) as graph:
            check(graph, dict(list(expected.items())[::order]))
    for access in ("probe", "adjacency"):
        forget_everything(monkeypatch)
        with omnigraph.open(path, settings=Settings(durability="os", expand_access=access)) as graph:
            check_latest(graph, expected)
    forget_everything(monkeypatch)
    off = Settings(durability="os", cache_dir=Path("off"))
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    with omnigraph.open_read_only(path, settings=FAST) as graph:
        check(graph, expected)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
    forget_everything(monkeypatch)
    for file in (path / "__cache").iterdir():
        file.unlink()
    (path / "__cache").rmdir()
    with omnigraph.open(path, settings=off) as graph:
        check(graph, expected)
    assert not (path / "__cache").exists()


DAMAGES = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "a bit": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    "head": lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:],
}


@pytest.mark.model
def test_damaged_files_are_made_again(tmp_path, monkeypatch):
    path = tmp_path / "g"
    with omnigraph.init(path, schema=SCHEMA, settings=FAST) as graph:
        expected = history(graph, Program(7), 5)
        BACKGROUND.drain(graph.session.root.identity)
    whole = {file: file.read_bytes() for file in (path / "__cache").glob("*.cache")}
    kinds = {file.name.split("-")[0] for file in whole}
    assert kinds == {"keys", "tail", "ends", "neighbours", "incidence", "layout"}
    for name, damage in DAMAGES.items():
        for kind in [*sorted(kinds), ""]:
            for file, data in whole.items():
                file.write_bytes(damage(data) if file.name.startswith(kind) else data)
            forget_everything(monkeypatch)
            with omnigraph.open(path, settings=FAST) as graph:
                check_latest(graph, expected)
                assert graph.verify().ok, (name, kind)


@pytest.mark.model
def test_files_of_another_version_are_made_again(tmp_path, monkeypatch):
    path = tmp_path / "g"
    with monkeypatch.context() as patched:
        patched.setattr(cache_files, "CACHE_FORMAT", 99)
        with omnigraph.init(path, schema=SCHEMA, settings=FAST) as graph:
            expected = history(graph, Program(8), 5)
            BACKGROUND.drain(graph.session.root.identity)
    forget_everything(monkeypatch)
    with omnigraph.open(path, settings=FAST) as graph:
        check(graph, expected)
        assert query._caches.adjacency.loaded == 0


@pytest.mark.model
def test_a_new_process_uses_the_files_and_follows_what_came_since(tmp_path, monkeypatch):
    path = tmp_path / "g"
    program = Program(9)
    with omnigraph.init(path, schema=SCHEMA, settings=FAST) as graph:
        expected = history(graph, program, 2)
        BACKGROUND.drain(graph.session.root.identity)
    forget_everything(monkeypatch)
    with omnigraph.open(path, settings=FAST) as graph:
        check_latest(graph, expected)
        counts = query._caches.adjacency
        assert counts.loaded == 2
        assert counts.built == 0
        made = commit(graph, program._edge("E"))
        check(graph, {made: program.answers()})
        assert counts.built == 0


@pytest.mark.model
def test_branches_share_what_they_have_in_common(tmp_path, monkeypatch):
    path = tmp_path / "g"
    main = Program(4)
    with omnigraph.init(path, schema=SCHEMA, settings=FAST) as graph:
        expected = history(graph, main, 3)
        graph.branches.create("side")
        side = copy.deepcopy(main)
        side.random = random.Random(5)
        for program, name in [(main, "main"), (side, "side")] * 5:
            made = graph.mutate(f"query m() {{ {program.next()} }}", branch=name).commit.id
            expected[made] = program.answers()
            for text, answer in zip(QUERIES, expected[made], strict=True):
                assert asked(graph, text, branch=name) == answer
        check(graph, expected)
    forget_everything(monkeypatch)
    with omnigraph.open(path, settings=FAST) as graph:
        check(graph, expected)


@pytest.mark.model
def test_a_small_budget_changes_no_answer(tmp_path, monkeypatch):
    for size in (0, 2_000, 8_000):
        monkeypatch.setattr(session, "_key_indexes", KeyIndexCache(size // 2))
        monkeypatch.setattr(query, "_caches", ReadCaches(size))
        with omnigraph.init(tmp_path / f"g{size}", schema=SCHEMA, settings=FAST) as graph:
            expected = history(graph, Program(size), 6)
            check(graph, expected)
            assert graph.session.keys.nbytes() <= size // 2
            assert query._caches.derived.nbytes() <= size
            assert query._caches.columns.nbytes() <= size


@pytest.mark.model
def test_threads_read_while_another_commits(request, tmp_path):
    program = Program(11)
    seen: list[tuple[int, str, Counter]] = []
    failures: list[BaseException] = []
    done = threading.Event()
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        expected = {commit(graph, program.first()): program.answers()}

        def read(number: int) -> None:
            rng = random.Random(number)
            try:
                while not done.is_set():
                    at = rng.randrange(len(QUERIES))
                    rows = graph.query(QUERIES[at])
                    columns = [column.to_pylist() for column in rows.table.columns]
                    seen.append((at, rows.commit_id, Counter(zip(*columns, strict=True))))
            except BaseException as error:
                failures.append(error)

        readers = [threading.Thread(target=read, args=(number,)) for number in range(3)]
        for reader in readers:
            reader.start()
        for _ in range(30):
            made = commit(graph, program.next())
            expected[made] = program.answers()
        done.set()
        for reader in readers:
            reader.join()
        assert failures == []
        for record in reversed(graph.commits.list()):
            if record.operation in {OPERATION, FOLD_OPERATION}:  # shows the rows of the commit before it
                expected[record.id] = expected[record.parents[0]]
        folds = request.node.callspec.params["_small_is_large"] == "fragments folded"
        assert (FOLD_OPERATION in {record.operation for record in graph.commits.list()}) is folds
        for at, commit_id, answer in seen:
            assert answer == expected[commit_id][at], QUERIES[at]
        check(graph, dict(list(expected.items())[::10]))
    assert len({commit_id for _, commit_id, _ in seen}) > 1


CHILD = """
import json, sys
import omnigraph
from omnigraph.core.settings import Settings
path, statements = sys.argv[1], json.loads(sys.stdin.read())
with omnigraph.open(path, settings=Settings(durability="os")) as graph:
    for each in statements:
        print(graph.mutate(f"query m() {{ {each} }}").commit.id, flush=True)
"""


@pytest.mark.model
def test_reads_are_right_while_another_process_commits(tmp_path):
    path = tmp_path / "g"
    program = Program(12)
    with omnigraph.init(path, schema=SCHEMA, settings=FAST) as graph:
        first = commit(graph, program.first())
        answers = [program.answers()]
        statements = []
        for _ in range(12):
            statements.append(program.next())
            answers.append(program.answers())
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(statements))
        child.stdin.close()
        seen: list[tuple[int, str, Counter]] = []
        made = [first]
        for line in child.stdout:  # read at every commit, and between
            made.append(line.strip())
            for at, text in enumerate(QUERIES):
                rows = graph.query(text)
                columns = [column.to_pylist() for column in rows.table.columns]
                seen.append((at, rows.commit_id, Counter(zip(*columns, strict=True))))
        child.stdout.close()
        assert child.wait() == 0
        expected = dict(zip(made, answers, strict=True))
        for at, commit_id, answer in seen:
            assert answer == expected[commit_id][at], QUERIES[at]
        check(graph, expected)


def sessions(path, monkeypatch, seed: int, count: int) -> None:
    """Many short processes, one after the other: some read, some commit, some die before they close."""
    program, draw = Program(seed), random.Random(seed)
    with omnigraph.init(path, schema=SCHEMA, settings=FAST) as graph:
        expected = history(graph, program, 1)
    for _ in range(count):
        forget_everything(monkeypatch)
        opened = omnigraph.open if draw.random() < 0.8 else omnigraph.open_read_only
        with opened(path, settings=FAST) as graph, monkeypatch.context() as patched:
            if draw.random() < 0.5:
                check_latest(graph, expected)
            for _ in range(draw.choice([0, 1, 1, 2, 5]) if opened is omnigraph.open else 0):
                made = commit(graph, program.next())
                expected[made] = program.answers()
                if draw.random() < 0.4:
                    check_latest(graph, expected)
            if draw.random() < 0.3:
                past = draw.choice(list(expected))
                check(graph, {past: expected[past]})
            if draw.random() < 0.3:
                patched.setattr(KeyIndexCache, "save_rest", lambda *_: None)
                graph.close()
    forget_everything(monkeypatch)
    with omnigraph.open(path, settings=FAST) as graph:
        check(graph, dict(list(expected.items())[-6:]))
        assert graph.verify().ok


@pytest.mark.model
def test_short_processes_follow_each_other(tmp_path, monkeypatch):
    sessions(tmp_path / "g", monkeypatch, seed=1, count=12)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_short_processes_follow_each_other(tmp_path, monkeypatch, seed):
    sessions(tmp_path / "g", monkeypatch, seed, count=40)
