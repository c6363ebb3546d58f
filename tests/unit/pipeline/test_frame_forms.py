"""Frames of other libraries, and the types that they have for what is stored otherwise."""

import datetime as dt
import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from graphs import make_graph
from omnigraph.core.errors import BadRequest, LoadFormatError

SCHEMA = "node T { k: String @key  n: I64?  u: U64?  us: [U64]?  day: Date?  at: DateTime? }"


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g", SCHEMA) as made:
        yield made


def load(graph, frame, **named):
    graph.load_frames({"T": frame}, mode="append", engine="local", **named)
    return [json.loads(line)["data"] for line in graph.export().splitlines()]


class Stream:
    """Anything that gives an Arrow stream: the interface of Polars frames and DuckDB relations."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def test_an_arrow_stream_is_a_frame(graph):
    table = pa.table({"k": ["a", "b"], "n": [1, None]})
    assert [row["n"] for row in load(graph, Stream(table))] == [1, None]
    reader = pa.RecordBatchReader.from_batches(table.schema, table.replace_schema_metadata().to_batches())
    graph.load_frames({"T": reader}, mode="merge", engine="local")


def test_whole_floats_are_whole_numbers(graph):
    found = load(graph, pd.DataFrame({"k": ["a", "b"], "n": [5.0, None]}))
    assert [row["n"] for row in found] == [5, None]


@pytest.mark.parametrize("wrong", [5.5, float("inf"), 1e19])
def test_other_floats_are_refused_by_record(graph, wrong):
    with pytest.raises(LoadFormatError, match=r"T\.n"):
        load(graph, pa.table({"k": ["a", "b"], "n": [1.0, wrong]}))


def test_days_of_pandas_are_dates(graph):
    days = pd.to_datetime(["2026-01-31", None])
    found = load(graph, pd.DataFrame({"k": ["a", "b"], "day": days, "at": days}))
    assert [row["day"] for row in found] == ["2026-01-31", None]
    with pytest.raises(LoadFormatError, match=r"T\.day: '2026-01-31T10:00:00' is not a date"):
        load(graph, pd.DataFrame({"k": ["c"], "day": pd.to_datetime(["2026-01-31 10:00"])}))
    moment = pa.array([1_769_853_600_500], pa.timestamp("ms", "UTC"))
    with pytest.raises(LoadFormatError, match=r"T\.day: '2026-01-31T10:00:00\.5Z' is not a date"):
        load(graph, pa.table({"k": ["c"], "day": moment}))


def test_a_day_of_a_zone_is_the_day_there(graph):
    zone = pa.timestamp("us", "Asia/Tokyo")
    midnight = pa.array([dt.datetime(2026, 1, 30, 15, tzinfo=dt.UTC)], zone)
    assert load(graph, pa.table({"k": ["a"], "day": midnight}))[0]["day"] == "2026-01-31"


def test_numbers_of_64_bits_in_lists_of_dictionaries(graph):
    rows = [{"k": "a", "u": 2**64 - 1, "us": [2**63, 1]}, {"k": "b", "u": 1}]
    found = load(graph, rows)
    assert found[0]["u"] == 2**64 - 1
    assert found[0]["us"] == [2**63, 1]


def test_columns_of_frames_are_renamed_and_passed_over(graph):
    frame = pd.DataFrame({"code": ["a"], "n": [1], "note": ["x"]})
    assert load(graph, frame, rename={"code": "k"}, ignore_extra=True)[0]["k"] == "a"
    with pytest.raises(BadRequest, match="unknown field 'note'") as caught:
        load(graph, frame, rename={"code": "k"})
    assert "--ignore-extra" in (caught.value.hint or "")
