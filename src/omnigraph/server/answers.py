"""What handlers give back, and how it becomes bytes. Everything here runs in a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import orjson

from omnigraph.core.limits import RESPONSE_BATCH_ROWS, RESPONSE_ROWS_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from omnigraph.engine.read.result import Rows

JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    content: bytes
    media_type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that is made piece by piece. Each piece is asked for when the one before it has left."""

    pieces: Iterator[bytes]
    media_type: str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def document(value: Mapping[str, Any]) -> Answer:
    """One JSON object."""
    return Answer(orjson.dumps(value))


def listed(about: Mapping[str, Any], name: str, items: Iterator[Mapping[str, Any]]) -> Stream:
    """One JSON object whose last member is a list that may be long."""
    return Stream(_listed_pieces(about, name, items), JSON)


def _listed_pieces(
    about: Mapping[str, Any], name: str, items: Iterator[Mapping[str, Any]]
) -> Iterator[bytes]:
    head = orjson.dumps(about)[:-1] + (b"," if about else b"")
    yield head + orjson.dumps(name) + b":["
    first = True
    while part := list(islice(items, RESPONSE_ROWS_AT_ONCE)):
        yield (b"" if first else b",") + orjson.dumps(part)[1:-1]
        first = False
    yield b"]}"


def rows_as_json(rows: Rows) -> Answer | Stream:
    """The envelope of a result; a long one in pieces."""
    if len(rows) <= RESPONSE_ROWS_AT_ONCE:
        return Answer(orjson.dumps(rows.envelope()))
    return Stream(_json_pieces(rows), JSON)


def _json_pieces(rows: Rows) -> Iterator[bytes]:
    head = rows.head()
    commit = head.pop("graph_commit_id")
    yield orjson.dumps(head)[:-1] + b',"rows":['
    for start in range(0, len(rows), RESPONSE_ROWS_AT_ONCE):
        part = orjson.dumps(rows.json_rows(start, start + RESPONSE_ROWS_AT_ONCE))[1:-1]
        yield (b"," if start else b"") + part
    yield b'],"graph_commit_id":' + orjson.dumps(commit) + b"}"


def rows_as_arrow(rows: Rows) -> Stream:
    """The result as an Arrow stream; what the envelope says about it is in the metadata of the schema."""
    return Stream(_arrow_pieces(rows), ARROW)


def _arrow_pieces(rows: Rows) -> Iterator[bytes]:
    import pyarrow as pa  # noqa: PLC0415  only this needs it

    table = rows.to_arrow()
    about = {"omnigraph": orjson.dumps(rows.head()).decode()}
    sink = _Sink()
    with pa.ipc.new_stream(sink, table.schema.with_metadata(about)) as writer:
        yield sink.taken()
        for batch in table.to_batches(max_chunksize=RESPONSE_BATCH_ROWS):
            writer.write_batch(batch)
            yield sink.taken()
    yield sink.taken()


class _Sink:
    """A file that gives what was written to it."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: Any) -> int:
        """Keep the part."""
        self._parts.append(bytes(part))
        return len(part)

    def flush(self) -> None:
        """Nothing is held back."""

    def taken(self) -> bytes:
        """All parts since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)
