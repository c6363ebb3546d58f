"""A repair that is killed at any of its durable operations: no row is lost, and the next repair ends it."""

import pytest

import omnigraph
from crash.harness import CUT, Children, Prepared
from crash.people import REPAIR, RESTORING, SCHEMA, Model, seed
from graphs import FAST, make_graph
from omnigraph.core.ids import OperationId, TableKey, new_ulid
from omnigraph.storage.handles import Stamp

pytestmark = [pytest.mark.crash, pytest.mark.slow]
PERSON = TableKey("node:Person")
EVENTS_MAX = 200


@pytest.fixture(scope="module")
def children():
    with Children() as started:
        yield started


def move(graph, *, keeps_rows):
    """Somebody moves a table and publishes nothing: its rows as they were, or one less."""
    storage, entry = graph.session.storage, graph.snapshot().entries[PERSON]
    handle, stamp = graph.session.open_entry(entry), Stamp(OperationId(new_ulid()), PERSON)
    if keeps_rows:
        staged = storage.stage_rewrite(handle, handle.fragment_ids, stamp)
    else:
        staged = storage.stage_delete(handle, stamp, predicate="id = 'ada'")
    storage.commit_staged(handle, staged)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("writer", "keeps_rows"), [(REPAIR, True), (RESTORING, False)], ids=lambda each: getattr(each, "name", "")
)
def test_a_killed_repair_is_ended_by_the_next(writer, keeps_rows, children, tmp_path):
    path = tmp_path / "graph"
    with make_graph(path, SCHEMA) as graph:
        seed(graph)
        before = Model.read(graph.export())
        move(graph, keeps_rows=keeps_rows)
    prepared, cuts = Prepared(path), 0
    for number in range(1, EVENTS_MAX):
        prepared.put_back()
        told = {"writer": writer.name, "tag": "1", "branch": "main", "returned": str(tmp_path / "returned")}
        status = children.run("write", path=str(path), **told, cut=number)
        assert status in {0, CUT}
        with omnigraph.open(path, settings=FAST) as graph:
            assert graph.pending() == ()
            assert Model.read(graph.export()) == before, f"cut at durable event {number}"
            report = graph.repair(confirm=True, restore=not keeps_rows)
            assert not report.refused
            assert Model.read(graph.export()) == before
            graph.mutate('query q() { insert Person { name: "next" } }')
            assert graph.verify().violations == ()
        if status == 0:
            break
        cuts += 1
    print(f"\n{writer.name}: {cuts} cuts")
    assert 4 < cuts < EVENTS_MAX - 2
