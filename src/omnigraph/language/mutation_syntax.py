"""Mutation statements of `.gq`: insert, update, delete, and the conditions of `where`."""

from omnigraph.core.limits import SOURCE_NESTING_MAX
from omnigraph.language.lexer import Kind
from omnigraph.language.query_tree import (
    AllOf,
    AnyOf,
    Assignment,
    Comparison,
    Condition,
    Delete,
    Insert,
    MutationBody,
    NoneOf,
    PropertyNullTest,
    Statement,
    Update,
)
from omnigraph.language.source import Span
from omnigraph.language.value_syntax import ValueParser

STATEMENT_WORDS = ("insert", "update", "delete")
_WHERE_HINT = 'every update and delete says which rows it means, as in where name = "Ada"'


class MutationParser(ValueParser):
    """Statements, recursive descent; conditions by binding power (`not` over `and` over `or`)."""

    def mutation_body(self) -> MutationBody:
        """One or more statements up to the closing brace of the query."""
        statements: list[Statement] = []
        while not self.at("}"):
            statements.append(self._statement())
        return MutationBody(tuple(statements))

    def _statement(self) -> Statement:
        if self.at("insert"):
            return self._insert()
        if self.at("update"):
            return self._update()
        if self.at("delete"):
            return self._delete()
        if self.at("match"):
            raise self.expected(
                "insert, update, delete or '}'", hint="a query reads or changes data, never both"
            )
        raise self.expected("insert, update, delete or '}'")

    def _insert(self) -> Insert:
        start = self.advance().span
        new = self.take("new")
        type_name = self.type_name("a type name after insert")
        assignments, braces = self._assignments(f"after insert {type_name.text}")
        return Insert(type_name.text, new, assignments, start.to(braces), type_name.span, braces)

    def _update(self) -> Update:
        start = self.advance().span
        type_name = self.type_name("a type name after update")
        self.expect("set", f"after update {type_name.text}")
        assignments, braces = self._assignments("after set")
        self.expect("where", "after the assignments", hint=_WHERE_HINT)
        where = self.condition()
        span = start.to(self.previous.span)
        return Update(type_name.text, assignments, where, span, type_name.span, braces)

    def _delete(self) -> Delete:
        start = self.advance().span
        type_name = self.type_name("a type name after delete")
        self.expect("where", f"after delete {type_name.text}", hint=_WHERE_HINT)
        where = self.condition()
        return Delete(type_name.text, where, start.to(self.previous.span), type_name.span)

    def _assignments(self, context: str) -> tuple[tuple[Assignment, ...], Span]:
        opening = self.expect("{", context).span
        found: list[Assignment] = []
        while not self.at("}") or not found:
            name = self.name("a property name")
            self.expect(":", f"after '{name.text}'")
            value = self.atom(f"a value for '{name.text}'")
            found.append(Assignment(name.text, value, name.span.to(self.previous.span), name.span))
            self.take(",")
        return tuple(found), opening.to(self.advance().span)

    def condition(self) -> Condition:
        """`and` parts joined by `or`."""
        start = self.token.span
        parts = [self._all_of()]
        while self.take("or"):
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts), start.to(self.previous.span))

    def _all_of(self) -> Condition:
        start = self.token.span
        parts = [self._test()]
        while self.take("and"):
            parts.append(self._test())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts), start.to(self.previous.span))

    def _test(self) -> Condition:
        # A loop, not recursion: ten thousand `not` in a row end in a diagnostic.
        nots = [self.advance().span for _ in iter(self._at_not, False)]
        if len(nots) > SOURCE_NESTING_MAX:
            raise self.refuse(nots[-1], f"more than {SOURCE_NESTING_MAX} times 'not' in a row")
        test = self._plain_test()
        for span in reversed(nots):
            test = NoneOf(test, span.to(self.previous.span))
        return test

    def _at_not(self) -> bool:
        return self.at("not") and not self._at_property_test()

    def _at_property_test(self) -> bool:
        """Whether the next name is a property followed by a test, whatever the name is."""
        if self.ahead_is(1, "is"):
            return self.ahead_is(2, "null") or (self.ahead_is(2, "not") and self.ahead_is(3, "null"))
        if self.peek(1).kind is Kind.NAME:
            return self.at_operator(1) and self.at_value(2) and not self.at_operator(2)
        return self.at_operator(1)

    def _plain_test(self) -> Condition:
        start = self.token.span
        if self.take("("):
            inner = self.condition()
            self.expect(")", "to close the condition")
            return inner
        name = self.name("a property name, not or '('")
        if self.at("is"):
            self.advance()
            negated = self.take("not")
            end = self.expect("null", "after is")
            return PropertyNullTest(name.text, negated, start.to(end.span))
        operator = self.operator()
        if operator is None:
            raise self.expected(f"an operator after '{name.text}'")
        value = self.atom(f"a value after '{operator}'")
        return Comparison(name.text, operator, value, start.to(self.previous.span), name.span)
