"""The two parsers agree, lines are owned once, limits hold."""

import json
import math
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.catalog.build import compile_schema
from omnigraph.core.load_options import SourceFormat
from omnigraph.pipeline.input import records
from omnigraph.pipeline.input.records import ChunkParser
from omnigraph.pipeline.input.sources import plan_splits, read_chunks
from omnigraph.pipeline.plan import Split
from omnigraph.pipeline.problems import ProblemLog

CATALOG = compile_schema(
    """
node Thing {
  k: String @key
  b: Bool?  i: I32?  j: I64?  u: U32?  w: U64?  f: F32?  g: F64?  d: Date?  t: DateTime?
  e: enum(x, y)?  tags: [String]?  ns: [I64]?  v: Vector(2)?  raw: Blob?
}
edge Link: Thing -> Thing { weight: F64? }
"""
)

_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**66), 2**66),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
    st.sampled_from(
        ["2024-01-01", "2024-02-30", "2024-03-01T10:30:00+01:00", "base64:AQID", "base64:?", "x"]
    ),
)
_values = st.one_of(_scalars, st.lists(_scalars, max_size=3), st.just({}))
_fitting = {
    "b": st.booleans(),
    "i": st.integers(-(2**31), 2**31 - 1),
    "j": st.integers(-(2**63), 2**63 - 1),
    "u": st.integers(0, 2**32 - 1),
    "w": st.integers(0, 2**64 - 1),
    "f": st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-100, 100),
    "g": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70),
    "d": st.dates().map(str) | st.integers(-30000, 30000),
    "t": st.datetimes().map(lambda moment: moment.isoformat()) | st.integers(-(10**12), 10**12),
    "e": st.sampled_from(["x", "y", "z"]),
    "tags": st.lists(st.text(max_size=4), max_size=3),
    "ns": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    "v": st.lists(st.floats(-10, 10), min_size=2, max_size=2),
    "raw": st.binary(max_size=4).map(lambda raw: "base64:" + __import__("base64").b64encode(raw).decode()),
}
_data = st.fixed_dictionaries(
    {"k": st.text(max_size=5)}, optional={name: st.none() | value for name, value in _fitting.items()}
)
_damaged = st.fixed_dictionaries({}, optional=dict.fromkeys(["k", "id", "zz", *_fitting], _values))
_records = st.one_of(
    _data.map(lambda data: {"type": "Thing", "data": data}),
    _data.map(lambda data: {"type": "Thing", "data": data}),
    _damaged.map(lambda data: {"type": "Thing", "data": data}),
    st.fixed_dictionaries(
        {"edge": st.sampled_from(["Link", "LINK", "Lonk"]), "from": st.text(max_size=3) | st.none()},
        optional={
            "to": st.text(max_size=3),
            "data": st.none() | st.fixed_dictionaries({}, optional={"weight": _values}),
        },
    ),
    _values,
)


def parse(text: bytes, *, exact: bool = False, monkeypatch=None):
    log = ProblemLog()
    parser = ChunkParser(CATALOG, 0, presence=True, log=log)
    if exact:
        parser_type = type(parser)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parser_type, "_columnar", lambda *_args: None)
            parsed, lines, count = parser.parse(text, 0)
    else:
        parsed, lines, count = parser.parse(text, 0)
    return parsed, lines, count, log, sorted(parser.refused)


def rows(parsed) -> dict[int, tuple]:
    """Every accepted record by its line, whatever table it came in."""
    found = {}
    for part in parsed:
        columns = {name: column.to_pylist() for name, column in part.columns.items()}
        for at, line in enumerate(part.lines.tolist()):
            values = {name: _comparable(column[at]) for name, column in columns.items()}
            ends = (part.sources[at].as_py(), part.targets[at].as_py()) if part.sources is not None else ()
            absent = {name: bool(flags[at]) for name, flags in part.absent.items()}
            assert line not in found
            found[line] = (part.type.name, part.ids[at].as_py(), ends, values, absent)
    return found


def _comparable(value):
    return "-0.0" if isinstance(value, float) and value == 0 and math.copysign(1, value) < 0 else value


@settings(max_examples=60, deadline=None)
@given(st.lists(_records, max_size=12), st.sampled_from(["\n", "\r\n"]), st.booleans())
@pytest.mark.slow
def test_the_columnar_and_the_exact_parser_agree(given_records, newline: str, compact) -> None:
    separators = (",", ":") if compact else None
    text = newline.join(json.dumps(each, separators=separators) for each in given_records).encode()
    fast, lines, count, log, refused = parse(text)
    exact, exact_lines, exact_count, exact_log, exact_refused = parse(text, exact=True)
    assert rows(fast) == rows(exact)
    assert (lines, count, refused) == (exact_lines, exact_count, exact_refused)
    assert log.totals == exact_log.totals
    assert count == len(rows(fast)) + len(refused)
    messages = {p.order: p.message for p in log.listed()}
    assert messages == {p.order: p.message for p in exact_log.listed()}


@settings(max_examples=40, deadline=None)
@given(st.lists(_data.map(lambda data: {"type": "Thing", "data": data}), min_size=1, max_size=8))
@pytest.mark.slow
def test_the_parsers_agree_on_good_records(given_records) -> None:
    text = "\n".join(json.dumps(each, ensure_ascii=False) for each in given_records).encode()
    fast, _, count, log, _ = parse(text)
    exact, *_ = parse(text, exact=True)
    assert log.total == 0
    assert rows(fast) == rows(exact)
    assert len(rows(fast)) == count == len(given_records)


def test_a_group_of_good_records_never_reaches_the_exact_parser(monkeypatch) -> None:
    monkeypatch.setattr(records, "decode", None)
    lines = [{"type": "Thing", "data": {"k": "a", "i": 1, "d": "2024-01-01"}}] * 5
    lines += [{"edge": "Link", "from": "a", "to": "a"}] * 5
    parsed, *_ = parse("\n".join(json.dumps(each) for each in lines).encode())
    assert {part.type.name: part.rows for part in parsed} == {"Thing": 5, "Link": 5}


@pytest.mark.slow
@given(st.lists(st.text(max_size=12), max_size=30), st.integers(1, 60), st.integers(1, 40), st.booleans())
@settings(max_examples=50, deadline=None)
def test_every_line_belongs_to_exactly_one_split(
    tmp_path_factory, lines, split_bytes: int, chunk_bytes: int, ended
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    text = "\n".join(line.replace("\n", "").replace("\r", "") for line in lines) + ("\n" if ended else "")
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    splits = plan_splits([path], split_bytes=split_bytes)
    chunks = [chunk for split in splits for chunk in read_chunks(split, chunk_bytes)]
    assert b"".join(chunks) == path.read_bytes()
    whole = b"".join(chunks)
    for chunk in chunks[:-1]:
        assert chunk.endswith(b"\n")
    assert sum(len(chunk.split(b"\n")) - chunk.endswith(b"\n") for chunk in chunks if chunk) == (
        len(whole.split(b"\n")) - whole.endswith(b"\n") if whole else 0
    )


def test_a_compressed_file_is_one_split(tmp_path) -> None:
    path = tmp_path / "a.jsonl.gz"
    with pa.output_stream(str(path), compression="gzip") as out:
        out.write(b"x" * 5000 + b"\n" + b"y\n")
    (split,) = plan_splits([path], split_bytes=10)
    assert split == Split(0, str(path), str(path), SourceFormat.JSON_LINES, 0, None, "gzip")
    assert b"".join(read_chunks(split, 100)) == b"x" * 5000 + b"\ny\n"


def test_limits_name_the_line(monkeypatch) -> None:
    monkeypatch.setattr(records, "RECORD_BYTES_MAX", 200)
    monkeypatch.setattr(records, "RECORD_STRUCTURE_MAX", 50)
    good = '{"type":"Thing","data":{"k":"a"}}'
    wide = '{"type":"Thing","data":{"k":"b","tags":[' + ",".join(['""'] * 48) + "]}}"
    long = '{"type":"Thing","data":{"k":"' + "c" * 200 + '"}}'
    strings = '{"type":"Thing","data":{"k":"' + ",{}[]:" * 20 + '"}}'
    parsed, _, count, log, refused = parse(f"{good}\n{wide}\n{long}\n{strings}".encode())
    assert (count, refused) == (4, [1, 2])
    assert [problem.property for problem in log.listed()] == ["record_structure", "record_bytes"]
    assert sorted(rows(parsed)) == [0, 3]


@pytest.mark.parametrize("text", [",{}[]:" * 300_000, "word, " * 300_000, '\\",' * 200_000])
@pytest.mark.parametrize("ends", [True, False])
def test_a_long_text_costs_little_more_than_decoding_it(text: str, *, ends: bool) -> None:
    """Its strings are not walked byte by byte, nor again from every quote of a text that does not end."""
    line = ('{"type":"Thing","data":{"k":"' + text + ('"}}' if ends else "")).encode()
    chunk = ChunkParser(CATALOG, 0, presence=False, log=ProblemLog())
    assert not chunk._line_over_limits(line, 0)

    def seconds(work) -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    decoding = min(seconds(lambda: json.loads(json.dumps(text))) for _ in range(5))
    looking = min(seconds(lambda: chunk._line_over_limits(line, 0)) for _ in range(5))
    assert looking < 12 * decoding


def test_lines_of_many_types_are_grouped_without_parsing() -> None:
    lines = [
        {"type": "Thing", "data": {"k": str(n)}} if n % 2 else {"edge": "Link", "from": "a", "to": "b"}
        for n in range(50)
    ]
    parsed, *_ = parse("\n".join(json.dumps(each) for each in lines).encode())
    assert {part.type.name: part.lines.tolist() for part in parsed} == {
        "Thing": [n for n in range(50) if n % 2],
        "Link": [n for n in range(50) if not n % 2],
    }
    assert np.array_equal(parsed[0].lines, np.sort(parsed[0].lines))


@pytest.mark.slow
def test_a_record_that_needs_the_exact_parser_costs_its_neighbours_only(monkeypatch) -> None:
    taken, decode = [], records.decode
    monkeypatch.setattr(records, "decode", lambda line: taken.append(line) or decode(line))
    lines = [{"type": "Thing", "data": {"k": str(n), "i": n}} for n in range(5_000)]
    lines[700]["data"]["i"] = "x"
    lines[4_000]["data"]["k"] = 'a backslash: "'  # the parser was asked to tell absent from null
    parsed, _, count, log, refused = parse("\n".join(json.dumps(each) for each in lines).encode())
    assert (count, refused, log.total) == (5_000, [700], 1)
    (things,) = parsed
    assert things.lines.tolist() == [n for n in range(5_000) if n != 700]
    assert things.columns["i"].to_pylist() == things.lines.tolist()
    assert not things.absent["i"].any()
    assert things.absent["b"].all()
    assert len(taken) <= 2 * records._EXACT_LINES


@pytest.mark.slow
def test_every_depth_of_nesting_is_read_or_refused() -> None:
    """What reads JSON and what writes it do not reach their limits at the same depth."""
    lines = b"".join(
        b'{"type":"Thing","data":{"k":' + b"[" * depth + b"]" * depth + b"}}\n" for depth in range(850, 1010)
    )
    log = ProblemLog()
    parser = ChunkParser(CATALOG, 0, presence=False, log=log)
    parser.parse(lines, 0)
    assert len(parser.refused) == log.totals["format"] == 160
