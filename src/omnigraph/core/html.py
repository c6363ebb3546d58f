"""Small pieces of HTML for notebooks. Everything that comes from data is escaped here and nowhere else."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

CELL_CHARACTERS_MAX: Final = 200
"""Longer text is cut: a notebook shows what a value is, not all of it."""

_NUMBER: Final = ' style="text-align:right"'
_TEXT: Final = ' style="text-align:left"'


def cell_text(value: Any) -> str:
    """A value for people, cut when it is long; not escaped yet."""
    if value is None:
        return "null"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= CELL_CHARACTERS_MAX else text[: CELL_CHARACTERS_MAX - 1] + "…"


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    caption: str = "",
    more: int = 0,
    unit: str = "rows",
) -> str:
    """A table. `more` says how many rows are not shown."""
    head = "".join(f"<th{_TEXT}>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    title = f'<caption style="text-align:left">{escape(caption)}</caption>' if caption else ""
    rest = f"<p>{more:,} more {escape(unit)}</p>" if more > 0 else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def facts(caption: str, members: Mapping[str, Any]) -> str:
    """Names and values; those that are None are left out."""
    rows = [(name, value) for name, value in members.items() if value is not None]
    body = "".join(f"<tr><th{_TEXT}>{escape(name)}</th>{_cell(value)}</tr>" for name, value in rows)
    title = f'<caption style="text-align:left">{escape(caption)}</caption>'
    return f"<table>{title}<tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{_NUMBER if number else _TEXT}>{escape(cell_text(value))}</td>"


def counts(stats: Mapping[str, Mapping[str, int]], caption: str = "") -> str:
    """Inserted, updated and deleted entities by table key."""
    words = ("inserted", "updated", "deleted")
    rows = [(key.replace(":", " ", 1), *(each.get(word, 0) for word in words)) for key, each in stats.items()]
    return table(("type", *words), rows, caption=caption)
