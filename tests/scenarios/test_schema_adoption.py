"""A branch adopts the schema, dies at any point of that, and goes on: its own rows are never touched."""

from contextlib import ExitStack

import pytest

import omnigraph
from crash.harness import CUT, run_child
from invariants import assert_healthy
from omnigraph.core.errors import MigrationBlocked
from omnigraph.core.failpoints import Callback, Window, activate
from omnigraph.core.ids import TableKey
from omnigraph.engine.evolve.adopt import adopt_schema
from recovery_graph import FAST

TOURS = "node Tour { code: String @key  stops: I32?  mood: enum(fun, calm) }\n"
GROWN = "node Tour { code: String @key  stops: I32?  mood: enum(fun, calm)  guide: String? }\n"
CITY = "node City { name: String @key }\n"
SHOWN = "query q() { match { $t: Tour } return { $t.code, $t.mood, $t.guide } order { $t.code asc } }"
ROWS = {"lazy": [("a", "fun", None)], "owner": [("a", "fun", None), ("o", "calm", None)]}
COMMITTED = Window.SCHEMA_APPLY_AFTER_TABLE_COMMIT
PASSED = (
    Window.RECOVERY_SIDECAR_WRITE,
    Window.SCHEMA_ADOPT_POST_SIDECAR_PRE_COMMIT,
    COMMITTED,
    Window.SCHEMA_ADOPT_POST_COMMIT_PRE_PUBLISH,
    Window.PUBLISH_AFTER_STATE_LOAD,
    Window.PUBLISH_RETRYABLE_CONTENTION,
    Window.GRAPH_PUBLISH_AFTER_MANIFEST_COMMIT,
    Window.GRAPH_PUBLISH_BEFORE_COMMIT_APPEND,
    Window.RECOVERY_SIDECAR_DELETE,
)
"""Every window that an adoption passes, in the order of their times."""
OWN = [window for window in PASSED if window.startswith("schema_")]
DEATHS = [
    *((window, "owner") for window in PASSED),
    *((window, "lazy") for window in OWN),
]


@pytest.fixture
def path(tmp_path):
    where = tmp_path / "graph"
    with omnigraph.init(where, schema=TOURS, settings=FAST) as graph:
        graph.mutate('query q() { insert Tour { code: "a", stops: 1, mood: "fun" } }')
        graph.branches.create("lazy")
        graph.branches.create("owner")
        graph.mutate('query q() { insert Tour { code: "o", mood: "calm" } }', branch="owner")
        assert graph.apply_schema(GROWN + CITY).applied
    return where


def shown(graph, branch):
    return [tuple(row.values()) for row in graph.query(SHOWN, branch=branch)]


def test_every_window_that_an_adoption_passes_is_one_it_dies_in(path):
    with omnigraph.open(path, settings=FAST) as graph:
        assert graph.catalog().generation == 2
        for branch, rows in ROWS.items():
            passed = []
            with ExitStack() as watched:
                for window in Window:
                    watched.enter_context(activate(window, Callback(passed.append)))
                adopt_schema(graph.session, branch)
            assert tuple(dict.fromkeys(passed)) == PASSED
            assert passed.count(COMMITTED) == 1, "two could be cut between them, and half of it is no schema"
            assert shown(graph, branch) == rows


@pytest.mark.crash
@pytest.mark.parametrize(("window", "branch"), DEATHS, ids=str)
def test_a_killed_adoption_is_settled_and_repeated(path, window, branch):
    command = {"command": "merge", "path": str(path), "source": "main", "target": branch}
    status, errors = run_child(command, failpoints=f"{window}=kill")
    assert status == CUT, errors
    with omnigraph.open(path, settings=FAST) as graph:
        assert shown(graph, branch) == ROWS[branch]
        assert graph.verify(deep=True).violations == ()
        graph.mutate('query q() { insert Tour { code: "z", mood: "fun", guide: "Ann" } }', branch=branch)
        assert shown(graph, branch) == [*ROWS[branch], ("z", "fun", "Ann")]
        graph.branches.merge(branch, into="main")
        assert shown(graph, "main") == shown(graph, branch)
    assert_healthy(path, table=TableKey("node:City"))


def test_a_branch_adopts_in_the_session_that_has_just_changed_the_schema(tmp_path):
    with omnigraph.init(tmp_path / "graph", schema=TOURS, settings=FAST) as graph:
        graph.branches.create("team")
        assert graph.apply_schema(GROWN).applied
        adopt_schema(graph.session, "team")
        assert [each.generation for each in graph.branches.details()] == [2, 2]
        assert graph.commits.head(branch="team").operation == "adopt_schema"


def test_a_column_that_comes_and_one_that_may_be_null_are_applied_in_turn_beside_branches(tmp_path):
    nullable = TOURS.replace("mood: enum(fun, calm)", "mood: enum(fun, calm)?")
    both = GROWN.replace("mood: enum(fun, calm)", "mood: enum(fun, calm)?")
    with omnigraph.init(tmp_path / "graph", schema=TOURS, settings=FAST) as graph:
        graph.mutate('query q() { insert Tour { code: "a", mood: "fun" } }')
        graph.branches.create("team")
        with pytest.raises(MigrationBlocked) as refused:
            graph.apply_schema(both)
        assert refused.value.hint == (
            "apply what may be null first and the properties that come afterwards: each waits for no branch"
        )
        assert graph.apply_schema(nullable).applied
        assert graph.apply_schema(both).applied
        graph.mutate('query q() { insert Tour { code: "z", guide: "Ann" } }', branch="team")
        assert shown(graph, "team") == [("a", "fun", None), ("z", None, "Ann")]
        assert graph.verify(deep=True).violations == ()
