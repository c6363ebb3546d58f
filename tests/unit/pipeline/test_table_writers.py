"""The threads that write fragments: shared by the pieces of a process, and nothing is left when one fails."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from graphs import FAST, make_graph, unchanged
from omnigraph.core.errors import IoFailure
from omnigraph.pipeline.load import stage_split
from watched_staging import Meeting

TYPES = [f"N{number}" for number in range(4)]
SCHEMA = "\n".join(f"node {name} {{ k: String @key }}" for name in TYPES)


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """Two files, hence two pieces, with rows of every type."""
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path in paths:
        records = [{"type": name, "data": {"k": path.stem}} for name in TYPES]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return paths


def data_files(graph_dir: Path) -> set[Path]:
    return set(graph_dir.glob("nodes/*/data/*.lance"))


@pytest.mark.parametrize("writers", [1, 3])
def test_pieces_of_one_process_share_the_writers(
    tmp_path: Path, sources: list[Path], writers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = Meeting(writers)
    watched = meeting.held(stage_split.write_uncommitted_fragments)
    monkeypatch.setattr(stage_split, "write_uncommitted_fragments", watched)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with make_graph(tmp_path / "g", SCHEMA, settings=replace(FAST, load_concurrency=writers)) as graph:
        report = graph.load(sources, mode="append", engine="local")
    assert (report.splits, meeting.calls) == (2, 2 * len(TYPES))
    assert (meeting.most, len(meeting.threads)) == (writers, writers)


def test_never_more_writers_than_tables(
    tmp_path: Path, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = Meeting(len(TYPES))
    watched = meeting.held(stage_split.write_uncommitted_fragments)
    monkeypatch.setattr(stage_split, "write_uncommitted_fragments", watched)
    with make_graph(tmp_path / "g", SCHEMA, settings=replace(FAST, load_concurrency=64)) as graph:
        graph.load(sources, mode="append", engine="local")
    assert (meeting.most, len(meeting.threads)) == (len(TYPES), len(TYPES))


@pytest.mark.parametrize("failure", ["refused", "interrupted"])
def test_what_other_tables_wrote_is_removed_when_one_fails(
    tmp_path: Path, sources: list[Path], failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failing table waits until the others are being written, so that there is something to remove."""
    meeting = Meeting(len(TYPES))
    write = stage_split.write_uncommitted_fragments
    expected: type[BaseException] = KeyboardInterrupt if failure == "interrupted" else IoFailure

    def fails(root, store, handle, rows, **named):
        if handle.table_key == "node:N1":
            if failure == "refused":
                raise IoFailure("no space is left on the device")
            os.kill(os.getpid(), signal.SIGINT)
        return write(root, store, handle, rows, **named)

    monkeypatch.setattr(stage_split, "write_uncommitted_fragments", meeting.held(fails))
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        before = data_files(tmp_path / "g")
        with unchanged(graph), pytest.raises(expected):
            graph.load(sources[0], mode="append", engine="local")
        assert meeting.most == len(TYPES)
        assert data_files(tmp_path / "g") == before
