import datetime as dt

import pytest

from omnigraph.catalog.build import compile_schema
from omnigraph.core.errors import (
    AmbiguousQuery,
    KeyImmutable,
    MissingParameter,
    MutationShapeError,
    ParameterTypeError,
    PropertyValueError,
    QueryNotSelected,
    QuerySyntaxError,
    QueryTypeError,
    UnknownParameter,
)
from omnigraph.planning import ir
from omnigraph.planning.assign import assigned_value
from omnigraph.planning.compile import as_mutation, compile_query
from omnigraph.planning.params import bind_params

CATALOG = compile_schema(
    """
node Member {
  email: String @key
  nick: String? @unique
  age: I32?
  score: F64?
  role: enum(owner, guest)?
  joined: DateTime?
  pic: Blob?
  tags: [String]?
  level: I32 @default(1)
}
node Club { slug: String @key  tier: I32 }
node Pt { k: String @key  v: Vector(2) }
edge JoinedTo: Member -> Club @card(0..2) { since: Date? }
edge Knows: Member -> Member { @unique(src, dst) }
"""
)
MEMBER = CATALOG.nodes["Member"]
KNOWS = CATALOG.edges["Knows"]


def compiled(statements, params=""):
    return as_mutation(compile_query(f"query q({params}) {{ {statements} }}", CATALOG))


def code(statements, params=""):
    with pytest.raises(QueryTypeError) as raised:
        compiled(statements, params)
    assert raised.value.source_error is not None
    return raised.value.source_error.lint_code


def codes(statements, params=""):
    with pytest.raises(QueryTypeError) as raised:
        compiled(statements, params)
    return [found.code for found in raised.value.diagnostics]


def test_insert_a_node_with_fitted_literals_and_defaults():
    plan = compiled('insert Member { email: "d@x", score: 5, age: 3.0, tags: ["a"], joined: now() }')
    (insert,) = plan.statements
    assert isinstance(insert, ir.InsertOp)
    assert insert.type is MEMBER
    assert not insert.new
    assert {name: getattr(value, "value", value) for name, value in insert.assignments} == {
        "email": "d@x",
        "score": 5.0,
        "age": 3,
        "tags": ("a",),
        "joined": ir.Now(),
        "level": 1,
    }


def test_insert_an_edge_and_insert_new():
    insert = compiled('insert Knows { from: "a", to: $t }', "$t: String").statements[0]
    assert insert == ir.InsertOp(
        KNOWS, False, (), ir.Literal("a", ir.STRING), ir.Param("t", ir.STRING, nullable=False)
    )
    assert compiled('insert new Member { email: "d@x" }').statements[0].new


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ('insert Club { slug: "golf" }', "T12"),
        ('insert Club { slug: "golf", tier: 1, hue: "x" }', "T11"),
        ('insert Klub { slug: "g" }', "T10"),
        ('insert Club { slug: "g", slug: "h", tier: 1 }', "T13"),
        ("insert Club { slug: $s, tier: 1 }", "T14"),
        ('insert Knows { from: "ana@x" }', "T12"),
        ('insert Member { email: "d@x", role: "admin" }', "T3"),
        ('insert Member { email: "d@x", age: now() }', "T7"),
        ('insert Member { email: "d@x", age: 2147483648 }', "T3"),
        ('insert Member { email: "d@x", age: 2.5 }', "T3"),
        ('insert Member { email: "d@x", tags: [1] }', "T3"),
        ('insert Member { email: "d@x", tags: ["a", null] }', None),
        ("insert Member { email: null }", "T3"),
        ('insert Member { email: "d@x", id: "1" }', "T11"),
        ('insert Pt { k: "a", v: [1] }', "T3"),
        ('insert Knows { from: 1, to: "b" }', "T3"),
        ('update Knows set { to: "cat@x" } where from = "ana@x"', "T16"),
        ('delete Member where pic = "base64:AA=="', "T11"),
        ("delete Member where pic is null", "T11"),
        ("delete Member where hue = 1", "T11"),
        ("delete Member where age = null", "T7"),
        ('delete Member where age = "x"', "T7"),
        ('delete Member where tags = "x"', "T7"),
        ("delete Member where age contains 3", "T7"),
        ('delete Member where joined > date("2024-01-01")', "T7"),
        ('delete Member where joined > datetime("2024-13-01")', "T3"),
        ('delete Knows where src = "a"', "T11"),
    ],
)
def test_refusals(statement, expected):
    assert code(statement) == expected


def test_parameters_do_not_fit():
    assert code('insert Member { email: "x", age: $a }', "$a: Date") == "T7"
    assert code("insert Member { email: $a }", "$a: I32") == "T7"
    assert code('insert Pt { k: "a", v: $v }', "$v: Vector(3)") == "T7"
    assert compiled('insert Pt { k: "a", v: $v }', "$v: Vector(2)")
    assert compiled('insert Pt { k: "a", v: $v }', "$v: [F64]")
    assert compiled('insert Member { email: "x", pic: $p, role: $p }', "$p: String")


def test_every_error_is_found_and_they_come_in_source_order():
    assert codes(
        'insert Club { slug: 1, tier: "x" } insert Klub { a: 1 } delete Member where hue = 1 and age = "x"'
    ) == [
        "T3",
        "T3",
        "T10",
        "D2",
        "T11",
        "T7",
    ]


def test_near_names_are_offered():
    with pytest.raises(QueryTypeError) as raised:
        compiled('insert Memberr { email: "x" }')
    assert raised.value.to_dict()["candidates"] == ["Member"]
    assert "did you mean 'Member'" in str(raised.value)


def test_key_and_shape():
    with pytest.raises(KeyImmutable):
        compiled('update Member set { email: "q@x" } where email = "ana@x"')
    with pytest.raises(MutationShapeError):
        compiled('insert Club { slug: "a" tier: 1 } delete Club where slug = "x"')
    with pytest.raises(MutationShapeError):
        compiled('delete Club where slug = "x" update Club set { tier: 1 } where slug = "y"')
    deletes = compiled('delete Club where slug = "x" delete Member where age > 1').statements
    assert [type(each) for each in deletes] == [ir.DeleteOp, ir.DeleteOp]


def test_conditions():
    update = compiled(
        'update Member set { age: null } where not age > 3 and (nick starts_with "a" or tags contains $t) or role is not null',
        "$t: String",
    ).statements[0]
    assert update.predicate == ir.Or(
        (
            ir.And(
                (
                    ir.Not(ir.Compare("age", ir.Operator.GT, ir.Literal(3, ir.I64))),
                    ir.Or(
                        (
                            ir.Compare("nick", ir.Operator.STARTS_WITH, ir.Literal("a", ir.STRING)),
                            ir.Compare(
                                "tags", ir.Operator.CONTAINS, ir.Param("t", ir.STRING, nullable=False)
                            ),
                        )
                    ),
                )
            ),
            ir.IsNull("role", negated=True),
        )
    )
    assert update.assignments == (("age", ir.Literal(None, MEMBER.by_name["age"].type)),)


def test_selection_of_a_query():
    text = "query a() { delete Club where tier = 1 } query b() { delete Club where tier = 2 }"
    with pytest.raises(AmbiguousQuery):
        compile_query(text, CATALOG)
    with pytest.raises(QueryNotSelected):
        compile_query(text, CATALOG, name="c")
    with pytest.raises(QueryNotSelected):
        compile_query("// nothing", CATALOG)
    assert compile_query(text, CATALOG, name="b").name == "b"
    with pytest.raises(QuerySyntaxError):
        compile_query("query a() { delete Club }", CATALOG)


PLAN = compiled(
    "delete Member where age = 1",
    "$s: String?, $b: Bool?, $i: I32?, $u: U64?, $f: F32?, $d: Date?, $m: DateTime?, $l: [I32]?, $v: Vector(2)?",
)


@pytest.mark.parametrize(
    ("name", "given", "bound"),
    [
        ("s", "x", "x"),
        ("b", True, True),
        ("i", 3, 3),
        ("i", "-3", -3),
        ("u", 2**64 - 1, 2**64 - 1),
        ("u", "18446744073709551615", 2**64 - 1),
        ("f", 1, 1.0),
        ("d", "2024-06-01", dt.date(2024, 6, 1)),
        ("d", dt.date(2024, 6, 1), dt.date(2024, 6, 1)),
        ("m", "2024-03-01T10:30:00.1239+01:00", dt.datetime(2024, 3, 1, 9, 30, 0, 123_000, tzinfo=dt.UTC)),
        ("m", "2024-03-01", dt.datetime(2024, 3, 1, tzinfo=dt.UTC)),
        ("l", [1, "2"], (1, 2)),
        ("l", [], ()),
        ("v", [1, 2.5], (1.0, 2.5)),
        ("s", None, None),
    ],
)
def test_binding(name, given, bound):
    value = bind_params(PLAN, {name: given})[name]
    assert value == bound
    assert type(value) is type(bound)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("s", 1),
        ("b", 1),
        ("b", "true"),
        ("i", 1.5),
        ("i", 3.0),
        ("i", 3_000_000_000),
        ("i", True),
        ("i", "x"),
        ("i", "9" * 5000),
        ("u", -1),
        ("u", 2**64),
        ("f", "1"),
        ("f", 1e39),
        ("f", float("nan")),
        ("d", 3),
        ("d", "01/02/2024"),
        ("d", "2024-02-30"),
        ("m", "soon"),
        ("m", "2024-03-01T25:00:00Z"),
        ("l", [1, None]),
        ("l", "1"),
        ("l", {"a": 1}),
        ("v", [1]),
        ("v", [1, "2"]),
        ("s", "\ud800"),
    ],
)
def test_binding_refuses(name, given):
    with pytest.raises(ParameterTypeError) as raised:
        bind_params(PLAN, {name: given})
    assert raised.value.parameter == name


def test_missing_and_unknown_parameters():
    plan = compiled("delete Member where age = $a", "$a: I32")
    with pytest.raises(MissingParameter):
        bind_params(plan, {})
    with pytest.raises(MissingParameter):
        bind_params(plan, {"a": None})
    with pytest.raises(UnknownParameter) as raised:
        bind_params(plan, {"a": 1, "aa": 1})
    assert raised.value.to_dict()["candidates"] == ["a"]


def test_javascript_hosts():
    assert bind_params(PLAN, {"i": 3.0}, javascript_safe=True)["i"] == 3
    with pytest.raises(ParameterTypeError):
        bind_params(PLAN, {"u": 2**53}, javascript_safe=True)
    assert bind_params(PLAN, {"u": str(2**53)}, javascript_safe=True)["u"] == 2**53


def test_assigned_values_are_fitted_when_they_are_known():
    age = MEMBER.by_name["age"]
    wide = ir.Param("a", ir.I64, nullable=False)
    assert assigned_value(wide, age, MEMBER, params={"a": 7}, now=None) == 7
    with pytest.raises(PropertyValueError) as raised:
        assigned_value(wide, age, MEMBER, params={"a": 2147483648}, now=None)
    assert "Member.age: 2147483648 does not fit I32" in str(raised.value)
    role = MEMBER.by_name["role"]
    text = ir.Param("r", ir.STRING, nullable=False)
    assert assigned_value(text, role, MEMBER, params={"r": "admin"}, now=None) == "admin"


def test_reserved_parameter_names():
    assert code("delete Member where age = 1", "$__nanograph_now: DateTime") is None
    assert code("delete Member where age = 1", "$a: I32, $a: I32") is None
