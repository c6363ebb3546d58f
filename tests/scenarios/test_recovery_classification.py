"""Sidecars written by hand over drift made by raw commits: what the sweep and the heal make of them."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from invariants import assert_healthy, assert_recovered, state_of
from omnigraph.core.errors import (
    DriftError,
    ExpectedVersionMismatch,
    InternalError,
    RecoveryRequired,
    SidecarSchemaError,
)
from omnigraph.core.events import Warned, listen
from omnigraph.core.failpoints import Callback, Raise, Sequence, Window, activate
from omnigraph.core.ids import BranchName, new_ulid
from omnigraph.manifest.recoveries import RecoveryKind
from omnigraph.recovery import settle
from omnigraph.recovery.drift import drift_guard
from omnigraph.recovery.heal import heal_pending_sidecars_roll_forward as heal
from omnigraph.recovery.roll_forward import roll_forward
from omnigraph.recovery.sidecar import WriterKind
from recovery_graph import COMPANY, KNOWS, PERSON, RawGraph

pytestmark = pytest.mark.crash


class Cut(Exception):
    """Where recovery is interrupted."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "graph"


@pytest.fixture
def graph(path):
    made = RawGraph.create(path)
    made.write(PERSON, ["ada"])
    made.write(COMPANY, ["acme"])
    return made


def drift(graph, sidecar, *keys, times=1):
    """Phase B of a writer that noted `sidecar`, on these tables."""
    for key in keys:
        for number in range(times):
            graph.commit(key, [f"{key}-{number}-{sidecar.operation_id}"], operation_id=sidecar.operation_id)


def test_finished_write_rolls_forward(graph, path):
    note = graph.note(PERSON, COMPANY)
    drift(graph, note, PERSON, COMPANY)
    pins = graph.pins()
    opened = RawGraph.open(path)
    assert len(opened.swept.settled) == 1
    assert len(opened.ids(PERSON)) == 2
    outcomes = {key: (pins[key], pins[key] + 1) for key in (PERSON, COMPANY)}
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_FORWARD, outcomes=outcomes)


def test_half_finished_write_rolls_back(graph, path):
    note = graph.note(PERSON, COMPANY)
    drift(graph, note, PERSON)
    pin = graph.pins()[PERSON]
    opened = RawGraph.open(path)
    assert opened.ids(PERSON) == ["ada"]
    assert opened.pins()[PERSON] == pin + 2
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK, outcomes={PERSON: (pin + 1, pin)})


def test_confirm_missing_update_is_loud(graph, path):
    note = graph.note(PERSON, COMPANY, kind=WriterKind.BRANCH_MERGE)
    drift(graph, note, PERSON, COMPANY)
    with pytest.raises(InternalError, match=COMPANY):
        graph.context.sidecars.confirm_sidecar_phase_b(note, {PERSON: graph.head(PERSON)})
    assert graph.context.sidecars.read(note.name) == note
    RawGraph.open(path)
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK)


def test_write_without_effect_rolls_back_empty(graph, path):
    note = graph.note(PERSON, COMPANY)
    assert heal(graph.context).settled[0].recovery_kind is RecoveryKind.ROLLED_BACK
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK, outcomes={})


def test_abandoned_no_effect_sidecar_not_recorded_as_forward(graph, path):
    note = graph.note(PERSON)
    for number in range(3):
        graph.write(PERSON, [f"later-{number}"])
    assert heal(graph.context).settled[0].recovery_kind is RecoveryKind.ROLLED_BACK
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK, outcomes={})


def test_published_write_is_recorded_as_forward_even_after_later_writes(graph, path):
    note = graph.note(PERSON)
    pin = graph.pins()[PERSON]
    handle = graph.commit(PERSON, ["bob"], operation_id=note.operation_id)
    graph.publish([handle], operation_id=note.operation_id)
    graph.write(PERSON, ["eve"])
    assert heal(graph.context).settled[0].recovery_kind is RecoveryKind.ROLLED_FORWARD
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_FORWARD, outcomes={PERSON: (pin, pin + 1)})


def test_published_write_with_later_drift_is_still_forward(graph, path):
    """The drift belongs to the second note; the first write is visible whatever HEAD is now."""
    first = graph.note(PERSON)
    handle = graph.commit(PERSON, ["bob"], operation_id=first.operation_id)
    graph.publish([handle], operation_id=first.operation_id)
    second = graph.note(PERSON, COMPANY)
    drift(graph, second, PERSON)
    RawGraph.open(path)
    assert RawGraph.attach(path).ids(PERSON) == ["ada", "bob"]
    assert_recovered(path, first.operation_id, RecoveryKind.ROLLED_FORWARD)
    assert_recovered(path, second.operation_id, RecoveryKind.ROLLED_BACK)


def test_invariant_violation_aborts(graph, path):
    note = graph.note(PERSON)
    entry = graph.session.manifest.current(None).entries[PERSON]
    graph.write(PERSON, ["bob"])
    newest = graph.session.manifest.current(None).entries[PERSON].version
    # The table loses the version the manifest shows: only damage does this, and nobody may guess over it.
    versions = path / entry.location / "_versions"
    shown = versions / f"{2**64 - 1 - newest:020d}.manifest"
    kept = shown.read_bytes()
    shown.unlink()
    with pytest.raises(SidecarSchemaError, match=note.operation_id) as caught:
        RawGraph.open(path)
    assert "InvariantViolation" in str(caught.value)
    assert PERSON in str(caught.value)
    warnings = []
    with listen(lambda event: warnings.append(event) if isinstance(event, Warned) else None):
        assert heal(RawGraph.attach(path).context).deferred == (note.operation_id,)
    assert any("InvariantViolation" in each.message for each in warnings)
    assert RawGraph.attach(path).sidecars() == (note.name,)
    shown.write_bytes(kept)
    RawGraph.open(path)
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK, outcomes={})


def test_unexpected_at_p1_rolls_back(graph, path):
    note = graph.sidecar(PERSON)
    pin = note.tables[0]
    note = replace(note, tables=(replace(pin, expected_version=pin.expected_version - 1),))
    graph.context.sidecars.write(note)
    drift(graph, note, PERSON)
    assert RawGraph.open(path).ids(PERSON) == ["ada"]
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK)


def test_multistep_drift_strict_rolls_back(graph, path):
    note = graph.note(PERSON)
    drift(graph, note, PERSON, times=3)
    pin = graph.pins()[PERSON]
    assert RawGraph.open(path).ids(PERSON) == ["ada"]
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK, outcomes={PERSON: (pin + 3, pin)})


@pytest.mark.parametrize("kind", [WriterKind.MUTATION, WriterKind.OPTIMIZE])
def test_roll_forward_publishes_the_version_it_classified(graph, path, kind, monkeypatch):
    """Something moves the HEAD again after recovery looked: what it did not look at is not shown."""
    note = graph.note(PERSON, COMPANY, kind=kind)
    drift(graph, note, PERSON, COMPANY)
    pins = graph.pins()

    def late(*observed, **options):
        graph.commit(PERSON, ["before its changes"])
        return roll_forward(*observed, **options)

    monkeypatch.setattr(settle, "roll_forward", late)
    beside = Callback(lambda _: graph.commit(PERSON, ["before its publish"]))
    with activate(Window.RECOVERY_BEFORE_ROLL_FORWARD_PUBLISH, beside):
        opened = RawGraph.open(path)
    assert len(opened.swept.settled) == 1
    assert opened.head(PERSON) == pins[PERSON] + 3
    assert opened.pins() == {**pins, PERSON: pins[PERSON] + 1, COMPANY: pins[COMPANY] + 1}
    assert opened.ids(PERSON) == sorted(["ada", f"{PERSON}-0-{note.operation_id}"])
    (record,) = opened.audit()
    assert {each.table_key: each.to_version for each in record.per_table_outcomes} == {
        COMPANY: pins[COMPANY] + 1,
        PERSON: pins[PERSON] + 1,
    }


@pytest.mark.parametrize("kind", [WriterKind.ENSURE_INDICES, WriterKind.OPTIMIZE])
def test_loose_multistep_rolls_forward(graph, path, kind):
    note = graph.note(PERSON, kind=kind)
    pin = graph.pins()[PERSON]
    for number in range(4):
        graph.commit(PERSON, [f"derived-{number}"])  # such commits carry no operation id
    assert RawGraph.open(path).pins()[PERSON] == pin + 4
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_FORWARD, outcomes={PERSON: (pin, pin + 4)})


def test_owned_transaction_mismatch_not_adopted(graph, path):
    note = graph.note(PERSON)
    graph.commit(PERSON, ["foreign"])
    assert RawGraph.open(path).ids(PERSON) == ["ada"]
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK)


def test_unconfirmed_merge_rolls_back_and_confirmed_rolls_forward(graph, path):
    source = graph.commits()[-1].id
    options = {"kind": WriterKind.BRANCH_MERGE, "merge_source_commit_id": source}
    unconfirmed = graph.note(PERSON, COMPANY, **options)
    drift(graph, unconfirmed, PERSON, COMPANY, times=2)
    opened = RawGraph.open(path)
    assert opened.ids(PERSON) == ["ada"]
    assert_recovered(path, unconfirmed.operation_id, RecoveryKind.ROLLED_BACK)
    graph = RawGraph.attach(path)
    confirmed = graph.note(PERSON, COMPANY, **options)
    drift(graph, confirmed, PERSON, COMPANY, times=2)
    heads = {key: graph.head(key) for key in (PERSON, COMPANY)}
    graph.context.sidecars.confirm_sidecar_phase_b(confirmed, heads)
    RawGraph.open(path)
    row = assert_recovered(path, confirmed.operation_id, RecoveryKind.ROLLED_FORWARD)
    merge = RawGraph.attach(path).context.commits.show(row.graph_commit_id)
    assert merge.merged_parent == source


def test_version_1_merge_of_a_finished_merge_rolls_forward(graph, path):
    note = graph.note(PERSON, COMPANY, kind=WriterKind.BRANCH_MERGE)
    drift(graph, note, PERSON, COMPANY, times=2)
    graph.downgrade(note)
    assert len(RawGraph.open(path).ids(PERSON)) == 3
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_FORWARD)


def test_confirmed_but_head_moved_rolls_back(graph, path):
    note = graph.note(PERSON, kind=WriterKind.BRANCH_MERGE)
    drift(graph, note, PERSON)
    graph.context.sidecars.confirm_sidecar_phase_b(note, {PERSON: graph.head(PERSON)})
    graph.commit(PERSON, ["foreign"])
    assert RawGraph.open(path).ids(PERSON) == ["ada"]
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK)


def test_multiple_sidecars_use_fresh_snapshots(graph, path):
    """Two writers on one table, one after the other: the second starts from what the first will publish."""
    first = graph.note(PERSON)
    drift(graph, first, PERSON)
    pin = first.tables[0]
    after = replace(pin, expected_version=pin.expected_version + 1, post_commit_pin=pin.post_commit_pin + 1)
    second = replace(first, operation_id=new_ulid(), tables=(after,))
    graph.context.sidecars.write(second)
    opened = RawGraph.open(path)
    assert [each.operation_id for each in opened.swept.settled] == [first.operation_id, second.operation_id]
    assert_recovered(path, first.operation_id, RecoveryKind.ROLLED_FORWARD)
    assert_recovered(path, second.operation_id, RecoveryKind.ROLLED_BACK, outcomes={})


def test_a_deferred_roll_back_changes_nothing(graph, path):
    note = graph.note(PERSON, COMPANY)
    drift(graph, note, PERSON)
    before = state_of(graph)
    healed = heal(graph.context)
    assert (healed.settled, healed.deferred) == ((), (note.operation_id,))
    assert state_of(graph) == before
    entry = graph.session.manifest.current(None).entries[PERSON]
    with pytest.raises(RecoveryRequired, match="reopen the graph read-write") as caught:
        drift_guard(graph.context, entry, None)
    assert "a pending recovery sidecar requires rollback" in str(caught.value)
    assert caught.value.operation_id == note.operation_id
    assert RawGraph.open(path).ids(PERSON) == ["ada"]
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK)


def test_drift_guard_ignores_other_branch_sidecar(graph, path):
    graph.session.manifest.create_branch(BranchName("b"), None)
    note = graph.note(PERSON, branch=BranchName("b"))
    foreign = graph.commit(PERSON, ["foreign"])
    entry = graph.session.manifest.current(None).entries[PERSON]
    with pytest.raises(DriftError, match="no recovery note explains it") as caught:
        drift_guard(graph.context, entry, None)
    assert (caught.value.pin, caught.value.head) == (entry.version, entry.version + 1)
    drift_guard(graph.context, entry, BranchName("b"))  # only inherited there: no drift of that branch
    heal(graph.context)
    # The uncovered drift stays: recovery knows nothing about it.
    assert graph.head(PERSON) == entry.version + 1
    graph.publish([foreign])
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK, outcomes={}, branch=BranchName("b"))


def test_the_guard_names_both_ways_without_a_listing(graph):
    graph.commit(PERSON, ["foreign"])
    entry = graph.session.manifest.current(None).entries[PERSON]
    failing = Sequence([Raise(OSError("the listing broke"))])
    with activate(Window.RECOVERY_SIDECAR_LIST, failing), pytest.raises(RecoveryRequired) as caught:
        drift_guard(graph.context, entry, None)
    for part in ("none explains it", "reopen the graph read-write", "the listing broke"):
        assert part in str(caught.value)
    for part in ("reopen the graph read-write", "omnigraph repair", "new branch"):
        assert part in str(caught.value.hint)


def test_a_head_behind_its_pin_is_our_fault(graph):
    entry = graph.session.manifest.current(None).entries[PERSON]
    from omnigraph.core.errors import InternalError

    with pytest.raises(InternalError):
        drift_guard(graph.context, replace(entry, version=entry.version + 1), None)


def test_corrupt_sidecar_is_kept_and_named(graph, path):
    graph.session.adapter.write_text("__recovery/01BAD.json", "{")
    for attempt in (RawGraph.open, lambda where: heal(RawGraph.attach(where).context)):
        with pytest.raises(SidecarSchemaError, match="01BAD"):
            attempt(path)
    assert (path / "__recovery/01BAD.json").read_text() == "{"
    assert RawGraph.attach(path).ids(PERSON) == ["ada"]
    (path / "__recovery/01BAD.json").unlink()
    assert_healthy(path)


def test_future_sidecar_version_refused(graph, path):
    graph.session.adapter.write_text("__recovery/01NEW.json", json.dumps({"schema_version": 99}))
    with pytest.raises(SidecarSchemaError) as caught:
        RawGraph.open(path)
    assert (caught.value.object, caught.value.found, caught.value.max_supported_version) == (
        "01NEW.json",
        99,
        2,
    )
    (path / "__recovery/01NEW.json").unlink()
    assert_healthy(path)


def test_other_tables_pass_the_guard(graph, path):
    note = graph.note(PERSON, KNOWS)
    drift(graph, note, PERSON)
    heal(graph.context)
    drift_guard(graph.context, graph.session.manifest.current(None).entries[COMPANY], None)
    graph.write(COMPANY, ["initech"])
    RawGraph.open(path)
    assert RawGraph.attach(path).ids(COMPANY) == ["acme", "initech"]
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK)


# --- idempotence: recovery dies at each of its own steps and is entered again


@pytest.mark.parametrize(
    "window",
    [
        Window.RECOVERY_POST_TABLE_RESTORE_PRE_PUBLISH,
        Window.RECOVERY_POST_ROLLBACK_PUBLISH_PRE_AUDIT,
        Window.RECOVERY_RECORD_AUDIT,
        Window.RECOVERY_SIDECAR_DELETE,
    ],
)
def test_an_interrupted_roll_back_converges(graph, path, window):
    note = graph.note(PERSON, COMPANY, KNOWS)
    drift(graph, note, PERSON, COMPANY)
    pins = graph.pins()
    with activate(window, Sequence([Raise(Cut())])), suppress(Cut):
        RawGraph.open(path)
    opened = RawGraph.open(path)
    assert opened.ids(PERSON) == ["ada"]
    # One restore per table, however often recovery was entered.
    assert {key: opened.pins()[key] for key in (PERSON, COMPANY)} == {
        key: pins[key] + 2 for key in (PERSON, COMPANY)
    }
    outcomes = {key: (pins[key] + 1, pins[key]) for key in (PERSON, COMPANY)}
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK, outcomes=outcomes)
    recoveries = [each for each in RawGraph.attach(path).commits() if each.recovers == note.operation_id]
    assert len(recoveries) == 1


@pytest.mark.parametrize(
    "window",
    [
        Window.RECOVERY_BEFORE_ROLL_FORWARD_PUBLISH,
        Window.RECOVERY_RECORD_AUDIT,
        Window.RECOVERY_SIDECAR_DELETE,
    ],
)
@pytest.mark.parametrize("enter", ["open", "heal"])
def test_an_interrupted_roll_forward_converges(graph, path, window, enter):
    note = graph.note(PERSON, COMPANY)
    drift(graph, note, PERSON, COMPANY)
    pins = graph.pins()
    run = RawGraph.open if enter == "open" else lambda where: heal(RawGraph.attach(where).context)
    with activate(window, Sequence([Raise(Cut())])), suppress(Cut):
        run(path)
    run(path)
    outcomes = {key: (pins[key], pins[key] + 1) for key in (PERSON, COMPANY)}
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_FORWARD, outcomes=outcomes)
    recoveries = [each for each in RawGraph.attach(path).commits() if each.recovers == note.operation_id]
    assert len(recoveries) == 1


def test_a_roll_forward_somebody_else_finished_is_convergence(graph, path):
    note = graph.note(PERSON)
    drift(graph, note, PERSON)
    pin = graph.pins()[PERSON]
    other = RawGraph.attach(path)

    def overtake(_window):
        head = other.session.storage.open_head(
            PERSON, other.session.manifest.current(None).entries[PERSON].location, None
        )
        other.publish([head])

    with activate(Window.RECOVERY_BEFORE_ROLL_FORWARD_PUBLISH, Sequence([Callback(overtake)])):
        opened = RawGraph.open(path)
    assert opened.pins()[PERSON] == pin + 1
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_FORWARD, outcomes={PERSON: (pin, pin + 1)})


def test_a_roll_forward_the_branch_moved_away_from_is_loud(graph, path):
    note = graph.note(PERSON, COMPANY)
    drift(graph, note, PERSON, COMPANY)
    other = RawGraph.attach(path)

    def move(_window):
        other.commit(COMPANY, ["elsewhere"])
        location = other.session.manifest.current(None).entries[COMPANY].location
        other.publish([other.session.storage.open_head(COMPANY, location, None)])

    moving = activate(Window.RECOVERY_BEFORE_ROLL_FORWARD_PUBLISH, Sequence([Callback(move)]))
    with moving, pytest.raises(ExpectedVersionMismatch):
        RawGraph.open(path)
    assert RawGraph.attach(path).sidecars() == (note.name,)


# --- branches


@pytest.fixture
def branch(graph):
    graph.session.manifest.create_branch(BranchName("b"), None)
    return BranchName("b")


def fork(graph, key, branch):
    entry = graph.session.manifest.current(branch).entries[key]
    return graph.session.storage.create_branch(key, entry.location, branch, entry.branch, entry.version)


def test_feature_branch_sidecar_classified_on_its_branch(graph, path, branch):
    note = graph.note(PERSON, branch=branch)
    fork(graph, PERSON, branch)
    graph.commit(PERSON, ["bob"], operation_id=note.operation_id, branch=branch, table_branch=branch)
    main = graph.pins()
    opened = RawGraph.open(path)
    assert opened.pins() == main
    assert opened.ids(PERSON) == ["ada"]
    assert opened.ids(PERSON, branch) == ["ada", "bob"]
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_FORWARD, branch=branch)


def test_branch_write_of_two_tables_rolls_back_on_its_branch(graph, path, branch):
    note = graph.note(PERSON, COMPANY, branch=branch)
    fork(graph, PERSON, branch)
    graph.commit(PERSON, ["bob"], operation_id=note.operation_id, branch=branch, table_branch=branch)
    main = graph.pins()
    opened = RawGraph.open(path)
    assert opened.pins() == main
    assert opened.ids(PERSON, branch) == ["ada"]
    assert opened.session.manifest.current(branch).entries[PERSON].branch == branch
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK, branch=branch)


def test_half_made_fork_is_no_movement(graph, path, branch):
    note = graph.note(PERSON, branch=branch)
    # A fork that died between its directory and its reference.
    zombie = path / graph.session.manifest.current(None).entries[PERSON].location / "tree/b/_versions"
    zombie.mkdir(parents=True)
    (zombie / "rest").write_text("")
    RawGraph.open(path)
    assert not zombie.exists()
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK, branch=branch, outcomes={})


def test_fork_without_commit_is_no_movement(graph, path, branch):
    note = graph.note(PERSON, branch=branch)
    fork(graph, PERSON, branch)
    RawGraph.open(path)
    assert_recovered(path, note.operation_id, RecoveryKind.ROLLED_BACK, branch=branch, outcomes={})


@pytest.mark.parametrize("fault", [None, Window.RECOVERY_SIDECAR_DELETE])
def test_deleted_branch_sidecar_discarded_once(graph, path, branch, fault):
    note = graph.note(PERSON, branch=branch)
    graph.session.manifest.delete_branch(branch)
    if fault is None:
        heal(graph.context)
    else:
        with activate(fault, Raise(OSError("no"))):
            heal(graph.context)
            heal(graph.context)
        assert graph.sidecars() == (note.name,)
        heal(graph.context)
    assert [each.recovery_kind for each in graph.audit()] == [RecoveryKind.ORPHANED_BRANCH_DISCARDED]
    assert_recovered(path, note.operation_id, RecoveryKind.ORPHANED_BRANCH_DISCARDED, outcomes={})


def test_orphan_discard_converges_after_audit_fault(graph, path, branch):
    note = graph.note(PERSON, branch=branch)
    graph.session.manifest.delete_branch(branch)
    with activate(Window.RECOVERY_ORPHAN_DISCARD_AUDIT_APPEND, Raise(OSError("no"))), pytest.raises(OSError):
        heal(graph.context)
    heal(graph.context)
    assert_recovered(path, note.operation_id, RecoveryKind.ORPHANED_BRANCH_DISCARDED, outcomes={})
    recoveries = [each for each in RawGraph.attach(path).commits() if each.recovers == note.operation_id]
    assert len(recoveries) == 1
