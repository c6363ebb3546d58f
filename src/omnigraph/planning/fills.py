"""What the rows of an added property get: a constant, a property of the row, or a number computed from it."""

import datetime as dt
from collections.abc import Iterator
from typing import Final, NoReturn

from omnigraph.catalog.schema import Catalog, EdgeType, NodeType, Property
from omnigraph.catalog.types import PropertyType
from omnigraph.core.late_dataclass import dataclass
from omnigraph.language import query_tree as tree
from omnigraph.language.fill_syntax import FillNode, parse_fill
from omnigraph.language.source import Source
from omnigraph.planning import ir
from omnigraph.planning.check_base import assignable
from omnigraph.planning.check_operand import Bound, OperandCheck, Scope
from omnigraph.planning.compile import raise_diagnostics
from omnigraph.planning.values import Value

ROW: Final = "row"
"""The variable that stands for the row."""


@dataclass(frozen=True, slots=True)
class Fill:
    """The values of one property in rows that exist."""

    type_name: str
    name: str
    """Of the property."""
    text: str
    """The expression as it was written."""
    value: Value = None
    source: str | None = None
    """The property of the row whose value it gets."""
    computed: ir.Arithmetic | None = None
    """What it is computed from. Neither this nor `source`: every row gets `value`."""

    @property
    def follows_row(self) -> bool:
        """Whether rows may get different values."""
        return self.source is not None or self.computed is not None

    @property
    def sources(self) -> tuple[str, ...]:
        """The properties of the row that it reads."""
        if self.source is not None:
            return (self.source,)
        return () if self.computed is None else tuple(dict.fromkeys(_read_by(self.computed)))

    @property
    def label(self) -> str:
        """`Type.property`."""
        return f"{self.type_name}.{self.name}"


def _read_by(operand: ir.Operand) -> Iterator[str]:
    match operand:
        case ir.PropertyRef():
            yield operand.prop.name
        case ir.Arithmetic():
            yield from _read_by(operand.left)
            yield from _read_by(operand.right)
        case _:
            pass


def fill_label(text: str) -> tuple[str, str]:
    """The `Type.property` that a fill is about, and its expression as written. Raises QuerySyntaxError."""
    node = _parsed(Source(text, "--fill"))
    return f"{node.type_name}.{node.property}", text[node.value_span.start : node.value_span.end]


def compile_fill(text: str, catalog: Catalog, now: dt.datetime) -> Fill:
    """The fill of a text, by the names of a schema. `now` is what `now()` gives.

    Raises QuerySyntaxError, and QueryTypeError for names that are not there and values that do not fit.
    """
    source = Source(text, "--fill")
    return _Check(_parsed(source), catalog, source).fill(text, now)


def _parsed(source: Source) -> FillNode:
    parsed = parse_fill(source)
    if not isinstance(parsed, FillNode):
        raise_diagnostics(parsed)
    return parsed


class _Check(OperandCheck):
    """One fill under check."""

    def __init__(self, node: FillNode, catalog: Catalog, source: Source) -> None:
        super().__init__(tree.Query("fill", (), tree.MutationBody(())), catalog, source, suggest=True)
        self.number_params = {}
        self._node = node

    def fill(self, text: str, now: dt.datetime) -> Fill:
        node = self._node
        written = text[node.value_span.start : node.value_span.end]
        owner = self._owner()
        prop = self._property(owner, node.property, node.property_span)
        match node.value:
            case tree.PropertyAccess() as access:
                return Fill(owner.name, prop.name, written, source=self._source(access, owner, prop).name)
            case tree.Literal() | tree.Now() as atom:
                value = self.assigned(atom, prop, owner)
            case tree.Arithmetic() as expression:
                return Fill(owner.name, prop.name, written, computed=self._computed(expression, owner, prop))
            case _:
                message = "a fill is a value, now(), a property of the row, or computed from numbers of it"
                self.report(
                    "T7", node.value_span, message, hint=f'write "text", ${ROW}.name or ${ROW}.size * 2'
                )
                value = None
        if not isinstance(value, ir.Literal | ir.Now):
            self._stop()
        return Fill(owner.name, prop.name, written, value.value if isinstance(value, ir.Literal) else now)

    def _stop(self) -> NoReturn:
        raise_diagnostics(tuple(self.diagnostics))

    def _owner(self) -> NodeType | EdgeType:
        name = self._node.type_name
        owner = self.catalog.nodes.get(name) or self.catalog.edges.get(name)
        if owner is None:
            known = (*self.catalog.nodes, *self.catalog.edges)
            message = f"'{name}' is neither a node nor an edge type"
            self.report("T10", self._node.type_span, message, near=(name, known))
            self._stop()
        return owner

    def _property(self, owner: NodeType | EdgeType, name: str, span: tree.Span) -> Property:
        prop = owner.get(name)
        if prop is None:
            message = f"'{owner.name}' has no property '{name}'"
            near = (name, owner.by_name)
            self.report("T11", span, message, near=near, type_name=owner.name, property_name=name)
            self._stop()
        return prop

    def _source(self, access: tree.PropertyAccess, owner: NodeType | EdgeType, wanted: Property) -> Property:
        if access.variable != ROW:
            message = f"the row is called ${ROW}, not ${access.variable}"
            self.report("T14", access.span, message)
            self._stop()
        given = self._property(owner, access.property, access.property_span)
        self._require_fit(given.type, access.span, owner, wanted)
        return given

    def _computed(
        self, expression: tree.Arithmetic, owner: NodeType | EdgeType, wanted: Property
    ) -> ir.Arithmetic:
        scope = Scope()
        scope.own[ROW] = Bound(ROW, owner, 0)
        found = self.arithmetic(expression, lambda part: self.operand(part, scope))
        if found is None:
            self._stop()
        self._require_fit(found.type, expression.span, owner, wanted)
        return found

    def _require_fit(
        self, given: PropertyType, span: tree.Span, owner: NodeType | EdgeType, wanted: Property
    ) -> None:
        if not _fits(given, wanted.type):
            message = f"{given.text()} does not fit {wanted.type.text()} '{wanted.name}'"
            self.report("T7", span, message, type_name=owner.name, property_name=wanted.name)
            self._stop()


def _fits(given: PropertyType, wanted: PropertyType) -> bool:
    """Whether a property may give its values to another one; numbers mix, their values are looked at."""
    if given.is_blob or wanted.is_blob:
        return False
    if given.is_scalar and wanted.is_scalar:
        return assignable(given, wanted)
    return given == wanted
