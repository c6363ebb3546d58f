"""What CSV files, Parquet files and frames may hold, and what is refused in them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graphs import make_graph
from omnigraph.core.errors import BadRequest, ConstraintViolation, LoadFormatError

SCHEMA = """
node T { k: String @key  s: String?  i: I32?  tags: [String]?  pic: Blob? }
node N { t: String? }
node D { k: String @key  n: I32 @default(7)  m: I32? }
edge E: T -> T
"""


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g", SCHEMA) as made:
        yield made


@pytest.fixture
def load(graph, tmp_path: Path):
    """Loads bytes or a table as the file of that name."""

    def run_load(content: bytes | pa.Table, name: str = "T.csv", mode: str = "append", **named):
        source = tmp_path / name
        if isinstance(content, bytes):
            source.write_bytes(content)
        else:
            pq.write_table(content, source)
        return graph.load(source, mode=mode, engine="local", **named)

    return run_load


def rows_of(graph, type_name: str = "T") -> list[dict]:
    """The rows of a type without ids that were made up and without nulls."""
    records = [json.loads(line) for line in graph.export(types=[type_name]).splitlines()]
    found = []
    for record in records:
        ends = {name: record[name] for name in ("from", "to") if name in record}
        found.append(ends | {n: v for n, v in record["data"].items() if n != "id" and v is not None})
    return found


def texts(*values: bytes) -> pa.StringArray:
    """Bytes as a column of text that nobody looked at."""
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in values])]).astype(np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(values)))


# --- text that is not UTF-8 ---

GOOD = pa.array(["x", "y", "z"])
BAD = texts(b"a", b"\xff\xfe", b"c")
BROKEN = {
    "property": ("T", {"k": GOOD, "s": BAD}),
    "large text": ("T", {"k": GOOD, "s": BAD.cast(pa.large_string())}),
    "key": ("T", {"k": BAD}),
    "blob": ("T", {"k": GOOD, "pic": texts(b"base64:", b"base64:\xff", b"base64:")}),
    "list": ("T", {"k": GOOD, "tags": pa.ListArray.from_arrays(pa.array([0, 0, 2, 3]), BAD)}),
    "list of large text": (
        "T",
        {"k": GOOD, "tags": pa.LargeListArray.from_arrays(pa.array([0, 0, 2, 3], pa.int64()), BAD)},
    ),
    "id": ("N", {"id": BAD}),
    "source": ("E", {"from": texts(b"p", b"\xff", b"p"), "to": ["p", "p", "p"]}),
    "target": ("E", {"src": ["p", "p", "p"], "dst": texts(b"p", b"p\xc0\x80", b"p")}),
}


@pytest.mark.parametrize("place", BROKEN)
def test_text_that_is_not_utf8_is_refused(graph, load, tmp_path: Path, place: str) -> None:
    name, columns = BROKEN[place]
    if name == "E":
        load(b"k\np\n")
    before = graph.export()
    with pytest.raises(LoadFormatError, match="not valid UTF-8") as refused:
        load(pa.table(columns), f"{name}.parquet")
    assert (refused.value.line, graph.export()) == (2, before)
    report = load(pa.table(columns), f"{name}.parquet", rejects=tmp_path / "rejects")
    (counted,) = (*report.nodes, *report.edges)
    assert (counted.inserted, counted.refused) == (2, 1)
    (line,) = (tmp_path / "rejects" / "rejects.jsonl").read_text().splitlines()
    assert "not valid UTF-8" in line
    assert "\ufffd" in json.dumps(json.loads(line)["record"], ensure_ascii=False)
    assert graph.verify().violations == ()
    assert len(rows_of(graph, name)) == 2


# --- lists of dictionaries ---


def test_a_list_has_every_member_of_any_row(graph) -> None:
    graph.load_frames({"T": [{"k": "a"}, {"i": 5, "k": "b"}]}, mode="append", engine="local")
    assert rows_of(graph) == [{"k": "a"}, {"k": "b", "i": 5}]
    with pytest.raises(BadRequest, match="unknown field 'hue'"):
        graph.load_frames({"T": [{"k": "c"}, {"k": "d", "hue": 1}]}, mode="append", engine="local")


@pytest.mark.slow
def test_what_a_row_of_a_list_lacks_is_not_mentioned(graph, tmp_path: Path) -> None:
    rows = [{"k": "a", "m": 1}, {"k": "b", "n": 2}]
    graph.load_frames({"D": rows}, mode="append", engine="local")
    assert rows_of(graph, "D") == [{"k": "a", "m": 1, "n": 7}, {"k": "b", "n": 2}]
    rows = [{"k": "a", "n": 3}, {"k": "b", "m": 4}, {"k": "c", "m": None}]
    graph.load_frames({"D": rows}, mode="patch", engine="local")
    assert rows_of(graph, "D") == [{"k": "a", "m": 1, "n": 3}, {"k": "b", "m": 4, "n": 2}, {"k": "c", "n": 7}]
    graph.load_frames({"D": [{"k": "a", "m": None}, {"k": "b"}]}, mode="patch", engine="local")
    assert rows_of(graph, "D")[:2] == [{"k": "a", "n": 3}, {"k": "b", "m": 4, "n": 2}]
    rows = [{"k": "a", "m": 1}, {"k": "d"}]
    report = graph.load_frames({"D": rows}, mode="append", engine="local", rejects=tmp_path / "rejects")
    assert report.records_refused == 1
    (line,) = (tmp_path / "rejects" / "rejects.jsonl").read_text().splitlines()
    assert json.loads(line)["record"] == {"k": "a", "m": 1}


def test_rows_without_members_are_rows(graph) -> None:
    assert graph.load_frames({"N": [{}, {}]}, mode="append", engine="local").records_read == 2
    assert rows_of(graph, "N") == [{}, {}]
    assert graph.load_frames({"N": [], "E": []}, mode="append", engine="local").commit is None


@pytest.mark.parametrize(
    "rows", [["a"], [{"k": "a"}, None], [{1: "a"}], [{"k": "a", "?i": True}, {"k": "b"}]]
)
def test_a_list_of_something_else_is_refused(graph, rows) -> None:
    with pytest.raises(BadRequest, match=r"^'T': "):
        graph.load_frames({"T": rows}, mode="append", engine="local")


@pytest.mark.parametrize(
    ("frame", "hint"),
    [
        ("T.csv", "`graph.load`"),
        ({"k": ["a"]}, "a list of dictionaries, one for each row"),
        (5, "a DataFrame"),
    ],
)
def test_what_is_no_frame_is_refused_with_what_to_give(graph, frame, hint: str) -> None:
    with pytest.raises(BadRequest, match=r"^'T': \w+ is not a DataFrame") as refused:
        graph.load_frames({"T": frame}, mode="append", engine="local")
    assert hint in refused.value.hint


def test_a_frame_without_its_type_is_refused(graph) -> None:
    with pytest.raises(BadRequest, match="frames are given by their types, not as DataFrame"):
        graph.load_frames(pd.DataFrame({"k": ["a"]}), mode="append", engine="local")


class Stream:
    """A frame of a library that shares its columns by Arrow's interface for streams."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_categories_whose_texts_are_views_are_texts(graph) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), pa.array(["x", "y"], pa.string_view()))
    frame = Stream(pa.table({"k": pa.array(["a", "b", "c"], pa.string_view()), "s": words}))
    graph.load_frames({"T": frame}, mode="append", engine="local")
    assert rows_of(graph) == [{"k": "a", "s": "y"}, {"k": "b"}, {"k": "c", "s": "x"}]


@pytest.mark.parametrize("row", [{"k": "a\ud800"}, {"k": "a", "tags": ["\udc00"]}])
def test_half_of_a_surrogate_pair_is_refused(graph, row) -> None:
    with pytest.raises(LoadFormatError, match="surrogate"):
        graph.load_frames({"T": [row]}, mode="append", engine="local")


def test_a_table_has_no_marks(graph) -> None:
    with pytest.raises(BadRequest, match="unknown field"):
        graph.load_frames({"T": pa.table({"k": ["a"], "?i": [True]})}, mode="append", engine="local")


# --- columns of other kinds ---


@pytest.mark.parametrize("kind", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_ids_and_ends_are_texts_of_any_kind(graph, load, kind: pa.DataType) -> None:
    load(b"k\na\nb\n")
    load(pa.table({"id": pa.array(["n1"]).cast(kind), "t": ["x"]}), "N.parquet")
    ends = {"id": pa.array(["e1"]), "from": pa.array(["a"]), "to": pa.array(["b"])}
    edges = pa.table({name: column.cast(kind) for name, column in ends.items()})
    load(edges, "E.parquet")
    graph.load_frames({"E": edges}, mode="merge", engine="local")
    assert rows_of(graph, "E") == [{"from": "a", "to": "b"}]
    assert rows_of(graph, "N") == [{"t": "x"}]


@pytest.mark.parametrize(
    ("type_name", "frame"),
    [
        ("N", pd.DataFrame({"id": [1, None]})),
        ("E", pd.DataFrame({"from": [1, None], "to": ["a", "b"]})),
    ],
)
def test_whole_numbers_that_pandas_made_floats_say_how_to_keep_them(graph, type_name: str, frame) -> None:
    with pytest.raises(BadRequest, match="holds double") as caught:
        graph.load_frames({type_name: frame}, mode="append", engine="local")
    assert "dtype 'Int64'" in (caught.value.hint or "")
    kept = pd.DataFrame({"k": ["a", "b"], "i": pd.array([1, None], "Int64")})
    graph.load_frames({"T": kept}, mode="append", engine="local")
    assert rows_of(graph) == [{"k": "a", "i": 1}, {"k": "b"}]


# --- frames without rows ---


@pytest.mark.parametrize("empty", [[], pa.table({"k": pa.array([], pa.string())}), pd.DataFrame({"k": []})])
def test_an_overwrite_with_a_frame_without_rows_leaves_none(graph, load, empty) -> None:
    load(b"k\na\nb\n")
    load(b"from,to\na,b\n", "E.csv")
    for mode in ("append", "merge"):
        assert graph.load_frames({"T": empty}, mode=mode, engine="local").commit is None
    with pytest.raises(ConstraintViolation, match="E"):
        graph.load_frames({"T": empty}, mode="overwrite", engine="local")
    assert len(rows_of(graph)) == 2
    report = graph.load_frames({"T": empty, "E": []}, mode="overwrite", engine="local")
    assert (rows_of(graph), rows_of(graph, "E"), report.records_read) == ([], [], 0)
    assert [count.name for count in (*report.nodes, *report.edges)] == ["T", "E"]
    with pytest.raises(LoadFormatError, match="unknown type 'X'"):
        graph.load_frames({"X": empty}, mode="overwrite", engine="local")


# --- CSV ---


@pytest.mark.parametrize("head", [b"\n", b"\n\n", b"\r\n\r\n", b"\xef\xbb\xbf\n", b"\xef\xbb\xbf\r\n"])
def test_blank_lines_before_the_header_of_a_csv_file(graph, load, head: bytes) -> None:
    end = b"\r\n" if b"\r" in head else b"\n"
    assert load(head + end.join([b"k,s", b"a,x", b"b,y", b""])).records_read == 2
    assert rows_of(graph) == [{"k": "a", "s": "x"}, {"k": "b", "s": "y"}]


OPEN = [
    b'a,"xyz',
    b'a,"xyz\n',
    b'a,x\nb,"y\nc,z\n',
    b'a,"',
    b'a,"x""',
    b'a,"x""""',
    b'a,5" disk\nb,"1\n2"\nc,"3',
    b'a,"x\nb,y\nc,"z"\n',
]
CLOSED = {
    b'a,5" disk\nb,"line1\nline2"\n': ['5" disk', "line1\nline2"],
    b'a,""\nb,""': ["", ""],
    b'a,""""': ['"'],
    b'a,"x"""': ['x"'],
    b'a,"\n"\n': ["\n"],
    b'a,"\r\n"\r\n': ["\r\n"],
    b'a,"x"y"z\nb,"2\n"': ['xy"z', "2\n"],
    b'a,x"': ['x"'],
    b'a,",""\n,"""': [',"\n,"'],
}


@pytest.mark.parametrize("rows", OPEN)
def test_a_csv_file_that_is_cut_off_inside_quotes_is_refused(graph, load, rows: bytes) -> None:
    with pytest.raises(LoadFormatError, match="a quote is opened and never closed"):
        load(b"k,s\n" + rows)
    assert rows_of(graph) == []


@pytest.mark.parametrize("rows", CLOSED)
def test_a_quote_within_a_cell_opens_nothing(graph, load, rows: bytes) -> None:
    load(b"k,s\n" + rows)
    assert [row["s"] for row in rows_of(graph)] == CLOSED[rows]


@pytest.mark.parametrize("text", [b"", b"\n", b"k,s", b"k,s\n", b"\r\nk,s", b'\xef\xbb\xbf"k",s', b"k,s\n\n"])
def test_a_csv_file_without_rows_has_no_records(graph, load, text: bytes) -> None:
    report = load(text)
    assert (report.records_read, report.commit) == (0, None)


@pytest.mark.parametrize("text", [b'k,"s', b'k,"s\na,x\nb,y\n'])
def test_a_header_with_an_open_quote_is_refused(load, text: bytes) -> None:
    with pytest.raises(LoadFormatError):
        load(text)


# --- edges ---

ENDLESS = {
    "E.csv": [(b"from,to\np,p\n,p\n", "from"), (b"src,dst\np,p\np,\n", "to")],
    "E.parquet": [
        (pa.table({"from": ["p", None], "to": ["p", "p"]}), "from"),
        (pa.table({"src": ["p", "p"], "dst": ["p", None]}), "to"),
        (pa.table({"from": ["p", "p"], "to": pa.nulls(2)}), "to"),
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "end"), [(name, *each) for name, some in ENDLESS.items() for each in some]
)
def test_an_edge_without_an_end_is_refused(graph, load, tmp_path: Path, name: str, content, end: str) -> None:
    load(b"k\np\n")
    with pytest.raises(LoadFormatError, match=f"E.{end} must have a value"):
        load(content, name)
    report = load(content, name, rejects=tmp_path / "rejects")
    (edges,) = report.edges
    assert (edges.inserted + edges.refused, edges.refused) == (2, report.records_refused)
    assert rows_of(graph, "E") == [{"from": "p", "to": "p"}] * edges.inserted
