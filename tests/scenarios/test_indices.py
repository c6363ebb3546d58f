"""Declared indexes: which exist, when they are built, and that they never stand in the way of a write."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import graphs
from omnigraph.core.errors import DriftError, RecoveryRequired
from omnigraph.core.events import DurableOperation, Warned
from omnigraph.core.failpoints import InjectedFailure, Raise, Window, activate
from omnigraph.core.limits import UNCOVERED_FRAGMENTS_MAX
from omnigraph.maintenance.index_report import Degraded, Indexed
from omnigraph.maintenance.reconciler import Reconciler
from omnigraph.storage.handles import Stamp

EVERY_KIND = """
node Thing {
  slug: String @key
  body: String? @index
  mood: enum(calm, tense)? @index
  flag: Bool? @index
  small: I32? @index
  large: I64? @index
  count: U32? @index
  total: U64? @index
  ratio: F32? @index
  rate: F64? @index
  day: Date? @index
  moment: DateTime? @index
  place: Vector(2)? @index
  words: [String]?
  plain: I32?
}
edge Near: Thing -> Thing { since: I32? @index }
"""

ORDERED = ("flag", "small", "large", "count", "total", "ratio", "rate", "day", "moment", "mood")


@pytest.fixture
def graph(tmp_path):
    with graphs.make_graph(tmp_path / "g", EVERY_KIND) as made:
        yield made


def add(graph, *slugs, **named):
    rows = " ".join(f'insert Thing {{ slug: "{slug}" }}' for slug in slugs)
    return graphs.run(graph, rows, **named)


def by_column(graph, type_name="Thing", **named):
    return {r.column: r for r in graph.indexes(types=[type_name], **named)}


def test_index_kinds_by_property_type(graph):
    """Scenario 152."""
    add(graph, "a")
    graphs.run(
        graph, 'insert Near { from: "a", to: "a" } update Thing set { place: [1.0, 2.0] } where slug = "a"'
    )
    graph.ensure_indices()
    things = by_column(graph)
    for column in (*ORDERED, "id", "slug"):
        assert things[column].coverage == Indexed(), column
    assert things["body"].declared == ("INVERTED",)
    assert things["place"].declared == ("IVF_FLAT",)
    for column in ("body", "place", "words", "plain"):
        assert isinstance(things[column].coverage, Degraded), column
    assert things["words"].present == things["plain"].present == ()
    ends = by_column(graph, "Near")
    assert all(ends[column].coverage == Indexed() for column in ("id", "src", "dst", "since"))


def test_a_new_fragment_degrades_until_indexes_are_extended(graph):
    add(graph, "a")
    graph.ensure_indices()
    add(graph, "b")
    found = by_column(graph)["small"].coverage
    assert isinstance(found, Degraded)
    assert "1 fragments" in found.reason
    assert graph.ensure_indices().built == ()  # existence-gated: extending is the reconciler's and optimize's


@pytest.fixture
def probing(tmp_path):
    """The same graph where searches may answer from a part of the vectors."""
    settings = replace(graphs.FAST, vector_probes=1)
    with graphs.make_graph(tmp_path / "probing", EVERY_KIND, settings=settings) as made:
        yield made


def test_vector_index_pending_until_vectors_exist(probing):
    """Scenario 158."""
    graph = probing
    add(graph, "a")
    first = graph.ensure_indices()
    assert [(p.type_name, p.column) for p in first.pending] == [("Thing", "place")]
    assert ("Thing", "place_vec") not in first.built
    graphs.run(graph, 'insert Thing { slug: "b", place: [1.0, 0.0] }')
    second = graph.ensure_indices()
    assert second.built == (("Thing", "place_vec"),)
    assert second.pending == ()


@pytest.mark.slow
def test_a_vector_index_is_built_only_where_a_part_of_it_may_answer(graph, probing):
    for each in (graph, probing):
        graphs.run(each, 'insert Thing { slug: "a", place: [1.0, 0.0] }')
        each.ensure_indices()
        each.optimize()
    (exact,) = by_column(graph)["place"].indexes
    assert (exact.name, exact.state, exact.segments) == ("place_vec", "not needed: exact search", 0)
    assert graph.ensure_indices().pending == ()
    (partial,) = by_column(probing)["place"].indexes
    assert (partial.name, partial.state, partial.segments) == ("place_vec", "complete", 1)


@pytest.mark.slow
def test_a_vector_index_has_a_partition_for_every_4096_rows(probing, tmp_path):
    rows = tmp_path / "Thing.parquet"
    flat = pa.array(np.random.default_rng(0).standard_normal(2 * 3 * 4096).astype(np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(flat, 2)
    pq.write_table(pa.table({"slug": [f"s{n}" for n in range(len(vectors))], "place": vectors}), rows)
    probing.load(rows, mode="append", engine="local")
    (index,) = by_column(probing)["place"].indexes
    assert index.state == "complete"
    handle = probing.session.open_entry(probing.snapshot().entries["node:Thing"])
    assert probing.session.storage.search.partitions(handle, "place_vec") == 3


@pytest.mark.slow
def test_index_stage_failure_leaves_tables_writable(graph):
    """Scenario 159."""
    add(graph, "a")
    graphs.run(graph, 'insert Near { from: "a", to: "a" }')
    before = graphs.pins_of(graph.snapshot())
    with (
        activate(Window.ENSURE_INDICES_POST_STAGE_PRE_COMMIT_BTREE, Raise()),
        pytest.raises(InjectedFailure),
    ):
        graph.ensure_indices()
    assert graphs.pins_of(graph.snapshot()) == before
    add(graph, "b")
    graphs.run(graph, 'insert Near { from: "b", to: "a" }')
    assert graph.ensure_indices().built
    assert graph.pending() == ()
    assert graph.verify().ok


def test_ensure_indices_steady_state_writes_no_sidecar(graph):
    """Scenario 178."""
    add(graph, "a")
    graph.ensure_indices()
    with graphs.unchanged(graph), graphs.hear() as heard:
        assert graph.ensure_indices().commit_id is None
    assert heard.of(DurableOperation) == []


def test_all_tables_get_their_indexes_in_one_commit(graph):
    add(graph, "a")
    graphs.run(graph, 'insert Near { from: "a", to: "a" }')
    head = graph.commits.head().id
    done = graph.ensure_indices(actor="ana")
    commit = graph.commits.head()
    assert {owner for owner, _ in done.built} == {"Thing", "Near"}
    assert commit.id == done.commit_id
    assert commit.parents == (head,)
    assert (commit.operation, commit.actor) == ("ensure_indices", "ana")
    assert graph.verify().ok


def test_empty_tables_are_left_alone(graph):
    with graphs.unchanged(graph):
        assert graph.ensure_indices().built == ()


@pytest.mark.slow
def test_a_branch_leaves_what_it_inherits_to_main(graph):
    add(graph, "a")
    graph.branches.create("b")
    with graphs.unchanged(graph), graphs.unchanged(graph, "b"):
        assert graph.ensure_indices(branch="b").built == ()
    add(graph, "only-b", branch="b")
    with graphs.unchanged(graph):
        assert graph.ensure_indices(branch="b").built
    assert by_column(graph, branch="b")["small"].coverage == Indexed()
    assert graph.verify().ok


def test_a_table_of_an_ancestor_is_forked_for_its_index(graph):
    graph.branches.create("b")
    add(graph, "a", branch="b")
    graph.branches.create("c", from_branch="b")
    with graphs.unchanged(graph, "b"):
        assert graph.ensure_indices(branch="c").built
    assert by_column(graph, branch="c")["small"].coverage == Indexed()
    assert isinstance(by_column(graph, branch="b")["small"].coverage, Degraded)
    assert set(graphs.rows_of(graph, "Thing", branch="c")) == {"a"}
    assert graph.verify().ok


@pytest.mark.slow
def test_ensure_indices_does_not_heal(graph):
    """A write that the next mutation would complete is neither completed nor built upon."""
    add(graph, "a")
    graphs.run(graph, 'insert Near { from: "a", to: "a" }')
    with (
        activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Raise()),
        pytest.raises(RecoveryRequired) as stopped,
    ):
        add(graph, "b")
    with graphs.unchanged(graph), pytest.raises(RecoveryRequired) as refused:
        graph.ensure_indices()
    assert refused.value.operation_id == stopped.value.operation_id
    assert graph.pending() == (stopped.value.operation_id,)
    assert graph.recoveries() == ()
    add(graph, "c")
    assert set(graphs.rows_of(graph, "Thing")) == {"a", "b", "c"}
    assert graph.ensure_indices().built


def test_drift_without_a_note_is_refused(graph):
    add(graph, "a")
    session = graph.session
    entry = graph.snapshot().entries["node:Thing"]
    handle = session.open_entry(entry)
    staged = session.storage.stage_delete(handle, Stamp("foreign", entry.table_key), predicate="slug = 'a'")
    session.storage.commit_staged(handle, staged)
    with pytest.raises(DriftError):
        graph.ensure_indices()


def operations(graph):
    return [commit.operation for commit in graph.commits.list()]


@pytest.mark.slow
def test_writes_below_the_bound_build_nothing(graph):
    for number in range(UNCOVERED_FRAGMENTS_MAX - 1):
        add(graph, f"t{number}")
    assert "ensure_indices" not in operations(graph)


@pytest.mark.slow
def test_the_reconciler_builds_at_the_bound_and_extends_at_the_next(graph):
    graph.session.after_publish = Reconciler(uncovered_max=4)
    for number in range(4):
        add(graph, f"t{number}")
    assert operations(graph).count("ensure_indices") == 1
    assert by_column(graph)["small"].coverage == Indexed()
    for number in range(4, 7):
        add(graph, f"t{number}")
    assert operations(graph).count("ensure_indices") == 1
    add(graph, "t7")
    assert operations(graph).count("ensure_indices") == 2
    assert by_column(graph)["small"].coverage == Indexed()
    assert by_column(graph)["body"].uncovered == 0
    assert graph.query("query q() { match { $t: Thing } return { count($t) as n } }")[0] == {"n": 8}
    assert graph.verify().ok


@pytest.mark.slow
def test_a_failed_reconcile_is_a_warning_and_is_not_tried_at_every_write(graph):
    graph.session.after_publish = Reconciler(uncovered_max=2)
    attempts = []

    def fail(window):
        attempts.append(window)
        raise InjectedFailure(window)

    add(graph, "a")
    with activate(Window.ENSURE_INDICES_POST_STAGE_PRE_COMMIT_BTREE, fail), graphs.hear() as heard:
        add(graph, "b")
        add(graph, "c")
    assert len(attempts) == 1
    assert [event.message for event in heard.of(Warned)] == ["index work after a write failed"]
    assert set(graphs.rows_of(graph, "Thing")) == {"a", "b", "c"}
    add(graph, "d")
    assert by_column(graph)["small"].coverage == Indexed()
    assert graph.pending() == ()


@pytest.mark.slow
def test_a_bulk_load_ends_with_its_indexes(graph, tmp_path):
    rows = tmp_path / "things.jsonl"
    lines = [json.dumps({"type": "Thing", "data": {"slug": f"s{n}", "small": n}}) for n in range(10_000)]
    rows.write_text("\n".join(lines))
    graph.load(rows, mode="append", engine="local")
    assert by_column(graph)["small"].coverage == Indexed()
    assert operations(graph)[:2] == ["ensure_indices", "load"]


def test_a_small_load_does_not(graph, tmp_path):
    rows = tmp_path / "things.jsonl"
    rows.write_text('{"type": "Thing", "data": {"slug": "one"}}')
    graph.load(rows, mode="append", engine="local")
    assert operations(graph)[0] == "load"
