"""A hundred clones beside a writer: each of them is whole and shows commits that were published."""

import os
from pathlib import Path

import pytest

from graphs import make_graph, run
from stores import Store
from travelling import SMALL, Writing, cloned, published

CLONES = int(os.environ.get("OMNIGRAPH_TORTURE_CLONES", "100"))


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_a_hundred_clones_beside_a_writer(tmp_path: Path) -> None:
    with make_graph(tmp_path / "source", SMALL) as graph:
        run(graph, 'insert P { k: "a" }')
        for name in ("b", "lazy"):
            graph.branches.create(name)
        with Writing(graph.uri) as writing:
            for number in range(CLONES):
                # New places and places that are brought up to date, with and without history.
                target = Store(str(tmp_path / f"clone{number % 10}"))
                cloned(Store(graph.uri), target, heads_only=number % 10 == 9)
                published(graph, target)
        assert writing.rounds > 10
