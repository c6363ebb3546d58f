"""A load whose process dies before Phase A: nothing is visible, and another process goes on from there."""

import json
import os
import shutil
from pathlib import Path

import pytest

import omnigraph
from crash.harness import CUT, run_script
from graphs import FAST, make_graph, run, state_of, unchanged
from omnigraph.api.graph import Graph
from omnigraph.core.errors import (
    BlobSourceError,
    ConstraintViolation,
    IoFailure,
    LoadFormatError,
    LoadNotFound,
    LoadNotResumable,
    StorageTransient,
)
from omnigraph.core.failpoints import Callback, Raise, Window, activate
from omnigraph.pipeline.input import reader
from omnigraph.pipeline.load import journal as resume
from omnigraph.storage.layout import LOADS

SCHEMA = """
node Person { name: String @key  age: I32?  nick: String? @unique }
node Note { text: String }
edge Knows: Person -> Person @card(0..3)
"""
FILES = 4
PER_FILE = 50
LOADER = """
import os, sys, omnigraph
from omnigraph.core.settings import Settings
os.cpu_count = lambda: 1  # one piece after the other
path, mode, *sources = sys.argv[1:]
with omnigraph.open(path, settings=Settings(durability="os")) as graph:
    graph.load(sources, mode=mode, engine="local")
"""
STAGES = {
    Window.LOAD_SPLIT_STAGED: "pass,kill",
    Window.LOAD_POST_STAGE: "kill",
    Window.LOAD_BETWEEN_CHECKS: "kill",
    Window.LOAD_POST_VERIFY: "kill",
    Window.MUTATION_POST_STAGE_PRE_QUEUE: "kill",
}
"""Where the driver is killed, from the first split to the last moment before Phase A."""


def write_input(directory: Path) -> list[Path]:
    """Four files, one split each: people, their edges and notes without ids, in every file."""
    directory.mkdir()
    paths = []
    for file in range(FILES):
        names = [f"p{n:03}" for n in range(file * PER_FILE, (file + 1) * PER_FILE)]
        records = [
            {"type": "Person", "data": {"name": name, "age": 7, "nick": f"n-{name}"}} for name in names
        ]
        records += [{"edge": "Knows", "from": name, "to": "p000"} for name in names]
        records += [{"type": "Note", "data": {"text": name}} for name in names]
        path = directory / f"part-{file}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        paths.append(path)
    return paths


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    return write_input(tmp_path / "input")


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g", SCHEMA) as made:
        run(made, 'insert Person { name: "old", nick: "old" }')
        yield made


def killed(graph: Graph, sources: list[Path], window: Window, action: str, mode: str = "append") -> str:
    """Let a process die in the window; the id of the load it leaves."""
    status, errors = run_script(LOADER, graph.uri, mode, *sources, failpoints=f"{window.value}={action}")
    assert status == CUT, (status, errors)
    (waiting,) = graph.resumable_loads()
    return waiting.id


def contents(graph: Graph) -> dict[str, int]:
    """How many entities there are of each type, and that no id occurs twice."""
    counts: dict[str, int] = {}
    seen = set()
    for line in graph.export().splitlines():
        record = json.loads(line)
        name = record.get("type") or record["edge"]
        counts[name] = counts.get(name, 0) + 1
        assert (name, record["data"]["id"]) not in seen
        seen.add((name, record["data"]["id"]))
    return counts


LOADED = {"Person": FILES * PER_FILE + 1, "Knows": FILES * PER_FILE, "Note": FILES * PER_FILE}


def data_files(graph: Graph) -> set[str]:
    root = Path(graph.uri)
    return {
        str(path) for kind in ("nodes", "edges") for path in (root / kind).rglob("*.lance") if path.is_file()
    }


def referenced_files(graph: Graph) -> set[str]:
    """Every data file that some version of some table names."""
    found: set[str] = set()
    session = graph.session
    for entry in session.manifest.current(None).entries.values():
        for version in range(1, session.storage.head_version(entry.location, None) + 1):
            handle = session.storage.open_version(entry.table_key, entry.location, None, version)
            for fragment in session.storage.fragments(handle):
                found |= {
                    str(Path(graph.uri) / entry.location / "data" / Path(name).name)
                    for name in fragment.files
                }
    return found


@pytest.mark.crash
@pytest.mark.parametrize("window", STAGES, ids=str)
def test_killed_driver_leaves_nothing_visible_and_is_resumed(
    graph: Graph, sources: list[Path], window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state_of(graph)
    load_id = killed(graph, sources, window, STAGES[window])
    assert state_of(graph) == before
    assert graph.verify().violations == ()
    staged = 2 if window is Window.LOAD_SPLIT_STAGED else FILES
    (waiting,) = graph.resumable_loads()
    assert (waiting.splits, waiting.splits_staged, waiting.mode, waiting.branch) == (
        FILES,
        staged,
        "append",
        "main",
    )
    if staged == FILES:

        def read_again(*_: object) -> None:
            raise AssertionError("a staged split was read again")

        monkeypatch.setattr(reader, "read_chunks", read_again)
    report = graph.load(resume=load_id, engine="local")
    assert (report.load_id, report.splits, report.splits_reused) == (load_id, FILES, staged)
    assert report.total_entities == 3 * FILES * PER_FILE
    assert contents(graph) == LOADED
    assert [commit.operation for commit in graph.commits.list()].count("load") == 1
    assert graph.verify().violations == ()
    assert graph.resumable_loads() == []
    assert list((Path(graph.uri) / LOADS).iterdir()) == []
    with pytest.raises(LoadNotFound):
        graph.load(resume=load_id, engine="local")


@pytest.mark.crash
@pytest.mark.parametrize("window", [Window.LOAD_SPLIT_STAGED, Window.LOAD_POST_VERIFY], ids=str)
def test_files_of_a_load_nobody_resumes_are_unreferenced(
    graph: Graph, sources: list[Path], window: Window
) -> None:
    before = data_files(graph)
    load_id = killed(graph, sources, window, STAGES[window])
    left = data_files(graph) - before
    noted = {
        f"{graph.uri}/{name}"
        for result, _ in resume.Journal(graph.session.root, load_id).entries().values()
        for fragment in result.staged()
        for name in fragment.files
    }
    assert left
    assert left == noted
    assert left & referenced_files(graph) == set()
    graph.load(sources, mode="append", engine="local")
    assert contents(graph) == LOADED
    assert left & referenced_files(graph) == set()
    assert graph.verify().violations == ()


@pytest.mark.crash
def test_checks_of_a_resumed_load_see_the_branch_as_it_is(graph: Graph, sources: list[Path]) -> None:
    load_id = killed(graph, sources, Window.LOAD_POST_VERIFY, "kill")
    run(graph, 'insert Person { name: "new", nick: "n-p001" }')
    with unchanged(graph), pytest.raises(ConstraintViolation, match="nick"):
        graph.load(resume=load_id, engine="local")
    assert graph.resumable_loads() == []


@pytest.mark.crash
@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("touched", "has another time of change"),
        ("longer", "has another size"),
        ("gone", "is gone"),
        ("mode", "mode is 'merge', was 'append'"),
        ("fewer", "is not named"),
        ("restart", "the machine has been restarted"),
    ],
)
def test_nothing_is_reused_when_something_differs(
    graph: Graph, sources: list[Path], change: str, difference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_id = killed(graph, sources, Window.LOAD_POST_STAGE, "kill")
    words: dict[str, object] = {}
    named: list[Path] | None = None
    match change:
        case "touched":
            found = sources[1].stat()
            os.utime(sources[1], ns=(found.st_atime_ns, found.st_mtime_ns + 1))
        case "longer":
            with sources[1].open("a") as file:
                file.write("\n")
        case "gone":
            sources[1].unlink()
        case "mode":
            words = {"mode": "merge"}
        case "fewer":
            named = sources[1:]
        case _:
            monkeypatch.setattr(resume, "boot_id", lambda: "another")
    with unchanged(graph), pytest.raises(LoadNotResumable, match=difference) as refused:
        graph.load(named, resume=load_id, engine="local", **words)
    assert refused.value.load_id == load_id
    assert [each.id for each in graph.resumable_loads()] == [load_id]


@pytest.mark.crash
def test_a_patch_depends_on_the_commit_it_was_staged_against(graph: Graph, sources: list[Path]) -> None:
    load_id = killed(graph, sources, Window.LOAD_POST_STAGE, "kill", mode="patch")
    run(graph, 'insert Note { text: "meanwhile" }')
    with pytest.raises(LoadNotResumable, match="patch depends on it"):
        graph.load(resume=load_id, engine="local")


def interrupted(graph: Graph, sources: list[Path], error: BaseException, **words: object) -> None:
    words = {"mode": "append", "engine": "local"} | words
    with activate(Window.LOAD_POST_STAGE, Raise(error)), pytest.raises(type(error)):
        graph.load(sources, **words)


def test_a_failure_of_the_surroundings_names_the_load_to_resume(graph: Graph, sources: list[Path]) -> None:
    failure = StorageTransient("the store is away")
    interrupted(graph, sources, failure)
    load_id = failure.details["load_id"]
    assert load_id in (failure.hint or "")
    assert graph.load(sources, mode="append", resume=load_id, engine="local").splits_reused == FILES
    assert contents(graph) == LOADED


def test_a_split_whose_note_has_a_flipped_bit_is_staged_again(graph: Graph, sources: list[Path]) -> None:
    """A digit that became another one would publish other rows than were staged."""
    failure = StorageTransient("the store is away")
    interrupted(graph, sources, failure)
    load_id = failure.details["load_id"]
    note = min((Path(graph.uri) / "__loads" / load_id / "journal").glob("split-*.json"))
    whole = note.read_text()
    at = whole.index(str(PER_FILE))
    note.write_text(whole[:at] + chr(ord(whole[at]) ^ 1) + whole[at + 1 :])
    assert graph.load(sources, mode="append", resume=load_id, engine="local").splits_reused == FILES - 1
    assert contents(graph) == LOADED


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LoadFormatError(line=1, message="x")])
def test_an_interrupt_or_a_refusal_leaves_nothing(
    graph: Graph, sources: list[Path], error: BaseException
) -> None:
    before = data_files(graph)
    interrupted(graph, sources, error)
    assert data_files(graph) == before
    assert graph.resumable_loads() == []
    assert list((Path(graph.uri) / LOADS).iterdir()) == []


@pytest.mark.slow
def test_a_load_that_runs_is_not_resumed_beside_itself(graph: Graph, sources: list[Path]) -> None:
    refused: list[LoadNotResumable] = []

    def resume_too(_: Window) -> None:
        (running,) = graph.resumable_loads()
        with omnigraph.open(graph.uri, settings=FAST) as other, pytest.raises(LoadNotResumable) as found:
            other.load(resume=running.id, engine="local")
        refused.append(found.value)

    with activate(Window.LOAD_POST_STAGE, Callback(resume_too)):
        graph.load(sources, mode="append", engine="local")
    assert "still runs" in str(refused[0])
    assert contents(graph) == LOADED


@pytest.mark.slow
def test_records_left_out_stay_left_out_after_a_resume(
    graph: Graph, sources: list[Path], tmp_path: Path
) -> None:
    with sources[2].open("a") as file:
        file.write(json.dumps({"type": "Person", "data": {"name": "x", "nick": "old"}}) + "\n")
    failure = IoFailure("the disk is away")
    with activate(Window.LOAD_POST_VERIFY, Raise(failure)), pytest.raises(IoFailure):
        graph.load(sources, mode="append", engine="local", rejects=tmp_path / "aside")
    report = graph.load(resume=failure.details["load_id"], engine="local")
    assert (report.splits_reused, report.records_refused, report.rejects) == (
        FILES,
        1,
        str(tmp_path / "aside"),
    )
    assert contents(graph) == LOADED
    assert len((tmp_path / "aside" / "rejects.jsonl").read_text().splitlines()) == 1


def test_a_stream_is_kept_for_the_resume(graph: Graph, sources: list[Path]) -> None:
    failure = IoFailure("the disk is away")
    with (
        sources[0].open("rb") as stream,
        activate(Window.LOAD_POST_VERIFY, Raise(failure)),
        pytest.raises(IoFailure),
    ):
        graph.load(stream, mode="append", engine="local")
    shutil.rmtree(sources[0].parent)
    assert graph.load(resume=failure.details["load_id"], engine="local").records_read == 3 * PER_FILE


@pytest.mark.slow
def test_what_was_settled_after_phase_a_is_never_loaded_again(graph: Graph, sources: list[Path]) -> None:
    """The process died after its publish and before it forgot its journal: the record is still there."""
    kept: dict[Path, bytes] = {}

    def keep(_: Window) -> None:
        for path in (Path(graph.uri) / LOADS).rglob("*"):
            if path.is_file() and path.suffix in {".json", ".arrow"}:
                kept[path] = path.read_bytes()

    with activate(Window.LOAD_POST_VERIFY, Callback(keep)):
        load_id = graph.load(sources, mode="append", engine="local").load_id
    for path, content in kept.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with unchanged(graph), pytest.raises(LoadNotResumable, match="settled it"):
        graph.load(resume=load_id, engine="local")
    assert graph.resumable_loads() == []


def test_a_refused_blob_is_looked_at_again(tmp_path: Path) -> None:
    """It may be there by now; what else is staged is reused."""
    pictures = tmp_path / "pics"
    pictures.mkdir()
    (pictures / "a.png").write_bytes(b"a")
    paths = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}.jsonl"
        address = f"file://{pictures}/{name}.png"
        path.write_text(json.dumps({"type": "Doc", "data": {"name": name, "body": address}}) + "\n")
        paths.append(path)
    make_graph(tmp_path / "g", "node Doc { name: String @key  body: Blob }").close()
    failure = IoFailure("the disk is away")
    with omnigraph.open(tmp_path / "g", settings=FAST, blob_sources=[pictures]) as graph:
        with activate(Window.LOAD_POST_STAGE, Raise(failure)), pytest.raises(IoFailure):
            graph.load(paths, mode="append", engine="local")
        load_id = failure.details["load_id"]
        with pytest.raises(BlobSourceError):
            graph.load(resume=load_id, engine="local")
        (pictures / "b.png").write_bytes(b"b")
        report = graph.load(resume=load_id, engine="local")
        assert (report.splits_reused, report.records_refused, report.total_entities) == (1, 0, 2)
        assert graph.blob("Doc", "b", "body").read() == b"b"
        assert graph.verify().violations == ()
    staged = [
        path for path in (tmp_path / "g").rglob("*.lance") if "data" in path.parts and "nodes" in path.parts
    ]
    assert len(staged) == 2


def as_an_earlier_program_wrote_it(root: Path) -> None:
    """Journals of format 2: files of the graph by their full paths, fragments as the table format has them."""

    def full(value: object) -> object:
        match value:
            case dict():
                return {full(key): full(each) for key, each in value.items()}
            case list():
                return [full(each) for each in value]
            case str() if value.startswith((f"{LOADS}/", "nodes/", "edges/")):
                return f"{root}/{value}"
        return value

    for path in (root / LOADS).rglob("*.json"):
        members = json.loads(path.read_text())
        if "format" in members:
            changed = {"format": 2, "targets": members["targets"]}
        else:
            staged = members["fragments"]
            changed = {
                "fragments": {key: [each["metadata"] for each in some] for key, some in staged.items()},
                "files": full([name for some in staged.values() for each in some for name in each["files"]]),
            }
        path.write_text(json.dumps(full(members) | changed))


@pytest.fixture(params=[False, True], ids=["relative", "full paths"])
def left_behind(request: pytest.FixtureRequest, tmp_path: Path, sources: list[Path]) -> str:
    """A graph in `g` with a load of a stream that waits for its resume; the id of the load."""
    failure = IoFailure("the disk is away")
    with (
        make_graph(tmp_path / "g", SCHEMA) as graph,
        sources[0].open("rb") as stream,
        activate(Window.LOAD_POST_VERIFY, Raise(failure)),
        pytest.raises(IoFailure),
    ):
        graph.load(stream, mode="append", engine="local")
    kept = "".join(path.read_text() for path in (tmp_path / "g" / LOADS).rglob("*.json"))
    assert str(tmp_path / "g") not in kept
    if request.param:
        as_an_earlier_program_wrote_it(tmp_path / "g")
    return failure.details["load_id"]


def test_a_load_is_resumed_where_its_graph_was_moved(tmp_path: Path, left_behind: str) -> None:
    (tmp_path / "g").rename(tmp_path / "moved")
    with omnigraph.open(tmp_path / "moved", settings=FAST) as graph:
        report = graph.load(resume=left_behind, engine="local")
        assert (report.splits_reused, report.records_read) == (1, 3 * PER_FILE)
        assert contents(graph) == {"Person": PER_FILE, "Knows": PER_FILE, "Note": PER_FILE}
        assert graph.resumable_loads() == []
        assert graph.verify().violations == ()
    assert not (tmp_path / "g").exists()


def test_a_load_that_is_refused_in_a_copy_leaves_the_original_alone(tmp_path: Path, left_behind: str) -> None:
    shutil.copytree(tmp_path / "g", tmp_path / "copy")

    def files(name: str) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}

    before = files("g")
    with omnigraph.open(tmp_path / "copy", settings=FAST) as graph:
        run(graph, 'insert Person { name: "other", nick: "n-p000" }')
        staged = {path for path in data_files(graph) - referenced_files(graph) if "/data/" in path}
        assert staged
        with pytest.raises(ConstraintViolation):
            graph.load(resume=left_behind, engine="local")
        assert data_files(graph) & staged == set()
        assert graph.resumable_loads() == []
    assert files("g") == before
