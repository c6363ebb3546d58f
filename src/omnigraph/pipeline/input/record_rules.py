"""The exact parser: one record at a time, every rule named.

Runs only over groups of lines that the columnar parser could not take: because a record is wrong, or because
it uses a form a column cannot have (a date as a number in one record and as text in the next).
"""

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, cast

from omnigraph.catalog.schema import Catalog, EdgeType, NodeType, Property, TableType
from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_BOUNDS, PropertyType, ScalarKind
from omnigraph.language.diagnostics import near_names
from omnigraph.pipeline.input.convert import TEMPORAL_KINDS, expectation, shown
from omnigraph.pipeline.input.utf8 import IN_UTF8
from omnigraph.planning.keys import own_type

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
_OBJECT_PER_LINE: Final = (
    "JSON lines have one whole object on each line; another format is named by --format and --type"
)
_FORM_OF_RECORDS: Final = (
    'a node is {"type": ..., "data": {...}}, an edge {"edge": ..., "from": ..., "to": ..., "data": {...}}'
)


class RecordRefused(ValueError):  # noqa: N818 - it carries a sentence for the user, it is not a fault
    """A record breaks the format; the message says how."""

    def __init__(self, message: str, *, property_name: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.property = property_name
        self.hint = hint


@dataclass(slots=True)
class ExactRows:
    """Accepted records of one type, as Python values per column; `lines` are their line numbers."""

    type: TableType
    lines: list[int] = field(default_factory=list[int])
    ids: list[str | None] = field(default_factory=list[str | None])
    sources: list[Any] = field(default_factory=list[Any])
    targets: list[Any] = field(default_factory=list[Any])
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
        raise RecordRefused("the line is not valid UTF-8", hint=IN_UTF8) from None
    try:
        value = json.loads(
            text, object_pairs_hook=_members, parse_constant=_no_constant, parse_int=_whole_number
        )
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at")
        message = f"not one JSON object: {reason} at column {error.colno}"
        raise RecordRefused(message, hint=_OBJECT_PER_LINE) from None
    except RecursionError:
        raise RecordRefused(_TOO_DEEP) from None
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


class _MinusZero(int):
    """`-0`: zero for an integer, negative zero for a float, as every other reader takes it."""

    def __float__(self) -> float:
        return -0.0


_MINUS_ZERO: Final = _MinusZero()
_TOO_DEEP: Final = "the JSON is nested too deeply"
_DIGITS_MAX: Final = 400
"""No property holds a number with more."""


def _whole_number(text: str) -> int | float:
    if len(text) > _DIGITS_MAX:
        return float(text)  # infinite: Python does not even read an integer of some thousand digits
    return _MINUS_ZERO if text == "-0" else int(text)


def _refuse_lone_surrogates(value: Any) -> None:
    """JSON escapes can spell half of a surrogate pair, which no stored text can hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise RecordRefused("a string holds half of a surrogate pair") from None
    except RecursionError:  # what writes nests a little less deeply than what reads
        raise RecordRefused(_TOO_DEEP) from None


def type_of_record(record: Any, catalog: Catalog) -> TableType:
    """The type a record names. Raises RecordRefused when it names none, two, or one nobody knows."""
    if not isinstance(record, dict):
        raise RecordRefused("a record is a JSON object", hint=_OBJECT_PER_LINE)
    named = [name for name in ("type", "edge") if name in record]
    if len(named) != 1:
        found = "both" if named else "neither"
        message = f"a record has exactly one of 'type' and 'edge', this one has {found}"
        raise RecordRefused(message, hint=_FORM_OF_RECORDS)
    name = cast("Any", record[named[0]])
    if not isinstance(name, str):
        raise RecordRefused(f"'{named[0]}' is a string")
    return resolve(named[0], name, catalog)


def resolve(member: str, name: str, catalog: Catalog) -> TableType:
    """The node type (exact spelling) or edge type (any case) of that name."""
    found = catalog.node(name) if member == "type" else catalog.edge(name)
    if found is None:
        kind = "node" if member == "type" else "edge"
        known = tuple(catalog.nodes if member == "type" else catalog.edges)
        other = catalog.edge(name) if member == "type" else catalog.node(name)
        hint = None if other is None else f"{other.name} is a type of {other.kind.value}s; {_FORM_OF_RECORDS}"
        raise RecordRefused(f"unknown {kind} type '{name}'{meant(name, known)}", hint=hint)
    return found


def checked(record: dict[str, Any], table_type: TableType, catalog: Catalog) -> dict[str, Any]:
    """The record, once its members and the JSON type of every value are right. Raises RecordRefused."""
    is_edge = isinstance(table_type, EdgeType)
    allowed = ("edge", "from", "to", "data") if is_edge else ("type", "data")
    for name in record:
        if name not in allowed:
            message = f"unknown member '{name}' beside {', '.join(allowed)}"
            raise RecordRefused(message, hint=_FORM_OF_RECORDS)
    if isinstance(table_type, EdgeType):
        for name, node in (("from", table_type.source), ("to", table_type.target)):
            _check_end(name, record.get(name), catalog.nodes[node])
    data = record.get("data", {})
    if not isinstance(data, dict):
        raise RecordRefused("'data' is an object")
    values = cast("dict[str, Any]", data)
    _check_names(values, table_type)
    for prop in table_type.properties:
        value = values.get(prop.name)
        misfit = None if value is None else value_misfit(value, prop)
        if misfit is not None:
            raise RecordRefused(f"{table_type.name}.{misfit}", property_name=prop.name)
    return record


def _check_end(name: str, value: Any, node: NodeType) -> None:
    """Raises RecordRefused unless the value is an id, or a key in its own type."""
    own = own_type(node)
    if isinstance(value, str) or (own is not None and value is not None and fits(value, own)):
        return
    what = f"the id of a node of {node.name}, a string"
    if own is not None:
        what += f", or its key, {expectation(own)}"
    raise RecordRefused(f"'{name}' is required: {what}" if value is None else f"'{name}' is {what}")


def _check_names(data: dict[str, Any], table_type: TableType) -> None:
    for name, value in data.items():
        if name == "id":
            if not isinstance(value, str):
                raise RecordRefused("'id' is a string")
        elif name in RESERVED_NAMES:
            raise RecordRefused(f"'{name}' is a reserved name")
        elif not isinstance(table_type, NodeType) and name in _ENDPOINT_COLUMNS:
            raise RecordRefused(f"'{name}' is given by 'from' and 'to', not inside 'data'")
        elif table_type.get(name) is None:
            raise RecordRefused(unknown_field(name, table_type), property_name=name)


def unknown_field(name: str, table_type: TableType) -> str:
    """The sentence about a property the type does not have."""
    near = meant(name, tuple(prop.name for prop in table_type.properties))
    return f"unknown field '{name}' for {table_type.name}{near}"


@lru_cache(maxsize=256)
def meant(name: str, known: tuple[str, ...]) -> str:
    """The end of a sentence about an unknown name: the nearest known one.

    Kept, because every record of an input may have the same slip.
    """
    near = near_names(name, known)
    return f"; did you mean '{near[0]}'?" if near else ""


def value_misfit(value: Any, prop: Property) -> str | None:
    """What is wrong with the form of a JSON value of a property, or None; conversion judges the content."""
    type_ = prop.type
    if not (type_.is_list or type_.is_vector):
        return None if fits(value, type_) else f"{prop.name}: {shown(value)} is not {expectation(type_)}"
    if not isinstance(value, list):
        return f"{prop.name}: {shown(value)} is not a list"
    element = PropertyType(type_.kind)
    for item in cast("list[Any]", value):
        if item is None or not fits(item, element):
            return f"{prop.name}: the element {shown(item)} is not {expectation(element)}"
    return None


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
