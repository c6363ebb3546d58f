"""Many writers for a long time; afterwards the history is replayed on a model."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from graphs import make_graph, rows_of
from omnigraph.api.graph import Graph
from omnigraph.core.settings import Settings
from torture.writers_model import SCHEMA, Model, Refused

SECONDS = float(os.environ.get("OMNIGRAPH_TORTURE_SECONDS", "60"))
CHILD = Path(__file__).with_name("writers_child.py")
LOSSES = {"manifest_conflict", "key_conflict", "constraint_violation"}


def run_children(uri: str, place: Path, *, processes: int, threads: int) -> list[dict]:
    logs = [place / f"log{n}.jsonl" for n in range(processes)]
    children = [
        subprocess.Popen([sys.executable, str(CHILD), uri, str(n), str(threads), str(SECONDS), str(logs[n])])
        for n in range(processes)
    ]
    for child in children:
        assert child.wait(SECONDS * 3 + 120) == 0
    return [json.loads(line) for log in logs for line in log.read_text().splitlines()]


def replay(graph: Graph, entries: list[dict]) -> list[Model]:
    """The model after each commit of the chain; every acknowledged commit occurs exactly once in it."""
    history = list(reversed(graph.commits.list()))
    for parent, child in itertools.pairwise(history):
        assert child.parents == (parent.id,)
    acknowledged = {entry["commit"]: entry for entry in entries if entry.get("commit")}
    mutations = {c.id for c in history if c.operation == "mutation"}
    assert mutations <= set(acknowledged), "a commit nobody was told about"
    assert set(acknowledged) <= mutations, "an acknowledged commit is not in the history"
    # What the index reconciler publishes changes no row.
    assert {c.operation for c in history} <= {"init", "mutation", "ensure_indices", "optimize"}
    states = [Model()]
    for commit in history[1:]:
        model = states[-1].copy()
        if commit.operation != "mutation":
            states.append(model)
            continue
        entry = acknowledged[commit.id]
        counts = model.apply(entry["steps"], entry["ids"])
        assert list(counts) == entry["counts"], entry
        states.append(model)
    return states


def agrees(states: list[Model], entry: dict, first: int, last: int) -> bool:
    """Whether the model refuses the mutation for the same reason in some state it may have been checked in."""
    wanted = "key" if entry["kind"] == "key_conflict" else entry["rule"]
    for state in states[first : last + 1]:
        model = state.copy()
        try:
            model.apply(entry["steps"], [f"fresh{n}" for n in range(len(entry["steps"]))])
        except Refused as refused:
            if wanted == str(refused) or wanted in all_rules(state, entry["steps"]):
                return True
    return False


def all_rules(state: Model, steps: list) -> set[str]:
    """Every rule a mutation breaks; the engine reports the first in its own order."""
    model = state.copy()
    broken: set[str] = set()
    try:
        model.apply(steps, [f"fresh{n}" for n in range(len(steps))])
    except Refused as refused:
        broken.add(str(refused))
    for check in (
        lambda: _unique(model),
        lambda: _endpoints(model),
        lambda: _cardinality(model),
    ):
        broken |= check()
    return broken


def _unique(model: Model) -> set[str]:
    nicks = [nick for _, nick in model.persons.values() if nick is not None]
    return {"unique"} if len(nicks) != len(set(nicks)) else set()


def _endpoints(model: Model) -> set[str]:
    ends = [(s, t in model.persons) for s, t, _ in model.knows.values()]
    ends += [(s, t in model.companies) for s, t in model.works.values()]
    return {"endpoint"} if any(s not in model.persons or not there for s, there in ends) else set()


def _cardinality(model: Model) -> set[str]:
    sources = [source for source, _ in model.works.values()]
    return {"cardinality"} if len(sources) != len(set(sources)) else set()


def shown(graph: Graph) -> dict:
    return {
        name: {
            key: {k: v for k, v in row.items() if k not in {"id", "name"}}
            for key, row in rows_of(graph, name).items()
        }
        for name in ("Person", "Company", "Note", "Knows", "WorksAt")
    }


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("processes", "threads"), [(4, 4), (1, 16)])
def test_writers_agree_with_the_model(tmp_path: Path, processes: int, threads: int) -> None:
    make_graph(tmp_path / "g", SCHEMA, settings=Settings()).close()
    entries = run_children(str(tmp_path / "g"), tmp_path, processes=processes, threads=threads)
    outcomes = Counter(entry.get("kind", "won") for entry in entries)
    sys.stdout.write(f"\n{processes} processes x {threads} threads, {SECONDS:.0f} s: {dict(outcomes)}\n")
    with make_open(tmp_path / "g") as graph:
        states = replay(graph, entries)
        assert shown(graph) == states[-1].rows()
        place = {c.id: n for n, c in enumerate(reversed(graph.commits.list()))}
        for entry in entries:
            kind = entry.get("kind")
            if kind is None:
                continue
            assert kind in LOSSES, entry
            if kind != "manifest_conflict":
                assert agrees(states, entry, place[entry["before"]], place[entry["after"]]), entry
        report = graph.verify()
        assert report.ok, report.violations
        assert graph.recoveries() == ()


def make_open(path: Path) -> Graph:
    import omnigraph

    return omnigraph.open(path)
