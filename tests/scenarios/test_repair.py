"""Tables that somebody moved without publishing: what they are called, and what is done about them."""

import lance
import pytest

import graphs
from omnigraph.core.errors import BadRequest, DriftError, RecoveryRequired
from omnigraph.core.failpoints import InjectedFailure, Raise, Window, activate
from omnigraph.core.ids import OperationId, TableKey, new_ulid
from omnigraph.maintenance.repair import Action, Classification
from omnigraph.storage.handles import Stamp

SCHEMA = """
node P { name: String @key  n: I32? }
node Q { name: String @key }
"""
P = TableKey("node:P")
VERIFIED, SUSPICIOUS = Classification.VERIFIED_MAINTENANCE, Classification.SUSPICIOUS


@pytest.fixture
def graph(tmp_path):
    with graphs.make_graph(tmp_path / "g", SCHEMA) as made:
        made.session.after_publish = None
        for name in "abc":
            graphs.run(made, f'insert P {{ name: "{name}", n: 1 }}')
        yield made


def dataset(graph):
    entry = graph.snapshot().entries[P]
    return lance.dataset(f"{graph.uri}/{entry.location}")


def rewritten(graph):
    """A compaction whose publish nobody made."""
    session = graph.session
    handle = session.open_entry(graph.snapshot().entries[P])
    stamp = Stamp(OperationId(new_ulid()), P)
    staged = session.storage.stage_rewrite(handle, handle.fragment_ids, stamp)
    return session.storage.commit_staged(handle, staged)


def of(report, key=P):
    (found,) = [each for each in report.tables if each.table_key == key]
    return found


def test_repair_classes_and_actions(graph) -> None:
    assert {each.action for each in graph.repair().tables} == {Action.NO_OP}
    rows, shown = graph.export(), graph.snapshot()
    rewritten(graph)
    with pytest.raises(DriftError, match="node:P") as caught:
        graphs.run(graph, 'insert P { name: "d" }')
    assert "omnigraph repair" in str(caught.value.hint)
    preview = of(graph.repair())
    assert (preview.classification, preview.action) == (VERIFIED, Action.PREVIEW)
    assert preview.operations == ("Rewrite",)
    assert graph.snapshot() == shown
    healed = graph.repair(confirm=True)
    assert of(healed).action is Action.HEALED
    assert not healed.refused
    assert graph.export() == rows
    assert graph.snapshot().commit.actor == "omnigraph:repair"
    assert graph.snapshot().entries[P].version == preview.lance_head_version
    assert graph.verify().violations == ()
    graphs.run(graph, 'insert P { name: "d" }')


def test_what_may_have_changed_rows_is_refused_unless_forced(graph) -> None:
    shown = graph.snapshot()
    dataset(graph).delete("id = 'a'")
    refused = graph.repair(confirm=True)
    assert refused.refused
    assert (of(refused).classification, of(refused).action) == (SUSPICIOUS, Action.REFUSED)
    assert graph.snapshot() == shown
    forced = graph.repair(confirm=True, force=True)
    assert of(forced).action is Action.FORCED
    assert graph.snapshot().commit.actor == "omnigraph:repair:force"
    assert sorted(graphs.rows_of(graph, "P")) == ["b", "c"]
    assert graph.snapshot().entries[P].row_count == 2
    graphs.run(graph, 'insert P { name: "d" }')
    assert graph.verify().violations == ()


def test_what_may_have_changed_rows_can_be_undone(graph) -> None:
    rows = graph.export()
    dataset(graph).delete("id = 'a'")
    restored = graph.repair(confirm=True, restore=True)
    assert of(restored).action is Action.RESTORED
    assert graph.export() == rows
    assert graph.pending() == ()
    assert {each.action for each in graph.repair().tables} == {Action.NO_OP}
    graphs.run(graph, 'insert P { name: "d" }')
    assert graph.verify().violations == ()


def test_a_version_without_its_transaction_is_not_verifiable(graph, monkeypatch) -> None:
    rewritten(graph)
    storage = graph.session.storage
    real = storage.transaction_of
    monkeypatch.setattr(type(storage), "transaction_of", lambda *_: None)
    lost = of(graph.repair(confirm=True))
    assert (lost.classification, lost.action) == (Classification.UNVERIFIABLE, Action.REFUSED)
    monkeypatch.undo()
    assert storage.transaction_of == real
    assert of(graph.repair()).classification is VERIFIED


def test_an_attached_compaction_of_lance_is_maintenance(graph) -> None:
    """It reserves fragment numbers in a version of its own, which Python has no name for."""
    rows = graph.export()
    dataset(graph).optimize.compact_files()
    found = of(graph.repair(confirm=True))
    assert found.operations == ("ReserveFragments", "Rewrite")
    assert (found.classification, found.action) == (VERIFIED, Action.HEALED)
    assert graph.export() == rows


def test_a_compaction_that_carried_indexes_over_cannot_be_verified(graph) -> None:
    graph.ensure_indices()
    rows = graph.export()
    dataset(graph).optimize.compact_files()
    with pytest.raises(DriftError):
        graphs.run(graph, 'insert P { name: "d" }')
    found = of(graph.repair(confirm=True))
    assert (found.classification, found.action) == (Classification.UNVERIFIABLE, Action.REFUSED)
    assert of(graph.repair(confirm=True, restore=True)).action is Action.RESTORED
    assert graph.export() == rows


def test_force_and_restore_need_a_confirmation_and_exclude_each_other(graph) -> None:
    for given in ({"force": True}, {"restore": True}, {"confirm": True, "force": True, "restore": True}):
        with pytest.raises(BadRequest):
            graph.repair(**given)


def test_repair_refuses_a_pending_sidecar(graph) -> None:
    with (
        activate(Window.MUTATION_POST_TABLE_COMMIT, Raise(InjectedFailure("x"))),
        pytest.raises(RecoveryRequired),
    ):
        graphs.run(graph, 'insert P { name: "d" } insert Q { name: "d" }')
    shown = graph.snapshot()
    with pytest.raises(RecoveryRequired, match="rolled back first"):
        graph.repair(confirm=True, force=True)
    assert graph.snapshot() == shown


def test_other_tables_are_not_touched(graph) -> None:
    graphs.run(graph, 'insert Q { name: "x" }')
    before = graph.snapshot().entries[TableKey("node:Q")]
    rewritten(graph)
    report = graph.repair(confirm=True)
    assert of(report, "node:Q").action is Action.NO_OP
    assert graph.snapshot().entries[TableKey("node:Q")] == before
