"""`verify`: every invariant of a healthy graph, checked by reading only."""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from omnigraph.catalog.canonical import node_ids, unique_tuples
from omnigraph.catalog.schema import Catalog, EdgeType, NodeType, TableType
from omnigraph.core import html
from omnigraph.core.errors import Corrupt, OmnigraphError
from omnigraph.core.ids import Branch, TableKey, node_table_key, show_branch
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.progress import Steps
from omnigraph.manifest.state import Snapshot, TableEntry
from omnigraph.recovery.context import RecoveryContext
from omnigraph.recovery.file_checks import FileChecks
from omnigraph.recovery.schema_state import staged_schema_files
from omnigraph.storage.branches import UNREADABLE
from omnigraph.storage.handles import SnapshotHandle
from omnigraph.storage.layout import COMMIT_RECOVERIES, COMMITS

if TYPE_CHECKING:
    import pyarrow as pa


class Rule(StrEnum):
    """What a healthy graph keeps."""

    NOTHING_PENDING = "nothing_pending"
    TABLES_MATCH_SCHEMA = "tables_match_schema"
    PIN_EXISTS = "pin_exists"
    PIN_IS_HEAD = "pin_is_head"
    PIN_IDENTITY = "pin_identity"
    ROW_COUNT = "row_count"
    COLUMNS = "columns"
    ID_UNIQUE = "id_unique"
    ID_IS_KEY = "id_is_key"
    VALUES_UNIQUE = "values_unique"
    ENDPOINT_PRESENT = "endpoint_present"
    COMMITS_CHAINED = "commits_chained"
    TAG_READABLE = "tag_readable"
    PROJECTION_COMPLETE = "projection_complete"
    AUDIT_MATCHES = "audit_matches"
    FILES_WHOLE = "files_whole"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant."""

    rule: Rule
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class VerifyReport(html.Shown):
    """The result of a verification. `ok` means every check held."""

    violations: tuple[Violation, ...]
    branches: int
    tables: int
    rows: int
    commits: int
    pending: tuple[str, ...]
    """Operations that wait for recovery."""
    files: int = 0
    """Files that were compared with their checksums."""
    bytes: int = 0
    """Their size."""
    commits_without_checksums: int = 0
    """Commits of the graph, as far as it was looked at, whose files have none: an older program made them."""
    corrupt: tuple[Corrupt, ...] = ()
    """Files that do not hold what was written; each is among the violations too."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.violations

    def _shown(self) -> html.Pieces:
        about = {
            "branches": self.branches,
            "tables": self.tables,
            "rows": self.rows,
            "commits": self.commits,
            "files compared": self.files,
            "pending": ", ".join(self.pending) or None,
        }
        found = [(str(each.rule), each.where, each.message) for each in self.violations]
        listed = html.table(("rule", "where", "finding"), found) if found else html.NOTHING
        return html.facts("verified: ok" if self.ok else "verified: not ok", about) + listed


class _Tally:
    """What has been looked at."""

    def __init__(self) -> None:
        self.tables = 0
        self.rows = 0
        self.commits = 0


def verify(
    context: RecoveryContext,
    catalog_of: Callable[[Snapshot], Catalog],
    *,
    deep: bool = False,
    damaged_caches: Callable[[], Iterable[str]] = tuple,
) -> VerifyReport:
    """Check every branch of the graph. Settles nothing and writes nothing.

    `catalog_of` gives the schema a snapshot's branch follows. Cost: every id, key, unique value, source and
    target of every branch, and the whole history. `deep`: every file is compared with its checksum, and the
    caches by `damaged_caches`; otherwise files of the newest commits and of a few others.
    """
    tally = _Tally()
    checks = FileChecks(context)
    # Before anything is opened: what a damaged file makes of the table format nobody knows.
    compared = checks.all_files() if deep else checks.some_files()
    found = [Violation(Rule.FILES_WHOLE, _place(each), f"{each}; {each.hint}") for each in compared.damaged]
    found.extend(
        Violation(Rule.PROJECTION_COMPLETE, location, "cannot be read as it was made")
        for location in (context.commits.damaged() if deep else ())
    )
    found.extend(
        Violation(Rule.FILES_WHOLE, name, "a cache holds other bytes than were written; delete the file")
        for name in (damaged_caches() if deep else ())
    )
    pending = _pending(context, found)
    branches: tuple[Branch, ...] = (None, *context.manifest.branches())
    for branch in branches:
        where = show_branch(branch)
        try:
            snapshot = context.manifest.current(branch)
            catalog = catalog_of(snapshot)
        except OmnigraphError as error:
            found.append(Violation(Rule.PIN_EXISTS, where, f"the branch cannot be read: {error.message}"))
            continue
        found.extend(_told(Rule.PIN_EXISTS, where, _tables(context, snapshot, catalog, tally)))
        found.extend(_told(Rule.COMMITS_CHAINED, where, _history(context, branch, tally)))
    found.extend(_told(Rule.TAG_READABLE, "tags", _tags(context)))
    found.extend(_told(Rule.PROJECTION_COMPLETE, COMMITS, _projection(context)))
    found.extend(_told(Rule.AUDIT_MATCHES, COMMIT_RECOVERIES, _audit(context)))
    return VerifyReport(
        violations=tuple(found),
        branches=len(branches),
        tables=tally.tables,
        rows=tally.rows,
        commits=tally.commits,
        pending=pending,
        files=compared.files,
        bytes=compared.bytes,
        commits_without_checksums=compared.commits_without,
        corrupt=compared.damaged,
    )


def _place(damaged: Corrupt) -> str:
    return " ".join((damaged.file, *(f"on {branch}" for branch in damaged.branches)))


def _told(rule: Rule, where: str, checks: Iterator[Violation]) -> Iterator[Violation]:
    """What the checks find; a file that cannot be read is a finding too, and ends only these checks."""
    try:
        yield from checks
    except OmnigraphError as error:
        yield Violation(rule, where, f"cannot be read: {error.message}")


def _pending(context: RecoveryContext, found: list[Violation]) -> tuple[str, ...]:
    try:
        names = context.sidecars.list()
    except OmnigraphError as error:
        found.append(Violation(Rule.NOTHING_PENDING, "__recovery", f"cannot be listed: {error.message}"))
        return ()
    found.extend(
        Violation(Rule.NOTHING_PENDING, name, "an interrupted write waits for recovery") for name in names
    )
    found.extend(
        Violation(Rule.NOTHING_PENDING, name, "a schema change was interrupted")
        for name in sorted(staged_schema_files(context))
    )
    return tuple(name.removesuffix(".json") for name in names)


def _tables(
    context: RecoveryContext, snapshot: Snapshot, catalog: Catalog, tally: _Tally
) -> Iterator[Violation]:
    where = show_branch(snapshot.branch)
    declared = {TableKey(key) for key in catalog.table_keys()}
    for key in sorted(declared ^ set(snapshot.entries)):
        problem = "is declared and has no table" if key in declared else "has a table and is not declared"
        yield Violation(Rule.TABLES_MATCH_SCHEMA, f"{key} on {where}", problem)
    handles: dict[TableKey, SnapshotHandle] = {}
    for key, entry in snapshot.entries.items():
        try:
            handle = context.storage.open_version(key, entry.location, entry.branch, entry.version)
        except OmnigraphError as error:
            yield Violation(Rule.PIN_EXISTS, f"{key} on {where}", error.message)
            continue
        handles[key] = handle
        tally.tables += 1
        yield from _told(Rule.PIN_EXISTS, f"{key} on {where}", _pin(context, snapshot.branch, entry, handle))
    ids: dict[TableKey, pa.ChunkedArray] = {}
    read = Steps(
        "verify", f"read {where}", sum(entry.row_count for entry in snapshot.entries.values()), "rows"
    )
    for key, handle in handles.items():
        where_table = f"{key} on {where}"
        try:
            ids[key] = context.storage.read(handle, columns=["id"]).column("id")
        except OmnigraphError as error:
            yield Violation(Rule.PIN_EXISTS, where_table, f"rows cannot be read: {error.message}")
            continue
        tally.rows += len(ids[key])
        read.advance(len(ids[key]))
        yield from _rows(snapshot.entries[key], ids[key], where_table)
    checked = Steps("verify", f"check {where}", len(handles), "tables")
    for key, handle in handles.items():
        if key in declared:
            yield from _rules(context, catalog.type_of(key), handle, ids, where)
        checked.advance()


def _rules(
    context: RecoveryContext,
    table_type: TableType,
    handle: SnapshotHandle,
    ids: "dict[TableKey, pa.ChunkedArray]",
    where: str,
) -> Iterator[Violation]:
    """Columns, keys and ends of one table against its declaration."""
    key = handle.table_key
    missing = set(table_type.arrow_schema.names) ^ set(handle.schema.names)
    if missing:
        names = ", ".join(sorted(missing))
        yield Violation(Rule.COLUMNS, f"{key} on {where}", f"columns differ from the schema: {names}")
        return
    if key not in ids:
        return
    place = f"{key} on {where}"
    yield from _told(Rule.PIN_EXISTS, place, _keys(context, table_type, handle, place))
    if isinstance(table_type, EdgeType):
        yield from _told(Rule.PIN_EXISTS, place, _endpoints(context, table_type, handle, ids, where))


def _pin(
    context: RecoveryContext, branch: Branch, entry: TableEntry, handle: SnapshotHandle
) -> Iterator[Violation]:
    where = f"{entry.table_key} on {show_branch(branch)}"
    if entry.branch == branch:
        head = context.storage.head_version(entry.location, entry.branch, at_least=entry.version)
        if head != entry.version:
            yield Violation(Rule.PIN_IS_HEAD, where, f"shows version {entry.version}, HEAD is {head}")
    if handle.row_count != entry.row_count:
        message = f"{handle.row_count} rows where {entry.row_count} are recorded"
        yield Violation(Rule.ROW_COUNT, where, message)
    identifier = context.storage.branch_identifier(entry.location, entry.branch)
    if identifier in {None, UNREADABLE}:
        yield Violation(Rule.PIN_IDENTITY, where, "the reference of its branch is lost")
    elif identifier != entry.branch_identifier:
        yield Violation(Rule.PIN_IDENTITY, where, "its branch was made again under the same name")
    made_by = context.storage.transaction_of(entry.location, entry.branch, entry.version)
    if made_by is not None and entry.transaction_uuid not in {"", made_by.uuid}:
        yield Violation(Rule.PIN_IDENTITY, where, "the version was made by another commit than recorded")


def _rows(entry: TableEntry, ids: Any, where: str) -> Iterator[Violation]:
    import pyarrow.compute as pc  # noqa: PLC0415

    if len(ids) != entry.row_count:
        yield Violation(Rule.ROW_COUNT, where, f"{len(ids)} rows are read, {entry.row_count} recorded")
    distinct = pc.count_distinct(ids, mode="all").as_py()
    if distinct != len(ids) or ids.null_count:
        yield Violation(Rule.ID_UNIQUE, where, f"{len(ids)} rows have {distinct} different ids")


def _keys(
    context: RecoveryContext, table_type: TableType, handle: SnapshotHandle, where: str
) -> Iterator[Violation]:
    """The id of a node is its key, and the values of a `@unique` group belong to one row."""
    import pyarrow.compute as pc  # noqa: PLC0415

    key = table_type.key if isinstance(table_type, NodeType) else ()
    names = {*key, *(name for group in table_type.unique for name in group)}
    if not names:
        return
    rows = context.storage.read(handle, columns=["id", *sorted(names)]).combine_chunks()
    if isinstance(table_type, NodeType) and key:
        same = pc.equal(node_ids(rows, table_type), rows.column("id").combine_chunks())
        others = len(rows) - (pc.sum(same).as_py() or 0)
        if others:
            yield Violation(Rule.ID_IS_KEY, where, f"{others} rows have an id that is not their key")
    for group in table_type.unique:
        held = pc.drop_null(unique_tuples(rows, group, table_type))
        distinct = pc.count_distinct(held).as_py()
        if distinct != len(held):
            message = f"{len(held)} rows have {distinct} different values of {', '.join(group)}"
            yield Violation(Rule.VALUES_UNIQUE, where, message)


def _endpoints(
    context: RecoveryContext, edge: EdgeType, handle: SnapshotHandle, ids: dict[TableKey, Any], where: str
) -> Iterator[Violation]:
    import pyarrow.compute as pc  # noqa: PLC0415

    ends = context.storage.read(handle, columns=["src", "dst"])
    for column, node in (("src", edge.source), ("dst", edge.target)):
        known = ids.get(node_table_key(node))
        if known is None:
            continue
        present = pc.is_in(ends.column(column), value_set=known.combine_chunks())
        missing = len(ends) - (pc.sum(present).as_py() or 0)
        if missing:
            message = f"{missing} edges name a {node} in '{column}' that does not exist"
            yield Violation(Rule.ENDPOINT_PRESENT, f"edge:{edge.name} on {where}", message)


def _history(context: RecoveryContext, branch: Branch, tally: _Tally) -> Iterator[Violation]:
    where = show_branch(branch)
    try:
        records = context.commits.list(branch)
    except OmnigraphError as error:
        yield Violation(Rule.COMMITS_CHAINED, where, f"the history cannot be read: {error.message}")
        return
    tally.commits += len(records)
    for record, parent in pairwise(records):
        if record.parent != parent.id or record.manifest_version <= parent.manifest_version:
            yield Violation(Rule.COMMITS_CHAINED, where, f"{record.id} does not follow {parent.id}")
    if not records or records[-1].parents:
        yield Violation(Rule.COMMITS_CHAINED, where, "the history does not reach the first commit")


def _tags(context: RecoveryContext) -> Iterator[Violation]:
    for name in context.manifest.tags.damaged():
        yield Violation(Rule.TAG_READABLE, name, "it does not say any more what it names")
    for name in context.manifest.tags.torn():
        yield Violation(Rule.TAG_READABLE, name, "its creation was interrupted")
    for name, (branch, version) in context.manifest.tags.places().items():
        try:
            context.manifest.at_version(branch, version)
        except OmnigraphError as error:
            yield Violation(Rule.TAG_READABLE, name, f"what it names cannot be read: {error.message}")


def _projection(context: RecoveryContext) -> Iterator[Violation]:
    """Every commit that is known has both its parents among the known ones."""
    lineage = context.commits.lineage()
    ids = lineage.column("graph_commit_id").to_pylist()
    known = set(ids)
    if len(known) != len(ids):
        yield Violation(Rule.PROJECTION_COMPLETE, COMMITS, "a commit occurs twice")
    for link in ("parent_commit_id", "merged_parent_commit_id"):
        for parent in sorted({*lineage.column(link).to_pylist()} - known - {None}):
            yield Violation(Rule.PROJECTION_COMPLETE, COMMITS, f"{parent} is missing")


def _audit(context: RecoveryContext) -> Iterator[Violation]:
    records = context.recoveries.list()
    operations = [each.operation_id for each in records]
    if len(set(operations)) != len(operations):
        yield Violation(Rule.AUDIT_MATCHES, COMMIT_RECOVERIES, "an operation occurs twice")
    for each in records:
        try:
            commit = context.commits.show(each.graph_commit_id)
        except OmnigraphError:
            message = f"the commit {each.graph_commit_id} of {each.operation_id} does not exist"
            yield Violation(Rule.AUDIT_MATCHES, COMMIT_RECOVERIES, message)
            continue
        if commit.recovers != each.operation_id:
            message = f"the commit {commit.id} does not name {each.operation_id}"
            yield Violation(Rule.AUDIT_MATCHES, COMMIT_RECOVERIES, message)
