"""Type check of read queries: return, grouping, order, limit, offset."""

from omnigraph.catalog.schema import Catalog, EdgeType
from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_KINDS, ScalarKind
from omnigraph.language import query_tree as tree
from omnigraph.language.query_tree import Function, LiteralKind
from omnigraph.language.source import Source, Span
from omnigraph.planning import ir, mentions
from omnigraph.planning.check_match import MatchCheck
from omnigraph.planning.check_operand import Bound, Scope, is_aggregate
from omnigraph.planning.explain import operand_text

_ORDERED_BY_MIN = frozenset({ScalarKind.DATE, ScalarKind.DATETIME})


class ReadCheck(MatchCheck):
    """One read query, top to bottom."""

    def __init__(self, query: tree.Query, catalog: Catalog, source: Source, *, suggest: bool) -> None:
        super().__init__(query, catalog, source, suggest=suggest)
        self.number_params = {}
        self._columns: list[ir.Column] = []
        self._aliased: dict[str, int] = {}
        """Column positions by the name an `as` gave them."""
        self._named: dict[str, int] = {}
        """Column positions by the name they have in the result."""
        self._computed: list[tuple[tree.Projection, ir.Operand]] = []
        """The columns that are arithmetic."""
        self._lost_columns = False
        """Whether a projection was refused, so that unknown names may be its."""

    def plan(self, body: tree.ReadBody) -> ir.ReadPlan | None:
        """The typed query; None when anything was reported."""
        scope = Scope()
        match = self.block(body.clauses, scope)
        self._projections(body, scope)
        aggregate = any(is_aggregate(projection.expression) for projection in body.projections)
        aggregate = aggregate or any(mentions.aggregates_in(c.expression) for c in self._columns)
        if aggregate:
            self._check_grouping(body)
        having = self._having(body, scope, aggregate=aggregate)
        ranking, order = self._order(body, scope, aggregate=aggregate)
        limit, offset = self._bound(body.limit, "limit"), self._bound(body.offset, "offset")
        self._check_limits(body, ranking)
        if self.diagnostics:
            return None
        keys = [n for n, c in enumerate(self._columns) if not mentions.aggregates_in(c.expression)]
        return ir.ReadPlan(
            name=self.query.name,
            params=self.parameters(),
            match=match,
            columns=tuple(self._columns),
            is_aggregate=aggregate,
            grouping=tuple(keys) if aggregate else (),
            distinct=body.distinct,
            ranking=ranking,
            order=order,
            limit=body.limit if isinstance(body.limit, int) else None,
            offset=body.offset if isinstance(body.offset, int) else 0,
            limit_by=limit,
            offset_by=offset,
            having=having,
            ties=tuple(sorted(name for name, bound in scope.own.items() if _breaks_ties(bound))),
            uses_now=self.uses_now,
            number_params=tuple((name, *rule) for name, rule in self.number_params.items()),
            description=self.query.description,
            instruction=self.query.instruction,
        )

    # Projections

    def _projections(self, body: tree.ReadBody, scope: Scope) -> None:
        for projection in body.projections:
            if isinstance(projection.expression, tree.AllProperties):
                self._all_properties(projection.expression, scope)
                continue
            column = self._column(projection, projection.expression, scope)
            if column is None:
                self._lost_columns = True
                continue
            if projection.alias is not None:
                self._aliased.setdefault(projection.alias, len(self._columns))
            if isinstance(projection.expression, tree.Arithmetic):
                self._computed.append((projection, column.expression))
            if isinstance(column.expression, ir.Rrf) and body.limit is None:
                self.report("T21", projection.span, "rrf needs a limit")
            self._add(column)

    def _add(self, column: ir.Column) -> None:
        self._named.setdefault(column.name, len(self._columns))
        self._columns.append(column)

    def _all_properties(self, every: tree.AllProperties, scope: Scope) -> None:
        """A column for each property that can be one: blobs are read elsewhere."""
        bound = self.variable_named(every.variable, every.span, scope)
        owner = None if bound is None else bound.type
        if bound is None or owner is None:
            self._lost_columns = True
            return
        if isinstance(owner, ir.PathType):
            for part in owner.parts:
                part_ref = ir.PathRef(bound.name, owner, part, bound.optional)
                self._add(ir.Column(f"{bound.name}.{part}", part_ref, part_ref.type, part_ref.nullable))
            return
        found = [prop for prop in owner.properties if not prop.type.is_blob]
        if not found:
            self.report("T6", every.span, f"'{owner.name}' has no property that can be a column")
            self._lost_columns = True
        for prop in found:
            ref = ir.PropertyRef(bound.name, owner, prop, nullable=prop.nullable or bound.optional)
            self._add(ir.Column(f"{bound.name}.{prop.name}", ref, ref.type, ref.nullable))

    def _column(
        self, projection: tree.Projection, expression: tree.Expression, scope: Scope
    ) -> ir.Column | None:
        if isinstance(expression, tree.Literal) and expression.kind is LiteralKind.NULL:
            self.report("", expression.span, "null alone has no type and cannot be a column")
            return None
        resolved = self._column_expression(expression, scope)
        if resolved is None:
            return None
        if isinstance(resolved, ir.Param) and resolved.type.is_blob:
            self.report("T24", expression.span, f"'${resolved.name}' is a Blob and cannot be a column")
            return None
        if isinstance(expression, tree.Arithmetic) and projection.alias is None:
            self.report("", expression.span, "what is computed has no name", hint="give it one with as")
            return None
        name = projection.alias or _column_name(expression)
        return ir.Column(name, resolved, resolved.type, _nullable(resolved))

    def _column_expression(self, expression: tree.Expression, scope: Scope) -> ir.ColumnExpr | None:
        if isinstance(expression, tree.Alias):
            position = self._aliased.get(expression.name)
            if position is not None:
                return self._columns[position].expression
            if not self._lost_columns:
                message = f"no column named '{expression.name}' comes before this one"
                self.report("", expression.span, message, near=(expression.name, self._aliased))
            return None
        if isinstance(expression, tree.Call) and is_aggregate(expression):
            return self._aggregate(expression, scope)
        if isinstance(expression, tree.Arithmetic):
            return self.arithmetic(expression, lambda part: self._column_expression(part, scope))
        return self.operand(expression, scope)

    def _aggregate(self, call: tree.Call, scope: Scope) -> ir.Aggregate | None:
        argument = call.arguments[0]
        if isinstance(argument, tree.Call):
            inner = "another aggregate" if is_aggregate(argument) else f"{argument.function}(…)"
            self.report("T8", argument.span, f"{call.function} cannot be taken of {inner}")
            return None
        operand = self._counted_edge(call, scope) or self.operand(argument, scope)
        if operand is None:
            return None
        if isinstance(operand, ir.Search | ir.Nearest | ir.Bm25 | ir.Rrf | ir.Aggregate):
            return None
        if isinstance(operand, ir.Literal) and operand.value is None:
            self.report("T8", argument.span, f"{call.function} of null has no type")
            return None
        type_ = operand.type
        if type_.is_blob:
            self.report("T24", argument.span, "a Blob cannot be aggregated")
            return None
        match call.function:
            case Function.COUNT if call.distinct and not type_.is_scalar:
                wanted = "single values to tell apart"
            case Function.COUNT:
                return ir.Aggregate(call.function, operand, ir.I64, call.distinct)
            case Function.SUM | Function.AVG:
                if type_.is_numeric and not isinstance(operand, ir.NodeRef):
                    whole = call.function is Function.SUM and type_.kind not in FLOAT_KINDS
                    return ir.Aggregate(call.function, operand, ir.I64 if whole else ir.F64)
                wanted = "a number"
            case _:
                if type_.is_numeric or type_.is_string or (type_.is_scalar and type_.kind in _ORDERED_BY_MIN):
                    return ir.Aggregate(call.function, operand, type_)
                wanted = "a number, String, Date or DateTime"
        got = "a node" if isinstance(operand, ir.NodeRef) else type_.text()
        self.report("T8", argument.span, f"{call.function} needs {wanted}, got {got}")
        return None

    def _counted_edge(self, call: tree.Call, scope: Scope) -> ir.NodeRef | None:
        """A bound edge, which a count may name."""
        argument = call.arguments[0]
        if call.function is not Function.COUNT or not isinstance(argument, tree.Variable):
            return None
        bound = None if argument.name in self.params else scope.find(argument.name)
        if bound is None or not isinstance(bound.type, EdgeType):
            return None
        return ir.NodeRef(bound.name, bound.type, bound.optional)

    def _check_grouping(self, body: tree.ReadBody) -> None:
        if body.distinct:
            word = Span(body.return_span.start, body.return_span.start + len("return"))
            self.report("T9", word, "distinct cannot be combined with aggregates")
        for projection in body.projections:
            expression: tree.Expression | tree.AllProperties | ir.ColumnExpr = projection.expression
            if isinstance(expression, tree.Alias):
                position = self._aliased.get(expression.name)
                if position is None:
                    continue
                expression = self._columns[position].expression
            match expression:
                case tree.Literal() | ir.Literal():
                    what = "a literal"
                case tree.Now() | ir.Now():
                    what = "now()"
                case tree.Call() if not is_aggregate(expression):
                    what = f"{expression.function}(…)"
                case ir.Search() | ir.Nearest() | ir.Bm25() | ir.Rrf():
                    what = "a search"
                case _:
                    continue
            self.report("T9", projection.span, f"{what} cannot be a grouping key")
        for projection, column in self._computed:
            if mentions.aggregates_in(column):
                self._check_leaves(column, projection.span)
            elif not mentions.variables_of(column):
                self.report("T9", projection.span, "a constant cannot be a grouping key")

    def _check_leaves(self, expression: ir.Operand, span: Span) -> None:
        """Beside aggregates only values of the whole group are computed with."""
        for leaf in mentions.leaves_of(expression):
            shared = isinstance(leaf, ir.Aggregate | ir.Literal | ir.Param | ir.Now)
            if not shared and self._position_of(leaf) is None and not self._lost_columns:
                name = operand_text(leaf)
                message = f"'{name}' is not a column, and has no one value in a group"
                self.report("T9", span, message, hint=f"return {name} as well, or an aggregate of it")

    # Having

    def _having(self, body: tree.ReadBody, scope: Scope, *, aggregate: bool) -> tuple[ir.Condition, ...]:
        if body.having and not aggregate and not self._lost_columns:
            word = Span(body.having_span.start, body.having_span.start + len("having"))
            hint = "conditions on rows are clauses of the match block"
            self.report("T9", word, "having is about groups, and nothing is aggregated", hint=hint)
            return ()
        found: list[ir.Condition] = []
        for test in body.having:
            condition = self.condition(test, lambda part: self._of_group(part, scope))
            if condition is not None:
                found.append(condition)
        return tuple(found)

    def _of_group(self, expression: tree.Expression, scope: Scope) -> ir.Operand | None:
        """What a condition on groups looks at: aggregates, columns, constants."""
        match expression:
            case tree.Alias():
                position = self._aliased.get(expression.name, self._named.get(expression.name))
                if position is not None:
                    return self._columns[position].expression
                if not self._lost_columns:
                    known = [column.name for column in self._columns if "." not in column.name]
                    message = f"no column named '{expression.name}'"
                    self.report("", expression.span, message, near=(expression.name, known))
                return None
            case tree.Arithmetic():
                return self.arithmetic(expression, lambda part: self._of_group(part, scope))
            case tree.Call() if is_aggregate(expression):
                return self._aggregate(expression, scope)
            case tree.Call():
                self.report("T9", expression.span, "groups are not searched; search in the match block")
                return None
            case _:
                found = self.operand(expression, scope)
                if found is not None:
                    self._check_leaves(found, expression.span)
                return found

    # Order

    def _order(
        self, body: tree.ReadBody, scope: Scope, *, aggregate: bool
    ) -> tuple[ir.Ranking | None, tuple[ir.SortKey, ...]]:
        ranking: ir.Ranking | None = None
        keys: list[ir.SortKey] = []
        for position, item in enumerate(body.order):
            expression = item.expression
            is_call = isinstance(expression, tree.Call) and not is_aggregate(expression)
            if is_call and position == 0:
                ranking = self._ranking(item, body, scope, aggregate=aggregate)
                continue
            key = self._sort_key(item, body, scope, aggregate=aggregate)
            if key is not None:
                keys.append(ir.SortKey(key, descending=bool(item.descending)))
        self._check_nearest_alone(body)
        return ranking, tuple(keys)

    def _ranking(
        self, item: tree.OrderItem, body: tree.ReadBody, scope: Scope, *, aggregate: bool
    ) -> ir.Ranking | None:
        found = self.operand(item.expression, scope)
        if found is None:
            return None
        if not isinstance(found, ir.Nearest | ir.Bm25 | ir.Rrf):
            self.report(
                "T19", item.span, "a text search is true or false and cannot order rows; bm25 ranks them"
            )
            return None
        if aggregate:
            self.report("", item.span, "the groups of an aggregate query cannot be ranked by a search")
        elif body.distinct:
            self.report("", item.span, "distinct rows cannot be ranked by a search")
        return found

    def _check_nearest_alone(self, body: tree.ReadBody) -> None:
        first = body.order[0].expression if body.order else None
        if isinstance(first, tree.Call) and first.function is Function.NEAREST:
            for item in body.order[1:]:
                if isinstance(item.expression, tree.Alias):
                    message = f"'{item.expression.name}' cannot be combined with nearest in order"
                    self.report("T18", item.span, message)

    def _sort_key(
        self, item: tree.OrderItem, body: tree.ReadBody, scope: Scope, *, aggregate: bool
    ) -> ir.ColumnRef | ir.PropertyRef | ir.PathRef | ir.Aggregate | None:
        expression = item.expression
        match expression:
            case tree.Alias():
                return self._alias_key(expression)
            case tree.PropertyAccess():
                ref = self.accessed(expression, scope)
                if ref is None:
                    return None
                if not ref.type.is_scalar:
                    self.report("", item.span, f"{ref.type.text()} has no order")
                    return None
                return self._projected(ref, item, aggregate=aggregate, distinct=body.distinct)
            case tree.Call() if is_aggregate(expression):
                if not aggregate:
                    self.report("T8", item.span, "an aggregate orders only the groups of an aggregate query")
                    return None
                found = self._aggregate(expression, scope)
                if found is None:
                    return None
                return self._position_of(found) or found
            case tree.Call():
                self.report("", item.span, f"{expression.function} must be the first order item")
            case _:
                self.report("", item.span, "rows are ordered by properties, columns or a search")
        return None

    def _alias_key(self, alias: tree.Alias) -> ir.ColumnRef | None:
        position = self._aliased.get(alias.name, self._named.get(alias.name))
        if position is None:
            if not self._lost_columns:
                known = [column.name for column in self._columns if "." not in column.name]
                self.report("", alias.span, f"no column named '{alias.name}'", near=(alias.name, known))
            return None
        column = self._columns[position]
        if not column.type.is_scalar:
            self.report("", alias.span, f"{column.type.text()} has no order")
            return None
        return ir.ColumnRef(position)

    def _projected(
        self, ref: ir.PropertyRef | ir.PathRef, item: tree.OrderItem, *, aggregate: bool, distinct: bool
    ) -> ir.ColumnRef | ir.PropertyRef | ir.PathRef | None:
        if not (aggregate or distinct):
            return ref
        found = self._position_of(ref)
        if found is None and not self._lost_columns:
            kind = "an aggregate query" if aggregate else "return distinct"
            message = f"'{operand_text(ref)}' is not a column, and {kind} can only be ordered by columns"
            self.report("", item.span, message)
        return found

    def _position_of(self, expression: ir.ColumnExpr) -> ir.ColumnRef | None:
        for position, column in enumerate(self._columns):
            if column.expression == expression:
                return ir.ColumnRef(position)
        return None

    # Limit

    def _bound(self, number: int | tree.Variable | None, word: str) -> ir.Param | None:
        """The parameter that a limit or an offset is given by."""
        if not isinstance(number, tree.Variable):
            return None
        param = self.parameter(number)
        if param is None:
            return None
        if not (param.type.is_scalar and param.type.kind in INTEGER_KINDS):
            self.report("T7", number.span, f"{word} needs an integer, '${param.name}' is {param.type.text()}")
            return None
        self.number_params.setdefault(param.name, (0, word))
        return param

    def _check_limits(self, body: tree.ReadBody, ranking: ir.Ranking | None) -> None:
        if body.limit is None:
            for item in body.order[:1]:
                if isinstance(ranking, ir.Nearest):
                    self.report("T17", item.span, "nearest needs a limit")
                elif isinstance(ranking, ir.Rrf):
                    self.report("T21", item.span, "rrf needs a limit")
        if body.offset is not None and not body.order:
            self.report("", body.offset_span, "offset needs an order; without one the rows have none")


def _breaks_ties(bound: Bound) -> bool:
    """Whether the id of a variable orders rows that are equal otherwise: a path follows from its ends."""
    return not bound.name.startswith("_:") and not isinstance(bound.type, ir.PathType)


def _column_name(expression: tree.Expression) -> str:
    match expression:
        case tree.PropertyAccess():
            return f"{expression.variable}.{expression.property}"
        case tree.Variable() | tree.Alias():
            return expression.name
        case tree.Literal():
            return "literal"
        case tree.Now():
            return "now"
        case tree.Arithmetic():
            return ""
        case tree.Call():
            return (
                _column_name(expression.arguments[0])
                if is_aggregate(expression)
                else expression.function.value
            )


def _nullable(expression: ir.ColumnExpr) -> bool:
    match expression:
        case ir.Literal() | ir.Now():
            return False
        case ir.Param() | ir.NodeRef() | ir.PropertyRef() | ir.PathRef() | ir.Aggregate():
            return expression.nullable
        case ir.Search() | ir.Nearest():
            return expression.property.nullable or getattr(expression.query, "nullable", False)
        case ir.Bm25() | ir.Rrf() | ir.Arithmetic():
            return True
