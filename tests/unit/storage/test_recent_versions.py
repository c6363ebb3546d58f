"""A handle keeps few versions of a table open, however many it writes."""

from collections import Counter

import pytest

from graphs import make_graph, run
from omnigraph.core.limits import VERSIONS_KEPT_MAX
from omnigraph.storage.recent_versions import VersionsKept


def test_the_version_that_was_opened_first_leaves() -> None:
    kept = VersionsKept[int]()
    assert [kept.leaving("a", number) for number in range(VERSIONS_KEPT_MAX)] == [None] * VERSIONS_KEPT_MAX
    assert kept.leaving("b", 0) is None
    assert kept.leaving("a", 3) is None
    assert kept.leaving("a", 1000) == 0


@pytest.mark.slow
def test_a_writer_keeps_few_versions_and_reads_all_of_them(tmp_path) -> None:
    with make_graph(tmp_path / "g") as graph:
        commits = [
            run(graph, f'insert Person {{ name: "p{n}" }}').commit.id for n in range(VERSIONS_KEPT_MAX + 4)
        ]
        count = "query q() { match { $p: Person } return { count($p) as people } }"
        counted = [graph.query(count, at=commit)[0]["people"] for commit in [*commits, *commits]]
        assert counted == [*range(1, len(commits) + 1)] * 2
        session = graph.session
        for opened in (session._handles, session.storage._pool._opened):
            versions = Counter((location, branch) for location, branch, *_ in opened)
            assert max(versions.values()) == VERSIONS_KEPT_MAX
