"""What a load takes as its input and where it leaves what it refuses: pipes, streams, directories of rejects."""

import io
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graphs import make_graph, rows_of, unchanged
from omnigraph.api.graph import Graph
from omnigraph.core.errors import BadRequest, IoFailure, KeyConflict, LoadFormatError, OmnigraphError
from omnigraph.core.failpoints import Callback, Raise, Window, activate

ANN = '{"type":"Person","data":{"name":"ann","age":3}}\n'
BOB = '{"type":"Person","data":{"name":"bob"}}\n'
WRONG = '{"type":"Person","data":{"name":"cid","age":"old"}}\n'
NOTES = '{"type":"Note","data":{"id":"n1","text":"a"}}\n{"type":"Note","data":{"id":"n1","text":"b"}}\n'


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g") as made:
        yield made


def refused(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "rejects.jsonl").read_text().splitlines()]


@contextmanager
def fifo(path: Path, text: str) -> Iterator[Path]:
    """A named pipe that somebody writes once."""
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(text,), daemon=True)
    writer.start()
    yield path
    writer.join(10)
    assert not writer.is_alive()


def test_refused_records_of_a_pipe_are_set_aside(graph: Graph, tmp_path: Path) -> None:
    with fifo(tmp_path / "people", ANN + WRONG) as source:
        report = graph.load(source, mode="append", engine="local", rejects=tmp_path / "aside")
    assert (report.records_read, report.records_refused) == (2, 1)
    (kept,) = refused(tmp_path / "aside")
    assert (kept["file"], kept["line"], kept["record"]["data"]["name"]) == (str(source), 2, "cid")


def test_a_pipe_is_read_twice_where_a_record_is_superseded(graph: Graph, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, NOTES.encode())
    os.close(write)
    report = graph.load(f"/dev/fd/{read}", mode="merge", engine="local")
    os.close(read)
    assert [count.superseded for count in report.nodes] == [1]
    assert [row["text"] for row in rows_of(graph, "Note").values()] == ["b"]


def test_the_name_of_a_pipe_tells_its_format(graph: Graph, tmp_path: Path) -> None:
    with fifo(tmp_path / "Person.csv", "name,age\nann,3\n") as source:
        report = graph.load(source, mode="append", engine="local")
    assert report.total_entities == 1


def test_problems_of_a_stream_name_the_stream(graph: Graph, tmp_path: Path) -> None:
    stream = io.BytesIO((ANN + WRONG).encode())
    with pytest.raises(LoadFormatError, match=r"^<stream>:2: "):
        graph.load(stream, mode="append", engine="local")
    stream = io.BytesIO((ANN + WRONG).encode())
    stream.name = "<stdin>"
    with pytest.raises(LoadFormatError, match=r"^<stdin>:2: "):
        graph.load(stream, mode="append", engine="local")


@pytest.mark.parametrize("source", [io.StringIO(ANN), 5, [5], b"people.jsonl"])
def test_what_is_no_input_is_refused_with_a_hint(graph: Graph, source) -> None:
    with pytest.raises(BadRequest) as caught:
        graph.load(source, mode="append", engine="local")
    assert caught.value.hint


def test_the_refused_records_of_another_load_are_never_written_over(graph: Graph, tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    source = tmp_path / "input.jsonl"
    source.write_text(ANN + WRONG)
    graph.load(source, mode="append", engine="local", rejects=aside)
    before = refused(aside)
    source.write_text(BOB)
    with unchanged(graph), pytest.raises(BadRequest, match="another load") as caught:
        graph.load(source, mode="append", engine="local", rejects=aside)
    assert caught.value.hint
    (aside / "rejects.jsonl").rename(aside / "first.jsonl")
    assert graph.load(source, mode="append", engine="local", rejects=aside).records_refused == 0
    assert [path.name for path in aside.iterdir()] == ["first.jsonl"]
    assert [each["line"] for each in before] == [2]


def test_two_loads_beside_each_other_do_not_share_a_file_of_rejects(graph: Graph, tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    source = tmp_path / "input.jsonl"
    source.write_text(ANN + WRONG)

    def other(_: Window) -> None:
        aside.mkdir()
        (aside / "rejects.jsonl").write_text("of another load")

    staged = activate(Window.LOAD_POST_STAGE, Callback(other))
    with unchanged(graph), staged, pytest.raises(BadRequest, match="another load"):
        graph.load(source, mode="append", engine="local", rejects=aside)
    assert [path.read_text() for path in aside.iterdir()] == ["of another load"]


@pytest.mark.parametrize("below", ["taken", "taken/below/it"])
def test_rejects_need_a_directory_before_any_work(graph: Graph, tmp_path: Path, below: str) -> None:
    (tmp_path / "taken").write_text("a file")
    source = tmp_path / "input.jsonl"
    source.write_text(ANN + WRONG)
    with unchanged(graph), pytest.raises(BadRequest, match="is not a directory") as caught:
        graph.load(source, mode="append", engine="local", rejects=tmp_path / below)
    assert caught.value.hint


def test_a_load_that_fails_leaves_no_rejects(graph: Graph, tmp_path: Path) -> None:
    """Nothing was loaded, so nothing was left out; the next try may use the directory."""
    source = tmp_path / "input.jsonl"
    source.write_text(ANN + WRONG)
    failing = activate(Window.LOAD_POST_VERIFY, Raise(BadRequest("no")))
    with failing, pytest.raises(OmnigraphError):
        graph.load(source, mode="append", engine="local", rejects=tmp_path / "aside")
    graph.load(source, mode="append", engine="local", rejects=tmp_path / "aside")
    assert len(refused(tmp_path / "aside")) == 1


def test_a_resumed_load_knows_its_own_rejects(graph: Graph, tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    source = tmp_path / "input.jsonl"
    source.write_text(ANN + WRONG)
    failure = IoFailure("the disk is away")
    with activate(Window.LOAD_POST_STAGE, Raise(failure)), pytest.raises(IoFailure):
        graph.load(source, mode="append", engine="local", rejects=aside)
    load_id = failure.details["load_id"]
    aside.mkdir()
    (aside / "rejects.jsonl").write_text("of another load")
    with pytest.raises(BadRequest, match="another load"):
        graph.load(resume=load_id, engine="local")
    (aside / "rejects.jsonl").unlink()
    later = IoFailure("the disk is away again")
    with activate(Window.LOAD_POST_VERIFY, Raise(later)), pytest.raises(IoFailure):
        graph.load(resume=load_id, engine="local")
    assert graph.load(resume=load_id, engine="local").records_refused == 1
    assert len(refused(aside)) == 1


def test_an_id_that_occurs_twice_is_not_said_to_exist(graph: Graph, tmp_path: Path) -> None:
    source = tmp_path / "input.jsonl"
    source.write_text(ANN + NOTES)
    with pytest.raises(KeyConflict) as caught:
        graph.load(source, mode="append", engine="local")
    assert (
        caught.value.message
        == f"{source}:2: node type 'Note' has an entity with id 'n1' 2 times in the input"
    )
    assert caught.value.hint is not None
    assert "of its own" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("Person.csv", "name,zz\nann,1\n", "unknown field 'zz' for Person"),
        ("people.csv", "name\nann\n", "unknown type 'people'"),
        ("Knows.csv", "from\nann\n", "Knows needs exactly one of the columns 'to' and 'dst'"),
    ],
)
def test_what_is_wrong_with_columns_names_the_file(
    graph: Graph, tmp_path: Path, name: str, text: str, words: str
) -> None:
    source = tmp_path / name
    source.write_text(text)
    with pytest.raises((BadRequest, LoadFormatError)) as caught:
        graph.load(source, mode="append", engine="local")
    assert str(caught.value).startswith(f"{source}: {words}")


def test_an_edge_without_an_end_says_which(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "Knows.csv").write_text("from,to\nann,\n")
    with pytest.raises(LoadFormatError, match=r":2: Knows\.to must have a value$"):
        graph.load(tmp_path / "Knows.csv", mode="append", engine="local")


def test_a_cell_of_a_list_wants_a_json_array(tmp_path: Path) -> None:
    (tmp_path / "T.csv").write_text("k,tags,v\na,x|y,\nb,,1 2\n")
    with (
        make_graph(tmp_path / "t", "node T { k: String @key  tags: [String]?  v: Vector(2)? }") as graph,
        pytest.raises(LoadFormatError, match=r"T\.tags: 'x\|y' is not a JSON array of String") as caught,
    ):
        graph.load(tmp_path / "T.csv", mode="append", engine="local")
    assert "T.v: '1 2' is not a JSON array of 2 numbers" in str(caught.value.details["problems"])


def test_an_unknown_type_to_replace_is_not_taken_for_that_of_a_file(graph: Graph, tmp_path: Path) -> None:
    source = tmp_path / "input.jsonl"
    source.write_text(ANN)
    with pytest.raises(LoadFormatError, match="unknown type 'Persn'; did you mean 'Person'") as caught:
        graph.load(source, mode="overwrite", engine="local", replace_types=["Persn"])
    assert "--replace-type" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["more.jsonl.bz2", "below/Person.csv.XZ", "Person.parquet.zip"])
def test_packed_data_nobody_reads_is_not_left_out_of_a_directory(
    graph: Graph, tmp_path: Path, name: str
) -> None:
    source = tmp_path / "people"
    (source / name).parent.mkdir(parents=True)
    (source / "a.jsonl").write_text(ANN)
    (source / name).write_bytes(b"BZh9")
    with unchanged(graph), pytest.raises(BadRequest, match="a load reads gzip and zstd only") as caught:
        graph.load(source, mode="append", engine="local")
    assert str(source / name) in str(caught.value)
    assert caught.value.hint
    (source / name).rename(source / "_set_aside.jsonl.bz2")
    (source / "pictures.zip").write_bytes(b"PK")
    (source / "notes.txt").write_text("not data")
    assert graph.load(source, mode="append", engine="local").records_read == 1


@pytest.mark.parametrize("pattern", ["", "*.jsonl"])
def test_a_link_to_nothing_is_not_left_out(graph: Graph, tmp_path: Path, pattern: str) -> None:
    source = tmp_path / "people"
    source.mkdir()
    (source / "a.jsonl").write_text(ANN)
    for name in ("b.jsonl", "c.jsonl", ".hidden.jsonl", "notes.txt"):
        (source / name).symlink_to(tmp_path / "away.jsonl")
    with (
        unchanged(graph),
        pytest.raises(IoFailure, match=r"b\.jsonl' and 1 more: a link to nothing") as caught,
    ):
        graph.load(source / pattern, mode="append", engine="local")
    assert caught.value.hint
    (tmp_path / "away.jsonl").write_text("\n")
    assert graph.load(source / pattern, mode="append", engine="local").records_read == 1
