"""A merge with large deltas gives the same graph on Spark and in one process."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

import omnigraph
from graphs import make_graph
from omnigraph.core.ids import BranchName, CommitId, OperationId, TableKey, new_ulid
from omnigraph.core.settings import Settings
from omnigraph.engine.write.forks import fork_table
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.storage.handles import Stamp

ITEM = TableKey("node:Item")
ROWS = 300_000
CHANGED = 200_000
NOTED = 600
SCHEMA = "node Item { name: String @key  n: I64?  note: String?  tags: [String]? }"
LOCAL = Settings(durability="os")
SPARK = Settings(durability="os", bulk_rows_in_process_max=50_000)


def rows(schema, numbers, value, note="note"):
    names = pa.array([f"item{number:07d}" for number in numbers])
    columns = {
        "id": names,
        "name": names,
        "n": pa.array(np.full(len(numbers), value, np.int64)),
        "note": pa.array([None if number % 3 else f"{note} {number}" for number in numbers], pa.string()),
        "tags": pa.array([["a"] * (number % 3) for number in numbers], pa.list_(pa.string())),
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


def write(graph, branch, numbers, value, gone=(), note="note"):
    """Put rows on a branch and delete others, past the front door: 200,000 rows are a load's business."""
    session = graph.session
    entry = session.manifest.current(branch).entries[ITEM]
    handle = session.open_entry(entry) if entry.branch == branch else fork_table(session, entry, branch)
    stamp = Stamp(new_ulid(), ITEM)
    data = rows(handle.schema, numbers, value, note)
    found = session.keys.addresses(
        session.root.identity, session.storage, handle, data["id"].combine_chunks()
    )
    known = found[found != np.uint64(0xFFFF_FFFF_FFFF_FFFF)]
    staged = session.storage.stage_merge_insert(handle, data, stamp, addresses=known)
    made = session.storage.commit_staged(handle, staged)
    if len(gone):
        predicate = f"id >= 'item{gone[0]:07d}' AND id <= 'item{gone[-1]:07d}'"
        staged = session.storage.stage_delete(made, stamp, predicate=predicate)
        made = session.storage.commit_staged(made, staged)
    identifier = session.storage.branch_identifier(made.location, branch)
    update = SubTableUpdate(ITEM, made.version, branch, made.row_count, staged.transaction_uuid, identifier)
    intent = CommitIntent(CommitId(new_ulid()), "load", operation_id=OperationId(new_ulid()))
    session.publisher.publish(branch, [update], {}, intent)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Two branches that changed 200,000 rows each; 1,000 rows both changed, in different ways, and 200 in different properties."""
    path = tmp_path_factory.mktemp("merge") / "graph"
    theirs, ours = BranchName("theirs"), BranchName("ours")
    with make_graph(path, SCHEMA, settings=LOCAL) as graph:
        write(graph, None, range(ROWS), 0)
        for name in (theirs, ours):
            graph.branches.create(name)
        half = CHANGED // 2
        # Updates and inserts; the first thousand of theirs collide with ours.
        write(graph, theirs, [*range(half), *range(ROWS, ROWS + half - 100)], 1, range(ROWS - 100, ROWS))
        write(graph, ours, [*range(half - 1_000, CHANGED), *range(2 * ROWS, 2 * ROWS + half - 1_100)], 2)
        # Theirs has changed the number of these, ours changes the note of every third.
        write(graph, ours, range(NOTED), 0, note="seen")
    return path


def merged(path, settings, report_engine):
    """Everything a merge says and does: the preview with its conflicts, the counts, the graph."""
    with omnigraph.open(path, settings=settings) as graph:
        preview = graph.branches.preview("theirs", into="ours")
        assert preview.engine == report_engine
        report = graph.branches.merge("theirs", into="ours", on_conflict="theirs")
        assert report.engine == report_engine
        return {**preview.to_dict(), "engine": None}, report.stats, graph.export(branch="ours")


def test_merge_of_two_large_branches_runs_on_spark_and_in_process_with_equal_results(
    original, tmp_path, runtime
):
    shutil.copytree(original, tmp_path / "spark")
    alone = merged(original, LOCAL, "local")
    assert merged(tmp_path / "spark", SPARK, "spark") == alone
    preview, stats, exported = alone
    lines = exported.splitlines() if isinstance(exported, str) else exported.decode().splitlines()
    first = {row["name"]: row for line in lines[:NOTED] for row in [json.loads(line)["data"]]}
    assert {first[f"item{number:07d}"]["n"] for number in range(NOTED)} == {1}
    assert [first[f"item{number:07d}"]["note"] for number in range(0, NOTED, 3)] == [
        f"seen {number}" for number in range(0, NOTED, 3)
    ]
    assert preview["merge_conflicts_total"] == len(preview["merge_conflicts"]) == 1_000
    assert stats[ITEM] == {
        "inserted": CHANGED // 2 - 100,
        "updated": CHANGED // 2,
        "deleted": 100,
        "resolved_theirs": 1_000,
    }
