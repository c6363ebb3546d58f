"""A clone compares what it copies with the checksums of the source, and brings along those of its files."""

from pathlib import Path

import pytest

import omnigraph
from graphs import make_graph, run
from omnigraph.api.graph import Graph
from omnigraph.core.errors import Corrupt
from omnigraph.storage.checksums import record_of
from omnigraph.storage.layout import CHECKSUMS
from stores import Store
from travelling import SMALL, cloned, files_of, goes_on, make, opened

pytestmark = pytest.mark.slow


@pytest.fixture
def source(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "source"))


@pytest.fixture
def target(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "clone"))


def flip(graph: Graph, pattern: str) -> set[str]:
    """One bit of every file of the graph that matches; their names."""
    paths = list(Path(graph.uri).glob(pattern))
    for path in paths:
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 4
        path.write_bytes(bytes(data))
    return {str(path.relative_to(graph.uri)) for path in paths}


@pytest.mark.parametrize(
    "pattern", ["nodes/*/data/*.lance", "edges/*/data/*.lance", "nodes/*/_versions/*.manifest"]
)
@pytest.mark.parametrize("heads_only", [False, True])
def test_a_damaged_file_of_the_source_is_not_copied(
    source: Store, target: Store, pattern: str, *, heads_only: bool
) -> None:
    with make_graph(Path(source.uri), SMALL) as graph:
        run(graph, 'insert P { k: "a" } insert P { k: "b" } insert E { from: "a", to: "b" }')
        commits = {each.id for each in graph.commits.list()}
        damaged = flip(graph, pattern)
    with pytest.raises(Corrupt) as raised:
        cloned(source, target, heads_only=heads_only)
    assert raised.value.file in damaged
    assert raised.value.commit in commits
    assert not damaged & set(files_of(target))
    with pytest.raises(omnigraph.errors.OmnigraphError):
        opened(target)


def test_a_clone_without_history_has_the_checksums_of_its_files(
    source: Store, target: Store, tmp_path: Path
) -> None:
    make(source, tmp_path)
    cloned(source, target, heads_only=True)
    with opened(target) as graph:
        report = graph.verify(deep=True)
        assert report.ok, report.violations
        whole = report.files
        branches = graph.branches.list()
        commits = {each.id for branch in branches for each in graph.commits.list(branch=branch, merged=True)}
        for pattern in ("nodes/*/data/*.lance", "nodes/*/_versions/*.manifest", "edges/*/data/*.lance"):
            for path in Path(graph.uri).glob(pattern):
                kept = path.read_bytes()
                path.write_bytes(kept[:-20] + bytes([kept[-20] ^ 1]) + kept[-19:])
                name = str(path.relative_to(graph.uri))
                found, *others = graph.verify(deep=True).corrupt
                assert (found.file, others) == (name, [])
                assert found.commit in commits
                path.write_bytes(kept)
        goes_on(graph)
        assert graph.verify(deep=True).files > whole


def test_the_checksums_of_a_clone_without_history_are_checked_themselves(
    source: Store, target: Store, tmp_path: Path
) -> None:
    make(source, tmp_path)
    cloned(source, target, heads_only=True)
    with opened(target) as graph:
        damaged = flip(graph, f"{CHECKSUMS}/*")
        assert damaged
        assert {each.file for each in graph.verify(deep=True).corrupt} == damaged
        assert not graph.verify().ok


def test_checksums_of_a_branch_that_was_made_again_are_forgotten(source: Store, target: Store) -> None:
    """The new branch has files of the same names."""
    with make_graph(Path(source.uri), SMALL) as graph:
        run(graph, 'insert P { k: "a" }')
        graph.branches.create("b")
        run(graph, 'insert P { k: "first" }', branch="b")
        cloned(source, target, heads_only=True)
        graph.branches.delete("b")
        graph.branches.create("b")
        run(graph, 'insert P { k: "second" }', branch="b")
        run(graph, 'insert P { k: "third" }', branch="b")
    with opened(target) as graph:
        graph.branches.delete("b")
        graph.branches.create("b")
        run(graph, 'insert P { k: "own" }', branch="b")
        report = graph.verify(deep=True)
        assert report.ok, report.violations


def test_a_clone_of_a_clone_without_history_keeps_the_checksums(
    source: Store, target: Store, tmp_path: Path
) -> None:
    make(source, tmp_path)
    cloned(source, target, heads_only=True)
    second = Store(str(tmp_path / "second"))
    cloned(target, second)
    with opened(target, read_only=True) as first, opened(second, read_only=True) as copy:
        expected, found = first.verify(deep=True), copy.verify(deep=True)
    assert found.ok, found.violations
    assert (found.files, found.bytes) == (expected.files, expected.bytes)


def test_a_clone_brought_up_to_date_has_each_checksum_once(
    source: Store, target: Store, tmp_path: Path
) -> None:
    make(source, tmp_path)
    cloned(source, target, heads_only=True)
    with opened(source) as graph:
        goes_on(graph)
    cloned(source, target, heads_only=True)
    names = [
        name
        for file in target.adapter().list_dir(CHECKSUMS)
        for line in target.adapter().read_text(f"{CHECKSUMS}/{file}").splitlines()
        for name in (each.name for each in record_of(line).files)
    ]
    assert len(names) == len(set(names)) > 0
    with opened(target, read_only=True) as graph:
        assert graph.verify(deep=True).ok
