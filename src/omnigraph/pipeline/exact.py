"""The exact parser: one record at a time, every rule named.

Runs only over groups of lines that the columnar parser could not take: because a record is wrong, or because
it uses a form a column cannot have (a date as a number in one record and as text in the next).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from omnigraph.catalog.schema import Catalog, EdgeType, NodeType, Property, TableType
from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_BOUNDS, PropertyType, ScalarKind
from omnigraph.pipeline.convert import TEMPORAL_KINDS, expectation, shown

RESERVED_NAMES: Final = frozenset(
    {
        "_rowid",
        "_rowaddr",
        "_rowoffset",
        "_row_created_at_version",
        "_row_last_updated_at_version",
        "_tombstone",
    }
)
_ENDPOINT_COLUMNS: Final = frozenset({"src", "dst"})


class RecordRefused(ValueError):  # noqa: N818 - it carries a sentence for the user, it is not a fault
    """A record breaks the format; the message says how."""

    def __init__(self, message: str, *, property_name: str | None = None) -> None:
        super().__init__(message)
        self.property = property_name


@dataclass(slots=True)
class ExactRows:
    """Accepted records of one type, as Python values per column; `lines` are their line numbers."""

    type: TableType
    lines: list[int] = field(default_factory=list[int])
    ids: list[str | None] = field(default_factory=list[str | None])
    sources: list[str] = field(default_factory=list[str])
    targets: list[str] = field(default_factory=list[str])
    values: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    present: dict[str, list[bool]] = field(default_factory=dict[str, list[bool]])

    def __post_init__(self) -> None:
        for prop in self.type.properties:
            self.values[prop.name] = []
            self.present[prop.name] = []

    def add(self, line: int, record: dict[str, Any]) -> None:
        """Take one record that `checked` accepted."""
        data = record.get("data", {})
        self.lines.append(line)
        self.ids.append(data.get("id"))
        if isinstance(self.type, EdgeType):
            self.sources.append(record["from"])
            self.targets.append(record["to"])
        for prop in self.type.properties:
            self.values[prop.name].append(data.get(prop.name))
            self.present[prop.name].append(prop.name in data)


def decode(line: bytes) -> Any:
    """The JSON value of one line. Raises RecordRefused for anything but exactly one strict JSON value."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise RecordRefused("the line is not valid UTF-8") from None
    try:
        value = json.loads(text, object_pairs_hook=_members, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise RecordRefused(f"not one JSON object: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise RecordRefused("the JSON is nested too deeply") from None
    _refuse_lone_surrogates(value)
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RecordRefused(f"the member '{twice}' occurs twice")
    return members


def _no_constant(name: str) -> Any:
    raise RecordRefused(f"{name} is not JSON")


def _refuse_lone_surrogates(value: Any) -> None:
    """JSON escapes can spell half of a surrogate pair, which no stored text can hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise RecordRefused("a string holds half of a surrogate pair") from None


def type_of_record(record: Any, catalog: Catalog) -> TableType:
    """The type a record names. Raises RecordRefused when it names none, two, or one nobody knows."""
    if not isinstance(record, dict):
        raise RecordRefused("a record is a JSON object")
    named = [name for name in ("type", "edge") if name in record]
    if len(named) != 1:
        found = "both" if named else "neither"
        raise RecordRefused(f"a record has exactly one of 'type' and 'edge', this one has {found}")
    name = record[named[0]]
    if not isinstance(name, str):
        raise RecordRefused(f"'{named[0]}' is a string")
    return resolve(named[0], name, catalog)


def resolve(member: str, name: str, catalog: Catalog) -> TableType:
    """The node type (exact spelling) or edge type (any case) of that name."""
    found = catalog.node(name) if member == "type" else catalog.edge(name)
    if found is None:
        kind = "node" if member == "type" else "edge"
        raise RecordRefused(f"unknown {kind} type '{name}'")
    return found


def checked(record: dict[str, Any], table_type: TableType) -> dict[str, Any]:
    """The record, once its members and the JSON type of every value are right. Raises RecordRefused."""
    is_edge = isinstance(table_type, EdgeType)
    allowed = ("edge", "from", "to", "data") if is_edge else ("type", "data")
    for name in record:
        if name not in allowed:
            raise RecordRefused(f"unknown member '{name}' beside {', '.join(allowed)}")
    if is_edge:
        for name in ("from", "to"):
            if not isinstance(record.get(name), str):
                raise RecordRefused(f"'{name}' is required and a string")
    data = record.get("data", {})
    if not isinstance(data, dict):
        raise RecordRefused("'data' is an object")
    _check_names(data, table_type)
    for prop in table_type.properties:
        value = data.get(prop.name)
        if value is not None:
            check_value(value, prop)
    return record


def _check_names(data: dict[str, Any], table_type: TableType) -> None:
    for name, value in data.items():
        if name == "id":
            if value is not None and not isinstance(value, str):
                raise RecordRefused("'id' is a string")
        elif name in RESERVED_NAMES:
            raise RecordRefused(f"'{name}' is a reserved name")
        elif not isinstance(table_type, NodeType) and name in _ENDPOINT_COLUMNS:
            raise RecordRefused(f"'{name}' is given by 'from' and 'to', not inside 'data'")
        elif table_type.get(name) is None:
            raise RecordRefused(f"unknown field '{name}' for {table_type.name}", property_name=name)


def check_value(value: Any, prop: Property) -> None:
    """Refuse a JSON value whose form the property does not take; conversion judges the content."""
    type_ = prop.type
    if type_.is_list or type_.is_vector:
        if not isinstance(value, list):
            message = f"{prop.name}: {shown(value)} is not a list"
            raise RecordRefused(message, property_name=prop.name)
        element = PropertyType(type_.kind)
        _check_elements(value, element, prop)
        return
    if not fits(value, type_):
        raise RecordRefused(
            f"{prop.name}: {shown(value)} is not {expectation(type_)}", property_name=prop.name
        )


def _check_elements(values: Sequence[Any], element: PropertyType, prop: Property) -> None:
    for value in values:
        if value is None or not fits(value, element):
            message = f"{prop.name}: the element {shown(value)} is not {expectation(element)}"
            raise RecordRefused(message, property_name=prop.name)


def fits(value: Any, type_: PropertyType) -> bool:
    """Whether the JSON form of a scalar is one the type takes."""
    kind = type_.kind
    if kind is ScalarKind.BOOL:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind in INTEGER_BOUNDS:
        low, high = INTEGER_BOUNDS[kind]
        return isinstance(value, int) and low <= value <= high
    if kind in FLOAT_KINDS:
        return isinstance(value, (int, float)) and abs(value) <= _LARGEST_FLOAT
    if kind in TEMPORAL_KINDS:
        bits = 31 if kind is ScalarKind.DATE else 63
        return isinstance(value, str) or (isinstance(value, int) and -(2**bits) <= value < 2**bits)
    return isinstance(value, str)


_LARGEST_FLOAT: Final = 1.7976931348623157e308
