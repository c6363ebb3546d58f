"""Merging branches: outcomes, deltas, equality, validation, concurrency."""

import json
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import omnigraph
from graphs import PEOPLE, hear, make_graph, reopen, rows_of, run, state_of, unchanged
from omnigraph.core.errors import (
    BadRequest,
    BranchNotFound,
    ExpectedVersionMismatch,
    MergeConflicts,
    PreconditionFailed,
    TypeNotFound,
)
from omnigraph.core.events import TableCommitted, TableStaged
from omnigraph.core.failpoints import Callback, Pause, Sequence, Window, activate
from omnigraph.core.ids import BranchName, OperationId, TableKey, new_ulid
from omnigraph.engine.write.forks import fork_table
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.storage.handles import Stamp

PERSON, KNOWS = TableKey("node:Person"), TableKey("edge:Knows")


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "graph") as made:
        run(
            made,
            """insert Person { name: "Alice", age: 30 } insert Person { name: "Bob", age: 25 }
               insert Person { name: "Carol", age: 40 } insert Company { name: "Acme" }
               insert Knows { from: "Bob", to: "Carol" }""",
        )
        made.branches.create("topic")
        yield made


def ages(graph, branch="main"):
    return {name: row["age"] for name, row in rows_of(graph, "Person", branch=branch).items()}


def conflicts_of(graph, **named):
    with unchanged(graph), pytest.raises(MergeConflicts) as refused:
        graph.branches.merge("topic", **named)
    return [(each["kind"], each["table_key"], each["row_id"]) for each in refused.value.conflicts]


def test_append_only_fast_forward_merge_does_no_merge_insert(graph):
    for number in range(5):
        run(graph, f'insert Person {{ name: "new{number}", age: {number} }}', branch="topic")
    with hear(everywhere=True) as heard:
        report = graph.branches.merge("topic")
    assert report.outcome == "fast_forward"
    staged = [(each.primitive, each.rows) for each in heard.of(TableStaged)]
    assert staged == [("stage_append_stream", 5)]
    assert ages(graph) == ages(graph, "topic")
    assert report.stats == {"node:Person": {"inserted": 5}}


@pytest.mark.slow
def test_fast_forward_yields_source_state(graph):
    run(graph, 'insert Person { name: "Dan" } insert Knows { from: "Dan", to: "Alice" }', branch="topic")
    run(graph, 'update Person set { age: 31 } where name = "Alice"', branch="topic")
    run(graph, 'delete Person where name = "Carol"', branch="topic")
    assert graph.branches.merge("topic").outcome == "fast_forward"
    assert sorted(graph.export().splitlines()) == sorted(graph.export(branch="topic").splitlines())
    assert graph.verify().violations == ()


def test_fast_forward_streams_blobs(tmp_path):
    with make_graph(tmp_path / "g", "node Doc { name: String @key  body: Blob? }") as graph:
        run(graph, 'insert Doc { name: "kept" }')
        graph.branches.create("topic")
        storage, session = graph.session.storage, graph.session
        entry = session.manifest.current(None).entries[TableKey("node:Doc")]
        handle = fork_table(session, entry, BranchName("topic"))
        bodies = [bytes([n]) * 100_000 for n in range(20)]
        rows = pa.table(
            {"id": [f"d{n}" for n in range(20)], "body": bodies, "name": [f"d{n}" for n in range(20)]},
        ).select(handle.schema.names)
        committed = commit_rows(graph, handle, rows.cast(handle.schema))
        publish(graph, committed, "topic")
        graph.branches.merge("topic")
        target = session.open_entry(session.manifest.current(None).entries[TableKey("node:Doc")])
        found = storage.read(target, columns=["id", "body"]).sort_by("id").to_pydict()
        expected = dict(zip((f"d{n}" for n in range(20)), bodies, strict=True)) | {"kept": None}
        assert dict(zip(found["id"], found["body"], strict=True)) == expected


def commit_rows(graph, handle, rows):
    """A raw commit of rows that no statement could write."""
    staged = graph.session.storage.stage_append(handle, rows, Stamp(new_ulid(), handle.table_key))
    return graph.session.storage.commit_staged(handle, staged)


def publish(graph, handle, branch):
    storage, session = graph.session.storage, graph.session
    update = SubTableUpdate(
        handle.table_key,
        handle.version,
        handle.branch,
        handle.row_count,
        storage.transaction_of(handle.location, handle.branch, handle.version).uuid,
        storage.branch_identifier(handle.location, handle.branch),
    )
    session.publisher.publish(
        branch, [update], {}, CommitIntent(new_ulid(), "mutation", None, OperationId(new_ulid()))
    )


def test_merge_records_two_parents_and_actor(graph):
    run(graph, 'insert Person { name: "Dan" }', branch="topic")
    ours, theirs = graph.commits.head(), graph.commits.head(branch="topic")
    commit = graph.branches.merge("topic", actor="ana").commit
    assert commit == graph.commits.head()
    assert (commit.parents, commit.actor, commit.operation) == ((ours.id, theirs.id), "ana", "merge")
    assert commit.summary == {"node:Person": {"inserted": 1}}


def test_second_merge_already_up_to_date(graph):
    run(graph, 'insert Person { name: "Dan" }', branch="topic")
    graph.branches.merge("topic")
    with unchanged(graph):
        report = graph.branches.merge("topic")
    assert (report.outcome, report.commit) == ("already_up_to_date", None)


@pytest.mark.slow
@pytest.mark.parametrize("target_moved", [False, True])
def test_merge_null_vs_empty_string_detected(graph, target_moved):
    run(graph, 'update Person set { nick: "" } where name = "Alice"', branch="topic")
    if target_moved:
        run(graph, 'insert Person { name: "Zoe" }')
    graph.branches.merge("topic")
    assert rows_of(graph, "Person")["Alice"]["nick"] == ""
    run(graph, 'update Person set { nick: null } where name = "Alice"', branch="topic")
    graph.branches.merge("topic")
    assert rows_of(graph, "Person")["Alice"]["nick"] is None


def test_merge_separator_in_text_detected(graph):
    both = {"a": "x\x1fy", "b": "z"}
    run(
        graph,
        'update Person set { nick: $a, repoName: $b } where name = "Alice"',
        both,
        types="$a: String, $b: String",
    )
    graph.branches.merge("main", into="topic")
    moved = {"a": "x", "b": "y\x1fz"}
    run(
        graph,
        'update Person set { nick: $a, repoName: $b } where name = "Alice"',
        moved,
        types="$a: String, $b: String",
        branch="topic",
    )
    graph.branches.merge("topic")
    alice = rows_of(graph, "Person")["Alice"]
    assert (alice["nick"], alice["repoName"]) == ("x", "y\x1fz")


def test_merge_row_prefixed_property_detected(tmp_path):
    with make_graph(tmp_path / "g", "node Doc { name: String @key  _row_note: String? }") as graph:
        run(graph, 'insert Doc { name: "a", _row_note: "x" }')
        graph.branches.create("topic")
        run(graph, 'update Doc set { _row_note: "y" } where name = "a"', branch="topic")
        graph.branches.merge("topic")
        assert rows_of(graph, "Doc")["a"]["_row_note"] == "y"


def netzero(graph):
    run(graph, 'insert Knows { from: "Alice", to: "Bob" }', branch="topic")
    run(graph, 'delete Knows where from = "Alice"', branch="topic")


def test_merge_netzero_records_lineage_only(graph):
    netzero(graph)
    before = state_of(graph)
    report = graph.branches.merge("topic")
    after = state_of(graph)
    assert (report.outcome, report.stats) == ("fast_forward", {})
    assert (after.heads, after.pins, after.rows) == (before.heads, before.pins, before.rows)
    assert after.commits == before.commits + 1
    assert graph.branches.merge("topic").outcome == "already_up_to_date"


def test_merge_netzero_beside_real_delta(graph):
    netzero(graph)
    run(graph, 'insert Company { name: "Biz" }', branch="topic")
    before = state_of(graph)
    with hear() as heard:
        graph.branches.merge("topic")
    after = state_of(graph)
    moved = {key for key in after.pins if after.pins[key] != before.pins[key]}
    assert moved == {"node:Company"}
    assert {each.table_key for each in heard.of(TableCommitted)} <= {"node:Company"}
    assert after.heads == after.pins
    assert "Biz" in rows_of(graph, "Company")
    assert rows_of(graph, "Knows") == rows_of(graph, "Knows", branch="topic")


RULES = """
node Person { name: String @key  nick: String? @unique  role: enum(owner, guest)? }
edge Knows: Person -> Person
edge Leads: Person -> Person @card(0..1)
"""


@pytest.fixture
def ruled(tmp_path):
    with make_graph(tmp_path / "rules", RULES) as made:
        run(made, "".join(f'insert Person {{ name: "{name}" }} ' for name in ("ann", "bea", "cat", "dot")))
        made.branches.create("topic")
        yield made


@pytest.mark.slow
def test_merge_unique_cardinality_orphan_enum_conflicts(ruled):
    run(
        ruled,
        'insert Person { name: "eve", nick: "same" } insert Leads { from: "ann", to: "bea" }',
        branch="topic",
    )
    run(ruled, 'insert Knows { from: "bea", to: "dot" }', branch="topic")
    run(ruled, 'insert Person { name: "fay", nick: "same" } insert Leads { from: "ann", to: "cat" }')
    run(ruled, 'delete Person where name = "dot"')
    session = ruled.session
    entry = session.manifest.current(BranchName("topic")).entries[PERSON]
    handle = session.open_entry(entry)
    bad = pa.table({"id": ["odd"], "name": ["odd"], "nick": [None], "role": ["nobody"]})
    publish(ruled, commit_rows(ruled, handle, bad.select(handle.schema.names).cast(handle.schema)), "topic")
    found = conflicts_of(ruled)
    assert sorted((kind, table) for kind, table, _ in found) == [
        ("cardinality_violation", "edge:Leads"),
        ("orphan_edge", "edge:Knows"),
        ("unique_violation", "node:Person"),
        ("value_constraint_violation", "node:Person"),
    ]
    assert [table for _, table, _ in found] == sorted(table for _, table, _ in found)


@pytest.mark.slow
def test_all_row_conflicts_are_listed_in_order(graph):
    for branch, age in (("topic", 1), ("main", 2)):
        run(graph, f"update Person set {{ age: {age} }} where age > 0", branch=branch)
        run(
            graph,
            f'insert Company {{ name: "New" }} insert Person {{ name: "Dan", age: {age} }}',
            branch=branch,
        )
    assert conflicts_of(graph) == [
        ("divergent_update", "node:Person", "Alice"),
        ("divergent_update", "node:Person", "Bob"),
        ("divergent_update", "node:Person", "Carol"),
        ("divergent_insert", "node:Person", "Dan"),
    ]


def in_thread(work):
    result = {}

    def target():
        try:
            result["value"] = work()
        except Exception as error:
            result["error"] = error

    thread = threading.Thread(target=target)
    thread.start()
    return thread, result


@pytest.mark.slow
def test_merge_target_moved_after_classification(graph):
    run(graph, 'insert Person { name: "Dan" }', branch="topic")
    with activate(Window.BRANCH_MERGE_POST_CLASSIFY_PRE_QUEUE, Pause()) as pause:
        thread, result = in_thread(lambda: graph.branches.merge("topic"))
        pause.wait_until_reached()
        run(graph, 'insert Person { name: "Eve" }')
        before = state_of(graph)
        pause.release()
        thread.join()
    assert isinstance(result["error"], ExpectedVersionMismatch)
    assert state_of(graph) == before
    graph.branches.merge("topic")
    assert {"Dan", "Eve"} <= set(ages(graph))


@pytest.mark.slow
def test_merge_source_moved_during_merge_is_fine(graph):
    run(graph, 'insert Person { name: "Dan" }', branch="topic")
    captured = graph.commits.head(branch="topic")
    with activate(Window.BRANCH_MERGE_POST_CLASSIFY_PRE_QUEUE, Pause()) as pause:
        thread, result = in_thread(lambda: graph.branches.merge("topic"))
        pause.wait_until_reached()
        run(graph, 'insert Person { name: "Eve" }', branch="topic")
        pause.release()
        thread.join()
    assert result["value"].commit.merged_parent == captured.id
    assert "Dan" in ages(graph)
    assert "Eve" not in ages(graph)
    assert graph.branches.merge("topic").outcome == "merged"
    assert "Eve" in ages(graph)


def test_target_moved_elsewhere_does_not_stop_a_merge(graph):
    run(graph, 'insert Person { name: "Dan" }', branch="topic")
    write = Callback(lambda _window: run(graph, 'insert Company { name: "Biz" }'))
    with activate(Window.BRANCH_MERGE_POST_CLASSIFY_PRE_QUEUE, Sequence([write])):
        commit = graph.branches.merge("topic").commit
    assert "Biz" in rows_of(graph, "Company")
    assert "Dan" in ages(graph)
    assert graph.commits.show(commit.parents[0]).summary == {"node:Company": {"inserted": 1}}


@pytest.mark.slow
def test_concurrent_merges_distinct_targets(graph):
    graph.branches.create("first")
    graph.branches.create("second")
    run(graph, 'insert Person { name: "Dan" }', branch="topic")
    threads = [
        in_thread(lambda name=name: graph.branches.merge("topic", into=name)) for name in ("first", "second")
    ]
    for thread, _ in threads:
        thread.join()
    assert [str(result["value"].outcome) for _, result in threads] == ["fast_forward"] * 2
    assert ages(graph, "first") == ages(graph, "second") == ages(graph, "topic")
    assert "Dan" not in ages(graph)
    source = graph.commits.head(branch="topic").id
    assert [graph.commits.head(branch=name).merged_parent for name in ("first", "second")] == [source] * 2
    # Where the handle writes by default has not changed.
    run(graph, 'insert Person { name: "Eve" }')
    assert ["Eve" in ages(graph, name) for name in ("main", "first", "second", "topic")] == [
        True,
        *[False] * 3,
    ]
    assert graph.verify().violations == ()


@pytest.mark.slow
def test_merge_delta_rewrites_only_changed_rows(graph):
    run(graph, "".join(f'insert Person {{ name: "p{n}", age: {n} }} ' for n in range(50)))
    session = graph.session

    def files():
        handle = session.open_entry(session.manifest.current(None).entries[PERSON])
        return {info.files: info.deletions for info in session.storage.fragments(handle)}

    graph.branches.merge("main", into="topic")
    run(graph, 'update Person set { age: 99 } where name = "p7"', branch="topic")
    run(graph, 'update Person set { age: 98 } where name = "p8"')
    before = files()
    with hear() as heard:
        assert graph.branches.merge("topic").stats == {"node:Person": {"updated": 1}}
    written = [(each.primitive, each.rows) for each in heard.of(TableStaged) if each.rows]
    assert written == [("stage_merge_insert", 1)]
    after = files()
    assert set(before) <= set(after)
    touched = [name for name in before if before[name] != after[name]]
    assert len(touched) == 1
    assert len(set(after) - set(before)) == 1


@pytest.mark.slow
def test_merge_then_delete_source_keeps_rows(graph):
    run(graph, 'insert Person { name: "Dan", age: 9 }', branch="topic")
    graph.branches.merge("topic")
    graph.branches.delete("topic")
    with reopen(graph) as again:
        assert ages(again)["Dan"] == 9
        assert again.verify().violations == ()
        assert again.commits.show(again.commits.head().merged_parent).branch == "topic"
        again.cleanup(keep=1)
        assert ages(again)["Dan"] == 9


@pytest.mark.slow
def test_a_target_that_inherits_gets_the_rows_and_does_not_depend_on_the_source(graph):
    run(graph, 'insert Person { name: "Dan" }', branch="topic")
    graph.branches.create("other")
    with hear(everywhere=True) as heard:
        assert graph.branches.merge("topic", into="other").outcome == "fast_forward"
    assert [(each.primitive, each.rows) for each in heard.of(TableStaged)] == [("stage_append_stream", 1)]
    assert ages(graph, "other") == ages(graph, "topic")
    run(graph, 'insert Person { name: "Eve" }', branch="other")
    assert "Eve" not in ages(graph, "topic")
    # The source goes with all its files, and its name can be used again for the same table.
    before = ages(graph, "other")
    assert graph.branches.delete("topic").unreclaimed == ()
    graph.branches.create("topic")
    run(graph, 'insert Person { name: "Fay" }', branch="topic")
    assert ages(graph, "other") == before
    assert "Dan" not in ages(graph, "topic")
    assert graph.verify().violations == ()


@pytest.mark.slow
def test_main_flows_into_a_branch_that_owns_the_table(graph):
    run(graph, 'insert Person { name: "Dan" }', branch="topic")
    graph.branches.merge("topic")
    run(graph, 'insert Person { name: "Eve" }')
    old = graph.commits.head(branch="topic")
    assert graph.branches.merge("main", into="topic").outcome == "fast_forward"
    assert ages(graph, "topic") == ages(graph)
    # The branch kept its own lineage: its older commits and later merges still find their tables.
    names = [
        row["p.name"]
        for row in graph.query("query q() { match { $p: Person } return { $p.name } }", at=old.id)
    ]
    assert "Eve" not in names
    run(graph, 'insert Person { name: "Fay" }', branch="topic")
    assert graph.branches.merge("topic").outcome == "fast_forward"
    assert graph.verify().violations == ()


def diverge(graph):
    run(graph, 'update Person set { age: 1 } where name = "Alice"', branch="topic")
    run(graph, 'delete Person where name = "Bob"', branch="topic")
    run(graph, 'update Person set { age: 5 } where name = "Carol"', branch="topic")
    run(graph, 'update Person set { age: 2 } where name = "Alice"')
    run(graph, 'update Person set { age: 3 } where name = "Bob"')


@pytest.mark.slow
def test_conflicts_resolved_by_side(graph):
    diverge(graph)
    run(graph, 'delete Knows where from = "Bob"')
    report = graph.branches.merge("topic", on_conflict="theirs")
    assert ages(graph) == {"Alice": 1, "Carol": 5}
    assert report.commit.summary["node:Person"] == {"updated": 2, "deleted": 1, "resolved_theirs": 2}
    assert graph.verify().violations == ()


@pytest.mark.slow
def test_conflicts_resolved_for_the_target_per_type(graph):
    diverge(graph)
    graph.branches.merge("topic", on_conflict={"Person": "ours"})
    assert ages(graph) == {"Alice": 2, "Bob": 3, "Carol": 5}
    assert graph.branches.merge("topic").outcome == "already_up_to_date"


def test_a_choice_never_overrides_a_rule(graph):
    run(graph, 'delete Person where name = "Alice"', branch="topic")
    run(graph, 'insert Knows { from: "Alice", to: "Carol" }')
    assert [kind for kind, _, _ in conflicts_of(graph, on_conflict="theirs")] == ["orphan_edge"]
    with pytest.raises(BadRequest):
        graph.branches.merge("topic", on_conflict="mine")


@pytest.mark.slow
def test_edited_conflict_list(graph, tmp_path):
    diverge(graph)
    place = tmp_path / "conflicts.json"
    with unchanged(graph):
        preview = graph.branches.preview("topic")
        preview.write_conflicts(place)
    assert [each.row_id for each in preview.conflicts] == ["Alice", "Bob"]
    listed = json.loads(place.read_text())
    with pytest.raises(BadRequest, match="resolution"):
        graph.branches.merge("topic", resolve=place)
    for entry, side in zip(listed["conflicts"], ("theirs", "ours"), strict=True):
        entry["resolution"] = side
    place.write_text(json.dumps(listed))
    assert graph.branches.preview("topic", resolve=place).conflicts == ()
    graph.branches.merge("topic", resolve=place)
    assert ages(graph) == {"Alice": 1, "Bob": 3, "Carol": 5}


@pytest.mark.slow
def test_a_conflict_list_of_other_heads_is_refused(graph, tmp_path):
    diverge(graph)
    place = tmp_path / "conflicts.json"
    graph.branches.preview("topic").write_conflicts(place)
    listed = json.loads(place.read_text())
    for entry in listed["conflicts"]:
        entry["resolution"] = "ours"
    place.write_text(json.dumps(listed))
    run(graph, 'update Person set { age: 7 } where name = "Alice"')
    with unchanged(graph), pytest.raises(PreconditionFailed):
        graph.branches.merge("topic", resolve=place)


@pytest.mark.slow
def test_a_conflict_list_must_name_conflicts_of_the_merge(graph, tmp_path):
    diverge(graph)
    place = tmp_path / "conflicts.json"
    graph.branches.preview("topic").write_conflicts(place)
    listed = json.loads(place.read_text())
    for entry in listed["conflicts"]:
        entry["resolution"] = "ours"
    listed["conflicts"].append({**listed["conflicts"][0], "row_id": "Carol"})
    place.write_text(json.dumps(listed))
    with (
        unchanged(graph),
        pytest.raises(BadRequest, match="node:Person Carol, which this merge does not have"),
    ):
        graph.branches.merge("topic", resolve=place)


@pytest.mark.parametrize(
    "entry",
    [{"kind": "no_such_kind", "table_key": "node:Person", "row_id": "ann"}, 5, {"kind": "divergent_update"}],
)
def test_a_damaged_conflict_list_is_refused(graph, tmp_path, entry):
    path = tmp_path / "conflicts.json"
    document = {"format": 1, "source_commit": "a", "target_commit": "b", "conflicts": [entry]}
    path.write_text(json.dumps(document))
    with pytest.raises(BadRequest, match="is not a conflict list"):
        graph.branches.merge("topic", resolve=path)


@pytest.mark.slow
def test_a_choice_for_a_type_that_does_not_exist_is_refused(graph):
    diverge(graph)
    with unchanged(graph), pytest.raises(TypeNotFound, match="Persn"):
        graph.branches.merge("topic", on_conflict={"Persn": "ours"})


@pytest.mark.slow
def test_preview_is_what_the_merge_does(graph):
    run(graph, 'insert Person { name: "Dan" }', branch="topic")
    run(graph, 'update Person set { age: 3 } where name = "Bob"', branch="topic")
    run(graph, 'insert Person { name: "Eve" }')
    with unchanged(graph):
        preview = graph.branches.preview("topic")
    report = graph.branches.merge("topic")
    assert (preview.outcome, preview.stats) == (report.outcome, report.stats)
    assert preview.to_dict()["merge_conflicts"] == []


@pytest.mark.slow
def test_merge_refuses_bad_names(graph):
    for source, target, error in (
        ("main", "main", BadRequest),
        ("nowhere", "main", BranchNotFound),
        ("topic", "nowhere", BranchNotFound),
        ("__schema_apply_lock__", "main", BadRequest),
        ("topic", "__schema_apply_lock__", BadRequest),
    ):
        with unchanged(graph), pytest.raises(error):
            graph.branches.merge(source, into=target)


@pytest.mark.slow
def test_repeated_merges_both_ways_converge(tmp_path):
    with make_graph(tmp_path / "g", PEOPLE) as graph:
        run(graph, 'insert Person { name: "a", age: 0 }')
        graph.branches.create("topic")
        for number in range(4):
            run(
                graph,
                f'insert Person {{ name: "t{number}" }} update Person set {{ age: {number} }} where name = "a"',
                branch="topic",
            )
            run(graph, f'insert Person {{ name: "m{number}" }}')
            graph.branches.merge("topic")
            graph.branches.merge("main", into="topic")
            assert ages(graph) == ages(graph, "topic")
        assert len(ages(graph)) == 9
        assert graph.verify().violations == ()


@pytest.mark.slow
def test_a_preview_ties_edges_to_the_conflict_about_their_node(tmp_path):
    schema = "node P { k: String @key  a: I32? }\nedge R: P -> P\nedge S: P -> P\n"
    with omnigraph.init(tmp_path / "g", schema=schema) as graph:
        graph.mutate(
            'query q() { insert P { k: "x" } insert P { k: "y" } insert R { from: "x", to: "y" }'
            ' insert R { from: "y", to: "y" } insert S { from: "y", to: "x" } insert S { from: "x", to: "x" } }'
        )
        edges = {
            (name, row["from"], row["to"]): key for name in "RS" for key, row in rows_of(graph, name).items()
        }
        graph.branches.create("f")
        graph.mutate('query q() { delete P where k = "y" }', branch="f")
        graph.mutate('query q() { update P set { a: 1 } where k = "y" }')
        tied = {edges["R", "x", "y"], edges["R", "y", "y"], edges["S", "y", "x"]}
        for source, target in (("f", "main"), ("main", "f")):
            (conflict,) = graph.branches.preview(source, into=target).to_dict()["merge_conflicts"]
            assert (conflict["kind"], conflict["row_id"]) == ("delete_vs_update", "y")
            assert {each["row_id"] for each in conflict["edges"]} == tied
            assert "3 edges follow the choice" in conflict["message"]
