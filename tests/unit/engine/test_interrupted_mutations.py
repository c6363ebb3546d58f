"""Ctrl-C between any two lines of a mutation: what it says about the outcome is true, and the handle goes on."""

from collections import Counter

import pytest

import omnigraph
from graphs import make_graph
from interrupting import interrupted_at
from omnigraph.api import mutations as api
from omnigraph.engine.write import (
    afterwards,
    calls,
    commit,
    early,
    gathered,
    ground,
    mutate,
    parts,
    protocol,
    records,
    stage,
    syncs,
)
from omnigraph.manifest import publisher

pytestmark = pytest.mark.crash

DRIVING = {
    *(
        api,
        mutate,
        calls,
        gathered,
        stage,
        early,
        commit,
        protocol,
        ground,
        parts,
        records,
        syncs,
        afterwards,
    ),
    publisher,
}
"""Not what keeps locks: Python promises nothing for an interrupt between taking one and noting it."""
SCHEMA = "node P { k: String @key }\nnode Q { k: String @key }"
INSERT = "query add($k: String) { insert P { k: $k } insert Q { k: $k } }"


def shown(graph, key):
    counts = [
        len(
            graph.query(
                f"query q($k: String) {{ match {{ $p: {name} {{ k: $k }} }} return {{ $p.k }} }}", {"k": key}
            )
        )
        for name in ("P", "Q")
    ]
    assert counts in ([0, 0], [1, 1]), "half of a mutation is visible"
    return counts == [1, 1]


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.torture)])
def test_an_interrupt_at_any_line_tells_the_truth(tmp_path, step, in_turn):
    """`in_turn`: as beside another process, where a write first becomes the next before the lease."""
    outcomes = Counter()
    number = 0
    graph = make_graph(tmp_path / "g", SCHEMA)
    while True:
        number += step
        key = f"k{number}"
        graph.session.disturbed = in_turn
        stop = interrupted_at(number, lambda: graph.mutate(INSERT, {"k": key}), DRIVING, set())  # noqa: B023
        if stop is None:
            break
        said = " ".join(stop.notes)
        pending, visible = graph.pending(), shown(graph, key)
        if "complete and visible" in said:
            assert visible, stop.where
        elif "half-way" not in said:
            assert (pending, visible) == ((), False), stop.where
        outcomes[(said or "nothing, not begun").split("interrupted ")[-1].split(" ")[0]] += 1
        if pending:  # what must be undone is undone by an opening for writing, as the note says
            graph.close()
            graph = omnigraph.open(tmp_path / "g")
        graph.mutate(INSERT, {"k": f"after {number}"})
        assert graph.pending() == (), stop.where
        assert shown(graph, f"after {number}"), stop.where
        assert shown(graph, key) or not visible, stop.where
    assert graph.verify().ok
    graph.close()
    assert outcomes["before"] > 200 / step
    assert outcomes["half-way"] > 20 / step
    assert outcomes["after"] > 20 / step
