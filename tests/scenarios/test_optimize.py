"""Optimize: few fragments, no deleted rows in files, indexes that know every row; nothing anybody reads changes."""

import pickle
from dataclasses import replace

import pytest

import graphs
from omnigraph.core.errors import RecoveryRequired, TypeNotFound
from omnigraph.core.failpoints import InjectedFailure, Raise, Window, activate
from omnigraph.core.ids import OperationId, TableKey, new_ulid
from omnigraph.core.limits import INDEX_SEGMENTS_MAX
from omnigraph.maintenance import indices
from omnigraph.maintenance.indices import IndexWork, ensure_indices
from omnigraph.maintenance.optimize import optimize
from omnigraph.manifest.recoveries import RecoveryKind
from omnigraph.storage.handles import Stamp

SCHEMA = """
node P { name: String @key  body: String? @index  n: I32? @index  place: Vector(2)? @index }
node Doc { name: String @key  file: Blob? }
edge Knows: P -> P { since: I32? }
"""
PROBING = replace(graphs.FAST, vector_probes=1)
"""A part of the vectors may answer a search, so they get an index."""
P = TableKey("node:P")
DOC = TableKey("node:Doc")


@pytest.fixture
def graph(tmp_path):
    with graphs.make_graph(tmp_path / "g", SCHEMA, settings=PROBING) as made:
        made.session.after_publish = None
        yield made


def add(graph, *names, branch="main"):
    rows = " ".join(
        f'insert P {{ name: "{name}", n: {len(name)}, body: "the {name}", place: [1.0, {len(name)}.0] }}'
        for name in names
    )
    return graphs.run(graph, rows, branch=branch)


def handle(graph, key=P, branch="main"):
    return graph.session.open_entry(graph.snapshot(branch=branch).entries[key])


def fragments(graph, key=P, branch="main"):
    return graph.session.storage.fragments(handle(graph, key, branch))


def uncovered(graph, key=P, branch="main"):
    return {
        each.name: len(each.uncovered)
        for each in graph.session.storage.index_coverage(handle(graph, key, branch))
    }


def committed(report):
    return {each.type_name for each in report.tables if each.committed}


@pytest.mark.slow
def test_optimize_extends_coverage_and_is_idempotent(graph) -> None:
    for number in range(12):
        add(graph, f"p{number}")
    graph.ensure_indices()
    add(graph, "late")
    before, rows = graph.snapshot(), graph.export()
    report = graph.optimize(actor="ana")
    assert committed(report) == {"P"}
    assert [(each.fragments_removed, each.fragments_added) for each in report.tables if each.committed] == [
        (13, 1)
    ]
    assert len(fragments(graph)) == 1
    assert set(uncovered(graph).values()) == {0}
    assert graph.export() == rows
    assert graph.snapshot().commit.operation == "optimize"
    assert graph.snapshot().commit.actor == "ana"
    second = graph.optimize()
    assert second.commit_id is None
    assert committed(second) == set()
    assert graph.snapshot().head == report.commit_id
    assert graph.verify().violations == ()
    graph.session.begin_read()
    assert graph.export(at=before.head) == rows


@pytest.mark.slow
def test_optimize_vector_delta_segments_count_as_covered(graph) -> None:
    add(graph, "a", "b", "c")
    graph.ensure_indices()
    add(graph, "d")
    # Without a rewrite the index gets a second segment, and both together cover everything.
    ensure_indices(graph.session, None, work=IndexWork.EXTENDED)
    segments = {each.name: each.segments for each in graph.session.storage.index_coverage(handle(graph))}
    assert segments["place_vec"] == 2
    assert set(uncovered(graph).values()) == {0}
    assert ensure_indices(graph.session, None, work=IndexWork.EXTENDED).commit_id is None
    graph.optimize()
    assert graph.optimize().commit_id is None


def test_optimize_refuses_pending_sidecar(graph) -> None:
    add(graph, "a")
    with (
        activate(Window.MUTATION_POST_TABLE_COMMIT, Raise(InjectedFailure("x"))),
        pytest.raises(RecoveryRequired),
    ):
        graphs.run(graph, 'insert P { name: "b" } insert Doc { name: "b" }')
    assert len(graph.pending()) == 1
    before = graph.snapshot()
    with pytest.raises(RecoveryRequired, match="rolled back first"):
        graph.optimize()
    assert graph.snapshot() == before


def test_optimize_skips_uncovered_drift(graph) -> None:
    for number in range(3):
        add(graph, f"p{number}")
        graphs.run(graph, f'insert Doc {{ name: "d{number}" }}')
    session, drifted = graph.session, handle(graph)
    stamp = Stamp(OperationId(new_ulid()), P)
    rewritten = session.storage.stage_rewrite(drifted, drifted.fragment_ids, stamp)
    session.storage.commit_staged(drifted, rewritten)
    report = graph.optimize()
    by_type = {each.type_name: each for each in report.tables}
    assert by_type["P"].skipped == "drift_needs_repair"
    assert (by_type["P"].manifest_version, by_type["P"].lance_head_version) == (
        drifted.version,
        drifted.version + 1,
    )
    assert committed(report) == {"Doc"}
    assert graph.snapshot().entries[P].version == drifted.version


@pytest.mark.slow
@pytest.mark.parametrize(
    "window",
    [Window.OPTIMIZE_POST_COMPACT_PRE_REINDEX, Window.OPTIMIZE_POST_PHASE_B_PRE_MANIFEST_COMMIT],
)
def test_optimize_crash_rolls_forward(graph, window) -> None:
    for number in range(5):
        add(graph, f"p{number}")
    rows = graph.export()
    with activate(window, Raise(InjectedFailure("x"))), pytest.raises((InjectedFailure, RecoveryRequired)):
        graph.optimize()
    with graphs.reopen(graph) as again:
        assert again.pending() == ()
        assert again.export() == rows
        assert again.verify().violations == ()
        entry = again.snapshot().entries[P]
        assert again.session.storage.head_version(entry.location, entry.branch) == entry.version
        assert len(fragments(again)) == 1
        assert again.recoveries()[-1].recovery_kind is RecoveryKind.ROLLED_FORWARD


@pytest.mark.slow
def test_deleted_rows_leave_the_files(graph) -> None:
    add(graph, *(f"p{number}" for number in range(20)))
    graphs.run(graph, "delete P where n = 3")
    assert sum(each.deleted_rows for each in fragments(graph)) == 10
    rows = graph.export()
    graph.optimize()
    assert sum(each.deleted_rows for each in fragments(graph)) == 0
    assert graph.export() == rows
    # The node tables' edges, keys and caches still find every row.
    add(graph, "p11111")
    assert graph.export() != rows


def test_tables_with_blobs_are_compacted_with_their_bytes(graph) -> None:
    contents = {"none": None, "empty": "", "small": "QQ==", "large": "QUJD" * 4096}
    for name, content in contents.items():
        given = "" if content is None else f', file: "base64:{content}"'
        graphs.run(graph, f'insert Doc {{ name: "{name}"{given} }}')
    rows = graph.export()
    assert committed(graph.optimize(types=["Doc"])) == {"Doc"}
    assert len(fragments(graph, DOC)) == 1
    assert graph.export() == rows
    assert graph.blob("Doc", "large", "file").read() == b"ABC" * 4096


@pytest.mark.slow
def test_what_was_only_tried_leaves_no_file(graph) -> None:
    for number in range(3):
        add(graph, f"p{number}")
        graphs.run(graph, f'insert Doc {{ name: "d{number}" }}')
    assert committed(graph.optimize()) == {"P", "Doc"}
    fates = graph.cleanup(keep=1, dry_run=True).fates
    assert [each.name for each in fates if each.why.startswith("younger")] == []


@pytest.mark.slow
def test_indexes_of_many_segments_become_one(graph) -> None:
    for number in range(INDEX_SEGMENTS_MAX + 3):
        add(graph, f"p{number}")
        # As the light pass does it: a segment a time, nothing rewritten.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(indices, "INDEX_SEGMENTS_MAX", None)
            ensure_indices(graph.session, None, work=IndexWork.EXTENDED)
    coverage = {each.name: each for each in graph.session.storage.index_coverage(handle(graph))}
    assert coverage["id_btree"].segments > INDEX_SEGMENTS_MAX
    graph.optimize()
    coverage = {each.name: each for each in graph.session.storage.index_coverage(handle(graph))}
    assert {each.segments for each in coverage.values()} == {1}
    assert {len(each.uncovered) for each in coverage.values()} == {0}


@pytest.mark.slow
def test_a_branch_is_optimized_where_it_owns_its_tables(graph) -> None:
    add(graph, "a")
    add(graph, "b")
    graph.branches.create("review")
    add(graph, "c", branch="review")
    add(graph, "d", branch="review")
    main, rows = graph.snapshot(), graph.export(branch="review")
    report = graph.optimize(branch="review")
    by_type = {each.type_name: each for each in report.tables}
    assert by_type["P"].committed
    assert by_type["Doc"].skipped == "inherited"
    assert len(fragments(graph, branch="review")) == 1
    assert graph.export(branch="review") == rows
    assert graph.snapshot() == main
    graph.branches.merge("review", into="main")
    assert graph.export() == rows
    assert graph.verify().violations == ()


@pytest.mark.slow
def test_a_fast_forward_is_covered_by_optimize(graph) -> None:
    add(graph, "a", "b")
    graph.ensure_indices()
    graph.branches.create("review")
    add(graph, "c", branch="review")
    graph.branches.merge("review", into="main")
    assert set(uncovered(graph).values()) != {0}
    graph.optimize()
    assert set(uncovered(graph).values()) == {0}
    assert graph.optimize().commit_id is None


@pytest.mark.slow
def test_writes_of_others_meanwhile_are_kept(graph) -> None:
    for number in range(4):
        add(graph, f"p{number}")
    met = []

    def other(_session, *arguments, **named):
        if not met:
            met.append(1)
            add(graph, "other")
        return staged(_session, *arguments, **named)

    staged = indices.stage_compaction
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indices, "stage_compaction", other)
        report = graph.optimize()
    assert committed(report) == {"P"}
    assert '"other"' in graph.export()
    # What came meanwhile is a fragment of its own; what was there is one, with its indexes.
    assert sorted(each.live_rows for each in fragments(graph)) == [1, 4]
    assert set(uncovered(graph).values()) == {1}


@pytest.mark.slow
def test_diff_after_compaction_is_empty(graph) -> None:
    for number in range(4):
        add(graph, f"p{number}")
    before = graph.snapshot().head
    after = graph.optimize().commit_id
    assert len(graph.diff(before, after)) == 0


class Elsewhere:
    """Runs tasks as other processes would: nothing but what can be pickled arrives and comes back."""

    name = "elsewhere"

    def __init__(self):
        self.tasks = 0

    def map(self, _session, _stage, function, tasks):
        self.tasks += len(tasks)
        return [pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(task))))) for task in tasks]


@pytest.mark.parametrize(("rows_max", "handed_on"), [(3, 2), (100, 0)])
@pytest.mark.slow
def test_large_tables_are_rewritten_elsewhere(tmp_path, rows_max, handed_on) -> None:
    settings = replace(PROBING, bulk_rows_in_process_max=rows_max)
    with graphs.make_graph(tmp_path / "large", SCHEMA, settings=settings) as graph:
        graph.session.after_publish = None
        for number in range(5):
            add(graph, f"p{number}")
            graphs.run(graph, f'insert Doc {{ name: "d{number}", file: "base64:aGVsbG8=" }}')
        graphs.run(graph, 'delete P where name = "p3"')
        rows, elsewhere = graph.export(), Elsewhere()
        optimize(graph.session, None, bulk=elsewhere)
        assert elsewhere.tasks == handed_on
        assert [len(fragments(graph, key)) for key in (P, DOC)] == [1, 1]
        assert [each.deleted_rows for each in fragments(graph)] == [0]
        assert set(uncovered(graph).values()) == {0}
        assert graph.export() == rows
        assert graph.verify(deep=True).violations == ()


def test_an_unknown_type_is_refused(graph) -> None:
    with pytest.raises(TypeNotFound):
        graph.optimize(types=["Nobody"])
