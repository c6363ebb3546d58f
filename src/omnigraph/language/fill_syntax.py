"""Text to tree: `Type.property = expression`, what the rows of an added property get."""

from dataclasses import replace

from omnigraph.core.late_dataclass import dataclass
from omnigraph.language.cursor import Unparsable
from omnigraph.language.diagnostics import Diagnostic, in_source_order
from omnigraph.language.lexer import Kind, lex
from omnigraph.language.query_syntax import SYNTAX_CODE, QueryParser
from omnigraph.language.query_tree import Expression
from omnigraph.language.source import Source, Span


@dataclass(frozen=True, slots=True)
class FillNode:
    """One fill as it is written."""

    type_name: str
    property: str
    value: Expression
    type_span: Span
    property_span: Span
    value_span: Span


def parse_fill(source: Source) -> FillNode | tuple[Diagnostic, ...]:
    """The fill of a text, or what is wrong with it."""
    lexed = lex(source)
    if lexed.diagnostics:
        return in_source_order(replace(item, code=SYNTAX_CODE) for item in lexed.diagnostics)
    parser = QueryParser(lexed)
    try:
        owner = parser.type_name('a type, as in Person.tier = "basic"')
        parser.expect(".", f"after {owner.text}")
        name = parser.name("a property")
        parser.expect("=", f"after {owner.text}.{name.text}")
        start = parser.token.span
        value = parser.expression("a value, or a property of $row")
        end = parser.previous.span
        if not parser.at_kind(Kind.END):
            raise parser.expected("the end of the fill")
    except Unparsable as error:
        return (replace(error.diagnostic, code=SYNTAX_CODE),)
    return FillNode(owner.text, name.text, value, owner.span, name.span, start.to(end))
