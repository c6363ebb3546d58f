"""The canonical form of `.gq`: two spaces of indent, one clause per line, comments kept (see `layout`)."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from omnigraph.language.diagnostics import Diagnostic
from omnigraph.language.layout import INDENT, CodeLine, lay_out
from omnigraph.language.lexer import quote
from omnigraph.language.query_syntax import QueryFile, parse_queries
from omnigraph.language.query_tree import (
    Alias,
    AllOf,
    AllProperties,
    AnyOf,
    Arithmetic,
    ArithmeticOperator,
    Assignment,
    Binding,
    Both,
    Call,
    Clause,
    Comparison,
    Condition,
    Delete,
    Either,
    Expression,
    Filter,
    Insert,
    Literal,
    LiteralKind,
    Maybe,
    MutationBody,
    Negation,
    NoneOf,
    Now,
    NullTest,
    OrderItem,
    Parameter,
    Projection,
    PropertyAccess,
    PropertyMatch,
    PropertyNullTest,
    Query,
    ReadBody,
    Statement,
    Test,
    TextSearch,
    Traversal,
    Update,
    Variable,
)
from omnigraph.language.source import Span

_MULTIPLYING: Final = frozenset({ArithmeticOperator.TIMES, ArithmeticOperator.DIVIDE})
LINE_CHARS_MAX: Final = 100
"""A list that would make a longer line is broken into one item per line."""


def format_queries(text: str, file: str | None = None) -> str | tuple[Diagnostic, ...]:
    """The canonical form of a query text, or its syntax errors. Idempotent; the tree stays equal."""
    parsed = parse_queries(text, file)
    if not parsed.ok:
        return parsed.diagnostics
    return lay_out(text, list(_Printer(parsed).lines()), parsed.lexed.comments)


class _Printer:
    """Trees to code lines. Text inside quotes is taken from the source as it stands."""

    def __init__(self, parsed: QueryFile) -> None:
        self.source = parsed.source.text
        self.queries = parsed.queries
        self.comment_starts = [comment.start for comment in parsed.lexed.comments]

    def lines(self) -> Iterator[CodeLine]:
        for position, query in enumerate(self.queries):
            yield from self._query(query, apart=position > 0)

    def _query(self, query: Query, *, apart: bool) -> Iterator[CodeLine]:
        parameters = ", ".join(map(_parameter, query.parameters))
        head = f"query {query.name}({parameters})"
        opening = Span(query.braces.start, query.braces.start + 1)
        if not query.meta:
            yield CodeLine(head + " {", 0, query.head.to(opening), opens=True, apart=apart)
        else:
            yield CodeLine(head, 0, query.head, opens=True, apart=apart)
            for meta in query.meta:
                yield CodeLine(f"@{meta.name}({meta.text})", 1, meta.span, tight=True)
            yield CodeLine("{", 0, opening, opens=True, tight=True)
        match query.body:
            case ReadBody():
                yield from self._read(query.body)
            case MutationBody():
                for statement in query.body.statements:
                    yield from self._statement(statement)
        yield CodeLine("}", 0, _closing(query.braces), closes=True)

    # Reads

    def _read(self, body: ReadBody) -> Iterator[CodeLine]:
        yield from self._block("match {", body.clauses, body.match_span, body.match_braces, 1)
        head = "return distinct {" if body.distinct else "return {"
        projections = [(self._projection(item), item.span) for item in body.projections]
        span, braces = body.return_span, body.return_braces
        yield from self._listed(head, projections, "}", span, braces, 1, tight=True)
        if body.having:
            head = Span(body.having_span.start, body.having_braces.start + 1)
            yield CodeLine("having {", 1, head, opens=True, tight=True)
            for test in body.having:
                yield CodeLine(self._leading(test), 2, test.span)
            yield CodeLine("}", 1, _closing(body.having_braces), closes=True)
        if body.order:
            items = [(self._order_item(item), item.span) for item in body.order]
            span, braces = body.order_span, body.order_braces
            yield from self._listed("order {", items, "}", span, braces, 1, tight=True, last_comma=False)
        if body.limit is not None:
            yield CodeLine(f"limit {_bound(body.limit)}", 1, body.limit_span, tight=True)
        if body.offset is not None:
            yield CodeLine(f"offset {_bound(body.offset)}", 1, body.offset_span, tight=True)

    def _block(
        self, head: str, clauses: Sequence[Clause], span: Span, braces: Span, depth: int
    ) -> Iterator[CodeLine]:
        yield CodeLine(head, depth, Span(span.start, braces.start + 1), opens=True)
        for clause in clauses:
            yield from self._clause(clause, depth + 1)
        yield CodeLine("}", depth, _closing(braces), closes=True)

    def _clause(self, clause: Clause, depth: int) -> Iterator[CodeLine]:
        match clause:
            case Negation():
                yield from self._block("not {", clause.clauses, clause.span, clause.braces, depth)
            case Maybe():
                yield from self._block("maybe {", clause.clauses, clause.span, clause.braces, depth)
            case Binding():
                head = f"${clause.variable.name}: {clause.type_name}"
                if not clause.matches:
                    yield CodeLine(head, depth, clause.span)
                    return
                matches = [(self._assignment(match), match.span) for match in clause.matches]
                yield from self._listed(head + " {", matches, "}", clause.span, clause.braces, depth)
            case Traversal():
                yield CodeLine(_traversal(clause), depth, clause.span)
            case _:
                yield CodeLine(self._leading(clause), depth, clause.span)

    def _leading(self, test: Test) -> str:
        """A condition that is a clause: those do not begin with a minus."""
        text = self._test(test)
        if not text.startswith("-"):
            return text
        number, _, rest = text.partition(" ")
        return f"({number}) {rest}"

    def _test(self, test: Test) -> str:
        match test:
            case Filter():
                return f"{self._expression(test.left)} {test.operator} {self._expression(test.right)}"
            case NullTest():
                return f"{self._expression(test.operand)} is {'not ' if test.negated else ''}null"
            case TextSearch():
                return self._expression(test.call)
            case Both():
                return " and ".join(self._joined_test(part, Both, Either) for part in test.parts)
            case Either():
                return " or ".join(self._joined_test(part, Either) for part in test.parts)

    def _joined_test(self, test: Test, *weaker: type[Both | Either]) -> str:
        text = self._test(test)
        return f"({text})" if isinstance(test, weaker) else text

    def _listed(
        self,
        head: str,
        items: Sequence[tuple[str, Span]],
        tail: str,
        span: Span,
        braces: Span,
        depth: int,
        *,
        tight: bool = False,
        last_comma: bool = True,
    ) -> Iterator[CodeLine]:
        """`head item, item tail` on one line when it fits and holds no comment, else one item per line."""
        text = f"{head} {', '.join(item for item, _ in items)} {tail}"
        if len(INDENT) * depth + len(text) <= LINE_CHARS_MAX and not self._has_comment(braces):
            yield CodeLine(text, depth, span, tight=tight)
            return
        yield CodeLine(head, depth, Span(span.start, braces.start + 1), opens=True, tight=tight)
        for position, (item, place) in enumerate(items):
            comma = "," if last_comma or position < len(items) - 1 else ""
            yield CodeLine(item + comma, depth + 1, place)
        yield CodeLine(tail, depth, Span(braces.end - 1, span.end), closes=True)

    # Mutations

    def _statement(self, statement: Statement) -> Iterator[CodeLine]:
        match statement:
            case Insert():
                head = f"insert {'new ' if statement.new else ''}{statement.type_name} {{"
                tail = "}"
            case Update():
                head = f"update {statement.type_name} set {{"
                tail = f"}} where {self._condition(statement.where)}"
            case Delete():
                text = f"delete {statement.type_name} where {self._condition(statement.where)}"
                yield CodeLine(text, 1, statement.span)
                return
        items = [(self._assignment(item), item.span) for item in statement.assignments]
        yield from self._listed(head, items, tail, statement.span, statement.braces, 1)

    def _assignment(self, item: Assignment | PropertyMatch) -> str:
        return f"{item.property}: {self._expression(item.value)}"

    def _condition(self, condition: Condition) -> str:
        match condition:
            case Comparison():
                return f"{condition.property} {condition.operator} {self._expression(condition.value)}"
            case PropertyNullTest():
                return f"{condition.property} is {'not ' if condition.negated else ''}null"
            case NoneOf():
                return f"not {self._grouped(condition.part, AllOf, AnyOf)}"
            case AllOf():
                return " and ".join(self._grouped(part, AllOf, AnyOf) for part in condition.parts)
            case AnyOf():
                return " or ".join(self._grouped(part, AnyOf) for part in condition.parts)

    def _grouped(self, condition: Condition, *weaker: type[AllOf | AnyOf]) -> str:
        text = self._condition(condition)
        return f"({text})" if isinstance(condition, weaker) else text

    # Expressions

    def _projection(self, item: Projection) -> str:
        if isinstance(item.expression, AllProperties):
            return f"${item.expression.variable}.*"
        alias = "" if item.alias is None else f" as {item.alias}"
        return self._expression(item.expression) + alias

    def _order_item(self, item: OrderItem) -> str:
        direction = "" if item.descending is None else " desc" if item.descending else " asc"
        return self._expression(item.expression) + direction

    def _expression(self, expression: Expression) -> str:
        match expression:
            case Literal():
                return self._literal(expression)
            case Variable():
                return f"${expression.name}"
            case PropertyAccess():
                return f"${expression.variable}.{expression.property}"
            case Alias():
                return expression.name
            case Now():
                return "now()"
            case Call():
                distinct = "distinct " if expression.distinct else ""
                return f"{expression.function}({distinct}{self._joined(expression.arguments)})"
            case Arithmetic():
                return self._arithmetic(expression)

    def _arithmetic(self, expression: Arithmetic) -> str:
        multiplies = expression.operator in _MULTIPLYING
        parts: list[str] = []
        for part, is_right in ((expression.left, False), (expression.right, True)):
            text = self._expression(part)
            if isinstance(part, Arithmetic):
                adds = part.operator not in _MULTIPLYING
                grouped = (multiplies or adds) if is_right else (multiplies and adds)
                text = f"({text})" if grouped else text
            parts.append(text)
        return f"{parts[0]} {expression.operator} {parts[1]}"

    def _joined(self, expressions: Iterable[Expression]) -> str:
        return ", ".join(self._expression(expression) for expression in expressions)

    def _literal(self, literal: Literal) -> str:
        match literal.kind:
            case LiteralKind.STRING:
                return self.source[literal.span.start : literal.span.end]
            case LiteralKind.DATE | LiteralKind.DATETIME:
                word = "date" if literal.kind is LiteralKind.DATE else "datetime"
                return f"{word}({quote(str(literal.value))})"
            case LiteralKind.BOOL:
                return "true" if literal.value else "false"
            case LiteralKind.NULL:
                return "null"
            case LiteralKind.LIST:
                items = literal.value if isinstance(literal.value, tuple) else ()
                return f"[{self._joined(items)}]"
            case LiteralKind.INTEGER | LiteralKind.DECIMAL:
                return literal.text

    # Comments

    def _has_comment(self, span: Span) -> bool:
        at = bisect_left(self.comment_starts, span.start)
        return at < len(self.comment_starts) and self.comment_starts[at] < span.end


def _closing(braces: Span) -> Span:
    return Span(braces.end - 1, braces.end)


def _bound(number: int | Variable) -> str:
    return f"${number.name}" if isinstance(number, Variable) else str(number)


def _parameter(parameter: Parameter) -> str:
    type_ = parameter.type
    if type_.vector_dim is not None:
        text = f"Vector({type_.vector_dim})"
    else:
        text = f"[{type_.scalar}]" if type_.is_list else type_.scalar
    return f"${parameter.name}: {text}{'?' if parameter.nullable else ''}"


def _traversal(clause: Traversal) -> str:
    edge = f"<{clause.edge}>" if clause.undirected else clause.edge
    if clause.edge_variable is not None:
        edge = f"${clause.edge_variable.name}:{edge}"
    if clause.hops is not None:
        high = "" if clause.hops.high is None else clause.hops.high
        edge += f"{{{clause.hops.low},{high}}}"
    if clause.path is not None:
        weight = "" if clause.weight is None else f" by {clause.weight}"
        edge = f"${clause.path.name}:shortest {edge}{weight}"
    return f"${clause.source.name} {edge} ${clause.target.name}"
