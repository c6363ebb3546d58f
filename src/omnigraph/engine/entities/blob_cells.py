"""One blob of one entity, read by ranges."""

from __future__ import annotations

import hashlib
from dataclasses import field
from typing import TYPE_CHECKING, Any

from omnigraph.catalog.blobs import BlobReference
from omnigraph.core.errors import BadRequest, BlobNull, BlobRange, ResourceLimit
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import BLOB_RANGE_BYTES_MAX
from omnigraph.engine.entities.lookup import find_entity, named_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot
    from omnigraph.planning.keys import EntityKey


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob as it is at one commit: bytes of this graph, or a reference to an object elsewhere.

    Of bytes `size` and `etag` are known, of a reference `uri`; the others are None. A reference is never
    followed.
    """

    entity_kind: str
    type_name: str
    id: str
    property_name: str
    commit_id: str
    size: int | None = None
    etag: str | None = None
    """Equal for equal bytes, different for different ones."""
    uri: str | None = None
    content: bytes = field(default=b"", repr=False)

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from `start` up to but not including `end`, or up to the end of the value. At most 4 MiB.

        Raises `BlobRange` unless start <= end <= size, `ResourceLimit`, and `BadRequest` for a reference.
        """
        stop = self._stop(start, end)
        if stop - start > BLOB_RANGE_BYTES_MAX:
            raise ResourceLimit(
                resource="blob_range_bytes",
                limit=BLOB_RANGE_BYTES_MAX,
                actual=stop - start,
                hint="read it in chunks()",
            )
        return self.content[start:stop]

    def chunks(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes of a range in pieces of at most 4 MiB. Raises as `read` does, before the first piece."""
        stop = self._stop(start, end)
        return (
            self.content[at : min(stop, at + BLOB_RANGE_BYTES_MAX)]
            for at in range(start, stop, BLOB_RANGE_BYTES_MAX)
        )

    def to_dict(self) -> dict[str, Any]:
        """The shape the command line gives; what does not apply is left out."""
        known = {"size": self.size, "etag": self.etag, "uri": self.uri}
        return {
            "selector": {
                "entity": self.entity_kind,
                "type": self.type_name,
                "id": self.id,
                "property": self.property_name,
            },
            "kind": "managed" if self.uri is None else "external",
            **{name: value for name, value in known.items() if value is not None},
        }

    def _stop(self, start: int, end: int | None) -> int:
        """Where a range ends. Raises BadRequest for a reference, BlobRange for what is not inside."""
        if self.size is None:
            raise BadRequest(f"the blob is kept at '{self.uri}'", hint="read it from there")
        stop = self.size if end is None else end
        if not 0 <= start <= stop <= self.size:
            raise BlobRange(
                f"bytes {start} to {stop} are not inside the value of {self.size} bytes",
                details={"blob_range": {"start": start, "end": stop, "length": self.size}},
            )
        return stop


def find_blob(
    session: GraphSession,
    snapshot: Snapshot,
    type_name: str,
    entity_id: EntityKey,
    property_name: str,
    *,
    kind: str | None = None,
) -> Blob:
    """The blob of an entity. `kind`, `node` or `edge`, tells types of one name apart.

    Raises `TypeNotFound`, `BadRequest` when the property is no blob, `EntityNotFound`, `BlobNull`.
    Cost: one lookup in the key index and one read of the row.
    """
    table_type = named_type(session.catalog_of(snapshot), type_name, kind)
    prop = table_type.get(property_name)
    if prop is None or not prop.type.is_blob:
        known = ", ".join(table_type.blob_columns) or "none"
        raise BadRequest(
            f"'{table_type.name}' has no blob property '{property_name}'",
            hint=f"its blob properties: {known}",
        )
    entity = find_entity(session, snapshot, type_name, entity_id, kind)
    value = entity.properties[property_name]
    if value is None:
        raise BlobNull(f"{table_type.name}.{property_name} of '{entity.id}' is null")
    selected = table_type.kind.value, table_type.name, entity.id, property_name, snapshot.head
    if isinstance(value, BlobReference):
        return Blob(*selected, uri=value.uri)
    return Blob(*selected, size=len(value), etag=hashlib.sha256(value).hexdigest(), content=value)
