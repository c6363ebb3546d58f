"""Export to files in this process: what is written loads back to an equal graph, whole or not at all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphs import FAST, hear, make_graph, run
from omnigraph.api.graph import Graph
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import BadRequest, Cancelled, IoFailure, TargetConflict, TypeNotFound
from omnigraph.core.events import Progress

KINDS = """
node Thing {
  k: String @key
  b: Bool?  i: I32?  j: I64?  u: U32?  w: U64?  f: F32?  g: F64?  d: Date?  t: DateTime?
  raw: Blob?  tags: [String]?  ns: [I64]?  ds: [Date]?  v: Vector(3)?  mood: enum(glad, sad)?
}
node Empty { k: String @key }
edge Link: Thing -> Thing { weight: F64?  note: String? }
"""

ROWS = [
    {"k": "plain"},
    {
        "k": 'quote " comma , \\ back\nline\r\ttab \x01 \u00e9 \U0001f600',
        "b": True, "i": -(2**31), "j": 2**63 - 1, "u": 2**32 - 1, "w": 2**64 - 1, "f": 0.1, "g": -1e300,
        "d": "0001-01-01", "t": "1969-12-31T23:59:59.999Z", "raw": "base64:AAEC/w==", "tags": ["", "a,b", 'c"d'],
        "ns": [-(2**63), 2**63 - 1], "ds": ["2024-02-29"], "v": [0.1, -0.0, 3e38], "mood": "sad",
    },
    {"k": "", "b": False, "g": -0.0, "f": 1e-45, "tags": [], "ns": [], "raw": "base64:", "t": "9999-12-31T23:59:59.999Z",
     "d": "9999-12-31", "w": 0, "u": 0},
    {"k": "numbers for the first day and moment", "d": -719_162, "t": -62_135_596_800_000},
]  # fmt: skip


def seed(graph: Graph, place: Path) -> None:
    records = [{"type": "Thing", "data": row} for row in ROWS]
    records += [
        {"edge": "Link", "from": "plain", "to": "", "data": {"weight": 0.25, "note": ""}},
        {"edge": "Link", "from": "", "to": ROWS[1]["k"], "data": {"id": "own"}},
    ]
    source = place / "seed.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    graph.load(source, mode="append", engine="local")


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g", KINDS) as made:
        seed(made, tmp_path)
        yield made


def reloaded(files: Path, place: Path, schema: str = KINDS) -> str:
    with make_graph(place, schema) as copy:
        copy.load(files, mode="append", engine="local")
        return copy.export()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz", "all.ndjson.zst", "lines", "cells", "columns"])
def test_what_is_written_loads_back(graph: Graph, tmp_path: Path, name: str) -> None:
    form = {"cells": "csv", "columns": "parquet"}.get(name)
    with hear() as heard:
        report = graph.export_to(tmp_path / name, format=form)
    assert reloaded(tmp_path / name, tmp_path / "copy") == graph.export()
    assert (report.engine, report.commit_id, report.branch) == ("local", graph.commits.head().id, "main")
    assert [(one.name, one.entity_kind, one.rows) for one in report.types] == [
        ("Empty", "node", 0),
        ("Thing", "node", 4),
        ("Link", "edge", 2),
    ]
    assert report.rows == 6
    files = list((tmp_path / name).iterdir()) if form or name == "lines" else [tmp_path / name]
    assert report.bytes == sum(path.stat().st_size for path in files if path.name != "_export.json")
    assert {(event.stage, event.done) for event in heard.of(Progress)} == {("Thing", 4), ("Link", 2)}
    assert not list(tmp_path.glob(".*"))


def test_one_file_per_type_and_what_it_says_about_itself(graph: Graph, tmp_path: Path) -> None:
    report = graph.export_to(tmp_path / "out", format="parquet")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["Empty.parquet", "Link.parquet", "Thing.parquet", "_export.json"]
    about = json.loads((tmp_path / "out" / "_export.json").read_text())
    assert about["graph_commit_id"] == report.commit_id
    assert about == {name: value for name, value in report.to_dict().items() if name != "target"}
    stored = pq.read_table(tmp_path / "out" / "Thing.parquet")
    assert stored.schema.field("w").type == pa.uint64()
    assert stored.schema.field("t").type == pa.timestamp("ms", tz="UTC")
    assert stored.column("id").to_pylist() == sorted(row["k"] for row in ROWS)
    assert pq.read_table(tmp_path / "out" / "Link.parquet").column_names[:3] == ["id", "from", "to"]


def test_csv_tells_null_from_empty_text(graph: Graph, tmp_path: Path) -> None:
    graph.export_to(tmp_path / "links.csv", types=["Link"])
    lines = (tmp_path / "links.csv").read_text().splitlines(keepends=True)
    assert lines[0] == "id,from,to,note,weight\n"
    assert '"plain","","",0.25\n' in "".join(lines)
    streamed = b"".join(graph.export_chunks(types=["Link"], format="csv"))
    assert streamed == (tmp_path / "links.csv").read_bytes()


@pytest.mark.slow
def test_branches_commits_and_selections(graph: Graph, tmp_path: Path) -> None:
    old = graph.commits.head().id
    graph.branches.create("side")
    run(graph, 'insert Thing { k: "new" }', branch="side")
    run(graph, 'delete Thing where k = "plain"')
    for number, (words, rows, branch) in enumerate(
        [({}, 3, "main"), ({"branch": "side"}, 5, "side"), ({"at": old}, 4, None)]
    ):
        report = graph.export_to(tmp_path / f"{number}.parquet", types=["Thing"], **words)
        assert (report.rows, report.branch) == (rows, branch)
        assert pq.read_metadata(tmp_path / f"{number}.parquet").num_rows == rows
        assert graph.export(types=["Thing"], **words).count("\n") == rows
    with pytest.raises(TypeNotFound):
        graph.export_to(tmp_path / "x.jsonl", types=["Thin"])
    with pytest.raises(TargetConflict):
        graph.export_to(tmp_path / "x.jsonl", branch="side", at=old)
    assert not (tmp_path / "x.jsonl").exists()


QUERY = "query q($k: String) { match { $t: Thing { k: $k } } return { $t.k, $t.w, $t.t as moment, $t.tags } }"


def test_a_query_result(graph: Graph, tmp_path: Path) -> None:
    params = {"k": ROWS[1]["k"]}
    rows = graph.query(QUERY, params)
    report = graph.export_to(tmp_path / "r.jsonl", query=QUERY, params=params)
    assert [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()] == rows.json_rows()
    assert (report.rows, report.engine, report.types[0].name) == (1, "local", "q")
    graph.export_to(tmp_path / "r.parquet", query=QUERY, params=params)
    assert pq.read_table(tmp_path / "r.parquet").to_pylist() == rows.to_dicts()
    graph.export_to(tmp_path / "r.csv", query=QUERY, params=params)
    assert (tmp_path / "r.csv").read_text().startswith("t.k,t.w,moment,t.tags\n")
    for words in ({"types": ["Thing"]}, {"engine": "spark"}):
        with pytest.raises(BadRequest):
            graph.export_to(tmp_path / "n.jsonl", query=QUERY, params=params, **words)
    with pytest.raises(BadRequest) as refused:
        graph.export_to(tmp_path / "folder", query=QUERY, params=params)
    assert "folder.jsonl" in str(refused.value.hint)
    assert not (tmp_path / "folder").exists()


def test_names_and_formats_that_contradict_each_other(graph: Graph, tmp_path: Path) -> None:
    for name, words in [
        ("x.csv", {"format": "parquet"}),
        ("x.csv", {}),
        ("x.parquet.gz", {"types": ["Thing"]}),
        ("x.parquet", {"types": ["Thing"], "engine": "spark"}),
        ("x", {"format": "avro"}),
        ("x", {"engine": "duck"}),
        ("x", {"params": {"a": 1}}),
    ]:
        with pytest.raises(BadRequest):
            graph.export_to(tmp_path / name, **words)
    with pytest.raises(BadRequest):
        graph.export_to("s3://bucket/x.jsonl")
    with pytest.raises(IoFailure):
        graph.export_to(tmp_path / "no" / "such" / "x.jsonl")
    assert not list(tmp_path.glob("*x*"))


@pytest.mark.parametrize("name", ["x.jsonl", "x"])
@pytest.mark.slow
def test_an_existing_target_is_refused_unless_told(graph: Graph, tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    graph.export_to(target)
    before = reloaded(target, tmp_path / "one")
    run(graph, 'delete Thing where k = "plain"')
    with pytest.raises(BadRequest) as refused:
        graph.export_to(target)
    assert "exists already" in str(refused.value)
    assert reloaded(target, tmp_path / "two") == before
    graph.export_to(target, overwrite=True)
    assert reloaded(target, tmp_path / "three") == graph.export() != before
    assert not list(tmp_path.glob(".*"))


def test_only_an_export_is_ever_replaced(graph: Graph, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "letter.txt").write_text("dear")
    for target in (precious, tmp_path / "letter.jsonl"):
        if target.suffix:
            target.mkdir()
        with pytest.raises(BadRequest):
            graph.export_to(target, overwrite=True)
    assert (precious / "letter.txt").read_text() == "dear"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["x.jsonl", "x"])
def test_a_cancelled_export_leaves_nothing(graph: Graph, tmp_path: Path, name: str) -> None:
    stop = Cancellation()
    stop.request()
    with pytest.raises(Cancelled):
        graph.export_to(tmp_path / name, cancel=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g", "seed.jsonl"]


KILLED = """
import os, sys, omnigraph
from omnigraph.core.events import Progress, listen
def die(event):
    if isinstance(event, Progress) and event.stage == "Link":
        os._exit(9)
with omnigraph.open_read_only(sys.argv[1]) as graph, listen(die):
    graph.export_to(sys.argv[2], format=sys.argv[3])
"""


@pytest.mark.crash
@pytest.mark.parametrize(("name", "form"), [("kb.jsonl", "jsonl"), ("kb", "csv")])
def test_a_killed_export_leaves_nothing_that_looks_complete(
    graph: Graph, tmp_path: Path, name: str, form: str
) -> None:
    target = tmp_path / "out" / name
    target.parent.mkdir()
    child = subprocess.run(
        [sys.executable, "-c", KILLED, graph.uri, str(target), form], check=False, env=os.environ.copy()
    )
    assert child.returncode == 9
    (left,) = target.parent.iterdir()
    assert left.name.startswith(f".{name}.")
    with make_graph(tmp_path / "copy", KINDS) as copy, pytest.raises(IoFailure):
        copy.load(target.parent, mode="append", engine="local")
    graph.export_to(target, format=form)
    assert reloaded(target.parent, tmp_path / "again") == graph.export()


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
thing = st.fixed_dictionaries(
    {
        "tags": st.none() | st.lists(text, max_size=3),
        "note": st.none() | text,
        "g": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "w": st.none() | st.integers(0, 2**64 - 1),
        "t": st.none() | st.integers(-(10**13), 10**14),
        "raw": st.none() | st.binary(max_size=6),
    }
)
GENERATED = (
    "node T { k: String @key  tags: [String]?  note: String?  g: F64?  w: U64?  t: DateTime?  raw: Blob? }"
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(text, thing, max_size=6))
@pytest.mark.slow
def test_generated_values_survive_every_format(tmp_path_factory: pytest.TempPathFactory, rows: dict) -> None:
    place = tmp_path_factory.mktemp("generated")
    with make_graph(place / "g", GENERATED, settings=FAST) as graph:
        if rows:
            table = pa.table(
                {
                    "k": pa.array(rows, pa.string()),
                    "tags": pa.array([row["tags"] for row in rows.values()], pa.list_(pa.string())),
                    "note": pa.array([row["note"] for row in rows.values()], pa.string()),
                    "g": pa.array([row["g"] for row in rows.values()], pa.float64()),
                    "w": pa.array([row["w"] for row in rows.values()], pa.uint64()),
                    "t": pa.array([row["t"] for row in rows.values()], pa.timestamp("ms", tz="UTC")),
                    "raw": pa.array([row["raw"] for row in rows.values()], pa.binary()),
                }
            )
            graph.load_frames({"T": table}, mode="append", engine="local")
        whole = graph.export()
        assert whole.count("\n") == len(rows)
        for name in ("t.jsonl", "T.csv", "T.parquet"):
            graph.export_to(place / name)
            assert reloaded(place / name, place / f"copy-{name}", GENERATED) == whole
