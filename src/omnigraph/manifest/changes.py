"""What a publish may change, and the state that results. No I/O happens here."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from omnigraph.core.errors import ExpectedVersionMismatch, InternalError, PreconditionFailed
from omnigraph.core.ids import Branch, CommitId, OperationId, TableKey
from omnigraph.core.late_dataclass import dataclass
from omnigraph.manifest.commit_record import CommitRecord, RequestKey, TableSummary
from omnigraph.manifest.state import BranchIdentifier, Snapshot, TableEntry, build_snapshot


@dataclass(frozen=True, slots=True)
class RegisterTable:
    """Make a table known under its location. It shows nothing until an update names a version."""

    table_key: TableKey
    table_path: str


@dataclass(frozen=True, slots=True)
class SubTableUpdate:
    """Show this version of a table."""

    table_key: TableKey
    table_version: int
    table_branch: Branch
    row_count: int
    transaction_uuid: str
    branch_identifier: BranchIdentifier = ()


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Stop showing a table: every version up to this one is hidden."""

    table_key: TableKey
    tombstone_version: int


Change = RegisterTable | SubTableUpdate | Tombstone
Expectations = Mapping[TableKey, int]


@dataclass(frozen=True, slots=True)
class CommitIntent:
    """The commit a publish shall record; parents, time and place are found when it is published.

    `expected_head` makes the publish conditional on the branch still showing that commit.
    `schema_hash=None` keeps the schema the branch follows.
    """

    commit_id: CommitId
    operation: str
    actor: str | None = None
    operation_id: OperationId | None = None
    merged_parent: CommitId | None = None
    recovers: OperationId | None = None
    summary: TableSummary = field(default_factory=dict[str, Mapping[str, int]])
    expected_head: CommitId | None = None
    schema_hash: str | None = None
    requests: int = 1
    keys: tuple[RequestKey, ...] = ()


def check_expectations(base: Snapshot, expected: Expectations) -> None:
    """Raise ExpectedVersionMismatch for the first table, in key order, that moved."""
    for key in sorted(expected):
        actual = base.latest_version(key)
        if actual != expected[key]:
            raise ExpectedVersionMismatch(table_key=key, expected=expected[key], actual=actual)


def next_snapshot(
    base: Snapshot, changes: Sequence[Change], intent: CommitIntent, *, time_us: int, incarnation: str = ""
) -> Snapshot:
    """The state that follows `base` when the changes and the commit are published on its branch.

    Raises PreconditionFailed when the branch has another head than the intent expects. Refuses with
    InternalError what no correct caller asks for: another location for a known table, an update or
    tombstone of an unknown one, one (table, version) twice, a version the branch shows already or has
    passed, a tombstone that exists already.
    """
    if intent.expected_head is not None and intent.expected_head != base.head:
        raise PreconditionFailed(expected=intent.expected_head, actual=base.head)
    registrations = dict(base.registrations)
    entries = dict(base.entries)
    tombstones = dict(base.tombstones)
    for change in changes:
        if isinstance(change, RegisterTable):
            _register(change, registrations, entries, tombstones)
    seen: set[tuple[TableKey, int]] = set()
    for change in changes:
        if isinstance(change, RegisterTable):
            continue
        version = change.table_version if isinstance(change, SubTableUpdate) else change.tombstone_version
        if change.table_key not in registrations:
            raise InternalError(f"'{change.table_key}' is not registered and cannot be changed")
        if (change.table_key, version) in seen:
            raise InternalError(f"version {version} of '{change.table_key}' occurs twice in one publish")
        seen.add((change.table_key, version))
        if isinstance(change, SubTableUpdate):
            _show(change, registrations, entries, tombstones)
        else:
            _hide(change, entries, tombstones)
    return build_snapshot(
        branch=base.branch,
        manifest_version=base.manifest_version + 1,
        entries=entries.values(),
        registrations=registrations,
        tombstones=tombstones,
        commit=_record(base, intent, time_us, incarnation),
    )


def _record(base: Snapshot, intent: CommitIntent, time_us: int, incarnation: str) -> CommitRecord:
    merged = () if intent.merged_parent is None else (intent.merged_parent,)
    return CommitRecord(
        id=intent.commit_id,
        parents=(base.head, *merged),
        actor=intent.actor,
        operation=intent.operation,
        time_us=time_us,
        home=base.branch,
        manifest_version=base.manifest_version + 1,
        schema_hash=intent.schema_hash or base.schema_hash,
        operation_id=intent.operation_id,
        recovers=intent.recovers,
        summary=intent.summary,
        incarnation=incarnation,
        requests=intent.requests,
        keys=intent.keys,
    )


def _register(
    change: RegisterTable,
    registrations: dict[TableKey, str],
    entries: dict[TableKey, TableEntry],
    tombstones: dict[TableKey, int],
) -> None:
    key = change.table_key
    known = registrations.get(key)
    if key in tombstones and key not in entries:
        # The name was dropped and is declared again: a new table with its own version numbers, which the old
        # tombstone must not hide.
        del tombstones[key]
    elif known is not None and known != change.table_path:
        raise InternalError(f"'{key}' is registered at '{known}' and cannot move to '{change.table_path}'")
    registrations[key] = change.table_path


def _show(
    change: SubTableUpdate,
    registrations: Mapping[TableKey, str],
    entries: dict[TableKey, TableEntry],
    tombstones: dict[TableKey, int],
) -> None:
    key, version = change.table_key, change.table_version
    current = entries.get(key)
    # Versions of different Lance branches are not comparable: a hand-off to another owner may keep the
    # number or lower it. On one Lance branch a version only grows.
    if current is not None and current.branch == change.table_branch and version <= current.version:
        state = "shown already" if version == current.version else f"older than the shown {current.version}"
        raise InternalError(f"version {version} of '{key}' is {state}")
    hidden_to = tombstones.get(key, 0)
    if version <= hidden_to:
        raise InternalError(f"version {version} of '{key}' is hidden by a tombstone at {hidden_to}")
    tombstones.pop(key, None)
    entries[key] = TableEntry(
        table_key=key,
        location=registrations[key],
        version=version,
        branch=change.table_branch,
        row_count=change.row_count,
        transaction_uuid=change.transaction_uuid,
        branch_identifier=change.branch_identifier,
    )


def _hide(change: Tombstone, entries: dict[TableKey, TableEntry], tombstones: dict[TableKey, int]) -> None:
    key, version = change.table_key, change.tombstone_version
    if key in tombstones:
        raise InternalError(f"'{key}' has a tombstone already, at version {tombstones[key]}")
    current = entries.get(key)
    if current is not None and current.version > version:
        raise InternalError(f"a tombstone at {version} would not hide version {current.version} of '{key}'")
    entries.pop(key, None)
    tombstones[key] = version


def genesis_snapshot(entries: Sequence[TableEntry], commit: CommitRecord) -> Snapshot:
    """The first state of a graph."""
    return build_snapshot(
        branch=None,
        manifest_version=commit.manifest_version,
        entries=entries,
        registrations={entry.table_key: entry.location for entry in entries},
        tombstones={},
        commit=replace(commit, home=None),
    )
