"""What two branches must have in common to be merged."""

import pytest

import omnigraph
from omnigraph.core.errors import MergeBaseGone
from omnigraph.core.settings import Settings

SCHEMA = "node Person { name: String @key  age: I32? }"


def test_merge_without_its_base_is_refused(tmp_path):
    """A branch merged into two others and deleted has taken along what they had in common."""
    with omnigraph.init(tmp_path / "g", schema=SCHEMA, settings=Settings(durability="os")) as graph:

        def run(statements, branch="main"):
            graph.mutate(f"query m() {{ {statements} }}", branch=branch)

        run('insert Person { name: "ann", age: 1 }')
        for name in ("left", "topic"):
            graph.branches.create(name)
        run('insert Person { name: "lea", age: 1 }', "left")
        run('insert Person { name: "mia", age: 1 }')
        run('delete Person where name = "ann"', "topic")
        graph.branches.merge("topic", into="left")
        graph.branches.merge("topic", into="main")
        run('insert Person { name: "ann", age: 1 }')
        graph.branches.delete("topic")
        before = graph.export()
        with pytest.raises(MergeBaseGone, match="was deleted"):
            graph.branches.merge("left", into="main")
        assert graph.export() == before
