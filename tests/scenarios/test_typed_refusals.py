"""Whatever a caller, a file or the system does wrong is told by an error of ours, at every boundary."""

import errno
import inspect
import io
import json
import os
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

import omnigraph
from graphs import FAST, make_graph, rows_of, run, unchanged
from omnigraph.api.arguments import text_checked
from omnigraph.api.at import GraphAt
from omnigraph.api.branches import Branches, Commits
from omnigraph.api.exports import Exports
from omnigraph.api.graph import Graph
from omnigraph.api.history import Feed, Tags
from omnigraph.api.loads import Loads
from omnigraph.core.errors import (
    BadRequest,
    EnvironmentFault,
    LoadFormatError,
    OmnigraphError,
    ParameterTypeError,
    StorageConfiguration,
)
from omnigraph.storage.layout import LOADS

pytestmark = pytest.mark.slow

SCHEMA = "node Person { name: String @key  age: I32?  weight: F64?  seen: DateTime?  tags: [String]? }"
HALF = "half\ud800"
READ = "query q($n: String) { match { $p: Person { name: $n } } return { $p.age } }"
INSERT = "query q($n: String, $a: I32?, $s: DateTime?) { insert Person { name: $n, age: $a, seen: $s } }"


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g", SCHEMA) as made:
        run(made, 'insert Person { name: "ann" }')
        yield made


# -- arguments --------------------------------------------------------------------------------------------

CALLS = {
    "query.source": lambda graph, value: graph.query(value),
    "query.name": lambda graph, value: graph.query(READ, {"n": "x"}, name=value),
    "query.branch": lambda graph, value: graph.query(READ, {"n": "x"}, branch=value),
    "query.at": lambda graph, value: graph.query(READ, {"n": "x"}, at=value),
    "mutate.source": lambda graph, value: graph.mutate(value),
    "mutate.actor": lambda graph, value: graph.mutate(INSERT, {"n": "x"}, actor=value),
    "load.mode": lambda graph, value: graph.load("x.jsonl", mode=value, engine="local"),
    "export.types": lambda graph, value: graph.export(types=[value]),
    "entity.type_name": lambda graph, value: graph.entity(value, "ann"),
    "at.reference": lambda graph, value: graph.at(value).query(READ, {"n": "x"}),
    "branches.create": lambda graph, value: graph.branches.create(value),
    "branches.delete": lambda graph, value: graph.branches.delete(value),
    "branches.merge": lambda graph, value: graph.branches.merge(value),
    "tags.create": lambda graph, value: graph.tags.create(value),
    "commits.show": lambda graph, value: graph.commits.show(value),
    "open": lambda _graph, value: omnigraph.open(value),
    "init.schema": lambda graph, value: omnigraph.init(f"{graph.uri}.new", schema=value),
}


@pytest.mark.parametrize(
    "value", [3.5, b"ann", ["ann"], object(), HALF], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize("call", CALLS)
def test_an_argument_that_is_no_text_is_refused_by_name(graph: Graph, call: str, value: object) -> None:
    with unchanged(graph), pytest.raises(OmnigraphError) as refused:
        CALLS[call](graph, value)
    assert isinstance(refused.value, (BadRequest, StorageConfiguration))


def test_every_public_method_looks_at_its_texts() -> None:
    """A method that is added without a look at its arguments is found here."""
    for cls in (Graph, GraphAt, Branches, Commits, Exports, Loads, Tags, Feed):
        for name, member in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_"):
                looked = hasattr(member, "__wrapped__")
                assert looked or text_checked(member) is member, f"{cls.__name__}.{name}"


def test_a_file_name_with_a_null_byte_or_half_a_pair_is_refused(tmp_path: Path) -> None:
    for name in ("a\0b", HALF):
        with pytest.raises(StorageConfiguration, match="is not the name of a directory"):
            omnigraph.open(str(tmp_path / name))
        with pytest.raises(StorageConfiguration):
            omnigraph.init(str(tmp_path / name), schema=SCHEMA)
        with pytest.raises(BadRequest, match="is not the name of a file"):
            omnigraph.init(tmp_path / "new", schema=name)


# -- values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"n": "x", "a": 10**5_000},
        {"n": "x", "a": -(10**5_000)},
        {"n": "x", "a": pd.NaT},
        {"n": "x", "s": pd.NaT},
        {"n": HALF},
    ],
    ids=["huge", "least", "NaT as a number", "NaT as a moment", "half a pair"],
)
def test_a_parameter_that_is_no_value_is_refused(graph: Graph, given: dict) -> None:
    with unchanged(graph), pytest.raises(ParameterTypeError):
        graph.mutate(INSERT, given)


def nested(levels: int) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


def test_deep_values_are_refused_at_once(graph: Graph) -> None:
    """Finding the type of one such value took half a minute; so much is not needed for all of them."""
    deep = nested(5_000)
    began = time.process_time()
    with unchanged(graph):
        with pytest.raises(ParameterTypeError):
            graph.mutate(INSERT, {"n": deep})
        for frame in ([{"name": "x", "tags": deep}], pd.DataFrame({"name": ["x"], "tags": [deep]})):
            with pytest.raises(BadRequest, match="nested more than 7 levels"):
                graph.load_frames({"Person": frame}, mode="append", engine="local")
        with pytest.raises(BadRequest, match="nested more than 7 levels"):
            graph.load_frames({"Person": [{"name": "x", "age": {"a": deep}}]}, mode="append", engine="local")
    assert time.process_time() - began < 10


def test_rows_that_hold_no_moment_are_refused(graph: Graph) -> None:
    with unchanged(graph), pytest.raises(BadRequest):
        graph.load_frames({"Person": [{"name": "x", "seen": pd.NaT}]}, mode="append", engine="local")
    frame = pd.DataFrame({"name": ["x"], "seen": [pd.NaT]})
    graph.load_frames({"Person": frame}, mode="append", engine="local")
    assert rows_of(graph, "Person")["x"]["seen"] is None


@pytest.mark.parametrize("column", ["age", "weight"])
@pytest.mark.parametrize("source", ["parquet", "pandas"])
def test_text_in_a_numeric_column_is_refused_row_by_row(
    graph: Graph, tmp_path: Path, column: str, source: str
) -> None:
    table = pa.table({"name": ["x", "y", "z"], column: ["1", None, "many"]})
    file = tmp_path / "people.parquet"
    pyarrow.parquet.write_table(table, file)

    def load(**named):
        if source == "pandas":
            return graph.load_frames({"Person": table.to_pandas()}, mode="append", engine="local", **named)
        return graph.load(file, type_name="Person", mode="append", engine="local", **named)

    with unchanged(graph), pytest.raises(LoadFormatError) as refused:
        load()
    assert [problem["line"] for problem in refused.value.details["problems"]] == [1, 3]
    if source == "pandas":
        return
    report = load(rejects=tmp_path / "rejects")
    assert (report.records_refused, set(rows_of(graph, "Person"))) == (2, {"ann", "y"})
    (kept,) = (tmp_path / "rejects").iterdir()
    set_aside = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [(each["file"], each["line"]) for each in set_aside] == [(str(file), 1), (str(file), 3)]
    assert [each["record"][column] for each in set_aside] == ["1", "many"]


# -- what the system refuses ------------------------------------------------------------------------------

OPENERS = (
    (os, "mkdir"),
    (os, "stat"),
    (os, "open"),
    (os, "rename"),
    (os, "replace"),
    (os, "listdir"),
    (os, "scandir"),
    (io, "open"),
    (pa, "OSFile"),
    (pa, "memory_map"),
)


class FailingFiles:
    """Lets the call with one number that names a file below `__loads` fail. `calls` counts them."""

    def __init__(self, number: int, code: int) -> None:
        self.calls = 0
        self._number, self._code = number, code

    def around(self, call):
        def called(*given, **named):
            if given and isinstance(given[0], (str, os.PathLike)) and f"/{LOADS}" in os.fspath(given[0]):
                self.calls += 1
                if self.calls == self._number:
                    raise OSError(self._code, os.strerror(self._code), os.fspath(given[0]))
            return call(*given, **named)

        return called


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES], ids=errno.errorcode.get)
def test_what_the_system_refuses_below_the_loads_is_one_of_our_errors(
    graph: Graph, tmp_path: Path, code: int
) -> None:
    """Every call fails once; the load says why, or it lands, and the next one works."""
    names = [f"p{number}" for number in range(20)]
    source = tmp_path / "people.jsonl"
    source.write_text(
        "".join(json.dumps({"type": "Person", "data": {"name": name}}) + "\n" for name in names)
    )
    number, refused = 0, []
    while True:
        number += 1
        files = FailingFiles(number, code)
        with pytest.MonkeyPatch.context() as patch:
            for place, name in OPENERS:
                patch.setattr(place, name, files.around(getattr(place, name)))
            try:
                graph.load(source, mode="merge", engine="local")
            except EnvironmentFault as error:
                refused.append(str(error))
        if files.calls < number:
            break
    assert len(refused) > 10
    assert all(os.strerror(code) in message for message in refused)
    assert set(rows_of(graph, "Person")) == {"ann", *names}
    assert graph.verify().violations == ()


def test_bytes_that_are_no_text_in_the_schema_are_a_damaged_file(tmp_path: Path) -> None:
    make_graph(tmp_path / "g", SCHEMA).close()
    for name in ("_schema.pg", "_schema.ir.json", "__schema_state.json"):
        path = tmp_path / "g" / name
        content = path.read_bytes()
        path.write_bytes(b"\xff\xfe" + content)
        with pytest.raises(OmnigraphError, match="it is not text") as refused:
            omnigraph.open(tmp_path / "g", settings=FAST)
        assert name in str(refused.value)
        path.write_bytes(content)
