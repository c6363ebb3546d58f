"""A state of the graph seen with another schema than the one it follows: tables and columns by identity."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from omnigraph.catalog.joined import joined
from omnigraph.catalog.table_changes import ColumnMap, catalog_change
from omnigraph.core.ids import TableKey
from omnigraph.core.late_dataclass import dataclass
from omnigraph.manifest.state import Snapshot, TableEntry

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from omnigraph.catalog.schema import Catalog, TableType
    from omnigraph.engine.session import GraphSession
    from omnigraph.storage.handles import SnapshotHandle

FIRST_VERSION: Final = 1
"""The version of a table that has no rows and the columns it was made with."""


@dataclass(frozen=True, slots=True)
class SeenAs:
    """A snapshot under the keys of a schema, and the tables whose columns are not those of their types."""

    snapshot: Snapshot
    catalog: Catalog
    columns: Mapping[TableKey, ColumnMap] = field(default_factory=dict["TableKey", "ColumnMap"])

    def open(self, session: GraphSession, entry: TableEntry) -> SnapshotHandle:
        """A table of the snapshot, as a table of its type."""
        handle = session.open_entry(entry)
        columns = self.columns.get(entry.table_key)
        return handle if columns is None else session.storage.seen_as(handle, columns)


def seen_as(session: GraphSession, snapshot: Snapshot, catalog: Catalog, schema_hash: str) -> SeenAs:
    """What a snapshot shows of each type of a schema, whatever it was called when the snapshot was made.

    A type the snapshot does not know yet is empty: its table as it was made. Equal schemas cost nothing.
    """
    if snapshot.schema_hash == schema_hash:
        return SeenAs(snapshot, catalog)
    change = catalog_change(session.catalog_of(snapshot), catalog)
    entries: dict[TableKey, TableEntry] = {}
    columns: dict[TableKey, ColumnMap] = {}
    for each in change.kept:
        entry = snapshot.entries.get(each.key)
        if entry is None:
            continue
        entries[each.new_key] = replace(entry, table_key=each.new_key)
        if each.columns is not None:
            columns[each.new_key] = each.columns
    registered = session.manifest.current(None).registrations
    for added in change.added:
        key = TableKey(added.table_key)
        if key in registered:
            entries[key] = first_entry(session, key, registered[key])
            there = set(session.open_entry(entries[key]).schema.names)
            wanted = added.arrow_schema
            columns[key] = ColumnMap(wanted, {name: name for name in wanted.names if name in there})
    return SeenAs(replace(snapshot, entries=entries), catalog, columns)


def naming(
    session: GraphSession,
    snapshot: Snapshot,
    type_name: str,
    columns: Collection[str] = (),
    kind: str | None = None,
) -> SeenAs:
    """The snapshot by its own schema, or by the accepted one where it lacks a name that is asked for.

    Where neither has all of the columns, names of both serve.
    """
    own, wanted = session.catalog_of(snapshot), set(columns)
    found = _type_in(own, type_name, kind)
    if found is not None and wanted <= set(found.arrow_schema.names):
        return SeenAs(snapshot, own)
    contract = session.schemas.latest()
    accepted = _type_in(contract.catalog, type_name, None)
    same = found is None or accepted is None or found.type_id == accepted.type_id
    if accepted is not None and same and wanted <= set(accepted.arrow_schema.names):
        return seen_as(session, snapshot, contract.catalog, contract.hash)
    both = joined(own, contract.catalog)
    either = _type_in(both, type_name, kind)
    if either is None or not wanted or not wanted <= set(either.arrow_schema.names):
        return SeenAs(snapshot, own)
    return seen_as(session, snapshot, both, f"{snapshot.schema_hash}+{contract.hash}")


def _type_in(catalog: Catalog, name: str, kind: str | None) -> TableType | None:
    node = catalog.node(name) if kind != "edge" else None
    return node or (catalog.edge(name) if kind != "node" else None)


def own_names(session: GraphSession, snapshot: Snapshot, names: Sequence[str] | None) -> list[str] | None:
    """What the snapshot calls the types of these names: its own names, and those of the accepted schema.

    A name that neither knows stays, so that whoever looks it up can say so.
    """
    if names is None:
        return None
    own, accepted = session.catalog_of(snapshot), session.schemas.latest().catalog
    known = {(each.kind, each.type_id): each.name for each in own.tables()}
    named = {each.name for each in own.tables()}
    found: dict[str, None] = {}
    for name in names:
        same = [known.get((each.kind, each.type_id)) for each in accepted.tables() if each.name == name]
        meant = [] if name in named else [each for each in same if each is not None]
        found.update(dict.fromkeys(meant or [name]))
    return list(found)


def first_entry(session: GraphSession, key: TableKey, location: str) -> TableEntry:
    """The table of an added type as main made it: without rows."""
    made = session.storage.transaction_of(location, None, FIRST_VERSION)
    return TableEntry(key, location, FIRST_VERSION, None, 0, "" if made is None else made.uuid)
