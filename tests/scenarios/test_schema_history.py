"""Blame, the change feed and entities across changes of the schema: by identity, not by name."""

import pytest

from graphs import make_graph
from omnigraph.core.errors import (
    EntityNotFound,
    MergeConflicts,
    MigrationBlocked,
    SchemaBoundary,
    TypeNotFound,
)

TOURS = """node Tour { code: String @key  stops: I32?  mood: enum(fun, calm) }
node Bus { plate: String @key  seats: I32? }
edge Uses: Tour -> Bus { since: I32? }
"""
GUIDED = TOURS.replace("stops: I32?", "stops: I32?  guide: String?") + "node City { name: String @key }\n"
TRIPS = """node Trip @rename_from("Tour") { ref: String @key @rename_from("code")  legs: I64? @rename_from("stops")
  mood: enum(fun, calm) }
node Bus { plate: String @key  seats: I32? }
edge Takes: Trip -> Bus @rename_from("Uses") { began: I32? @rename_from("since") }
"""


@pytest.fixture
def graph(tmp_path):
    with make_graph(tmp_path / "graph", TOURS) as made:
        made.mutate(
            'query q() { insert Tour { code: "a", stops: 1, mood: "fun" } insert Bus { plate: "x", seats: 9 }'
            ' insert Uses { from: "a", to: "x", since: 1990 } }',
            actor="ann",
        )
        made.tags.create("v1")
        yield made


def origins(blame) -> dict[str, tuple]:
    return {each.property: (each.value, each.commit.id) for each in blame.properties}


def head(graph, branch="main"):
    return graph.commits.head(branch=branch).id


@pytest.mark.slow
def test_blame_follows_renamed_and_widened_properties_of_a_renamed_type(graph):
    inserted = head(graph)
    graph.mutate('query q() { update Tour set { stops: 2 } where code = "a" }', actor="ben")
    updated = head(graph)
    graph.apply_schema(TRIPS)
    graph.mutate('query q() { update Trip set { mood: "calm" } where ref = "a" }', actor="cyd")
    expected = {"ref": ("a", inserted), "legs": (2, updated), "mood": ("calm", head(graph))}
    assert origins(graph.blame("Trip", "a")) == expected
    assert [each.commit.actor for each in graph.blame("Trip", "a").properties] == ["ben", "cyd", "ann"]
    bus = origins(graph.blame("Bus", "x"))
    assert bus == {"plate": ("x", inserted), "seats": (9, inserted)}


def test_blame_of_the_past_takes_the_names_of_then_and_of_now(graph):
    inserted = head(graph)
    graph.apply_schema(TRIPS)
    then = origins(graph.blame("Tour", "a", at="v1"))
    now = origins(graph.blame("Trip", "a", at="v1"))
    assert then == {"code": ("a", inserted), "stops": (1, inserted), "mood": ("fun", inserted)}
    assert now == {"ref": ("a", inserted), "legs": (1, inserted), "mood": ("fun", inserted)}
    with pytest.raises(TypeNotFound):
        graph.blame("Tour", "a")


@pytest.mark.slow
def test_a_property_that_was_dropped_and_came_back_is_blamed_on_the_change_that_brought_it(graph):
    inserted = head(graph)
    graph.apply_schema(TOURS.replace("  stops: I32?", ""))
    graph.apply_schema(TOURS)
    brought = head(graph)
    assert origins(graph.blame("Tour", "a")) == {
        "code": ("a", inserted),
        "mood": ("fun", inserted),
        "stops": (None, brought),
    }
    graph.mutate('query q() { update Tour set { stops: 1 } where code = "a" }')
    assert origins(graph.blame("Tour", "a"))["stops"] == (1, head(graph)), (
        "not the commit of the dropped value"
    )


def test_an_entity_of_a_type_that_was_dropped_and_came_back_has_no_former_life(graph):
    alone = "node Tour { code: String @key  stops: I32?  mood: enum(fun, calm) }\n"
    graph.apply_schema(alone)
    graph.apply_schema(TOURS)
    with pytest.raises(EntityNotFound):
        graph.blame("Bus", "x")
    graph.mutate('query q() { insert Bus { plate: "x", seats: 9 } }')
    assert origins(graph.blame("Bus", "x")) == {"plate": ("x", head(graph)), "seats": (9, head(graph))}


@pytest.mark.slow
def test_blame_goes_through_a_branch_that_adopted_and_its_merge(graph):
    inserted = head(graph)
    graph.branches.create("team")
    graph.apply_schema(GUIDED)
    added = head(graph)
    graph.mutate(
        'query q() { update Tour set { guide: "Ann" } where code = "a" }', branch="team", actor="ben"
    )
    guided = head(graph, "team")
    assert origins(graph.blame("Tour", "a"))["guide"] == (None, added)
    graph.branches.merge("team")
    found = origins(graph.blame("Tour", "a"))
    assert found["guide"] == ("Ann", guided)
    assert found["stops"] == (1, inserted)


def test_an_entity_of_the_past_is_found_by_the_names_of_then_and_of_now(graph):
    graph.branches.create("lazy")
    graph.apply_schema(GUIDED)
    assert "guide" not in graph.entity("Tour", "a", branch="lazy").properties
    with pytest.raises(EntityNotFound):
        graph.entity("City", "Oslo", branch="lazy")
    graph.branches.delete("lazy")
    graph.apply_schema(TRIPS, allow_data_loss=False)
    assert graph.entity("Tour", "a", at="v1").properties == {"code": "a", "stops": 1, "mood": "fun"}
    assert graph.entity("Trip", "a", at="v1").properties == {"ref": "a", "legs": 1, "mood": "fun"}
    assert graph.entity("Trip", "a").properties == {"ref": "a", "legs": 1, "mood": "fun"}


@pytest.mark.slow
def test_the_feed_goes_on_over_changes_that_only_add(graph):
    position = graph.feed.start("beginning")
    graph.branches.create("team")
    graph.mutate('query q() { insert Tour { code: "t", mood: "fun" } }', branch="team")
    graph.apply_schema(GUIDED)
    graph.mutate('query q() { update Tour set { guide: "Ann" } where code = "a" }')
    graph.branches.merge("team")
    page = graph.feed.poll(position)
    told = [
        (block.commit.operation, [(change.type_name, change.op, change.id) for change in block.changes])
        for block in page.blocks
    ]
    assert [each for each in told if each[1]][1:] == [
        ("mutation", [("Tour", "update", "a")]),
        ("merge", [("Tour", "insert", "t")]),
    ]
    assert ("schema_apply", []) in told
    graph.mutate('query q() { update Tour set { guide: "Ben" } where code = "t" }', branch="team")
    side = graph.feed.poll(graph.feed.start("beginning", branch="team"), branch="team")
    tours = [change.id for block in side.blocks for change in block.changes if change.type_name == "Tour"]
    assert tours == ["a", "t", "t"]


def test_the_feed_tells_the_values_that_a_fill_gives_as_updates(graph):
    position = graph.feed.start()
    graph.apply_schema(TOURS.replace("stops: I32?", 'stops: I32?  tier: String @default("basic")'))
    (block,) = graph.feed.poll(position).blocks
    (change,) = block.changes
    assert (change.type_name, change.op, change.id) == ("Tour", "update", "a")


@pytest.mark.slow
def test_the_feed_stops_where_names_it_told_are_gone(graph):
    position = graph.feed.start()
    graph.apply_schema(TRIPS)
    renamed = head(graph)
    with pytest.raises(SchemaBoundary, match="names that the feed told before are gone") as stopped:
        graph.feed.poll(position)
    assert "baseline" in stopped.value.hint
    graph.mutate('query q() { update Trip set { legs: 5 } where ref = "a" }')
    (block,) = graph.feed.poll(graph.feed.start(f"after:{renamed}")).blocks
    assert [(change.type_name, change.op) for change in block.changes] == [("Trip", "update")]


def test_s78_a_drop_waits_for_branches_and_an_addition_does_not(graph):
    graph.branches.create("review")
    for wanted in (TOURS.replace("  stops: I32?", ""), TRIPS):
        with pytest.raises(MigrationBlocked, match="review"):
            graph.apply_schema(wanted)
    assert graph.apply_schema(GUIDED).applied
    guide = "query q() { match { $t: Tour } return { $t.guide } }"
    assert list(graph.query(guide, branch="review")) == [{"t.guide": None}]
    assert {each.name: each.generation for each in graph.branches.details()} == {
        "main": 2,
        "review": 1,
    }
    graph.mutate('query q() { update Tour set { guide: "Ann" } where code = "a" }', branch="review")
    assert list(graph.query(guide, branch="review")) == [{"t.guide": "Ann"}]
    assert {each.name: each.generation for each in graph.branches.details()} == {
        "main": 2,
        "review": 2,
    }


@pytest.mark.slow
def test_reverts_and_restores_that_would_bring_back_null_where_a_value_is_required_say_so(graph):
    """Neither a row that was deleted then nor a value that was not there yet may break a rule of now."""
    graph.mutate('query q() { insert Tour { code: "b", mood: "fun" } }')
    there = head(graph)
    graph.mutate('query q() { delete Tour where code = "b" }')
    deleted = head(graph)
    graph.mutate('query q() { insert Tour { code: "c", mood: "fun" } }')
    graph.mutate('query q() { update Tour set { stops: 3 } where code = "c" }')
    updated = head(graph)
    graph.apply_schema(TOURS.replace("stops: I32?", "stops: I32"))
    before = head(graph)
    for bring_back in (
        lambda: graph.revert(deleted),
        lambda: graph.revert(updated),
        lambda: graph.branches.restore("main", to=there),
    ):
        with pytest.raises(MergeConflicts) as refused:
            bring_back()
        assert [each["message"] for each in refused.value.conflicts] == ["Tour.stops must have a value"]
        assert "loosen the schema first" in refused.value.hint
        assert head(graph) == before
    graph.apply_schema(TOURS)
    for commit in (deleted, updated):
        graph.revert(commit)
    rows = graph.query("query q() { match { $t: Tour } return { $t.code, $t.stops } order { $t.code asc } }")
    assert [tuple(row.values()) for row in rows] == [("a", 1), ("b", None), ("c", None)]
    assert graph.verify().violations == ()
