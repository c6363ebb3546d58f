"""Hard drops: what is dropped goes out of the files, but for what a tag asked for, which is named."""

import pytest

import omnigraph
from omnigraph.core.errors import OmnigraphError
from recovery_graph import FAST

SCHEMA = """node Tour { code: String @key  secret: String? @index  stops: I32? }
node Bus { plate: String @key  driver: String? }
edge Uses: Tour -> Bus { note: String? }
"""
LESS = SCHEMA.replace("secret: String? @index  ", "")
ALONE = "node Tour { code: String @key  secret: String? @index  stops: I32? }\n"
SECRET, DRIVER, NOTE = "hush-Ada-Lune", "wheel-Ben-Alder", "scribble-Cyd-Park"


@pytest.fixture
def graph(tmp_path):
    with omnigraph.init(tmp_path / "graph", schema=SCHEMA, settings=FAST) as made:
        made.mutate(
            f'query q() {{ insert Tour {{ code: "a", secret: "{SECRET}", stops: 1 }}'
            f' insert Bus {{ plate: "x", driver: "{DRIVER}" }}'
            f' insert Uses {{ from: "a", to: "x", note: "{NOTE}" }} }}'
        )
        made.mutate('query q() { insert Tour { code: "b", stops: 2 } }')
        yield made


def holding(graph, text: str) -> list[str]:
    """The files of the graph that hold a text."""
    from pathlib import Path

    place = Path(graph.uri)
    return [
        str(path.relative_to(place))
        for path in place.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


def tours(graph, **where):
    rows = graph.query(
        "query q() { match { $t: Tour } return { $t.code, $t.stops } order { $t.code } }", **where
    )
    return [tuple(row.values()) for row in rows]


def test_a_dropped_property_is_in_no_file_afterwards(graph):
    before = graph.commits.head().id
    assert holding(graph, SECRET)
    applied = graph.apply_schema(LESS, allow_data_loss=True)
    assert applied.kept_by == ()
    assert applied.reclaimed_bytes > 0
    assert holding(graph, SECRET) == []
    assert holding(graph, DRIVER), "other tables keep theirs"
    assert tours(graph) == [("a", 1), ("b", 2)]
    with pytest.raises(OmnigraphError):
        graph.query("query q() { match { $t: Tour } return { $t.secret } }", at=before)
    assert graph.verify(deep=True).violations == ()
    told = applied.to_dict()
    assert (told["kept_by"], told["reclaimed_bytes"]) == ([], applied.reclaimed_bytes)


def test_dropped_types_are_in_no_file_afterwards(graph):
    applied = graph.apply_schema(ALONE, allow_data_loss=True)
    assert applied.kept_by == ()
    assert holding(graph, DRIVER) == []
    assert holding(graph, NOTE) == []
    assert holding(graph, SECRET)
    assert tours(graph) == [("a", 1), ("b", 2)]
    assert graph.verify(deep=True).violations == ()


def test_what_a_tag_shows_stays_and_is_named(graph):
    graph.tags.create("v1")
    graph.mutate('query q() { update Tour set { secret: "another-secret" } where code = "b" }')
    applied = graph.apply_schema(LESS, allow_data_loss=True)
    assert applied.kept_by == ("tag v1",)
    secrets = "query q() { match { $t: Tour } return { $t.secret } order { $t.code } }"
    assert [row["t.secret"] for row in graph.query(secrets, at="v1")] == [SECRET, None]
    assert holding(graph, "another-secret") == [], "nobody names the state that had it"
    assert graph.verify(deep=True).violations == ()


def test_a_soft_drop_keeps_the_past(graph):
    before = graph.commits.head().id
    applied = graph.apply_schema(LESS)
    assert "kept_by" not in applied.to_dict()
    assert holding(graph, SECRET)
    secrets = "query q() { match { $t: Tour } return { $t.secret } order { $t.code } }"
    assert [row["t.secret"] for row in graph.query(secrets, at=before)] == [SECRET, None]


def test_a_change_stands_where_nothing_can_be_reclaimed_now(graph):
    from omnigraph.maintenance.cleanup import only_cleanup

    with only_cleanup(graph.session):
        applied = graph.apply_schema(LESS, allow_data_loss=True)
    assert applied.applied
    (why,) = applied.kept_by
    assert why.startswith("all of it: ")
    assert holding(graph, SECRET)
    assert tours(graph) == [("a", 1), ("b", 2)]
    assert graph.verify().violations == ()


def test_the_graph_goes_on_after_a_hard_drop(graph):
    graph.apply_schema(LESS, allow_data_loss=True)
    graph.mutate('query q() { insert Tour { code: "c", stops: 3 } }')
    graph.branches.create("team")
    graph.mutate('query q() { update Tour set { stops: 9 } where code = "a" }', branch="team")
    graph.branches.merge("team")
    assert tours(graph) == [("a", 9), ("b", 2), ("c", 3)]
    graph.apply_schema(SCHEMA)
    assert [
        row["t.secret"] for row in graph.query("query q() { match { $t: Tour } return { $t.secret } }")
    ] == [None] * 3
    assert graph.verify(deep=True).violations == ()
