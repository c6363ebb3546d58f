"""What a reader sees while others commit is the state of one commit, exactly."""

import copy
import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from graphs import make_graph
from model.programs import SCHEMA, seed
from model.reference import ModelGraph, run_reference
from omnigraph.catalog.build import compile_schema
from omnigraph.core.settings import Settings
from omnigraph.planning.compile import as_read, compile_query

CATALOG = compile_schema(SCHEMA)
FAST = Settings(durability="os")
COMMITS = 24
THREADS = 3

QUERIES = [
    'query q() { match { $a: A { k: "a0" } $a e $b } return { $b.k, $b.n } }',
    'query q() { match { $a: A { k: "a1" } $a e $b $b e $c } return distinct { $c } }',
    "query q() { match { $a: A $a e $b } return { $a.s, count($b) as c, sum($b.n) as t } }",
    "query q() { match { $a: A $a $e: e $b $e.w > 0 } return { $a.k, $b.k, $e.w } }",
    "query q() { match { $a: A not { $a f $b } } return { $a.k } }",
    'query q() { match { $a: A maybe { $a f $b } $a.s = "x" } return { $a.k, $b.k } }',
    "query q() { match { $a e $b $b e $c $a <e> $c } return { count($a) as c } }",
    "query q() { match { $c e $a $b e $c $a e $b not { $a f $d } } return { $a.k, $b.k, $c.k } }",
    "query q() { match { $a e $b $b e $c $c e $d $a.k != $c.k } return { $b.s, count($d) as c } }",
    "query q() { match { $a: A $b: A $a e $c $b <e> $c not { $a e $b } } return distinct { $a.n, $b.k } }",
]
PLANS = [as_read(compile_query(text, CATALOG)) for text in QUERIES]


def beginning() -> ModelGraph:
    people = {f"a{n}": {"k": f"a{n}", "n": n % 3, "s": "xy"[n % 2]} for n in range(6)}
    ties = [(f"a{n}", f"a{(n * 5 + 1) % 6}", {"w": n % 2}) for n in range(6)]
    return ModelGraph(
        nodes={"A": people, "B": {"b0": {"k": "b0", "n": 1}}},
        edges={"E": ties, "F": [("a0", "b0", {"w": 1})]},
    )


def program(first: ModelGraph) -> tuple[list[str], list[ModelGraph]]:
    """Mutations, and the graph after each: new and rewritten nodes, new edges, deleted edges and nodes."""
    mutations: list[str] = []
    states: list[ModelGraph] = []
    graph = copy.deepcopy(first)
    for number in range(COMMITS):
        graph = copy.deepcopy(graph)
        people, ties = graph.nodes["A"], graph.edges["E"]
        match number % 6:
            case 0 | 3:
                key = f"c{number}"
                people[key] = {"k": key, "n": number % 4, "s": "x"}
                ends = ("a0", key) if number % 2 else (key, "a1")
                ties.append((*ends, {"w": number}))
                text = (
                    f'insert A {{ k: "{key}", n: {number % 4}, s: "x" }}'
                    f' insert E {{ from: "{ends[0]}", to: "{ends[1]}", w: {number} }}'
                )
            case 1:
                people["a0"]["n"] = number
                text = f'update A set {{ n: {number} }} where k = "a0"'
            case 2:
                ties += [("a1", "a0", {"w": number}), ("a0", "a0", {"w": number})]
                text = (
                    f'insert E {{ from: "a1", to: "a0", w: {number} }}'
                    f' insert E {{ from: "a0", to: "a0", w: {number} }}'
                )
            case 4:
                graph.edges["E"] = [tie for tie in ties if tie[2]["w"] != number - 2]
                text = f"delete E where w = {number - 2}"
            case _:
                gone = f"c{number - 5}"
                del people[gone]
                graph.edges["E"] = [tie for tie in ties if gone not in tie[:2]]
                text = f'delete A where k = "{gone}"'
        mutations.append(f"query q() {{ {text} }}")
        states.append(graph)
    return mutations, states


class Observed:
    """Answers with the commit each was read at, collected by any number of threads."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, int, Counter]] = []

    def read(self, graph, number: int) -> None:
        rows = graph.query(QUERIES[number % len(QUERIES)])
        found = Counter(tuple(row.values()) for row in rows.to_dicts())
        self.answers.append((rows.commit_id, number % len(QUERIES), found))

    def check(self, states: dict[str, ModelGraph]) -> int:
        expected: dict[tuple[str, int], Counter] = {}
        for commit, number, found in self.answers:
            if (commit, number) not in expected:
                expected[commit, number] = Counter(run_reference(PLANS[number], states[commit], {}))
            assert found == expected[commit, number], (QUERIES[number], commit)
        return len({commit for commit, _, _ in self.answers})


@pytest.mark.model
def test_every_answer_is_that_of_its_commit_while_a_second_process_commits(tmp_path) -> None:
    first = beginning()
    mutations, after = program(first)
    file = tmp_path / "mutations.json"
    file.write_text(json.dumps(mutations), encoding="utf-8")
    observed = Observed()
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        graph.mutate(seed(first))
        states = {graph.commits.head().id: first}
        child = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "reading_child.py"), graph.uri, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            for number in range(len(QUERIES)):
                observed.read(graph, number)
            child.stdin.write("go\n")
            child.stdin.flush()
            number = 0
            while child.poll() is None:
                observed.read(graph, number)
                number += 1
            lines = child.stdout.read().splitlines()
        finally:
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()
        for line in lines:
            done, commit = line.split()
            states[commit] = after[int(done)]
        assert child.returncode == 0
        for number in range(len(QUERIES)):
            observed.read(graph, number)
        assert len(states) == COMMITS + 1
        # The first and the last state are always seen; what lies between depends on how fast both are.
        assert observed.check(states) >= 2
        for commit, state in states.items():
            for number, text in enumerate(QUERIES):
                rows = graph.query(text, at=commit).to_dicts()
                found = Counter(tuple(row.values()) for row in rows)
                assert found == Counter(run_reference(PLANS[number], state, {})), (text, commit)


@pytest.mark.model
def test_every_answer_is_that_of_its_commit_while_threads_read_and_one_writes(tmp_path) -> None:
    first = beginning()
    mutations, after = program(first)
    observed = Observed()
    stopped = threading.Event()
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        graph.mutate(seed(first))
        states = {graph.commits.head().id: first}
        failed: list[BaseException] = []

        def read(number: int) -> None:
            try:
                while not stopped.is_set():
                    observed.read(graph, number)
                    number += 1
            except BaseException as error:
                failed.append(error)

        readers = [threading.Thread(target=read, args=(number,)) for number in range(THREADS)]
        for reader in readers:
            reader.start()
        try:
            for text, state in zip(mutations, after, strict=True):
                graph.mutate(text)
                states[graph.commits.head().id] = state
        finally:
            stopped.set()
            for reader in readers:
                reader.join()
        assert failed == []
        for number in range(len(QUERIES)):
            observed.read(graph, number)
        assert observed.check(states) >= 2
