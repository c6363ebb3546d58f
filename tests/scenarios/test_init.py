"""Creating and opening graphs: claims, crash windows, what a half-made graph looks like."""

import threading
from pathlib import Path

import lance
import pytest

import omnigraph
from crash.harness import EXIT_AT_WINDOW, run_script
from graphs import FAST, PEOPLE, rows_of, run
from omnigraph.core.errors import (
    AlreadyInitialized,
    GraphNotFound,
    InitializationClaimed,
    InitializationCommitted,
    InitializationIndeterminate,
    OmnigraphError,
    SchemaContractMissing,
    SchemaDrift,
    SchemaSyntaxError,
    StorageTransient,
)
from omnigraph.core.failpoints import Callback, InjectedFailure, Raise, Window, activate
from omnigraph.engine.schema_contract import accept_schema, write_contract
from omnigraph.engine.session import GraphSession, connect_storage
from omnigraph.manifest.store import ManifestStore

CONTRACT = {"_schema.pg", "_schema.ir.json", "__schema_state.json"}


def made_here(path: Path, schema: str = PEOPLE) -> omnigraph.Graph:
    """Creates it here: what other tests get may be a copy."""
    return omnigraph.init(path, schema=schema, settings=FAST)


def names(path: Path) -> set[str]:
    return {each.name for each in path.iterdir()} if path.exists() else set()


@pytest.mark.parametrize(
    "window", [Window.INIT_AFTER_SCHEMA_PG_WRITTEN, Window.INIT_AFTER_SCHEMA_CONTRACT_WRITTEN]
)
def test_a_failed_init_removes_its_files(tmp_path: Path, window: Window) -> None:
    with activate(window, Raise()), pytest.raises(InjectedFailure):
        made_here(tmp_path / "g")
    assert not names(tmp_path / "g") & CONTRACT
    with pytest.raises(GraphNotFound):
        omnigraph.open(tmp_path / "g")
    with made_here(tmp_path / "g") as graph:
        run(graph, 'insert Note { text: "a" }')


def test_an_error_after_the_manifest_exists_keeps_the_graph(tmp_path: Path) -> None:
    with (
        activate(Window.INIT_AFTER_COORDINATOR_INIT, Raise()),
        pytest.raises(InitializationCommitted, match="was created") as caught,
    ):
        made_here(tmp_path / "g")
    assert isinstance(caught.value.__cause__, InjectedFailure)
    assert names(tmp_path / "g") >= CONTRACT
    with omnigraph.open(tmp_path / "g") as graph:
        run(graph, 'insert Note { text: "a" }')
        assert graph.verify().ok


def test_a_creation_that_stopped_inside_its_manifest_is_taken_over_as_advised(tmp_path: Path) -> None:
    root, settings, adapter = connect_storage(str(tmp_path / "g"), settings=FAST, storage_options=None)
    adapter.write_text_if_absent("_schema.pg", PEOPLE)
    write_contract(adapter, accept_schema(PEOPLE))
    GraphSession(root, settings=settings, adapter=adapter).manifest._empty_manifest()
    with pytest.raises(GraphNotFound) as caught:
        omnigraph.open(tmp_path / "g")
    assert "`omnigraph init --force`" in str(caught.value.hint)
    with pytest.raises(InitializationClaimed):
        made_here(tmp_path / "g")
    with omnigraph.init(tmp_path / "g", schema=PEOPLE, force=True, settings=FAST) as graph:
        run(graph, 'insert Note { text: "a" }')
        assert graph.verify().ok


def test_a_creation_nobody_can_judge_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage stops to answer: nothing is removed on a guess, and what was made can be taken over."""

    def silent(_: ManifestStore) -> bool:
        raise StorageTransient("the storage does not answer")

    def stop(_: Window) -> None:
        monkeypatch.setattr(ManifestStore, "exists", silent)
        raise InjectedFailure("stopped")

    with (
        activate(Window.INIT_AFTER_SCHEMA_CONTRACT_WRITTEN, Callback(stop)),
        pytest.raises(InitializationIndeterminate, match="does not answer") as caught,
    ):
        made_here(tmp_path / "g")
    assert isinstance(caught.value.__cause__, InjectedFailure)
    assert names(tmp_path / "g") >= CONTRACT
    monkeypatch.undo()
    with omnigraph.init(tmp_path / "g", schema=PEOPLE, force=True, settings=FAST) as graph:
        run(graph, 'insert Note { text: "a" }')


@pytest.mark.crash
@pytest.mark.parametrize(
    ("window", "exists"),
    [
        (Window.INIT_AFTER_SCHEMA_PG_WRITTEN, False),
        (Window.INIT_AFTER_SCHEMA_CONTRACT_WRITTEN, False),
        (Window.INIT_AFTER_COORDINATOR_INIT, True),
    ],
)
def test_a_creator_that_dies(tmp_path: Path, window: Window, *, exists: bool) -> None:
    code = f"import omnigraph; omnigraph.init({str(tmp_path / 'g')!r}, schema={PEOPLE!r})"
    status, errors = run_script(code, failpoints=f"{window.value}=exit", durability="full")
    assert status == EXIT_AT_WINDOW, errors
    if exists:
        with pytest.raises(AlreadyInitialized):
            made_here(tmp_path / "g")
        with pytest.raises(AlreadyInitialized):
            omnigraph.init(tmp_path / "g", schema=PEOPLE, force=True)
        omnigraph.open(tmp_path / "g").close()
        return
    with pytest.raises(GraphNotFound):
        omnigraph.open(tmp_path / "g")
    with pytest.raises(InitializationClaimed):
        made_here(tmp_path / "g")
    with omnigraph.init(tmp_path / "g", schema=PEOPLE, force=True, settings=FAST) as graph:
        run(graph, 'insert Note { text: "a" }')
        assert graph.verify().ok


def test_two_inits_at_once_make_one_graph(tmp_path: Path) -> None:
    outcomes: list[object] = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait(30)
        try:
            graph = made_here(tmp_path / "g", f"node T{number} {{ name: String @key }}")
            graph.close()
            outcomes.append(number)
        except OmnigraphError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (winner,) = [each for each in outcomes if isinstance(each, int)]
    assert all(isinstance(each, int | AlreadyInitialized | InitializationClaimed) for each in outcomes), (
        outcomes
    )
    with omnigraph.open(tmp_path / "g") as graph:
        run(graph, f'insert T{winner} {{ name: "a" }}')


def test_init_refuses_a_bad_schema_before_it_writes(tmp_path: Path) -> None:
    with pytest.raises(SchemaSyntaxError):
        made_here(tmp_path / "g", "node {")
    assert not (tmp_path / "g").exists()


def test_init_again(tmp_path: Path) -> None:
    made_here(tmp_path / "g").close()
    with pytest.raises(AlreadyInitialized) as caught:
        made_here(tmp_path / "g")
    assert caught.value.exit_status == 3


def test_open_without_a_schema_file(tmp_path: Path) -> None:
    made_here(tmp_path / "g").close()
    (tmp_path / "g" / "_schema.pg").unlink()
    for opening in (omnigraph.open, omnigraph.open_read_only):
        with pytest.raises(SchemaContractMissing):
            opening(tmp_path / "g")


def test_a_schema_file_that_changes_under_an_open_graph_is_noticed_by_every_call(tmp_path: Path) -> None:
    count = "query q() { match { $p: Person } return { count($p) as n } }"
    with made_here(tmp_path / "g") as graph:
        file = tmp_path / "g" / "_schema.pg"
        text = file.read_text()
        for change, raised in (
            (lambda: file.write_text(text + "node Other { name: String @key }\n"), SchemaDrift),
            (lambda: file.write_text("node {"), SchemaDrift),
            (file.unlink, SchemaContractMissing),
        ):
            assert graph.query(count)[0] == {"n": 0}
            change()
            for _ in range(2):
                with pytest.raises(raised):
                    graph.query(count)
                with pytest.raises(raised):
                    run(graph, 'insert Person { name: "a" }')
                with pytest.raises(raised):
                    graph.schema_source()
            file.write_text("// only a comment more\n" + text)
        assert graph.query(count)[0] == {"n": 0}
        assert graph.schema_source() == "// only a comment more\n" + text


def test_schema_and_query_from_files(tmp_path: Path) -> None:
    (tmp_path / "s.pg").write_text(PEOPLE)
    (tmp_path / "q.gq").write_text(
        'query a() { insert Note { text: "x" } } query b() { insert Note { text: "y" } }'
    )
    with omnigraph.init(tmp_path / "g", schema=tmp_path / "s.pg", settings=FAST) as graph:
        graph.mutate(str(tmp_path / "q.gq"), name="b")
        assert [r["text"] for r in rows_of(graph, "Note").values()] == ["y"]
        with pytest.raises(OmnigraphError) as caught:
            graph.mutate(tmp_path / "missing.gq")
        assert caught.value.kind == "io"


def test_every_dataset_of_a_fresh_graph_is_made_alike(tmp_path: Path) -> None:
    with made_here(tmp_path / "g") as graph:
        run(graph, 'insert Note { text: "a" }', actor="ana")
        graph.close()
    datasets = {path.parent for path in (tmp_path / "g").rglob("_versions")}
    assert {path.relative_to(tmp_path / "g").parts[0] for path in datasets} == {
        "__manifest",
        "_graph_commits.lance",
        "_graph_commit_actors.lance",
        "nodes",
        "edges",
    }
    for path in datasets:
        dataset = lance.dataset(str(path))
        assert dataset.data_storage_version == "2.2", path
        assert not dataset.has_stable_row_ids, path
        assert not [key for key in dataset.config() if "cleanup" in key], path


def test_read_only_open_of_a_graph_writes_nothing(tmp_path: Path) -> None:
    with made_here(tmp_path / "g") as graph:
        run(graph, 'insert Note { text: "a" }')
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "g").rglob("*")}
    with omnigraph.open_read_only(tmp_path / "g") as graph:
        assert graph.export()
        assert len(graph.commits.list()) == 2
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "g").rglob("*")} == before


@pytest.mark.parametrize("name", ["g x", "100%", "größe", "a%20b"])
def test_a_file_address_is_decoded(tmp_path: Path, name: str) -> None:
    with made_here(tmp_path / name) as graph:
        run(graph, 'insert Person { name: "ann" }')
    with omnigraph.open((tmp_path / name).as_uri()) as graph:
        assert set(rows_of(graph, "Person")) == {"ann"}
    with omnigraph.open(str(tmp_path / name)) as graph:
        assert set(rows_of(graph, "Person")) == {"ann"}
