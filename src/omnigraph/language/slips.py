"""What somebody who thinks of another query language probably meant: hints for grammar errors."""

from typing import Final

from omnigraph.language.query_tree import TEXT_SEARCHES, Operator

_FILTERS: Final = "filters are clauses of the match block, as in $p.age > 30"
_INSTEAD_OF_FILTER: Final = {
    "or": "or joins two conditions, as in $p.age > 30 or $p.age is null",
    "and": "and joins two conditions, as in $p.age > 30 and $p.age < 40",
    "optional": "an optional match is written maybe { ... }",
    "exists": "a traversal in match is a test by itself; what must not exist is written not { ... }",
    "where": _FILTERS,
}
_INSTEAD_OF_OPERATOR: Final = {
    "in": 'membership is written ["a", "b"] contains $p.property, or $list contains $p.property',
    "like": "parts of a text are found by contains, starts_with and ends_with",
}
_LATER_PARTS: Final = {
    "where": _FILTERS,
    "select": "the result is written return { ... }",
    "group": "rows are grouped by the columns that are not aggregates",
    "skip": "rows are skipped by offset, after order and limit",
}
_OPERATORS: Final = {("=", "="): "'equal' is written =", ("<", ">"): "'not equal' is written !="}


def operator_hint(before: str | None, word: str) -> str:
    """Where an operator was expected: `before` is the bare word that stands in place of the left operand."""
    found = _INSTEAD_OF_FILTER.get(before or "") or _INSTEAD_OF_OPERATOR.get(word)
    if found is not None:
        return found
    if before is not None and word == ":":
        return f"variables start with $, as in ${before}: ..."
    if word in {function.value for function in TEXT_SEARCHES}:
        return f"a search is written {word}($p.property, ...)"
    return f"use {', '.join(operator.value for operator in Operator)}, is null or is not null"


def operand_hint(operator: str, word: str) -> str | None:
    """Where an operand was expected after an operator."""
    return _OPERATORS.get((operator, word))


def left_side_hint(word: str) -> str | None:
    """Where a bare variable stands before a word: that is a traversal, also when the word is an operator."""
    match word:
        case Operator.CONTAINS:
            return "what a list is asked for is a property or a literal, as in $list contains $p.property"
        case Operator.STARTS_WITH | Operator.ENDS_WITH:
            return f"a text is compared with a property or a literal, as in $p.name {word} $t"
        case _:
            return None


def clause_hint(word: str) -> str | None:
    """Where a clause was expected."""
    if word in {",", ";"}:
        return "clauses are separated by white space only"
    if word == "-":
        return "a clause does not begin with '-', as in $p.age > -1"
    if word == ":":
        return "a type is a clause of its own, as in $x: Person"
    return None


def part_hint(word: str) -> str | None:
    """Where the next part of a read query was expected."""
    return _LATER_PARTS.get(word)
