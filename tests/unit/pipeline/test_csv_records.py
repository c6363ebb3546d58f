"""Records of a CSV file: the line of each, those that are refused one by one, and sizes of every kind."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from graphs import make_graph
from omnigraph.core.errors import LoadFormatError
from omnigraph.pipeline.input import csv_records
from omnigraph.pipeline.input.csv_records import Piece, read_csv
from omnigraph.pipeline.input.sources import plan_splits

Read = Callable[[bytes], list[Piece]]

SCHEMA = "node T { k: String @key  s: String?  i: I32? }"


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def pieces(tmp_path: Path) -> Read:
    """The pieces of a text as a CSV file."""

    def read(text: bytes) -> list[Piece]:
        source = tmp_path / "T.csv"
        source.write_bytes(text)
        return [piece for split in plan_splits([source]) for piece in read_csv(split)]

    return read


def lines_of(some: list[Piece]) -> list[int]:
    return [line for piece in some for line in piece.lines.tolist()]


def refused_of(some: list[Piece]) -> list[tuple[int, bytes]]:
    return [(each.line, each.text) for piece in some for each in piece.refused]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
def test_a_record_has_the_line_an_editor_shows(
    pieces: Read, monkeypatch: pytest.MonkeyPatch, end: bytes, chunk: int
) -> None:
    monkeypatch.setattr(csv_records, "CHUNK_BYTES", chunk)
    text = b'\n\nk,s\na,1\n\nb,"x\ny\n\nz"\nc\nd,""\n"e\n","1""\n2"\nf,1,2\ng,5'
    some = pieces(text.replace(b"\n", end))
    assert lines_of(some) == [3, 5, 10, 11, 15]
    assert refused_of(some) == [(9, b"c"), (14, b"f,1,2")]
    assert [key for piece in some for key in piece.table["k"].to_pylist()] == [
        "a",
        "b",
        "d",
        "e" + end.decode(),
        "g",
    ]


@pytest.mark.parametrize("chunk", [1, 4, 1000])
@pytest.mark.parametrize("seed", range(60))
def test_any_text_has_the_records_arrow_finds(
    pieces: Read, monkeypatch: pytest.MonkeyPatch, seed: int, chunk: int
) -> None:
    """Cells, quotes and line ends in any order: either a quote is open, or both see the same records."""
    monkeypatch.setattr(csv_records, "CHUNK_BYTES", chunk)
    choice = random.Random(seed)
    tokens = ["a", "b", ",", ",", '"', '"', '""', "\n", "\n", "\r\n", "\r", "é"]
    text = "k,s\n" + "".join(choice.choice(tokens) for _ in range(choice.randrange(40)))
    bad: list[int] = []
    whole = pyarrow.csv.read_csv(
        pa.BufferReader(text.encode()),
        read_options=pyarrow.csv.ReadOptions(use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(
            newlines_in_values=True, invalid_row_handler=lambda row: bad.append(row.number) or "skip"
        ),
        convert_options=pyarrow.csv.ConvertOptions(column_types={"k": pa.string(), "s": pa.string()}),
    )
    try:
        some = pieces(text.encode())
    except LoadFormatError:
        assert '"' in text
        return
    rows = pa.concat_tables([piece.table for piece in some])
    assert rows.column("k").fill_null("").to_pylist() == whole.column("k").fill_null("").to_pylist()
    assert rows.column("s").fill_null("").to_pylist() == whole.column("s").fill_null("").to_pylist()
    assert len(refused_of(some)) == len(bad)
    assert lines_of(some) == sorted(set(lines_of(some)))


def test_a_character_like_a_byte_order_mark_stays_where_it_is(
    pieces: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_records, "CHUNK_BYTES", 8)
    some = pieces("\ufeffk,s\naa,b\n\ufeffc,d\n".encode())
    assert [key for piece in some for key in piece.table["k"].to_pylist()] == ["aa", "\ufeffc"]


@pytest.mark.slow
def test_records_that_cannot_be_read_are_set_aside_like_any_other(tmp_path: Path, engine: str) -> None:
    source = tmp_path / "T.csv"
    source.write_bytes(b'k,s,i\na,"x\ny",1\nb,x\n\nc,x,old\nd,\xe9,1\ne,x,1,2\nf,x,2\n')
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        with pytest.raises(LoadFormatError, match=r"T\.csv:4: .*2 fields.*and 3 more") as caught:
            graph.load(source, mode="append", engine=engine)
        assert caught.value.details["problem_totals"] == {"format": 4}
        report = graph.load(source, mode="append", engine=engine, rejects=tmp_path / "aside")
        (count,) = report.nodes
        assert (report.records_read, report.records_refused) == (6, 4)
        assert (count.entities_loaded, count.refused) == (2, 4)
        keys = [json.loads(line)["data"]["k"] for line in graph.export().splitlines()]
        assert keys == ["a", "f"]
    kept = [json.loads(line) for line in (tmp_path / "aside" / "rejects.jsonl").read_text().splitlines()]
    assert [(each["line"], each["record"]) for each in kept] == [
        (4, "b,x"),
        (6, {"k": "c", "s": "x", "i": "old"}),
        (7, "d,\ufffd,1"),
        (8, "e,x,1,2"),
    ]
    assert all(each["file"] == str(source) and each["reasons"][0]["message"] for each in kept)
    assert "4 fields, the header has 3" in kept[3]["reasons"][0]["message"]


def test_a_file_that_is_named_twice_has_its_own_lines_both_times(tmp_path: Path) -> None:
    source = tmp_path / "T.csv"
    source.write_text("k,i\na,old\n")
    with make_graph(tmp_path / "g", SCHEMA) as graph, pytest.raises(LoadFormatError) as caught:
        graph.load([source, source], mode="append", engine="local")
    assert [problem["line"] for problem in caught.value.details["problems"]] == [2, 2]
