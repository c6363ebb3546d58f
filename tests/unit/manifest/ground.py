"""A graph that consists of a manifest only: publishing needs no table."""

from pathlib import Path

from omnigraph.core.ids import Branch, CommitId, OperationId, TableKey, new_ulid
from omnigraph.core.settings import Settings
from omnigraph.manifest.commit_record import CommitRecord
from omnigraph.manifest.publisher import CommitIntent, ManifestBatchPublisher, SubTableUpdate
from omnigraph.manifest.state import Snapshot, TableEntry
from omnigraph.manifest.store import ManifestStore
from omnigraph.storage.durability import DurabilityMode
from omnigraph.storage.layout import GraphRoot, table_location
from omnigraph.storage.objects import open_adapter

PERSON = TableKey("node:Person")
CITY = TableKey("node:City")
KNOWS = TableKey("edge:Knows")


def entry(key: TableKey, version: int = 1, *, rows: int = 0, branch: Branch = None) -> TableEntry:
    return TableEntry(key, table_location(key), version, branch, rows, f"uuid-{key}-{version}")


def genesis(schema_hash: str = "schema-1") -> CommitRecord:
    return CommitRecord(
        id=CommitId(new_ulid()),
        parents=(),
        actor=None,
        operation="init",
        time_us=1_700_000_000_000_000,
        home=None,
        manifest_version=0,
        schema_hash=schema_hash,
    )


def open_store(path: Path, *, read_only: bool = False, durability: str = "full") -> ManifestStore:
    root = GraphRoot(str(path))
    settings = Settings(durability=durability)
    adapter = open_adapter(root.uri, durability=DurabilityMode(durability))
    return ManifestStore(root, settings, adapter, read_only=read_only)


def new_store(
    path: Path, *, durability: str = "full", keys: tuple[TableKey, ...] = (PERSON, CITY, KNOWS)
) -> ManifestStore:
    store = open_store(path, durability=durability)
    store.create([entry(key) for key in keys], genesis())
    return store


def update(key: TableKey, version: int, *, rows: int = 0, branch: Branch = None) -> SubTableUpdate:
    return SubTableUpdate(key, version, branch, rows, f"uuid-{key}-{version}")


def intent(operation: str = "mutation", **values: object) -> CommitIntent:
    fields: dict = {"operation_id": OperationId(new_ulid()), **values}
    return CommitIntent(CommitId(new_ulid()), operation, **fields)


def advance(
    store: ManifestStore, key: TableKey = PERSON, *, branch: Branch = None, **values: object
) -> Snapshot:
    """Publish the next version of one table."""
    pin = store.current(branch).pin(key)
    change = update(key, pin + 1, rows=pin + 1, branch=branch)
    return ManifestBatchPublisher(store).publish(branch, [change], {key: pin}, intent(**values))
