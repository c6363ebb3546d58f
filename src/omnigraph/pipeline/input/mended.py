"""Lines of `rejects.jsonl` as input: a record that was set aside is loaded again once it is mended."""

from datetime import date
from typing import Any, Final, cast

import orjson
import pyarrow as pa

from omnigraph.catalog.schema import Catalog, EdgeType, TableType
from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_BOUNDS, ScalarKind
from omnigraph.pipeline.input.csv_cells import from_cells

BEGINNING: Final = b'{"file":'
"""How such a line begins."""
_ENDS: Final = {"from": "from", "src": "from", "to": "to", "dst": "to"}
_TYPED: Final = frozenset({ScalarKind.BOOL, ScalarKind.DATE, *INTEGER_BOUNDS, *FLOAT_KINDS})


def mended(line: bytes, catalog: Catalog) -> bytes | None:
    """The record of such a line as a plain one; None for any other line, and for a record that is a text."""
    try:
        entry: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(entry, dict):
        return None
    members = cast("dict[str, Any]", entry)
    record = members.get("record")
    if not isinstance(record, dict) or "reasons" not in members:
        return None
    name = members.get("type")
    found = None if name is None else catalog.node(name) or catalog.edge(name)
    if found is None:  # of JSON lines, or of a type that is not there any more
        return orjson.dumps(record if name is None else {"type": name, "data": record})
    return orjson.dumps(_of_columns(cast("dict[str, Any]", record), found))


def _of_columns(columns: dict[str, Any], table_type: TableType) -> dict[str, Any]:
    """A record of the columns of a file of one type."""
    edge = isinstance(table_type, EdgeType)
    ends: dict[str, Any] = {}
    data: dict[str, Any] = {}
    for name, value in columns.items():
        if edge and name in _ENDS:
            ends[_ENDS[name]] = value
        elif name != "id" or value is not None:
            data[name] = _value(name, value, table_type)
    return (
        {"edge": table_type.name, **ends, "data": data} if edge else {"type": table_type.name, "data": data}
    )


def _value(name: str, value: Any, table_type: TableType) -> Any:
    """The value; a text that spells something else of the property's type as that, as in a cell of CSV."""
    prop = table_type.get(name)
    if prop is None or not isinstance(value, str):
        return value
    if prop.type.is_scalar and prop.type.kind not in _TYPED:
        return value
    converted = from_cells(pa.array([value], pa.string()), prop).column[0].as_py()
    # A day with a midnight behind it is one in a cell only.
    spelled = converted.isoformat() if isinstance(converted, date) else converted
    return value if spelled is None else spelled
