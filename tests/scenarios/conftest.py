"""What scenarios of loads share: a graph, an engine, and records that become a file and a load."""

import json
import os
from pathlib import Path

import pytest

from graphs import make_graph
from omnigraph.api.graph import Graph

os.environ.setdefault("OMNIGRAPH_SPARK_ARCHIVE", "use")


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request) -> str:
    return request.param


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g") as made:
        yield made


@pytest.fixture
def load(tmp_path: Path, graph: Graph, engine: str):
    """Loads records into the graph on the engine of this run."""

    def run_load(*records, mode: str = "append", into: Graph = graph, **named):
        source = tmp_path / "input.jsonl"
        source.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records))
        report = into.load(source, mode=mode, engine=engine, **named)
        assert report.engine == engine
        return report

    return run_load
