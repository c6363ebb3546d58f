"""Type check of operands of read queries: variables, properties, search functions."""

from collections.abc import Callable, Iterator
from typing import Final

from omnigraph.catalog.scalars import Misfit
from omnigraph.catalog.schema import EdgeType, NodeType
from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_KINDS, PropertyType
from omnigraph.core.late_dataclass import dataclass
from omnigraph.language import query_tree as tree
from omnigraph.language.query_tree import AGGREGATES, ArithmeticOperator, Function, LiteralKind
from omnigraph.language.source import Span
from omnigraph.planning import ir
from omnigraph.planning.check_base import Typing
from omnigraph.planning.values import fit

_TEXT_CODES: Final = {
    Function.SEARCH: "T19",
    Function.FUZZY: "T19",
    Function.MATCH_TEXT: "T20",
    Function.BM25: "T20",
}
RRF_K_DEFAULT: Final = 60
FUZZY_EDITS_DEFAULT: Final = 2


@dataclass(frozen=True, slots=True)
class Bound:
    """A variable in scope. `type` is None after an error, so that one mistake is reported once.

    `at` is where the text introduces it. `optional` marks variables that a `maybe` block may leave null.
    """

    name: str
    type: NodeType | EdgeType | ir.PathType | None
    at: int
    optional: bool = False


class Scope:
    """The variables visible in a block: its own and those of the enclosing ones."""

    def __init__(self, parent: "Scope | None" = None) -> None:
        self.parent = parent
        self.own: dict[str, Bound] = {}
        self.needed: set[str] = set()
        """Variables of enclosing blocks that this block or one inside it mentions."""

    def find(self, name: str) -> Bound | None:
        """The innermost variable of this name; finding it in an enclosing block is noted as a mention."""
        if name in self.own:
            return self.own[name]
        passed: list[Scope] = [self]
        scope = self.parent
        while scope is not None:
            if name in scope.own:
                for inner in passed:
                    inner.needed.add(name)
                return scope.own[name]
            passed.append(scope)
            scope = scope.parent
        return None

    def names(self) -> Iterator[str]:
        """Every visible name."""
        yield from self.own
        if self.parent is not None:
            yield from self.parent.names()


class OperandCheck(Typing):
    """Operands against a scope. Every method returns None after a report."""

    number_params: dict[str, tuple[int, str]]

    def operand(self, expression: tree.Expression, scope: Scope) -> ir.Operand | None:
        """An operand of a filter or a projection, aliases and aggregates excepted."""
        match expression:
            case tree.Literal():
                return self.literal(expression)
            case tree.Now():
                self.uses_now = True
                return ir.Now()
            case tree.Variable():
                return self.bare_variable(expression, scope)
            case tree.PropertyAccess():
                return self.accessed(expression, scope)
            case tree.Alias():
                self.report(
                    "", expression.span, f"'{expression.name}' is not a variable, and match knows no columns"
                )
                return None
            case tree.Call():
                return self._call(expression, scope)
            case tree.Arithmetic():
                return self.arithmetic(expression, lambda part: self.operand(part, scope))

    def arithmetic(
        self, expression: tree.Arithmetic, resolve: Callable[[tree.Expression], ir.Operand | None]
    ) -> ir.Arithmetic | None:
        """Numbers computed with; T7 for anything else. `resolve` gives the parts."""
        parts: list[ir.Operand] = []
        for part in (expression.left, expression.right):
            found = resolve(part)
            if found is None:
                return None
            reason: str | None = None
            if isinstance(found, ir.Literal) and found.value is None:
                reason = "nothing is computed with null"
            elif isinstance(found, ir.NodeRef):
                reason = f"'${found.variable}' is a node and no number; compute with one of its properties"
            elif isinstance(found, ir.Search | ir.Nearest | ir.Bm25 | ir.Rrf):
                reason = "nothing is computed with a search"
            elif not (found.type.is_scalar and found.type.is_numeric):
                reason = f"'{expression.operator}' needs numbers, got {found.type.text()}"
            if reason is not None:
                self.report("T7", part.span, reason)
                return None
            parts.append(found)
        left, right = parts
        whole = expression.operator is not ArithmeticOperator.DIVIDE and not (
            {left.type.kind, right.type.kind} & FLOAT_KINDS
        )
        return ir.Arithmetic(expression.operator, left, right, ir.I64 if whole else ir.F64)

    def _call(self, call: tree.Call, scope: Scope) -> ir.Operand | None:
        match call.function:
            case Function.SEARCH | Function.MATCH_TEXT | Function.FUZZY:
                return self.search(call, scope)
            case Function.NEAREST:
                return self.nearest(call, scope)
            case Function.BM25:
                return self.bm25(call, scope)
            case Function.RRF:
                return self.rrf(call, scope)
            case _:
                message = f"{call.function} is an aggregate and stands in return or order only"
                self.report("T8", call.span, message)
                return None

    def bare_variable(self, variable: tree.Variable, scope: Scope) -> ir.Param | ir.NodeRef | None:
        """`$name`: the parameter of that name, else the node variable."""
        param = self.params.get(variable.name)
        if param is not None:
            return param
        if variable.is_anonymous:
            self.report("", variable.span, "'$_' cannot be used by name")
            return None
        bound = self._visible(variable.name, variable.span, scope)
        if bound is None:
            if scope.find(variable.name) is None:
                message = f"'${variable.name}' is neither a parameter nor a variable of this query"
                near = (variable.name, (*self.params, *scope.names()))
                self.report("", variable.span, message, near=near)
            return None
        if isinstance(bound.type, EdgeType):
            message = f"'${variable.name}' names an edge; use one of its properties"
            self.report("T23", variable.span, message)
            return None
        if isinstance(bound.type, ir.PathType):
            parts = " or ".join(f"${bound.name}.{part}" for part in bound.type.parts)
            self.report("T25", variable.span, f"'${variable.name}' names a path; use {parts}")
            return None
        return None if bound.type is None else ir.NodeRef(bound.name, bound.type, bound.optional)

    def _visible(self, name: str, span: Span, scope: Scope) -> Bound | None:
        """The variable, if the text introduces it before this place; reports only a use too early."""
        bound = scope.find(name)
        if bound is not None and bound.at > span.start:
            self.report("T6", span, f"'${name}' is used before it is bound")
            return None
        return bound

    def variable_named(self, name: str, span: Span, scope: Scope) -> Bound | None:
        """The variable of this name, where the text has introduced it; T6."""
        bound = self._visible(name, span, scope)
        if bound is None and scope.find(name) is None:
            self.report("T6", span, f"'${name}' is not bound", near=(name, scope.names()))
        return bound

    def accessed(self, access: tree.PropertyAccess, scope: Scope) -> ir.PropertyRef | ir.PathRef | None:
        """`$name.property` of a node or an edge, or what is read of a path; T25 for what a path has not."""
        bound = scope.find(access.variable)
        if bound is None or not isinstance(bound.type, ir.PathType):
            return self.property_ref(access, scope)
        if self._visible(access.variable, access.span, scope) is None:
            return None
        parts = bound.type.parts
        if access.property in parts:
            return ir.PathRef(bound.name, bound.type, ir.PathPart(access.property), bound.optional)
        message = f"a path has no '{access.property}'"
        hint = None
        if access.property == ir.PathPart.COST:
            hint = "the cost is that of a path that is weighed, as in $p:shortest edge{1,6} by property"
        near = None if hint else (access.property, parts)
        self.report("T25", access.property_span, message, near=near, hint=hint)
        return None

    def property_ref(self, access: tree.PropertyAccess, scope: Scope) -> ir.PropertyRef | None:
        """`$name.property` of a visible node or edge; T6, or T24 for a blob."""
        bound = self.variable_named(access.variable, access.span, scope)
        owner = None if bound is None else bound.type
        if bound is None or owner is None:
            return None
        if isinstance(owner, ir.PathType):
            message = f"'${access.variable}' names a path, which cannot be searched"
            self.report("T25", access.span, message)
            return None
        prop = owner.get(access.property)
        if prop is None:
            message = f"'{owner.name}' has no property '{access.property}'"
            hint = id_hint(owner, access.variable) if access.property == "id" else None
            self.report(
                "T6",
                access.property_span,
                message,
                near=None if hint else (access.property, owner.by_name),
                hint=hint,
                type_name=owner.name,
                property_name=access.property,
            )
            return None
        if prop.type.is_blob:
            message = f"{owner.name}.{prop.name} is a Blob; read it through the blob cell API"
            self.report("T24", access.span, message, type_name=owner.name, property_name=prop.name)
            return None
        return ir.PropertyRef(bound.name, owner, prop, nullable=prop.nullable or bound.optional)

    def value(self, expression: tree.Expression) -> ir.ValueExpr | None:
        """A literal, a parameter or `now()`; None without a report when it is something else or unknown."""
        match expression:
            case tree.Literal():
                return self.literal(expression)
            case tree.Variable():
                return self.params.get(expression.name)
            case tree.Now():
                self.uses_now = True
                return ir.Now()
            case _:
                return None

    def _ranked_property(self, call: tree.Call, scope: Scope, code: str) -> ir.PropertyRef | None:
        """The first argument of a search function: a property of a node variable."""
        target = call.arguments[0]
        if not isinstance(target, tree.PropertyAccess):
            self.report(
                code, target.span, f"{call.function} needs a property, as in {call.function}($d.body, …)"
            )
            return None
        ref = self.property_ref(target, scope)
        if ref is not None and ref.of_edge:
            message = f"'${ref.variable}' names an edge; {call.function} searches nodes"
            self.report("T23", target.span, message)
            return None
        return ref

    def _text_arguments(self, call: tree.Call, scope: Scope) -> tuple[ir.PropertyRef, ir.ValueExpr] | None:
        code = _TEXT_CODES[call.function]
        ref = self._ranked_property(call, scope, code)
        if ref is not None and not ref.type.is_string:
            found = f"{ref.owner.name}.{ref.prop.name} is {ref.type.text()}"
            message = f"{call.function} needs a String property, {found}"
            self.report(code, call.arguments[0].span, message)
            ref = None
        text = self._query_text(call, code)
        return None if ref is None or text is None else (ref, text)

    def _query_text(self, call: tree.Call, code: str) -> ir.ValueExpr | None:
        argument = call.arguments[1]
        value = self.value(argument)
        is_null = isinstance(argument, tree.Literal) and argument.kind is LiteralKind.NULL
        if value is None or is_null or not value.type.is_string:
            if isinstance(argument, tree.Variable) and value is None:
                self.parameter(argument)
            else:
                message = f"the {call.function} query text must be a String literal or parameter"
                self.report(code, argument.span, message)
            return None
        return value

    def search(self, call: tree.Call, scope: Scope) -> ir.Search | None:
        """`search`, `match_text` or `fuzzy`."""
        arguments = self._text_arguments(call, scope)
        edits: ir.ValueExpr | None = None
        if call.function is Function.FUZZY:
            edits = ir.Literal(FUZZY_EDITS_DEFAULT, ir.I64)
            if len(call.arguments) > 2:
                what = "the edit distance of fuzzy"
                edits = self._number(call.arguments[2], least=0, code="T19", what=what)
                if edits is None:
                    return None
        return None if arguments is None else ir.Search(call.function, *arguments, edits)

    def bm25(self, call: tree.Call, scope: Scope) -> ir.Bm25 | None:
        """`bm25`."""
        arguments = self._text_arguments(call, scope)
        return None if arguments is None else ir.Bm25(*arguments)

    def nearest(self, call: tree.Call, scope: Scope) -> ir.Nearest | None:
        """`nearest`: T15 for a property that is no vector and for a query that does not fit it."""
        ref = self._ranked_property(call, scope, "T15")
        if ref is None:
            return None
        where = f"{ref.owner.name}.{ref.prop.name}"
        if ref.type.vector_dim is None:
            self.report(
                "T15", call.arguments[0].span, f"nearest needs a Vector, {where} is {ref.type.text()}"
            )
            return None
        argument = call.arguments[1]
        value = self.value(argument)
        if value is None:
            if isinstance(argument, tree.Variable):
                self.parameter(argument)
            elif not isinstance(argument, tree.Literal):
                self.report(
                    "T15", argument.span, "nearest compares with a vector or a text, literal or parameter"
                )
            return None
        if value.type.is_string and not (isinstance(value, ir.Literal) and value.value is None):
            return ir.Nearest(ref, value, needs_embedding=True)
        query = self._query_vector(argument, value, ref.type, where)
        return None if query is None else ir.Nearest(ref, query, needs_embedding=False)

    def _query_vector(
        self, argument: tree.Expression, value: ir.ValueExpr, wanted: PropertyType, where: str
    ) -> ir.ValueExpr | None:
        if isinstance(value, ir.Param) and value.type.vector_dim is not None:
            if value.type.vector_dim == wanted.vector_dim:
                return value
            given = value.type.vector_dim
        elif isinstance(value, ir.Literal) and isinstance(value.value, tuple):
            given = len(value.value)
            if given == wanted.vector_dim:
                try:
                    return ir.Literal(fit(value.value, wanted), wanted)
                except Misfit as misfit:
                    self.report("T15", argument.span, str(misfit))
                    return None
        else:
            self.report("T15", argument.span, "nearest compares with a vector or a text")
            return None
        message = f"{where} has {wanted.vector_dim} dimensions, the query vector has {given}"
        self.report("T15", argument.span, message)
        return None

    def rrf(self, call: tree.Call, scope: Scope) -> ir.Rrf | None:
        """`rrf`: two rankings of one variable."""
        arms: list[ir.Nearest | ir.Bm25] = []
        for argument in call.arguments[:2]:
            if isinstance(argument, tree.Call):
                nearest = argument.function is Function.NEAREST
                arm = self.nearest(argument, scope) if nearest else self.bm25(argument, scope)
                if arm is not None:
                    arms.append(arm)
        k: ir.ValueExpr | None = ir.Literal(RRF_K_DEFAULT, ir.I64)
        if len(call.arguments) > 2:
            k = self._number(call.arguments[2], least=1, code="T21", what="rrf k")
        if len(arms) < 2 or k is None:
            return None
        first, second = arms
        if first.property.variable != second.property.variable:
            message = "both arms of rrf must rank the same variable"
            self.report("T21", call.span, message)
            return None
        return ir.Rrf(first, second, k)

    def _number(self, argument: tree.Expression, *, least: int, code: str, what: str) -> ir.ValueExpr | None:
        """A whole number that steers a search: a literal of at least `least`, or an integer parameter."""
        value = self.value(argument)
        if (
            isinstance(value, ir.Literal)
            and isinstance(value.value, int)
            and not isinstance(value.value, bool)
        ):
            if value.value >= least:
                return value
            self.report(code, argument.span, f"{what} must be at least {least}")
            return None
        if isinstance(value, ir.Param) and value.type.is_scalar and value.type.kind in INTEGER_KINDS:
            self.number_params.setdefault(value.name, (least, what))
            return value
        if value is None and isinstance(argument, tree.Variable):
            self.parameter(argument)
        elif value is not None or not isinstance(argument, tree.Literal):
            self.report(code, argument.span, f"{what} must be an integer")
        return None


def is_aggregate(expression: tree.Expression | tree.AllProperties) -> bool:
    """Whether an expression is a call of an aggregate."""
    return isinstance(expression, tree.Call) and expression.function in AGGREGATES


def id_hint(owner: NodeType | EdgeType, variable: str) -> str:
    """Where `id` was asked for as a property."""
    if isinstance(owner, EdgeType):
        return "the id of an edge cannot be read; an edge is identified by its ends and its properties"
    key = f"; a {owner.name} is found by {' and '.join(owner.key)}" if owner.key else ""
    return f"the id of a node is {'the node' if variable == '_' else f'${variable}'} itself{key}"
