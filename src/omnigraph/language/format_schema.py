"""The canonical form of a schema text: one member per line, two spaces of indent, comments kept.

A comment after code on its line stays there. A comment on its own line stays before what follows it. One in
the middle of a member or header moves to its own line before it. Blank lines group members as the author
did, never two in a row; a declaration with a body stands apart from its neighbours.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from omnigraph.language.diagnostics import Diagnostic
from omnigraph.language.lexer import Comment
from omnigraph.language.schema_syntax import ParsedSchema, parse_schema_source
from omnigraph.language.schema_tree import (
    AnnotationNode,
    CheckNode,
    Declaration,
    EdgeTypeNode,
    EnumExpr,
    GroupConstraintNode,
    InterfaceNode,
    ListExpr,
    Member,
    NodeTypeNode,
    PropertyNode,
    RangeNode,
    ScalarExpr,
    TypeExpr,
    VectorExpr,
)
from omnigraph.language.source import Source, Span

_INDENT: Final = "  "


def format_schema(text: str, file: str | None = None) -> str | tuple[Diagnostic, ...]:
    """The canonical form of a schema text, or its syntax errors. Idempotent; the tree stays equal."""
    parsed = parse_schema_source(Source(text, file))
    if parsed.diagnostics:
        return parsed.diagnostics
    return _Layout(parsed).text()


@dataclass(frozen=True, slots=True)
class _CodeLine:
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


class _Layout:
    """Merges code lines and comments, both in source order."""

    def __init__(self, parsed: ParsedSchema) -> None:
        self._source = parsed.source.text
        self._lines = list(_code_lines(parsed.tree.declarations, parsed.comments))
        self._comments = parsed.comments
        self._next = 0  # the first comment that is not placed yet
        self._out: list[str] = []
        self._end = 0  # where the source of the last placed line or comment ends
        self._blank_allowed = False

    def text(self) -> str:
        for line in self._lines:
            placed = self._comments_before(line)
            blank = line.apart and not placed
            self._place(line.text, line.depth, line.span.start, blank=blank, closes=line.closes)
            self._end = line.span.end
            self._append_trailing()
            self._blank_allowed = not line.opens
        self._own_lines(len(self._source), depth=0, apart=False, anchor=None)
        return "\n".join(self._out) + "\n" if self._out else ""

    def _comments_before(self, line: _CodeLine) -> bool:
        """Places what stands before and inside the line; true when there was anything."""
        first = self._next
        depth = line.depth + 1 if line.closes else line.depth
        self._own_lines(line.span.end, depth, apart=line.apart, anchor=line.span.start)
        return self._next > first

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
            if "\n" in between or between.strip():
                return
            self._out[-1] += "  " + _comment_text(comment)
            self._end = comment.end
            self._next += 1

    def _place(self, text: str, depth: int, start: int, *, blank: bool, closes: bool = False) -> None:
        distance = self._source.count("\n", self._end, start) if start > self._end else 0
        wanted = blank or (self._blank_allowed and not closes and distance > 1)
        if wanted and self._out:
            self._out.append("")
        self._out.append(_INDENT * depth + text)
        self._blank_allowed = True


def _comment_text(comment: Comment) -> str:
    return comment.text.rstrip(" \t\r") if comment.is_line else comment.text


# Code lines


def _code_lines(declarations: Sequence[Declaration], comments: Sequence[Comment]) -> Iterator[_CodeLine]:
    starts = [comment.start for comment in comments]
    previous_has_body = False
    for at, declaration in enumerate(declarations):
        header = _header(declaration)
        inside = bisect_left(starts, declaration.span.end) - bisect_left(starts, declaration.header.end)
        has_braces = declaration.header.end < declaration.span.end
        has_body = bool(declaration.members) or (has_braces and inside > 0)
        apart = at > 0 and (has_body or previous_has_body)
        previous_has_body = has_body
        if not has_body:
            braces = "" if isinstance(declaration, EdgeTypeNode) else " {}"
            yield _CodeLine(header + braces, 0, declaration.span, apart=apart)
            continue
        yield _CodeLine(f"{header} {{", 0, declaration.header, opens=True, apart=apart)
        for member in declaration.members:
            yield _CodeLine(_member(member), 1, member.span)
        end = declaration.span.end
        yield _CodeLine("}", 0, Span(end - 1, end), closes=True)


def _header(declaration: Declaration) -> str:
    match declaration:
        case InterfaceNode():
            return f"interface {declaration.name.text}"
        case NodeTypeNode():
            words = ["node", declaration.name.text, *map(_annotation, declaration.annotations)]
            if declaration.implements:
                words += ["implements", ", ".join(name.text for name in declaration.implements)]
            return " ".join(words)
        case EdgeTypeNode():
            words = [
                "edge",
                f"{declaration.name.text}:",
                declaration.source.text,
                "->",
                declaration.target.text,
            ]
            if declaration.cardinality is not None:
                words.append(f"@card({declaration.cardinality.lower}..{declaration.cardinality.upper or ''})")
            return " ".join([*words, *map(_annotation, declaration.annotations)])
        case _:
            assert_never(declaration)


def _member(member: Member) -> str:
    match member:
        case PropertyNode():
            words = [f"{member.name.text}:", _type(member.type), *map(_annotation, member.annotations)]
            return " ".join(words)
        case GroupConstraintNode():
            return f"@{member.word}({', '.join(name.text for name in member.properties)})"
        case RangeNode():
            return f"@range({member.property.text}, {member.lower or ''}..{member.upper or ''})"
        case CheckNode():
            return f"@check({member.property.text}, {member.pattern.text})"
        case _:
            assert_never(member)


def _type(node: TypeExpr) -> str:
    mark = "?" if node.nullable else ""
    match node.base:
        case ScalarExpr(name):
            return name + mark
        case ListExpr(name):
            return f"[{name}]{mark}"
        case EnumExpr(values):
            return f"enum({', '.join(value.text for value in values)}){mark}"
        case VectorExpr(digits):
            return f"Vector({digits}){mark}"
        case _:
            assert_never(node.base)


def _annotation(node: AnnotationNode) -> str:
    if node.value is None:
        return f"@{node.name.text}"
    arguments = [node.value.text, *(f"{keyword.text}={literal.text}" for keyword, literal in node.keywords)]
    return f"@{node.name.text}({', '.join(arguments)})"
