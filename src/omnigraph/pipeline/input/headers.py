"""What is wrong with the first line of a CSV file in which no column of its type is found.

A file may be separated by something else, name its columns in another way, or have no header at all; each has
another way out.
"""

from collections.abc import Callable, Sequence
from typing import Final

from omnigraph.catalog.schema import EdgeType, TableType
from omnigraph.core.errors import BadRequest

_SEPARATORS: Final = {";": "';'", "\t": "$'\\t'", "|": "'|'", ",": ","}
"""What else stands between cells, as a shell takes it."""
_ENDS_ELSEWHERE: Final = {"source": "from", "target": "to", "start": "from", "end": "to"}
"""What other programs call the ends of an edge."""


def without_columns(
    names: Sequence[str], table_type: TableType, is_known: Callable[[str], bool]
) -> BadRequest:
    """The error about a header none of whose names the type has, with the way out that fits it."""
    said = f"the first line has no column of {table_type.name}"
    for separator, written in _SEPARATORS.items():
        cells = [cell.strip().strip('"') for name in names for cell in name.split(separator)]
        if len(cells) > len(names) and any(map(is_known, cells)):
            between = "a tab" if separator == "\t" else written
            return BadRequest(
                f"{said}: its cells seem to be separated by {between}",
                hint=f"name what stands between cells: --delimiter {written} (delimiter=)",
            )
    known = _spelled(table_type)
    meant = {name: known[_plain(name)] for name in names if _plain(name) in known}
    if meant:
        renames = " ".join(f"--rename {_quoted(f'{name}={to}')}" for name, to in meant.items())
        return BadRequest(f"{said}: it names them differently", hint=f"{renames} (rename=)")
    return BadRequest(
        f"{said}: the file seems to have no header",
        hint=f"name the columns in their order: --columns a,b,c (columns=); {table_type.name} has "
        + ", ".join(dict.fromkeys(known.values())),
    )


def _spelled(table_type: TableType) -> dict[str, str]:
    """The columns of a type by how they may be spelled elsewhere."""
    known = {_plain(prop.name): prop.name for prop in table_type.properties}
    if isinstance(table_type, EdgeType):
        return (
            {"from": "from", "to": "to"}
            | known
            | {k: v for k, v in _ENDS_ELSEWHERE.items() if k not in known}
        )
    return known


def _plain(name: str) -> str:
    return "".join(each for each in name.casefold() if each.isalnum())


def _quoted(text: str) -> str:
    return f"'{text}'" if " " in text else text
