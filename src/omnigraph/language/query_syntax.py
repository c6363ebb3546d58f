"""Parser of `.gq`: queries, read bodies, clauses. `parse_queries` is the entry; it never raises."""

from dataclasses import replace

from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import DIAGNOSTICS_REPORTED_MAX
from omnigraph.language.cursor import Unparsable
from omnigraph.language.diagnostics import Diagnostic, in_source_order, near_names
from omnigraph.language.lexer import Kind, Lexed, Token, lex, string_value
from omnigraph.language.mutation_syntax import STATEMENT_WORDS, MutationParser
from omnigraph.language.query_tree import (
    NOWHERE,
    TEXT_SEARCHES,
    Alias,
    AllProperties,
    Binding,
    Both,
    Call,
    Clause,
    Either,
    Filter,
    Function,
    Hops,
    Maybe,
    Meta,
    MutationBody,
    Negation,
    NullTest,
    OrderItem,
    Parameter,
    ParameterType,
    Projection,
    PropertyMatch,
    Query,
    ReadBody,
    Test,
    TextSearch,
    Traversal,
    Variable,
)
from omnigraph.language.slips import clause_hint, operand_hint, operator_hint, part_hint
from omnigraph.language.source import Source, Span

SYNTAX_CODE = "Q000"
SCALARS = ("String", "Bool", "I32", "I64", "U32", "U64", "F32", "F64", "Date", "DateTime", "Blob")


@dataclass(frozen=True, slots=True)
class QueryFile:
    """The queries of a text. With diagnostics, only the queries that could be read are there."""

    source: Source
    queries: tuple[Query, ...]
    diagnostics: tuple[Diagnostic, ...]
    lexed: Lexed

    @property
    def ok(self) -> bool:
        """Whether the whole text was read."""
        return not self.diagnostics

    def named(self, name: str) -> Query | None:
        """The first query of this name."""
        return next((query for query in self.queries if query.name == name), None)


def parse_queries(text: str, file: str | None = None) -> QueryFile:
    """The queries of a text, or what is wrong with it: at most one grammar error per query, in source order.

    Cost: linear in the text.
    """
    return parse_source(Source(text, file))


def parse_source(source: Source) -> QueryFile:
    """Like `parse_queries`, for a text that is already a source."""
    lexed = lex(source)
    if lexed.diagnostics:
        found = in_source_order(replace(item, code=SYNTAX_CODE) for item in lexed.diagnostics)
        return QueryFile(source, (), found, lexed)
    parser = QueryParser(lexed)
    queries, found = parser.file()
    return QueryFile(source, queries, in_source_order(found), lexed)


class QueryParser(MutationParser):
    """Recursive descent; one method per rule of the grammar."""

    def file(self) -> tuple[tuple[Query, ...], list[Diagnostic]]:
        """Every query; after a grammar error reading goes on at the next `query name (`."""
        queries: list[Query] = []
        found: list[Diagnostic] = []
        while not self.at_kind(Kind.END) and len(found) < DIAGNOSTICS_REPORTED_MAX:
            start = self.index
            try:
                queries.append(self._query())
            except Unparsable as error:
                found.append(replace(error.diagnostic, code=SYNTAX_CODE))
                self._skip_to_next_query(start)
        return tuple(queries), found

    def _skip_to_next_query(self, failed: int) -> None:
        self.index = max(self.index, failed + 1)
        while not self.at_kind(Kind.END):
            if self.at("query") and self.peek(1).kind is Kind.NAME and self.ahead_is(2, "("):
                return
            self.index += 1

    def _query(self) -> Query:
        start = self.expect(
            "query", "to start a query", hint="a file holds queries only: query name() { … }"
        ).span
        name = self.name("a query name")
        self.expect("(", f"after query {name.text}", hint=f"without parameters write query {name.text}()")
        parameters = self._parameters()
        head = start.to(self.previous.span)
        meta = self._meta()
        opening = self.expect("{", "to open the query").span
        body = self._body()
        end = self.expect("}", "to close the query").span
        return Query(name.text, parameters, body, meta, start.to(end), name.span, head, opening.to(end))

    def _parameters(self) -> tuple[Parameter, ...]:
        found: list[Parameter] = []
        if not self.take(")"):
            while True:
                found.append(self._parameter())
                if not self.take(","):
                    break
            self.expect(")", "to close the parameters")
        return tuple(found)

    def _parameter(self) -> Parameter:
        variable = self.variable("a parameter, as in $name: String")
        self.expect(":", f"after ${variable.name}")
        type_ = self._parameter_type()
        nullable = self.take("?")
        return Parameter(variable.name, type_, nullable, variable.span.to(self.previous.span))

    def _parameter_type(self) -> ParameterType:
        if self.take("["):
            scalar = self._scalar()
            self.expect("]", "to close the list type")
            return ParameterType(scalar, is_list=True)
        if self.at_kind(Kind.TYPE) and self.token.text == "Vector":
            self.advance()
            self.expect("(", "after Vector")
            start = self.token
            dimensions = self.integer("the number of dimensions")
            if not 1 <= dimensions <= 2**31 - 1:
                raise self.refuse(start.span, "a vector has between 1 and 2147483647 dimensions")
            self.expect(")", "to close Vector(")
            return ParameterType("F32", vector_dim=dimensions)
        return ParameterType(self._scalar())

    def _scalar(self) -> str:
        token = self.token
        if token.kind is Kind.TYPE and token.text in SCALARS:
            self.index += 1
            return token.text
        if self.at("enum"):
            raise self.expected("a parameter type", hint="the type of an enum parameter is String")
        if token.kind in {Kind.TYPE, Kind.NAME}:
            message = f"'{token.text}' is not a parameter type"
            raise self.refuse(token.span, message, candidates=near_names(token.text, (*SCALARS, "Vector")))
        raise self.expected("a parameter type")

    def _meta(self) -> tuple[Meta, ...]:
        found: dict[str, Meta] = {}
        while self.at("@"):
            start = self.advance().span
            name = self.name("description or instruction")
            span = start.to(name.span)
            if name.text not in {"description", "instruction"}:
                near = tuple(f"@{near}" for near in near_names(name.text, ("description", "instruction")))
                raise self.refuse(span, f"a query has no annotation '@{name.text}'", candidates=near)
            if name.text in found:
                raise self.refuse(span, f"'@{name.text}' is given twice")
            self.expect("(", f"after @{name.text}")
            text = self.expect_kind(Kind.STRING, f"a string in @{name.text}(…)")
            end = self.expect(")", f"to close @{name.text}(")
            found[name.text] = Meta(name.text, string_value(text.text), text.text, start.to(end.span))
        return tuple(found.values())

    def _body(self) -> ReadBody | MutationBody:
        if self.at("match"):
            return self._read()
        if self.token.text in STATEMENT_WORDS:
            return self.mutation_body()
        near = near_names(self.token.text, ("match", *STATEMENT_WORDS))
        found = self.expected("match, insert, update or delete").diagnostic
        raise Unparsable(replace(found, candidates=near))

    def _read(self) -> ReadBody:
        start = self.advance().span
        clauses, match_braces = self._clauses("after match")
        match_span = start.to(match_braces)
        start = self.expect("return", "after the match block", hint=part_hint(self.token.text)).span
        distinct = self.take("distinct")
        projections, return_braces = self._projections()
        return_span = start.to(return_braces)
        order: tuple[OrderItem, ...] = ()
        order_span = order_braces = limit_span = offset_span = NOWHERE
        limit = offset = None
        having, having_span, having_braces = self._having()
        if self.at("order"):
            start = self.advance().span
            order, order_braces = self._order()
            order_span = start.to(order_braces)
        if self.at("limit"):
            start = self.advance().span
            limit = self._bound("limit")
            limit_span = start.to(self.previous.span)
        if self.at("offset"):
            start = self.advance().span
            offset = self._bound("offset")
            offset_span = start.to(self.previous.span)
        self._refuse_late_part()
        return ReadBody(
            clauses,
            distinct,
            projections,
            order,
            limit,
            offset,
            having,
            match_span=match_span,
            return_span=return_span,
            having_span=having_span,
            order_span=order_span,
            limit_span=limit_span,
            offset_span=offset_span,
            match_braces=match_braces,
            return_braces=return_braces,
            having_braces=having_braces,
            order_braces=order_braces,
        )

    def _having(self) -> tuple[tuple[Test, ...], Span, Span]:
        if not self.at("having"):
            return (), NOWHERE, NOWHERE
        start = self.advance().span
        opening = self.expect("{", "after having", hint="as in having { n > 1 }").span
        found: list[Test] = []
        while not self.at("}") or not found:
            if self.at("-"):
                raise self.expected("a condition", hint=clause_hint("-"))
            found.append(self._either())
        braces = opening.to(self.advance().span)
        return tuple(found), start.to(braces), braces

    def _bound(self, word: str) -> int | Variable:
        """Digits or a parameter."""
        if self.at_kind(Kind.VARIABLE):
            return self.variable()
        return self.integer(f"a number or a parameter after {word}")

    def _refuse_late_part(self) -> None:
        if self.at("}") or self.at_kind(Kind.END):
            return
        word = self.token.text
        if word in {"having", "order", "limit", "offset", "match", "return"}:
            message = f"'{word}' cannot stand here; the order is match, return, having, order, limit, offset"
            raise self.refuse(self.token.span, message)
        if word in STATEMENT_WORDS:
            raise self.expected("'}'", hint="a query reads or changes data, never both")
        hint = part_hint(word)
        if hint is not None:
            raise self.expected("'}' to close the query", hint=hint)

    def _clauses(self, context: str) -> tuple[tuple[Clause, ...], Span]:
        opening = self.expect("{", context).span
        found: list[Clause] = []
        while not self.at("}") or not found:
            found.append(self._clause())
        return tuple(found), opening.to(self.advance().span)

    def _clause(self) -> Clause:
        token = self.token
        if token.kind is Kind.VARIABLE:
            return self._variable_clause()
        if token.kind is Kind.NAME and self.ahead_is(1, "{"):
            if token.text == "not":
                self.advance()
                clauses, braces = self._clauses("after not")
                return Negation(clauses, token.span.to(braces), braces)
            if token.text == "maybe":
                self.advance()
                clauses, braces = self._clauses("after maybe")
                return Maybe(clauses, token.span.to(braces), braces)
        if token.text == "return" and (self.ahead_is(1, "{") or self.ahead_is(1, "distinct")):
            raise self.expected("a clause or '}' before return")
        if token.kind in {Kind.END, Kind.TYPE} or (token.kind is Kind.PUNCT and token.text not in {"[", "("}):
            raise self.expected("a clause", hint=clause_hint(token.text))
        return self._either()

    def _variable_clause(self) -> Clause:
        follows = self.peek(1)
        if follows.kind is Kind.PUNCT:
            if follows.text == ":":
                return self._binding()
            undirected = self.peek(2).kind is Kind.NAME and self.ahead_is(3, ">")
            if follows.text == "<" and undirected:
                return self._traversal()
            return self._either()
        if follows.kind is Kind.NAME and follows.text == "is":
            negated = self.ahead_is(2, "not") and self.ahead_is(3, "null")
            if negated or self.ahead_is(2, "null"):
                return self._either()
        if self.at_operator(1) and not self._at_end_of_hop(2):
            return self._either()
        if follows.kind in {Kind.NAME, Kind.VARIABLE}:
            return self._traversal()
        if follows.kind is Kind.TYPE:
            self.advance()
            lowered = follows.text[0].lower() + follows.text[1:]
            raise self.expected("an edge name", hint=f"a traversal spells it with a small letter: {lowered}")
        self.advance()
        raise self.expected("':', '.', an edge name or an operator")

    def _at_end_of_hop(self, ahead: int) -> bool:
        """Whether what stands there goes on after the name of an edge: `$a contains $b` is a traversal,
        `$list contains $b.name` is none.
        """
        if self.peek(ahead).kind is Kind.VARIABLE:
            return not self.ahead_is(ahead + 1, ".")
        return self.ahead_is(ahead, "{")

    def _binding(self) -> Binding:
        variable = self.variable()
        self.advance()
        type_name = self.type_name(f"a node type after ${variable.name}:")
        matches: list[PropertyMatch] = []
        braces = NOWHERE
        if self.take("{"):
            opening = self.previous.span
            if self.at("}"):
                hint = f"without matches write ${variable.name}: {type_name.text}"
                raise self.expected("a property name", hint=hint)
            matches.append(self._property_match())
            while self.take(",") and not self.at("}"):
                matches.append(self._property_match())
            braces = opening.to(self.expect("}", "or ',' after the property match").span)
        span = variable.span.to(self.previous.span)
        return Binding(variable, type_name.text, tuple(matches), span, type_name.span, braces)

    def _property_match(self) -> PropertyMatch:
        name = self.name("a property name")
        self.expect(":", f"after '{name.text}'", hint=f"an inline match is written {name.text}: value")
        value = self.atom(f"a value for '{name.text}'")
        return PropertyMatch(name.text, value, name.span.to(self.previous.span), name.span)

    def _traversal(self) -> Traversal:
        source = self.variable()
        edge_variable: Variable | None = None
        if self.at_kind(Kind.VARIABLE):
            edge_variable = self.variable()
            hint = "a traversal names an edge, as in $a knows $b"
            self.expect(":", f"after ${edge_variable.name}", hint=hint)
        path = edge_variable if self._at_shortest() else None
        if path is not None:
            self.advance()
            edge_variable = None
        undirected = self.take("<")
        edge = self.name("an edge name")
        if undirected:
            self.expect(">", f"after <{edge.text}")
        hops = self._hops() if self.at("{") else None
        if self.at("*") or self.at("+"):
            raise self.expected(f"a variable after '{edge.text}'", hint="hops are bounded, as in {1,3}")
        weight = self._weight(path, edge.text)
        target = self.variable(f"a variable after '{edge.text}'")
        return Traversal(
            source,
            edge_variable,
            edge.text,
            undirected,
            hops,
            target,
            path,
            None if weight is None else weight.text,
            span=source.span.to(target.span),
            edge_span=edge.span,
            weight_span=NOWHERE if weight is None else weight.span,
        )

    def _at_shortest(self) -> bool:
        """Whether the word asks for a path: an edge follows it, and no variable."""
        follows = self.peek(1)
        return self.at("shortest") and (follows.kind is Kind.NAME or self.ahead_is(1, "<"))

    def _weight(self, path: Variable | None, edge: str) -> Token | None:
        """The property of `by`, which weighs a path."""
        if not self.at("by"):
            return None
        if path is None:
            hint = f"only a path is weighed, as in $p:shortest {edge}{{1,6}} by"
            raise self.expected(f"a variable after '{edge}'", hint=hint)
        self.advance()
        return self.name("the property that weighs an edge")

    def _hops(self) -> Hops:
        start = self.advance().span
        low = self.integer("the least number of hops")
        self.expect(",", "after the least number of hops", hint=f"exactly {low} is written {{{low},{low}}}")
        high = self.integer("the greatest number of hops") if self.at_kind(Kind.INTEGER) else None
        end = self.expect("}", "to close the hop range")
        return Hops(low, high, start.to(end.span))

    # Conditions

    def _either(self) -> Test:
        """`and` parts joined by `or`."""
        start = self.token.span
        parts = [self._both()]
        while self._joins("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Either(tuple(parts), start.to(self.previous.span))

    def _both(self) -> Test:
        start = self.token.span
        parts = [self._tested()]
        while self._joins("and"):
            parts.append(self._tested())
        return parts[0] if len(parts) == 1 else Both(tuple(parts), start.to(self.previous.span))

    def _joins(self, word: str) -> bool:
        """Take the word if it joins conditions; before an operator it would be a name."""
        if not self.at(word) or self.ahead_is(1, "is") or self.at_operator(1):
            return False
        self.index += 1
        return True

    def _tested(self) -> Test:
        """A condition in parentheses, or one that may begin with an expression in parentheses."""
        if not self.at("("):
            return self._compared()
        before = self.index
        try:
            self.index += 1
            inner = self._either()
            self.expect(")", "to close the condition")
        except Unparsable as not_a_condition:
            at = self.index
            self.index = before
            try:
                return self._compared()
            except Unparsable as neither:
                raise (neither if self.index >= at else not_a_condition) from None
        return inner

    def _compared(self) -> Test:
        start = self.token.span
        left = self.expression("a clause")
        if self.at("is"):
            self.advance()
            negated = self.take("not")
            end = self.expect("null", "after is")
            return NullTest(left, negated, start.to(end.span))
        operator = self.operator()
        if operator is None:
            if isinstance(left, Call) and left.function in TEXT_SEARCHES:
                return TextSearch(left, left.span)
            before = left.name if isinstance(left, Alias) else None
            raise self.expected("an operator", hint=operator_hint(before, self.token.text))
        hint = operand_hint(operator, self.token.text)
        if hint is not None:
            raise self.expected(f"an operand after '{operator}'", hint=hint)
        right = self.expression(f"an operand after '{operator}'")
        return Filter(left, operator, right, start.to(self.previous.span))

    def _projections(self) -> tuple[tuple[Projection, ...], Span]:
        opening = self.expect("{", "after return", hint="columns stand in braces: return { $p.name }").span
        found: list[Projection] = []
        while not self.at("}") or not found:
            start = self.token.span
            expression = self._all_properties() or self.expression("a projection")
            alias = None
            if not isinstance(expression, AllProperties) and self.take("as"):
                alias = self.name("a column name after as").text
            found.append(Projection(expression, alias, start.to(self.previous.span)))
            if not self.take(",") and self.at("("):
                raise self.expected(
                    "',' or '}'", hint="before a parenthesis columns are separated by a comma"
                )
        return tuple(found), opening.to(self.advance().span)

    def _all_properties(self) -> AllProperties | None:
        """`$name.*`, if it is next."""
        token = self.token
        if token.kind is not Kind.VARIABLE or not (self.ahead_is(1, ".") and self.ahead_is(2, "*")):
            return None
        self.index += 3
        span = token.span.to(self.previous.span)
        if self.at("as"):
            raise self.refuse(self.token.span, "all properties have the names they have, as in p.name")
        return AllProperties(token.text[1:], span)

    def _order(self) -> tuple[tuple[OrderItem, ...], Span]:
        opening = self.expect("{", "after order", hint="as in order { $p.name desc }").span
        found = [self._order_item()]
        while self.take(","):
            found.append(self._order_item())
        hint = "directions are asc and desc" if self.at_kind(Kind.NAME) else None
        return tuple(found), opening.to(self.expect("}", "or ',' after the order item", hint=hint).span)

    def _order_item(self) -> OrderItem:
        start: Token = self.token
        expression = self.expression("an order item", null_is_alias=True)
        descending: bool | None = None
        if self.at("asc") or self.at("desc"):
            if isinstance(expression, Call) and expression.function is Function.NEAREST:
                raise self.refuse(
                    self.token.span, "nearest takes no direction; it always puts the nearest first"
                )
            descending = self.advance().text == "desc"
        return OrderItem(expression, descending, start.span.to(self.previous.span))
