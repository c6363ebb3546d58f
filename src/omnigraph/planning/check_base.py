"""What every check shares: reporting, parameters, literals and the compatibility of types."""

from collections.abc import Iterable, Mapping
from typing import Final

from omnigraph.catalog.scalars import Misfit, parse_date, parse_datetime
from omnigraph.catalog.schema import Catalog, EdgeType, NodeType, Property
from omnigraph.catalog.types import PropertyType, ScalarKind
from omnigraph.language import query_tree as tree
from omnigraph.language.diagnostics import Diagnostic, diagnose, near_names
from omnigraph.language.query_tree import LiteralKind
from omnigraph.language.source import Source, Span
from omnigraph.planning import ir
from omnigraph.planning.values import Value, fit

RESERVED_PARAMETER: Final = "__nanograph_now"
_NATURAL: Final[Mapping[LiteralKind, PropertyType]] = {
    LiteralKind.STRING: ir.STRING,
    LiteralKind.INTEGER: ir.I64,
    LiteralKind.DECIMAL: ir.F64,
    LiteralKind.BOOL: ir.BOOL,
    LiteralKind.DATE: ir.DATE,
    LiteralKind.DATETIME: ir.DATETIME,
}
NULL_TYPE: Final = PropertyType(ScalarKind.STRING)
"""The nominal type of the literal null; the callers that allow null look at the value."""


def comparable(left: PropertyType, right: PropertyType) -> bool:
    """Whether two scalars can be compared: the same kind, or both numbers; enum and String are one kind."""
    if not (left.is_scalar and right.is_scalar) or left.is_blob or right.is_blob:
        return False
    return left.kind is right.kind or (left.is_numeric and right.is_numeric)


def assignable(given: PropertyType, wanted: PropertyType) -> bool:
    """Whether a parameter of type `given` may be assigned to a property of type `wanted`.

    Numbers mix freely; whether a value fits is decided when it is known.
    """
    if wanted.vector_dim is not None:
        if given.vector_dim is not None:
            return given.vector_dim == wanted.vector_dim
        return given.is_list and PropertyType(given.kind).is_numeric
    if given.vector_dim is not None or given.is_list != wanted.is_list:
        return False
    if wanted.is_blob:
        return given.kind in {ScalarKind.BLOB, ScalarKind.STRING}
    return comparable(PropertyType(given.kind), PropertyType(wanted.kind))


def date_hint(wanted: PropertyType, given: ir.Operand | ir.KeyText) -> str | None:
    """What helps when a date meets a text: how a date is written, or how the parameter is declared."""
    if wanted.is_list != given.type.is_list:
        return None
    kinds = {wanted.kind, given.type.kind}
    if kinds not in ({ScalarKind.DATE, ScalarKind.STRING}, {ScalarKind.DATETIME, ScalarKind.STRING}):
        return None
    if isinstance(given, ir.Param):
        return f"declare ${given.name}: {wanted.text(nullable=given.nullable)}"
    if not isinstance(given, ir.Literal) or wanted.kind is ScalarKind.STRING:
        return None
    if wanted.kind is ScalarKind.DATE:
        return 'a date is written date("2024-06-01")'
    return 'a date-time is written datetime("2024-06-01T12:00:00Z")'


class Typing:
    """One query under check: its parameters and what was found so far."""

    def __init__(self, query: tree.Query, catalog: Catalog, source: Source, *, suggest: bool) -> None:
        self.query = query
        self.suggest = suggest
        self.catalog = catalog
        self.source = source
        self.diagnostics: list[Diagnostic] = []
        self.uses_now = False
        self.params: dict[str, ir.Param] = {}
        self._declare_parameters()

    def report(
        self,
        code: str,
        span: Span,
        message: str,
        *,
        near: tuple[str, Iterable[str]] | None = None,
        hint: str | None = None,
        type_name: str | None = None,
        property_name: str | None = None,
    ) -> None:
        """Note an error. `near` is the unknown name and the known ones."""
        candidates = near_names(*near) if near is not None and self.suggest else ()
        found = diagnose(
            self.source,
            span,
            message,
            code=code,
            candidates=candidates,
            hint=hint,
            type_name=type_name,
            property_name=property_name,
        )
        self.diagnostics.append(found)

    def _declare_parameters(self) -> None:
        for parameter in self.query.parameters:
            if parameter.name == RESERVED_PARAMETER:
                self.report(
                    "", parameter.span, f"the parameter name '${parameter.name}' is reserved for now()"
                )
            elif parameter.name == "_":
                self.report("", parameter.span, "'$_' is the anonymous variable and cannot be a parameter")
            elif parameter.name in self.params:
                self.report("", parameter.span, f"the parameter '${parameter.name}' is declared twice")
            kind = ScalarKind(parameter.type.scalar)
            type_ = PropertyType(kind, parameter.type.is_list, parameter.type.vector_dim)
            self.params.setdefault(parameter.name, ir.Param(parameter.name, type_, parameter.nullable))

    def parameters(self) -> tuple[ir.Parameter, ...]:
        """The declarations, in source order."""
        return tuple(ir.Parameter(p.name, p.type, p.nullable) for p in self.params.values())

    def literal(self, literal: tree.Literal) -> ir.Literal | None:
        """The constant with its natural type; None after a report."""
        if literal.kind is LiteralKind.LIST:
            return self._list(literal)
        if literal.kind is LiteralKind.NULL:
            return ir.Literal(None, NULL_TYPE)
        value: Value
        match literal.kind, literal.value:
            case LiteralKind.DATE | LiteralKind.DATETIME, str(text):
                try:
                    value = parse_date(text) if literal.kind is LiteralKind.DATE else parse_datetime(text)
                except Misfit as misfit:
                    self.report("T3", literal.span, str(misfit))
                    return None
            case _, tuple():
                return None
            case _, plain:
                value = plain
        return ir.Literal(value, _NATURAL[literal.kind])

    def _list(self, literal: tree.Literal) -> ir.Literal | None:
        items: list[ir.Literal] = []
        for element in literal.value if isinstance(literal.value, tuple) else ():
            if element.kind is LiteralKind.LIST:
                self.report("", element.span, "a list cannot hold a list")
                return None
            if element.kind is LiteralKind.NULL:
                self.report("", element.span, "a list cannot hold null")
                return None
            item = self.literal(element)
            if item is None:
                return None
            if items and not comparable(items[0].type, item.type):
                message = f"a list cannot mix {items[0].type.text()} and {item.type.text()}"
                self.report("", element.span, message)
                return None
            items.append(item)
        kinds = {item.type.kind for item in items}
        kind = ScalarKind.STRING if not kinds else kinds.pop() if len(kinds) == 1 else ScalarKind.F64
        return ir.Literal(tuple(item.value for item in items), PropertyType(kind, is_list=True))

    def parameter(self, variable: tree.Variable) -> ir.Param | None:
        """The declared parameter of this name; T14 when there is none."""
        found = self.params.get(variable.name)
        if found is None:
            message = f"'${variable.name}' is not a parameter of this query"
            near = (variable.name, self.params)
            self.report("T14", variable.span, message, near=near)
        return found

    def assigned(self, atom: tree.Atom, prop: Property, owner: NodeType | EdgeType) -> ir.ValueExpr | None:
        """A value assigned to a property: T3 for literals, T7 for parameters and `now()`, else T14."""
        name = f"'{prop.name}'"
        match atom:
            case tree.Now():
                self.uses_now = True
                if prop.type != ir.DATETIME:
                    self.report(
                        "T7", atom.span, f"now() is a DateTime and does not fit {prop.type.text()} {name}"
                    )
                    return None
                return ir.Now()
            case tree.Variable():
                param = self.parameter(atom)
                if param is None:
                    return None
                if not assignable(param.type, prop.type):
                    message = f"{param.type.text()} does not fit {prop.type.text()} {name}"
                    self.report(
                        "T7",
                        atom.span,
                        message,
                        hint=date_hint(prop.type, param),
                        type_name=owner.name,
                        property_name=prop.name,
                    )
                    return None
                return param
            case tree.Literal():
                return self._fitted(atom, prop, owner)

    def _fitted(self, atom: tree.Literal, prop: Property, owner: NodeType | EdgeType) -> ir.Literal | None:
        literal = self.literal(atom)
        if literal is None:
            return None
        if literal.value is None and not prop.nullable:
            message = f"property '{prop.name}' of '{owner.name}' must have a value and cannot be null"
            self.report("T3", atom.span, message, type_name=owner.name, property_name=prop.name)
            return None
        try:
            return ir.Literal(fit(literal.value, prop.type), prop.type)
        except Misfit as misfit:
            message = f"property '{prop.name}' is {prop.type.text()}: {misfit}"
            hint = date_hint(prop.type, literal)
            self.report("T3", atom.span, message, hint=hint, type_name=owner.name, property_name=prop.name)
            return None
