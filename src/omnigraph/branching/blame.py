"""Which commit gave each property of one entity its present value, seen through merges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph.branching.equality import same_value
from omnigraph.catalog.blobs import BlobReference
from omnigraph.catalog.types import arrow_type
from omnigraph.core import html
from omnigraph.core.errors import CommitNotFound, EntityNotFound, SnapshotNotFound
from omnigraph.core.ids import TableKey
from omnigraph.engine.entities.lookup import entity_in, named_type
from omnigraph.engine.read.result import json_values
from omnigraph.engine.readable import naming, seen_as
from omnigraph.planning.keys import id_of

if TYPE_CHECKING:
    from omnigraph.catalog.schema import Catalog, Property, TableType
    from omnigraph.core.ids import CommitId
    from omnigraph.engine.readable import SeenAs
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.commit_record import CommitRecord
    from omnigraph.manifest.state import Snapshot
    from omnigraph.planning.keys import EntityKey

Image = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Blamed:
    """Where one property got its present value. `before`: history before this commit is gone."""

    property: str
    value: Any
    commit: CommitRecord
    before: bool = False
    said: Any = None
    """The value in its JSON form; for a blob its size, or where it is."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "property": self.property,
            "value": self.said,
            "graph_commit_id": self.commit.id,
            "actor_id": self.commit.actor,
            "graph_branch": self.commit.branch,
            "created_at": self.commit.time_us,
            "before": self.before,
        }


@dataclass(frozen=True, slots=True)
class Blame(html.Shown):
    """The origin of every property of one entity, by name."""

    type_name: str
    id: str
    properties: tuple[Blamed, ...]

    def __getitem__(self, name: str) -> Blamed:
        for each in self.properties:
            if each.property == name:
                return each
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        origins = [each.to_dict() for each in self.properties]
        return {"type": self.type_name, "id": self.id, "properties": origins}

    def _shown(self) -> html.Pieces:
        rows = [
            (
                each.property,
                each.said,
                f"before {each.commit.id}" if each.before else each.commit.id,
                each.commit.actor,
                each.commit.branch,
            )
            for each in self.properties
        ]
        columns = ("property", "value", "commit", "actor", "branch")
        return html.table(columns, rows, caption=f"{self.type_name} {self.id}")


def blame(session: GraphSession, head: Snapshot, type_name: str, entity_id: EntityKey) -> Blame:
    """Follow each property back to the commit that set it.

    Through a merge it follows the parent that already had the value, the first one when both had it. Raises
    `TypeNotFound`, `EntityNotFound`, `BadRequest`. Cost: one manifest read per commit walked, one row per
    commit that touched the type.
    """
    seen = naming(session, head, type_name)
    table_type = named_type(seen.catalog, type_name)
    schema = head.schema_hash if seen.snapshot is head else session.schemas.latest().hash
    return _Walk(session, seen.catalog, schema, table_type, id_of(table_type, entity_id)).run(head)


class _Walk:
    """Every state is seen with the schema of the first one: types and properties are followed, not names."""

    def __init__(
        self, session: GraphSession, catalog: Catalog, schema_hash: str, table_type: TableType, entity_id: str
    ) -> None:
        self.session = session
        self.catalog = catalog
        self.schema_hash = schema_hash
        self.type = table_type
        self.entity_id = entity_id
        self.found: dict[str, Blamed] = {}
        self.said: dict[str, Any] = {}

    def run(self, head: Snapshot) -> Blame:
        image = self._image(head)
        if image is None:
            raise EntityNotFound(f"no '{self.type.name}' with id '{self.entity_id}'")
        self.said = {name: _said(self.type.by_name.get(name), value) for name, value in image.items()}
        waiting: list[tuple[Snapshot, frozenset[str]]] = [(head, frozenset(image))]
        while waiting:
            snapshot, names = waiting.pop()
            waiting += self._step(snapshot, image, names)
        ordered = tuple(self.found[name] for name in sorted(self.found))
        return Blame(self.type.name, self.entity_id, ordered)

    def _step(
        self, snapshot: Snapshot, image: Image, names: frozenset[str]
    ) -> list[tuple[Snapshot, frozenset[str]]]:
        """Hand every property on to a parent that has the value; the commit set the others."""
        further: list[tuple[Snapshot, frozenset[str]]] = []
        rest = names
        for parent in snapshot.commit.parents:
            former = self._parent(parent)
            if former is None:
                self._note(snapshot.commit, rest, image, before=True)
                return further
            if self._shows_the_same(former, snapshot):
                return [*further, (former, rest)]
            same = _unchanged(self._image(former), image, rest)
            if same:
                further.append((former, same))
                rest -= same
        self._note(snapshot.commit, rest, image)
        return further

    def _note(
        self, commit: CommitRecord, names: frozenset[str], image: Image, *, before: bool = False
    ) -> None:
        for name in names:
            self.found[name] = Blamed(name, image[name], commit, before, self.said[name])

    def _parent(self, commit_id: CommitId) -> Snapshot | None:
        try:
            return self.session.manifest.at_commit(commit_id)
        except (CommitNotFound, SnapshotNotFound):
            return None

    def _shows_the_same(self, one: Snapshot, other: Snapshot) -> bool:
        """Whether both show one version of the table by one schema."""
        if one.schema_hash != other.schema_hash:
            return False
        key = TableKey(self.type.table_key)
        shown = [self._seen(each).snapshot.entries.get(key) for each in (one, other)]
        return shown[0] == shown[1]

    def _seen(self, snapshot: Snapshot) -> SeenAs:
        return seen_as(self.session, snapshot, self.catalog, self.schema_hash)

    def _image(self, snapshot: Snapshot) -> Image | None:
        """The values there are; a property that did not exist yet has none."""
        seen = self._seen(snapshot)
        try:
            entity = entity_in(self.session, seen, self.type, self.entity_id)
        except EntityNotFound:
            return None
        columns = seen.columns.get(TableKey(self.type.table_key))
        known = {
            name: value
            for name, value in entity.properties.items()
            if columns is None or name in columns.sources
        }
        ends = {} if entity.source is None else {"from": entity.source, "to": entity.target}
        return {**ends, **known}


def _said(prop: Property | None, value: Any) -> Any:
    if prop is None or value is None:
        return value  # an end of an edge is a text
    if prop.type.is_blob:
        return value.uri if isinstance(value, BlobReference) else f"{len(value)} bytes"
    return json_values(pa.array([value], arrow_type(prop.type)))[0]


def _unchanged(former: Image | None, image: Image, names: frozenset[str]) -> frozenset[str]:
    if former is None:
        return frozenset()
    return frozenset(name for name in names if name in former and same_value(former[name], image[name]))
