"""The accumulator and the reads inside a write."""

import cProfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from graphs import make_graph, run
from omnigraph.arrays.addresses import ABSENT
from omnigraph.core.errors import InternalError, KeyConflict, ReadSetConflict
from omnigraph.core.ids import OperationId, TableKey, new_ulid
from omnigraph.engine.write import prepare
from omnigraph.engine.write.gathered import MutationOpKind, MutationStaging, PendingMode
from omnigraph.engine.write.own_rows import RowFilter, scan_with_pending
from omnigraph.storage.handles import NO_NUMBER, Fragment

PERSON = TableKey("node:Person")


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g") as made:
        run(made, 'insert Person { name: "a", age: 1 } insert Person { name: "b", age: 2 }')
        yield made


def staging_of(graph) -> MutationStaging:
    return MutationStaging(graph.session.manifest.current(None), OperationId(new_ulid()))


def person(graph):
    return graph.session.catalog_of(graph.session.manifest.current(None)).nodes["Person"]


def rows(**columns) -> pa.Table:
    return pa.table(columns)


def test_append_becomes_merge_as_soon_as_one_op_needs_it(graph) -> None:
    staging = staging_of(graph)
    staging.push(person(graph), rows(id=["x"]), PendingMode.APPEND, MutationOpKind.INSERT)
    assert not staging.strict
    staging.push(person(graph), rows(id=["x"]), PendingMode.MERGE, MutationOpKind.UPDATE)
    staging.push(person(graph), rows(id=["y"]), PendingMode.APPEND, MutationOpKind.INSERT)
    assert staging.pending[PERSON].mode is PendingMode.MERGE
    assert staging.strict
    assert staging.pending[PERSON].combined().column("id").to_pylist() == ["x", "y"]


def test_rows_are_proven_until_they_are_exchanged(graph) -> None:
    staging = staging_of(graph)

    def push(name: str) -> None:
        staging.push(person(graph), rows(id=[name]), PendingMode.MERGE, MutationOpKind.MERGE)

    push("x")
    pending = staging.pending[PERSON]
    pending.proven = len(pending.batches)
    push("y")
    push("y")
    assert pending.unproven().column("id").to_pylist() == ["y"]
    assert pending.combined().column("id").to_pylist() == ["x", "y"]
    saved = staging.savepoint().pending[PERSON]
    assert (saved.proven, saved.unproven().num_rows) == (1, 1)
    pending.join()
    assert pending.unproven().column("id").to_pylist() == ["x", "y"]
    saved.take_instead(saved.combined())
    assert saved.unproven().column("id").to_pylist() == ["x", "y"]


def test_overwrite_never_mixes_and_keeps_nothing(graph) -> None:
    staging = staging_of(graph)
    staging.push(
        person(graph),
        rows(id=pa.array([], pa.string())),
        PendingMode.OVERWRITE,
        MutationOpKind.SCHEMA_REWRITE,
    )
    assert not staging.is_empty
    with pytest.raises(InternalError):
        staging.push(person(graph), rows(id=["x"]), PendingMode.APPEND, MutationOpKind.INSERT)


def test_last_pushed_wins_and_order_is_kept(graph) -> None:
    staging = staging_of(graph)
    for batch in ([("x", 1), ("y", 1)], [("z", 2), ("x", 2)], [("y", 3)]):
        table = rows(id=[k for k, _ in batch], n=[n for _, n in batch])
        staging.push(person(graph), table, PendingMode.MERGE, MutationOpKind.MERGE)
    assert staging.pending[PERSON].combined().to_pylist() == [
        {"id": "z", "n": 2},
        {"id": "x", "n": 2},
        {"id": "y", "n": 3},
    ]


def test_joined_batches_hold_the_same_rows_and_stay_few(graph) -> None:
    plain, joined = staging_of(graph), staging_of(graph)
    for number in range(200):
        table = rows(id=[f"p{number % 150}"], n=[number])
        for staging in (plain, joined):
            staging.push(person(graph), table, PendingMode.MERGE, MutationOpKind.UPDATE)
        joined.pending[PERSON].join()
        assert len(joined.pending[PERSON].batches) <= 8
    assert joined.pending[PERSON].combined().equals(plain.pending[PERSON].combined())
    assert joined.pending[PERSON].combined().num_rows == 150
    assert joined.pending[PERSON].row_count == 200
    assert joined.pending[PERSON].nbytes_max == plain.pending[PERSON].nbytes_max


def test_a_pending_id_is_found_whenever_it_came(graph) -> None:
    pending = staging_of(graph).push(
        person(graph), rows(id=["x", "y"]), PendingMode.MERGE, MutationOpKind.MERGE
    )
    assert pending.has("y")
    assert not pending.has("z")
    pending.add(rows(id=["z"]))
    pending.join()
    assert pending.has("z")
    assert pending.has("x")


def calls_of(graph, statements: list[str]) -> int:
    profile = cProfile.Profile()
    profile.enable()
    run(graph, " ".join(statements))
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.slow
def test_the_work_of_an_insert_new_does_not_grow_with_those_before_it(graph) -> None:
    def statements(prefix: str, count: int) -> list[str]:
        return [f'insert new Person {{ name: "{prefix}{each}" }}' for each in range(count)]

    calls_of(graph, statements("warm", 500))
    less = calls_of(graph, statements("few", 500))
    assert calls_of(graph, statements("many", 2_000)) <= less * 4.4
    with pytest.raises(KeyConflict):
        run(graph, " ".join([*statements("twice", 3), *statements("twice", 1)]))


@pytest.mark.slow
def test_an_update_reads_the_rows_of_those_before_it_in_few_pieces(graph, monkeypatch) -> None:
    pieces = []

    def counted(storage, handle, pending, **named):
        pieces.append(0 if pending is None else pending.column("id").num_chunks)
        return scan_with_pending(storage, handle, pending, **named)

    monkeypatch.setattr(prepare, "scan_with_pending", counted)
    inserts = [f'insert Person {{ name: "p{each}" }}' for each in range(100)]
    updates = [f'update Person set {{ age: {each} }} where name = "p{each}"' for each in range(100)]
    run(graph, " ".join([*inserts, *updates]))
    assert len(pieces) == 100
    assert max(pieces) <= 8


def test_the_last_of_several_updates_of_a_row_counts(graph) -> None:
    texts = [f'update Person set {{ age: {each} }} where name = "a"' for each in range(10, 15)]
    run(graph, " ".join([*texts, 'update Person set { nick: "n" } where age = 14']))
    found = graph.query(
        "query q() { match { $p: Person } return { $p.name, $p.age, $p.nick } order { $p.name } }"
    )
    assert found.to_dicts() == [
        {"p.name": "a", "p.age": 14, "p.nick": "n"},
        {"p.name": "b", "p.age": 2, "p.nick": None},
    ]


def test_known_addresses_need_the_same_base(graph) -> None:
    staging = staging_of(graph)
    pending = staging.push(person(graph), rows(id=["x", "new"]), PendingMode.MERGE, MutationOpKind.UPDATE)
    pending.generated.append(pa.array(["new"]))
    pending.located.append((pa.array(["x"]), np.array([7], np.uint64)))
    wanted = pa.array(["new", "x"])
    assert pending.known_addresses(wanted, same_base=True).tolist() == [int(ABSENT), 7]
    assert pending.known_addresses(wanted, same_base=False) is None
    assert pending.known_addresses(pa.array(["other"]), same_base=True) is None


def test_a_table_cannot_be_written_and_deleted_from(graph) -> None:
    staging = staging_of(graph)
    staging.push(person(graph), rows(id=["x"]), PendingMode.MERGE, MutationOpKind.MERGE)
    with pytest.raises(InternalError):
        staging.delete(person(graph), pa.array(["a"]), np.array([0], np.uint64))
    with pytest.raises(InternalError):
        staging.push_fragments(
            person(graph), [Fragment(NO_NUMBER, ("f",), 1)], PendingMode.MERGE, MutationOpKind.MERGE
        )


def test_a_table_the_branch_does_not_show(graph) -> None:
    with pytest.raises(ReadSetConflict):
        staging_of(graph).touch(TableKey("node:Gone"), MutationOpKind.INSERT)


def scan(graph, pending, *, key_column="id", projection=("id", "age")):
    session = graph.session
    handle = session.open_entry(session.manifest.current(None).entries[PERSON])
    condition = RowFilter("`age` > 1", lambda table: pc.greater(table.column("age"), 1))
    return scan_with_pending(
        session.storage,
        handle,
        pending,
        projection=list(projection),
        condition=condition,
        key_column=key_column,
    )


def test_pending_rows_shadow_committed_ones(graph) -> None:
    pending = pa.table({"id": ["b", "c"], "age": pa.array([0, 9], pa.int32())})
    shadowed = scan(graph, pending)
    assert shadowed.rows.to_pylist() == [{"id": "c", "age": 9}]
    assert shadowed.addresses.tolist() == [int(ABSENT)]
    union = scan(graph, pending, key_column=None)
    assert union.rows.to_pylist() == [{"id": "b", "age": 2}, {"id": "c", "age": 9}]
    assert union.addresses[0] != ABSENT


def test_the_key_must_be_projected(graph) -> None:
    with pytest.raises(InternalError):
        scan(graph, None, projection=("age",))
