"""Values and expressions of `.gq`: literals, variables, calls."""

import itertools
from collections.abc import Callable, Mapping
from typing import Final

from omnigraph.core.limits import SOURCE_NESTING_MAX
from omnigraph.language.cursor import Cursor
from omnigraph.language.diagnostics import near_names
from omnigraph.language.lexer import Kind, Token, string_value, touches
from omnigraph.language.query_tree import (
    AGGREGATES,
    Alias,
    Arithmetic,
    ArithmeticOperator,
    Atom,
    Call,
    Expression,
    Function,
    Literal,
    LiteralKind,
    Now,
    Operator,
    PropertyAccess,
    Variable,
)
from omnigraph.language.source import Span

I64_MAX: Final = 2**63 - 1
U64_MAX: Final = 2**64 - 1
_OPERATORS: Final = {operator.value: operator for operator in Operator}
_FUNCTIONS: Final = {function.value: function for function in Function}
_ADDING: Final = {each.value: each for each in (ArithmeticOperator.PLUS, ArithmeticOperator.MINUS)}
_MULTIPLYING: Final = {each.value: each for each in (ArithmeticOperator.TIMES, ArithmeticOperator.DIVIDE)}
_LITERAL_WORDS: Final = frozenset({"true", "false", "null", "date", "datetime", "now"})
_LITERAL_KINDS: Final = frozenset({Kind.STRING, Kind.INTEGER, Kind.DECIMAL, Kind.VARIABLE})
_ARGUMENTS: Final = {Function.FUZZY: (2, 3), Function.RRF: (2, 3)}


class ValueParser(Cursor):
    """The expression layer, shared by read queries and mutation statements."""

    def variable(self, what: str = "a variable") -> Variable:
        """`$name`."""
        token = self.expect_kind(Kind.VARIABLE, what, hint="variables start with $, as in $p")
        return Variable(token.text[1:], token.span)

    def name(self, what: str) -> Token:
        """A lower-case name."""
        if self.at_kind(Kind.TYPE):
            raise self.expected(
                what, hint="names start with a lower-case letter or _; only types are capitalised"
            )
        return self.expect_kind(Kind.NAME, what)

    def type_name(self, what: str) -> Token:
        """An upper-case name."""
        if self.at_kind(Kind.NAME):
            raise self.expected(what, hint="type names start with an upper-case letter")
        return self.expect_kind(Kind.TYPE, what)

    def integer(self, what: str, *, hint: str | None = None) -> int:
        """Digits that fit a signed 64-bit integer."""
        token = self.expect_kind(Kind.INTEGER, what, hint=hint)
        return self._integer_value(token, negative=False, operand=False)

    def _integer_value(self, token: Token, *, negative: bool, operand: bool = True) -> int:
        # Leading zeros aside, twenty digits are enough; longer ones would also be slow to convert.
        digits = token.text.lstrip("0") or "0"
        value = int(digits) if len(digits) <= 20 else U64_MAX + 1
        if value > I64_MAX + negative:
            unsigned = operand and not negative and value <= U64_MAX
            hint = "pass it as a parameter of type U64" if unsigned else None
            raise self.refuse(token.span, "the integer does not fit signed 64 bits", hint=hint)
        return -value if negative else value

    def operator(self) -> Operator | None:
        """Take a comparison operator, if one is next."""
        token = self.token
        if token.kind is Kind.PUNCT or token.kind is Kind.NAME:
            operator = _OPERATORS.get(token.text)
            if operator is not None:
                self.index += 1
                return operator
        return None

    def at_operator(self, ahead: int) -> bool:
        """Whether a comparison operator stands there."""
        token = self.peek(ahead)
        return token.kind in {Kind.PUNCT, Kind.NAME} and token.text in _OPERATORS

    def at_value(self, ahead: int) -> bool:
        """Whether a value may start there."""
        token = self.peek(ahead)
        if token.kind is Kind.NAME:
            return token.text in _LITERAL_WORDS
        return token.kind in _LITERAL_KINDS or (token.kind is Kind.PUNCT and token.text in {"[", "-"})

    def atom(self, what: str) -> Atom:
        """A literal, a variable or `now()`."""
        token = self.token
        if token.kind is Kind.VARIABLE:
            self.index += 1
            if self.at("."):
                raise self.refuse(
                    token.span.to(self.peek(1).span), "a property of a variable cannot stand here"
                )
            return Variable(token.text[1:], token.span)
        if token.kind is Kind.NAME and token.text == "now" and self.ahead_is(1, "("):
            return self._now()
        literal = self.literal()
        if literal is None:
            raise self.expected(what)
        return literal

    def _now(self) -> Now:
        start = self.advance().span
        self.expect("(", "after now")
        return Now(start.to(self.expect(")", "to close now(").span))

    def literal(self) -> Literal | None:
        """Take a literal, if one is next."""
        token = self.token
        match token.kind:
            case Kind.STRING:
                self.index += 1
                return Literal(LiteralKind.STRING, string_value(token.text), "", token.span)
            case Kind.INTEGER | Kind.DECIMAL:
                return self._number(negative=False)
            case Kind.PUNCT if token.text == "[":
                return self._list()
            case Kind.PUNCT if token.text == "-":
                self.index += 1
                return self._number(negative=True)
            case Kind.NAME:
                return self._word_literal(token)
            case _:
                return None

    def _word_literal(self, token: Token) -> Literal | None:
        if token.text in {"true", "false"}:
            self.index += 1
            return Literal(LiteralKind.BOOL, token.text == "true", "", token.span)
        if token.text == "null":
            self.index += 1
            return Literal(LiteralKind.NULL, None, "", token.span)
        if token.text in {"date", "datetime"} and self.ahead_is(1, "("):
            self.index += 2
            text = self.expect_kind(Kind.STRING, f'a string in {token.text}("…")')
            end = self.expect(")", f"to close {token.text}(")
            kind = LiteralKind.DATE if token.text == "date" else LiteralKind.DATETIME
            return Literal(kind, string_value(text.text), "", token.span.to(end.span))
        return None

    def _number(self, *, negative: bool) -> Literal:
        sign = "-" if negative else ""
        start = self.previous.start if negative else self.token.start
        token = self.advance()
        span = Span(start, token.end)
        if token.kind is Kind.INTEGER or token.kind is Kind.DECIMAL:
            self._refuse_exponent(start)
        if token.kind is Kind.INTEGER:
            value = self._integer_value(token, negative=negative)
            return Literal(LiteralKind.INTEGER, value, sign + token.text, span)
        if token.kind is Kind.DECIMAL:
            number = float(token.text)
            if number == float("inf"):
                raise self.refuse(token.span, "the number is too large")
            return Literal(LiteralKind.DECIMAL, -number if negative else number, sign + token.text, span)
        self.index -= 1
        raise self.expected("a number after '-'")

    def _refuse_exponent(self, start: int) -> None:
        """`1e5` and `1e-5`: a number and, touching it, a word that reads as its exponent."""
        word = self.token
        if word.text[:1] not in {"e", "E"} or not touches(self.previous, word):
            return
        end = word
        if len(word.text) == 1:
            sign, digits = self.peek(1), self.peek(2)
            if not (sign.text == "-" and digits.kind is Kind.INTEGER):
                return
            if not (touches(word, sign) and touches(sign, digits)):
                return
            end = digits
        elif not word.text[1:].isdecimal():
            return
        message = "a number has no exponent"
        raise self.refuse(Span(start, end.end), message, hint="write all its digits, as in 100000 or 0.001")

    def _list(self) -> Literal:
        start = self.advance().span
        items: list[Literal] = []
        while not self.at("]"):
            item = self.literal()
            if item is None:
                raise self.expected("a literal or ']'", hint="a list holds literals only")
            items.append(item)
            if not self.take(","):
                break
            if self.at("]"):
                raise self.expected("a literal after ','")
        end = self.expect("]", "to close the list")
        return Literal(LiteralKind.LIST, tuple(items), "", start.to(end.span))

    def expression(self, what: str, *, null_is_alias: bool = False) -> Expression:
        """Operands joined by `+ - * /`.

        With `null_is_alias` a bare `null` is a column name, as in `order { null }`.
        """
        left = self._term(what, null_is_alias=null_is_alias)
        for operations in itertools.count(1):
            operator = self._one_of(_ADDING)
            if operator is None:
                break
            left = self._computed(left, operator, operations, self._term)
        return left

    def _term(self, what: str, *, null_is_alias: bool = False) -> Expression:
        left = self._factor(what, null_is_alias=null_is_alias)
        for operations in itertools.count(1):
            operator = self._one_of(_MULTIPLYING)
            if operator is None:
                break
            left = self._computed(left, operator, operations, self._factor)
        return left

    def _one_of(self, operators: Mapping[str, ArithmeticOperator]) -> ArithmeticOperator | None:
        token = self.token
        found = operators.get(token.text) if token.kind is Kind.PUNCT else None
        self.index += found is not None
        return found

    def _computed(
        self,
        left: Expression,
        operator: ArithmeticOperator,
        operations: int,
        rest: Callable[[str], Expression],
    ) -> Arithmetic:
        if operations > SOURCE_NESTING_MAX:  # the tree is as deep as they are many
            message = f"more than {SOURCE_NESTING_MAX} operators in a row"
            raise self.refuse(self.previous.span, message)
        right = rest(f"a number after '{operator}'")
        return Arithmetic(operator, left, right, left.span.to(self.previous.span))

    def _factor(self, what: str, *, null_is_alias: bool = False) -> Expression:
        token = self.token
        if self.take("("):
            inner = self.expression("an expression")
            self.expect(")", "to close the parenthesis")
            return inner
        if token.kind is Kind.VARIABLE:
            return self._variable_or_property()
        if token.kind is Kind.NAME:
            if self.ahead_is(1, "("):
                if token.text == "now":
                    return self._now()
                if token.text not in {"date", "datetime"}:
                    return self._call(token)
            elif null_is_alias and token.text == "null":
                self.index += 1
                return Alias(token.text, token.span)
        literal = self.literal()
        if literal is not None:
            return literal
        # `as` always introduces a column name: `return { $a as, $b }` is a slip, not two columns.
        if token.kind is Kind.NAME and token.text != "as":
            self.index += 1
            return Alias(token.text, token.span)
        raise self.expected(what)

    def _variable_or_property(self) -> Variable | PropertyAccess:
        token = self.advance()
        if not self.take("."):
            return Variable(token.text[1:], token.span)
        what = f"a property name after '{token.text}.'"
        if self.at("*"):
            raise self.expected(what, hint="all properties are columns, as in return { $p.* }")
        name = self.name(what)
        return PropertyAccess(token.text[1:], name.text, token.span.to(name.span), name.span)

    def _call(self, token: Token) -> Call:
        function = _FUNCTIONS.get(token.text)
        if function is None:
            near = near_names(token.text, _FUNCTIONS)
            hint = None if near else f"there are {', '.join(_FUNCTIONS)} and now"
            raise self.refuse(token.span, f"there is no function '{token.text}'", hint=hint, candidates=near)
        self.index += 2
        distinct = False
        if function in AGGREGATES:
            if self.at("*"):
                raise self.expected("an argument", hint="count a variable, as in count($p)")
            distinct = self.at("distinct") and not self.ahead_is(1, ")")
            if distinct and function is not Function.COUNT:
                raise self.refuse(self.token.span, f"{function} takes no distinct; count does")
            self.index += distinct
            arguments = [self.expression(f"the argument of {function}")]
        else:
            arguments = self._arguments(function)
        end = self.expect(")", f"to close {function}(")
        return Call(function, tuple(arguments), distinct, token.span.to(end.span))

    def _arguments(self, function: Function) -> list[Expression]:
        least, most = _ARGUMENTS.get(function, (2, 2))
        arguments = [self._argument(function, 0)]
        while len(arguments) < most and (len(arguments) < least or self.at(",")):
            self.expect(",", f"between the arguments of {function}")
            arguments.append(self._argument(function, len(arguments)))
        return arguments

    def _argument(self, function: Function, position: int) -> Expression:
        start = self.token
        argument = self.expression(f"argument {position + 1} of {function}")
        if function is Function.NEAREST and position == 0 and not isinstance(argument, PropertyAccess):
            raise self.refuse(start.span, "nearest ranks a property, as in nearest($d.embedding, $q)")
        if function is Function.RRF and position < 2:
            ranks = isinstance(argument, Call) and argument.function in {Function.NEAREST, Function.BM25}
            if not ranks:
                raise self.refuse(start.span, "rrf fuses two of nearest(…) and bm25(…)")
        return argument
