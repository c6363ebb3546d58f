"""The shape of read plans: what an executor can rely on. Refusals are pinned in tests/cases/query."""

import datetime as dt

import pytest

from omnigraph.catalog.build import compile_schema
from omnigraph.planning import ir, mentions
from omnigraph.planning.compile import as_read, compile_query
from omnigraph.planning.describe import describe_field
from omnigraph.planning.params import bind_params

CATALOG = compile_schema(
    """
node Writer { handle: String @key  name: String @index  books: I32?  tags: [String]?  vec: Vector(2)?  seen: DateTime? }
node Press { code: String @key  city: String? }
edge Mentors: Writer -> Writer { since: I32? }
edge SignedTo: Writer -> Press { year: I32? }
"""
)
WRITER, PRESS = CATALOG.nodes["Writer"], CATALOG.nodes["Press"]
MENTORS, SIGNED = CATALOG.edges["Mentors"], CATALOG.edges["SignedTo"]


def compiled(body, params=""):
    return as_read(compile_query(f"query q({params}) {{ {body} }}", CATALOG))


def ref(variable, name, owner=WRITER, *, optional=False):
    prop = owner.by_name[name]
    return ir.PropertyRef(variable, owner, prop, nullable=prop.nullable or optional)


def text(value):
    return ir.Literal(value, ir.STRING)


def test_a_binding_carries_its_matches():
    plan = compiled('match { $w: Writer { handle: "ada", tags: $t } } return { $w.name }', "$t: String?")
    (node,) = plan.match.nodes
    assert node == ir.NodeVariable(
        "w",
        WRITER,
        ir.And(
            (
                ir.Compare("handle", ir.Operator.EQ, text("ada")),
                ir.Compare("tags", ir.Operator.CONTAINS, ir.Param("t", ir.STRING, nullable=True)),
            )
        ),
        declared=True,
    )
    assert plan.match.introduced == ("w",)
    assert plan.columns == (ir.Column("w.name", ref("w", "name"), ir.STRING, nullable=False),)
    assert (plan.is_aggregate, plan.grouping, plan.distinct, plan.order, plan.limit, plan.offset) == (
        False,
        (),
        False,
        (),
        None,
        0,
    )


def test_two_bindings_of_a_variable_are_one_with_both_matches():
    plan = compiled("match { $w: Writer { books: 3 } $w: Writer { books: 4 } } return { $w }")
    (node,) = plan.match.nodes
    assert isinstance(node.matches, ir.And)
    assert len(node.matches.parts) == 2


def test_traversals_stand_in_the_direction_of_the_edge():
    plan = compiled("match { $p: Press $p signedTo $w $x mentors{1,3} $w } return { $w }")
    assert plan.match.traversals == (
        ir.Traversal(SIGNED, "w", "p", False, 1, 1, False, None),
        ir.Traversal(MENTORS, "x", "w", False, 1, 3, True, None),
    )
    declared = {node.name: node.declared for node in plan.match.nodes}
    assert declared == {"p": True, "w": False, "x": False}
    assert plan.ties == ("p", "w", "x")


def test_hops_over_ends_of_different_types_cannot_be_chained():
    one = compiled("match { $w: Writer $w signedTo{1,9} $p } return { $p }").match.traversals[0]
    assert (one.low, one.high, one.is_empty) == (1, 1, False)
    assert compiled("match { $w: Writer $w signedTo{2,9} $p } return { $p }").match.traversals[0].is_empty
    assert not compiled("match { $w: Writer $w mentors{2,9} $p } return { $p }").match.traversals[0].is_empty


def test_anonymous_ends_get_names_of_their_own():
    plan = compiled("match { $w: Writer $w mentors $_ $_ mentors $w } return { $w }")
    first, second = plan.match.traversals
    assert first.target != second.source
    assert {node.name for node in plan.match.nodes if node.anonymous} == {first.target, second.source}
    assert plan.ties == ("w",)


def test_edge_variables_are_bound_and_break_ties():
    plan = compiled("match { $w: Writer $w $e:<mentors> $x $e.since > 3 } return { $e.since }")
    assert plan.match.edges == (("e", MENTORS),)
    (traversal,) = plan.match.traversals
    assert (traversal.edge_variable, traversal.undirected) == ("e", True)
    assert plan.match.conditions == (
        ir.Comparison(ref("e", "since", MENTORS), ir.Operator.GT, ir.Literal(3, ir.I64)),
    )
    assert plan.ties == ("e", "w", "x")
    assert ref("e", "since", MENTORS).of_edge


def test_negations_know_what_they_need_from_outside():
    plan = compiled(
        "match { $w: Writer $p: Press not { $w signedTo $q not { $q.code = $p.code } } } return { $w }"
    )
    (outer,) = plan.match.negations
    assert outer.outer == {"w", "p"}
    assert outer.introduced == ("q",)
    (inner,) = outer.negations
    assert inner.outer == {"q", "p"}
    assert [len(block.nodes) for block in plan.match.walk()] == [2, 1, 0]


def test_an_outer_variable_bound_again_is_a_test_of_it():
    plan = compiled('match { $w: Writer not { $w: Writer { name: "x" } } } return { $w }')
    (node,) = plan.match.negations[0].nodes
    assert (node.name, node.outer, node.declared) == ("w", True, True)
    assert plan.match.negations[0].introduced == ()


def test_a_negation_sees_variables_that_come_after_it_in_the_text():
    plan = compiled("match { $w: Writer not { $w mentors $x } $w mentors $x } return { $x }")
    assert plan.match.negations[0].outer == {"w", "x"}
    assert plan.match.negations[0].introduced == ()


def test_variables_of_maybe_blocks_are_nullable():
    plan = compiled(
        "match { $w: Writer maybe { $w $e:signedTo $p } $p is null } return { $p, $p.code, $e.year, count($p) as n }"
    )
    (block,) = plan.match.optionals
    assert block.introduced == ("p", "e")
    assert [column.nullable for column in plan.columns] == [True, True, True, False]
    assert plan.match.conditions == (ir.NullCheck(ir.NodeRef("p", PRESS, nullable=True), negated=False),)
    assert plan.ties == ("e", "p", "w")


def test_searches_as_conditions():
    plan = compiled(
        'match { $w: Writer search($w.name, "a") fuzzy($w.name, $q, 1) = false true != match_text($w.name, "b") }'
        " return { $w }",
        "$q: String?",
    )
    first, second, third = plan.match.conditions
    assert first == ir.SearchTest(ir.Search(ir.Function.SEARCH, ref("w", "name"), text("a")), wanted=True)
    assert second == ir.SearchTest(
        ir.Search(
            ir.Function.FUZZY,
            ref("w", "name"),
            ir.Param("q", ir.STRING, nullable=True),
            ir.Literal(1, ir.I64),
        ),
        wanted=False,
    )
    assert isinstance(third, ir.SearchTest)
    assert not third.wanted
    assert mentions.variables_of(first) == {"w"}


def test_ranking_is_taken_out_of_the_order():
    plan = compiled(
        'match { $w: Writer } return { $w, bm25($w.name, "x") as s } order { rrf(nearest($w.vec, [1, 0]), bm25($w.name, "x"), $k), $w.books desc } limit 3',
        "$k: I32",
    )
    vector = ir.Literal((1.0, 0.0), WRITER.by_name["vec"].type)
    assert plan.ranking == ir.Rrf(
        ir.Nearest(ref("w", "vec"), vector, needs_embedding=False),
        ir.Bm25(ref("w", "name"), text("x")),
        ir.Param("k", WRITER.by_name["books"].type, nullable=False),
    )
    assert plan.ranking.variable == "w"
    assert plan.order == (ir.SortKey(ref("w", "books"), descending=True),)
    assert plan.number_params == (("k", 1, "rrf k"),)
    assert plan.columns[1].type == ir.F64


def test_text_against_vectors_needs_an_embedder():
    plan = compiled("match { $w: Writer } return { $w } order { nearest($w.vec, $q) } limit 1", "$q: String")
    assert isinstance(plan.ranking, ir.Nearest)
    assert plan.ranking.needs_embedding


def test_aggregates_and_their_keys():
    plan = compiled(
        "match { $w: Writer $w signedTo $p } return { count($w) as n, $p.code, max($w.seen) as last } order { $p.code desc, n, count($w), min($w.name) }"
    )
    assert plan.is_aggregate
    assert plan.grouping == (1,)
    assert [column.type for column in plan.columns] == [ir.I64, ir.STRING, ir.DATETIME]
    assert [key.expression for key in plan.order] == [
        ir.ColumnRef(1),
        ir.ColumnRef(0),
        ir.ColumnRef(0),
        ir.Aggregate(ir.Function.MIN, ref("w", "name"), ir.STRING),
    ]


def test_distinct_rows_are_ordered_by_columns():
    plan = compiled(
        "match { $w: Writer } return distinct { $w.name as n, $w.books } order { $w.name, $w.books desc }"
    )
    assert plan.distinct
    assert plan.order == (
        ir.SortKey(ir.ColumnRef(0), descending=False),
        ir.SortKey(ir.ColumnRef(1), descending=True),
    )


def test_now_and_date_literals_are_values():
    plan = compiled(
        'match { $w: Writer $w.seen < now() $w.seen > datetime("2024-03-01T10:30:00+01:00") } return { $w }'
    )
    assert plan.uses_now
    later = plan.match.conditions[1]
    assert isinstance(later, ir.Comparison)
    assert later.right == ir.Literal(dt.datetime(2024, 3, 1, 9, 30, tzinfo=dt.UTC), ir.DATETIME)
    assert not compiled("match { $w: Writer } return { $w }").uses_now


def test_plans_are_values():
    body = "match { $w: Writer $w mentors $x not { $x.books = 3 } } return { $w.name, count($x) as n } order { n }"
    assert compiled(body) == compiled(body)


def test_parameters_are_described():
    plan = compiled("match { $w: Writer } return { $w }", "$a: U64, $b: [Date]?, $v: Vector(3), $f: F32?")
    assert [describe_field(p.name, p.type, nullable=p.nullable).to_dict() for p in plan.params] == [
        {"name": "a", "kind": "bigint", "nullable": False},
        {"name": "b", "kind": "list", "item_kind": "date", "nullable": True},
        {"name": "v", "kind": "vector", "vector_dim": 3, "nullable": False},
        {"name": "f", "kind": "float", "nullable": True},
    ]
    assert bind_params(plan, {"a": 1, "v": [1, 2, 3]}) == {"a": 1, "b": None, "v": (1.0, 2.0, 3.0), "f": None}


@pytest.mark.parametrize("depth", [1, 30, 90])
def test_nested_negations_to_any_depth(depth):
    body = "$w.books = 1"
    for _ in range(depth):
        body = f"$w.books > 0 not {{ {body} }}"
    plan = compiled(f"match {{ $w: Writer {body} }} return {{ $w }}")
    assert len(list(plan.match.walk())) == depth + 1
