"""Export prints what JSON says, whatever the values are."""

import base64
import datetime as dt
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import make_graph, run
from omnigraph.catalog.build import compile_schema
from omnigraph.core.errors import TypeNotFound
from omnigraph.core.settings import Settings
from omnigraph.engine.entities import ordered
from omnigraph.engine.entities.lines import json_lines, object_lines
from omnigraph.engine.read.result import json_values

ALL = compile_schema(
    """
node All {
  k: String @key
  b: Bool?
  i: I32?  l: I64?  u: U32?  w: U64?  f: F32?  d: F64?
  day: Date?  at: DateTime?
  raw: Blob?
  tags: [String]?
  numbers: [I64]?
  v: Vector(3)?
}
edge Link: All -> All { note: String? }
"""
)
NODE, EDGE = ALL.nodes["All"], ALL.edges["Link"]

row = st.fixed_dictionaries(
    {
        "k": st.text(max_size=12),
        "b": st.none() | st.booleans(),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "l": st.none() | st.integers(-(2**63), 2**63 - 1),
        "u": st.none() | st.integers(0, 2**32 - 1),
        "w": st.none() | st.integers(0, 2**64 - 1),
        "f": st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
        "d": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "day": st.none() | st.dates(),
        "at": st.none() | st.datetimes(timezones=st.just(dt.UTC)),
        "raw": st.none() | st.binary(max_size=9),
        "tags": st.none() | st.lists(st.text(max_size=5), max_size=4),
        "numbers": st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
        "v": st.none()
        | st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
    }
)


def expected(values: dict) -> dict:
    shown = dict(values)
    if values["day"] is not None:
        shown["day"] = values["day"].isoformat()
    if values["at"] is not None:
        cut = values["at"].replace(microsecond=values["at"].microsecond // 1000 * 1000)
        shown["at"] = cut.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if values["raw"] is not None:
        shown["raw"] = "base64:" + base64.b64encode(values["raw"]).decode()
    return shown


@settings(max_examples=200, deadline=None)
@given(st.lists(row, min_size=1, max_size=5))
@pytest.mark.slow
def test_every_value_survives(rows: list[dict]) -> None:
    for each in rows:
        if each["at"] is not None:
            each["at"] = each["at"].replace(microsecond=each["at"].microsecond // 1000 * 1000)
    table = pa.Table.from_pylist([{"id": each["k"], **each} for each in rows], schema=NODE.arrow_schema)
    lines = json_lines(table, NODE).decode().split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(rows)
    for line, each in zip(lines, rows, strict=True):
        record = json.loads(line)
        assert list(record) == ["type", "data"]
        data = record["data"]
        assert list(data) == ["id", *sorted(each)]
        assert data.pop("id") == each["k"]
        for name, value in expected(each).items():
            assert data[name] == value, name


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(st.text(), st.text(), st.none() | st.text()), min_size=1, max_size=4))
def test_edges(rows: list) -> None:
    table = pa.Table.from_pylist(
        [{"id": f"e{n}", "src": s, "dst": d, "note": t} for n, (s, d, t) in enumerate(rows)],
        schema=EDGE.arrow_schema,
    )
    for line, (source, target, note) in zip(json_lines(table, EDGE).splitlines(), rows, strict=True):
        record = json.loads(line)
        assert list(record) == ["edge", "from", "to", "data"]
        assert (record["edge"], record["from"], record["to"]) == ("Link", source, target)
        assert record["data"]["note"] == note


def test_objects_of_any_rows() -> None:
    table = pa.table(
        {
            'a "b"': [1.5, float("nan"), float("inf"), float("-inf"), None, -0.0],
            "t": pa.array([None, 0, 1, -62_135_596_800_000, 5, 6], pa.timestamp("ms", tz="UTC")),
            "n": pa.array([[1], None, [], [None], [2, 3], [4]], pa.list_(pa.int64())),
        }
    )
    rows = [json.loads(line) for line in object_lines(table).splitlines()]
    assert [row['a "b"'] for row in rows] == [1.5, "NaN", "Infinity", "-Infinity", None, 0]
    assert [row["t"] for row in rows][:4] == [
        None,
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:00.001Z",
        "0001-01-01T00:00:00.000Z",
    ]
    assert [row["n"] for row in rows] == [[1], None, [], [None], [2, 3], [4]]
    assert object_lines(table.slice(0, 0)) == b""


KINDS = {
    pa.string(): st.text(max_size=5),
    pa.bool_(): st.booleans(),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.date32(): st.integers(-(2**31), 2**31 - 1),
    pa.timestamp("ms", tz="UTC"): st.integers(-(2**63), 2**63 - 1),
    pa.large_binary(): st.binary(max_size=5),
}
"""Every form a stored value has, with values only a column from elsewhere can hold."""


def column_of(kind: pa.DataType, values: list) -> pa.Array:
    if pa.types.is_date(kind):
        return pa.array(values, pa.int32()).cast(kind)
    return pa.array(values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(values, kind)


@pytest.mark.parametrize("shape", ["scalar", "list", "vector"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
@pytest.mark.slow
def test_values_and_lines_say_the_same(kind: pa.DataType, shape: str, data) -> None:
    width = {"scalar": 1, "list": 3, "vector": 2}[shape]
    elements = data.draw(st.lists(st.none() | KINDS[kind], min_size=4 * width, max_size=4 * width))
    column = column_of(kind, elements)
    if shape == "list":
        column = pa.ListArray.from_arrays(pa.array([0, 2, None, 2, 12], pa.int32()), column)
    elif shape == "vector":
        column = pa.FixedSizeListArray.from_arrays(column, 2, mask=pa.array([False, True, False, False]))
    for piece in (column, column.slice(1, 2), column.slice(4)):
        lines = [json.loads(line)["c"] for line in object_lines(pa.table({"c": piece})).splitlines()]
        values = json_values(pa.chunked_array([piece, piece]))
        assert values == lines + lines
        assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_no_rows_no_bytes() -> None:
    assert json_lines(NODE.arrow_schema.empty_table(), NODE) == b""


@pytest.mark.slow
def test_order_and_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "BATCH_ROWS_MAX", 3)
    with make_graph(tmp_path / "g") as graph:
        order = np.random.default_rng(5).permutation(10)
        for n in order:
            run(graph, f'insert Person {{ name: "p{n}" }}')
        run(graph, 'insert Company { name: "z" } insert Knows { from: "p1", to: "p2" }')
        run(graph, 'delete Person where name = "p5"')
        records = [json.loads(line) for line in graph.export().splitlines()]
        assert [r.get("type") or r["edge"] for r in records] == ["Company", *["Person"] * 9, "Knows"]
        people = [r["data"]["id"] for r in records if r.get("type") == "Person"]
        assert people == sorted(people)
        assert "p5" not in people
        with (tmp_path / "out").open("wb") as out:
            assert graph.export(out, types=["Knows", "Company"]) == ""
        chosen = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
        assert [r.get("type") or r["edge"] for r in chosen] == ["Company", "Knows"]
        with pytest.raises(TypeNotFound) as caught:
            graph.export_chunks(types=["Persn"])
        assert caught.value.details["candidates"] == ["Person"]


@pytest.mark.slow
def test_a_table_larger_than_a_run_is_sorted_through_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered, "RUN_BYTES_MAX", 2_000)
    monkeypatch.setattr(ordered, "BATCH_ROWS_MAX", 16)
    staging = tmp_path / "staging"
    names = [f"n\u00e9 {n:03}" for n in range(400)]
    shuffled = [names[n] for n in np.random.default_rng(3).permutation(len(names))]
    with make_graph(tmp_path / "g", settings=Settings(durability="os", merge_staging_dir=staging)) as graph:
        rows = pa.table({"name": shuffled, "age": pa.array(range(400), pa.int32())})
        graph.load_frames({"Person": rows}, mode="append", engine="local")
        ages = dict(zip(shuffled, range(400), strict=True))
        chunks = graph.export_chunks()
        head = next(chunks)
        assert len(list(staging.iterdir())) == 1
        records = [json.loads(line)["data"] for line in (head + b"".join(chunks)).splitlines()]
        assert [(record["id"], record["age"]) for record in records] == sorted(ages.items())
        assert not any(staging.iterdir())
        abandoned = graph.export_chunks()
        next(abandoned)
        abandoned.close()
        assert not any(staging.iterdir())
