"""Hard drops: what is dropped goes out of the files, but for what a tag asked for, which is named."""

from pathlib import Path

import pytest

import omnigraph
from crash.harness import CUT, run_child
from graphs import make_graph
from omnigraph.core.errors import OmnigraphError
from omnigraph.core.events import TableStaged, listen
from omnigraph.core.failpoints import Window
from recovery_graph import FAST

SCHEMA = """node Tour { code: String @key  secret: String? @index  stops: I32? }
node Bus { plate: String @key  driver: String? }
edge Uses: Tour -> Bus { note: String? }
"""
LESS = SCHEMA.replace("secret: String? @index  ", "")
ALONE = "node Tour { code: String @key  secret: String? @index  stops: I32? }\n"
SMALL = "node Tour { code: String @key  stops: I32? }\n"
SECRET, DRIVER, NOTE = "hush-Ada-Lune", "wheel-Ben-Alder", "scribble-Cyd-Park"


@pytest.fixture
def graph(tmp_path):
    with make_graph(tmp_path / "graph", SCHEMA) as made:
        made.mutate(
            f'query q() {{ insert Tour {{ code: "a", secret: "{SECRET}", stops: 1 }}'
            f' insert Bus {{ plate: "x", driver: "{DRIVER}" }}'
            f' insert Uses {{ from: "a", to: "x", note: "{NOTE}" }} }}'
        )
        made.mutate('query q() { insert Tour { code: "b", stops: 2 } }')
        yield made


def holding(graph, text: str) -> list[str]:
    """The files of the graph that hold a text."""
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


DEATHS = (
    Window.SCHEMA_APPLY_AFTER_MANIFEST_COMMIT,
    Window.SCHEMA_APPLY_BEFORE_LOCK_RELEASE,
    Window.OPTIMIZE_POST_COMPACT_PRE_REINDEX,
    Window.OPTIMIZE_POST_PHASE_B_PRE_MANIFEST_COMMIT,
    Window.CLEANUP_POST_NOTE_PRE_STATES,
    Window.CLEANUP_STATES_GC,
    Window.CLEANUP_TABLE_GC,
    Window.CLEANUP_POST_VERSIONS_PRE_FILES,
    Window.CLEANUP_POST_FILES_PRE_END,
)
"""After each of them the schema is the new one, and something may be left of the values."""


@pytest.mark.crash
@pytest.mark.parametrize("window", DEATHS)
def test_a_hard_drop_that_was_killed_is_completed_by_the_same_call(graph, window):
    path = graph.uri
    graph.close()
    command = {"command": "apply_schema", "path": path, "schema": SMALL, "allow_data_loss": True}
    status, errors = run_child(command, failpoints=f"{window}=kill")
    assert status == CUT, errors
    with omnigraph.open(path, settings=FAST) as again:
        assert again.schema_source() == SMALL
        assert tours(again) == [("a", 1), ("b", 2)]
        assert again.verify(deep=True).violations == ()
        done = again.apply_schema(SMALL, allow_data_loss=True)
        assert (done.applied, done.steps, done.kept_by) == (False, (), ())
        for text in (SECRET, DRIVER, NOTE):
            assert holding(again, text) == []
        again.mutate('query q() { insert Tour { code: "c", stops: 3 } }')
        assert tours(again) == [("a", 1), ("b", 2), ("c", 3)]
        assert again.verify(deep=True).violations == ()


@pytest.mark.slow
def test_what_is_reclaimed_is_not_reclaimed_again(graph):
    graph.apply_schema(LESS, allow_data_loss=True)
    head, files, staged = graph.commits.head().id, set(Path(graph.uri).glob("nodes/**/*")), []
    with listen(lambda event: staged.append(event) if isinstance(event, TableStaged) else None):
        done = graph.apply_schema(LESS, allow_data_loss=True)
    assert (done.applied, done.kept_by, staged, graph.commits.head().id) == (False, (), [], head)
    assert set(Path(graph.uri).glob("nodes/**/*")) == files
    # What the first one superseded beside the tables went with the second.
    assert (
        graph.apply_schema(LESS, allow_data_loss=True)
        .to_dict()
        .keys()
        .isdisjoint({"reclaimed_bytes", "kept_by"})
    )


@pytest.mark.slow
def test_a_soft_drop_becomes_hard_by_the_same_schema(graph):
    graph.tags.create("v1")
    graph.apply_schema(LESS)
    graph.mutate('query q() { insert Tour { code: "c", stops: 3 } }')
    assert graph.apply_schema(LESS, allow_data_loss=True, dry_run=True).kept_by == ()
    assert graph.apply_schema(LESS, allow_data_loss=True).kept_by == ("tag v1",)
    graph.tags.delete("v1")
    done = graph.apply_schema(LESS, allow_data_loss=True)
    assert (done.applied, done.kept_by) == (False, ())
    assert done.to_dict()["reclaimed_bytes"] > 0
    assert holding(graph, SECRET) == []
    assert tours(graph) == [("a", 1), ("b", 2), ("c", 3)]
    assert graph.verify(deep=True).violations == ()
