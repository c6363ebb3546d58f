"""What holds after every recovery. Each recovery scenario ends here."""

import omnigraph
from graphs import pins_of
from omnigraph.core.ids import new_ulid, normalize_branch
from omnigraph.manifest.recoveries import RecoveryKind
from omnigraph.recovery.audit import RECOVERY_ACTOR
from omnigraph.recovery.verify import verify
from recovery_graph import FAST, PERSON, RawGraph


def state_of(graph: RawGraph):
    """Everything recovery could change: versions shown and reached, commits, audit rows, sidecars."""
    manifest = graph.session.manifest
    branches = (None, *manifest.branches())
    snapshots = {branch: manifest.current(branch) for branch in branches}
    return {
        "shown": {branch: (each.manifest_version, pins_of(each)) for branch, each in snapshots.items()},
        "heads": {
            (branch, key): graph.session.storage.head_version(entry.location, entry.branch)
            for branch, each in snapshots.items()
            for key, entry in each.entries.items()
        },
        "commits": {branch: [each.id for each in graph.commits(branch)] for branch in branches},
        "audit": graph.audit(),
        "sidecars": graph.sidecars(),
    }


def assert_healthy(path, settings=FAST, table=PERSON):
    """Nothing is pending, every invariant of `verify` holds, a second open changes nothing, a write works.

    `table`: that of nodes with a `name`, which is written to.
    """
    graph = RawGraph.attach(path, settings)
    report = verify(graph.context, graph.session.catalog_of)
    assert report.violations == ()
    before = state_of(graph)
    again = RawGraph.open(path, settings)
    assert again.swept.settled == ()
    assert again.swept.pending == ()
    assert state_of(RawGraph.attach(path, settings)) == before
    with omnigraph.open(path, settings=settings) as written:
        for branch in written.branches.list():
            name = f"follow-up-{new_ulid()}"
            insert = f"query f($n: String) {{ insert {table.partition(':')[2]} {{ name: $n }} }}"
            written.mutate(insert, {"n": name}, branch=branch)
            assert name in RawGraph.attach(path, settings).ids(table, normalize_branch(branch))
        assert written.verify().violations == ()


def assert_recovered(path, operation_id, kind, *, actor="ana", branch=None, outcomes=None, settings=FAST):
    """The operation was settled once, in the stated way, and the graph is healthy.

    `outcomes`: the audit's lines as {table_key: (from, to)}; None checks their direction only.
    """
    graph = RawGraph.attach(path, settings)
    assert graph.sidecars() == ()
    rows = [each for each in graph.audit() if each.operation_id == operation_id]
    assert len(rows) == 1
    row = rows[0]
    assert row.recovery_kind is kind
    assert row.recovery_for_actor == actor
    found = {each.table_key: (each.from_version, each.to_version) for each in row.per_table_outcomes}
    if outcomes is not None:
        assert found == outcomes
    for before, after in found.values():
        assert (before > after) is (kind is RecoveryKind.ROLLED_BACK)
    commit = graph.context.commits.show(row.graph_commit_id)
    assert (commit.actor, commit.operation, commit.recovers) == (RECOVERY_ACTOR, "recovery", operation_id)
    history = [each.id for each in graph.commits(branch)]
    assert commit.id in history
    parent = history[history.index(commit.id) + 1]
    assert commit.parents[0] == parent
    for key, (_, after) in found.items():
        if kind is RecoveryKind.ROLLED_FORWARD:
            assert graph.pins(branch)[key] >= after
    assert_healthy(path, settings)
    return row
