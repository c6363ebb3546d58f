"""DataFrames into the graph and out of it."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from graphs import make_graph, rows_of, run, unchanged
from omnigraph.api.graph import Graph
from omnigraph.core.errors import (
    BadRequest,
    ConstraintViolation,
    LoadFormatError,
    OmnigraphError,
    TargetConflict,
    TypeNotFound,
)
from omnigraph.pipeline.load import load
from omnigraph.pipeline.spark.session import SparkRuntime, spark_runtime

KINDS = """
node Thing {
  k: String @key
  b: Bool?  i: I32?  j: I64?  u: U32?  w: U64?  f: F32?  g: F64?  d: Date?  t: DateTime?
  raw: Blob?  tags: [String]?  v: Vector(3)?
}
edge Link: Thing -> Thing { weight: F64? }
"""


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g", KINDS) as made:
        yield made


def test_frames_are_loaded_in_the_session_that_is_given(
    graph: Graph, runtime: SparkRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no frame belongs to one; the session stays open."""
    mine = runtime.spark.newSession()
    used: list[object] = []

    def noted(*given: Any, session: object = None, **named: Any) -> SparkRuntime:
        used.append(session)
        return spark_runtime(*given, session=session, **named)

    monkeypatch.setattr(load, "spark_runtime", noted)
    frames = {"Thing": [{"k": "a", "i": 1}, {"k": "b", "i": 2}], "Link": [{"from": "a", "to": "b"}]}
    report = graph.load_frames(frames, mode="append", spark=mine)
    assert used
    assert all(each is mine for each in used)
    assert report.engine == "spark"
    assert {name: row["i"] for name, row in rows_of(graph, "Thing").items()} == {"a": 1, "b": 2}
    assert len(rows_of(graph, "Link")) == 1
    assert mine.range(2).count() == 2


def test_spark_frames_become_one_commit(graph: Graph, runtime: SparkRuntime) -> None:
    spark = runtime.spark
    things = spark.createDataFrame(
        [
            (
                "a",
                True,
                1,
                2**40,
                2**32 - 1,
                Decimal(2**64 - 1),
                0.5,
                dt.date(2024, 1, 1),
                ["x"],
                [1.0, 2.0, 3.0],
            )
        ],
        "k string, b boolean, i int, j bigint, u bigint, w decimal(20,0), g double, d date, tags array<string>, "
        "v array<float>",
    )
    times = spark.sql("select 'b' as k, timestamp '2024-03-01 09:30:00.1239' as t, X'0102' as raw")
    links = spark.createDataFrame([("a", "b", 1.5)], "`from` string, `to` string, weight double")
    before = len(graph.commits.list())
    report = graph.load_frames(
        {"Thing": things.unionByName(times, allowMissingColumns=True), "Link": links}, mode="append"
    )
    assert report.engine == "spark"
    assert len(graph.commits.list()) == before + 1
    found = rows_of(graph, "Thing")
    assert found["a"] == {
        "id": "a", "k": "a", "b": True, "i": 1, "j": 2**40, "u": 2**32 - 1, "w": 2**64 - 1, "f": None, "g": 0.5,
        "d": "2024-01-01", "t": None, "raw": None, "tags": ["x"], "v": [1.0, 2.0, 3.0],
    }  # fmt: skip
    assert (found["b"]["t"], found["b"]["raw"]) == ("2024-03-01T09:30:00.123Z", "base64:AQI=")
    (link,) = rows_of(graph, "Link").values()
    assert (link["from"], link["to"], link["weight"]) == ("a", "b", 1.5)


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_pandas_arrow_and_rows(graph: Graph, engine: str, runtime: SparkRuntime) -> None:
    graph.load_frames({"Thing": pd.DataFrame({"k": ["a", "b"], "i": [1, 2]})}, mode="append", engine=engine)
    graph.load_frames(
        {"Thing": pa.table({"k": ["b"], "i": pa.array([3], pa.int64())}), "Link": [{"src": "a", "dst": "b"}]},
        mode="merge",
        engine=engine,
    )
    assert {key: row["i"] for key, row in rows_of(graph, "Thing").items()} == {"a": 1, "b": 3}
    assert len(rows_of(graph, "Link")) == 1


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_frames_are_checked_like_records(graph: Graph, engine: str, runtime: SparkRuntime) -> None:
    with unchanged(graph), pytest.raises(LoadFormatError) as refused:
        graph.load_frames({"Thing": [{"k": "a", "i": 2**31}]}, mode="append", engine=engine)
    assert "2147483648 is not an integer of I32" in str(refused.value)
    with unchanged(graph), pytest.raises(ConstraintViolation):
        graph.load_frames({"Link": [{"from": "a", "to": "b"}]}, mode="append", engine=engine)
    with unchanged(graph), pytest.raises(BadRequest):
        graph.load_frames({"Thing": [{"k": "a", "hue": 1}]}, mode="append", engine=engine)
    with unchanged(graph), pytest.raises(BadRequest):
        graph.load_frames({"Thing": [{"k": "a", "w": 2**64}]}, mode="append", engine=engine)


def test_an_overwrite_with_an_empty_spark_frame_leaves_no_rows(graph: Graph, runtime: SparkRuntime) -> None:
    graph.load_frames(
        {"Thing": [{"k": "a"}], "Link": [{"from": "a", "to": "a"}]}, mode="append", engine="local"
    )
    empty = runtime.spark.createDataFrame([], "k string")
    with unchanged(graph), pytest.raises(ConstraintViolation):
        graph.load_frames({"Thing": empty}, mode="overwrite")
    ends = runtime.spark.createDataFrame([], "`from` string, `to` string")
    report = graph.load_frames({"Thing": empty, "Link": ends}, mode="overwrite")
    assert (report.engine, report.records_read) == ("spark", 0)
    assert rows_of(graph, "Thing") == rows_of(graph, "Link") == {}


def test_a_type_as_a_frame_is_pinned_to_its_commit(graph: Graph, runtime: SparkRuntime) -> None:
    numbers = range(10)
    rows = pa.table(
        {
            "k": [f"k{n}" for n in numbers],
            "w": pa.array([2**64 - 1 - n for n in numbers], pa.uint64()),
            "u": list(numbers),
            "v": [[n, n, n] for n in numbers],
            "i": list(numbers),
        }
    )
    graph.load_frames({"Thing": rows, "Link": [{"from": "k0", "to": "k1"}]}, mode="append", engine="local")
    frame = graph.frames("Thing")
    run(graph, 'delete Thing where k = "k3"')
    assert frame.count() == 10
    assert graph.frames("Thing").count() == 9
    assert graph.frames("Thing", at=graph.commits.list()[1].id).count() == 10
    assert graph.frames("Thing", columns=["k"], where="i > 7").collect()[0].asDict() == {"k": "k8"}
    assert {row.w for row in frame.collect()} == {Decimal(2**64 - 1 - n) for n in range(10)}
    links = graph.frames("Link")
    joined = links.join(frame, links.src == frame.id)
    assert [row.dst for row in joined.collect()] == ["k1"]
    with pytest.raises(BadRequest):
        graph.frames("Thing", columns=["hue"])


def test_conditions_columns_and_branches(graph: Graph, runtime: SparkRuntime) -> None:
    rows = [{"k": f"k{n}", "i": n, "w": 2**64 - 1 - n, "t": n, "tags": [str(n % 2)]} for n in range(6)]
    graph.load_frames({"Thing": pa.Table.from_pylist(rows, pa.schema(
        [("k", pa.string()), ("i", pa.int32()), ("w", pa.uint64()), ("t", pa.timestamp("ms", tz="UTC")),
         ("tags", pa.list_(pa.string()))]
    ))}, mode="append", engine="local")  # fmt: skip
    graph.branches.create("side")
    run(graph, 'delete Thing where k = "k0"', branch="side")
    run(graph, 'insert Link { from: "k1", to: "k2", weight: 0.5 }', branch="side")

    def keys(where: str, **words) -> set[str]:
        return {row.k for row in graph.frames("Thing", columns=["k"], where=where, **words).collect()}

    assert keys("i >= 2.5 and not (i = 4)") == {"k3", "k5"}
    assert keys("i > 4 or i is null") == {"k5"}
    assert keys('tags contains "1" and k starts_with "k"') == {"k1", "k3", "k5"}
    assert keys("i < 2", branch="side") == {"k1"}
    assert keys("i < 2", at=graph.commits.head().id) == {"k0", "k1"}
    links = graph.frames("link", branch="side", where='from = "k1"', columns=["dst", "src"])
    assert [row.asDict() for row in links.collect()] == [{"dst": "k2", "src": "k1"}]
    for where in ("hue = 1", "i = 1 }", "i = 1 delete Link where weight > 0"):
        with pytest.raises(OmnigraphError):
            graph.frames("Thing", where=where)
    with pytest.raises(TypeNotFound):
        graph.frames("Thin")
    with pytest.raises(TargetConflict):
        graph.frames("Thing", branch="side", at="x")


def test_a_frame_of_an_empty_type(graph: Graph, runtime: SparkRuntime) -> None:
    assert graph.frames("Thing").count() == 0


def test_a_frame_whose_commit_a_cleanup_removed_says_so(graph: Graph, runtime: SparkRuntime) -> None:
    run(graph, 'insert Thing { k: "a", i: 1 }')
    run(graph, 'insert Thing { k: "b", i: 2 }')
    frame = graph.frames("Thing", spark=runtime.spark)
    assert frame.count() == 2
    run(graph, "delete Thing where i = 1")
    graph.optimize()
    graph.cleanup(keep=1)
    with pytest.raises(Exception, match=r"VersionReclaimed.*was removed by a cleanup"):
        frame.count()
    assert graph.frames("Thing", spark=runtime.spark).count() == 1
