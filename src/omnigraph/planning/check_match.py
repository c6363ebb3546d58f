"""Type check of match blocks: bindings, traversals, filters, `maybe` and `not`."""

from collections.abc import Callable
from dataclasses import field
from typing import TypeAlias

from omnigraph.catalog.schema import EdgeType, NodeType, Property
from omnigraph.core.late_dataclass import dataclass
from omnigraph.language import query_tree as tree
from omnigraph.language.query_tree import LiteralKind, Operator
from omnigraph.language.slips import left_side_hint
from omnigraph.language.source import Span
from omnigraph.planning import ir
from omnigraph.planning.check_base import comparable, date_hint
from omnigraph.planning.check_mutation import compare_refusal
from omnigraph.planning.check_operand import Bound, OperandCheck, Scope, id_hint

Resolve: TypeAlias = Callable[[tree.Expression], ir.Operand | None]
"""What an expression stands for; None after a report."""


@dataclass(slots=True)
class _Node:
    """A node variable of a block under construction."""

    type: NodeType
    declared: bool
    outer: bool
    anonymous: bool = False
    matches: list[ir.Predicate] = field(default_factory=list[ir.Predicate])

    def finish(self, name: str) -> ir.NodeVariable:
        matches = tuple(self.matches)
        joined = None if not matches else matches[0] if len(matches) == 1 else ir.And(matches)
        return ir.NodeVariable(name, self.type, joined, self.declared, self.outer, self.anonymous)


@dataclass(slots=True)
class _Draft:
    """A block under construction."""

    scope: Scope
    nodes: dict[str, _Node] = field(default_factory=dict[str, _Node])
    edges: dict[str, EdgeType] = field(default_factory=dict[str, EdgeType])
    paths: list[str] = field(default_factory=list[str])
    traversals: list[ir.Traversal] = field(default_factory=list[ir.Traversal])
    conditions: list[ir.Condition] = field(default_factory=list[ir.Condition])
    optionals: list[ir.Block] = field(default_factory=list[ir.Block])
    negations: list[ir.Block] = field(default_factory=list[ir.Block])

    def finish(self) -> ir.Block:
        return ir.Block(
            nodes=tuple(node.finish(name) for name, node in self.nodes.items()),
            edges=tuple(self.edges.items()),
            traversals=tuple(self.traversals),
            conditions=tuple(self.conditions),
            optionals=tuple(self.optionals),
            negations=tuple(self.negations),
            outer=frozenset(self.scope.needed),
            paths=tuple(self.paths),
        )


class MatchCheck(OperandCheck):
    """Blocks. Bindings, traversals and `maybe` in source order, then filters, then negations."""

    _anonymous = 0

    def block(self, clauses: tuple[tree.Clause, ...], scope: Scope) -> ir.Block:
        """The typed block; `scope` receives the variables it introduces."""
        draft = _Draft(scope)
        for clause in clauses:
            match clause:
                case tree.Binding():
                    self._binding(clause, draft)
                case tree.Traversal():
                    self._traversal(clause, draft)
                case tree.Maybe():
                    self._maybe(clause, draft)
                case _:
                    pass
        for clause in clauses:
            match clause:
                case tree.Binding() | tree.Traversal() | tree.Maybe() | tree.Negation():
                    pass
                case _:
                    condition = self.condition(clause, lambda part: self.operand(part, scope))
                    # What `and` joins at the top are two conditions.
                    if isinstance(condition, ir.Both):
                        draft.conditions += condition.parts
                    elif condition is not None:
                        draft.conditions.append(condition)
        for clause in clauses:
            if isinstance(clause, tree.Negation):
                draft.negations.append(self._inner(clause.clauses, clause.span, "not", draft))
        return draft.finish()

    def _inner(self, clauses: tuple[tree.Clause, ...], span: Span, word: str, draft: _Draft) -> ir.Block:
        scope = Scope(draft.scope)
        before = len(self.diagnostics)
        block = self.block(clauses, scope)
        if not scope.needed and len(self.diagnostics) == before:
            opening = Span(span.start, span.start + len(word))
            message = f"this {word}-block uses no variable from outside"
            hint = "mention one in a traversal, a filter or a binding of the block, or of a block inside it"
            self.report("T9", opening, message, hint=hint)
        if word == "maybe":
            for name, bound in scope.own.items():
                draft.scope.own[name] = Bound(name, bound.type, bound.at, optional=True)
        return block

    def _maybe(self, clause: tree.Maybe, draft: _Draft) -> None:
        draft.optionals.append(self._inner(clause.clauses, clause.span, "maybe", draft))

    # Bindings

    def _binding(self, clause: tree.Binding, draft: _Draft) -> None:
        node = self.catalog.nodes.get(clause.type_name)
        if node is None:
            self._unknown_node_type(clause)
        name = clause.variable.name
        if clause.variable.is_anonymous:
            if node is None:
                return
            name = self._fresh_name()
        bound = draft.scope.find(name)
        if bound is None:
            draft.scope.own[name] = Bound(name, node, clause.span.start)
        elif not self._may_rebind(clause, bound, node, draft):
            return
        if node is None:
            return
        known = draft.nodes.get(name)
        if known is None:
            outer = bound is not None and name not in draft.scope.own
            known = draft.nodes[name] = _Node(node, declared=True, outer=outer)
            known.anonymous = clause.variable.is_anonymous
        known.declared = True
        for match in clause.matches:
            predicate = self._property_match(match, node, clause.variable)
            if predicate is not None:
                known.matches.append(predicate)

    def _unknown_node_type(self, clause: tree.Binding) -> None:
        name = clause.type_name
        hint = None
        if name in self.catalog.edges:
            spelled = name[0].lower() + name[1:]
            hint = f"'{name}' is an edge type; edges are bound in a traversal, as in $a $e:{spelled} $b"
        elif name in self.catalog.interfaces:
            hint = f"'{name}' is an interface; name one of the node types that implement it"
        self.report(
            "T1", clause.type_span, f"no node type '{name}'", near=(name, self.catalog.nodes), hint=hint
        )

    def _may_rebind(self, clause: tree.Binding, bound: Bound, node: NodeType | None, draft: _Draft) -> bool:
        name = bound.name
        if isinstance(bound.type, EdgeType):
            self.report("T23", clause.variable.span, f"'${name}' names an edge and cannot be bound to a node")
            return False
        if isinstance(bound.type, ir.PathType):
            self.report("T25", clause.variable.span, f"'${name}' names a path and cannot be bound to a node")
            return False
        if self._is_locally_optional(bound, draft):
            self._report_optional(clause.variable)
            return False
        if bound.type is None or node is None:
            return False
        if bound.type.name != node.name:
            message = f"'${name}' is a {bound.type.name} and cannot also be a {node.name}"
            self.report("", clause.span, message)
            return False
        return True

    def _is_locally_optional(self, bound: Bound, draft: _Draft) -> bool:
        return bound.optional and bound.name in draft.scope.own

    def _report_optional(self, variable: tree.Variable) -> None:
        message = f"'${variable.name}' comes from a maybe-block and may be null here"
        hint = "continue from it in a maybe-block, or test it with is null"
        self.report("", variable.span, message, hint=hint)

    def _fresh_name(self) -> str:
        self._anonymous += 1
        return f"_:{self._anonymous}"

    def _property_match(
        self, match: tree.PropertyMatch, owner: NodeType, variable: tree.Variable
    ) -> ir.Predicate | None:
        prop = owner.get(match.property)
        if prop is None:
            message = f"'{owner.name}' has no property '{match.property}'"
            hint = id_hint(owner, variable.name) if match.property == "id" else None
            self.report(
                "T2",
                match.property_span,
                message,
                near=None if hint else (match.property, owner.by_name),
                hint=hint,
                type_name=owner.name,
                property_name=match.property,
            )
            return None
        value = self._matched_value(match, prop)
        if value is None:
            return None
        operator = Operator.CONTAINS if prop.type.is_list else Operator.EQ
        return ir.Compare(prop.name, operator, value)

    def _matched_value(self, match: tree.PropertyMatch, prop: Property) -> ir.ValueExpr | None:
        """The value a property is matched with: T3 for literals, T7 for parameters, T14 for unknown ones."""
        atom = match.value
        value: ir.ValueExpr | None
        if isinstance(atom, tree.Variable):
            code, what, value = "T7", "the parameter", self.parameter(atom)
        elif isinstance(atom, tree.Now):
            code, what, value = "T7", "now()", self.value(atom)
        else:
            code, what, value = "T3", "the literal", self.literal(atom)
        if value is None:
            return None
        reason: str | None = None
        hint: str | None = None
        element = ir.PropertyType(prop.type.kind, enum_values=prop.type.enum_values)
        if prop.type.is_blob or prop.type.is_vector:
            reason, code = f"property '{prop.name}' is {prop.type.text()} and cannot be matched", "T3"
        elif isinstance(atom, tree.Literal) and atom.kind is LiteralKind.NULL:
            reason = f"'{prop.name}: null' never matches; write is null as a filter"
        elif prop.type.is_list and value.type.is_list:
            reason = f"property '{prop.name}' is a list and is matched by one member, {what} is a list"
            hint = f"write {{ {prop.name}: member }}, and a filter with contains for each further member"
        elif not comparable(element, value.type):
            reason = f"property '{prop.name}' is {prop.type.text()}, {what} is {value.type.text()}"
            hint = date_hint(element, value)
        elif (
            isinstance(value, ir.Literal)
            and element.is_enum
            and value.value not in (element.enum_values or ())
        ):
            reason = f"property '{prop.name}' is one of {', '.join(element.enum_values or ())}"
        if reason is not None:
            self.report(code, atom.span, reason, hint=hint, property_name=prop.name)
            return None
        return value

    # Traversals

    def _traversal(self, clause: tree.Traversal, draft: _Draft) -> None:
        edge = self.catalog.edge(clause.edge)
        if edge is None:
            known = [name[0].lower() + name[1:] for name in self.catalog.edges]
            message = f"no edge type matches '{clause.edge}'"
            hint = left_side_hint(clause.edge)
            self.report("T4", clause.edge_span, message, near=(clause.edge, known), hint=hint)
            self._leave_unknown(clause, draft)
            return
        ends_fit = self._check_ends(clause, draft)
        bounds = self._hop_bounds(clause)
        edge_fits = self._check_edge_variable(clause, draft) and self._check_path(clause, edge, draft)
        if not (ends_fit and edge_fits) or bounds is None:
            self._leave_unknown(clause, draft)
            return
        if clause.undirected and edge.source != edge.target:
            message = f"{edge.name} joins {edge.source} to {edge.target} and has no undirected form"
            self.report("T22", clause.edge_span, message)
            self._leave_unknown(clause, draft)
            return
        self._add_traversal(clause, edge, bounds, draft)

    def _add_traversal(
        self, clause: tree.Traversal, edge: EdgeType, bounds: tuple[int, int], draft: _Draft
    ) -> None:
        left = None if clause.source.is_anonymous else draft.scope.find(clause.source.name)
        reverse = (
            edge.source != edge.target
            and left is not None
            and left.type is not None
            and left.type.name == edge.target
        )
        wanted = (edge.target, edge.source) if reverse else (edge.source, edge.target)
        names = [
            self._end(variable, self.catalog.nodes[type_name], edge, clause, draft)
            for variable, type_name in zip((clause.source, clause.target), wanted, strict=True)
        ]
        if clause.edge_variable is not None and not clause.edge_variable.is_anonymous:
            name = clause.edge_variable.name
            draft.scope.own[name] = Bound(name, edge, clause.span.start)
            draft.edges[name] = edge
            edge_variable = name
        else:
            edge_variable = None
        if clause.path is not None:
            kind = ir.PathType(edge, weighed=clause.weight is not None)
            draft.scope.own[clause.path.name] = Bound(clause.path.name, kind, clause.span.start)
            draft.paths.append(clause.path.name)
        first, second = names
        if first is None or second is None:
            return
        low, high = bounds
        if edge.source != edge.target and low == 1:
            high = 1  # ends of different types cannot be chained
        traversal = ir.Traversal(
            edge=edge,
            source=second if reverse else first,
            target=first if reverse else second,
            undirected=clause.undirected,
            low=low,
            high=high,
            multi=clause.hops is not None,
            edge_variable=edge_variable,
            path=None if clause.path is None else clause.path.name,
            weight=clause.weight,
        )
        draft.traversals.append(traversal)

    def _end(
        self,
        variable: tree.Variable,
        wanted: NodeType,
        edge: EdgeType,
        clause: tree.Traversal,
        draft: _Draft,
    ) -> str | None:
        """The variable at one end, introduced when it is new; T5 when it is of another type."""
        name = variable.name
        if variable.is_anonymous:
            name = self._fresh_name()
            draft.nodes[name] = _Node(wanted, declared=False, outer=False, anonymous=True)
            return name
        bound = draft.scope.find(name)
        if bound is None:
            draft.scope.own[name] = Bound(name, wanted, clause.span.start)
            draft.nodes[name] = _Node(wanted, declared=False, outer=False)
            return name
        if bound.type is None:
            return None
        if bound.type.name != wanted.name:
            message = (
                f"'${name}' is a {bound.type.name}, edge {edge.name} connects {edge.source} and {edge.target}"
            )
            self.report("T5", variable.span, message)
            return None
        return name

    def _check_ends(self, clause: tree.Traversal, draft: _Draft) -> bool:
        """No edge variable and no locally optional variable at an end, and not both ends anonymous."""
        good = True
        if clause.source.is_anonymous and clause.target.is_anonymous:
            self.report("", clause.span, "a traversal between two anonymous ends restricts nothing")
            good = False
        for variable in (clause.source, clause.target):
            bound = None if variable.is_anonymous else draft.scope.find(variable.name)
            if bound is None:
                continue
            if isinstance(bound.type, EdgeType):
                message = f"'${variable.name}' names an edge and cannot be an end of a traversal"
                self.report("T23", variable.span, message)
                good = False
            elif isinstance(bound.type, ir.PathType):
                message = f"'${variable.name}' names a path and cannot be an end of a traversal"
                self.report("T25", variable.span, message)
                good = False
            elif self._is_locally_optional(bound, draft):
                self._report_optional(variable)
                good = False
        return good

    def _check_edge_variable(self, clause: tree.Traversal, draft: _Draft) -> bool:
        variable = clause.edge_variable
        if variable is None or variable.is_anonymous:
            return True
        message: str | None = None
        if clause.hops is not None and (clause.hops.low, clause.hops.high) != (1, 1):
            high = "any" if clause.hops.high is None else clause.hops.high
            message = f"'${variable.name}' names one edge and cannot span {clause.hops.low} to {high} hops"
        elif variable.name in {clause.source.name, clause.target.name}:
            message = f"'${variable.name}' cannot name the edge and one of its ends"
        elif draft.scope.find(variable.name) is not None:
            message = f"'${variable.name}' is bound already; an edge needs a new name"
        if message is not None:
            self.report("T23", variable.span, message)
        return message is None

    def _check_path(self, clause: tree.Traversal, edge: EdgeType, draft: _Draft) -> bool:
        """A new name, a bound of its length, and a number that weighs."""
        path = clause.path
        if path is None:
            return True
        if clause.hops is None or clause.hops.low != 1:
            hint = f"write the greatest number of edges, as in shortest {clause.edge}{{1,6}}"
            self.report(
                "T15", clause.edge_span, "the length of a shortest path is bounded, from 1 on", hint=hint
            )
            return False
        message: str | None = None
        if path.is_anonymous:
            message = "a path needs a name; without one leave out shortest"
        elif path.name in {clause.source.name, clause.target.name}:
            message = f"'${path.name}' cannot name the path and one of its ends"
        elif draft.scope.find(path.name) is not None:
            message = f"'${path.name}' is bound already; a path needs a new name"
        if message is not None:
            self.report("T25", path.span, message)
            return False
        return clause.weight is None or self._check_weight(clause, edge, clause.weight)

    def _check_weight(self, clause: tree.Traversal, edge: EdgeType, name: str) -> bool:
        prop = edge.get(name)
        if prop is None:
            message = f"'{edge.name}' has no property '{name}'"
            self.report("T6", clause.weight_span, message, near=(name, edge.by_name), type_name=edge.name)
        elif not (prop.type.is_scalar and prop.type.is_numeric):
            message = f"a weight is a number, {edge.name}.{name} is {prop.type.text()}"
            self.report("T25", clause.weight_span, message, type_name=edge.name, property_name=name)
        else:
            return True
        return False

    def _hop_bounds(self, clause: tree.Traversal) -> tuple[int, int] | None:
        hops = clause.hops
        if hops is None:
            return (1, 1)
        if hops.high is None:
            hint = (
                f"write the greatest number of hops too, as in {{{max(hops.low, 1)},{max(hops.low, 1) + 4}}}"
            )
            self.report("T15", hops.span, f"hop range {{{hops.low},}} has no upper bound", hint=hint)
            return None
        if 1 <= hops.low <= hops.high:
            return (hops.low, hops.high)
        wrong = "must start at 1 or more" if hops.low < 1 else "is empty"
        self.report("T15", hops.span, f"hop range {{{hops.low},{hops.high}}} {wrong}")
        return None

    def _leave_unknown(self, clause: tree.Traversal, draft: _Draft) -> None:
        """After an error the variables count as bound, so that their later uses are not reported."""
        variables = [clause.source, clause.target]
        variables += [each for each in (clause.edge_variable, clause.path) if each is not None]
        for variable in variables:
            if not variable.is_anonymous and draft.scope.find(variable.name) is None:
                draft.scope.own[variable.name] = Bound(variable.name, None, clause.span.start)

    # Conditions

    def condition(self, test: tree.Test, resolve: Resolve) -> ir.Condition | None:
        """A typed condition; None after a report. `resolve` gives its operands."""
        match test:
            case tree.Filter():
                return self._comparison(test, resolve)
            case tree.NullTest():
                operand = self._compared(test.operand, resolve)
                return None if operand is None else ir.NullCheck(operand, test.negated)
            case tree.TextSearch():
                search = resolve(test.call)
                return ir.SearchTest(search, wanted=True) if isinstance(search, ir.Search) else None
            case tree.Either() | tree.Both():
                parts = [self.condition(part, resolve) for part in test.parts]
                known = tuple(part for part in parts if part is not None)
                if len(known) < len(parts):
                    return None
                return ir.Either(known) if isinstance(test, tree.Either) else ir.Both(known)

    def _comparison(self, clause: tree.Filter, resolve: Resolve) -> ir.Condition | None:
        left = self._compared(clause.left, resolve)
        right = self._compared(clause.right, resolve)
        if left is None or right is None:
            return None
        for operand, expression in ((left, clause.left), (right, clause.right)):
            if isinstance(operand, ir.NodeRef):
                message = (
                    f"'${operand.variable}' is a node and cannot be compared; compare one of its properties"
                )
                self.report("T7", expression.span, message)
                return None
            if isinstance(operand, ir.Rrf):
                self.report("T21", expression.span, "rrf orders rows and cannot be compared in match")
                return None
        reason = compare_refusal(left.type, clause.operator, right.type)
        if reason is not None:
            hint = date_hint(left.type, right) or date_hint(right.type, left)
            self.report("T7", clause.span, reason, hint=hint)
            return None
        return _simplified(ir.Comparison(left, clause.operator, right))

    def _compared(self, expression: tree.Expression, resolve: Resolve) -> ir.Operand | None:
        if isinstance(expression, tree.Literal) and expression.kind is LiteralKind.NULL:
            hint = "write is null, or is not null"
            self.report("T7", expression.span, "nothing compares with null", hint=hint)
            return None
        return resolve(expression)


def _simplified(condition: ir.Comparison) -> ir.Condition:
    """`search(…) = true` and its kin as a search test."""
    for search, other in ((condition.left, condition.right), (condition.right, condition.left)):
        if isinstance(search, ir.Search) and isinstance(other, ir.Literal) and isinstance(other.value, bool):
            if condition.op is Operator.EQ:
                return ir.SearchTest(search, wanted=other.value)
            if condition.op is Operator.NE:
                return ir.SearchTest(search, wanted=not other.value)
    return condition
