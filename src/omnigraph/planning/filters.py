"""The one printer of filters. A filter is a value first; its text, in the SQL of the table format, is made
here.

A filter is a formula of typed tests: a column, and values of the column's own kind. No other module joins
names and literals to a text, so quoting, casts and the habits of the table format are known in one place.
`FilterText` is what storage takes; only this module makes one.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NewType, TypeAlias

from omnigraph.catalog.types import FLOAT_KINDS, ScalarKind
from omnigraph.core.late_dataclass import dataclass
from omnigraph.planning.values import Value

if TYPE_CHECKING:  # storage loads this module, and has no use for the query language
    from omnigraph.language.query_tree import Operator

FilterText = NewType("FilterText", str)
"""A condition on the rows of one table, as the table format reads it."""


@dataclass(frozen=True, slots=True)
class Constant:
    """Always or never."""

    holds: bool


@dataclass(frozen=True, slots=True)
class HasValue:
    """The column is not null, or is null when `wanted` is false."""

    column: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class Test:
    """`column op value` with an ordering operator and a value of the column's own kind."""

    column: str
    op: "Operator"
    value: Value
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class InSet:
    """The column equals one of the values (or none, when not `wanted`), all of the column's own kind."""

    column: str
    values: tuple[Value, ...]
    kind: ScalarKind
    wanted: bool


@dataclass(frozen=True, slots=True)
class TextTest:
    """`contains`, `starts_with` or `ends_with` on a String column, exact and case-sensitive."""

    column: str
    op: "Operator"
    text: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class HasMember:
    """A list column has this element; null elements equal nothing."""

    column: str
    value: Value
    kind: ScalarKind
    wanted: bool


@dataclass(frozen=True, slots=True)
class Every:
    """All parts."""

    parts: "tuple[Formula, ...]"


@dataclass(frozen=True, slots=True)
class Some:
    """At least one part."""

    parts: "tuple[Formula, ...]"


Formula: TypeAlias = Constant | HasValue | Test | InSet | TextTest | HasMember | Every | Some

NEVER: Final = Constant(holds=False)
ALWAYS: Final = Constant(holds=True)


def every(parts: Sequence[Formula]) -> Formula:
    """The conjunction, without constants."""
    kept = tuple(part for part in parts if part != ALWAYS)
    if NEVER in kept:
        return NEVER
    return kept[0] if len(kept) == 1 else Every(kept) if kept else ALWAYS


def some(parts: Sequence[Formula]) -> Formula:
    """The disjunction, without constants."""
    kept = tuple(part for part in parts if part != NEVER)
    if ALWAYS in kept:
        return ALWAYS
    return kept[0] if len(kept) == 1 else Some(kept) if kept else NEVER


def has_text(column: str, texts: Iterable[str]) -> InSet:
    """The column holds one of these texts; each is printed once."""
    return InSet(column, tuple(dict.fromkeys(texts)), ScalarKind.STRING, wanted=True)


def by_stored_names(formula: Formula, sources: Mapping[str, str]) -> Formula:
    """The formula by the names that columns are stored under; one that is not stored is null."""
    match formula:
        case Constant():
            return formula
        case Every():
            return every([by_stored_names(part, sources) for part in formula.parts])
        case Some():
            return some([by_stored_names(part, sources) for part in formula.parts])
        case HasValue() if formula.column not in sources:
            return NEVER if formula.wanted else ALWAYS
        case _:
            stored = sources.get(formula.column)
            return NEVER if stored is None else replace(formula, column=stored)


def columns_of(formula: Formula) -> frozenset[str]:
    """The columns a formula reads."""
    match formula:
        case Constant():
            return frozenset()
        case Every() | Some():
            return frozenset[str]().union(*(columns_of(part) for part in formula.parts))
        case _:
            return frozenset({formula.column})


def filter_text(formula: Formula) -> FilterText:
    """A formula as SQL of the table format."""
    return FilterText(_printed(formula))


def both(one: FilterText | None, other: FilterText) -> FilterText:
    """Where both hold; None holds everywhere."""
    return other if one is None else FilterText(f"({one}) AND ({other})")


def _printed(formula: Formula) -> str:
    match formula:
        case Constant():
            return "true" if formula.holds else "false"
        case HasValue():
            return f"{_column(formula.column)} IS {'NOT ' if formula.wanted else ''}NULL"
        case Test():
            return f"{_column(formula.column)} {formula.op} {_literal(formula.value, formula.kind)}"
        case InSet():
            column = _column(formula.column)
            values = ", ".join(_members(formula))
            if formula.wanted:
                return f"{column} IN ({values})"
            # The table format makes "true" of two NOT IN joined by OR that share no value, null or not.
            return f"{column} IS NOT NULL AND {column} NOT IN ({values})"
        case TextTest():
            text = _text_literal(formula.text)
            return f"{'' if formula.wanted else 'NOT '}{formula.op}({_column(formula.column)}, {text})"
        case HasMember():
            return _print_member(formula)
        case Every():
            return " AND ".join(f"({_printed(part)})" for part in formula.parts)
        case Some():
            return " OR ".join(f"({_printed(part)})" for part in formula.parts)


def _members(test: InSet) -> Iterable[str]:
    """The literals of a set. A set may be long: what needs no cast is printed without one."""
    if test.kind is ScalarKind.STRING:
        return map(_text_literal, map(str, test.values))
    if test.kind in _PLAIN_INTEGERS and _LEAST_I64 not in test.values:
        return map(str, test.values)
    return (_literal(value, test.kind) for value in test.values)


def _print_member(test: HasMember) -> str:
    # As in a set, the two zeros are two values to the table format.
    values = (0.0, -0.0) if test.kind in FLOAT_KINDS and test.value == 0.0 else (test.value,)
    column = _column(test.column)
    found = " OR ".join(f"array_has({column}, {_literal(value, test.kind)})" for value in values)
    return f"({found})" if test.wanted else f"NOT ({found})"


def _column(name: str) -> str:
    # Back-ticks keep keywords and case; double quotes would make a string of it.
    return f"`{name}`"


_SQL_TYPES: Final = {
    ScalarKind.I32: "int",
    ScalarKind.I64: "bigint",
    ScalarKind.U32: "int unsigned",
    ScalarKind.U64: "bigint unsigned",
    ScalarKind.F32: "float",
    ScalarKind.F64: "double",
}
_PLAIN_INTEGERS: Final = frozenset({ScalarKind.I32, ScalarKind.I64, ScalarKind.U32})
"""Integers that a bare literal can hold: one above the signed range of 64 bits needs its type."""
_LEAST_I64: Final = -(2**63)
"""The sign is read apart from the digits, which alone are above that range."""


def _literal(value: Value, kind: ScalarKind) -> str:
    sql_type = _SQL_TYPES.get(kind)
    if sql_type is not None:
        return f"cast({value!r} as {sql_type})"
    match value:
        case bool():
            return "true" if value else "false"
        case dt.datetime():
            return f"timestamp '{value.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z'"
        case dt.date():
            return f"date '{value.isoformat()}'"
        case _:
            return _text_literal(str(value))


def _text_literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
