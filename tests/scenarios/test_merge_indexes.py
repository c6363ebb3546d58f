"""What merges do to indexes, and what is left to upkeep."""

from dataclasses import replace

from graphs import FAST, hear, make_graph, run
from omnigraph.core.events import TableStaged
from omnigraph.core.ids import TableKey

NEAREST = (
    "query q($v: Vector(4)) { match { $d: Doc } return { $d.name } order { nearest($d.v, $v) } limit 1 }"
)


def test_fast_forward_defers_vector_index(tmp_path):
    schema, probing = "node Doc { name: String @key  v: Vector(4)? @index }", replace(FAST, vector_probes=1)
    with make_graph(tmp_path / "g", schema, settings=probing) as graph:
        run(graph, 'insert Doc { name: "a", v: [1.0, 0.0, 0.0, 0.0] }')
        graph.branches.create("topic")
        run(graph, 'insert Doc { name: "b", v: [0.0, 1.0, 0.0, 0.0] }', branch="topic")
        with hear(everywhere=True) as heard:
            graph.branches.merge("topic")
        assert {each.primitive for each in heard.of(TableStaged)} == {"stage_append_stream"}
        found = graph.query(NEAREST, {"v": [0.0, 1.0, 0.0, 0.0]})
        assert [row["d.name"] for row in found] == ["b"]
        graph.optimize()
        (vectors,) = (each for each in graph.indexes() if each.column == "v")
        assert (vectors.present, vectors.uncovered) == (("v_vec",), 0)
        assert [row["d.name"] for row in graph.query(NEAREST, {"v": [0.0, 1.0, 0.0, 0.0]})] == ["b"]


def test_merged_three_way_searchable_after_return(tmp_path):
    with make_graph(tmp_path / "g", "node Doc { name: String @key  body: String? @index }") as graph:
        run(graph, 'insert Doc { name: "a", body: "plain words" }')
        graph.branches.create("topic")
        run(graph, 'insert Doc { name: "b", body: "rare zebra" }', branch="topic")
        run(graph, 'insert Doc { name: "c", body: "other words" }')
        assert graph.branches.merge("topic").outcome == "merged"
        session = graph.session
        handle = session.open_entry(session.manifest.current(None).entries[TableKey("node:Doc")])
        coverage = {each.name: each.uncovered for each in session.storage.index_coverage(handle)}
        assert coverage
        assert all(not fragments for fragments in coverage.values())
        found = graph.query('query q() { match { $d: Doc  search($d.body, "zebra") } return { $d.name } }')
        assert [row["d.name"] for row in found] == ["b"]
