"""The tree of a schema text.

Two trees are equal when they say the same, wherever the text stood: spans do not take part in comparison.
"""

from dataclasses import field
from enum import StrEnum

from omnigraph.core.late_dataclass import dataclass
from omnigraph.language.lexer import string_value
from omnigraph.language.source import Span


@dataclass(frozen=True, slots=True)
class Name:
    """A written name or enum value."""

    text: str
    span: Span = field(compare=False, repr=False)


class LiteralKind(StrEnum):
    """The forms of an annotation argument. NAME is the identifier form, as in `@embed(title)`."""

    STRING = "string"
    INTEGER = "integer"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Literal:
    """An annotation argument or a pattern, spelled as in the source."""

    kind: LiteralKind
    text: str
    span: Span = field(compare=False, repr=False)

    @property
    def value(self) -> str:
        """The value as text: a string without quotes and escapes, anything else as spelled."""
        return string_value(self.text) if self.kind is LiteralKind.STRING else self.text


@dataclass(frozen=True, slots=True)
class AnnotationNode:
    """`@name`, `@name(value)` or `@name(value, keyword=value)`; of an index also `@index(keyword: value)`."""

    name: Name
    value: Literal | None
    keywords: tuple[tuple[Name, Literal], ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ScalarExpr:
    """A scalar type name."""

    name: str


@dataclass(frozen=True, slots=True)
class ListExpr:
    """`[Scalar]`."""

    name: str


@dataclass(frozen=True, slots=True)
class EnumExpr:
    """`enum(a, b)`, values in source order."""

    values: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class VectorExpr:
    """`Vector(n)`; the digits are kept as text since any number of them may be written."""

    digits: str


@dataclass(frozen=True, slots=True)
class TypeExpr:
    """A property type with its nullability."""

    base: ScalarExpr | ListExpr | EnumExpr | VectorExpr
    nullable: bool
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PropertyNode:
    """`name: Type @annotation…`."""

    name: Name
    type: TypeExpr
    annotations: tuple[AnnotationNode, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class GroupConstraintNode:
    """`@key(a, b)`, `@unique(a, b)` or `@index(a, b)`; `word` is the name without `@`."""

    word: str
    properties: tuple[Name, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RangeNode:
    """`@range(p, lo..hi)`; bounds are spelled as in the source, None where left out."""

    property: Name
    lower: str | None
    upper: str | None
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CheckNode:
    """`@check(p, "pattern")`."""

    property: Name
    pattern: Literal
    span: Span = field(compare=False, repr=False)


ConstraintNode = GroupConstraintNode | RangeNode | CheckNode
Member = PropertyNode | GroupConstraintNode | RangeNode | CheckNode


@dataclass(frozen=True, slots=True)
class InterfaceNode:
    """`interface Name { properties }`. `header` ends with the opening brace."""

    name: Name
    members: tuple[PropertyNode, ...]
    header: Span = field(compare=False, repr=False)
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class NodeTypeNode:
    """`node Name @annotation… implements A, B { members }`."""

    name: Name
    annotations: tuple[AnnotationNode, ...]
    implements: tuple[Name, ...]
    members: tuple[Member, ...]
    header: Span = field(compare=False, repr=False)
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CardinalityNode:
    """`@card(lo..hi)`; digits as text, `upper` None for unbounded."""

    lower: str
    upper: str | None
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class EdgeTypeNode:
    """`edge Name: Source -> Target @card(…) @annotation… { members }`; an empty body equals none."""

    name: Name
    source: Name
    target: Name
    cardinality: CardinalityNode | None
    annotations: tuple[AnnotationNode, ...]
    members: tuple[Member, ...]
    header: Span = field(compare=False, repr=False)
    span: Span = field(compare=False, repr=False)


Declaration = InterfaceNode | NodeTypeNode | EdgeTypeNode


@dataclass(frozen=True, slots=True)
class SchemaTree:
    """All declarations of one text, in source order."""

    declarations: tuple[Declaration, ...]
