"""Rows of a query as text: table, key and value lines, CSV, JSON lines."""

import json
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from omnigraph.engine.read.result import Rows

COLUMN_WIDTH_MAX: Final = 80
COLUMN_WIDTH_MIN: Final = 8
"""A cap below this would leave nothing to read."""
NO_ROWS: Final = "(no rows)"


def cell_text(value: Any) -> str:
    """A value in a text format: strings bare, null as `null`, everything else as compact JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def first_line(rows: "Rows") -> str:
    """How many rows, and from where."""
    where = f"branch {rows.branch}" if rows.snapshot is None else f"snapshot {rows.snapshot}"
    count = f"{len(rows)} row{'' if len(rows) == 1 else 's'}"
    return f"{count} from {where} via {rows.query_name}"


def table_lines(rows: "Rows", *, width_max: int = COLUMN_WIDTH_MAX, wrap: bool = False) -> Iterator[str]:
    """The result as a table for people; a cell wider than `width_max` is cut, or goes on in the next line."""
    yield first_line(rows)
    if not rows.columns:
        yield NO_ROWS
        return
    cells = [[_one_line(cell_text(value)) for value in row] for row in value_rows(rows)]
    cap = max(COLUMN_WIDTH_MIN, width_max)
    widths = [
        min(cap, max([display_width(name), *(display_width(row[index]) for row in cells)]))
        for index, name in enumerate(rows.columns)
    ]
    yield _joined(rows.columns, widths)
    yield "  ".join("-" * width for width in widths)
    for row in cells:
        if wrap:
            yield from _wrapped(row, widths)
        else:
            yield _joined(row, widths)


def value_rows(rows: "Rows") -> Iterator[tuple[Any, ...]]:
    """The rows by position: two columns may have one name, and both are shown."""
    from omnigraph.engine.read.result import json_values

    return zip(*(json_values(column) for column in rows.table.columns), strict=True)


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (_fitted(cell, width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()


def _wrapped(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    pieces = [_pieces(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for number in range(max(map(len, pieces))):
        yield _joined([each[number] if number < len(each) else "" for each in pieces], widths)


def _pieces(text: str, width: int) -> list[str]:
    """The text in pieces of at most this width."""
    pieces = [""]
    left = width
    for char in text:
        taken = _character_width(char)
        if taken > left:
            pieces.append("")
            left = width
        pieces[-1] += char
        left -= taken
    return pieces


def _one_line(text: str) -> str:
    """The text on one line. Control characters are shown escaped: data must not drive the terminal."""
    if text.isprintable():
        return text
    return "".join(
        f"\\x{ord(char):02x}" if unicodedata.category(char) == "Cc" else char
        for char in text.replace("\r\n", "\\n").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    )


def display_width(text: str) -> int:
    """Terminal columns of a text: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_character_width(char) for char in text)


def _character_width(char: str) -> int:
    # Marks, joiners and selectors change the character before them and take no place of their own.
    if unicodedata.category(char) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def _fitted(text: str, width: int) -> str:
    """The text at exactly this width, cut with an ellipsis when it is longer."""
    taken = display_width(text)
    if taken <= width:
        return text + " " * (width - taken)
    kept: list[str] = []
    left = width - 1
    for char in text:
        left -= _character_width(char)
        if left < 0:
            break
        kept.append(char)
    cut = "".join(kept) + "…"
    return cut + " " * (width - display_width(cut))


def kv_lines(rows: "Rows") -> Iterator[str]:
    """One block of `column: value` lines per row."""
    yield first_line(rows)
    if len(rows) == 0:
        yield NO_ROWS
    for number, row in enumerate(value_rows(rows), 1):
        if number > 1:
            yield ""
        yield f"row {number}"
        for name, value in zip(rows.columns, row, strict=True):
            yield f"{name}: {_one_line(cell_text(value))}"


def csv_lines(rows: "Rows", *, null: str = "null") -> Iterator[str]:
    """Header and rows; a field is quoted only when it must be."""
    yield ",".join(map(_csv_field, rows.columns))
    for row in value_rows(rows):
        yield ",".join(null if value is None else _csv_field(cell_text(value)) for value in row)


def _csv_field(text: str) -> str:
    if any(mark in text for mark in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def jsonl_lines(rows: "Rows", *, with_metadata: bool = False) -> Iterator[str]:
    """One object per row; the metadata object comes first when it is asked for."""
    if with_metadata:
        about = {name: value for name, value in rows.envelope().items() if name != "rows"}
        yield json.dumps({"kind": "metadata", **about}, ensure_ascii=False)
    for row in rows.json_rows():
        yield json.dumps(row, ensure_ascii=False)
