"""What the compare-and-swaps of this room rest on: the substrate refuses every stale one."""

from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph.core.ids import BranchName
from omnigraph.core.settings import Settings
from omnigraph.manifest.dataset import ControlDataset
from omnigraph.manifest.state import columns_of, encode, manifest_schema
from omnigraph.storage.durability import DurabilityMode
from omnigraph.storage.layout import GraphRoot
from omnigraph.storage.objects import open_adapter
from unit.manifest.ground import new_store, open_store

SCHEMA = pa.schema([pa.field("graph_commit_id", pa.string(), nullable=False)])


def rows(*ids: str) -> pa.Table:
    return pa.table({"graph_commit_id": list(ids)}, schema=SCHEMA)


def small_dataset(path: Path) -> ControlDataset:
    root = GraphRoot(str(path))
    return ControlDataset(root, "small.lance", open_adapter(root.uri), DurabilityMode(Settings().durability))


@pytest.mark.parametrize("branch", [None, BranchName("review")])
def test_a_stale_overwrite_is_refused_and_its_file_removed(tmp_path: Path, branch: BranchName | None) -> None:
    store = new_store(tmp_path)
    if branch is not None:
        store.create_branch(branch)
    base = store.head(branch)
    table = encode(columns_of(base.snapshot))
    first = store.dataset.write_rows(base.handle, branch, table, replacing=True)
    second = store.dataset.write_rows(base.handle, branch, table, replacing=True)
    made = store.dataset.commit_overwrite(base.handle, branch, manifest_schema(), first)
    assert made is not None
    assert made.version == base.version + 1
    assert store.dataset.commit_overwrite(base.handle, branch, manifest_schema(), second) is None
    assert [(tmp_path / name).exists() for name in (*first.names, *second.names)] == [True, False]
    assert open_store(tmp_path).current(branch).manifest_version == base.version + 1


def test_two_rewrites_of_one_fragment_collide(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    empty = dataset.create(SCHEMA)
    base = dataset.commit_overwrite(
        empty, None, SCHEMA, dataset.write_rows(empty, None, rows("a"), replacing=True)
    )
    assert base is not None
    tail = dataset.last_fragment(base)
    assert tail is not None
    first = dataset.write_rows(base, None, rows("a", "b"), replacing=False)
    second = dataset.write_rows(base, None, rows("a", "c"), replacing=False)
    made = dataset.commit_rewrite(base, [tail[0]], first)
    assert made is not None
    assert dataset.commit_rewrite(base, [tail[0]], second) is None
    assert dataset.read(dataset.open_head(None))["graph_commit_id"].to_pylist() == ["a", "b"]


def test_a_refusal_of_a_commit_that_landed_is_recognised(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    base = store.head(None)
    written = store.dataset.write_rows(base.handle, None, encode(columns_of(base.snapshot)), replacing=True)
    made = store.dataset.commit_overwrite(base.handle, None, manifest_schema(), written)
    assert made is not None
    # What a repeated request to an object store would look like: refused, although the first one had landed.
    again = store.dataset.settle_contention(base.version, None, written)
    assert again is not None
    assert again.version == made.version
    assert all((tmp_path / name).exists() for name in written.names)
