"""Commands that read one blob."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from omnigraph.cli import output
from omnigraph.cli.opening import reading
from omnigraph.cli.options import At, Json, ReadBranch, Store, check_one_state, teach
from omnigraph.core.errors import BlobRange, IoFailure, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omnigraph.engine.entities.blob_cells import Blob


class EntityKind(StrEnum):
    """What the entity is."""

    NODE = "node"
    EDGE = "edge"


_BYTES_MAX: Final = 2**64 - 1

Entity = Annotated[EntityKind, typer.Argument(metavar="ENTITY", help="node or edge.")]
TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="The type of the entity.")]
EntityId = Annotated[str, typer.Argument(metavar="ID", help="The id of the entity.")]
PropertyName = Annotated[str, typer.Argument(metavar="PROPERTY", help="The blob property.")]
Offset = Annotated[int, typer.Option("--offset", metavar="N", min=0, help="The first byte.")]
Length = Annotated[
    int | None, typer.Option("--length", metavar="N", help="At most this many bytes; all if not given.")
]
Out = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write to a file, not to stdout.")]


def register(blob_app: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
    blob_app.command(
        "get",
        help=teach(
            "Write the bytes of a blob.",
            "omnigraph blob get node Report r1 scan --store kb.omni > r1.pdf",
            "omnigraph blob get node Report r1 scan --offset 0 --length 100 --out head.bin --store kb.omni",
            more="The address of an external blob is named and not followed.",
        ),
    )(get)
    blob_app.command(
        "stat",
        help=teach(
            "Say how large a blob is, or where an external one is kept.",
            "omnigraph blob stat node Report r1 scan --store kb.omni",
        ),
    )(stat)


def get(
    entity: Entity,
    type_name: TypeName,
    entity_id: EntityId,
    property_name: PropertyName,
    offset: Offset = 0,
    length: Length = None,
    out: Out = None,
    store: Store = None,
    branch: ReadBranch = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Write the bytes of a blob."""
    del as_json  # bytes are bytes; only a failure has another form
    if length is not None and not 0 < length <= _BYTES_MAX - offset:
        raise UsageError(f"--length takes a positive number of bytes, not {length}")
    check_one_state(branch, at)
    with reading(store) as graph:
        found = graph.blob(type_name, entity_id, property_name, kind=entity.value, branch=branch, at=at)
        pieces = _range(found, offset, length)
    if out is None:
        for piece in pieces:
            output.write_bytes(piece)
        return
    try:
        # Opened now: whatever failed before leaves the file as it was.
        with Path(out).open("wb") as file:
            file.writelines(pieces)
    except OSError as error:
        raise IoFailure(f"'{out}' cannot be written: {error.strerror}") from error


def _range(blob: "Blob", offset: int, length: int | None) -> "Iterator[bytes]":
    """What the user asked for; an end beyond the value means the end of the value."""
    if blob.size is None:
        return blob.chunks()  # says where it is kept
    if blob.size and offset >= blob.size:
        raise BlobRange(
            f"the value has {blob.size} bytes; byte {offset} is behind its end",
            details={"blob_range": {"start": offset, "end": offset + (length or 0), "length": blob.size}},
        )
    end = blob.size if length is None else min(blob.size, offset + length)
    return blob.chunks(offset, end)


def stat(
    entity: Entity,
    type_name: TypeName,
    entity_id: EntityId,
    property_name: PropertyName,
    store: Store = None,
    branch: ReadBranch = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Say what a blob is."""
    check_one_state(branch, at)
    with reading(store) as graph:
        found = graph.blob(type_name, entity_id, property_name, kind=entity.value, branch=branch, at=at)
    asked = {"snapshot": at} if at is not None else {"branch": branch or "main"}
    if as_json:
        output.document({**found.to_dict(), "target": {**asked, "resolved_snapshot": found.commit_id}})
    elif found.uri is not None:
        output.line(f"external  {found.uri}")
    else:
        output.line(f"managed   {found.size:,} bytes, etag {found.etag}")
