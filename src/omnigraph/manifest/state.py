"""What a branch shows at one moment, and its rows in `__manifest`. No I/O happens here.

A manifest version holds the current state only: one registration and at most one version row per table, the
tombstones still in force, and the record of the commit that published it. Older states are older versions.
"""

import zlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import orjson
import pyarrow as pa

from omnigraph.core.errors import InternalError
from omnigraph.core.formats import INTERNAL_SCHEMA_VERSION
from omnigraph.core.ids import Branch, BranchName, CommitId, TableKey, show_branch
from omnigraph.core.late_dataclass import dataclass
from omnigraph.manifest.commit_record import (
    CommitRecord,
    corrupt_row,
    json_object,
    record_from_json,
    record_to_json,
)
from omnigraph.storage.layout import is_inside

STAMP_KEY: Final = "omnigraph:internal_schema_version"
STAMP: Final = INTERNAL_SCHEMA_VERSION
PRIMARY_KEY: Final = "lance-schema:unenforced-primary-key"
COMMIT_ROW_KEY: Final = TableKey("graph:commit")
"""The `table_key` of the commit row: the column takes no null, and no type can be named like this."""

BranchIdentifier = tuple[tuple[int, str], ...]
"""Lance's branch incarnation list; empty for main."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The exact version of one table that a snapshot reads.

    `transaction_uuid` is the Lance commit that made the version and `branch_identifier` the incarnation
    of the Lance branch it lives on: together they tell a version from another one with the same number.
    """

    table_key: TableKey
    location: str
    version: int
    branch: Branch
    row_count: int
    transaction_uuid: str
    branch_identifier: BranchIdentifier = ()


@dataclass(frozen=True)
class Snapshot:
    """What one branch shows at one manifest version. Immutable; used for the whole life of a query.

    `registrations` also names tables that show no version (registered only, or dropped); `tombstones` has the
    version up to which a dropped table is hidden.
    """

    branch: Branch
    manifest_version: int
    entries: Mapping[TableKey, TableEntry]
    registrations: Mapping[TableKey, str]
    tombstones: Mapping[TableKey, int]
    commit: CommitRecord

    @property
    def schema_hash(self) -> str:
        """The schema this branch follows, by content hash."""
        return self.commit.schema_hash

    @property
    def head(self) -> CommitId:
        """The newest commit of the branch."""
        return self.commit.id

    def pin(self, table_key: TableKey) -> int:
        """The visible version of a table; 0 when the table shows nothing."""
        entry = self.entries.get(table_key)
        return 0 if entry is None else entry.version

    def latest_version(self, table_key: TableKey) -> int:
        """What an expectation on this table is compared with.

        The visible version; for a dropped table its tombstone; 0 for an unknown one.
        """
        entry = self.entries.get(table_key)
        return self.tombstones.get(table_key, 0) if entry is None else entry.version

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, tables by kind and then by type."""
        datasets: list[dict[str, Any]] = []
        for key, entry in sorted(self.entries.items()):
            kind, _, type_name = key.partition(":")
            datasets.append(
                {
                    "entity_kind": kind,
                    "type_name": type_name,
                    "dataset_path": entry.location,
                    "published_dataset_version": entry.version,
                    "native_dataset_branch": entry.branch,
                    "entity_count": entry.row_count,
                }
            )
        return {
            "graph_branch": show_branch(self.branch),
            "graph_manifest_version": self.manifest_version,
            "graph_commit_id": self.head,
            "internal_schema_version": INTERNAL_SCHEMA_VERSION,
            "datasets": datasets,
        }


def manifest_schema(stamp: int = STAMP) -> pa.Schema:
    """The complete schema of `__manifest`, with the stamp and the key annotation.

    An Overwrite written from bare data drops both, so every write carries this schema.
    """
    annotation = {PRIMARY_KEY: "true"} if stamp >= 2 else None
    return pa.schema(
        [
            pa.field("object_id", pa.string(), nullable=False, metadata=annotation),
            pa.field("object_type", pa.string(), nullable=False),
            pa.field("location", pa.string()),
            pa.field("metadata", pa.string()),
            pa.field("base_objects", pa.list_(pa.string())),
            pa.field("table_key", pa.string(), nullable=False),
            pa.field("table_version", pa.uint64()),
            pa.field("table_branch", pa.string()),
            pa.field("row_count", pa.uint64()),
        ],
        metadata={STAMP_KEY: str(stamp)} if stamp >= 2 else None,
    )


_SCHEMA: Final = manifest_schema()


def stamp_of(schema: pa.Schema) -> int:
    """The internal schema version a manifest carries; one without a stamp is version 1."""
    text = (schema.metadata or {}).get(STAMP_KEY.encode())
    if text is None:
        return 1
    try:
        return int(text)
    except ValueError as error:
        raise InternalError(f"the manifest's format number {text!r} is not a number") from error


def version_object_id(table_key: TableKey, version: int) -> str:
    """The row id of a table version."""
    return f"{table_key}${version:020d}"


def tombstone_object_id(table_key: TableKey, version: int) -> str:
    """The row id of a tombstone."""
    return f"{table_key}$tombstone${version:020d}"


_Row = tuple[str, str, str | None, str | None, str, int | None, str | None, int | None]
"""The values of one row in the order of `_COLUMNS`."""
_COLUMNS: Final = (
    "object_id",
    "object_type",
    "location",
    "metadata",
    "table_key",
    "table_version",
    "table_branch",
    "row_count",
)


Columns = dict[str, list[Any]]
"""The values of a snapshot's rows, by the names of the columns."""


def digest(columns: Columns) -> int:
    """A checksum of everything a snapshot shows, however its rows are stored."""
    return zlib.crc32(orjson.dumps(columns))


def encode(columns: Columns) -> pa.Table:
    """The rows of a snapshot as they are stored."""
    rows = len(columns["object_id"])
    return pa.table(
        [
            pa.nulls(rows, field.type)
            if field.name == "base_objects"
            else pa.array(columns[field.name], field.type)
            for field in _SCHEMA
        ],
        schema=_SCHEMA,
    )


def columns_of(snapshot: Snapshot) -> Columns:
    """The rows of a snapshot: registrations, versions, tombstones, each in key order, then the commit."""
    registered, entries, gone = snapshot.registrations, snapshot.entries, snapshot.tombstones
    record = snapshot.commit
    nothing = [None] * len(entries)
    none_gone = [None] * len(gone)
    unnamed = [None] * len(registered)
    # Whole columns: building the table row by row takes five times as long, on the path of every write.
    return {
        "object_id": [
            *registered,
            *(version_object_id(key, entry.version) for key, entry in entries.items()),
            *(tombstone_object_id(key, version) for key, version in gone.items()),
            f"commit${record.id}",
        ],
        "object_type": [
            *(["table"] * len(registered)),
            *(["table_version"] * len(entries)),
            *(["table_tombstone"] * len(gone)),
            "graph_commit",
        ],
        "location": [*registered.values(), *nothing, *none_gone, None],
        "metadata": [
            *unnamed,
            *(_version_metadata(entry) for entry in entries.values()),
            *none_gone,
            record_to_json(record),
        ],
        "table_key": [*registered, *entries, *gone, COMMIT_ROW_KEY],
        "table_version": [
            *unnamed,
            *(entry.version for entry in entries.values()),
            *gone.values(),
            record.manifest_version,
        ],
        "table_branch": [*unnamed, *(entry.branch for entry in entries.values()), *none_gone, record.home],
        "row_count": [*unnamed, *(entry.row_count for entry in entries.values()), *none_gone, None],
    }


def _version_metadata(entry: TableEntry) -> str:
    return orjson.dumps(
        {
            "transaction_uuid": entry.transaction_uuid,
            "branch_identifier": [list(part) for part in entry.branch_identifier],
        }
    ).decode()


def decode(rows: pa.Table, *, branch: Branch, manifest_version: int) -> Snapshot:
    """The snapshot that rows of `__manifest` describe.

    Accepts more than one version row or tombstone per table (older writers kept them): the greatest version
    counts, and a tombstone hides versions up to its own. Raises InternalError naming the row when one is
    damaged, when a column is missing, when a version row has no registration, and when there is not exactly
    one commit row.
    """
    registrations: dict[TableKey, str] = {}
    versions: dict[TableKey, _Row] = {}
    tombstones: dict[TableKey, int] = {}
    commits: list[_Row] = []
    newer_format = stamp_of(rows.schema) > STAMP
    if not {*_COLUMNS} <= {*rows.column_names}:
        raise InternalError(f"version {manifest_version} of the graph's manifest lacks a column")
    row: _Row
    for row in zip(*(rows[name].to_pylist() for name in _COLUMNS), strict=True):
        object_id, object_type, location, _, table_key, _, _, _ = row
        key = TableKey(table_key)
        match object_type:
            case "table":
                if not location:
                    raise corrupt_row(object_id, "its location is missing")
                if not is_inside(location):
                    raise corrupt_row(object_id, f"its location '{location}' is not below the graph")
                registrations[key] = location
            case "table_version":
                if key not in versions or _version(versions[key]) < _version(row):
                    versions[key] = row
            case "table_tombstone":
                tombstones[key] = max(tombstones.get(key, 0), _version(row))
            case "graph_commit":
                commits.append(row)
            case _ if newer_format:
                # A newer program may keep rows of kinds this one does not know; reading works without them.
                continue
            case other:
                raise corrupt_row(object_id, f"its type '{other}' is not known")
    if len(commits) != 1:
        raise InternalError(
            f"version {manifest_version} of the graph's manifest names {len(commits)} commits instead of one"
        )
    entries = {
        key: entry
        for key, row in versions.items()
        if (entry := _entry(key, row, registrations)).version > tombstones.get(key, 0)
    }
    in_force = {key: version for key, version in tombstones.items() if key not in entries}
    return build_snapshot(
        branch=branch,
        manifest_version=manifest_version,
        entries=entries.values(),
        registrations=registrations,
        tombstones=in_force,
        commit=record_from_json(commits[0][3], row=commits[0][0]),
    )


def build_snapshot(
    *,
    branch: Branch,
    manifest_version: int,
    entries: Iterable[TableEntry],
    registrations: Mapping[TableKey, str],
    tombstones: Mapping[TableKey, int],
    commit: CommitRecord,
) -> Snapshot:
    """A snapshot with its maps in table key order."""
    by_key = {entry.table_key: entry for entry in entries}
    return Snapshot(
        branch=branch,
        manifest_version=manifest_version,
        entries=MappingProxyType({key: by_key[key] for key in sorted(by_key)}),
        registrations=MappingProxyType({key: registrations[key] for key in sorted(registrations)}),
        tombstones=MappingProxyType({key: tombstones[key] for key in sorted(tombstones)}),
        commit=commit,
    )


def _entry(key: TableKey, row: _Row, registrations: Mapping[TableKey, str]) -> TableEntry:
    object_id, _, _, metadata, _, _, table_branch, row_count = row
    if key not in registrations:
        raise corrupt_row(object_id, f"table '{key}' was never registered")
    if row_count is None:
        raise corrupt_row(object_id, "its row count is missing")
    if table_branch is not None and not is_inside(table_branch):
        raise corrupt_row(object_id, f"its branch '{table_branch}' is not below the graph")
    details = json_object(metadata, row=object_id)
    uuid = details.get("transaction_uuid")
    if not isinstance(uuid, str):
        raise corrupt_row(object_id, "'transaction_uuid' is not text")
    return TableEntry(
        table_key=key,
        location=registrations[key],
        version=_version(row),
        branch=None if table_branch is None else BranchName(table_branch),
        row_count=row_count,
        transaction_uuid=uuid,
        branch_identifier=_identifier(details.get("branch_identifier"), object_id),
    )


def _identifier(value: Any, object_id: str) -> BranchIdentifier:
    try:
        return tuple((int(version), str(uuid)) for version, uuid in value)
    except (TypeError, ValueError) as error:
        raise corrupt_row(object_id, "'branch_identifier' is not a list of pairs") from error


def _version(row: _Row) -> int:
    if row[5] is None:
        raise corrupt_row(row[0], "its version is missing")
    return row[5]
