"""How large a graph is and in which shape: per branch and table, and what lies in its directory.

Everything comes from metadata and one listing; no row is read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from omnigraph.core import html
from omnigraph.core.ids import TableKey, show_branch
from omnigraph.engine.read.query import read_caches
from omnigraph.engine.tables.cache_files import mark
from omnigraph.maintenance.indices import kept_plans
from omnigraph.storage.layout import CACHE, MANIFEST, TABLE_DIRECTORIES, branch_directory
from omnigraph.storage.manifest_files import version_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from omnigraph.catalog.schema import TableType
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot, TableEntry

_VERSIONS: Final = "/_versions/"


@dataclass(frozen=True, slots=True)
class TableStats:
    """One table as a branch shows it."""

    table_key: str
    owner: str
    """The branch that wrote the version; another one than it is shown on inherits it."""
    version: int
    versions: int
    """Versions that the owner keeps of the table."""
    rows: int
    deleted_rows: int
    """Rows that are in files and not shown; optimize drops them."""
    fragments: int
    bytes: int
    """Of the data files of the version, deleted rows included."""
    indexes: int
    segments: int
    """Of all its indexes."""
    index_bytes: int
    uncovered_fragments: int
    """Fragments that the least complete of the indexes it needs does not know."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "type_key": self.table_key,
            "native_dataset_branch": self.owner,
            "published_dataset_version": self.version,
            "versions": self.versions,
            "rows": self.rows,
            "deleted_rows": self.deleted_rows,
            "fragments": self.fragments,
            "bytes": self.bytes,
            "indexes": self.indexes,
            "segments": self.segments,
            "index_bytes": self.index_bytes,
            "uncovered_fragments": self.uncovered_fragments,
        }


@dataclass(frozen=True, slots=True)
class BranchStats:
    """One branch, or one past state of it."""

    branch: str
    commit_id: str
    manifest_version: int
    versions: int
    """States of the branch that can be read: its own, not those before it began."""
    tables: tuple[TableStats, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "branch": self.branch,
            "graph_commit_id": self.commit_id,
            "graph_manifest_version": self.manifest_version,
            "versions": self.versions,
            "datasets": [each.to_dict() for each in self.tables],
        }


@dataclass(frozen=True, slots=True)
class StoredStats:
    """What one place of the graph takes, over all branches and versions."""

    name: str
    """The table key of a type of some branch, else the name in the graph's directory."""
    files: int
    bytes: int
    cache_bytes: int
    """Of the files that read structures of the type are kept in."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.name,
            "files": self.files,
            "bytes": self.bytes,
            "cache_bytes": self.cache_bytes,
        }


@dataclass(frozen=True, slots=True)
class StatsReport(html.Shown):
    """How large a graph is and in which shape."""

    branches: tuple[BranchStats, ...]
    stored: tuple[StoredStats, ...]
    cache_file_bytes: int
    """Of all files of read structures, wherever the settings place them."""
    cache_memory_bytes: int
    """What this process keeps in memory, for all graphs it has open."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "branches": [each.to_dict() for each in self.branches],
            "stored": [each.to_dict() for each in self.stored],
            "cache_file_bytes": self.cache_file_bytes,
            "cache_memory_bytes": self.cache_memory_bytes,
        }

    def _shown(self) -> html.Pieces:
        rows = [
            (branch.branch, each.table_key, each.rows, each.deleted_rows, each.fragments, each.bytes)
            for branch in self.branches
            for each in branch.tables
        ]
        head = ("branch", "type", "rows", "deleted", "fragments", "bytes")
        return html.table(head, rows, caption="stats")


def graph_stats(session: GraphSession, snapshots: Sequence[Snapshot]) -> StatsReport:
    """The shape of these states, and what the whole graph takes.

    Cost: one listing of the graph, the metadata of each table version that is shown.
    """
    files = session.adapter.sizes()
    kept = _versions_kept(files)
    branches = tuple(_branch(session, each, kept) for each in snapshots)
    caches = session.cache_files.sizes()
    read = read_caches(session)
    return StatsReport(
        branches,
        _stored(session, snapshots, files, caches),
        sum(caches.values()),
        session.keys.nbytes() + read.columns.nbytes() + read.derived.nbytes(),
    )


def _versions_kept(files: Iterable[str]) -> Mapping[str, int]:
    """How many versions a directory of a dataset has, by its name."""
    found: Counter[str] = Counter()
    for name in files:
        directory, inside, file = name.rpartition(_VERSIONS)
        if inside and version_of(file) is not None:
            found[directory] += 1
    return found


def _branch(session: GraphSession, snapshot: Snapshot, kept: Mapping[str, int]) -> BranchStats:
    types = session.catalog_of(snapshot).tables()
    shown = [(each, snapshot.entries.get(TableKey(each.table_key))) for each in types]
    return BranchStats(
        show_branch(snapshot.branch),
        snapshot.head,
        snapshot.manifest_version,
        kept.get(branch_directory(MANIFEST, snapshot.branch), 0),
        tuple(_table(session, table_type, entry, kept) for table_type, entry in shown if entry is not None),
    )


def _table(
    session: GraphSession, table_type: TableType, entry: TableEntry, kept: Mapping[str, int]
) -> TableStats:
    handle = session.open_entry(entry)
    fragments = session.storage.fragments(handle)
    existing = {each.role: each for each in session.storage.index_coverage(handle)}
    missed = [0]
    for _, there in kept_plans(session, table_type, handle.row_count, existing):
        missed.append(len(fragments) if there is None else len(there.uncovered))
    return TableStats(
        table_key=entry.table_key,
        owner=show_branch(entry.branch),
        version=entry.version,
        versions=kept.get(branch_directory(entry.location, entry.branch), 0),
        rows=entry.row_count,
        deleted_rows=sum(each.deleted_rows for each in fragments),
        fragments=len(fragments),
        bytes=sum(each.bytes for each in fragments),
        indexes=len(existing),
        segments=sum(each.segments for each in existing.values()),
        index_bytes=sum(each.bytes for each in existing.values()),
        uncovered_fragments=max(missed),
    )


def _stored(
    session: GraphSession, snapshots: Sequence[Snapshot], files: Mapping[str, int], caches: Mapping[str, int]
) -> tuple[StoredStats, ...]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for name, size in files.items():
        place = _place(name)
        counts[place] += 1
        sizes[place] += size
    names = {location: key for each in snapshots for key, location in each.registrations.items()}
    cached: Counter[str] = Counter()
    for location, marks in _marks(session, snapshots).items():
        cached[location] = sum(caches.get(each, 0) for each in marks)
    return tuple(
        StoredStats(names.get(place, place), counts[place], sizes[place], cached[place])
        for place in sorted(counts, key=lambda place: (place not in names, names.get(place, place)))
        if place != CACHE
    )


def _place(name: str) -> str:
    """The dataset a file belongs to, or its own name or directory below the root."""
    first, _, rest = name.partition("/")
    return f"{first}/{rest.partition('/')[0]}" if first in TABLE_DIRECTORIES else first


def _marks(session: GraphSession, snapshots: Sequence[Snapshot]) -> dict[str, set[str]]:
    """What the names of the cache files of a table hold, by its location."""
    found: dict[str, set[str]] = {}
    for entry in (entry for each in snapshots for entry in each.entries.values()):
        handle = session.open_entry(entry)
        columns = {mark(entry.location, handle.column_identity(name)) for name in handle.schema.names}
        found[entry.location] = found.get(entry.location, {mark(entry.location)}) | columns
    return found
