"""Column changes without rows: add, rename, drop and nullability, as one metadata commit of a table.

Columns are told apart by their field numbers. A column that stays keeps its number under any name, and a new
one gets a number that the table never used, so that no file of an earlier column is read under its name.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from omnigraph.catalog.table_changes import ColumnMap
from omnigraph.core.errors import InternalError
from omnigraph.core.events import TableStaged, emit
from omnigraph.storage.handles import SnapshotHandle, StagedHandle, Stamp, lance_dataset
from omnigraph.storage.staging import Work
from omnigraph.storage.varints import as_varint, read_varint

if TYPE_CHECKING:
    from lance import LanceDataset, LanceOperation
    from lance.dataset import LanceSchema

_NAME: Final = 2
_ID: Final = 3
_PARENT: Final = 4
_NULLABLE: Final = 6
"""Members of the table format's message about one field."""
_NO_PARENT: Final = (1 << 64) - 1
_NUMBER: Final = 0
_BYTES: Final = 2
"""How a member is written: a number, or a length and bytes."""


def stage_columns(handle: SnapshotHandle, change: ColumnMap, stamp: Stamp) -> StagedHandle:
    """Prepare the commit that makes the change. It names the files the table has; no file is written."""
    dataset = lance_dataset(handle)
    operation = _operation(dataset, changed_schema(dataset, change), change, empty=handle.row_count == 0)
    emit(TableStaged(handle.table_key, "stage_columns", 0, 0))
    return StagedHandle(
        table_key=handle.table_key,
        primitive="stage_columns",
        base_version=handle.version,
        transaction_uuid=str(uuid.uuid4()),
        rows=0,
        rows_removed=0,
        bytes=0,
        files=(),
        _work=Work(operation, stamp, data_root=str(dataset.uri)),
    )


def _operation(
    dataset: "LanceDataset", schema: "LanceSchema", change: ColumnMap, *, empty: bool
) -> "LanceOperation.BaseOperation":
    from lance import LanceOperation  # noqa: PLC0415

    if empty:
        return LanceOperation.Overwrite(schema, [])
    if all(name in change.sources for name in change.schema.names):
        return LanceOperation.Project(schema, preserves_nullability=False)
    return LanceOperation.Merge([each.metadata for each in dataset.get_fragments()], schema)


def changed_schema(dataset: "LanceDataset", change: ColumnMap) -> "LanceSchema":
    """The schema of the table after the change, with the numbers of its fields."""
    import pyarrow as pa  # noqa: PLC0415
    from lance.dataset import LanceSchema  # noqa: PLC0415

    make, metadata, written = _parts(dataset.lance_schema)
    kept = _by_column([_Message.parsed(each) for each in written])
    taken = int(dataset.max_field_id)
    fields: list[bytes] = []
    for wanted in change.schema:
        source = change.sources.get(wanted.name)
        if source is None:
            _, _, fresh = _parts(LanceSchema.from_pyarrow(pa.schema([wanted])))
            messages = [_Message.parsed(each).moved_by(taken + 1) for each in fresh]
            taken += len(messages)
        elif source in kept:
            top, *below = kept[source]
            messages = [top.named(wanted.name, nullable=wanted.nullable), *below]
        else:
            raise InternalError(f"there is no column '{source}' to become '{wanted.name}'")
        fields.extend(each.written() for each in messages)
    made = make(metadata, *fields)
    if not made.to_pyarrow().equals(change.schema):
        raise InternalError(f"the columns would be {made.to_pyarrow()}, not {change.schema}")
    return made


def _parts(schema: Any) -> "tuple[Callable[..., LanceSchema], str, list[bytes]]":
    """What a schema is made from: its maker, its metadata, and one message per field."""
    make, (metadata, *fields) = schema.__reduce__()
    return make, metadata, fields


@dataclass(frozen=True, slots=True)
class _Message:
    """One field as the table format writes it: members by number, in order."""

    members: Sequence[tuple[int, int, Any]]

    @classmethod
    def parsed(cls, data: bytes) -> "_Message":
        return cls(list(_members(data)))

    def get(self, number: int, default: Any) -> Any:
        return next((value for found, _, value in self.members if found == number), default)

    def having(self, number: int, wire: int, value: Any) -> "_Message":
        """The message with another value of one member."""
        others = [each for each in self.members if each[0] != number]
        # What is zero or false is not written.
        fresh = [(number, wire, value)] if value else []
        return _Message(sorted([*others, *fresh], key=lambda each: each[0]))

    def named(self, name: str, *, nullable: bool) -> "_Message":
        """The same column under a name."""
        return self.having(_NAME, _BYTES, name.encode()).having(_NULLABLE, _NUMBER, int(nullable))

    def moved_by(self, distance: int) -> "_Message":
        """The field with a number that is greater by this much, and so its parent's."""
        parent = self.get(_PARENT, 0)
        moved = self.having(_ID, _NUMBER, self.get(_ID, 0) + distance)
        return moved if parent == _NO_PARENT else moved.having(_PARENT, _NUMBER, parent + distance)

    def written(self) -> bytes:
        parts: list[bytes] = []
        for number, wire, value in self.members:
            parts.append(as_varint(number << 3 | wire))
            if wire == _NUMBER:
                parts.append(as_varint(value))
            else:
                parts.extend((as_varint(len(value)), value))
        return b"".join(parts)


def _by_column(messages: Sequence[_Message]) -> dict[str, list[_Message]]:
    """Each column with the fields inside it; those follow it."""
    columns: dict[str, list[_Message]] = {}
    for each in messages:
        if each.get(_PARENT, 0) == _NO_PARENT:
            columns[each.get(_NAME, b"").decode()] = [each]
        else:
            columns[next(reversed(columns))].append(each)
    return columns


def _members(data: bytes) -> Iterator[tuple[int, int, Any]]:
    place = 0
    while place < len(data):
        tag, place = read_varint(data, place)
        value, place = read_varint(data, place)
        if tag & 7 == _BYTES:
            value, place = data[place : place + value], place + value
        elif tag & 7 != _NUMBER:
            raise InternalError(
                f"a field of a table has a member written in form {tag & 7}, which is unknown"
            )
        yield tag >> 3, tag & 7, value
