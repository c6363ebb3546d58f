"""What a load refuses can be mended and loaded again, says who else took part, and has a limit."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import graphs
from omnigraph.core.errors import BadRequest, LoadFormatError

SCHEMA = """
node T { k: String @key  n: I32?  u: I32? @unique  b: Bool?  xs: [I32]? }
edge E: T -> T { w: I32? }
"""


@pytest.fixture
def graph(tmp_path):
    with graphs.make_graph(tmp_path / "g", SCHEMA) as made:
        yield made


def rejects(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "rejects.jsonl").read_text().splitlines()]


def load(graph, source, aside, **named):
    return graph.load(source, mode="append", engine="local", rejects=aside, **named)


def mend(directory: Path, **values) -> Path:
    """The rejects with these values, in a file of another name."""
    mended = []
    for entry in rejects(directory):
        record = entry["record"]
        record.get("data", record).update(
            {n: v for n, v in values.items() if n in record.get("data", record)}
        )
        mended.append(json.dumps(entry))
    path = directory / "mended.jsonl"
    path.write_text("\n".join(mended) + "\n")
    return path


def rows(graph) -> list[dict]:
    return [json.loads(line) for line in graph.export().splitlines()]


@pytest.mark.slow
def test_mended_rejects_of_csv_are_loaded_with_their_type(graph, tmp_path):
    (tmp_path / "T.csv").write_text('k,n,b,xs\na,old,True,"[1,2]"\nb,2,,\n')
    load(graph, tmp_path / "T.csv", tmp_path / "first")
    assert rejects(tmp_path / "first")[0]["type"] == "T"
    report = load(graph, mend(tmp_path / "first", n=1), tmp_path / "second")
    assert report.records_refused == 0
    assert rows(graph)[0]["data"] == {"id": "a", "k": "a", "n": 1, "u": None, "b": True, "xs": [1, 2]}
    (tmp_path / "E.csv").write_text("from,to,w\na,b,x\n")
    load(graph, tmp_path / "E.csv", tmp_path / "third")
    load(graph, mend(tmp_path / "third", w="5"), tmp_path / "fourth")
    assert [(row["from"], row["to"], row["data"]["w"]) for row in rows(graph) if "edge" in row] == [
        ("a", "b", 5)
    ]


def test_mended_rejects_need_no_options_of_the_load_that_refused_them(tmp_path):
    with graphs.make_graph(
        tmp_path / "g", "node T { k: I32 @key  n: I32?  day: Date?  at: DateTime? }"
    ) as graph:
        (tmp_path / "t.dat").write_text(
            "1;x;2020-01-31 00:00:00;2020-01-31 10:00:00;NA;more\n2;2;;2020-01-31;5;more\n"
        )
        named = {
            "type_name": "T",
            "format": "csv",
            "delimiter": ";",
            "columns": ["code", "n", "day", "at", "note", "other"],
            "rename": {"code": "k"},
            "nulls": ["NA"],
            "ignore_extra": True,
        }
        load(graph, tmp_path / "t.dat", tmp_path / "first", **named)
        assert rejects(tmp_path / "first")[0]["record"].keys() == {"k", "n", "day", "at"}
        assert load(graph, mend(tmp_path / "first", n=7), tmp_path / "second").records_refused == 0
        assert rows(graph)[0]["data"] == {
            "id": "1",
            "k": 1,
            "n": 7,
            "day": "2020-01-31",
            "at": "2020-01-31T10:00:00.000Z",
        }
        pq.write_table(pa.table({"code": [3], "n": [2**40], "note": ["x"]}), tmp_path / "T.parquet")
        named = {"rename": {"code": "k"}, "ignore_extra": True}
        load(graph, tmp_path / "T.parquet", tmp_path / "third", **named)
        assert load(graph, mend(tmp_path / "third", n=8), tmp_path / "fourth").records_refused == 0
        assert [row["data"]["k"] for row in rows(graph)] == [1, 2, 3]


def test_mended_rejects_of_other_files_are_loaded(graph, tmp_path):
    (tmp_path / "t.jsonl").write_text(
        '{"type":"T","data":{"k":"a","n":"x"}}\n{"type":"T","data":{"k":"b"}}\n'
    )
    load(graph, tmp_path / "t.jsonl", tmp_path / "first")
    load(graph, mend(tmp_path / "first", n=1), tmp_path / "second")
    pq.write_table(pa.table({"k": ["c"], "n": [2**40]}), tmp_path / "T.parquet")
    load(graph, tmp_path / "T.parquet", tmp_path / "third")
    load(graph, mend(tmp_path / "third", n=3), tmp_path / "fourth")
    assert [(row["data"]["k"], row["data"]["n"]) for row in rows(graph)] == [("a", 1), ("b", None), ("c", 3)]


def test_rejects_that_are_not_mended_are_refused_again(graph, tmp_path):
    (tmp_path / "T.csv").write_text("k,n\na,old\nb,1,2\n")
    load(graph, tmp_path / "T.csv", tmp_path / "first")
    with pytest.raises(LoadFormatError):
        graph.load(tmp_path / "first" / "rejects.jsonl", mode="append", engine="local")


def test_reasons_name_the_rule_and_the_other_record(graph, tmp_path):
    source = tmp_path / "t.jsonl"
    lines = [{"k": "a"}, {"k": "b", "u": 1}, {"k": "a"}, {"k": "c", "u": 1}, {"k": "d"}]
    source.write_text("".join(json.dumps({"type": "T", "data": data}) + "\n" for data in lines))
    load(graph, source, tmp_path / "aside")
    found = {entry["line"]: entry["reasons"][0] for entry in rejects(tmp_path / "aside")}
    assert {line: reason["kind"] for line, reason in found.items()} == dict.fromkeys((1, 2, 3, 4), "unique")
    partners = {line: reason["partner"] for line, reason in found.items()}
    assert partners == {1: f"{source}:3", 3: f"{source}:1", 2: f"{source}:4", 4: f"{source}:2"}


def test_a_printed_report_is_short_and_counts_the_kept_one_of_duplicates(graph, tmp_path):
    (tmp_path / "T.csv").write_text("k,n\na,1\na,2\nb,x\n")
    report = load(graph, tmp_path / "T.csv", tmp_path / "aside", on_duplicate="last")
    assert str(report).splitlines() == [
        "           1  T (1 new, 1 superseded, 1 refused)",
        f"loaded 1 entity: append on main (local); commit {report.commit.id}",
        f"refused 1 record: see {tmp_path / 'aside'}",
    ]


def test_more_rejects_than_allowed_refuse_the_load(graph, tmp_path):
    (tmp_path / "T.csv").write_text("k,n\na,x\nb,y\nc,1\n")
    with pytest.raises(LoadFormatError) as caught:
        load(graph, tmp_path / "T.csv", tmp_path / "aside", max_rejects=1)
    assert "2 records are refused, at most 1 may be" in (caught.value.hint or "")
    assert not (tmp_path / "aside" / "rejects.jsonl").exists()
    assert rows(graph) == []
    assert load(graph, tmp_path / "T.csv", tmp_path / "aside", max_rejects=2).records_refused == 2
    with pytest.raises(BadRequest, match="needs a place"):
        graph.load(tmp_path / "T.csv", mode="append", engine="local", max_rejects=2)
