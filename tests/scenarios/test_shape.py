"""What a graph says about its own shape: its indexes, and how large its tables are on every branch."""

from dataclasses import replace
from pathlib import Path

import pytest

import graphs
from omnigraph.core.errors import BranchNotFound, TypeNotFound
from omnigraph.core.events import DurableOperation, StorageCall, TableRead
from omnigraph.engine.tables.layout import save_layout
from omnigraph.storage.layout import branch_directory

SCHEMA = """
node P { name: String @key  n: I32? @index  place: Vector(2)? @index }
edge Knows: P -> P
"""


@pytest.fixture
def graph(tmp_path):
    with graphs.make_graph(tmp_path / "g", SCHEMA) as made:
        made.session.after_publish = None
        graphs.run(made, " ".join(f'insert P {{ name: "p{n}", n: {n} }}' for n in range(10)))
        yield made


def tables_of(graph, **named):
    (found,) = graph.stats(**named).branches
    return {each.table_key: each for each in found.tables}


def manifests(graph, directory):
    return len(list(Path(graph.uri, directory, "_versions").glob("*.manifest")))


def stored(graph):
    return {each.name: each for each in graph.stats().stored}


def test_stats_count_rows_fragments_and_deleted_rows(graph):
    graphs.run(graph, 'insert P { name: "late" }')
    graphs.run(graph, "delete P where n < 4")
    people = tables_of(graph, branch="main")["node:P"]
    assert (people.rows, people.deleted_rows, people.fragments) == (7, 4, 2)
    entry = graph.snapshot().entries["node:P"]
    files = [
        name
        for each in graph.session.storage.fragments(graph.session.open_entry(entry))
        for name in each.files
    ]
    assert people.bytes == sum(Path(graph.uri, name).stat().st_size for name in files)
    assert people.version == entry.version
    assert people.versions == manifests(graph, entry.location)
    graph.optimize()
    people = tables_of(graph, branch="main")["node:P"]
    assert (people.rows, people.deleted_rows, people.fragments) == (7, 0, 1)


def test_stats_show_every_branch_and_whose_tables_it_shows(graph):
    graph.branches.create("b")
    graphs.run(graph, 'delete P where name = "p1"', branch="b")
    report = graph.stats()
    assert [each.branch for each in report.branches] == ["main", "b"]
    owners = {each.branch: {t.table_key: t.owner for t in each.tables} for each in report.branches}
    assert owners["main"] == {"node:P": "main", "edge:Knows": "main"}
    assert owners["b"] == {"node:P": "b", "edge:Knows": "main"}
    b = tables_of(graph, branch="b")["node:P"]
    assert (b.rows, b.deleted_rows) == (9, 1)
    forked = branch_directory(graph.snapshot().entries["node:P"].location, "b")
    assert b.versions == manifests(graph, forked)
    with pytest.raises(BranchNotFound):
        graph.stats(branch="c")


def test_stats_of_a_past_state(graph):
    before = graph.commits.head().id
    graphs.run(graph, 'insert P { name: "late" }')
    assert tables_of(graph, at=before)["node:P"].rows == 10
    assert tables_of(graph)["node:P"].rows == 11


def test_stats_name_every_byte_of_the_directory(graph):
    graphs.run(graph, 'insert Knows { from: "p1", to: "p2" }')
    graph.ensure_indices()
    found = stored(graph)
    assert {"node:P", "edge:Knows", "__manifest", "_schema.pg"} <= set(found)
    below = [path for path in Path(graph.uri).rglob("*") if path.is_file() and "__cache" not in path.parts]
    assert sum(each.files for each in found.values()) == len(below)
    assert sum(each.bytes for each in found.values()) == sum(path.stat().st_size for path in below)


def test_stats_count_caches_with_their_type(tmp_path):
    settings = replace(graphs.FAST, cache_dir=tmp_path / "caches")
    with graphs.make_graph(tmp_path / "g", SCHEMA, settings=settings) as graph:
        handle = graph.session.open_entry(graph.snapshot().entries["node:P"])
        files = graph.session.cache_files
        assert save_layout(files, handle.location, ())
        found = stored(graph)
        assert found["node:P"].cache_bytes == files.nbytes() == graph.stats().cache_file_bytes > 0
        assert found["edge:Knows"].cache_bytes == 0


@pytest.mark.slow
def test_looking_at_the_shape_reads_no_row_and_changes_nothing(graph):
    graph.ensure_indices()
    with graphs.unchanged(graph), graphs.hear() as heard:
        graph.stats()
        graph.indexes()
    assert heard.of(TableRead) == []
    assert heard.of(DurableOperation) == []
    calls = [each.kind for each in heard.of(StorageCall)]
    assert calls.count("list_below") == 1
    # However many rows and versions there are, a table costs no more calls.
    for number in range(20):
        graphs.run(graph, f'insert P {{ name: "more{number}" }}')
    with graphs.hear() as heard:
        graph.stats()
        graph.indexes()
    assert len(heard.of(StorageCall)) <= len(calls)


def test_indexes_say_what_is_built_and_what_is_covered(graph):
    def of(column):
        (found,) = [each for each in graph.indexes(types=["P"]) if each.column == column]
        return {
            each.name: (each.state.value, each.segments, each.covered, each.uncovered)
            for each in found.indexes
        }

    assert of("n") == {"n_btree": ("missing", 0, 0, 1)}
    graph.ensure_indices()
    assert of("n") == {"n_btree": ("complete", 1, 1, 0)}
    graphs.run(graph, 'insert P { name: "late" }')
    assert of("n") == {"n_btree": ("partial", 1, 1, 1)}
    assert of("place") == {"place_vec": ("not needed: exact search", 0, 0, 0)}
    (ends,) = [each for each in graph.indexes(types=["Knows"]) if each.column == "src"]
    assert [each.state for each in ends.indexes] == ["nothing to index yet"]
    with pytest.raises(TypeNotFound):
        graph.indexes(types=["Q"])


def test_indexes_of_a_branch_and_of_a_past_state(graph):
    before = graph.commits.head().id
    graph.ensure_indices()
    graph.branches.create("b")
    graphs.run(graph, 'insert P { name: "late" }', branch="b")
    report = {each.column: each.uncovered for each in graph.indexes(branch="b", types=["P"])}
    assert report["n"] == 1
    assert {each.column: each.present for each in graph.indexes(at=before, types=["P"])}["n"] == ()
