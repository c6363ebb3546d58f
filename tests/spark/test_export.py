"""Export through Spark tasks: the same rows as in process, pinned to one commit, whole or not at all."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from graphs import make_graph, run
from omnigraph.api.graph import Graph
from omnigraph.core.errors import InternalError, OmnigraphError
from omnigraph.core.settings import Settings
from omnigraph.pipeline.output import export
from omnigraph.pipeline.output import sinks as files
from omnigraph.pipeline.spark.session import SparkRuntime

SCHEMA = """
node Thing { k: String @key  w: U64?  f: F32?  t: DateTime?  raw: Blob?  tags: [String]?  v: Vector(3)? }
node Empty { k: String @key }
edge Link: Thing -> Thing { weight: F64? }
"""
ROUNDS, EACH = 4, 25


@pytest.fixture
def graph(tmp_path: Path):
    """Several fragments, some with deleted rows."""
    with make_graph(tmp_path / "g", SCHEMA) as made:
        for number in range(ROUNDS):
            keys = [f"k{number}-{n:02} \u00e9" for n in range(EACH)]
            things = pa.table(
                {
                    "k": keys,
                    "w": pa.array([2**64 - 1 - n for n in range(EACH)], pa.uint64()),
                    "f": pa.array([n / 3 for n in range(EACH)], pa.float32()),
                    "t": pa.array(range(EACH), pa.timestamp("ms", tz="UTC")),
                    "raw": pa.array([bytes([n]) if n % 3 else None for n in range(EACH)], pa.binary()),
                    "tags": [[str(n)] * (n % 3) if n % 5 else None for n in range(EACH)],
                    "v": [[n, n, n] if n % 2 else None for n in range(EACH)],
                }
            )
            links = pa.table({"from": keys, "to": keys[::-1], "weight": [n / 7 for n in range(EACH)]})
            made.load_frames({"Thing": things, "Link": links}, mode="append", engine="local")
        run(made, 'delete Thing where k = "k1-03 \u00e9"')
        yield made


def sorted_lines(text: str) -> list[str]:
    return sorted(text.splitlines())


def reloaded(path: Path, place: Path) -> str:
    with make_graph(place, SCHEMA) as copy:
        copy.load(path, mode="append", engine="local")
        return copy.export()


@pytest.mark.parametrize("name", ["all.jsonl", "lines", "cells", "columns"])
def test_both_engines_write_the_same_rows(
    graph: Graph, tmp_path: Path, runtime: SparkRuntime, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(export, "PART_ROWS_MAX", 2 * EACH)
    form = {"cells": "csv", "columns": "parquet"}.get(name)
    report = graph.export_to(tmp_path / name, format=form, engine="spark")
    assert reloaded(tmp_path / name, tmp_path / "copy") == graph.export()
    assert report.engine == "spark"
    assert {one.name: one.rows for one in report.types} == {"Empty": 0, "Thing": 99, "Link": 98}
    if name == "all.jsonl":
        assert sorted_lines((tmp_path / name).read_text()) == sorted_lines(graph.export())
    else:
        by_name = {one.name: one.files for one in report.types}
        ending = form or "jsonl"
        assert by_name["Thing"] == (f"Thing.00000.{ending}", f"Thing.00001.{ending}")
        found = {path.name for path in (tmp_path / name).iterdir()}
        assert found == {"_export.json", *(file for each in by_name.values() for file in each)}
        again = graph.export_to(tmp_path / "again", format=form, engine="local")
        assert [(one.name, one.rows) for one in again.types] == [(one.name, one.rows) for one in report.types]
    assert not list(tmp_path.glob(".*"))


def test_one_csv_file_has_one_header(graph: Graph, tmp_path: Path, runtime: SparkRuntime) -> None:
    graph.export_to(tmp_path / "Thing.csv", types=["Thing"], engine="spark")
    lines = (tmp_path / "Thing.csv").read_text().splitlines()
    assert [line for line in lines if line.startswith("id,")] == [lines[0]] == ["id,f,k,raw,t,tags,v,w"]
    assert len(lines) == 100


def test_size_chooses_the_engine(graph: Graph, tmp_path: Path, runtime: SparkRuntime) -> None:
    few = Settings(durability="os", bulk_rows_in_process_max=98)
    small = Settings(durability="os", bulk_bytes_in_process_max=100)
    from omnigraph.api.graph import open_read_only

    for number, (settings, types, engine) in enumerate(
        [
            (few, ["Link"], "local"),
            (few, ["Thing"], "spark"),
            (small, ["Link"], "spark"),
            (small, ["Empty"], "local"),
        ]
    ):
        with open_read_only(graph.uri, settings=settings) as reader:
            assert reader.export_to(tmp_path / f"{number}.jsonl", types=types).engine == engine
    with open_read_only(graph.uri, settings=few) as reader:
        assert reader.export_to(tmp_path / "one.parquet", types=["Thing"]).engine == "local"


def test_a_past_commit(graph: Graph, tmp_path: Path, runtime: SparkRuntime) -> None:
    before = graph.commits.list()[1].id
    report = graph.export_to(tmp_path / "old", at=before, types=["Thing"], engine="spark")
    assert (report.rows, report.commit_id, report.branch) == (100, before, None)
    assert json.loads((tmp_path / "old" / "_export.json").read_text())["graph_commit_id"] == before


def test_a_task_that_fails_leaves_nothing(
    graph: Graph, tmp_path: Path, runtime: SparkRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(table_type, location, branch, version, fragments, rows, batch_rows):
        return files.Part(table_type, location, branch, version, fragments, rows + 1, batch_rows)

    monkeypatch.setattr(export, "Part", too_many)
    with pytest.raises(InternalError):
        graph.export_to(tmp_path / "out", engine="spark")
    monkeypatch.undo()
    data = next((tmp_path / "g" / "nodes").rglob("data/*.lance"))
    content = data.read_bytes()
    data.write_bytes(content[: len(content) // 2])
    try:
        with pytest.raises(OmnigraphError):
            graph.export_to(tmp_path / "out", engine="spark")
    finally:
        data.write_bytes(content)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g"]
