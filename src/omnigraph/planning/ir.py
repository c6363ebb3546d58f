"""Typed plans of queries: every name resolved against one catalog, every literal read, nothing executed.

A plan is a frozen value without places or text; it may be cached by query text and schema and shared by
threads.
"""

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias

from omnigraph.catalog.schema import EdgeType, NodeType, Property
from omnigraph.catalog.types import PropertyType, ScalarKind
from omnigraph.core.late_dataclass import dataclass
from omnigraph.language.diagnostics import Diagnostic
from omnigraph.language.query_tree import ArithmeticOperator, Function, Operator
from omnigraph.planning.keys import id_text
from omnigraph.planning.values import Value

STRING = PropertyType(ScalarKind.STRING)
BOOL = PropertyType(ScalarKind.BOOL)
I64 = PropertyType(ScalarKind.I64)
F64 = PropertyType(ScalarKind.F64)
DATE = PropertyType(ScalarKind.DATE)
DATETIME = PropertyType(ScalarKind.DATETIME)


# Values --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant of its natural type (I64, F64, …); in an assignment, the value fitted to the property."""

    value: Value
    type: PropertyType


@dataclass(frozen=True, slots=True)
class Param:
    """A declared parameter; its value comes from `bind_params` under `name`."""

    name: str
    type: PropertyType
    nullable: bool


@dataclass(frozen=True, slots=True)
class Now:
    """The one instant of the query."""

    type: ClassVar[PropertyType] = DATETIME


@dataclass(frozen=True, slots=True)
class KeyText:
    """An end of an edge: the id of the node whose key, of this type, the value is or spells."""

    value: "Param | Now"
    key: PropertyType
    type: ClassVar[PropertyType] = STRING


ValueExpr: TypeAlias = Literal | Param | Now | KeyText


@dataclass(frozen=True, slots=True)
class Parameter:
    """A declaration: `$name: Type?`."""

    name: str
    type: PropertyType
    nullable: bool


def value_of(expr: ValueExpr, params: Mapping[str, Value], now: dt.datetime | None) -> Value:
    """What a value expression stands for in one run. `params` is the result of `bind_params`."""
    match expr:
        case Literal():
            return expr.value
        case Param():
            return params[expr.name]
        case Now():
            if now is None:
                raise ValueError("a plan that uses now() needs the instant of the run")
            return now
        case KeyText():
            value = value_of(expr.value, params, now)
            return None if value is None else id_text(value, expr.key)


# Predicates: one row of one type -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class And:
    """All parts hold."""

    parts: "tuple[Predicate, ...]"


@dataclass(frozen=True, slots=True)
class Or:
    """At least one part holds."""

    parts: "tuple[Predicate, ...]"


@dataclass(frozen=True, slots=True)
class Not:
    """The part is false; unknown stays unknown."""

    part: "Predicate"


@dataclass(frozen=True, slots=True)
class Compare:
    """`property op value`. On edges the property may be `from` or `to` (columns `src`, `dst`)."""

    property: str
    op: Operator
    value: ValueExpr


@dataclass(frozen=True, slots=True)
class OneOf:
    """The property equals one of the values: literals, or those of a list parameter."""

    property: str
    values: tuple[Value, ...] | Param


@dataclass(frozen=True, slots=True)
class IsNull:
    """`property is null`, or `is not null` when negated. Never unknown."""

    property: str
    negated: bool


Predicate: TypeAlias = And | Or | Not | Compare | OneOf | IsNull


# Mutations -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InsertOp:
    """`insert`. Assignments name properties only, in source order, followed by the defaults of omitted ones.

    `source` and `target` are the endpoint ids of an edge and None for a node. `new` refuses an existing key.
    """

    type: NodeType | EdgeType
    new: bool
    assignments: tuple[tuple[str, ValueExpr], ...]
    source: ValueExpr | None = None
    target: ValueExpr | None = None


@dataclass(frozen=True, slots=True)
class UpdateOp:
    """`update … set … where …`. No key property and no endpoint is assigned."""

    type: NodeType | EdgeType
    assignments: tuple[tuple[str, ValueExpr], ...]
    predicate: Predicate


@dataclass(frozen=True, slots=True)
class DeleteOp:
    """`delete … where …`."""

    type: NodeType | EdgeType
    predicate: Predicate


MutationOp: TypeAlias = InsertOp | UpdateOp | DeleteOp


@dataclass(frozen=True, slots=True)
class MutationPlan:
    """A mutation query: all statements insert and update, or all delete (D2)."""

    name: str
    params: tuple[Parameter, ...]
    statements: tuple[MutationOp, ...]
    description: str | None = None
    instruction: str | None = None
    without_embedder: tuple[Diagnostic, ...] = ()
    """What is wrong with it where no embedder makes the vectors that an insert leaves out."""


# Read expressions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeRef:
    """A node variable as a value: the node's id. Null where an optional match found nothing.

    Of a bound edge it stands in a count only.
    """

    variable: str
    node: NodeType | EdgeType
    nullable: bool
    type: ClassVar[PropertyType] = STRING


@dataclass(frozen=True, slots=True)
class PropertyRef:
    """`$variable.property`. `nullable` also covers a variable that an optional match left null."""

    variable: str
    owner: NodeType | EdgeType
    prop: Property
    nullable: bool

    @property
    def type(self) -> PropertyType:
        """The type of the property."""
        return self.prop.type

    @property
    def of_edge(self) -> bool:
        """Whether the variable is a bound edge."""
        return isinstance(self.owner, EdgeType)


@dataclass(frozen=True, slots=True)
class Search:
    """`search`, `match_text` or `fuzzy` over a String property of a node: a Bool. `edits` is for fuzzy."""

    function: Function
    property: PropertyRef
    query: ValueExpr
    edits: ValueExpr | None = None
    type: ClassVar[PropertyType] = BOOL


@dataclass(frozen=True, slots=True)
class Nearest:
    """Distance of a vector property to a query: a vector of its dimension, or text still to be embedded."""

    property: PropertyRef
    query: ValueExpr
    needs_embedding: bool
    type: ClassVar[PropertyType] = F64


@dataclass(frozen=True, slots=True)
class Bm25:
    """Text relevance of a String property."""

    property: PropertyRef
    query: ValueExpr
    type: ClassVar[PropertyType] = F64


@dataclass(frozen=True, slots=True)
class Rrf:
    """Reciprocal rank fusion of two rankings of one variable; `k` is a positive integer."""

    first: "Nearest | Bm25"
    second: "Nearest | Bm25"
    k: ValueExpr
    type: ClassVar[PropertyType] = F64

    @property
    def variable(self) -> str:
        """The ranked variable."""
        return self.first.property.variable


class PathPart(StrEnum):
    """What can be read of a path."""

    LENGTH = "length"
    NODES = "nodes"
    COST = "cost"


PATH_PARTS: Final = {
    PathPart.LENGTH: I64,
    PathPart.NODES: PropertyType(ScalarKind.STRING, is_list=True),
    PathPart.COST: F64,
}
"""The type of each: how many edges, the ids of the nodes from end to end, the sum of the weights."""


@dataclass(frozen=True, slots=True)
class PathType:
    """What a path variable stands for: a path over edges of a type, with a cost where they are weighed."""

    edge: EdgeType
    weighed: bool
    name: ClassVar[str] = "path"

    @property
    def parts(self) -> tuple[PathPart, ...]:
        """What can be read of it."""
        return tuple(part for part in PathPart if self.weighed or part is not PathPart.COST)


@dataclass(frozen=True, slots=True)
class PathRef:
    """`$path.length`, `$path.nodes` or `$path.cost`."""

    variable: str
    path: PathType
    part: PathPart
    nullable: bool

    @property
    def type(self) -> PropertyType:
        """The type of the part."""
        return PATH_PARTS[self.part]


SearchExpr: TypeAlias = Search | Nearest | Bm25
"""What is answered by looking through a column of texts or vectors."""
Ranking: TypeAlias = Nearest | Bm25 | Rrf


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`left op right` of numbers: an I64 or an F64, null where the result is none of that type."""

    op: ArithmeticOperator
    left: "Operand"
    right: "Operand"
    type: PropertyType


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`count`, `sum`, `avg`, `min` or `max` over the rows of a group. `type` is the result type.

    `distinct`: equal values are counted once.
    """

    function: Function
    argument: Literal | Param | Now | NodeRef | PropertyRef | PathRef | Arithmetic
    type: PropertyType
    distinct: bool = False

    @property
    def nullable(self) -> bool:
        """Everything but a count is null over no values."""
        return self.function is not Function.COUNT


Operand: TypeAlias = (
    Literal
    | Param
    | Now
    | NodeRef
    | PropertyRef
    | PathRef
    | Search
    | Nearest
    | Bm25
    | Rrf
    | Arithmetic
    | Aggregate
)
"""Aggregates stand in the columns, the order and the conditions of groups only."""
ColumnExpr: TypeAlias = Operand


# Match ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeVariable:
    """A node variable of a block.

    `matches` is the conjunction of all inline matches of all its bindings in the block. `declared` is false
    for a variable that only traversals introduce. `outer` marks a variable of an enclosing block that this
    block binds again: its matches test the outer node. Anonymous ends get unique names that no query can
    spell.
    """

    name: str
    type: NodeType
    matches: Predicate | None
    declared: bool
    outer: bool = False
    anonymous: bool = False


@dataclass(frozen=True, slots=True)
class Traversal:
    """One traversal clause, turned so that `source` stands at the edge's source side.

    `undirected` follows the edge both ways (`source` is then the left end as written). `low` and `high`
    bound the hops; `multi` tells `{1,1}` from a plain hop, which are evaluated alike. With `edge_variable`
    every edge gives a row; without it every distinct end node. `is_empty`: no path can have that many hops.
    `path` names the shortest path between the ends; `weight` is the property of its edges that is summed up,
    if it is not their number that counts.
    """

    edge: EdgeType
    source: str
    target: str
    undirected: bool
    low: int
    high: int
    multi: bool
    edge_variable: str | None
    path: str | None = None
    weight: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the hop range excludes every path: ends of different types cannot be chained."""
        return self.low > 1 and self.edge.source != self.edge.target

    @property
    def ends(self) -> tuple[str, str]:
        """Both variables."""
        return (self.source, self.target)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A filter: `left op right`, operands of any variables."""

    left: Operand
    op: Operator
    right: Operand


@dataclass(frozen=True, slots=True)
class NullCheck:
    """`operand is null` (or not)."""

    operand: Operand
    negated: bool


@dataclass(frozen=True, slots=True)
class SearchTest:
    """A text search as a condition; `wanted` is false for `search(…) = false`."""

    search: Search
    wanted: bool


@dataclass(frozen=True, slots=True)
class Either:
    """At least one part is true."""

    parts: "tuple[Condition, ...]"


@dataclass(frozen=True, slots=True)
class Both:
    """All parts are true."""

    parts: "tuple[Condition, ...]"


Condition: TypeAlias = Comparison | NullCheck | SearchTest | Either | Both


@dataclass(frozen=True, slots=True)
class Block:
    """The clauses of `match`, `maybe` or `not`, in source order within each kind.

    `nodes` are the node variables this block binds, introduced ones and outer ones bound again; `edges` the
    edge variables it introduces. Conditions may mention enclosing variables and those of `optionals`.
    Optionals apply after traversals, in order, then the conditions that mention their variables, then the
    negations. `outer` names every variable of an enclosing block mentioned here or deeper.
    """

    nodes: tuple[NodeVariable, ...]
    edges: tuple[tuple[str, EdgeType], ...]
    traversals: tuple[Traversal, ...]
    conditions: tuple[Condition, ...]
    optionals: "tuple[Block, ...]"
    negations: "tuple[Block, ...]"
    outer: frozenset[str]
    paths: tuple[str, ...] = ()
    """The path variables it introduces."""

    def node(self, name: str) -> NodeVariable | None:
        """The node variable of this name bound in this block."""
        return next((node for node in self.nodes if node.name == name), None)

    @property
    def introduced(self) -> tuple[str, ...]:
        """The variables that are new in this block: nodes, then edges, then paths."""
        nodes = tuple(node.name for node in self.nodes if not node.outer)
        return (*nodes, *(name for name, _ in self.edges), *self.paths)

    @property
    def binds(self) -> tuple[str, ...]:
        """The variables a row has once the block has run: introduced ones and those of its optionals."""
        inner = tuple(name for optional in self.optionals for name in optional.binds)
        return self.introduced + inner

    def walk(self) -> Iterator["Block"]:
        """This block and every block inside it."""
        yield self
        for inner in (*self.optionals, *self.negations):
            yield from inner.walk()


# Result --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """A result column. `expression` has no aliases left in it."""

    name: str
    expression: ColumnExpr
    type: PropertyType
    nullable: bool


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """A sort key that is a result column, by position."""

    index: int


@dataclass(frozen=True, slots=True)
class SortKey:
    """One order item after a leading ranking. Null sorts below every value."""

    expression: ColumnRef | PropertyRef | PathRef | Aggregate
    descending: bool


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A read query.

    `ranking` is the leading search of `order`, best first; `order` the remaining items. In an aggregate query
    `grouping` lists the positions of the columns that form the key, `having` what groups have to satisfy, in
    terms of aggregates and of columns of the key, and `order` holds no PropertyRef. With
    `distinct` every sort key is a ColumnRef and there is no ranking. `ties` are the variables whose ids
    break ties.
    """

    name: str
    params: tuple[Parameter, ...]
    match: Block
    columns: tuple[Column, ...]
    is_aggregate: bool
    grouping: tuple[int, ...]
    distinct: bool
    ranking: Ranking | None
    order: tuple[SortKey, ...]
    limit: int | None
    offset: int
    ties: tuple[str, ...]
    uses_now: bool
    limit_by: Param | None = None
    offset_by: Param | None = None
    """What gives the limit and the offset of a run, where they are not written as numbers."""
    having: tuple[Condition, ...] = ()
    number_params: tuple[tuple[str, int, str], ...] = ()
    """Parameters that steer a search or cut the result: name, least value, what it is."""
    description: str | None = None
    instruction: str | None = None


Plan: TypeAlias = ReadPlan | MutationPlan


def cut_by(plan: ReadPlan, params: Mapping[str, Value]) -> ReadPlan:
    """The plan of one run: its limit and its offset are numbers."""
    limit, offset = plan.limit, plan.offset
    if plan.limit_by is not None and isinstance(given := params[plan.limit_by.name], int):
        limit = given
    if plan.offset_by is not None and isinstance(given := params[plan.offset_by.name], int):
        offset = given
    return replace(plan, limit=limit, offset=offset, limit_by=None, offset_by=None)
