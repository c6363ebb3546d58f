"""The Lance filter, the Arrow evaluation and plain Python must select the same rows, for every generated test."""

import datetime as dt
import operator

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from omnigraph.catalog.scalars import round_f32
from omnigraph.catalog.schema import EdgeType, NodeType, Property
from omnigraph.catalog.types import PropertyType, ScalarKind
from omnigraph.planning import ir
from omnigraph.planning.filters import NEVER, filter_text
from omnigraph.planning.ir import And, Compare, IsNull, Literal, Not, OneOf, Or, Param
from omnigraph.planning.predicate import evaluate, normalize, to_lance_filter

UTC = dt.UTC
F32_MAX = 2**128 - 2**104
"""The largest number of single precision, as an integer."""
KINDS = {
    "i32": ScalarKind.I32,
    "i64": ScalarKind.I64,
    "u32": ScalarKind.U32,
    "u64": ScalarKind.U64,
    "f32": ScalarKind.F32,
    "f64": ScalarKind.F64,
    "name": ScalarKind.STRING,
    "flag": ScalarKind.BOOL,
    "day": ScalarKind.DATE,
    "moment": ScalarKind.DATETIME,
}
PROPERTIES = tuple(
    Property(name, number, PropertyType(kind), nullable=True)
    for number, (name, kind) in enumerate(sorted(KINDS.items()))
)
LISTS = (
    Property("tags", 90, PropertyType(ScalarKind.STRING, is_list=True), nullable=True),
    Property("xs", 91, PropertyType(ScalarKind.I32, is_list=True), nullable=True),
    Property("fs", 92, PropertyType(ScalarKind.F64, is_list=True), nullable=True),
)
THING = NodeType("Thing", 1, (*PROPERTIES, *LISTS))

ROWS = [
    {"i32": 3, "i64": 2**53 + 1, "u32": 7, "u64": 2**64 - 1, "f32": 0.1, "f64": 0.1},
    {"i32": -(2**31), "i64": -(2**63), "u32": 0, "u64": 0, "f32": -0.0, "f64": 9007199254740992.0},
    {"i32": 2**31 - 1, "i64": 2**63 - 1, "u32": 2**32 - 1, "u64": 2**63, "f32": float(F32_MAX), "f64": 1e300},
    {"i32": 2, "i64": 2, "u32": 2, "u64": 2, "f32": 2.5, "f64": 2.7},
    {"f32": 16777216.0, "f64": 16777216.0},
    {"f32": -16777216.0, "f64": -16777216.0},
    {"f32": 16777218.0, "f64": 16777217.0},
    {"f32": 0.0, "f64": -0.0, "fs": [-0.0, 1.5]},
    {"f32": -1.5, "f64": 0.0, "fs": [0.0]},
    {"name": "Ada", "flag": True, "day": dt.date(2024, 6, 1), "tags": ["a", "b"], "xs": [1, 2]},
    {"name": "it's %_\\ \"", "flag": False, "day": dt.date(1, 1, 1), "tags": [], "xs": [3]},
    {"name": "", "day": dt.date(9999, 12, 31), "moment": dt.datetime(2024, 3, 1, 9, 30, tzinfo=UTC)},
    {"name": "zé", "moment": dt.datetime(1960, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC), "tags": ["a"]},
    {"moment": dt.datetime(2024, 3, 1, 9, 30, 0, 250_000, tzinfo=UTC)},
    {},
]


def rows_table():
    columns = [{"id": str(number), **row} for number, row in enumerate(ROWS)]
    schema = THING.arrow_schema
    return pa.table(
        {name: pa.array([row.get(name) for row in columns], schema.field(name).type) for name in schema.names}
    )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return lance.write_dataset(rows_table(), str(tmp_path_factory.mktemp("predicate") / "thing.lance"))


OPERATORS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def truth(predicate, row):
    """Three-valued logic in plain Python: True, False or None."""
    match predicate:
        case And():
            parts = [truth(part, row) for part in predicate.parts]
            return False if False in parts else None if None in parts else True
        case Or():
            parts = [truth(part, row) for part in predicate.parts]
            return True if True in parts else None if None in parts else False
        case Not():
            part = truth(predicate.part, row)
            return None if part is None else not part
        case IsNull():
            return (row.get(predicate.property) is None) != predicate.negated
        case OneOf():
            value = row.get(predicate.property)
            if value is None:
                return None
            equal = (compare(value, ir.Operator.EQ, item, predicate.property) for item in predicate.values)
            return any(equal)
        case Compare():
            return compare(
                row.get(predicate.property), predicate.op, predicate.value.value, predicate.property
            )


def compare(stored, op, value, name):
    if stored is None or value is None:
        return None
    if op == ir.Operator.CONTAINS:
        return value in stored
    if op == ir.Operator.STARTS_WITH:
        return stored.startswith(value)
    if op == ir.Operator.ENDS_WITH:
        return stored.endswith(value)
    if KINDS[name] is ScalarKind.F32:
        # Only a decimal is rounded to what the column can hold; an integer is compared as it is.
        stored, value = round_f32(stored), round_f32(value) if isinstance(value, float) else value
    if KINDS[name] is ScalarKind.STRING:
        stored, value = stored.encode(), value.encode()
    return OPERATORS[op.value](stored, value)


numbers = st.one_of(
    st.sampled_from([2.7, 2.5, 3.0, 0.1, 3_000_000_000, -1, 0, 1e39, -1e39, 1e308, 2**53 + 1, 2**53]),
    st.sampled_from([2**24 - 1, 2**24, 2**24 + 1, -(2**24) - 1, 2**24 + 2, 16777217.0, -16777217.0]),
    st.sampled_from([F32_MAX, F32_MAX + 1, -F32_MAX, -F32_MAX - 1, 2**128, -(2**128)]),
    st.sampled_from([2**63 - 1, -(2**63), 2**64 - 1, 2**64, 2**31 - 1, 2**31, -(2**31) - 1]),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
)
texts = st.one_of(st.sampled_from(["Ada", "", "%", "_", "it's", "\\", '"', "z", "zé"]), st.text(max_size=3))
texts = texts.filter(lambda text: text.isprintable() or not text)
orderings = st.sampled_from([ir.Operator(op) for op in OPERATORS])


def literal(value):
    return Literal(value, PropertyType(ScalarKind.STRING))


def leaf():
    number = st.builds(
        Compare,
        st.sampled_from(["i32", "i64", "u32", "u64", "f32", "f64"]),
        orderings,
        st.one_of(numbers, st.none()).map(literal),
    )
    text = st.builds(Compare, st.just("name"), st.sampled_from(list(ir.Operator)), texts.map(literal))
    flag = st.builds(Compare, st.just("flag"), orderings, st.booleans().map(literal))
    day = st.builds(Compare, st.just("day"), orderings, st.dates().map(literal))
    moments = st.one_of(st.sampled_from([row["moment"] for row in ROWS if "moment" in row]), st.datetimes())
    moments = moments.map(lambda m: m.replace(microsecond=m.microsecond // 1000 * 1000, tzinfo=UTC))
    moment = st.builds(Compare, st.just("moment"), orderings, moments.map(literal))
    member = st.builds(Compare, st.just("tags"), st.just(ir.Operator.CONTAINS), texts.map(literal))
    number_member = st.builds(Compare, st.just("xs"), st.just(ir.Operator.CONTAINS), numbers.map(literal))
    null = st.builds(IsNull, st.sampled_from([*KINDS, "tags", "xs", "fs"]), st.booleans())
    one_of = st.builds(OneOf, st.just("name"), st.lists(texts, max_size=3).map(tuple))
    one_number = st.builds(
        OneOf, st.sampled_from(["i32", "f32", "f64"]), st.lists(numbers, max_size=3).map(tuple)
    )
    float_member = st.builds(Compare, st.just("fs"), st.just(ir.Operator.CONTAINS), numbers.map(literal))
    members = st.one_of(member, number_member, float_member)
    return st.one_of(number, text, flag, day, moment, members, null, one_of, one_number)


predicates = st.recursive(
    leaf(),
    lambda inner: st.one_of(
        st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Not, inner),
    ),
    max_leaves=5,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400)
@given(predicate=predicates)
@example(predicate=Compare("f32", ir.Operator.GE, Literal(2**24 + 1, ir.I64)))
@example(predicate=Compare("f32", ir.Operator.LE, Literal(-(2**24) - 1, ir.I64)))
@example(predicate=Not(OneOf("f32", (2**24 + 1, 2**24 + 2))))
@example(predicate=Compare("f32", ir.Operator.LT, Literal(F32_MAX + 1, ir.I64)))
@example(predicate=Or((Not(OneOf("name", ("Ada",))), Not(OneOf("name", ("",))))))
@example(predicate=Not(And((OneOf("i32", (2, 3)), OneOf("i32", (-1,)), OneOf("i32", (5,))))))
@pytest.mark.slow
def test_three_arms_agree(dataset, predicate):
    expected = [str(number) for number, row in enumerate(ROWS) if truth(predicate, row) is True]
    table = rows_table()
    in_memory = table.filter(evaluate(predicate, table, THING, {}))["id"].to_pylist()
    assert in_memory == expected
    text = to_lance_filter(predicate, THING, {})
    assert dataset.to_table(filter=text, columns=["id"])["id"].to_pylist() == expected, text


def test_the_filters_of_the_specification():
    def text(op, value, name="i32"):
        return to_lance_filter(Compare(name, ir.Operator(op), literal(value)), THING, {})

    assert text("=", 3.0) == "`i32` = cast(3 as int)"
    assert text("=", 2.7) == "false"
    assert text(">", 2.5) == "`i32` >= cast(3 as int)"
    assert text("<", 3_000_000_000) == "`i32` IS NOT NULL"
    assert text("=", 2**24 + 1, "f32") == "false"
    assert text(">", 2**24 + 1, "f32") == "`f32` >= cast(16777218.0 as float)"
    assert text("<", -(2**24) - 1, "f32") == "`f32` <= cast(-16777218.0 as float)"
    assert text(">", F32_MAX + 1, "f32") == "false"
    assert text("=", 0.1, "f32") == f"`f32` = cast({round_f32(0.1)!r} as float)"
    assert (
        text("<", dt.datetime(2024, 3, 1, tzinfo=UTC), "moment")
        == "`moment` < timestamp '2024-03-01T00:00:00.000Z'"
    )
    assert text("<", dt.date(2024, 3, 1), "day") == "`day` < date '2024-03-01'"
    assert text("=", "it's", "name") == "`name` = 'it''s'"


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    made = lance.write_dataset(rows_table(), str(tmp_path_factory.mktemp("indexed") / "thing.lance"))
    for name in ("f32", "f64"):
        made.create_scalar_index(name, "BTREE")
    return lance.dataset(made.uri)


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("zero", [0.0, -0.0, 0])
def test_both_zeros_are_one_value_in_lists_too(dataset, indexed, name, zero):
    table = rows_table()
    stored = [0.0 if row.get(name) == 0.0 else row.get(name) for row in ROWS]
    for values in ((zero,), (zero, 7.5), (zero, 7.5, 8.5, 9.5, 10.5)):
        for predicate, wanted in ((OneOf(name, values), True), (Not(OneOf(name, values)), False)):
            expected = [
                str(number)
                for number, value in enumerate(stored)
                if value is not None and (value == 0.0) == wanted
            ]
            assert table.filter(evaluate(predicate, table, THING, {}))["id"].to_pylist() == expected
            text = to_lance_filter(predicate, THING, {})
            for each in (dataset, indexed):
                assert each.to_table(filter=text, columns=["id"])["id"].to_pylist() == expected, text


def test_a_null_parameter_selects_nothing_also_under_not():
    test = Compare("i32", ir.Operator.EQ, Param("a", PropertyType(ScalarKind.I32), nullable=True))
    for predicate in (test, Not(test)):
        assert normalize(predicate, THING, {"a": None}) == NEVER
    assert not any(evaluate(Not(test), rows_table(), THING, {"a": None}).to_pylist())


def test_endpoints_are_the_columns_src_and_dst():
    edge = EdgeType("Knows", 5, source="Thing", target="Thing")
    predicate = And(
        (Compare("from", ir.Operator.EQ, literal("a")), Not(Compare("to", ir.Operator.EQ, literal("b"))))
    )
    assert to_lance_filter(predicate, edge, {}) == "(`src` = 'a') AND (`dst` != 'b')"
    rows = pa.table({"id": ["1", "2"], "src": ["a", "a"], "dst": ["b", "c"]})
    assert evaluate(predicate, rows, edge, {}).to_pylist() == [False, True]


def test_now_is_the_instant_of_the_run():
    predicate = Compare("moment", ir.Operator.LT, ir.Now())
    now = dt.datetime(2024, 1, 1, tzinfo=UTC)
    assert (
        filter_text(normalize(predicate, THING, {}, now)) == "`moment` < timestamp '2024-01-01T00:00:00.000Z'"
    )


def test_an_empty_table_evaluates_to_an_empty_mask():
    empty = rows_table().slice(0, 0)
    for predicate in (IsNull("tags", negated=False), Compare("xs", ir.Operator.CONTAINS, literal(1)), Or(())):
        assert evaluate(predicate, empty, THING, {}).to_pylist() == []


def test_slices_and_chunks_are_read_at_their_place():
    table = pa.concat_tables([rows_table(), rows_table()])
    for predicate in (
        Compare("tags", ir.Operator.CONTAINS, literal("a")),
        Not(Compare("xs", ir.Operator.CONTAINS, literal(3))),
        Compare("name", ir.Operator.STARTS_WITH, literal("z")),
    ):
        whole = evaluate(predicate, table, THING, {}).to_pylist()
        assert whole.count(True) > 0
        for start in (0, 3, 7, 12):
            part = table.slice(start, 9)
            assert evaluate(predicate, part, THING, {}).to_pylist() == whole[start : start + 9]
            (batch, *_) = part.combine_chunks().to_batches()
            assert evaluate(predicate, batch, THING, {}).to_pylist() == whole[start : start + 9]
