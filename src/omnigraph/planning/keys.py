"""The id of a node from its key: in the key's own type, or as a text that spells it."""

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

from omnigraph.catalog.canonical import canonical_text, tuple_text
from omnigraph.catalog.scalars import Misfit, as_instant, parse_date, parse_datetime
from omnigraph.catalog.schema import NodeType, TableType
from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_BOUNDS, PropertyType, ScalarKind, arrow_type
from omnigraph.core.errors import BadRequest
from omnigraph.planning.values import Value, fit_scalar

EntityKey: TypeAlias = str | int | float | dt.date | Mapping[str, Any]
"""What names an entity: its id as text, the key of a node in its own type, or the values of a key of several
properties by name."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,25}")


def own_type(type_: TableType) -> PropertyType | None:
    """The type of a key that is one property and no String: its ids are the texts of something else."""
    if not isinstance(type_, NodeType) or len(type_.key) != 1:
        return None
    found = type_.property_named(type_.key[0]).type
    return None if found.is_string else found


def key_text(value: Value, type_: PropertyType) -> str:
    """The id that a key of this type has. A text that spells no value of the type is an id already.

    Raises Misfit for a value of another type.
    """
    if isinstance(value, str):
        try:
            value = _spelled(value, type_.kind)
        except (Misfit, ValueError):
            return str(value)
    fitted = fit_scalar(value, type_.kind)
    if type_.kind in INTEGER_BOUNDS:
        return str(fitted)
    import pyarrow as pa  # noqa: PLC0415  most keys are texts or whole numbers

    return canonical_text(pa.array([fitted], arrow_type(type_)), type_)[0].as_py()


def id_text(value: Value, type_: PropertyType) -> str:
    """As `key_text`; a value that no key of the type can have gives an id that no node has."""
    try:
        return key_text(value, type_)
    except Misfit:
        return str(value)


def _spelled(text: str, kind: ScalarKind) -> Value:
    if kind in INTEGER_BOUNDS and _INTEGER.fullmatch(text):
        return int(text)
    if kind in FLOAT_KINDS:
        return float(text)
    match kind:
        case ScalarKind.DATE:
            return parse_date(text)
        case ScalarKind.DATETIME:
            return parse_datetime(text)
        case _:
            raise Misfit("the text is an id")


def id_of(type_: TableType, given: object) -> str:
    """The id of the entity that a caller names. Raises BadRequest when it can name none of the type."""
    if hasattr(given, "item"):  # a number of numpy
        given = cast("Any", given).item()
    own = own_type(type_)
    reason = "its id is a text"
    try:
        if isinstance(type_, NodeType) and isinstance(given, Mapping):
            return _id_of_several(type_, cast("Mapping[str, Any]", given))
        if own is not None:
            return key_text(_moment(given), own)
        if isinstance(given, str):
            return given
    except Misfit as misfit:
        reason = f"its key is of type {own.text()}; {misfit}" if own is not None else str(misfit)
    raise BadRequest(
        f"{given!r} names no {type_.name}: {reason}",
        hint="give the id as text, the key in its own type, or the values of several key properties by name",
    )


def _moment(given: Any) -> Any:
    return as_instant(given) if isinstance(given, dt.datetime) else given


def _id_of_several(node: NodeType, given: Mapping[str, Any]) -> str:
    """The id that the values of all key properties give. Raises Misfit."""
    if not node.key or set(given) != set(node.key):
        raise Misfit(f"its key is {', '.join(node.key) or 'not declared'}")
    texts: list[str] = []
    for name in node.key:
        type_, value = node.property_named(name).type, given[name]
        if not type_.is_string:
            texts.append(key_text(_moment(value), type_))
        elif isinstance(value, str):
            texts.append(value)
        else:
            raise Misfit(f"{name} is a String")
    if len(texts) == 1:
        return texts[0]
    import pyarrow as pa  # noqa: PLC0415  as above

    return tuple_text([pa.array([text], pa.string()) for text in texts])[0].as_py()
