"""A commit that was published is in the history, wherever its writer died afterwards."""

import pytest

import omnigraph
from crash.harness import EXIT_AT_WINDOW, run_script

SCHEMA = "node Person { name: String @key }"
WRITER = """
import sys
import omnigraph
with omnigraph.open(sys.argv[1]) as graph:
    graph.mutate('query m() { insert Person { name: "ann" } }', actor="ana")
"""


@pytest.mark.crash
@pytest.mark.parametrize(
    "window", ["graph_publish.after_manifest_commit", "graph_publish.before_commit_append"]
)
def test_commit_row_present_after_crash_between_publish_and_commit_append(tmp_path, window):
    place = tmp_path / "g"
    omnigraph.init(place, schema=SCHEMA).close()
    status, errors = run_script(WRITER, place, failpoints=f"{window}=exit")
    assert status == EXIT_AT_WINDOW, errors
    with omnigraph.open(place) as graph:
        assert graph.entity("Person", "ann").id == "ann"
        commits = graph.commits.list()
        assert [c.operation for c in commits if c.actor == "ana"] == ["mutation"]
        # Every commit's parent is there too: nothing is missing from the chain.
        known = {c.id for c in commits}
        assert all(set(c.parents) <= known for c in commits)
        assert graph.verify().ok
