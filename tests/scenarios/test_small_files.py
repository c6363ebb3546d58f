"""No file may grow beyond a few bytes, as on a full device: every call says so in our words, and the graph goes on."""

import io
import json
import resource
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import omnigraph
from graphs import FAST, make_graph, run
from omnigraph.api.graph import Graph
from omnigraph.core.errors import IoFailure, RecoveryRequired

pytestmark = pytest.mark.slow

SCHEMA = "node P { k: String @key  n: I32? @index }\nedge E: P -> P"
LIMITS = (0, 300, 3000)
RECORDS = b"".join(
    json.dumps(each).encode() + b"\n"
    for n in range(50)
    for each in ({"type": "P", "data": {"k": f"r{n}", "n": n}}, {"edge": "E", "from": f"r{n}", "to": f"r{n}"})
)


@contextmanager
def files_up_to(size: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def load_file(graph: Graph, place: Path) -> None:
    graph.load(place / "in.jsonl", mode="merge", engine="local")


def load_stream(graph: Graph, _place: Path) -> None:
    graph.load(io.BytesIO(RECORDS), mode="merge", engine="local")


def merge(graph: Graph, _place: Path) -> None:
    graph.branches.merge("side", into="main")


CALLS: dict[str, Callable[[Graph, Path], object]] = {
    "mutation": lambda graph, _: run(graph, 'update P set { n: 7 } where k = "a"'),
    "load of a file": load_file,
    "load of a stream": load_stream,
    "merge": merge,
    "branch": lambda graph, _: graph.branches.create("new"),
    "first write on a branch": lambda graph, _: run(graph, 'insert P { k: "z" }', branch="side"),
    "tag": lambda graph, _: graph.tags.create("v1"),
    "revert": lambda graph, _: graph.revert(graph.snapshot().head),
    "optimize": lambda graph, _: graph.optimize(),
    "indexes": lambda graph, _: graph.ensure_indices(),
    "schema": lambda graph, _: graph.apply_schema(f"{SCHEMA}\nnode Q {{ k: String @key }}"),
    "clone": lambda graph, place: graph.clone(place / "clone"),
    "export": lambda graph, place: graph.export_to(place / "out.jsonl"),
    "export of a directory": lambda graph, place: graph.export_to(place / "out", format="parquet"),
    "baseline": lambda graph, place: graph.feed.baseline(place / "baseline.jsonl"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_file_that_may_not_grow_is_one_of_our_errors(tmp_path: Path, name: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(RECORDS)
    with make_graph(tmp_path / "graph", SCHEMA) as graph:
        run(graph, 'insert P { k: "a" } insert P { k: "b" } insert E { from: "a", to: "b" }')
        graph.branches.create("side")
        run(graph, 'insert P { k: "c" }', branch="side")
    refused: list[str] = []
    for limit in LIMITS:
        with omnigraph.open(tmp_path / "graph", settings=FAST) as graph:
            before = graph.export()
            try:
                with files_up_to(limit):
                    CALLS[name](graph, tmp_path)
            except IoFailure as error:
                refused.append(str(error))
                assert graph.export() == before
            except RecoveryRequired as error:  # the next opening settles it
                refused.append(str(error))
            else:
                break
    assert refused
    with omnigraph.open(tmp_path / "graph", settings=FAST) as graph:
        run(graph, 'insert P { k: "after" }')
        assert graph.verify(deep=True).violations == ()
