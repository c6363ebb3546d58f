"""Upserts of many rows: what they replace is looked up while the new rows are written."""

from pathlib import Path

import pyarrow as pa
import pytest

from graphs import make_graph, run
from omnigraph.core.cancel import NEVER
from omnigraph.core.errors import StorageError
from omnigraph.core.ids import CommitId, OperationId, new_ulid
from omnigraph.engine.tables import key_cache
from omnigraph.engine.write import protocol
from omnigraph.engine.write.commit import finalize
from omnigraph.engine.write.gathered import MutationOpKind, MutationStaging, PendingMode
from omnigraph.engine.write.parts import WriteIntent
from omnigraph.engine.write.stage import SOUGHT_BESIDE_MIN
from omnigraph.recovery.sidecar import WriterKind

MANY = SOUGHT_BESIDE_MIN + 200


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g", "node Person { name: String @key  age: I32? }") as made:
        upsert(made, range(MANY), 1)
        yield made


def staged(graph, numbers, age, branch=None) -> MutationStaging:
    session = graph.session
    snapshot = session.manifest.current(branch)
    staging = MutationStaging(
        snapshot, OperationId(new_ulid()), branch_identity=session.branch_identity(branch)
    )
    names = [f"p{number}" for number in numbers]
    rows = pa.table({"id": names, "age": pa.array([age] * len(names), pa.int32()), "name": names})
    staging.push(session.catalog_of(snapshot).nodes["Person"], rows, PendingMode.MERGE, MutationOpKind.MERGE)
    return staging


def write(graph, staging):
    intent = WriteIntent(WriterKind.MUTATION, "mutation", staging.operation_id, CommitId(new_ulid()))
    return finalize(graph.session, staging, intent, cancel=NEVER)


def upsert(graph, numbers, age, branch=None):
    return write(graph, staged(graph, numbers, age, branch))


def ages(graph, branch="main"):
    rows = graph.query("query q() { match { $p: Person } return { $p.name, $p.age } }", branch=branch)
    return {row["p.name"]: row["p.age"] for row in rows}


def expected(*parts):
    return {f"p{number}": age for numbers, age in parts for number in numbers}


def test_many_rows_replace_and_join(graph):
    snapshot = upsert(graph, range(100, MANY + 100), 2)
    assert ages(graph) == expected((range(100), 1), (range(100, MANY + 100), 2))
    assert snapshot.entries["node:Person"].row_count == MANY + 100
    assert graph.verify().ok


def test_many_rows_on_the_first_write_of_a_branch(graph):
    graph.branches.create("review")
    upsert(graph, range(50, MANY), 3, branch="review")
    assert ages(graph, "review") == expected((range(50), 1), (range(50, MANY), 3))
    assert ages(graph) == expected((range(MANY), 1))
    assert graph.verify().ok


def test_many_rows_after_another_writer_moved_the_table(graph):
    """Prepared against one version, committed onto the next: the rows of the other writer are replaced too."""
    staging = staged(graph, range(MANY), 4)
    run(graph, 'insert Person { name: "p5", age: 7 } insert Person { name: "other", age: 7 }')
    write(graph, staging)
    assert ages(graph) == expected((range(MANY), 4)) | {"other": 7}
    assert graph.verify().ok


def test_lookup_that_fails_changes_nothing(graph, monkeypatch):
    def lost(*_args, **_named):
        raise StorageError("the table cannot be read")

    before, head = ages(graph), graph.snapshot().head
    with monkeypatch.context() as patched:
        patched.setattr(key_cache.KeyIndexCache, "addresses", lost)
        patched.setattr(protocol, "commit_tables", lambda *_, **__: pytest.fail("a table moved"))
        with pytest.raises(StorageError, match="cannot be read"):
            upsert(graph, range(MANY), 5)
    assert (ages(graph), graph.snapshot().head) == (before, head)
    assert graph.pending() == ()
    upsert(graph, range(MANY), 6)
    assert ages(graph) == expected((range(MANY), 6))
