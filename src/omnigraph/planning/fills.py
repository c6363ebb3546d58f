"""What the rows of an added property get: a constant, or another property of the row."""

import datetime as dt
from typing import Final, NoReturn

from omnigraph.catalog.schema import Catalog, EdgeType, NodeType, Property
from omnigraph.catalog.types import PropertyType
from omnigraph.core.late_dataclass import dataclass
from omnigraph.language import query_tree as tree
from omnigraph.language.fill_syntax import FillNode, parse_fill
from omnigraph.language.source import Source
from omnigraph.planning import ir
from omnigraph.planning.check_base import Typing, assignable
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
    """The property of the row whose value it gets; None: every row gets `value`."""

    @property
    def label(self) -> str:
        """`Type.property`."""
        return f"{self.type_name}.{self.name}"


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


class _Check(Typing):
    """One fill under check."""

    def __init__(self, node: FillNode, catalog: Catalog, source: Source) -> None:
        super().__init__(tree.Query("fill", (), tree.MutationBody(())), catalog, source, suggest=True)
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
            case _:
                message = "a fill is a value, now(), or a property of the row"
                self.report("T7", node.value_span, message, hint=f'write "text", 7 or ${ROW}.name')
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
        if not _fits(given.type, wanted.type):
            message = f"{given.type.text()} does not fit {wanted.type.text()} '{wanted.name}'"
            self.report("T7", access.span, message, type_name=owner.name, property_name=wanted.name)
            self._stop()
        return given


def _fits(given: PropertyType, wanted: PropertyType) -> bool:
    """Whether a property may give its values to another one; numbers mix, their values are looked at."""
    if given.is_blob or wanted.is_blob:
        return False
    if given.is_scalar and wanted.is_scalar:
        return assignable(given, wanted)
    return given == wanted
