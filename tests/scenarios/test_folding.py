"""Small fragments become one after many small writes: nothing anybody can see of the rows changes."""

import base64
from dataclasses import replace

import pytest

import graphs
from omnigraph.core.errors import ExpectedVersionMismatch, PreconditionFailed, RecoveryRequired
from omnigraph.core.events import Warned
from omnigraph.core.failpoints import Callback, InjectedFailure, Pass, Raise, Sequence, Window, activate
from omnigraph.core.ids import TableKey
from omnigraph.core.limits import SMALL_FRAGMENTS_MAX
from omnigraph.maintenance import folding
from omnigraph.maintenance.index_report import Indexed
from omnigraph.maintenance.indices import FOLD_OPERATION, OPERATION, IndexWork, ensure_indices
from omnigraph.maintenance.reconciler import Reconciler
from omnigraph.manifest.commit_record import ADOPT_OPERATION, UPKEEP_OPERATIONS
from omnigraph.manifest.recoveries import RecoveryKind

SCHEMA = """
node P { name: String @key  body: String? @index  n: I32? @index  place: Vector(2)? @index }
node Doc { name: String @key  file: Blob? }
edge Knows: P -> P { since: I32? }
"""
FEW = 4
PROBING = replace(graphs.FAST, vector_probes=1)
"""A part of the vectors may answer a search, so they get an index."""


@pytest.fixture
def graph(tmp_path, monkeypatch):
    monkeypatch.setattr(folding, "SMALL_FRAGMENTS_MAX", FEW)
    with graphs.make_graph(tmp_path / "g", SCHEMA, settings=PROBING) as made:
        made.session.after_publish = Reconciler(uncovered_max=FEW)
        yield made


def add(graph, *names, **named):
    rows = " ".join(f'insert P {{ name: "{name}", n: {len(name)}, body: "the {name}" }}' for name in names)
    return graphs.run(graph, rows, **named)


def fragments(graph, key="node:P", branch="main"):
    session = graph.session
    return session.storage.fragments(session.open_entry(graph.snapshot(branch=branch).entries[key]))


def operations(graph, branch="main"):
    return [commit.operation for commit in graph.commits.list(branch=branch)]


def names(graph, at=None):
    source = graph if at is None else graph.at(at)
    found = source.query("query q() { match { $p: P } return { $p.name as name } order { $p.name asc } }")
    return found.to_arrow().column("name").to_pylist()


@pytest.mark.slow
def test_many_small_writes_keep_few_fragments_and_every_row(graph):
    expected = []
    for number in range(20):
        add(graph, f"p{number:02}")
        expected.append(f"p{number:02}")
        assert names(graph) == expected
        assert len(fragments(graph)) < 3 * FEW
    assert operations(graph).count("optimize") == 5
    assert {r.column: r for r in graph.indexes(types=["P"])}["n"].coverage == Indexed()
    assert graph.verify().ok
    again = graphs.reopen(graph)
    assert names(again) == expected


@pytest.mark.slow
def test_the_bound_is_that_of_the_limits(tmp_path):
    with graphs.make_graph(tmp_path / "g", SCHEMA, settings=PROBING) as graph:
        for number in range(SMALL_FRAGMENTS_MAX - 1):
            add(graph, f"p{number:02}")
        assert len(fragments(graph)) == SMALL_FRAGMENTS_MAX - 1
        add(graph, "last")
        assert len(fragments(graph)) == 1
        assert operations(graph)[:2] == ["optimize", "mutation"]


@pytest.mark.slow
def test_a_fold_is_no_change_of_any_row(graph):
    add(graph, "a", "b")
    add(graph, "c")
    add(graph, "d")
    before = graph.commits.list()[0].id
    rows = graphs.rows_of(graph, "P")
    add(graph, "e")
    newest, written = graph.commits.list()[:2]
    assert (newest.operation, written.operation) == ("optimize", "mutation")
    assert [info.live_rows for info in fragments(graph)] == [5]
    assert not list(graph.diff(written.id, newest.id))
    assert [change.id for change in graph.diff(before, "main")] == ["e"]
    assert graph.blame("P", "a")["n"].commit.id == graph.commits.list()[-2].id
    assert {name: row for name, row in graphs.rows_of(graph, "P").items() if name != "e"} == rows


@pytest.mark.slow
def test_old_commits_show_what_they_showed(graph):
    seen = {}
    for number in range(12):
        add(graph, f"p{number:02}")
        if number % 3 == 2:
            graphs.run(graph, f'delete P where name = "p{number - 1:02}"')
            graphs.run(graph, f'update P set {{ n: {number} }} where name = "p{number:02}"')
        seen[graph.commits.list()[0].id] = names(graph)
    assert operations(graph).count("optimize") >= 2
    for commit, expected in seen.items():
        assert names(graph, commit) == expected


@pytest.mark.slow
def test_searches_find_folded_rows(graph):
    for number in range(9):
        add(graph, f"p{number}")
        graphs.run(graph, f'update P set {{ place: [{number}.0, 1.0] }} where name = "p{number}"')
    assert "optimize" in operations(graph)
    near = graph.query(
        "query q() { match { $p: P } return { $p.name as name } "
        "order { nearest($p.place, [5.1, 1.0]) } limit 2 }"
    )
    assert near.to_arrow().column("name").to_pylist() == ["p5", "p6"]
    text = graph.query('query q() { match { $p: P  search($p.body, "p7") } return { $p.name as name } }')
    assert text.to_arrow().column("name").to_pylist() == ["p7"]


@pytest.mark.slow
def test_branches_made_before_a_fold_merge_as_if_there_had_been_none(graph):
    add(graph, "a", "b", "c")
    graph.branches.create("review")
    graphs.run(graph, 'update P set { n: 100 } where name = "a"', branch="review")
    graphs.run(graph, 'delete P where name = "b"', branch="review")
    for name in ("d", "e", "f", "g"):
        add(graph, name)
        add(graph, f"r{name}", branch="review")
    for branch in ("main", "review"):
        assert "optimize" in operations(graph, branch)
    merged = graph.branches.merge("review", into="main")
    assert merged.outcome == "merged"
    assert names(graph) == ["a", "c", "d", "e", "f", "g", "rd", "re", "rf", "rg"]
    assert graphs.rows_of(graph, "P")["a"]["n"] == 100
    assert graph.verify().ok


def test_a_branch_does_not_fold_what_it_inherits(graph):
    for name in ("a", "b", "c"):
        add(graph, name)
    graph.branches.create("review")
    graphs.run(graph, 'insert Knows { from: "a", to: "b" }', branch="review")
    assert graph.snapshot(branch="review").entries["node:P"].branch is None
    assert len(fragments(graph, branch="review")) == 3


@pytest.mark.slow
def test_tables_with_blobs_are_folded_with_their_bytes(graph):
    for number in range(2 * FEW):
        content = base64.b64encode(b"hello %d" % number).decode()
        graphs.run(graph, f'insert Doc {{ name: "d{number}", file: "base64:{content}" }}')
    assert len(fragments(graph, "node:Doc")) < FEW
    assert "optimize" in operations(graph)
    for number in range(2 * FEW):
        assert graph.blob("Doc", f"d{number}", "file").read() == b"hello %d" % number


@pytest.mark.slow
def test_a_fold_that_fails_is_a_warning_and_changes_nothing(graph):
    for name in ("a", "b", "c"):
        add(graph, name)
    with (
        activate(Window.OPTIMIZE_POST_COMPACT_PRE_REINDEX, Raise(InjectedFailure("x"))),
        graphs.hear() as heard,
    ):
        written = add(graph, "d").commit
    (warned,) = heard.of(Warned)
    assert warned.message == "index work after a write failed"
    # The write is the newest thing anybody sees; what the fold began is left to recovery.
    assert graph.commits.head() == written
    assert len(fragments(graph)) == 4
    assert names(graph) == ["a", "b", "c", "d"]
    (operation,) = graph.pending()
    assert "must be recovered" in str(warned.detail)
    with graphs.reopen(graph) as again:
        assert [(r.operation_id, r.recovery_kind, r.sidecar_writer_kind) for r in again.recoveries()] == [
            (operation, RecoveryKind.ROLLED_FORWARD, "Optimize")
        ]
        assert names(again) == names(again, at=written.id) == ["a", "b", "c", "d"]
        assert again.pending() == ()
        add(again, "e")
        assert again.verify().ok


def test_a_condition_on_a_commit_holds_over_upkeep_and_over_nothing_else(graph):
    for name in ("a", "b", "c"):
        add(graph, name)
    read = add(graph, "d").commit
    assert graph.commits.head().operation == "optimize"
    assert graph.commits.head().id != read.id
    again = add(graph, "e", if_commit=read.id).commit
    assert again.parents == (graph.commits.list()[1].id,)
    for statement in ('insert P { name: "f" }', 'delete P where name = "nobody"'):
        with pytest.raises(PreconditionFailed):
            graphs.run(graph, statement, if_commit=read.id)
    assert names(graph) == ["a", "b", "c", "d", "e"]


@pytest.mark.slow
@pytest.mark.parametrize("statement", ['delete P where name = "b"', 'update P set { n: 7 } where name = "b"'])
def test_a_strict_write_does_not_fail_because_of_upkeep(graph, statement):
    graph.session.after_publish = None
    for name in ("a", "b", "c", "d"):
        add(graph, name)
    before = graph.snapshot()

    def fold(_window):
        reconcile = Reconciler(uncovered_max=FEW)
        reconcile(graph.session, before, [TableKey("node:P")])

    with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Sequence([Callback(fold), Pass()])):
        graphs.run(graph, statement)
    assert operations(graph)[:2] == ["mutation", "optimize"]
    expected = ["a", "c", "d"] if statement.startswith("delete") else ["a", "b", "c", "d"]
    assert names(graph) == expected
    assert graphs.rows_of(graph, "P").get("b", {"n": 7})["n"] == 7
    assert graph.verify().ok


@pytest.mark.slow
def test_a_strict_write_still_fails_when_rows_changed_as_well(graph):
    graph.session.after_publish = None
    for name in ("a", "b", "c"):
        add(graph, name)

    def write_and_fold(_window):
        snapshot = graph.snapshot()
        with graphs.reopen(graph) as other:
            other.session.after_publish = Reconciler(uncovered_max=FEW)
            add(other, "d")
        assert snapshot.head != graph.snapshot().head

    with (
        activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Sequence([Callback(write_and_fold), Pass()])),
        pytest.raises(ExpectedVersionMismatch),
    ):
        graphs.run(graph, 'delete P where name = "b"')
    assert names(graph) == ["a", "b", "c", "d"]


def test_upkeep_is_what_maintenance_and_adoptions_commit():
    assert {OPERATION, FOLD_OPERATION, ADOPT_OPERATION} == UPKEEP_OPERATIONS


def test_a_fold_that_stops_after_its_first_step_says_that_it_must_be_recovered(graph):
    graph.session.after_publish = None
    for name in ("a", "b", "c", "d"):
        add(graph, name)
    with (
        activate(Window.OPTIMIZE_POST_COMPACT_PRE_REINDEX, Raise(InjectedFailure("x"))),
        pytest.raises(RecoveryRequired, match="half-way"),
    ):
        ensure_indices(graph.session, None, work=IndexWork.FOLDED)
    assert len(graph.pending()) == 1
    with graphs.reopen(graph) as again:
        assert names(again) == ["a", "b", "c", "d"]
        assert len(fragments(again)) == 1
