"""What reports show of themselves: small pieces of HTML in a notebook, plain text where they are printed.

Everything that comes from data is escaped for HTML here and nowhere else.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

CELL_CHARACTERS_MAX: Final = 200
"""Longer text is cut: a notebook shows what a value is, not all of it."""
PRINTED_ROWS_MAX: Final = 20
"""Rows of a table that are printed; the rest is counted."""

_NUMBER: Final = ' style="text-align:right"'
_TEXT: Final = ' style="text-align:left"'


def cell_text(value: Any) -> str:
    """A value for people, cut when it is long; not escaped yet."""
    if value is None:
        return "null"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= CELL_CHARACTERS_MAX else text[: CELL_CHARACTERS_MAX - 1] + "…"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values under a caption."""

    caption: str
    members: Mapping[str, Any]

    def html(self) -> str:
        """As a table of two columns."""
        rows = "".join(
            f"<tr><th{_TEXT}>{escape(name)}</th>{_cell(value)}</tr>" for name, value in self.members.items()
        )
        return f"<table>{_caption(self.caption)}<tbody>{rows}</tbody></table>"

    def lines(self) -> Iterator[str]:
        """As one line."""
        told = ", ".join(f"{name} {cell_text(value)}" for name, value in self.members.items())
        yield f"{self.caption}: {told}" if told else self.caption


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a head. `more` says how many rows it was not given."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    more: int = 0
    unit: str = "rows"

    def html(self) -> str:
        """As a table, and what it leaves out."""
        head = "".join(f"<th{_TEXT}>{escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows)
        title = _caption(self.caption) if self.caption else ""
        rest = f"<p>{self.more:,} more {escape(self.unit)}</p>" if self.more > 0 else ""
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"

    def lines(self) -> Iterator[str]:
        """As lines of columns of equal width; nothing but the caption when there are no rows."""
        if self.caption:
            yield self.caption
        if not self.rows:
            return
        told = [self.columns, *(list(map(cell_text, row)) for row in self.rows[:PRINTED_ROWS_MAX])]
        widths = [max(map(len, column)) for column in zip(*told, strict=True)]
        for row in told:
            yield "  ".join(each.ljust(width) for each, width in zip(row, widths, strict=True)).rstrip()
        left = len(self.rows) - PRINTED_ROWS_MAX
        if self.more + max(left, 0) > 0:
            yield f"{self.more + max(left, 0):,} more {self.unit}"


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a report shows, one below the other."""

    parts: tuple[Facts | Table, ...]

    def __add__(self, other: "Pieces") -> "Pieces":
        return Pieces((*self.parts, *other.parts))

    def html(self) -> str:
        """All of it for a notebook."""
        return "".join(part.html() for part in self.parts)

    def text(self) -> str:
        """All of it for a terminal."""
        return "\n".join(line for part in self.parts for line in part.lines())


NOTHING: Final = Pieces(())


class Shown:
    """A report that a notebook shows and `print` prints from one description of it."""

    __slots__ = ()

    def _shown(self) -> Pieces:
        """What there is to say; each report says its own."""
        return NOTHING

    def _repr_html_(self) -> str:
        return self._shown().html()

    def __str__(self) -> str:
        return self._shown().text()


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    caption: str = "",
    more: int = 0,
    unit: str = "rows",
) -> Pieces:
    """A table. `more` says how many rows are not shown."""
    return Pieces((Table(columns, list(rows), caption, more, unit),))


def facts(caption: str, members: Mapping[str, Any]) -> Pieces:
    """Names and values; those that are None are left out."""
    told = {name: value for name, value in members.items() if value is not None}
    return Pieces((Facts(caption, told),))


def counts(stats: Mapping[str, Mapping[str, int]], caption: str = "") -> Pieces:
    """Inserted, updated and deleted entities by table key."""
    words = ("inserted", "updated", "deleted")
    rows = [(key.replace(":", " ", 1), *(each.get(word, 0) for word in words)) for key, each in stats.items()]
    return table(("type", *words), rows, caption=caption)


def _caption(text: str) -> str:
    return f'<caption style="text-align:left">{escape(text)}</caption>'


def _cell(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{_NUMBER if number else _TEXT}>{escape(cell_text(value))}</td>"
