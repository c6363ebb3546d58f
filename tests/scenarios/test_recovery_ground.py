"""A dead write whose ground another one took away is undone, not finished."""

import threading

import pytest

import omnigraph
from crash.harness import EXIT_AT_WINDOW, run_child
from crash.people import SCHEMA, Model, seed
from graphs import make_graph
from invariants import assert_recovered
from omnigraph.core.errors import DriftError
from omnigraph.core.failpoints import Callback, Sequence, Window, activate
from omnigraph.engine.write import protocol
from omnigraph.manifest.recoveries import RecoveryKind
from recovery_graph import FAST, RawGraph

pytestmark = pytest.mark.crash

TIE = 'query tie($k: String) { insert Knows { from: "ada", to: $k, since: 1 } }'
REMOVE = "query remove($k: String) { delete Person where name = $k }"
OLDER = "query older($k: String) { update Person set { age: 9 } where name = $k }"


@pytest.fixture
def path(tmp_path):
    where = tmp_path / "graph"
    with omnigraph.init(where, schema=SCHEMA, settings=FAST) as graph:
        seed(graph)
        graph.mutate('query eve() { insert Person { name: "eve", age: 1 } }')
    return where


def finished_beside_a_death(path, *, dead, living):
    """`living` has looked for pending writes and staged its rows when `dead` dies before its publish.

    Another process runs `dead`. Returns the operation it left.
    """

    def die(_window):
        command = {"command": "mutate", "path": str(path), "query": dead, "key": "eve"}
        status, errors = run_child(command, failpoints=f"{Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER}=exit")
        assert status == EXIT_AT_WINDOW, errors

    with (
        omnigraph.open(path, settings=FAST) as graph,
        activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Sequence([Callback(die)])),
    ):
        graph.mutate(living, {"k": "eve"})
    (name,) = RawGraph.attach(path).sidecars()
    return name.removesuffix(".json")


def settled(path):
    with omnigraph.open(path, settings=FAST) as graph:
        return Model.read(graph.export())


def test_an_edge_to_a_node_that_went_meanwhile_is_rolled_back(path):
    operation = finished_beside_a_death(path, dead=TIE, living=REMOVE)
    found = settled(path)
    assert "eve" not in found.people
    assert ("ada", "eve", 1) not in found.knows
    assert_recovered(path, operation, RecoveryKind.ROLLED_BACK, actor=None)


def test_the_deletion_of_a_node_that_got_an_edge_meanwhile_is_rolled_back(path):
    operation = finished_beside_a_death(path, dead=REMOVE, living=TIE)
    found = settled(path)
    assert "eve" in found.people
    assert found.knows["ada", "eve", 1] == 1
    assert_recovered(path, operation, RecoveryKind.ROLLED_BACK, actor=None)


def test_a_write_of_tables_the_dead_one_never_looked_at_does_not_undo_it(path):
    living = 'query other($k: String) { insert Likes { from: "ada", to: $k } }'
    operation = finished_beside_a_death(path, dead=OLDER, living=living)
    found = settled(path)
    assert found.people["eve"] == 9
    assert found.likes["ada", "eve"] == 1
    assert_recovered(path, operation, RecoveryKind.ROLLED_FORWARD, actor=None)


def test_what_a_late_writer_published_meanwhile_is_no_drift(tmp_path, monkeypatch):
    """The branch was read, then somebody who had lost the lease published, then the table was looked at."""
    looked = protocol.settled_on
    late = []

    def look(*told):
        if not late:
            late.append(threading.Thread(target=other.mutate, args=('query q() { insert B { k: "late" } }',)))
            late[0].start()
            late[0].join()
            raise DriftError(table_key="node:A", branch="main", pin=1, head=2)
        return looked(*told)

    schema = "node A { k: String @key }\nnode B { k: String @key }\n"
    with (
        make_graph(tmp_path / "graph", schema) as graph,
        omnigraph.open(tmp_path / "graph", settings=FAST) as other,
    ):
        monkeypatch.setattr(protocol, "settled_on", look)
        monkeypatch.setattr(protocol, "settle_late_effects", lambda *_: False)
        graph.mutate('query q() { insert A { k: "a" } }')
        assert len(graph.export().splitlines()) == 2


def test_a_table_that_is_ahead_of_a_branch_that_stands_is_drift(path, monkeypatch):
    def look(*_):
        raise DriftError(table_key="node:Person", branch="main", pin=1, head=2)

    with omnigraph.open(path, settings=FAST) as graph:
        monkeypatch.setattr(protocol, "settled_on", look)
        monkeypatch.setattr(protocol, "settle_late_effects", lambda *_: False)
        with pytest.raises(DriftError):
            graph.mutate(OLDER, {"k": "eve"})
