"""Values and files at the edge of what is allowed: stored exactly, or refused by name with nothing changed."""

import datetime as dt
import gzip
import json
import math
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import graphs
from omnigraph.core.errors import BadRequest, LoadFormatError, ParameterTypeError, ResourceLimit, SchemaError
from omnigraph.pipeline.input import csv_records

SCHEMA = """
node T {
  k: I32 @key
  f: F64?  s: String?  day: Date?  at: DateTime?
  numbers: [I32]?  days: [Date]?  moments: [DateTime]?
}
"""


@pytest.fixture
def graph(tmp_path):
    with graphs.make_graph(tmp_path / "g", SCHEMA) as made:
        yield made


def rows(graph) -> dict:
    answer = graph.query(
        "query q() { match { $t: T } return { $t.k as k, $t.f as f, $t.s as s, $t.day as day, $t.at as at } }"
    )
    return {row.pop("k"): row for row in answer}


def load(graph, tmp_path: Path, content: str | bytes, name: str = "T.jsonl", **words):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return graph.load(path, mode="merge", engine="local", **words)


def record(k: int, **values: str) -> str:
    """One line; the values are JSON texts."""
    return '{"type":"T","data":{' + ",".join(f'"{n}":{v}' for n, v in {"k": k, **values}.items()) + "}}\n"


def refused(graph, tmp_path: Path, content: str | bytes, match: str, name: str = "T.jsonl") -> None:
    with pytest.raises(LoadFormatError, match=match):
        load(graph, tmp_path, content, name)
    assert rows(graph) == {}


# --- JSON lines ---------------------------------------------------------------------------------------------


def test_minus_zero_is_kept_whatever_stands_beside_it(graph, tmp_path):
    load(graph, tmp_path, record(1, f="-0"))
    # A date as text and one as a number: no column holds both, so these lines are read one by one.
    load(graph, tmp_path, record(2, f="-0", day='"2024-01-01"') + record(3, f="-0", day="0"))
    assert [math.copysign(1, row["f"]) for row in rows(graph).values()] == [-1, -1, -1]


def test_a_number_of_thousands_of_digits_is_refused(graph, tmp_path):
    refused(graph, tmp_path, record(1, numbers="[" + "9" * 5000 + "]"), "T.numbers: the element inf is not")
    refused(graph, tmp_path, record(1, day="9" * 5000), "T.day: inf is not a date")


def test_a_byte_order_mark_belongs_to_the_encoding(graph, tmp_path):
    load(graph, tmp_path, b"\xef\xbb\xbf" + record(1, s='"\\ufeffx"').encode())
    assert rows(graph)[1]["s"] == "\ufeffx"
    assert load(graph, tmp_path, b"\xef\xbb\xbf").total_entities == 0


@pytest.mark.parametrize(
    "value", ['"0000-12-31"', "-719163", "2932897", "2147483647", '"10000-01-01"', '"2023-02-29"']
)
def test_a_date_lies_in_the_years_of_python(graph, tmp_path, value):
    refused(graph, tmp_path, record(1, day=value), "is not a date of the years 1 to 9999")
    refused(graph, tmp_path, record(1, days=f"[{value}]"), "is not a date of the years 1 to 9999")


@pytest.mark.parametrize(
    "value",
    ['"0001-01-01T00:00:00+14:00"', '"9999-12-31T23:59:59-01:00"', "-62135596800001", "9223372036854775807"],
)
def test_a_moment_lies_in_the_years_of_python(graph, tmp_path, value):
    refused(graph, tmp_path, record(1, at=value), "is not a date and time of the years 1 to 9999")


def test_the_first_and_the_last_moment_are_stored(graph, tmp_path):
    ends = record(1, day='"0001-01-01"', at='"0001-01-01"') + record(2, day="2932896", at="253402300799999")
    load(graph, tmp_path, ends)
    first, last = rows(graph).values()
    assert (first["day"], last["day"]) == (dt.date.min, dt.date.max)
    assert last["at"] == dt.datetime(9999, 12, 31, 23, 59, 59, 999_000, dt.UTC)
    assert first["at"] == dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    load(graph, tmp_path, graph.export())
    assert list(rows(graph).values()) == [first, last]


def test_what_is_set_aside_is_as_it_was_written(graph, tmp_path):
    lines = [
        '{"type":"T","data":{"k":1,"s":"\\ud800"}}',
        '{"type":"T","data":{"k":2,"f":NaN}}',
        '{"type":"T","data":{"k":3,"k":3}}',
        '{"type":"T","data":{"k":1.50}}',
    ]
    load(graph, tmp_path, "\n".join(lines), rejects=tmp_path / "rejects")
    kept = (tmp_path / "rejects" / "rejects.jsonl").read_text().splitlines()
    records = [json.loads(each, parse_constant=pytest.fail)["record"] for each in kept]
    assert records[:3] == lines[:3]
    assert kept[3].endswith(',"record":' + lines[3] + "}")


def test_rows_of_a_column_file_are_set_aside_as_json(graph, tmp_path):
    pq.write_table(
        pa.table({"k": [1, 2], "f": [math.inf, 0.5], "at": pa.array([0, 2**62], pa.timestamp("us"))}),
        tmp_path / "T.parquet",
    )
    graph.load(tmp_path / "T.parquet", mode="merge", engine="local", rejects=tmp_path / "rejects")
    kept = (tmp_path / "rejects" / "rejects.jsonl").read_text().splitlines()
    first, second = [json.loads(each, parse_constant=pytest.fail)["record"] for each in kept]
    assert (first["k"], first["f"]) == (1, "Infinity")
    assert second["k"] == 2


# --- CSV ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("k,s\n1,a,b\n", ":2: the record has 3 fields, the header has 2"),
        ("k,s\n1\n", ":2: the record has 1 field, the header has 2"),
        (b"k,s\n1,\xe9\n", ":2: the record is not valid UTF-8"),
        ('k,s\n1,"abc\n2,def\n', "never closed"),
        ('k,days\n1,"[""0000-01-01""]"\n', "of the years 1 to 9999"),
        ('k,numbers\n1,"[1,1' + "0" * 5000 + ']"\n', "is not a JSON array of I32"),
    ],
)
def test_a_broken_csv_file_is_named(graph, tmp_path, content, reason):
    refused(graph, tmp_path, content, rf"T\.csv.*{reason}", "T.csv")


def test_an_empty_csv_file_has_no_records(graph, tmp_path):
    assert load(graph, tmp_path, "", "T.csv").total_entities == 0


@pytest.mark.slow
def test_a_csv_record_may_be_longer_than_a_block(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(csv_records, "CHUNK_BYTES", 1000)
    texts = {1: "short", 2: "x" * 5000, 3: "short"}
    load(graph, tmp_path, "k,s\n" + "".join(f"{k},{text}\n" for k, text in texts.items()), "T.csv")
    assert {k: row["s"] for k, row in rows(graph).items()} == texts
    monkeypatch.setattr(csv_records, "RECORD_BYTES_MAX", 4000)
    with pytest.raises(ResourceLimit) as caught:
        graph.load(tmp_path / "T.csv", mode="overwrite", engine="local")
    assert "T.csv:3: 5,002 bytes in one record; at most 4,000 are allowed" in (caught.value.hint or "")
    report = graph.load(tmp_path / "T.csv", mode="overwrite", engine="local", rejects=tmp_path / "rejects")
    assert (report.records_read, report.records_refused, set(rows(graph))) == (3, 1, {1, 3})
    kept = json.loads((tmp_path / "rejects" / "rejects.jsonl").read_text())
    assert (kept["line"], kept["record"], kept["reasons"][0]["kind"]) == (
        3,
        "2," + texts[2],
        "resource_limit",
    )
    monkeypatch.setattr(csv_records, "RECORD_BYTES_MAX", 2000)
    with pytest.raises(ResourceLimit, match="bytes in one record") as caught:  # more than a reader holds
        graph.load(tmp_path / "T.csv", mode="overwrite", engine="local", rejects=tmp_path / "more")
    assert caught.value.resource == "record_bytes"


# --- columns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "column", "reason"),
    [
        ("numbers", pa.array([[1], [2**40]]), "the element 1099511627776 is not an integer of I32"),
        ("day", pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32()), "2147483647 is not a date"),
        ("day", pa.array([0, 2**63], pa.uint64()), "9223372036854775808 is not a date"),
        ("at", pa.array([0, 2**62], pa.timestamp("us")), "4611686018427387904 is not a date and time"),
        ("moments", pa.array([[0], [2**62]], pa.list_(pa.timestamp("ms"))), "is not a date and time"),
    ],
)
def test_a_column_value_that_does_not_fit_is_refused(graph, name, column, reason):
    with pytest.raises(LoadFormatError, match=rf"frame T:2: T\.{name}: .*{reason}"):
        graph.load_frames({"T": pa.table({"k": [1, 2], name: column})}, mode="append", engine="local")
    assert rows(graph) == {}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_moments_of_any_unit_are_cut_to_milliseconds(graph, unit):
    whole = pa.array([-1, 10**6], pa.timestamp(unit))
    table = pa.table({"k": [1, 2], "at": whole, "moments": pa.array([[each] for each in whole.to_pylist()])})
    graph.load_frames({"T": table}, mode="append", engine="local")
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    moments = [-1000 // per_second, 10**9 // per_second]
    stored = graph.query("query q() { match { $t: T } return { $t.at, $t.moments } order { $t.k } }").table
    assert stored.column(0).cast(pa.int64()).to_pylist() == moments
    assert stored.column(1).combine_chunks().flatten().cast(pa.int64()).to_pylist() == moments


def test_a_frame_without_column_types_is_refused(graph):
    for frame in (
        pd.DataFrame({"k": [1, 2], "s": ["a", 5]}),
        pa.table({"at": pa.array([2**62], pa.timestamp("s"))}),
    ):
        with pytest.raises(BadRequest, match="'T': the rows have no common column types"):
            graph.load_frames({"T": frame}, mode="append", engine="local")


@pytest.mark.parametrize("name", ["T.parquet", "T.csv.gz", "T.jsonl.gz", "T.jsonl.zst"])
def test_a_file_that_is_not_what_its_name_says_is_named(graph, tmp_path, name):
    refused(graph, tmp_path, b"something else", name.replace(".", r"\."), name)


def test_a_packed_file_that_ends_early_is_named(graph, tmp_path):
    whole = gzip.compress("".join(record(k) for k in range(1000)).encode())
    refused(graph, tmp_path, whole[:-100], r"T\.jsonl\.gz", "T.jsonl.gz")


# --- texts of the languages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["2024-01-01T10:00:00+05:60", "20240101T100000Z", "2024-W01-1"])
def test_one_reader_of_moments_serves_parameters_and_defaults(graph, tmp_path, text):
    with pytest.raises(ParameterTypeError, match="is not a date and time"):
        graph.mutate("query q($at: DateTime) { insert T { k: 1, at: $at } }", {"at": text})
    with pytest.raises(SchemaError, match="a moment is expected"):
        graphs.make_graph(tmp_path / "other", f'node N {{ k: I32 @key  at: DateTime @default("{text}") }}')
