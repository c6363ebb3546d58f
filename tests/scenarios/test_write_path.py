"""Section 4.1 of the testing specification: what one writer sees. Test names are the scenario names."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from lance.commit import CommitConflictError

import omnigraph
from graphs import FAST, hear, make_graph, reopen, rows_of, run, state_of, unchanged
from omnigraph.api.graph import Graph
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import (
    BadRequest,
    Cancelled,
    ConstraintViolation,
    ExpectedVersionMismatch,
    KeyConflict,
    KeyImmutable,
    MutationShapeError,
    OmnigraphError,
    PreconditionFailed,
    QueryTypeError,
    RecoveryRequired,
    ResourceLimit,
)
from omnigraph.core.events import DurableOperation, StorageCall, TableCommitted, TableStaged, Warned
from omnigraph.core.failpoints import Callback, Raise, Sequence, Window, activate
from omnigraph.core.ids import OperationId, TableKey, new_ulid
from omnigraph.core.settings import Settings
from omnigraph.engine.write.gathered import MutationOpKind, MutationStaging, PendingMode

PERSON = TableKey("node:Person")


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g") as made:
        yield made


def test_single_insert_publishes_one_commit(graph: Graph) -> None:
    before = state_of(graph)
    result = run(graph, 'insert Person { name: "ann", age: 3 }', actor="ana")
    after = state_of(graph)
    assert after.manifest_version == before.manifest_version + 1
    assert after.commits == before.commits + 1
    head = graph.commits.list(limit=1)[0]
    assert (head.id, head.actor) == (result.commit.id, "ana")
    assert after.heads == after.pins == {**before.pins, PERSON: before.pins[PERSON] + 1}
    assert rows_of(graph, "Person")["ann"]["age"] == 3


def test_multi_statement_insert_is_atomic(graph: Graph) -> None:
    before = state_of(graph)
    result = run(
        graph,
        'insert Person { name: "ann" } insert Person { name: "bob" } insert Knows { from: "ann", to: "bob" }',
    )
    assert (result.affected_nodes, result.affected_edges) == (2, 1)
    assert state_of(graph).commits == before.commits + 1
    assert set(rows_of(graph, "Person")) == {"ann", "bob"}
    (edge,) = rows_of(graph, "Knows").values()
    assert (edge["from"], edge["to"]) == ("ann", "bob")


BROKEN = 'insert Person { name: "ann" } insert Knows { from: "ann", to: "nobody" }'


def test_multi_statement_failure_leaves_nothing(graph: Graph) -> None:
    with unchanged(graph), pytest.raises(ConstraintViolation) as caught:
        run(graph, BROKEN)
    assert caught.value.rule == "endpoint"
    assert str(caught.value) == "Knows: no Person with id 'nobody' (target)"


def test_partial_failure_leaves_target_queryable_and_unblocks_next_mutation(graph: Graph) -> None:
    with pytest.raises(ConstraintViolation):
        run(graph, BROKEN)
    run(graph, 'insert Person { name: "bob" }')
    assert set(rows_of(graph, "Person")) == {"bob"}


def test_insert_then_update_same_row_is_one_merge(graph: Graph) -> None:
    with hear() as heard:
        result = run(
            graph,
            'insert Person { name: "ann", age: 1 } update Person set { age: 2 } where name = "ann"',
        )
    assert [(e.table_key, e.primitive, e.rows) for e in heard.of(TableStaged)] == [
        (PERSON, "stage_merge_insert", 1)
    ]
    assert len(heard.of(TableCommitted)) == 1
    assert result.affected_nodes == 2
    assert rows_of(graph, "Person")["ann"]["age"] == 2


def test_many_edge_inserts_one_append(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a" } insert Person { name: "b" }')
    with hear() as heard:
        run(
            graph,
            'insert Knows { from: "a", to: "b" } insert Knows { from: "b", to: "a" } '
            'insert Knows { from: "a", to: "a" }',
        )
    assert [(e.primitive, e.rows) for e in heard.of(TableStaged)] == [("stage_append", 3)]
    assert len(rows_of(graph, "Knows")) == 3


def test_chained_updates_see_pending_values(graph: Graph) -> None:
    run(graph, 'insert Person { name: "ann", age: 40 }')
    result = run(
        graph,
        'update Person set { age: 20 } where name = "ann" update Person set { age: 99 } where age > 30',
    )
    assert result.affected_nodes == 1
    assert rows_of(graph, "Person")["ann"]["age"] == 20


def test_camel_case_predicate_in_chained_update(graph: Graph) -> None:
    run(graph, 'insert Person { name: "ann", repoName: "old" }')
    result = run(
        graph,
        'update Person set { repoName: "mid" } where repoName = "old" '
        'update Person set { repoName: "new" } where repoName = "mid"',
    )
    assert result.affected_nodes == 2
    assert rows_of(graph, "Person")["ann"]["repoName"] == "new"


def test_update_of_key_property_rejected(graph: Graph) -> None:
    run(graph, 'insert Person { name: "ann" }')
    with unchanged(graph), hear(everywhere=True) as heard, pytest.raises(KeyImmutable):
        run(graph, 'update Person set { name: "bob" } where name = "ann"')
    assert not heard.of(DurableOperation)
    assert {each.kind for each in heard.of(StorageCall)} <= LOOKS


LOOKS = {"exists", "list_dir", "probe", "read_text"}
"""Calls that a write makes before it looks at its statements: pending sidecars, the schema, the branch."""


def test_mixed_insert_delete_rejected_before_io(graph: Graph) -> None:
    with hear(everywhere=True) as heard, pytest.raises(MutationShapeError) as caught:
        run(graph, 'insert Person { name: "ann" } delete Person where name = "bob"')
    assert {each.kind for each in heard.of(StorageCall)} <= LOOKS
    assert not heard.of(DurableOperation)
    assert (caught.value.http_status, caught.value.code) == (400, "bad_request")
    assert "'q' both writes and deletes" in str(caught.value)
    assert caught.value.hint == "run the writes first, then the deletes, as two queries"
    with pytest.raises(MutationShapeError):
        run(graph, 'delete Person where name = "bob" update Person set { age: 1 } where name = "ann"')
    assert rows_of(graph, "Person") == {}


def test_delete_cascades_to_edges(graph: Graph) -> None:
    run(
        graph,
        'insert Person { name: "a" } insert Person { name: "b" } insert Company { name: "c" } '
        'insert Knows { from: "a", to: "b" } insert Knows { from: "b", to: "a" } '
        'insert Knows { from: "b", to: "b" } insert WorksAt { from: "a", to: "c" }',
    )
    before = state_of(graph)
    result = run(graph, 'delete Person where name = "a"')
    assert (result.affected_nodes, result.affected_edges) == (1, 3)
    assert state_of(graph).commits == before.commits + 1
    assert set(rows_of(graph, "Person")) == {"b"}
    assert [(e["from"], e["to"]) for e in rows_of(graph, "Knows").values()] == [("b", "b")]
    assert rows_of(graph, "WorksAt") == {}
    assert set(rows_of(graph, "Company")) == {"c"}


def test_two_deletes_same_table_one_commit(graph: Graph) -> None:
    run(graph, " ".join(f'insert Person {{ name: "{n}", age: {i} }}' for i, n in enumerate("abc")))
    head = state_of(graph).heads[PERSON]
    result = run(graph, 'delete Person where name = "a" delete Person where age > 0')
    assert result.affected_nodes == 3
    assert state_of(graph).heads[PERSON] == head + 1
    assert rows_of(graph, "Person") == {}


def test_delete_matching_nothing_publishes_nothing(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a" }')
    with unchanged(graph):
        result = run(graph, 'delete Person where name = "z"')
    assert (result.affected_nodes, result.commit) == (0, None)


def test_zero_effect_mutation_makes_no_commit(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a" }')
    with unchanged(graph):
        assert run(graph, 'update Person set { age: 1 } where name = "z"').commit is None


def test_missing_required_property_rejected(graph: Graph) -> None:
    with unchanged(graph), pytest.raises(QueryTypeError):
        run(graph, 'insert Note { kind: "memo" }')
    with unchanged(graph), pytest.raises(ConstraintViolation) as caught:
        run(graph, "insert Note { text: $t }", {"t": None}, types="$t: String?")
    assert caught.value.rule == "required"
    assert str(caught.value) == "Note.text must have a value"


CONSTRAINED = """
node Part {
  code: String @key
  size: I64?
  big: U64?
  weight: F64?
  grade: enum(low, high)?
  label: String?
  @range(size, 9007199254740993..9007199254740995)
  @range(big, 18446744073709551614..)
  @range(weight, 0.5..)
  @check(label, "^[a-z]+$")
}
"""


@pytest.mark.parametrize(
    ("assignment", "types", "params", "rule", "message"),
    [
        ("grade: $v", "$v: String", {"v": "mid"}, "enum", "Part.grade: 'mid' is not one of high, low"),
        ("size: $v", "$v: I64", {"v": 2**53}, "range", f"Part.size: {2**53} is below {2**53 + 1}"),
        ("size: $v", "$v: I64", {"v": 2**53 + 4}, "range", f"Part.size: {2**53 + 4} is above {2**53 + 3}"),
        ("big: $v", "$v: U64", {"v": 2**64 - 3}, "range", f"Part.big: {2**64 - 3} is below {2**64 - 2}"),
        ("weight: $v", "$v: F64", {"v": 0.25}, "range", "Part.weight: 0.25 is below 0.5"),
        ("label: $v", "$v: String", {"v": "Ana!"}, "check", "Part.label: 'Ana!' does not match ^[a-z]+$"),
    ],
)
def test_enum_range_regex_violations_rejected(tmp_path, assignment, types, params, rule, message) -> None:
    with make_graph(tmp_path / "g", CONSTRAINED) as graph:
        run(
            graph,
            'insert Part { code: "ok", size: 9007199254740993, big: $b, weight: 0.5, grade: "low", label: "x" }',
            {"b": 2**64 - 1},
            types="$b: U64",
        )
        for statement in (
            f'insert Part {{ code: "bad", {assignment} }}',
            f'update Part set {{ {assignment} }} where code = "ok"',
        ):
            with unchanged(graph), pytest.raises(ConstraintViolation) as caught:
                run(graph, statement, params, types=types)
            assert (caught.value.rule, str(caught.value)) == (rule, message)


COMPOSITE = """
node Seat { code: String @key  hall: String?  row: I32?  @unique(hall, row) }
"""


def test_unique_violation_inside_batch(tmp_path: Path) -> None:
    with make_graph(tmp_path / "g", COMPOSITE) as graph:
        seat = 'insert Seat {{ code: "{}", hall: "{}", row: {} }}'
        with unchanged(graph), pytest.raises(ConstraintViolation) as caught:
            run(graph, seat.format("a", "x", 1) + seat.format("b", "x", 1))
        assert caught.value.rule == "unique"
        assert str(caught.value) == "Seat.(hall, row): ('x', '1') is held by 'a' and 'b'"
        # Neither a shared member nor texts that would join to the same string make two tuples equal.
        run(graph, seat.format("a", "x", 11) + seat.format("b", "x1", 1) + seat.format("c", "x", 1))
        run(graph, 'insert Seat { code: "n1", hall: "x" } insert Seat { code: "n2", hall: "x" }')
        assert len(rows_of(graph, "Seat")) == 5


def test_unique_violation_against_committed(graph: Graph) -> None:
    run(graph, 'insert Person { name: "ann", nick: "x" } insert Person { name: "bob", nick: "y" }')
    with unchanged(graph), pytest.raises(ConstraintViolation) as caught:
        run(graph, 'insert Person { name: "cat", nick: "x" }')
    assert str(caught.value) == "Person.nick: 'x' is held by 'ann' and 'cat'"
    run(graph, 'insert Person { name: "ann", nick: "x", age: 1 }')
    run(
        graph,
        'update Person set { nick: "t" } where name = "ann" update Person set { nick: "x" } where name = "bob" '
        'update Person set { nick: "y" } where name = "ann"',
    )
    assert {r["id"]: r["nick"] for r in rows_of(graph, "Person").values()} == {"ann": "y", "bob": "x"}


@pytest.mark.slow
def test_cardinality_max_counts_pending(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a" } insert Company { name: "c" } insert Company { name: "d" }')
    with unchanged(graph), pytest.raises(ConstraintViolation) as caught:
        run(graph, 'insert WorksAt { from: "a", to: "c" } insert WorksAt { from: "a", to: "d" }')
    assert str(caught.value) == "WorksAt: source 'a' would have 2 edges (at most 1)"
    assert caught.value.rule == "cardinality"
    run(graph, 'insert WorksAt { from: "a", to: "c" }')
    with unchanged(graph), pytest.raises(ConstraintViolation):
        run(graph, 'insert WorksAt { from: "a", to: "d" }')


def test_edge_endpoint_pending_node_accepted(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a" } insert Knows { from: "a", to: "a" }')
    run(graph, 'insert Knows { from: "b", to: "a" } insert Person { name: "b" }')
    assert len(rows_of(graph, "Knows")) == 2


def test_first_touch_captures_expected_version(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a" }')
    snapshot = graph.session.manifest.current(None)
    staging = MutationStaging(snapshot, OperationId(new_ulid()))
    pin = snapshot.pin(PERSON)
    staging.touch(PERSON, MutationOpKind.INSERT)
    staging.snapshot = run_and_read(graph)
    assert staging.snapshot.pin(PERSON) == pin + 1
    staging.touch(PERSON, MutationOpKind.UPDATE)
    assert staging.expected_versions == {PERSON: pin}
    assert staging.op_kinds == {PERSON: MutationOpKind.UPDATE}
    staging.touch(PERSON, MutationOpKind.INSERT)
    assert staging.op_kinds == {PERSON: MutationOpKind.UPDATE}


def run_and_read(graph: Graph):
    run(graph, 'insert Person { name: "b" }')
    return graph.session.manifest.current(None)


def test_stale_relaxed_insert_rebases(graph: Graph) -> None:
    with reopen(graph) as other:
        note = 'insert Note { text: "late" }'
        with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Sequence([Callback(lambda _: run_first(graph))])):
            run(other, note)
    assert sorted(r["text"] for r in rows_of(graph, "Note").values()) == ["first", "late"]


def run_first(graph: Graph) -> None:
    run(graph, 'insert Note { text: "first" }')


def test_stale_strict_update_conflicts(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a", age: 1 }')
    with reopen(graph) as other:
        update = 'update Person set { age: 5 } where name = "a"'
        winner = Sequence([Callback(lambda _: run(graph, 'update Person set { age: 2 } where name = "a"'))])
        pin = state_of(graph).pins[PERSON]
        with (
            activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, winner),
            pytest.raises(ExpectedVersionMismatch) as caught,
        ):
            run(other, update)
    lost = caught.value
    assert (lost.table_key, lost.expected, lost.actual) == (PERSON, pin, pin + 1)
    body = lost.to_dict()
    assert lost.http_status == 409
    assert body["code"] == "conflict"
    assert isinstance(body["error"], str)
    assert body["manifest_conflict"] == {"table_key": PERSON, "expected": pin, "actual": pin + 1}
    assert "published_dataset_version_conflict" in body
    after = state_of(graph)
    assert after.heads == after.pins
    assert after.sidecars == ()
    assert rows_of(graph, "Person")["a"]["age"] == 2


def test_a_mutation_survives_publish_contention(graph: Graph) -> None:
    contention = Sequence([Raise(CommitConflictError("injected", retryable=True)) for _ in range(3)])
    with activate(Window.PUBLISH_RETRYABLE_CONTENTION, contention):
        run(graph, 'insert Person { name: "a" }')
    assert set(rows_of(graph, "Person")) == {"a"}
    assert state_of(graph).sidecars == ()


def test_cancelled_before_commit_leaves_nothing(graph: Graph) -> None:
    asked = Cancellation()
    asked.request()
    with unchanged(graph), pytest.raises(Cancelled):
        run(graph, 'insert Person { name: "a" }', cancel=asked)
    staged = Cancellation()
    with (
        unchanged(graph),
        activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Callback(lambda _: staged.request())),
        pytest.raises(Cancelled),
    ):
        run(graph, 'insert Person { name: "a" }', cancel=staged)
    cancel = Cancellation()
    with activate(Window.MUTATION_POST_SIDECAR_PRE_COMMIT, Callback(lambda _: cancel.request())):
        run(graph, 'insert Person { name: "b" }', cancel=cancel)
    with reopen(graph) as again:
        assert set(rows_of(again, "Person")) == {"b"}


def test_actor_recorded_on_commit(graph: Graph) -> None:
    run(graph, 'insert Note { text: "a" }', actor="ana")
    run(graph, 'insert Note { text: "b" }', actor="bob")
    run(graph, 'insert Note { text: "c" }')
    assert [c.actor for c in graph.commits.list()] == [None, "bob", "ana", None]
    with reopen(graph) as again:
        (commit,) = again.commits.list(actor="ana")
        assert again.commits.show(commit.id) == commit


@pytest.mark.slow
def test_no_run_artifacts(graph: Graph, tmp_path: Path) -> None:
    run(graph, 'insert Person { name: "a" }')
    graph.branches.create("dev")
    run(graph, 'insert Person { name: "b" } insert Knows { from: "a", to: "b" }', branch="dev")
    run(graph, 'delete Person where name = "a"', branch="dev")
    with pytest.raises(ConstraintViolation):
        run(graph, BROKEN)
    stopped = activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Raise())
    with stopped, pytest.raises(RecoveryRequired):
        run(graph, 'insert Person { name: "c" }')
    source = tmp_path / "notes.jsonl"
    source.write_text('{"type":"Note","data":{"text":"t"}}\n')
    graph.load(source, mode="append", engine="local")
    graph.branches.create("gone")
    run(graph, 'insert Note { text: "u" }', branch="gone")
    graph.branches.merge("gone")
    graph.branches.delete("gone")
    graph.ensure_indices()
    assert set(rows_of(graph, "Person")) == {"a", "c"}
    graph.close()
    names = {p.name for p in Path(graph.uri).rglob("*")}
    assert not [n for n in names if "run" in n.lower()]
    with reopen(graph) as again:
        assert again.branches.list() == ["main", "dev"]


# --- beyond the numbered scenarios ----------------------------------------------------------------------------


def test_conditional_write(graph: Graph) -> None:
    first = run(graph, 'insert Person { name: "a" }').commit
    second = run(graph, 'insert Person { name: "b" }', if_commit=first.id).commit
    for statement in ('insert Person { name: "c" }', 'delete Person where name = "nobody"'):
        with unchanged(graph), pytest.raises(PreconditionFailed) as caught:
            run(graph, statement, if_commit=first.id)
        assert (caught.value.expected, caught.value.actual) == (first.id, second.id)
    with (
        activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Sequence([Callback(lambda _: run_first(graph))])),
        pytest.raises(PreconditionFailed),
    ):
        run(graph, 'insert Person { name: "c" }', if_commit=second.id)
    assert set(rows_of(graph, "Person")) == {"a", "b"}


def test_insert_new_refuses_an_existing_key(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a", age: 1 }')
    for statement in (
        'insert new Person { name: "a" }',
        'insert Person { name: "b" } insert new Person { name: "b" }',
    ):
        with unchanged(graph), pytest.raises(KeyConflict):
            run(graph, statement)


def test_mutation_rows_limit_points_to_load(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    from omnigraph.engine.write import prepare

    monkeypatch.setattr(prepare, "MUTATION_ROWS_MAX", 2)
    three = " ".join(f'insert Person {{ name: "p{i}" }}' for i in range(3))
    with unchanged(graph), pytest.raises(ResourceLimit) as caught:
        run(graph, three)
    limit = caught.value
    assert (limit.resource, limit.limit, limit.actual, limit.type_name) == ("mutation_rows", 2, 3, "Person")
    assert "load" in limit.hint
    monkeypatch.setattr(prepare, "MUTATION_ROWS_MAX", 100)
    run(graph, three + 'insert Person { name: "p3" }')
    monkeypatch.setattr(prepare, "MUTATION_ROWS_MAX", 2)
    with unchanged(graph), pytest.raises(ResourceLimit) as caught:
        run(graph, "update Person set { age: 1 } where age is null")
    assert caught.value.actual == 4
    small = reopen(graph, settings=replace(FAST, mutation_bytes=10))
    with small, unchanged(graph), pytest.raises(ResourceLimit) as caught:
        run(small, 'insert Person { name: "x" }')
    assert (caught.value.resource, caught.value.limit) == ("mutation_bytes", 10)


def test_generated_ids_are_in_the_receipt(graph: Graph) -> None:
    result = run(graph, 'insert Note { text: "a" } insert Person { name: "p" }')
    note, person = result.inserted
    assert (note.generated, person.generated, person.id) == (True, False, "p")
    assert set(rows_of(graph, "Note")) == {note.id}
    assert len(note.id) == 26
    assert result.to_dict()["inserted"][0] == {"type": "Note", "id": note.id}


def test_a_result_as_arrow_is_one_row_of_unsigned_counts(graph: Graph) -> None:
    done = run(
        graph, 'insert Person { name: "a" } insert Person { name: "b" } insert Knows { from: "a", to: "b" }'
    )
    counts = pa.schema([("affected_nodes", pa.uint64()), ("affected_edges", pa.uint64())])
    assert done.to_arrow() == pa.table({"affected_nodes": [2], "affected_edges": [1]}, counts)
    nothing = run(graph, 'delete Person where name = "nobody"')
    assert nothing.to_arrow() == pa.table({"affected_nodes": [0], "affected_edges": [0]}, counts)


def test_internal_branches_are_refused_before_io(graph: Graph) -> None:
    with hear() as heard, pytest.raises(BadRequest):
        run(graph, 'insert Note { text: "a" }', branch="__schema_apply_lock__")
    assert not heard.of(StorageCall)


def test_a_closed_or_read_only_graph_refuses(graph: Graph) -> None:
    with omnigraph.open_read_only(graph.uri) as reader:
        with pytest.raises(BadRequest, match="read-only"):
            run(reader, 'insert Note { text: "a" }')
        assert reader.export() == ""
    other = reopen(graph)
    other.close()
    other.close()
    with pytest.raises(BadRequest, match="closed"):
        run(other, 'insert Note { text: "a" }')


def test_pushed_columns_must_agree(graph: Graph) -> None:
    snapshot = graph.session.manifest.current(None)
    person = graph.session.catalog_of(snapshot).nodes["Person"]
    staging = MutationStaging(snapshot, OperationId(new_ulid()))
    whole = pa.table({"id": ["a"], "age": pa.array([1], pa.int32())})
    staging.push(person, whole, PendingMode.APPEND, MutationOpKind.INSERT)
    assert staging.push(person, whole.slice(0, 0), PendingMode.MERGE, MutationOpKind.MERGE) is None
    with pytest.raises(BadRequest, match="Person") as caught:
        staging.push(person, whole.select(["id"]), PendingMode.MERGE, MutationOpKind.MERGE)
    assert "split" in caught.value.hint


def test_after_publish_hook_failure_is_a_warning(graph: Graph) -> None:
    seen = []

    def reconcile(session, snapshot, tables, *, always):
        seen.append((snapshot.manifest_version, tables, always))
        raise RuntimeError("no room")

    graph.session.after_publish = reconcile
    with hear() as heard:
        result = run(graph, 'insert Person { name: "a" }')
    assert seen == [(result.commit.manifest_version, [PERSON], False)]
    assert [w.detail for w in heard.of(Warned)] == ["no room"]


@pytest.mark.slow
def test_schema_source_edits(graph: Graph) -> None:
    source = Path(graph.uri) / "_schema.pg"
    text = source.read_text()
    source.write_text("// a remark\n" + text)
    run(graph, 'insert Person { name: "a" }')
    source.write_text(text + "\nnode Extra { name: String @key }\n")
    with pytest.raises(OmnigraphError) as caught:
        run(graph, 'insert Person { name: "b" }')
    assert (caught.value.kind, caught.value.http_status) == ("drift", 409)
    source.unlink()
    with pytest.raises(OmnigraphError) as caught:
        run(graph, 'insert Person { name: "b" }')
    assert caught.value.kind == "schema_contract_missing"
    source.write_text(text)
    run(graph, 'insert Person { name: "b" }')


@pytest.mark.slow
def test_many_values_are_found_by_reading_the_column(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    from omnigraph.engine.write import prepare, validate

    for module in (prepare, validate):
        monkeypatch.setattr(module, "PROBED_VALUES_MAX", 1)
    run(
        graph,
        'insert Person { name: "a", nick: "x" } insert Person { name: "b", nick: "y" } '
        'insert Person { name: "c" } insert Company { name: "k" } insert Company { name: "l" } '
        'insert Knows { from: "a", to: "b" } insert Knows { from: "b", to: "c" } '
        'insert Knows { from: "c", to: "c" } insert WorksAt { from: "a", to: "k" } '
        'insert WorksAt { from: "b", to: "k" }',
    )
    with unchanged(graph), pytest.raises(ConstraintViolation) as caught:
        run(graph, 'insert Person { name: "d", nick: "x" } insert Person { name: "e", nick: "y" }')
    assert [v.rule for v in caught.value.violations] == ["unique", "unique"]
    with unchanged(graph), pytest.raises(ConstraintViolation) as caught:
        run(graph, 'insert WorksAt { from: "a", to: "l" } insert WorksAt { from: "b", to: "l" }')
    assert [v.rule for v in caught.value.violations] == ["cardinality", "cardinality"]
    result = run(graph, 'delete Person where name = "a" or name = "b"')
    assert (result.affected_nodes, result.affected_edges) == (2, 4)
    assert [(e["from"], e["to"]) for e in rows_of(graph, "Knows").values()] == [("c", "c")]
    assert graph.verify().ok


@pytest.mark.parametrize("durability", ["full", "syncfs", "os"])
@pytest.mark.slow
def test_prepared_publish_is_what_was_committed(tmp_path: Path, durability, monkeypatch) -> None:
    """The rows of the publish are written ahead; they must be right for every kind of write."""
    from omnigraph.manifest.publisher import ManifestBatchPublisher

    plain: list[object] = []
    original = ManifestBatchPublisher.publish
    monkeypatch.setattr(
        ManifestBatchPublisher,
        "publish",
        lambda self, *args, **named: (plain.append(args), original(self, *args, **named))[1],
    )
    with make_graph(tmp_path / "g", settings=Settings(durability=durability)) as graph:
        run(graph, 'insert Person { name: "a" } insert Person { name: "b" } insert Note { text: "n" }')
        run(graph, 'insert Person { name: "b", age: 1 } insert Person { name: "c" }')
        run(graph, 'update Person set { age: 2 } where name = "c"')
        run(graph, 'insert Knows { from: "a", to: "b" }')
        run(graph, 'delete Person where name = "a"')
        run(graph, 'delete Person where name = "b" or name = "c"')
        assert plain == []
        assert rows_of(graph, "Person") == {}
        assert graph.verify().ok
