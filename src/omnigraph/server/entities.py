"""The handlers that read one entity, or one blob of it."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from omnigraph.catalog.blobs import BlobReference
from omnigraph.core.errors import BadRequest, BlobPreconditionFailed, BlobRange
from omnigraph.server.answers import ARROW, Answer, Stream, document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnigraph.engine.entities.blob_cells import Blob
    from omnigraph.engine.entities.lookup import Entity
    from omnigraph.planning.keys import EntityKey
    from omnigraph.server import bodies
    from omnigraph.server.calls import Call

BYTES: Final = "application/octet-stream"
_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
_TAG: Final = re.compile(r'(W/)?"([\x21\x23-\x7e]*)"')


def key_of(said: bodies.Named) -> EntityKey:
    """What names the entity: its id as text, or its key in JSON. Raises BadRequest."""
    if (said.id is None) == (said.key is None):
        raise BadRequest("an entity is named by its id or by its key", hint="give one of them")
    if said.id is not None:
        return said.id
    try:
        key = orjson.loads(said.key or "")
    except ValueError:
        raise BadRequest("the key is not JSON") from None
    if not isinstance(key, str | int | float | dict):
        raise BadRequest("a key is a text, a number, or an object of them")
    return key  # pyright: ignore[reportUnknownVariableType]  JSON has no narrower type


def entity(call: Call[bodies.EntityParameters]) -> Answer | Stream:
    """One node or edge."""
    said = call.said
    found = call.graph.entity(said.type, key_of(said), branch=said.branch, at=said.at)
    if ARROW in call.accept:
        return Stream(iter([_as_arrow(found)]), ARROW)
    ends = {"from": found.source, "to": found.target} if found.source is not None else {}
    told = {name: _json_value(value) for name, value in found.properties.items()}
    return document({"type": found.type_name, "id": found.id, **ends, "properties": told})


def _as_arrow(found: Entity) -> bytes:
    """One row whose values keep their types; addresses of blobs are in the metadata of the schema."""
    import pyarrow as pa  # noqa: PLC0415  only this needs it

    references = {
        name: value.uri for name, value in found.properties.items() if isinstance(value, BlobReference)
    }
    columns = {
        name: pa.array([None if name in references else value]) for name, value in found.properties.items()
    }
    about = {
        "type": found.type_name,
        "id": found.id,
        "from": found.source,
        "to": found.target,
        "references": references,
    }
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    schema = batch.schema.with_metadata({"omnigraph": orjson.dumps(about).decode()})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _json_value(value: Any) -> Any:
    """A property as JSON says it; a blob by its size or its address."""
    match value:
        case bytes():
            return {"size": len(value)}
        case BlobReference():
            return {"uri": value.uri}
        case dt.datetime():
            return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
        case dt.date():
            return value.isoformat()
        case list():
            return [_json_value(each) for each in value]  # pyright: ignore[reportUnknownVariableType]  as above
        case _:
            return value


def blob(call: Call[bodies.BlobParameters]) -> Answer | Stream:
    """The bytes of a blob, or a range of them, or where they are."""
    found = _find(call)
    about = _about(found)
    if found.uri is not None:
        return Answer(b"", BYTES, 302, {**about, "location": found.uri, "cache-control": "no-store"})
    headers = call.headers
    if (unchanged := _unchanged(found, headers)) is not None:
        return unchanged
    size = found.size or 0
    asked = _asked(headers, size) if _ranges_hold(found, headers) else None
    if asked is None:
        return Stream(found.chunks(), BYTES, headers={**about, "content-length": str(size)})
    first, stop = asked
    part = {"content-range": f"bytes {first}-{stop - 1}/{size}", "content-length": str(stop - first)}
    return Stream(found.chunks(first, stop), BYTES, 206, {**about, **part})


def blob_head(call: Call[bodies.BlobParameters]) -> Answer:
    """What a blob is, without its bytes."""
    found = _find(call)
    about = _about(found)
    if found.uri is not None:
        return Answer(b"", BYTES, 302, {**about, "location": found.uri, "cache-control": "no-store"})
    unchanged = _unchanged(found, call.headers)
    return unchanged or Answer(b"", BYTES, 200, {**about, "content-length": str(found.size)})


def _find(call: Call[bodies.BlobParameters]) -> Blob:
    said = call.said
    return call.graph.blob(
        said.type, key_of(said), said.property, kind=said.entity, branch=said.branch, at=said.at
    )


def _about(found: Blob) -> dict[str, str]:
    about = {
        "omnigraph-snapshot-id": found.commit_id,
        "omnigraph-selector": json.dumps(found.to_dict()["selector"]),
    }
    if found.etag is None:
        return about
    return {**about, "etag": f'"{found.etag}"', "accept-ranges": "bytes"}


def _unchanged(found: Blob, headers: Mapping[str, str]) -> Answer | None:
    """The answer of a conditional request whose condition decides it; None when the blob is to be sent.

    Raises BlobPreconditionFailed.
    """
    wanted = headers.get("if-match")
    if wanted is not None and wanted.strip() != "*":
        tags = _tags(wanted)
        if tags is None or (False, found.etag) not in tags:
            raise BlobPreconditionFailed(
                "the blob is another one by now",
                hint="read it again and decide again",
                details={"etag": f'"{found.etag}"'},
            )
    if found.etag is not None and is_known(found.etag, headers):
        return Answer(b"", BYTES, 304, {**_about(found), "content-length": str(found.size)})
    return None


def is_known(tag: str, headers: Mapping[str, str]) -> bool:
    """Whether the caller says with `If-None-Match` that this is what they have."""
    known = headers.get("if-none-match")
    if known is None:
        return False
    return known.strip() == "*" or tag in {each for _, each in _tags(known) or ()}


def _tags(header: str) -> list[tuple[bool, str | None]] | None:
    """The tags of a list, each weak or not; None when it is not a list of tags."""
    found = [_TAG.fullmatch(each.strip()) for each in header.split(",")]
    if not all(found):
        return None
    return [(each[1] is not None, each[2]) for each in found if each is not None]


def _ranges_hold(found: Blob, headers: Mapping[str, str]) -> bool:
    """Whether a range is about this blob: an `If-Range` names exactly it, or there is none."""
    condition = headers.get("if-range")
    return condition is None or _tags(condition) == [(False, found.etag)]


def _asked(headers: Mapping[str, str], size: int) -> tuple[int, int] | None:
    """The half-open range that is asked for; None unless exactly one is. Raises BlobRange."""
    match = _RANGE.fullmatch(headers.get("range", "").strip())
    if match is None or not (match[1] or match[2]):
        return None
    if match[1]:
        first = int(match[1])
        stop = min(int(match[2]) + 1, size) if match[2] else size
        if match[2] and int(match[2]) < first:
            return None
    else:
        first, stop = max(0, size - int(match[2])), size
    if first >= stop:
        raise BlobRange(
            f"the value has {size} bytes",
            details={"blob_range": {"start": first, "end": stop, "length": size}},
        )
    return first, stop
