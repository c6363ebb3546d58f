"""What a write leaves that was cancelled after it had written files: those files, and nothing else."""

from pathlib import Path

import pytest

import omnigraph
from graphs import make_graph, run, unchanged
from omnigraph.api.graph import Graph
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import Cancelled
from omnigraph.core.failpoints import Callback, Window, activate
from omnigraph.core.settings import Settings

SCHEMA = "node P { name: String @key  n: I32? @index }\nnode Q { name: String @key }\nedge Likes: P -> Q"
AT_ONCE = Settings(durability="os", leftover_seconds=0)


def files(graph: Graph) -> set[str]:
    """All of them, without the projections of the commits, which are completed beside the writes."""
    root = Path(graph.uri)
    names = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return {name for name in names if not name.startswith("_graph_")}


def test_cancelled_during_stage_leaves_only_files(tmp_path: Path) -> None:
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        graph.session.after_publish = None
        run(graph, 'insert P { name: "a", n: 1 } insert Q { name: "b" } insert Likes { from: "a", to: "b" }')
        graph.branches.create("side")
        before, asked = files(graph), Cancellation()
        with (
            unchanged(graph),
            activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Callback(lambda _: asked.request())),
            pytest.raises(Cancelled),
        ):
            run(
                graph,
                'update P set { n: 2 } where name = "a" insert Q { name: "c" }'
                ' insert Likes { from: "a", to: "c" }',
                cancel=asked,
            )
        left = files(graph) - before
        assert left, "the write was cancelled before it had staged anything"
        assert all("/data/" in name or "/_deletions/" in name for name in left), left
        assert before <= files(graph)
        assert graph.verify(deep=True).ok
        rows = graph.export()
    with omnigraph.open(tmp_path / "g", settings=AT_ONCE) as graph:
        assert graph.pending() == graph.recoveries() == ()
        removed = {each.name for each in graph.cleanup(keep=100).removed}
        assert left <= removed
        assert not left & files(graph)
        assert graph.export() == rows
        run(graph, 'insert Q { name: "d" }')
        assert graph.verify(deep=True).ok
