"""Column changes without rows: add, rename, drop and nullability, as one metadata commit of a table; and new
values of single columns, in files of their own.

Columns are told apart by their field numbers. A column that stays keeps its number under any name, and a new
one gets a number that the table never used, so that no file of an earlier column is read under its name.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from omnigraph.catalog.table_changes import ColumnMap
from omnigraph.core.errors import InternalError, OmnigraphError
from omnigraph.core.events import DurableOperation, TableStaged, emit
from omnigraph.core.late_dataclass import dataclass
from omnigraph.storage.datasets import DatasetPool
from omnigraph.storage.failures import substrate
from omnigraph.storage.handles import (
    Fragment,
    SnapshotHandle,
    StagedHandle,
    Stamp,
    lance_dataset,
    lance_fragment,
)
from omnigraph.storage.short_files import file_name, require_whole
from omnigraph.storage.staging import Work
from omnigraph.storage.varints import as_varint, read_varint
from omnigraph.storage.version_files import circumstances
from omnigraph.storage.views import CARRIER, seen, stored_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset, LanceOperation
    from lance.dataset import LanceSchema

BATCH_ROWS: Final = 64 * 1024
"""Rows whose new values are made at a time."""
_NAME: Final = 2
_ID: Final = 3
_PARENT: Final = 4
_NULLABLE: Final = 6
"""Members of the table format's message about one field."""
_NO_PARENT: Final = (1 << 64) - 1
_NUMBER: Final = 0
_BYTES: Final = 2
"""How a member is written: a number, or a length and bytes."""


def stage_columns(
    pool: DatasetPool,
    handle: SnapshotHandle,
    change: ColumnMap,
    stamp: Stamp,
    written: Sequence[Fragment] = (),
) -> StagedHandle:
    """Prepare the commit that makes the change. No file is written here.

    `written` are the fragments of the table with the files of the columns whose values change
    (`write_columns`).
    """
    dataset = lance_dataset(handle)
    schema = changed_schema(dataset, change)
    if change.written and handle.row_count:
        operation = _merged(dataset, schema, change, written)
    else:
        operation = _operation(dataset, schema, change, empty=handle.row_count == 0)
    names = [name for each in written for name in each.files]
    files = tuple(map(pool.root.local_path, names)) if pool.root.is_local else ()
    size = sum(each.bytes for each in written)
    emit(TableStaged(handle.table_key, "stage_columns", 0, size))
    return StagedHandle(
        table_key=handle.table_key,
        primitive="stage_columns",
        base_version=handle.version,
        transaction_uuid=str(uuid.uuid4()),
        rows=0,
        rows_removed=0,
        bytes=size,
        files=files,
        _work=Work(operation, stamp, data_root=str(dataset.uri)),
    )


def write_columns(
    pool: DatasetPool,
    handle: SnapshotHandle,
    number: int,
    columns: Sequence[str],
    make: "Callable[[pa.RecordBatch], pa.RecordBatch]",
) -> Fragment:
    """Write the values of new columns of one fragment to a file that nobody points at.

    `make` gets columns of some rows, as the handle shows them, and gives the new ones.
    Cost: one pass over those columns; memory does not follow the rows.
    """
    fragment = lance_fragment(handle, number)
    known = {file_name(file) for file in fragment.metadata.files}
    uri = str(lance_dataset(handle).uri)
    emit(DurableOperation("stage_rows", uri, "before"))
    failure: list[BaseException] = []

    view = handle.view
    stored = list(columns) if view is None else stored_columns(view, columns)

    def made(batch: "pa.RecordBatch") -> "pa.RecordBatch":
        try:
            return make(batch if view is None else seen(view, columns, batch))
        except BaseException as error:
            failure.append(error)
            raise

    try:
        with substrate(lambda: circumstances(pool, handle, writes=True)):
            metadata, _ = fragment.merge_columns(made, columns=stored or [CARRIER], batch_size=BATCH_ROWS)
    except OmnigraphError:
        if failure:
            raise failure[0] from None
        raise
    emit(DurableOperation("stage_rows", uri, "after"))
    fresh = [file for file in metadata.files if file_name(file) not in known]
    paths = {f"{uri}/data/{file_name(file)}": int(file.file_size_bytes or 0) for file in fresh}
    require_whole(paths, paths)
    prefix = f"{pool.root.uri}/"
    return Fragment(
        id=number,
        files=tuple(path.removeprefix(prefix) for path in paths),
        physical_rows=int(metadata.physical_rows),
        bytes=sum(paths.values()),
        metadata=json.dumps(metadata.to_json()),
    )


def outlived_fragments(handle: SnapshotHandle) -> list[int]:
    """The fragments with files that hold values of columns which the version does not have any longer."""
    dataset = lance_dataset(handle)
    _, _, written = _parts(dataset.lance_schema)
    known = {int(_Message.parsed(each).get(_ID, 0)) for each in written}
    return [
        int(each.fragment_id)
        for each in dataset.get_fragments()
        if any(not known.issuperset(file.fields) for file in each.metadata.files)
    ]


def _merged(
    dataset: "LanceDataset", schema: "LanceSchema", change: ColumnMap, written: Sequence[Fragment]
) -> "LanceOperation.BaseOperation":
    from lance import LanceOperation  # noqa: PLC0415
    from lance.fragment import FragmentMetadata  # noqa: PLC0415

    by_number = {each.id: FragmentMetadata.from_json(each.metadata) for each in written}
    numbers = list(dataset.fragment_ids())
    if list(by_number) != numbers:
        raise InternalError(f"columns of the fragments {list(by_number)} of {numbers} are there")
    expected = _numbers(schema, change.written)
    for each in by_number.values():
        found = each.files[-1].fields
        # Of a list only the field of its items is in a file.
        if not found or not expected.issuperset(found) or max(found) != max(expected):
            raise InternalError(f"a column file has the fields {found}, not {sorted(expected)}")
    return LanceOperation.Merge(list(by_number.values()), schema)


def _numbers(schema: "LanceSchema", names: Sequence[str]) -> set[int]:
    """The numbers of columns and of the fields inside them."""
    _, _, written = _parts(schema)
    columns = _by_column([_Message.parsed(each) for each in written])
    return {int(each.get(_ID, 0)) for name in names for each in columns[name]}


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
    fresh: dict[str, list[_Message]] = {}
    nulls = [name for name in change.schema.names if name not in change.sources]
    # In the order in which their files are written, those without a file last.
    for name in dict.fromkeys((*change.written, *nulls)):
        _, _, made = _parts(LanceSchema.from_pyarrow(pa.schema([change.schema.field(name)])))
        fresh[name] = [_Message.parsed(each).moved_by(taken + 1) for each in made]
        taken += len(made)
    fields: list[bytes] = []
    for wanted in change.schema:
        source = change.sources.get(wanted.name)
        if wanted.name in fresh:
            messages = fresh[wanted.name]
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
