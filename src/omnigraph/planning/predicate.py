"""The one definition of comparison: a predicate becomes exact tests, printed as a filter or run on Arrow.

`normalize` removes `not` (three-valued: it is pushed to the tests), reads parameters, and converts every
value to the type of its column without loss. What a conversion cannot express exactly becomes a test that
can: on an integer column `> 2.5` is `>= 3`, `= 2.7` is never true, `< 3000000000` on an I32 is "has a
value". Both arms then see the same formula, so they agree by construction. In a formula unknown behaves as
false.
"""

import datetime as dt
import math
import operator
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from omnigraph.catalog.scalars import round_f32
from omnigraph.catalog.schema import EdgeType, NodeType
from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_BOUNDS, PropertyType, ScalarKind
from omnigraph.language.query_tree import TEXT_TESTS, Operator
from omnigraph.planning import ir
from omnigraph.planning.filters import (
    ALWAYS,
    NEVER,
    FilterText,
    Formula,
    HasMember,
    HasValue,
    InSet,
    Test,
    TextTest,
    every,
    filter_text,
    some,
)
from omnigraph.planning.values import Value

if TYPE_CHECKING:
    import pyarrow as pa

TableType: TypeAlias = NodeType | EdgeType

_OPPOSITE: Final = {
    Operator.EQ: Operator.NE,
    Operator.NE: Operator.EQ,
    Operator.LT: Operator.GE,
    Operator.GE: Operator.LT,
    Operator.GT: Operator.LE,
    Operator.LE: Operator.GT,
}
_ORDERINGS: Final[Mapping[Operator, Callable[[Any, Any], bool]]] = {
    Operator.EQ: operator.eq,
    Operator.NE: operator.ne,
    Operator.LT: operator.lt,
    Operator.LE: operator.le,
    Operator.GT: operator.gt,
    Operator.GE: operator.ge,
}


def normalize(
    predicate: ir.Predicate,
    owner: TableType,
    params: Mapping[str, Value],
    now: dt.datetime | None = None,
) -> Formula:
    """The formula that holds exactly where the predicate is true."""
    return _Normalizer(owner, params, now).formula(predicate, wanted=True)


def column_of(name: str, owner: TableType) -> tuple[str, PropertyType]:
    """The stored column and the type of a property of a predicate; `from` and `to` are `src` and `dst`.

    `id` is no property: only the engine's own predicates name it.
    """
    if name == "id":
        return name, ir.STRING
    if isinstance(owner, EdgeType) and name in {"from", "to"}:
        return ("src" if name == "from" else "dst"), ir.STRING
    return name, owner.by_name[name].type


class _Normalizer:
    def __init__(self, owner: TableType, params: Mapping[str, Value], now: dt.datetime | None) -> None:
        self.owner = owner
        self.params = params
        self.now = now

    def formula(self, predicate: ir.Predicate, *, wanted: bool) -> Formula:
        """Where the predicate is true (wanted) or false (not wanted); unknown is neither."""
        match predicate:
            case ir.And():
                parts = [self.formula(part, wanted=wanted) for part in predicate.parts]
                return every(parts) if wanted else some(parts)
            case ir.Or():
                parts = [self.formula(part, wanted=wanted) for part in predicate.parts]
                return some(parts) if wanted else every(parts)
            case ir.Not():
                return self.formula(predicate.part, wanted=not wanted)
            case ir.IsNull():
                column, _ = column_of(predicate.property, self.owner)
                return HasValue(column, wanted=predicate.negated == wanted)
            case ir.OneOf():
                column, type_ = column_of(predicate.property, self.owner)
                values = predicate.values
                if isinstance(values, ir.Param):
                    given = ir.value_of(values, self.params, self.now)
                    if not isinstance(given, tuple):
                        return NEVER  # unknown, and so is its negation
                    values = given
                return in_set(column, type_.kind, values, wanted=wanted)
            case ir.Compare():
                return self._compare(predicate, wanted=wanted)

    def _compare(self, test: ir.Compare, *, wanted: bool) -> Formula:
        column, type_ = column_of(test.property, self.owner)
        value = ir.value_of(test.value, self.params, self.now)
        if value is None:
            return NEVER  # unknown, and so is its negation
        if test.op is Operator.CONTAINS and type_.is_list:
            member = exact(value, type_.kind)
            if member is None:
                return NEVER if wanted else HasValue(column, wanted=True)
            return HasMember(column, member, type_.kind, wanted)
        if test.op in TEXT_TESTS:
            return TextTest(column, test.op, str(value), wanted)
        op = test.op if wanted else _OPPOSITE[test.op]
        return ordering(column, type_.kind, op, value)


def in_set(column: str, kind: ScalarKind, values: tuple[Value, ...], *, wanted: bool) -> Formula:
    """Membership of a column in literal values; those the column cannot hold exactly are left out."""
    held = tuple(dict.fromkeys(item for item in (exact(value, kind) for value in values) if item is not None))
    if kind in FLOAT_KINDS and 0.0 in held:
        # Sets tell the two zeros apart, comparisons do not: a set has both or neither.
        held = (*(item for item in held if item != 0.0), 0.0, -0.0)
    if held:
        return InSet(column, held, kind, wanted)
    return NEVER if wanted else HasValue(column, wanted=True)


def exact(value: Value, kind: ScalarKind) -> Value:
    """The value as one the column can hold and equal, or None.

    A decimal is rounded to the precision of an F32 column; an integer is what it is, and may equal nothing.
    """
    if value is None or isinstance(value, tuple):
        return None
    if kind in INTEGER_BOUNDS:
        if isinstance(value, float):
            if not value.is_integer():
                return None
            value = int(value)
        low, high = INTEGER_BOUNDS[kind]
        return value if isinstance(value, int) and low <= value <= high else None
    if kind in FLOAT_KINDS and isinstance(value, int | float):
        return _exact_float(value, kind)
    return value


def _exact_float(value: float, kind: ScalarKind) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    if kind is ScalarKind.F32:
        number = round_f32(number)
        if isinstance(value, float):
            return number if math.isfinite(number) else None
    return number if number == value else None


def ordering(column: str, kind: ScalarKind, op: Operator, value: Value) -> Formula:
    """`column op value` for one of the six ordering operators, in the column's own kind."""
    held = exact(value, kind)
    if held is not None:
        return _bool_ordering(column, op, held) if kind is ScalarKind.BOOL else Test(column, op, held, kind)
    # The column never equals the value, so every comparison is one with its neighbours.
    if op is Operator.EQ:
        return NEVER
    if op is Operator.NE:
        return HasValue(column, wanted=True)
    if not isinstance(value, int | float):
        return NEVER
    below, above = _neighbours(value, kind)
    if op in {Operator.LT, Operator.LE}:
        return _bounded(column, kind, Operator.LE, below)
    return _bounded(column, kind, Operator.GE, above)


def _bounded(column: str, kind: ScalarKind, op: Operator, bound: float) -> Formula:
    if math.isinf(bound):
        # Above everything the column holds, or below it: the comparison depends on the presence of a value
        # only.
        holds = (bound > 0) == (op is Operator.LE)
        return HasValue(column, wanted=True) if holds else NEVER
    return Test(column, op, bound, kind)


def _neighbours(value: float, kind: ScalarKind) -> tuple[float, float]:
    """The column's greatest value below and least value above one it cannot hold.

    Both are plus infinity for a value above everything the column holds, minus infinity for one below.
    """
    if kind in INTEGER_BOUNDS:
        low, high = INTEGER_BOUNDS[kind]
        if value > high:
            return math.inf, math.inf
        return (-math.inf, -math.inf) if value < low else (math.floor(value), math.ceil(value))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if kind is ScalarKind.F32:
        number = round_f32(number)
    if math.isinf(number):
        return number, number
    beside = _beside_f32 if kind is ScalarKind.F32 else math.nextafter
    if number < value:
        return number, beside(number, math.inf)
    return beside(number, -math.inf), number


def _beside_f32(number: float, towards: float) -> float:
    """The next single-precision number beside one that is not zero, in the direction of an infinity."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    # The bits of both signs count away from zero; beyond the largest number they are infinity.
    step = 1 if (number > 0) == (towards > 0) else -1
    return struct.unpack("<f", struct.pack("<I", bits + step))[0]


def _bool_ordering(column: str, op: Operator, value: Value) -> Formula:
    """False < true, spelled as equality: not every engine orders booleans."""
    allowed = [item for item in (False, True) if _ORDERINGS[op](item, bool(value))]
    match allowed:
        case []:
            return NEVER
        case [only]:
            return Test(column, Operator.EQ, only, ScalarKind.BOOL)
        case _:
            return HasValue(column, wanted=True)


# Lance ------------------------------------------------------------------------------------------------------


def to_lance_filter(
    predicate: ir.Predicate,
    owner: TableType,
    params: Mapping[str, Value],
    now: dt.datetime | None = None,
) -> FilterText | None:
    """The filter text for a Lance scan, literals in the column's type; None when every row is selected."""
    formula = normalize(predicate, owner, params, now)
    return None if formula == ALWAYS else filter_text(formula)


# Arrow ------------------------------------------------------------------------------------------------------


def evaluate(
    predicate: ir.Predicate,
    rows: "pa.Table | pa.RecordBatch",
    owner: TableType,
    params: Mapping[str, Value],
    now: dt.datetime | None = None,
) -> "pa.BooleanArray":
    """One boolean per row, never null: true where the predicate is true. The rows have the type's columns."""
    return evaluate_formula(normalize(predicate, owner, params, now), rows)


def evaluate_formula(formula: Formula, rows: Any) -> Any:
    """A formula over Arrow rows, as a boolean array without nulls."""
    from omnigraph.planning.arrow import run_formula  # noqa: PLC0415 - checking a query loads no Arrow

    return run_formula(formula, rows)
