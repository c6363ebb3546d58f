"""One server that writes, and others beside it that only read the same graph."""

import io
import json
from contextlib import ExitStack
from pathlib import Path

import pytest

import omnigraph
from graphs import FAST
from omnigraph.core.errors import OmnigraphError
from omnigraph.engine.tables.cache_work import BACKGROUND
from server.test_serve_command import serving

pytestmark = pytest.mark.slow

EDGES = 20_500
"""So many that their ends are kept in files between processes."""
SCHEMA = "node Stop { code: String @key }\nedge Next: Stop -> Stop\n"
FAR = "query far() { match { $a: Stop  $a next $b  $b next $c } return { $a.code, $c.code } }"
ADD = 'query add() { insert Stop { code: "new" } insert Next { from: "new", to: "s0" } }'


def mapped_caches(pid: int) -> set[str]:
    """The cache files of the graph that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[-1].rpartition("/")[2] for line in lines if "/__cache/" in line}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    place = tmp_path / "stops.omni"
    nodes = [{"type": "Stop", "data": {"code": f"s{n}"}} for n in range(EDGES + 1)]
    edges = [{"edge": "Next", "from": f"s{n}", "to": f"s{n + 1}"} for n in range(EDGES)]
    lines = "".join(json.dumps(each) + "\n" for each in [*nodes, *edges])
    with omnigraph.init(place, schema=SCHEMA, settings=FAST) as graph:
        graph.load(io.BytesIO(lines.encode()), mode="append", engine="local", format="jsonl")
        assert len(graph.query(FAR)) == EDGES - 1
        BACKGROUND.drain(graph.session.root.identity)
    return place


def test_read_only_servers_share_cache_files_and_follow_the_writer(store: Path) -> None:
    caches = {each.name for each in (store / "__cache").glob("*.cache")}
    assert any(name.startswith("ends-") for name in caches), caches
    files = {each for each in store.rglob("*") if each.is_file()}
    with ExitStack() as held:
        readers = [
            held.enter_context(serving(str(store), "--unauthenticated", "--read-only")) for _ in range(2)
        ]
        graphs = [held.enter_context(omnigraph.connect(url, graph="default")) for _, url in readers]
        for graph in graphs:
            assert len(graph.query(FAR)) == EDGES - 1
        # Both have the same pages: files of the graph, mapped and not copied. Nothing was written.
        shared = [mapped_caches(process.pid) & caches for process, _ in readers]
        assert shared[0] & shared[1]
        assert {each for each in store.rglob("*") if each.is_file()} == files
        for graph in graphs:
            with pytest.raises(OmnigraphError) as refused:
                graph.mutate(ADD)
            assert "read-only" in refused.value.message
        _, url = held.enter_context(serving(str(store), "--unauthenticated"))
        with omnigraph.connect(url, graph="default") as writer:
            head = writer.mutate(ADD).commit
        assert head is not None
        for graph in graphs:
            assert len(graph.query(FAR)) == EDGES
            assert graph.commits.head().id == head.id
