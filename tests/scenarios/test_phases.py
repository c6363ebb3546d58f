"""The order of the phases of one write, as its events tell it."""

from pathlib import Path

import pytest

from graphs import hear, make_graph, run
from omnigraph.core.events import DurableOperation, Published, SidecarDeleted, SidecarWritten, TableCommitted
from omnigraph.core.settings import Settings

TYPES = [f"N{number}" for number in range(6)]
SCHEMA = "\n".join(f"node {name} {{ k: String @key }}" for name in TYPES)


@pytest.mark.parametrize("durability", ["full", "os"])
def test_tables_are_committed_one_after_the_other_in_key_order(tmp_path: Path, durability: str) -> None:
    with make_graph(tmp_path / "g", SCHEMA, settings=Settings(durability=durability)) as graph:
        with hear(everywhere=True) as heard:
            run(graph, " ".join(f'insert {name} {{ k: "a" }}' for name in reversed(TYPES)))
        phases = [
            event
            for event in heard.events
            if isinstance(event, SidecarWritten | TableCommitted | Published | SidecarDeleted)
        ]
        assert [type(event) for event in phases] == [
            SidecarWritten,
            *[TableCommitted] * len(TYPES),
            Published,
            SidecarDeleted,
        ]
        committed = [event.table_key for event in phases if isinstance(event, TableCommitted)]
        assert committed == [f"node:{name}" for name in TYPES]
        commits = [
            (event.path, event.moment) for event in heard.of(DurableOperation) if event.kind == "commit_table"
        ]
        # None begins before the one before it has ended.
        assert [moment for _, moment in commits] == ["before", "after"] * len(TYPES)
        assert [path for path, _ in commits[::2]] == [path for path, _ in commits[1::2]]
        assert graph.verify().ok
