"""A merge of embeddings streams: its memory does not follow the number of rows."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import omnigraph
from graphs import FAST, make_graph
from omnigraph.branching.equality import CHUNK_BYTES
from omnigraph.core.ids import BranchName, CommitId, OperationId, TableKey, new_ulid
from omnigraph.engine.write.forks import fork_table
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.storage.handles import Stamp

DOC = TableKey("node:Doc")
TOPIC = BranchName("topic")
GIB = 1024**3
CHUNK_ROWS = 2000


def embed(graph, rows, dim):
    """Put rows with vectors on the branch, without ever holding all of them."""
    session = graph.session
    handle = fork_table(session, session.manifest.current(TOPIC).entries[DOC], TOPIC)

    def batches():
        numbers = np.random.default_rng(7)
        for start in range(0, rows, CHUNK_ROWS):
            count = min(CHUNK_ROWS, rows - start)
            ids = pa.array([f"doc{start + n:08d}" for n in range(count)])
            flat = pa.array(numbers.random(count * dim, dtype=np.float32))
            vectors = pa.FixedSizeListArray.from_arrays(flat, type=handle.schema.field("v").type)
            columns = {"id": ids, "name": ids, "v": vectors}
            yield pa.record_batch([columns[name] for name in handle.schema.names], schema=handle.schema)

    reader = pa.RecordBatchReader.from_batches(handle.schema, batches())
    staged = session.storage.stage_append_stream(handle, reader, Stamp(new_ulid(), DOC))
    made = session.storage.commit_staged(handle, staged)
    identifier = session.storage.branch_identifier(made.location, TOPIC)
    update = SubTableUpdate(DOC, made.version, TOPIC, rows, staged.transaction_uuid, identifier)
    intent = CommitIntent(CommitId(new_ulid()), "load", operation_id=OperationId(new_ulid()))
    session.publisher.publish(TOPIC, [update], {}, intent)


@pytest.mark.parametrize(
    ("rows", "dim"), [(8_000, 3_072), pytest.param(50_000, 3_072, marks=pytest.mark.torture)]
)
@pytest.mark.slow
def test_append_only_fast_forward_large_embeddings_bounded_memory(rows, dim, tmp_path, capsys):
    path = tmp_path / "graph"
    with make_graph(path, f"node Doc {{ name: String @key  v: Vector({dim})? }}") as graph:
        graph.branches.create("topic")
        embed(graph, rows, dim)
    child = Path(__file__).with_name("merge_child.py")
    done = subprocess.run(
        [sys.executable, str(child), str(path), "topic", str(GIB)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    with capsys.disabled():
        peak, grown = found["peak_kib"] // 1024, (found["peak_kib"] - found["before_kib"]) // 1024
        print(f"\n{rows} x {dim}: peak {peak} MiB, {grown} MiB above the open graph")
    assert found["outcome"] == "fast_forward"
    assert found["staged"] == [["stage_append_stream", rows]]
    assert found["peak_kib"] * 1024 < GIB
    # The rows come in pieces; were they read at once, one take would do.
    assert found["takes"] >= rows * dim * 4 // CHUNK_BYTES
    with omnigraph.open(path, settings=FAST) as graph:
        session = graph.session
        mine = session.open_entry(session.manifest.current(None).entries[DOC])
        theirs = session.open_entry(session.manifest.current(TOPIC).entries[DOC])
        assert mine.row_count == rows
        some = f"id = 'doc{rows - 1:08d}'"
        assert session.storage.read(mine, filter=some) == session.storage.read(theirs, filter=some)
