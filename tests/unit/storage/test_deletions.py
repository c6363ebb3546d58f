"""Deletion files are read as Lance means them."""

import struct

import numpy as np
import pyarrow as pa
import pytest

from omnigraph.core.errors import InternalError
from omnigraph.core.ids import TableKey
from omnigraph.core.settings import Settings
from omnigraph.storage.deletions import hidden_rows, roaring_values
from omnigraph.storage.handles import Stamp
from omnigraph.storage.layout import GraphRoot
from omnigraph.storage.objects import open_adapter
from omnigraph.storage.tables import TableStorage

ROWS = 200_000
SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False)])
DEAD = {
    "few": np.array([0, 7, 65_535, 65_536, ROWS - 1]),
    "many": np.arange(3, ROWS, 17),
    "most": np.arange(10, ROWS - 10),
}


@pytest.mark.parametrize("kind", DEAD)
def test_the_file_and_a_scan_agree(kind, tmp_path):
    root = GraphRoot(str(tmp_path))
    store = TableStorage(root, Settings(durability="os"), open_adapter(root.uri, {}))
    handle = store.create_table(TableKey("node:A"), "nodes/a", SCHEMA, Stamp("1", "node:A"))
    rows = pa.table({"id": pa.array([f"{n:07d}" for n in range(ROWS)])}, schema=SCHEMA)
    handle = store.commit_staged(handle, store.stage_append(handle, rows, Stamp("2", "node:A")))
    (fragment,) = store.fragments(handle)
    assert store.dead_rows(handle, fragment).tolist() == []
    dead = DEAD[kind]
    staged = store.stage_delete(handle, Stamp("3", "node:A"), addresses=dead.astype(np.uint64))
    handle = store.commit_staged(handle, staged)
    (fragment,) = store.fragments(handle)
    assert np.array_equal(store.dead_rows(handle, fragment), dead)
    scanned = store.scan(handle, columns=[], with_row_address=True)
    assert np.array_equal(hidden_rows(scanned, ROWS), dead)
    assert fragment.deletions.endswith(".arrow") == (kind == "few")


def test_runs_are_read():
    heads = struct.pack("<HHHH", 0, 4, 2, 1)
    containers = struct.pack("<HHHHH", 2, 5, 2, 100, 1) + struct.pack("<HH", 9, 11)
    data = struct.pack("<I", 12347 | 1 << 16) + b"\x01" + heads + containers
    assert roaring_values(data).tolist() == [5, 6, 7, 100, 101, (2 << 16) + 9, (2 << 16) + 11]


def test_an_unknown_format_is_refused():
    with pytest.raises(InternalError, match="begins with 1"):
        roaring_values(struct.pack("<II", 1, 0))
