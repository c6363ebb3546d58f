"""The accumulator and the reads inside a write."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from graphs import make_graph, run
from omnigraph.core.errors import InternalError, ReadSetConflict
from omnigraph.core.ids import OperationId, TableKey, new_ulid
from omnigraph.engine.key_segments import ABSENT
from omnigraph.engine.pending import RowFilter, scan_with_pending
from omnigraph.engine.staging import MutationOpKind, MutationStaging, PendingMode

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
        staging.push_fragments(person(graph), ["{}"], PendingMode.MERGE, MutationOpKind.MERGE)


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
