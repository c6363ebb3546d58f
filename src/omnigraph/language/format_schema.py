"""The canonical form of a schema text: one member per line, two spaces of indent, comments kept.

Comments and blank lines stay with their code as `layout` says; a declaration with a body stands apart from
its neighbours.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import assert_never

from omnigraph.language.diagnostics import Diagnostic
from omnigraph.language.layout import CodeLine, lay_out
from omnigraph.language.lexer import Comment
from omnigraph.language.schema_syntax import parse_schema
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
from omnigraph.language.source import Span


def format_schema(text: str, file: str | None = None) -> str | tuple[Diagnostic, ...]:
    """The canonical form of a schema text, or its syntax errors. Idempotent; the tree stays equal."""
    parsed = parse_schema(text, file)
    if parsed.diagnostics:
        return parsed.diagnostics
    return lay_out(text, list(_code_lines(parsed.tree.declarations, parsed.comments)), parsed.comments)


# Code lines


def _code_lines(declarations: Sequence[Declaration], comments: Sequence[Comment]) -> Iterator[CodeLine]:
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
            yield CodeLine(header + braces, 0, declaration.span, apart=apart)
            continue
        yield CodeLine(f"{header} {{", 0, declaration.header, opens=True, apart=apart)
        for member in declaration.members:
            yield CodeLine(_member(member), 1, member.span)
        end = declaration.span.end
        yield CodeLine("}", 0, Span(end - 1, end), closes=True)


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
        named = ", ".join(f"{keyword.text}: {literal.text}" for keyword, literal in node.keywords)
        return f"@{node.name.text}({named})" if named else f"@{node.name.text}"
    arguments = [node.value.text, *(f"{keyword.text}={literal.text}" for keyword, literal in node.keywords)]
    return f"@{node.name.text}({', '.join(arguments)})"
