"""The stores every storage test runs on: local disk, memory, and a real S3 API server in a child process.

The server is started once per test process, on a free port of the loopback interface, and ends with it: it
waits on its standard input, which closes when we do, however we end.
"""

import atexit
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import boto3
import pyarrow as pa
import pytest

from omnigraph.core.ids import BranchName, node_table_key
from omnigraph.core.settings import Settings
from omnigraph.storage.branches import BranchIdentifier, list_branches
from omnigraph.storage.handles import SnapshotHandle, Stamp
from omnigraph.storage.layout import GraphRoot, table_location
from omnigraph.storage.objects import StorageAdapter, open_adapter
from omnigraph.storage.tables import TableStorage

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Store:
    """One empty place for a graph."""

    uri: str
    storage_options: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> GraphRoot:
        return GraphRoot(self.uri, self.storage_options)

    def adapter(self) -> StorageAdapter:
        return open_adapter(self.uri, self.storage_options)

    def tables(self, settings: Settings | None = None) -> TableStorage:
        return TableStorage(self.root, settings or Settings(), self.adapter())


def branches_of(tables: TableStorage, location: str) -> dict[BranchName, BranchIdentifier]:
    """Every branch reference of a table, as the table format lists them."""
    return list_branches(tables._pool, location)


@dataclass(frozen=True)
class StoreCase:
    """A kind of store; `make` gives a fresh, empty one."""

    name: str
    make: Callable[[Path], Store]

    def __str__(self) -> str:
        return self.name


@functools.cache
def s3_endpoint() -> str:
    """The address of the S3 API server of this test process."""
    child = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    atexit.register(_end, child)
    assert child.stdout is not None
    port = child.stdout.readline().strip()
    assert port, "the S3 API server did not start"
    endpoint = f"http://127.0.0.1:{port}"
    client = boto3.client("s3", endpoint_url=endpoint, **_CREDENTIALS)
    client.create_bucket(Bucket=_BUCKET)
    client.close()
    return endpoint


_BUCKET = "graphs"
_CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


def _end(child: "subprocess.Popen[str]") -> None:
    try:
        child.communicate(timeout=10)
    except subprocess.TimeoutExpired:  # a busy machine; nothing of it is needed any more
        child.kill()
        child.communicate()


def s3_store(_directory: Path | None = None) -> Store:
    """A fresh prefix on the S3 API server."""
    options = {
        "aws_endpoint": s3_endpoint(),
        "allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
    }
    return Store(f"s3://{_BUCKET}/graph-{os.getpid()}-{next(_numbers)}", options)


def memory_store(_directory: Path | None = None) -> Store:
    return Store(f"memory://test-{os.getpid()}-{next(_numbers)}")


def local_store(directory: Path) -> Store:
    place = directory / "graph"
    place.mkdir()
    return Store(str(place))


LOCAL = StoreCase("local", local_store)
MEMORY = StoreCase("memory", memory_store)
S3 = StoreCase("s3", s3_store)

ALL_STORES = [LOCAL, MEMORY, pytest.param(S3, marks=pytest.mark.s3)]
TABLE_STORES = [LOCAL, pytest.param(S3, marks=pytest.mark.s3)]

PERSON = node_table_key("Person")
PLACE = table_location(PERSON)
STAMP = Stamp("01JTESTOPERATION0000000000", PERSON)
SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("n", pa.int64())])


def rows(ids: Iterable[str], n: int = 0) -> pa.Table:
    """Rows of the example table."""
    ids = list(ids)
    return pa.table({"id": ids, "n": [n] * len(ids)}, schema=SCHEMA)


def content(tables: TableStorage, handle: SnapshotHandle) -> dict[str, int]:
    """The example table as a dictionary; fails when one id has two rows."""
    found = tables.read(handle, columns=["id", "n"]).to_pylist()
    by_id = {row["id"]: row["n"] for row in found}
    assert len(by_id) == len(found), "one id, two rows"
    return by_id


def filled(tables: TableStorage, *groups: Iterable[str]) -> SnapshotHandle:
    """The example table with one fragment per group of ids, opened anew."""
    handle = tables.create_table(PERSON, PLACE, SCHEMA, STAMP)
    for ids in groups:
        handle = tables.commit_staged(handle, tables.stage_append(handle, rows(ids), STAMP))
    return tables.open_version(PERSON, PLACE, None, handle.version)
