"""Ctrl-C between any two lines of a merge or an index build: what it says about the outcome is true."""

from collections import Counter

import pytest

import omnigraph
from graphs import make_graph
from interrupting import interrupted_at
from omnigraph.branching import merge, merge_writing
from omnigraph.engine.write import forks, ground, parts, protocol, records, syncs
from omnigraph.maintenance import indices
from omnigraph.maintenance.index_report import Indexed
from omnigraph.manifest import publisher

pytestmark = pytest.mark.crash

CARRYING = {protocol, ground, parts, records, syncs, forks, publisher}
SCHEMA = "node P { k: String @key  v: I32? @index }\nnode Q { k: String @key }\nnode R { k: String @key }"
INSERT = "query add($k: String) { insert P { k: $k, v: 1 } insert Q { k: $k } }"


def shown(graph, key, branch="main"):
    counts = [
        len(
            graph.query(
                f"query q($k: String) {{ match {{ $p: {name} {{ k: $k }} }} return {{ $p.k }} }}",
                {"k": key},
                branch=branch,
            )
        )
        for name in ("P", "Q")
    ]
    assert counts in ([0, 0], [1, 1]), "half of a write is visible"
    return counts == [1, 1]


def judge(stop, pending, visible):
    """Whether the note says no more than is so; returns what it says in one word."""
    said = " ".join(stop.notes)
    if "complete and visible" in said:
        assert visible, stop.where
    elif "half-way" not in said:
        assert (pending, visible) == ((), False), stop.where
    return (said or "nothing, not begun").split("interrupted ")[-1].split(" ")[0]


def reopened(graph, path):
    graph.close()
    return omnigraph.open(path)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [17, pytest.param(3, marks=pytest.mark.torture)])
@pytest.mark.parametrize("inherits", [False, True], ids=["into tables of its own", "into tables it inherits"])
def test_an_interrupt_at_any_line_of_a_merge_tells_the_truth(tmp_path, inherits, step):
    outcomes = Counter()
    path = tmp_path / "g"
    graph = make_graph(path, SCHEMA)
    number, stop = 0, True
    while stop is not None:
        number += step
        key, source, target = f"k{number}", f"s{number}", f"t{number}" if inherits else "main"
        graph.branches.create(source)
        if inherits:
            graph.branches.create(target)
            graph.mutate("query add($k: String) { insert R { k: $k } }", {"k": key}, branch=target)
        graph.mutate(INSERT, {"k": key}, branch=source)
        stop = interrupted_at(
            number,
            lambda: graph.branches.merge(source, into=target),  # noqa: B023
            {merge, merge_writing, *CARRYING},
            set(),
        )
        if stop is None:
            break
        pending, visible = graph.pending(), shown(graph, key, target)
        outcomes[judge(stop, pending, visible)] += 1
        if pending:
            graph = reopened(graph, path)
        graph.branches.merge(source, into=target)
        assert graph.pending() == (), stop.where
        assert shown(graph, key, target), stop.where
    assert graph.verify().ok
    graph.close()
    assert min(outcomes["before"], outcomes["half-way"]) > 100 / step, outcomes
    assert outcomes["after"] >= 15 // step, outcomes


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [17, pytest.param(3, marks=pytest.mark.torture)])
def test_an_interrupt_at_any_line_of_an_index_build_tells_the_truth(tmp_path, step):
    outcomes = Counter()
    path = tmp_path / "g"
    graph = make_graph(path, SCHEMA)
    number, stop = 0, True
    while stop is not None:
        number += step
        graph.mutate(INSERT, {"k": f"k{number}"})
        head = graph.snapshot().head

        def build():
            with indices.WriteCourse(indices.BUILD) as course:
                indices.ensure_indices(graph.session, None, work=indices.IndexWork.EXTENDED, course=course)  # noqa: B023

        stop = interrupted_at(number, build, {indices, *CARRYING}, set())
        if stop is None:
            break
        pending, visible = graph.pending(), graph.snapshot().head != head
        outcomes[judge(stop, pending, visible)] += 1
        graph = reopened(graph, path) if pending else graph
        indices.ensure_indices(graph.session, None, work=indices.IndexWork.EXTENDED)
        assert graph.pending() == (), stop.where
        assert shown(graph, f"k{number}"), stop.where
        assert all(isinstance(each.coverage, Indexed) for each in graph.indexes(types=["P"]) if each.declared)
    assert graph.verify().ok
    graph.close()
    assert min(outcomes["before"], outcomes["half-way"]) > 100 / step, outcomes
    assert outcomes["after"] >= 15 // step, outcomes
