"""One entity by its id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from omnigraph.arrays.addresses import ABSENT
from omnigraph.catalog.blobs import blob_value
from omnigraph.core.errors import EntityNotFound, TypeNotFound
from omnigraph.core.ids import TableKey
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.readable import naming
from omnigraph.language.diagnostics import near_names
from omnigraph.planning.keys import id_of

if TYPE_CHECKING:
    from omnigraph.catalog.schema import Catalog, TableType
    from omnigraph.engine.readable import SeenAs
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot
    from omnigraph.planning.keys import EntityKey


@dataclass(frozen=True, slots=True)
class Entity:
    """A node or an edge as it is at one snapshot. `source` and `target` are None for a node."""

    type_name: str
    id: str
    properties: dict[str, Any]
    source: str | None = None
    target: str | None = None


def find_entity(
    session: GraphSession, snapshot: Snapshot, type_name: str, entity_id: EntityKey, kind: str | None = None
) -> Entity:
    """The entity with this id or key. Raises `TypeNotFound`, `EntityNotFound`, `BadRequest`.

    A type that the snapshot does not know by this name is that of the accepted schema.
    Cost: one lookup in the key index and one read of one row.
    """
    seen = naming(session, snapshot, type_name, kind=kind)
    return entity_in(session, seen, named_type(seen.catalog, type_name, kind), entity_id)


def entity_in(session: GraphSession, seen: SeenAs, table_type: TableType, entity_id: EntityKey) -> Entity:
    """The entity of a type, as a schema sees a snapshot. Raises `EntityNotFound`, `BadRequest`."""
    named = id_of(table_type, entity_id)
    entry = seen.snapshot.entries.get(TableKey(table_type.table_key))
    if entry is not None:
        handle = session.open_entry(entry)
        wanted = pa.array([named], pa.string())
        found = session.keys.addresses(session.root.identity, session.storage, handle, wanted)
        if found[0] != ABSENT:
            names = table_type.arrow_schema.names
            rows = session.storage.take(seen.open(session, entry), np.asarray(found), names)
            return _entity(table_type, rows.to_pylist()[0])
    raise EntityNotFound(f"no {table_type.kind.value} of type '{table_type.name}' with id '{named}'")


def named_type(catalog: Catalog, name: str, kind: str | None = None) -> TableType:
    """The node type of this name, else the edge type; only that of the kind `node` or `edge` when given."""
    node = catalog.node(name) if kind != "edge" else None
    found = node or (catalog.edge(name) if kind != "node" else None)
    if found is None:
        known = [*(catalog.nodes if kind != "edge" else ()), *(catalog.edges if kind != "node" else ())]
        raise TypeNotFound(name, candidates=near_names(name, known))
    return found


def _entity(table_type: TableType, row: dict[str, Any]) -> Entity:
    properties = {
        prop.name: blob_value(row[prop.name])
        if prop.type.is_blob and row[prop.name] is not None
        else row[prop.name]
        for prop in table_type.properties
    }
    return Entity(table_type.name, row["id"], properties, row.get("src"), row.get("dst"))
