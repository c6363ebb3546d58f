"""A load with an idempotency key happens once, however often it is sent, and whoever died in between."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from graphs import make_graph, rows_of
from omnigraph.api.graph import Graph
from omnigraph.core.errors import BadRequest, IdempotencyMismatch, LoadNotFound
from omnigraph.core.failpoints import Callback, Raise, Sequence, Window, activate

SCHEMA = """
node Person { name: String @key  age: I32? }
node Note { text: String }
edge Knows: Person -> Person
"""
RECORDS = [
    {"type": "Person", "data": {"name": "ana"}},
    {"type": "Note", "data": {"text": "one"}},
    {"edge": "Knows", "from": "ana", "to": "ana"},
]
LOADER = """
import sys
import omnigraph
from omnigraph.core.settings import Settings
path, source = sys.argv[1:]
with omnigraph.open(path, settings=Settings(durability="os")) as graph:
    graph.load(source, mode="append", engine="local", actor="ines", idempotency_key="k1")
"""


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    with make_graph(tmp_path / "g", SCHEMA) as made:
        yield made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in RECORDS))
    return path


def load(graph: Graph, source: Any, key: str | None = "k1", **more: Any) -> Any:
    words = {"mode": "append", "engine": "local", "actor": "ines"} | more
    return graph.load(source, idempotency_key=key, **words)


def counts(graph: Graph) -> dict[str, int]:
    return {name: len(rows_of(graph, name)) for name in ("Person", "Note", "Knows")}


ONCE = {"Person": 1, "Note": 1, "Knows": 1}


def test_the_same_load_is_answered_by_the_first_commit(graph: Graph, source: Path) -> None:
    first, again = load(graph, source), load(graph, source)
    assert (first.repeated, again.repeated) == (False, True)
    assert again.commit == first.commit
    assert again.total_entities == 3
    assert [(each.name, each.inserted) for each in again.nodes] == [("Note", 1), ("Person", 1)]
    assert again.to_dict()["repeated"] is True
    assert "repeated" not in first.to_dict()
    graph.close()
    with omnigraph.open(graph.uri) as reopened:
        assert load(reopened, source).commit.id == first.commit.id
        assert counts(reopened) == ONCE
        assert reopened.resumable_loads() == []


def test_a_load_is_answered_after_a_cleanup(graph: Graph, source: Path) -> None:
    first = load(graph, source)
    graph.mutate('query n() { insert Note { text: "later" } }')
    graph.cleanup(keep=1)
    assert load(graph, source).commit.id == first.commit.id
    graph.close()
    with omnigraph.open(graph.uri) as reopened:
        assert load(reopened, source).commit.id == first.commit.id
        assert counts(reopened) == ONCE | {"Note": 2}


def test_frames_and_streams_are_loaded_once(graph: Graph, source: Path) -> None:
    frames = {"Note": [{"text": "a"}]}
    words: dict[str, Any] = {"mode": "append", "engine": "local", "idempotency_key": "frames"}
    first = graph.load_frames(frames, **words)
    assert graph.load_frames(frames, **words).commit.id == first.commit.id
    streamed = load(graph, io.BytesIO(source.read_bytes()))
    assert load(graph, io.BytesIO(source.read_bytes())).commit.id == streamed.commit.id
    assert counts(graph) == {"Person": 1, "Note": 2, "Knows": 1}


def test_another_load_with_the_key_is_refused(graph: Graph, source: Path, tmp_path: Path) -> None:
    first = load(graph, source)
    longer = tmp_path / "longer" / source.name
    longer.parent.mkdir()
    longer.write_text(source.read_text() + json.dumps({"type": "Note", "data": {"text": "more"}}) + "\n")
    for sources, more in ((longer, {}), (source, {"mode": "merge"}), (source, {"on_duplicate": "last"})):
        with pytest.raises(IdempotencyMismatch) as caught:
            load(graph, sources, **more)
        assert caught.value.details["graph_commit_id"] == first.commit.id
    with pytest.raises(IdempotencyMismatch):
        graph.mutate('query n() { insert Note { text: "x" } }', actor="ines", idempotency_key="k1")
    with pytest.raises(BadRequest, match="idempotency key"):
        load(graph, source, "")
    assert counts(graph) == ONCE


def test_another_actor_or_key_loads_again(graph: Graph, source: Path) -> None:
    loaded = [load(graph, source, mode="merge"), load(graph, source, "k2", mode="merge")]
    loaded.append(load(graph, source, actor="omar", mode="merge"))
    assert len({each.commit.id for each in loaded}) == 3


def test_a_load_that_made_its_branch_and_set_records_aside_is_answered(
    graph: Graph, source: Path, tmp_path: Path
) -> None:
    """The directory of refused records is taken by then; that is no reason to refuse the repetition."""
    source.write_text(source.read_text() + '{"type": "Person", "data": {}}\n')
    more: dict[str, Any] = {"branch": "side", "base": "main", "rejects": tmp_path / "rejects"}
    first = load(graph, source, **more)
    assert (first.branch_created, first.records_refused) == (True, 1)
    assert load(graph, source, **more).commit.id == first.commit.id


@pytest.mark.parametrize(
    "window",
    [
        Window.MUTATION_POST_STAGE_PRE_QUEUE,
        Window.MUTATION_POST_SIDECAR_PRE_COMMIT,
        Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER,
        Window.GRAPH_PUBLISH_AFTER_MANIFEST_COMMIT,
        Window.GRAPH_PUBLISH_BEFORE_COMMIT_APPEND,
    ],
)
def test_a_load_whose_outcome_nobody_knew_is_sent_again(graph: Graph, source: Path, window: Window) -> None:
    with activate(window, Raise()), pytest.raises(Exception, match=r".+"):
        load(graph, source)
    graph.close()
    with omnigraph.open(graph.uri) as reopened:
        again, once_more = load(reopened, source), load(reopened, source)
        assert once_more.repeated
        assert once_more.commit.id == again.commit.id
        assert counts(reopened) == ONCE
        assert reopened.verify().ok


def test_of_two_loads_with_one_key_one_happens(graph: Graph, source: Path) -> None:
    """The second one has staged and checked everything when the first lands: edges alone would be doubled."""
    landed: list[Any] = []

    def land_first(_: Window) -> None:
        landed.append(load(graph, source))

    with omnigraph.open(graph.uri) as other:
        with activate(Window.LOAD_POST_VERIFY, Sequence([Callback(land_first)])):
            report = load(other, source)
        assert report.repeated
        assert report.commit.id == landed[0].commit.id
        assert counts(other) == ONCE
        assert other.resumable_loads() == []


@pytest.mark.crash
@pytest.mark.parametrize(
    "window",
    [Window.LOAD_POST_VERIFY, Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER],
    ids=["before the commit", "after the tables moved"],
)
def test_a_killed_load_is_resumed_or_answered(graph: Graph, source: Path, window: Window) -> None:
    """Whoever resumes need not know whether it had landed."""
    done = subprocess.run(
        [sys.executable, "-c", LOADER, graph.uri, str(source)],
        env=os.environ | {"OMNIGRAPH_FAILPOINTS": f"{window.value}=kill"},
        check=False,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL
    (waiting,) = graph.resumable_loads()
    resumed = graph.load(resume=waiting.id, engine="local")
    assert resumed.commit is not None
    assert resumed.repeated == (window is not Window.LOAD_POST_VERIFY)
    assert graph.resumable_loads() == []
    assert load(graph, source).commit.id == resumed.commit.id
    again = graph.load(resume=waiting.id, actor="ines", idempotency_key="k1", engine="local")
    assert again.commit.id == resumed.commit.id
    with pytest.raises(LoadNotFound):
        graph.load(resume=waiting.id, engine="local")
    assert counts(graph) == ONCE
