"""The order of the phases of one write, as its events tell it."""

from itertools import accumulate
from pathlib import Path

import pytest

from graphs import hear, make_graph, run
from omnigraph.core.events import DurableOperation, Published, SidecarDeleted, SidecarWritten, TableCommitted
from omnigraph.core.settings import Durability, Settings
from omnigraph.engine.write.commit import COMMITTED_SIDE_BY_SIDE_MIN
from omnigraph.engine.write.stage import STAGE_THREADS

TYPES = [f"N{number}" for number in range(6)]
SCHEMA = "\n".join(f"node {name} {{ k: String @key }}" for name in TYPES)


@pytest.mark.parametrize("durability", ["full", "os"])
@pytest.mark.parametrize("tables", [3, 6], ids=["one after the other", "two at once"])
def test_every_table_is_committed_between_the_sidecar_and_the_publish(
    tmp_path: Path, tables: int, durability: Durability
) -> None:
    names = TYPES[:tables]
    with make_graph(tmp_path / "g", SCHEMA, settings=Settings(durability=durability)) as graph:
        with hear(everywhere=True) as heard:
            run(graph, " ".join(f'insert {name} {{ k: "a" }}' for name in reversed(names)))
        phases = [
            event
            for event in heard.events
            if isinstance(event, SidecarWritten | TableCommitted | Published | SidecarDeleted)
        ]
        assert [type(event) for event in phases] == [
            SidecarWritten,
            *[TableCommitted] * tables,
            Published,
            SidecarDeleted,
        ]
        commits = [each for each in heard.of(DurableOperation) if each.kind == "commit_table"]
        committed = [event.table_key for event in phases if isinstance(event, TableCommitted)]
        assert sorted(committed) == [f"node:{name}" for name in names]
        if tables < COMMITTED_SIDE_BY_SIDE_MIN:
            assert committed == sorted(committed)
            assert [each.moment for each in commits] == ["before", "after"] * tables
        # Never more than two on their way, so that what a dead writer left is known but for two tables.
        on_the_way = accumulate(1 if each.moment == "before" else -1 for each in commits)
        assert max(on_the_way) <= STAGE_THREADS
        assert graph.verify().ok
