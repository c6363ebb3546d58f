"""Where the values of one entity lie: every data file with a row of it, whoever points at that file."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from omnigraph.catalog.schema import NodeType
from omnigraph.core.errors import SnapshotNotFound, StorageNotFound
from omnigraph.core.ids import TableKey
from omnigraph.engine.entities.lookup import named_type
from omnigraph.maintenance.stored_files import location_of, part_of
from omnigraph.planning.filters import filter_text, has_text, some
from omnigraph.planning.keys import id_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from omnigraph.catalog.schema import TableType
    from omnigraph.core.ids import Branch
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot, TableEntry
    from omnigraph.planning.keys import EntityKey

DATA: Final = "data"
SUFFIX: Final = ".lance"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is to be erased. Tables are named by location: a type may have other names on other branches."""

    type_name: str
    id: str
    own: frozenset[str]
    """The tables of its type: that of main, and those of types of this name that were dropped before it."""
    columns: Mapping[str, tuple[str, ...]]
    """The tables that may name it, by location, and the columns that would: its own, and those of edges."""

    def is_in(self, name: str) -> bool:
        """Whether a file is one of the data files that may hold it."""
        part = part_of(name)
        return (
            part is not None and part.kind == DATA and name.endswith(SUFFIX) and part.line[0] in self.columns
        )


def subject_of(
    session: GraphSession, heads: Mapping[Branch, Snapshot], type_name: str, given: EntityKey
) -> Subject:
    """The entity that a caller names by a type of main and an id or key, and the tables that may name it.

    A name that was dropped and declared again is another table: older states show the former one.
    Raises `TypeNotFound`, `BadRequest`. Cost: metadata; where types were dropped, a state of each schema.
    """
    main = heads[None]
    wanted = named_type(session.catalog_of(main), type_name)
    states = [*heads.values(), *_former_states(session, heads)]
    elsewhere = {entry.location for entry in main.entries.values()}
    named = (each.entries.get(TableKey(wanted.table_key)) for each in states)
    own = frozenset(entry.location for entry in named if entry is not None) - elsewhere
    own |= {main.entries[TableKey(wanted.table_key)].location}
    columns: dict[str, set[str]] = defaultdict(set, {location: {"id"} for location in own})
    for snapshot in states:
        its = type_at(session, snapshot, own)
        if isinstance(its, NodeType):
            for edge in session.catalog_of(snapshot).edges.values():
                ends = {"src": edge.source, "dst": edge.target}
                entry = snapshot.entries.get(TableKey(edge.table_key))
                if entry is not None and its.name in ends.values():
                    columns[entry.location] |= {end for end, name in ends.items() if name == its.name}
    found = {place: tuple(sorted(names)) for place, names in columns.items()}
    return Subject(wanted.name, id_of(wanted, given), own, found)


def _former_states(session: GraphSession, heads: Mapping[Branch, Snapshot]) -> Iterator[Snapshot]:
    """A state of each schema that branches followed, where there are tables that no branch shows any more."""
    shown = {entry.location for head in heads.values() for entry in head.entries.values()}
    stored = {location_of(name) for name in session.adapter.stored()}
    if not any(location and "/" in location for location in stored - shown):
        return
    seen: set[tuple[Branch, str, str]] = set()
    records = session.commits.behind([head.head for head in heads.values()])
    for record in sorted(records, key=lambda each: each.id, reverse=True):
        schema = (record.home, record.incarnation, record.schema_hash)
        if schema not in seen:
            with suppress(SnapshotNotFound):
                yield session.manifest.at_commit(record.id)
                seen.add(schema)


def type_at(session: GraphSession, snapshot: Snapshot, locations: Collection[str]) -> TableType | None:
    """The type whose rows one of these tables holds on a branch; None where the branch shows none of them."""
    for key, entry in snapshot.entries.items():
        if entry.location in locations:
            return session.catalog_of(snapshot).type_of(key)
    return None


def tables_of(subject: Subject, snapshot: Snapshot) -> Iterator[TableEntry]:
    """The tables of a branch that may name the subject, in key order."""
    for _, entry in sorted(snapshot.entries.items()):
        if entry.location in subject.columns:
            yield entry


def live_rows(session: GraphSession, subject: Subject, snapshot: Snapshot) -> tuple[int, int]:
    """The rows of the subject that a branch shows: of its own table, and of edges. Cost: lookups."""
    own = edges = 0
    for entry in tables_of(subject, snapshot):
        tests = [has_text(column, [subject.id]) for column in subject.columns[entry.location]]
        count = session.storage.count_rows(session.open_entry(entry), filter_text(some(tests)))
        if entry.location in subject.own:
            own += count
        else:
            edges += count
    return own, edges


def traces(session: GraphSession, subject: Subject) -> dict[str, int]:
    """The data files that hold rows of the subject, and how many each; deleted rows count.

    Files that nothing points at are looked at like all others. Cost: one listing, and the columns that could
    name the subject of every data file of these tables.
    """
    names = sorted(filter(subject.is_in, session.adapter.stored()))

    def count(name: str) -> int:
        part = part_of(name)
        columns = () if part is None else subject.columns[part.line[0]]
        try:
            return session.storage.rows_with(name, columns, subject.id)
        except StorageNotFound:
            return 0  # removed since the listing

    with ThreadPoolExecutor(session.settings.maintenance_concurrency) as pool:
        return {name: rows for name, rows in zip(names, pool.map(count, names), strict=True) if rows}
