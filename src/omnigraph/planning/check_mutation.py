"""Type check of mutation statements: codes T3, T7, T10 to T14, T16, the key rule and D2."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING

from omnigraph.catalog.schema import Catalog, EdgeType, NodeType, Property
from omnigraph.language import query_tree as tree
from omnigraph.language.query_tree import TEXT_TESTS, LiteralKind, Operator
from omnigraph.language.source import Source
from omnigraph.planning import ir
from omnigraph.planning.check_base import Typing, comparable, date_hint
from omnigraph.planning.keys import id_text, own_type

if TYPE_CHECKING:
    from omnigraph.language.diagnostics import Diagnostic

KEY_CODE = "KEY"
"""The code of an update that assigns a key property: it becomes KeyImmutable."""
SHAPE_CODE = "D2"
"""The code of a query that both writes and deletes: it becomes MutationShapeError."""

_FROM = Property("from", 0, ir.STRING, nullable=False)
_TO = Property("to", 0, ir.STRING, nullable=False)
_ENDPOINTS = {"from": _FROM, "to": _TO}
_EQUALITIES = frozenset({Operator.EQ, Operator.NE})
_COLUMN_HINTS = {
    "src": "the source of an edge is written from",
    "dst": "the target of an edge is written to",
    "id": "ids are derived from the key or generated; they are not properties",
}


class MutationCheck(Typing):
    """Statements in source order; a wrong one does not hide the next."""

    def __init__(self, query: tree.Query, catalog: Catalog, source: Source, *, suggest: bool) -> None:
        super().__init__(query, catalog, source, suggest=suggest)
        self.without_embedder: list[Diagnostic] = []
        """What is wrong where no embedder makes the vectors that an insert leaves out."""

    def plan(self, body: tree.MutationBody) -> ir.MutationPlan | None:
        """The typed statements; None when anything was reported."""
        statements = [self._statement(statement) for statement in body.statements]
        self._check_shape(body)
        good = tuple(statement for statement in statements if statement is not None)
        if self.diagnostics or len(good) != len(statements):
            return None
        query = self.query
        return ir.MutationPlan(
            query.name,
            self.parameters(),
            good,
            query.description,
            query.instruction,
            tuple(self.without_embedder),
        )

    def _check_shape(self, body: tree.MutationBody) -> None:
        first_deletes = isinstance(body.statements[0], tree.Delete)
        for statement in body.statements:
            if isinstance(statement, tree.Delete) != first_deletes:
                message = f"'{self.query.name}' both writes and deletes"
                hint = "run the writes first, then the deletes, as two queries"
                self.report(SHAPE_CODE, statement.span, message, hint=hint)
                return

    def _statement(self, statement: tree.Statement) -> ir.MutationOp | None:
        owner = self._target(statement)
        if owner is None:
            return None
        match statement:
            case tree.Insert():
                return self._insert(statement, owner)
            case tree.Update():
                return self._update(statement, owner)
            case tree.Delete():
                predicate = self.predicate(statement.where, owner)
                return None if predicate is None else ir.DeleteOp(owner, predicate)

    def _target(self, statement: tree.Statement) -> NodeType | EdgeType | None:
        name = statement.type_name
        found = self.catalog.nodes.get(name) or self.catalog.edges.get(name)
        if found is None:
            message = f"'{name}' is neither a node nor an edge type"
            near = (name, (*self.catalog.nodes, *self.catalog.edges))
            self.report("T10", statement.type_span, message, near=near)
        return found

    def _insert(self, statement: tree.Insert, owner: NodeType | EdgeType) -> ir.InsertOp | None:
        values = self._assignments(statement.assignments, owner, endpoints=isinstance(owner, EdgeType))
        given = {assignment.property for assignment in statement.assignments}
        missing = [p.name for p in owner.properties if p.required and p.default is None]
        if isinstance(owner, EdgeType):
            missing = ["from", "to", *missing]
        missing = [name for name in missing if name not in given]
        with_defaults = given | owner.defaults.keys()
        embedded = [name for name in missing if self._is_embedded(owner, name, with_defaults)]
        if missing != embedded:
            self._report_missing(statement, owner, [name for name in missing if name not in embedded])
            return None
        if embedded:
            reported, self.diagnostics = self.diagnostics, self.without_embedder
            self._report_missing(statement, owner, embedded)
            self.diagnostics = reported
        if values is None:
            return None
        defaults = tuple(
            (prop.name, ir.Literal(prop.default.value, prop.type))
            for prop in owner.properties
            if prop.default is not None and prop.name not in given
        )
        if not isinstance(owner, EdgeType):
            return ir.InsertOp(owner, statement.new, (*values.items(), *defaults))
        source, target = values.pop("from"), values.pop("to")
        return ir.InsertOp(owner, statement.new, (*values.items(), *defaults), source, target)

    @staticmethod
    def _is_embedded(owner: NodeType | EdgeType, name: str, given: AbstractSet[str]) -> bool:
        """Whether an embedder, if there is one, makes the value from a text that is given."""
        embed = owner.embeds.get(name)
        return embed is not None and embed.source in given

    def _report_missing(
        self, statement: tree.Insert, owner: NodeType | EdgeType, missing: Sequence[str]
    ) -> None:
        wanted = ", ".join(f"'{name}'" for name in missing)
        message = f"insert into '{owner.name}' needs {wanted}"
        self.report("T12", statement.type_span, message, type_name=owner.name, property_name=missing[0])

    def _update(self, statement: tree.Update, owner: NodeType | EdgeType) -> ir.UpdateOp | None:
        refused = False
        for assignment in statement.assignments:
            name = assignment.property
            if isinstance(owner, EdgeType) and name in _ENDPOINTS:
                message = f"'{name}' of a '{owner.name}' edge cannot be changed; delete and insert it"
                self.report("T16", assignment.property_span, message)
                refused = True
            elif name in owner.key:
                message = f"'{name}' identifies {owner.name} rows; delete and re-insert instead"
                span = assignment.property_span
                self.report(KEY_CODE, span, message, type_name=owner.name, property_name=name)
                refused = True
        endpoints = refused and isinstance(owner, EdgeType)
        values = self._assignments(statement.assignments, owner, endpoints=endpoints)
        predicate = self.predicate(statement.where, owner)
        if refused or values is None or predicate is None:
            return None
        return ir.UpdateOp(owner, tuple(values.items()), predicate)

    def _assignments(
        self, assignments: tuple[tree.Assignment, ...], owner: NodeType | EdgeType, *, endpoints: bool
    ) -> dict[str, ir.ValueExpr] | None:
        found: dict[str, ir.ValueExpr] = {}
        seen: set[str] = set()
        good = True
        for assignment in assignments:
            name = assignment.property
            if name in seen:
                self.report("T13", assignment.property_span, f"'{name}' is assigned twice")
                good = False
                continue
            seen.add(name)
            end = _ENDPOINTS.get(name) if endpoints and isinstance(owner, EdgeType) else None
            prop = end or owner.get(name)
            if prop is None:
                self._unknown_property(assignment.property_span, name, owner)
                good = False
                continue
            if end is not None and isinstance(owner, EdgeType):
                value = self._end(assignment.value, end, owner)
            else:
                value = self.assigned(assignment.value, prop, owner)
            if value is None:
                good = False
            else:
                found[name] = value
        return found if good else None

    def _end(self, atom: tree.Atom, end: Property, edge: EdgeType) -> ir.ValueExpr | None:
        """An end of an edge: the id of its node as text, or the key of the node in the key's own type."""
        own = self._own_type(edge, end.name)
        if own is None:
            return self.assigned(atom, end, edge)
        value = self.assigned(atom, end if self._is_text(atom) else replace(end, type=own), edge)
        return None if value is None else _as_id(value, own)

    def _own_type(self, edge: EdgeType, end: str) -> ir.PropertyType | None:
        return own_type(self.catalog.nodes[edge.source if end == "from" else edge.target])

    def _is_text(self, atom: tree.Atom) -> bool:
        match atom:
            case tree.Literal():
                return atom.kind is LiteralKind.STRING
            case tree.Variable():
                param = self.params.get(atom.name)
                return param is not None and param.type.is_string
            case tree.Now():
                return False

    def _unknown_property(self, span: tree.Span, name: str, owner: NodeType | EdgeType) -> None:
        known = list(owner.by_name)
        if isinstance(owner, EdgeType):
            known += ["from", "to"]
        hint = _COLUMN_HINTS.get(name)
        message = f"'{owner.name}' has no property '{name}'"
        near = None if hint else (name, known)
        self.report("T11", span, message, near=near, hint=hint, type_name=owner.name, property_name=name)

    def predicate(self, condition: tree.Condition, owner: NodeType | EdgeType) -> ir.Predicate | None:
        """The typed `where`; every part is checked, None when any was refused."""
        match condition:
            case tree.AllOf() | tree.AnyOf():
                parts = [self.predicate(part, owner) for part in condition.parts]
                good = tuple(part for part in parts if part is not None)
                if len(good) != len(parts):
                    return None
                return ir.And(good) if isinstance(condition, tree.AllOf) else ir.Or(good)
            case tree.NoneOf():
                part = self.predicate(condition.part, owner)
                return None if part is None else ir.Not(part)
            case tree.PropertyNullTest():
                prop = self._tested(condition.property, condition.span, owner)
                return None if prop is None else ir.IsNull(prop.name, condition.negated)
            case tree.Comparison():
                return self._comparison(condition, owner)

    def _tested(self, name: str, span: tree.Span, owner: NodeType | EdgeType) -> Property | None:
        prop = _ENDPOINTS.get(name) if isinstance(owner, EdgeType) else None
        prop = prop or owner.get(name)
        if prop is None:
            self._unknown_property(span, name, owner)
            return None
        if prop.type.is_blob:
            message = f"'{name}' of '{owner.name}' is a Blob and cannot be tested"
            self.report("T11", span, message, type_name=owner.name, property_name=name)
            return None
        return prop

    def _comparison(self, test: tree.Comparison, owner: NodeType | EdgeType) -> ir.Compare | None:
        prop = self._tested(test.property, test.property_span, owner)
        value: ir.ValueExpr | None
        match test.value:
            case tree.Now():
                self.uses_now = True
                value = ir.Now()
            case tree.Variable():
                value = self.parameter(test.value)
            case tree.Literal() if test.value.kind is LiteralKind.NULL:
                hint = f"write {test.property} is null, or is not null"
                self.report("T7", test.value.span, "nothing compares with null", hint=hint)
                return None
            case tree.Literal():
                value = self.literal(test.value)
        if prop is None or value is None:
            return None
        if isinstance(owner, EdgeType) and prop.name in _ENDPOINTS and test.operator in _EQUALITIES:
            own = self._own_type(owner, prop.name)
            if own is not None and comparable(own, value.type):
                return ir.Compare(prop.name, test.operator, _as_id(value, own))
            if own is not None and value.type.is_string:
                return ir.Compare(prop.name, test.operator, _as_id(value, own))
        reason = compare_refusal(prop.type, test.operator, value.type)
        if reason is not None:
            hint = date_hint(prop.type, value)
            self.report("T7", test.span, reason, type_name=owner.name, property_name=prop.name, hint=hint)
            return None
        return ir.Compare(prop.name, test.operator, value)


def _as_id(value: ir.ValueExpr, own: ir.PropertyType) -> ir.ValueExpr:
    """The id of the node that a value names by its key."""
    match value:
        case ir.Literal(value=None) | ir.KeyText():
            return value
        case ir.Literal():
            return ir.Literal(id_text(value.value, own), ir.STRING)
        case ir.Param() | ir.Now():
            return ir.KeyText(value, own)


def compare_refusal(left: ir.PropertyType, operator: Operator, right: ir.PropertyType) -> str | None:
    """Why the operator cannot stand between these types; None when it can. The rules of query filters."""
    if operator is Operator.CONTAINS and left.is_list:
        if comparable(ir.PropertyType(left.kind), right):
            return None
        return f"{left.text()} cannot contain {right.text()}"
    if operator in TEXT_TESTS:
        if left.is_string and right.is_string:
            return None
        return f"{operator} needs String operands, got {left.text()} and {right.text()}"
    if comparable(left, right):
        return None
    return f"cannot compare {left.text()} with {right.text()}"
