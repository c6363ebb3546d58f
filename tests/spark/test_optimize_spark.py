"""Tables above the bounds for one process are compacted on Spark; the graph is the same."""

import pytest

import graphs
import omnigraph
from omnigraph.core.events import Progress
from omnigraph.core.settings import Settings

pytestmark = pytest.mark.spark

SCHEMA = "node P { name: String @key  n: I32? @index }\nnode Doc { name: String @key  file: Blob? }"
SPARK = Settings(durability="os", bulk_rows_in_process_max=3)


def test_a_large_table_is_compacted_on_spark(tmp_path):
    with graphs.make_graph(tmp_path / "g", SCHEMA, settings=SPARK) as graph:
        graph.session.after_publish = None
        for number in range(6):
            text = f'insert P {{ name: "p{number}", n: {number} }} insert Doc {{ name: "d{number}", file: "base64:aGk=" }}'
            graphs.run(graph, text)
        graphs.run(graph, "delete P where n = 2")
        rows = graph.export()
        with graphs.hear(everywhere=True) as heard:
            report = graph.optimize()
        assert {each.type_name for each in report.tables if each.committed} == {"P", "Doc"}
        assert any(each.operation == "optimize" for each in heard.of(Progress))
        people = {each.table_key: each for each in graph.stats(branch="main").branches[0].tables}["node:P"]
        assert (people.fragments, people.deleted_rows, people.uncovered_fragments) == (1, 0, 0)
        assert graph.optimize().commit_id is None
    with omnigraph.open_read_only(tmp_path / "g") as graph:
        assert graph.export() == rows
        assert graph.verify(deep=True).violations == ()
