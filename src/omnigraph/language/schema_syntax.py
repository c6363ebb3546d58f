"""The parser of the schema language: text to a tree, or every syntax error of the text.

Recursive descent; methods are named for the grammar rule they parse. After an error the parser continues at
the next member or declaration, so one run reports several. Nothing recurses with the depth of the input.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NoReturn

from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import DIAGNOSTICS_REPORTED_MAX
from omnigraph.language.diagnostics import Diagnostic, diagnose, in_source_order, near_names
from omnigraph.language.lexer import Comment, Kind, Lexed, Token, lex, touches
from omnigraph.language.schema_tree import (
    AnnotationNode,
    CardinalityNode,
    CheckNode,
    ConstraintNode,
    Declaration,
    EdgeTypeNode,
    EnumExpr,
    GroupConstraintNode,
    InterfaceNode,
    ListExpr,
    Literal,
    LiteralKind,
    Member,
    Name,
    NodeTypeNode,
    PropertyNode,
    RangeNode,
    ScalarExpr,
    SchemaTree,
    TypeExpr,
    VectorExpr,
)
from omnigraph.language.source import Source, Span

SYNTAX_CODE: Final = "P000"
SCALAR_NAMES: Final = ("String", "Bool", "I32", "I64", "U32", "U64", "F32", "F64", "Date", "DateTime", "Blob")
GROUP_CONSTRAINTS: Final = ("key", "unique", "index")
CONSTRAINT_WORDS: Final = (*GROUP_CONSTRAINTS, "range", "check")
_DECLARATION_WORDS: Final = ("interface", "node", "edge")

# What people write who come from another schema language.
_FOREIGN_TYPES: Final = {
    "int": "I64",
    "integer": "I64",
    "long": "I64",
    "int32": "I32",
    "int64": "I64",
    "uint": "U64",
    "uint32": "U32",
    "uint64": "U64",
    "float": "F64",
    "double": "F64",
    "number": "F64",
    "float32": "F32",
    "float64": "F64",
    "str": "String",
    "text": "String",
    "varchar": "String",
    "boolean": "Bool",
    "timestamp": "DateTime",
    "bytes": "Blob",
    "binary": "Blob",
}


@dataclass(frozen=True, slots=True)
class ParsedSchema:
    """The outcome of parsing. `tree` is what was understood; it is whole only without `diagnostics`."""

    source: Source
    tree: SchemaTree
    comments: tuple[Comment, ...]
    diagnostics: tuple[Diagnostic, ...]


def parse_schema(text: str, file: str | None = None) -> ParsedSchema:
    """The tree of a schema text and its syntax errors in source order. Never raises. Cost: linear."""
    return parse_schema_source(Source(text, file))


def parse_schema_source(source: Source) -> ParsedSchema:
    """As `parse_schema`, for a source that was decoded from a file."""
    lexed = lex(source)
    parser = _Parser(lexed)
    # A text the lexer could not read to its end would only give errors that follow from that.
    declarations = parser.schema() if not lexed.diagnostics else ()
    found = [replace(d, code=SYNTAX_CODE) for d in lexed.diagnostics] + parser.diagnostics
    return ParsedSchema(source, SchemaTree(declarations), tuple(lexed.comments), in_source_order(found))


class _SyntaxStopError(Exception):
    """Ends the construct being parsed; the finding is already recorded."""


class _Parser:
    def __init__(self, lexed: Lexed) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._source = lexed.source
        self._tokens = lexed.tokens
        self._at = 0
        self._token = lexed.tokens[0]

    # Tokens

    def _advance(self) -> Token:
        token = self._token
        if token.kind is not Kind.END:
            self._at += 1
            self._token = self._tokens[self._at]
        return token

    def _peek(self, ahead: int = 1) -> Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _previous(self) -> Token:
        return self._tokens[self._at - 1]

    def _is(self, text: str) -> bool:
        return self._token.text == text and self._token.kind is not Kind.STRING

    def _accept(self, text: str) -> bool:
        if self._is(text):
            self._advance()
            return True
        return False

    def _expect(self, text: str, *, hint: str | None = None) -> Token:
        if self._is(text):
            return self._advance()
        return self._fail(f"expected '{text}'", hint=hint)

    def _report(
        self, token: Token, message: str, *, candidates: tuple[str, ...] = (), hint: str | None = None
    ) -> None:
        # A span is at least one character wide, also at the end of the text.
        span = Span(token.start, max(token.end, token.start + 1))
        found = diagnose(self._source, span, message, code=SYNTAX_CODE, candidates=candidates, hint=hint)
        self.diagnostics.append(found)

    def _fail(self, wanted: str, *, candidates: tuple[str, ...] = (), hint: str | None = None) -> NoReturn:
        token = self._token
        found = "the end of the file" if token.kind is Kind.END else f"'{_shown(token.text)}'"
        self._report(token, f"{wanted}, found {found}", candidates=candidates, hint=hint)
        raise _SyntaxStopError

    # Declarations

    def schema(self) -> tuple[Declaration, ...]:
        declarations: list[Declaration] = []
        while self._token.kind is not Kind.END and len(self.diagnostics) < DIAGNOSTICS_REPORTED_MAX:
            start = self._at
            try:
                declarations.append(self._declaration())
            except _SyntaxStopError:
                if self._at == start:
                    self._advance()
                self._skip_to_declaration()
        return tuple(declarations)

    def _declaration(self) -> Declaration:
        match self._token.text if self._token.kind is Kind.NAME else "":
            case "interface":
                return self._interface()
            case "node":
                return self._node_type()
            case "edge":
                return self._edge_type()
            case word:
                self._fail(
                    "expected 'interface', 'node' or 'edge'",
                    candidates=near_names(word, _DECLARATION_WORDS) if word else (),
                )
        return None

    def _at_declaration(self) -> bool:
        token = self._token
        return token.kind is Kind.NAME and token.text in _DECLARATION_WORDS and self._peek().kind is Kind.TYPE

    def _skip_to_declaration(self) -> None:
        while self._token.kind is not Kind.END and not self._at_declaration():
            self._advance()

    def _interface(self) -> InterfaceNode:
        start = self._advance()
        name = self._type_name("an interface")
        opening = self._expect("{", hint="an interface has properties only")
        members = self._body(self._interface_member)
        properties = tuple(m for m in members if isinstance(m, PropertyNode))
        return InterfaceNode(name, properties, start.span.to(opening.span), self._span_from(start))

    def _node_type(self) -> NodeTypeNode:
        start = self._advance()
        name = self._type_name("a node type")
        annotations = self._annotations(in_header=True)
        implements: list[Name] = []
        if self._accept("implements"):
            implements.append(self._type_name("an interface"))
            while self._accept(","):
                implements.append(self._type_name("an interface"))
            if self._is("@"):
                self._fail("expected '{'", hint="annotations of a node type come before 'implements'")
        opening = self._expect("{")
        members = self._body(self._member)
        return NodeTypeNode(
            name, annotations, tuple(implements), members, start.span.to(opening.span), self._span_from(start)
        )

    def _edge_type(self) -> EdgeTypeNode:
        start = self._advance()
        name = self._type_name("an edge type")
        self._expect(":", hint="an edge is written 'edge Knows: Person -> Person'")
        source = self._type_name("the source node type")
        self._expect("->")
        target = self._type_name("the target node type")
        cardinality = self._cardinality() if self._is("@") and self._peek().text == "card" else None
        annotations = self._annotations(in_header=True)
        header = self._span_from(start)
        members: tuple[Member, ...] = ()
        if self._is("{"):
            header = start.span.to(self._advance().span)
            members = self._body(self._member)
        return EdgeTypeNode(
            name, source, target, cardinality, annotations, members, header, self._span_from(start)
        )

    def _cardinality(self) -> CardinalityNode:
        start = self._advance()
        self._advance()
        self._expect("(", hint="a cardinality is written @card(0..1) or @card(1..)")
        lower = self._integer("the smallest number of edges")
        self._expect("..")
        upper = None
        if self._is("*"):
            self._fail(
                "expected a number or ')'", hint="leave the upper bound out for 'unbounded': @card(1..)"
            )
        if not self._is(")"):
            upper = self._integer("the largest number of edges")
        self._expect(")")
        return CardinalityNode(lower, upper, self._span_from(start))

    # Members

    def _body(self, member: Callable[[], Member]) -> tuple[Member, ...]:
        """The members up to and including the closing brace."""
        members: list[Member] = []
        while not self._accept("}"):
            if self._token.kind is Kind.END or self._at_declaration():
                self._fail("expected a property or '}'")
            if len(self.diagnostics) >= DIAGNOSTICS_REPORTED_MAX:
                raise _SyntaxStopError
            if self._token.text in {",", ";"} and members:
                self._report(self._token, "members of a body are separated by white space, not by ','")
                self._advance()
                continue
            try:
                members.append(member())
            except _SyntaxStopError:
                self._skip_to_member()
        return tuple(members)

    def _skip_to_member(self) -> None:
        """Stops at what may start a member, at the end of the body, or at the next declaration."""
        while self._token.kind is not Kind.END and not self._is("}") and not self._at_declaration():
            if self._token.kind is Kind.NAME and self._peek().text == ":":
                previous = self._previous()
                if previous.text != "@":
                    return
            self._advance()
            if self._is("@") and self._at_constraint():
                return

    def _member(self) -> Member:
        return self._constraint() if self._at_constraint() else self._property()

    def _interface_member(self) -> Member:
        if self._at_constraint():
            self._fail(
                "expected a property or '}'",
                hint="an interface has properties only, no constraints of its body",
            )
        return self._property()

    def _at_constraint(self) -> bool:
        """One of the five words followed by `(` is a body constraint, wherever it stands in a body."""
        opens = self._is("@") and self._peek().text in CONSTRAINT_WORDS and self._peek(2).text == "("
        return opens and not self._at_named_argument()

    def _at_named_argument(self) -> bool:
        """`@index(text: …)` says something about its property, `@index(text)` names properties."""
        return self._peek().text == "index" and self._peek(4).text == ":"

    def _property(self) -> PropertyNode:
        token = self._token
        if token.kind is Kind.TYPE and self._peek().text == ":":
            lowered = token.text[0].lower() + token.text[1:]
            self._fail(
                "expected a property name, which starts with a lower-case letter or '_'",
                candidates=(lowered,),
            )
        if token.kind is not Kind.NAME:
            self._fail("expected a property or '}'")
        name = self._name("a property name")
        self._expect(":", hint="a property is written 'name: Type'")
        type_ = self._type_expr()
        annotations = self._annotations(in_header=False)
        return PropertyNode(name, type_, annotations, self._span_from(token))

    def _type_expr(self) -> TypeExpr:
        start = self._token
        base: ScalarExpr | ListExpr | EnumExpr | VectorExpr
        if self._accept("["):
            base = ListExpr(self._scalar_name("a list holds one scalar type, as in [String]"))
            self._expect("]")
        elif self._is("enum"):
            base = self._enum()
        elif self._is("Vector"):
            self._advance()
            self._expect("(", hint="a vector has a dimension, as in Vector(768)")
            base = VectorExpr(self._integer("the dimension of the vector"))
            self._expect(")")
        else:
            base = ScalarExpr(self._scalar_name())
        nullable = self._accept("?")
        return TypeExpr(base, nullable, self._span_from(start))

    def _scalar_name(self, hint: str | None = None) -> str:
        token = self._token
        if token.kind is Kind.TYPE and token.text in SCALAR_NAMES:
            return self._advance().text
        if token.kind not in {Kind.TYPE, Kind.NAME}:
            self._fail("expected a type", hint=hint)
        foreign = _FOREIGN_TYPES.get(token.text.lower())
        near = (foreign,) if foreign else near_names(token.text, (*SCALAR_NAMES, "Vector", "enum"))
        if token.text in {"enum", "Vector"}:
            near = ()
        self._fail(
            "expected a type", candidates=near, hint=hint or f"the scalar types are {', '.join(SCALAR_NAMES)}"
        )
        return None

    def _enum(self) -> EnumExpr:
        self._advance()
        self._expect("(", hint="an enum lists its values, as in enum(open, closed)")
        values = [self._enum_value()]
        while self._accept(","):
            values.append(self._enum_value())
        self._expect(")")
        return EnumExpr(tuple(values))

    def _enum_value(self) -> Name:
        """One or more adjacent words, digits and hyphens: the lexer's tokens are finer than an enum value."""
        first = self._token
        if not _in_enum_value(first):
            quoted = first.kind is Kind.STRING
            self._fail(
                "expected an enum value", hint="enum values are written without quotes" if quoted else None
            )
        last = self._advance()
        while _in_enum_value(self._token) and touches(last, self._token):
            last = self._advance()
        return Name(self._source.text[first.start : last.end], Span(first.start, last.end))

    # Constraints

    def _constraint(self) -> ConstraintNode:
        start = self._advance()
        word = self._advance().text
        self._advance()
        if word in GROUP_CONSTRAINTS:
            names = [self._name("a property name")]
            while self._accept(","):
                names.append(self._name("a property name"))
            self._expect(")")
            return GroupConstraintNode(word, tuple(names), self._span_from(start))
        example = "@range(age, 0..150)" if word == "range" else '@check(code, "[A-Z]+")'
        name = self._name("a property name", hint=f"the property comes first, as in {example}")
        self._expect(",")
        if word == "range":
            lower, upper = self._bounds()
            self._expect(")")
            return RangeNode(name, lower, upper, self._span_from(start))
        if self._token.kind is not Kind.STRING:
            self._fail("expected a pattern in quotes")
        pattern = self._advance()
        self._expect(")")
        return CheckNode(
            name, Literal(LiteralKind.STRING, pattern.text, pattern.span), self._span_from(start)
        )

    def _bounds(self) -> tuple[str | None, str | None]:
        lower = None if self._is("..") else self._signed()
        self._expect("..", hint="a range is written 0..9, 0.. or ..9")
        if lower is not None and self._is(")"):
            return lower, None
        return lower, self._signed()

    def _signed(self) -> str:
        sign = "-" if self._accept("-") else ""
        if self._token.kind not in {Kind.INTEGER, Kind.DECIMAL}:
            self._fail("expected a number")
        return sign + self._advance().text

    # Annotations

    def _annotations(self, *, in_header: bool) -> tuple[AnnotationNode, ...]:
        annotations: list[AnnotationNode] = []
        while self._is("@"):
            if self._at_constraint():
                if in_header:
                    self._fail("expected '{'", hint="a constraint over properties stands inside the braces")
                break  # a body constraint that follows the property
            annotations.append(self._annotation(in_header=in_header))
        return tuple(annotations)

    def _annotation(self, *, in_header: bool) -> AnnotationNode:
        start = self._advance()
        if in_header and self._is("card"):
            self._fail("expected '{'", hint="@card comes directly after the target type of an edge")
        name = self._name("the name of an annotation")
        value: Literal | None = None
        keywords: list[tuple[Name, Literal]] = []
        if name.text == "index" and self._accept("("):
            keyword = self._name("the name of an argument")
            self._expect(":", hint="how a text is searched is written @index(text: english)")
            keywords.append((keyword, self._literal(names=True)))
            self._expect(")")
        elif self._accept("("):
            value = self._literal(names=True)
            if value.kind is LiteralKind.NAME and self._is("="):
                self._fail("expected ')'", hint="a keyword argument comes after one plain argument")
            while self._accept(","):
                keyword = self._name("the name of an argument")
                self._expect("=", hint="after the first argument only keyword arguments may follow")
                keywords.append((keyword, self._literal(names=False)))
            self._expect(")")
        return AnnotationNode(name, value, tuple(keywords), self._span_from(start))

    def _literal(self, *, names: bool) -> Literal:
        token = self._token
        match token.kind:
            case Kind.STRING:
                kind = LiteralKind.STRING
            case Kind.INTEGER:
                kind = LiteralKind.INTEGER
            case Kind.DECIMAL:
                kind = LiteralKind.DECIMAL
            case Kind.NAME if token.text in {"true", "false"}:
                kind = LiteralKind.BOOLEAN
            case Kind.NAME if names:
                kind = LiteralKind.NAME
            case _:
                hint = "a negative number is only legal as a bound of @range" if token.text == "-" else None
                self._fail("expected a value", hint=hint)
        self._advance()
        return Literal(kind, token.text, token.span)

    # Names

    def _name(self, what: str, *, hint: str | None = None) -> Name:
        if self._token.kind is not Kind.NAME:
            self._fail(f"expected {what}", hint=hint)
        token = self._advance()
        return Name(token.text, token.span)

    def _type_name(self, what: str) -> Name:
        token = self._token
        if token.kind is Kind.TYPE:
            self._advance()
            return Name(token.text, token.span)
        if token.kind is Kind.NAME:
            raised = token.text[0].upper() + token.text[1:]
            self._fail(
                f"expected the name of {what}, which starts with an upper-case letter",
                candidates=(raised,) if raised != token.text else (),
            )
        self._fail(f"expected the name of {what}")
        return None

    def _integer(self, what: str) -> str:
        if self._token.kind is not Kind.INTEGER:
            self._fail(f"expected {what}")
        return self._advance().text

    def _span_from(self, start: Token) -> Span:
        return Span(start.start, self._previous().end)


def _in_enum_value(token: Token) -> bool:
    return token.kind in {Kind.NAME, Kind.TYPE, Kind.INTEGER} or (
        token.kind is Kind.PUNCT and token.text == "-"
    )


def _shown(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"
