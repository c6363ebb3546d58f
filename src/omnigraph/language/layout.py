"""Canonical lines and the author's comments, merged in source order: what the formatters share.

A comment after code on its line stays there. A comment on its own line stays before what follows it. One in
the middle of a line of code moves to its own line before it. Blank lines stay where the author put them, but
never two in a row and none at the edges of a body.
"""

from collections.abc import Sequence
from typing import Final

from omnigraph.core.late_dataclass import dataclass
from omnigraph.language.lexer import Comment
from omnigraph.language.source import Span

INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class CodeLine:
    """One line of code in canonical form; `span` is the source it stands for."""

    text: str
    depth: int
    span: Span
    opens: bool = False
    """Starts a body: no blank line follows."""
    closes: bool = False
    """Ends a body: no blank line stands before it."""
    apart: bool = False
    """Starts a declaration that stands apart from the one before."""
    tight: bool = False
    """Belongs to the line before: a blank line between them is dropped."""


def lay_out(source: str, lines: Sequence[CodeLine], comments: Sequence[Comment]) -> str:
    """The text of the lines with the comments of `source` between and behind them."""
    return _Layout(source, comments).text(lines)


class _Layout:
    def __init__(self, source: str, comments: Sequence[Comment]) -> None:
        self._source = source
        self._comments = comments
        self._next = 0  # the first comment that is not placed yet
        self._out: list[str] = []
        self._end = 0  # where the source of the last placed line or comment ends
        self._blank_allowed = False

    def text(self, lines: Sequence[CodeLine]) -> str:
        for line in lines:
            first = self._next
            depth = line.depth + 1 if line.closes else line.depth
            self._own_lines(line.span.end, depth, apart=line.apart, anchor=line.span.start)
            blank = line.apart and self._next == first
            tight = line.closes or line.tight
            self._place(line.text, line.depth, line.span.start, blank=blank, tight=tight)
            self._end = line.span.end
            self._append_trailing()
            self._blank_allowed = not line.opens
        self._own_lines(len(self._source) + 1, depth=0, apart=False, anchor=None)
        return "\n".join(self._out) + "\n" if self._out else ""

    def _own_lines(self, until: int, depth: int, *, apart: bool, anchor: int | None) -> None:
        """Places the comments that start before `until` on lines of their own."""
        while self._next < len(self._comments) and self._comments[self._next].start < until:
            comment = self._comments[self._next]
            self._next += 1
            start = comment.start if anchor is None else min(comment.start, anchor)
            self._place(_comment_text(comment), depth, start, blank=apart)
            self._end = comment.end
            apart = False

    def _append_trailing(self) -> None:
        """Keeps the comments that follow on the same source line behind the line just placed."""
        while self._next < len(self._comments):
            comment = self._comments[self._next]
            between = self._source[self._end : comment.start]
            # Code of the next line may stand between, when the comment is inside it.
            if "\n" in between or between.strip(" \t\r,"):
                return
            self._out[-1] += "  " + _comment_text(comment)
            self._end = comment.end
            self._next += 1

    def _place(self, text: str, depth: int, start: int, *, blank: bool, tight: bool = False) -> None:
        distance = self._source.count("\n", self._end, start) if start > self._end else 0
        wanted = blank or (self._blank_allowed and not tight and distance > 1)
        if wanted and self._out:
            self._out.append("")
        self._out.append(INDENT * depth + text)
        self._blank_allowed = True


def _comment_text(comment: Comment) -> str:
    return comment.text.rstrip(" \t\r") if comment.is_line else comment.text
