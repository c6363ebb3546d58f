"""Every change of the planner's table, applied to a graph with rows: what it does, or why it is refused."""

import shutil

import pytest

import omnigraph
from graphs import make_graph, pins_of
from omnigraph.core.errors import (
    ConstraintViolation,
    MigrationUnsupported,
    OmnigraphError,
    SchemaCatalogError,
    SchemaIdentityError,
)
from recovery_graph import FAST

TOUR = "node Tour { code: String @key  stops: I32?  mood: enum(fun, calm)  pic: Blob? }\n"
REST = "node Bus { plate: String @key }\nedge Uses: Tour -> Bus\n"
SCHEMA = TOUR + REST
TRIP = (
    SCHEMA.replace("node Tour {", 'node Trip @rename_from("Tour") {')
    .replace("code: String @key", 'ref: String @key @rename_from("code")')
    .replace("Tour -> Bus", "Trip -> Bus")
)
STOPS = "query q() { match { $t: Tour } return { $t.code, $t.stops } order { $t.code asc } }"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("cases") / "graph"
    with omnigraph.init(place, schema=SCHEMA, settings=FAST) as graph:
        graph.mutate(
            'query q() { insert Tour { code: "a", stops: 7, mood: "fun" } insert Tour { code: "b", mood: "calm" }'
            ' insert Bus { plate: "x" } insert Bus { plate: "y" } insert Bus { plate: "z" }'
            ' insert Uses { from: "a", to: "x" } insert Uses { from: "a", to: "y" }'
            ' insert Uses { from: "a", to: "z" } }'
        )
    return place


@pytest.fixture
def graph(made, tmp_path):
    shutil.copytree(made, tmp_path / "graph")
    with omnigraph.open(tmp_path / "graph", settings=FAST) as opened:
        yield opened
        assert opened.verify().violations == ()


def changed(old, new):
    assert old in SCHEMA
    return SCHEMA.replace(old, new)


def kinds(applied):
    return [step.kind for step in applied.steps]


def refused(graph, error, text, says, **options):
    """Nothing moves: neither the head nor the accepted schema."""
    head, source = graph.commits.head().id, graph.schema_source()
    with pytest.raises(error, match=says) as raised:
        graph.apply_schema(text, **options)
    assert (graph.commits.head().id, graph.schema_source()) == (head, source)
    return raised.value


def stays(graph, text):
    """Applied as one commit that moves no table; returns the steps."""
    before, old = graph.commits.head().id, pins_of(graph.snapshot())
    applied = graph.apply_schema(text)
    assert applied.applied
    assert graph.commits.show(applied.commit).parents == (before,)
    assert pins_of(graph.snapshot(at=applied.commit)) == old
    return kinds(applied)


def shown(graph, text=STOPS, **where):
    return [tuple(row.values()) for row in graph.query(text, **where)]


def test_s58_comments_change_nothing(graph):
    head = graph.commits.head().id
    applied = graph.apply_schema("// tours\n" + SCHEMA + "/* the end */\n")
    assert (applied.applied, applied.steps, graph.commits.head().id) == (False, (), head)


def test_s59_an_added_property_is_null_in_the_rows_that_exist(graph):
    assert kinds(graph.apply_schema(changed("stops: I32?", "stops: I32?  guide: String?"))) == [
        "add_property"
    ]
    assert shown(graph, STOPS.replace("stops", "guide")) == [("a", None), ("b", None)]


def test_s60_a_required_property_needs_a_value(graph):
    text = changed("stops: I32?", "stops: I32?  guide: String")
    refused(graph, MigrationUnsupported, text, "OG-MF-103")
    assert graph.apply_schema(text, fills=["Tour.guide = $row.code"]).applied
    assert shown(graph, STOPS.replace("stops", "guide")) == [("a", "a"), ("b", "b")]


def test_s61_an_integer_is_widened(graph):
    assert kinds(graph.apply_schema(changed("stops: I32?", "stops: I64?"))) == ["widen_property"]
    graph.mutate('query q() { update Tour set { stops: 3000000000 } where code = "b" }')
    assert shown(graph) == [("a", 7), ("b", 3000000000)]


def test_s62_null_rows_stand_against_a_requirement(graph):
    text = changed("stops: I32?", "stops: I32")
    error = refused(graph, ConstraintViolation, text, "must have a value")
    assert [each.entity_id for each in error.violations] == ["b"]
    assert "OG-MF-104" in error.hint
    graph.mutate('query q() { update Tour set { stops: 1 } where code = "b" }')
    assert kinds(graph.apply_schema(text)) == ["require_property"]


def test_s63_an_enum_gains_a_value_that_can_be_written_at_once(graph):
    assert stays(graph, changed("enum(fun, calm)", "enum(calm, fun, epic)")) == ["extend_enum"]
    graph.mutate('query q() { update Tour set { mood: "epic" } where code = "a" }')
    assert shown(graph, STOPS.replace("stops", "mood")) == [("a", "epic"), ("b", "calm")]


def test_s64_rows_stand_against_a_narrower_enum(graph):
    text = changed("enum(fun, calm)", "enum(fun)")
    error = refused(graph, ConstraintViolation, text, "'calm' is not one of fun")
    assert [each.entity_id for each in error.violations] == ["b"]
    graph.mutate('query q() { update Tour set { mood: "fun" } where code = "b" }')
    assert kinds(graph.apply_schema(text)) == ["narrow_enum"]


def test_s65_the_order_of_enum_values_changes_nothing(graph):
    assert graph.apply_schema(changed("enum(fun, calm)", "enum(calm, fun)")).applied is False


def test_s66_an_index_moves_no_table(graph):
    assert stays(graph, changed("stops: I32?", "stops: I32? @index")) == ["add_constraint"]


def test_s67_equal_values_stand_against_a_uniqueness(graph):
    text = changed("stops: I32?", "stops: I32? @unique")
    graph.mutate('query q() { update Tour set { stops: 7 } where code = "b" }')
    refused(graph, ConstraintViolation, text, "'7' is held by 'a' and 'b'")
    graph.mutate('query q() { update Tour set { stops: 8 } where code = "b" }')
    assert kinds(graph.apply_schema(text)) == ["add_constraint"]


def test_s68_an_indexed_property_is_dropped(graph):
    graph.apply_schema(changed("stops: I32?", "stops: I32? @index"))
    applied = graph.apply_schema(changed("  stops: I32?", ""))
    assert kinds(applied) == ["remove_constraint", "drop_property"]


def test_s69_a_property_that_is_dropped_softly_stays_in_the_past(graph):
    old = graph.commits.head().id
    applied = graph.apply_schema(changed("  stops: I32?", ""))
    assert [(step.kind, step.to_dict()["mode"]) for step in applied.steps] == [("drop_property", "soft")]
    with pytest.raises(OmnigraphError, match="stops"):
        graph.query(STOPS)
    assert shown(graph, at=old) == [("a", 7), ("b", None)]


@pytest.mark.slow
def test_s70_a_property_that_is_dropped_hard_is_gone_from_the_past(graph):
    old = graph.commits.head().id
    applied = graph.apply_schema(changed("  stops: I32?", ""), allow_data_loss=True)
    assert [(step.kind, step.to_dict()["mode"]) for step in applied.steps] == [("drop_property", "hard")]
    with pytest.raises(OmnigraphError, match="removed by a cleanup"):
        graph.query(STOPS, at=old)


def test_s71_a_type_that_an_edge_names_stays(graph):
    refused(graph, SchemaCatalogError, changed("node Bus { plate: String @key }\n", ""), "Bus")


def test_s72_a_type_goes_with_its_edges(graph):
    old = graph.commits.head().id
    applied = graph.apply_schema(TOUR)
    assert [(step.kind, step.to_dict()["mode"]) for step in applied.steps] == [("drop_type", "soft")] * 2
    assert set(graph.snapshot().entries) == {"node:Tour"}
    assert len(shown(graph, "query q() { match { $b: Bus } return { $b.plate } }", at=old)) == 3


def test_s73_a_type_and_its_key_are_renamed_with_ids_and_rows(graph):
    old = graph.commits.head().id
    assert kinds(graph.apply_schema(TRIP)) == ["rename_type", "rename_property"]
    assert shown(graph, STOPS.replace("Tour", "Trip").replace("code", "ref")) == [("a", 7), ("b", None)]
    assert len(shown(graph, "query q() { match { $t: Trip $t uses $b } return { $t.ref, $b.plate } }")) == 3
    assert list(graph.diff(old, "main")) == []


def test_s74_hints_may_stay_in_the_text(graph):
    graph.apply_schema(TRIP)
    assert graph.apply_schema(TRIP).applied is False


def test_s75_a_type_is_not_renamed_from_another_kind(graph):
    text = SCHEMA + 'edge Uses2: Tour -> Bus @rename_from("Bus")\n'
    refused(graph, SchemaIdentityError, text, "Bus")


def test_s76_edges_stand_against_a_cardinality(graph):
    text = changed("Tour -> Bus", "Tour -> Bus @card(0..2)")
    refused(graph, ConstraintViolation, text, "'a' would have 3 edges")
    graph.mutate('query q() { delete Uses where to = "z" }')
    assert kinds(graph.apply_schema(text)) == ["change_cardinality"]


def test_s77_a_type_that_comes_back_is_another_one(graph):
    old = graph.commits.head().id
    buses = "query q() { match { $b: Bus } return { $b.plate } }"
    former = graph.snapshot().entries["node:Bus"].location
    graph.apply_schema(TOUR)
    assert kinds(graph.apply_schema(SCHEMA)) == ["add_type", "add_type"]
    assert shown(graph, buses) == []
    assert graph.snapshot().entries["node:Bus"].location != former
    assert len(shown(graph, buses, at=old)) == 3, "the past is read with its own schema"


def test_s79_a_composite_key_whose_parts_are_renamed_is_the_same_key(tmp_path):
    text = "node T { alpha: String  zeta: String  n: I32?  @key(alpha, zeta) }\n"
    with make_graph(tmp_path / "graph", text) as graph:
        graph.mutate('query q() { insert T { alpha: "A", zeta: "Z", n: 1 } }')
        graph.apply_schema(
            'node T { aaaa: String @rename_from("zeta")  zzzz: String @rename_from("alpha")  n: I32?\n'
            "  @key(aaaa, zzzz) }\n"
        )
        graph.mutate('query q() { insert T { aaaa: "Z", zzzz: "A", n: 2 } }')
        assert shown(graph, "query q() { match { $t: T } return { $t.zzzz, $t.aaaa, $t.n } }") == [
            ("A", "Z", 2)
        ]
        assert graph.entity("T", '["A","Z"]').properties["n"] == 2


def test_s80_a_description_moves_no_table(graph):
    assert stays(graph, changed("node Tour {", 'node Tour @description("d") {')) == ["update_type_metadata"]
