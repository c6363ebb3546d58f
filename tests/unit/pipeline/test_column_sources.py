"""What CSV files, Parquet files and frames may hold, and what is refused in them."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import omnigraph
from graphs import FAST
from omnigraph.core.errors import LoadFormatError

SCHEMA = """
node T { k: String @key  s: String?  i: I32?  tags: [String]?  pic: Blob? }
node N { t: String? }
node D { k: String @key  n: I32 @default(7)  m: I32? }
edge E: T -> T
"""


@pytest.fixture
def graph(tmp_path: Path):
    with omnigraph.init(tmp_path / "g", schema=SCHEMA, settings=FAST) as made:
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
