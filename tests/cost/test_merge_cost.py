"""A merge reads what changed, not the tables it changed in."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import omnigraph
from omnigraph.core.events import StorageCall, listen
from omnigraph.core.ids import CommitId, OperationId, new_ulid
from omnigraph.core.settings import Settings
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.storage.handles import Stamp, lance_dataset


def fill(graph, rows):
    """Put rows into every table, as one publish."""
    session = graph.session
    names = pa.array([f"row{n:09d}" for n in range(rows)])
    columns = {"id": names, "name": names, "age": pa.array(np.arange(rows, dtype=np.int32))}
    changes = []
    for key, entry in session.manifest.current(None).entries.items():
        handle = session.open_entry(entry)
        data = pa.table([columns[name] for name in handle.schema.names], schema=handle.schema)
        staged = session.storage.stage_append(handle, data, Stamp(new_ulid(), key))
        made = session.storage.commit_staged(handle, staged)
        changes.append(SubTableUpdate(key, made.version, None, made.row_count, staged.transaction_uuid))
    intent = CommitIntent(CommitId(new_ulid()), "load", operation_id=OperationId(new_ulid()))
    session.publisher.publish(None, changes, {}, intent)


def change(graph, branch, types, delta, run):
    """Insert and update rows, half of each, spread over the tables."""
    texts = [f'insert T{n % types} {{ name: "{branch}-{n}", age: 1 }}' for n in range((delta + 1) // 2)]
    texts += [
        f'insert T{n % types} {{ name: "row{run * 1000 + n:09d}", age: -1 }}' for n in range(delta // 2)
    ]
    graph.mutate(f"query q() {{ {' '.join(texts)} }}", branch=branch)


def bytes_read(graph):
    """What this process read of the graph's tables so far: the counters of Lance, shared by all of them."""
    session = graph.session
    entry = next(iter(session.manifest.current(None).entries.values()))
    return lance_dataset(session.open_entry(entry)).io_stats_snapshot().read_bytes


def merge_costs(path, types, rows, delta):
    """Bytes of table data read by a warm merge, and the calls of the storage."""
    schema = "\n".join(f"node T{n} {{ name: String @key  age: I32? }}" for n in range(types))
    with omnigraph.init(path, schema=schema, settings=Settings(durability="os")) as graph:
        fill(graph, rows)
        for run in range(3):
            graph.branches.create(f"b{run}")
            change(graph, f"b{run}", types, delta, run)
            heard, before = [], bytes_read(graph)
            with listen(heard.append, everywhere=True):
                report = graph.branches.merge(f"b{run}")
            read = bytes_read(graph) - before
            changed = sum(sum(counts.values()) for counts in report.stats.values())
            assert changed == max(delta, 1)
    return read, Counter(each.kind for each in heard if isinstance(each, StorageCall))


@pytest.mark.cost
@pytest.mark.parametrize(("types", "delta", "large"), [(8, 1, 100_000), (8, 50, 100_000), (1, 50, 1_000_000)])
@pytest.mark.slow
def test_merge_cost_follows_the_delta_not_the_table(types, delta, large, tmp_path, capsys):
    small_bytes, small_calls = merge_costs(tmp_path / "small", types, 10_000, delta)
    large_bytes, large_calls = merge_costs(tmp_path / "large", types, large, delta)
    with capsys.disabled():
        print(
            f"\n{types} tables, delta {delta}: {small_bytes:,} bytes read at 10,000 rows each, "
            f"{large_bytes:,} at {large:,}; {large_calls.total()} calls"
        )
    assert small_bytes > 0
    assert large_bytes <= small_bytes * 1.2
    assert large_calls == small_calls
    # Every row is read once on each side.
    assert large_calls["take"] <= 2 * min(types, delta)
