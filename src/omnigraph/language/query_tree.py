"""Syntax tree of `.gq`: what was written, before any schema is known. Equality ignores places."""

from dataclasses import field
from enum import StrEnum
from typing import TypeAlias

from omnigraph.core.late_dataclass import dataclass
from omnigraph.language.source import Span

NOWHERE = Span(0, 0)


class LiteralKind(StrEnum):
    """What a literal looks like; its type is decided against the property it meets."""

    STRING = "String"
    INTEGER = "I64"
    DECIMAL = "F64"
    BOOL = "Bool"
    DATE = "Date"
    DATETIME = "DateTime"
    LIST = "list"
    NULL = "null"


class Operator(StrEnum):
    """Comparison operators of filters and predicates."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    CONTAINS = "contains"
    STARTS_WITH = "starts_with"
    ENDS_WITH = "ends_with"


class ArithmeticOperator(StrEnum):
    """What numbers are computed with."""

    PLUS = "+"
    MINUS = "-"
    TIMES = "*"
    DIVIDE = "/"


class Function(StrEnum):
    """The built-in functions, all recognised by a following `(`."""

    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    SEARCH = "search"
    MATCH_TEXT = "match_text"
    FUZZY = "fuzzy"
    NEAREST = "nearest"
    BM25 = "bm25"
    RRF = "rrf"


TEXT_TESTS = frozenset({Operator.CONTAINS, Operator.STARTS_WITH, Operator.ENDS_WITH})
"""What asks for a part of a text."""
AGGREGATES = frozenset({Function.COUNT, Function.SUM, Function.AVG, Function.MIN, Function.MAX})
TEXT_SEARCHES = frozenset({Function.SEARCH, Function.MATCH_TEXT, Function.FUZZY})


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. `value` is the Python value; for DATE and DATETIME the text as written.

    `text` is the spelling of a number, so that a formatter gives back `1.50` as it was.
    """

    kind: LiteralKind
    value: "str | int | float | bool | tuple[Literal, ...] | None"
    text: str = field(default="", compare=False, repr=False)
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Variable:
    """`$name` standing alone; the name is kept without `$`."""

    name: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)

    @property
    def is_anonymous(self) -> bool:
        """Whether it is `$_`."""
        return self.name == "_"


@dataclass(frozen=True, slots=True)
class PropertyAccess:
    """`$name.property`."""

    variable: str
    property: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    property_span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AllProperties:
    """`$name.*`: a column for each property."""

    variable: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Alias:
    """A bare name: a column named by `as`."""

    name: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Now:
    """`now()`."""

    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A built-in function with its arguments; `distinct` for `count(distinct …)`."""

    function: Function
    arguments: "tuple[Expression, ...]"
    distinct: bool = False
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`left operator right` of numbers."""

    operator: ArithmeticOperator
    left: "Expression"
    right: "Expression"
    span: Span = field(default=NOWHERE, compare=False, repr=False)


Expression: TypeAlias = Literal | Variable | PropertyAccess | Alias | Now | Call | Arithmetic
Atom: TypeAlias = Literal | Variable | Now


@dataclass(frozen=True, slots=True)
class ParameterType:
    """The declared type of a parameter: a scalar, a list of one, or a vector."""

    scalar: str
    is_list: bool = False
    vector_dim: int | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$name: Type?`."""

    name: str
    type: ParameterType
    nullable: bool
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PropertyMatch:
    """`name: atom` inside a binding."""

    property: str
    value: Atom
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    property_span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Binding:
    """`$v: Type { … }`."""

    variable: Variable
    type_name: str
    matches: tuple[PropertyMatch, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    type_span: Span = field(default=NOWHERE, compare=False, repr=False)
    braces: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Hops:
    """`{low,high}`; `high` is None when it was left out."""

    low: int
    high: int | None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Traversal:
    """`$a $e:edge{lo,hi} $b`; `undirected` for `<edge>`.

    `path` is the variable of `$a $p:shortest edge{lo,hi} by weight $b`.
    """

    source: Variable
    edge_variable: Variable | None
    edge: str
    undirected: bool
    hops: Hops | None
    target: Variable
    path: Variable | None = None
    weight: str | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    edge_span: Span = field(default=NOWHERE, compare=False, repr=False)
    weight_span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Filter:
    """`left operator right`."""

    left: Expression
    operator: Operator
    right: Expression
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class NullTest:
    """`operand is null` or, negated, `operand is not null`."""

    operand: Expression
    negated: bool
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TextSearch:
    """A search call standing as a clause."""

    call: Call
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Either:
    """Conditions joined by `or`: at least two."""

    parts: "tuple[Test, ...]"
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Both:
    """Conditions joined by `and`: at least two."""

    parts: "tuple[Test, ...]"
    span: Span = field(default=NOWHERE, compare=False, repr=False)


Test: TypeAlias = Filter | NullTest | TextSearch | Either | Both
"""A condition on the rows of a match or, after `having`, on groups."""


@dataclass(frozen=True, slots=True)
class Negation:
    """`not { … }`."""

    clauses: "tuple[Clause, ...]"
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    braces: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Maybe:
    """`maybe { … }`: an optional match."""

    clauses: "tuple[Clause, ...]"
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    braces: Span = field(default=NOWHERE, compare=False, repr=False)


Clause: TypeAlias = Negation | Maybe | Binding | Traversal | Test


@dataclass(frozen=True, slots=True)
class Projection:
    """One result column, or all of a variable."""

    expression: "Expression | AllProperties"
    alias: str | None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class OrderItem:
    """One sort key. `descending` is None when no direction was written."""

    expression: Expression
    descending: bool | None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ReadBody:
    """match, return, having, order, limit, offset. A span covers its part from the word to the end."""

    clauses: tuple[Clause, ...]
    distinct: bool
    projections: tuple[Projection, ...]
    order: tuple[OrderItem, ...]
    limit: int | Variable | None
    offset: int | Variable | None
    having: tuple[Test, ...] = ()
    match_span: Span = field(default=NOWHERE, compare=False, repr=False)
    return_span: Span = field(default=NOWHERE, compare=False, repr=False)
    having_span: Span = field(default=NOWHERE, compare=False, repr=False)
    order_span: Span = field(default=NOWHERE, compare=False, repr=False)
    limit_span: Span = field(default=NOWHERE, compare=False, repr=False)
    offset_span: Span = field(default=NOWHERE, compare=False, repr=False)
    match_braces: Span = field(default=NOWHERE, compare=False, repr=False)
    return_braces: Span = field(default=NOWHERE, compare=False, repr=False)
    having_braces: Span = field(default=NOWHERE, compare=False, repr=False)
    order_braces: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name: value` of an insert or update."""

    property: str
    value: Atom
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    property_span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`name operator value` in a `where`."""

    property: str
    operator: Operator
    value: Atom
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    property_span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PropertyNullTest:
    """`name is null` in a `where`."""

    property: str
    negated: bool
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AllOf:
    """Tests joined by `and`: at least two."""

    parts: "tuple[Condition, ...]"
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Tests joined by `or`: at least two."""

    parts: "tuple[Condition, ...]"
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class NoneOf:
    """`not test`."""

    part: "Condition"
    span: Span = field(default=NOWHERE, compare=False, repr=False)


Condition: TypeAlias = Comparison | PropertyNullTest | AllOf | AnyOf | NoneOf


@dataclass(frozen=True, slots=True)
class Insert:
    """`insert Type { … }`; `new` for `insert new`."""

    type_name: str
    new: bool
    assignments: tuple[Assignment, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    type_span: Span = field(default=NOWHERE, compare=False, repr=False)
    braces: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Update:
    """`update Type set { … } where …`."""

    type_name: str
    assignments: tuple[Assignment, ...]
    where: Condition
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    type_span: Span = field(default=NOWHERE, compare=False, repr=False)
    braces: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Delete:
    """`delete Type where …`."""

    type_name: str
    where: Condition
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    type_span: Span = field(default=NOWHERE, compare=False, repr=False)


Statement: TypeAlias = Insert | Update | Delete


@dataclass(frozen=True, slots=True)
class MutationBody:
    """One or more statements, in source order."""

    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Meta:
    """`@description("…")` or `@instruction("…")`; `text` is the string as written, quotes included."""

    name: str
    value: str
    text: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Query:
    """One named query. `head` covers it up to the closing parenthesis of the parameters."""

    name: str
    parameters: tuple[Parameter, ...]
    body: ReadBody | MutationBody
    meta: tuple[Meta, ...] = ()
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    name_span: Span = field(default=NOWHERE, compare=False, repr=False)
    head: Span = field(default=NOWHERE, compare=False, repr=False)
    braces: Span = field(default=NOWHERE, compare=False, repr=False)

    @property
    def description(self) -> str | None:
        """The text of `@description`."""
        return self._meta("description")

    @property
    def instruction(self) -> str | None:
        """The text of `@instruction`."""
        return self._meta("instruction")

    def _meta(self, name: str) -> str | None:
        return next((meta.value for meta in self.meta if meta.name == name), None)

    @property
    def is_mutation(self) -> bool:
        """Whether it changes data."""
        return isinstance(self.body, MutationBody)
