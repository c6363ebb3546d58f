"""Source text of both languages: positions, lines, and the one place where bytes become text."""

from bisect import bisect_right
from dataclasses import field
from typing import NamedTuple

import msgspec

from omnigraph.core.late_dataclass import dataclass


# Tokens and spans are by far the most numerous objects of a parse. `gc=False` keeps them out of the
# collector's sight (they refer to nothing that could refer back): the time per query stays flat.
class Span(msgspec.Struct, frozen=True, gc=False):
    """Half-open range of character offsets into one source text."""

    start: int
    end: int

    def to(self, other: "Span") -> "Span":
        """The range from the start of this span to the end of the other."""
        return Span(self.start, other.end)


class Position(NamedTuple):
    """Line and column, both counted from 1; a column counts characters, not bytes."""

    line: int
    column: int


@dataclass(slots=True)
class Source:
    """One text with an optional file name. Line starts are found on the first question about a position."""

    text: str
    file: str | None = None
    _line_starts: list[int] | None = field(default=None, init=False, repr=False, compare=False)

    def _starts(self) -> list[int]:
        if self._line_starts is None:
            starts = [0]
            at = self.text.find("\n")
            while at >= 0:
                starts.append(at + 1)
                at = self.text.find("\n", at + 1)
            self._line_starts = starts
        return self._line_starts

    def position(self, offset: int) -> Position:
        """Where an offset lies. Cost: one binary search after the first call."""
        starts = self._starts()
        line = bisect_right(starts, offset)
        return Position(line, offset - starts[line - 1] + 1)

    def line_text(self, line: int) -> str:
        """The text of a line (counted from 1) without its line break."""
        starts = self._starts()
        start = starts[line - 1]
        end = starts[line] - 1 if line < len(starts) else len(self.text)
        return self.text[start:end].rstrip("\r")
