"""How many files of the manifest one insert opens: as many after 200 commits as after 20."""

import sys
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import omnigraph
from graphs import FAST, run
from omnigraph.storage.layout import MANIFEST
from opened_files import run_told

SCHEMA = "node Person { name: String @key }"
DEPTHS = (20, 200)
SLACK = 2
INSERT = """
import sys, omnigraph
from omnigraph.core.settings import Settings
with omnigraph.open(sys.argv[1], settings=Settings(durability="os")) as graph:
    graph.mutate('query q() { insert Person { name: "one more" } }')
"""
READ = """
import sys, lance
lance.dataset(sys.argv[1] + "/__manifest").to_table()
"""


def opened(program: str, place: Path, scratch: Path) -> int:
    """How many files of the manifest a process opens."""
    done, paths = run_told([sys.executable, "-c", program, str(place)], place, scratch / "log")
    assert done.returncode == 0, done.stderr
    below = f"{place}/{MANIFEST}/"
    return sum(path.startswith(below) and Path(path).suffix in {".manifest", ".lance"} for path in paths)


def grown(place: Path, commits: int) -> omnigraph.Graph:
    graph = omnigraph.init(place, schema=SCHEMA, settings=FAST)
    graph.session.after_publish = None
    for number in range(commits):
        run(graph, f'insert Person {{ name: "p{number}" }}')
    return graph


@pytest.mark.cost
@pytest.mark.slow
@pytest.mark.parametrize("optimized", [False, True], ids=["as it grew", "optimized"])
def test_write_manifest_reads_flat_in_history_after_optimize(tmp_path: Path, *, optimized: bool) -> None:
    counts: list[int] = []
    for depth in DEPTHS:
        place = tmp_path / str(depth)
        with grown(place, depth) as graph:
            if optimized:
                graph.optimize()
        counts.append(opened(INSERT, place, tmp_path))
    shallow, deep = counts
    assert shallow > 0
    assert abs(deep - shallow) <= SLACK, counts


@pytest.mark.cost
@pytest.mark.slow
def test_write_manifest_reads_grow_without_optimize(tmp_path: Path) -> None:
    """A manifest that grew by rows instead of being written whole: the probe sees that reads grow."""
    counts: list[int] = []
    for depth in DEPTHS:
        place = tmp_path / str(depth)
        for number in range(depth):
            lance.write_dataset(pa.table({"n": [number]}), f"{place}/{MANIFEST}", mode="append")
        counts.append(opened(READ, place, tmp_path))
    shallow, deep = counts
    assert deep >= shallow + (DEPTHS[1] - DEPTHS[0])
