"""The schema changes while branches, tags and old commits live: each is read and written as it should be."""

import json
import subprocess
import sys

import pytest

import omnigraph
from crash.harness import CUT, run_child
from graphs import make_graph
from omnigraph.core.errors import (
    BadRequest,
    MigrationBlocked,
    MigrationUnsupported,
    QueryTypeError,
    TypeNotFound,
)
from omnigraph.core.failpoints import Window
from omnigraph.engine.search import segments
from omnigraph.engine.tables.cache_work import BACKGROUND
from recovery_graph import FAST

TOURS = """node Tour { code: String @key  stops: I32?  mood: enum(fun, calm) }
node Bus { plate: String @key }
edge Uses: Tour -> Bus
"""
GUIDED = TOURS.replace("stops: I32?", "stops: I32?  guide: String?") + "node City { name: String @key }\n"
TRIPS = """node Trip @rename_from("Tour") { ref: String @key @rename_from("code")  legs: I32? @rename_from("stops")
  mood: enum(fun, calm) }
node Bus { plate: String @key }
edge Uses: Trip -> Bus
"""
WITH_GUIDE = "query q() { match { $t: Tour } return { $t.code, $t.guide } order { $t.code asc } }"
CITIES = "query q() { match { $c: City } return { $c.name } }"


@pytest.fixture
def graph(tmp_path):
    with make_graph(tmp_path / "graph", TOURS) as made:
        made.mutate(
            'query q() { insert Tour { code: "a", stops: 1, mood: "fun" } insert Bus { plate: "x" }'
            ' insert Uses { from: "a", to: "x" } }'
        )
        made.branches.create("lazy")
        made.branches.create("owner")
        made.mutate('query q() { insert Tour { code: "o", mood: "calm" } }', branch="owner")
        made.tags.create("v1")
        yield made


def codes(graph, **where):
    return [
        row["t.code"]
        for row in graph.query(
            "query q() { match { $t: Tour } return { $t.code } order { $t.code asc } }", **where
        )
    ]


@pytest.mark.parametrize(
    "where", [{"branch": "lazy"}, {"branch": "owner"}, {"at": "v1"}], ids=["lazy", "owner", "tag"]
)
def test_an_added_property_is_null_and_an_added_type_empty_until_it_is_adopted(graph, where):
    before = codes(graph, **where)
    assert graph.apply_schema(GUIDED).applied
    shown = list(graph.query(WITH_GUIDE, **where))
    assert [(row["t.code"], row["t.guide"]) for row in shown] == [(code, None) for code in before]
    assert list(graph.query(CITIES, **where)) == []
    filtered = 'query q() { match { $t: Tour { guide: "Ann" } } return { $t.code } }'
    assert list(graph.query(filtered, **where)) == []
    with pytest.raises(QueryTypeError):
        graph.query("query q() { match { $t: Tour } return { $t.nosuch } }", **where)


@pytest.mark.slow
@pytest.mark.parametrize("branch", ["lazy", "owner"])
def test_a_branch_adopts_the_schema_at_its_next_write(graph, branch):
    before = codes(graph, branch=branch)
    graph.apply_schema(GUIDED)
    graph.mutate(
        'query q() { insert Tour { code: "n", mood: "fun", guide: "Ann" } insert City { name: "Oslo" } }',
        branch=branch,
    )
    shown = {row["t.code"]: row["t.guide"] for row in graph.query(WITH_GUIDE, branch=branch)}
    assert shown == {**dict.fromkeys(before), "n": "Ann"}
    assert [row["c.name"] for row in graph.query(CITIES, branch=branch)] == ["Oslo"]
    assert list(graph.query(CITIES)) == []
    assert [each.operation for each in graph.commits.list(branch=branch, limit=2)] == [
        "mutation",
        "adopt_schema",
    ]
    assert graph.verify().violations == ()


@pytest.mark.slow
def test_a_load_on_a_branch_adopts_the_schema(graph, tmp_path):
    source = tmp_path / "tours.jsonl"
    source.write_text('{"type":"Tour","data":{"code":"n","mood":"fun","guide":"Ann"}}\n')
    graph.apply_schema(GUIDED)
    graph.load(source, mode="append", engine="local", branch="owner")
    assert {row["t.code"]: row["t.guide"] for row in graph.query(WITH_GUIDE, branch="owner")} == {
        "a": None,
        "o": None,
        "n": "Ann",
    }


@pytest.mark.slow
@pytest.mark.parametrize("branch", ["lazy", "owner"])
def test_main_merges_into_a_branch_of_an_older_generation(graph, branch):
    before = codes(graph, branch=branch)
    graph.apply_schema(GUIDED)
    graph.mutate(
        'query q() { insert Tour { code: "m", mood: "fun", guide: "Max" } insert City { name: "Rome" } }'
    )
    graph.branches.merge("main", into=branch)
    assert {row["t.code"]: row["t.guide"] for row in graph.query(WITH_GUIDE, branch=branch)} == {
        **dict.fromkeys(before),
        "m": "Max",
    }
    assert [row["c.name"] for row in graph.query(CITIES, branch=branch)] == ["Rome"]
    assert graph.verify().violations == ()
    graph.mutate('query q() { insert City { name: "Bern" } }', branch=branch)


@pytest.mark.slow
def test_a_branch_of_an_older_generation_merges_into_main(graph):
    graph.apply_schema(GUIDED)
    graph.mutate('query q() { update Tour set { guide: "Max" } where code = "a" }')
    graph.branches.merge("owner", into="main")
    assert {row["t.code"]: row["t.guide"] for row in graph.query(WITH_GUIDE)} == {"a": "Max", "o": None}
    assert graph.verify().violations == ()


@pytest.mark.slow
def test_diffs_reverts_and_exports_across_generations(graph):
    old = graph.commits.head().id
    graph.apply_schema(GUIDED)
    assert list(graph.diff(old, "main")) == []
    graph.mutate('query q() { update Tour set { guide: "Max" } where code = "a" }')
    changed = graph.commits.head().id
    assert len(list(graph.diff(old, "main"))) == 1
    graph.revert(changed)
    assert {row["t.guide"] for row in graph.query(WITH_GUIDE)} == {None}
    assert "guide" not in graph.export(at="v1")
    assert graph.verify().violations == ()


def test_a_plan_that_is_not_additive_names_the_branches_in_its_way(graph):
    before = graph.commits.head().id
    for text in (TRIPS, TOURS.replace("  stops: I32?", "")):
        with pytest.raises(MigrationBlocked, match="lazy, owner"):
            graph.apply_schema(text)
        with pytest.raises(MigrationBlocked):
            graph.apply_schema(text, dry_run=True)
    assert graph.commits.head().id == before
    assert not graph.session.manifest.schema_apply_in_progress()


@pytest.fixture
def alone(graph):
    for name in ("lazy", "owner"):
        graph.branches.delete(name)
    return graph


@pytest.mark.slow
def test_renamed_names_read_the_past_by_identity(alone):
    old = alone.commits.head().id
    alone.apply_schema(TRIPS)
    renamed = "query q() { match { $t: Trip $t uses $b } return { $t.ref, $t.legs, $b.plate } }"
    expected = [{"t.ref": "a", "t.legs": 1, "b.plate": "x"}]
    for where in ({}, {"at": "v1"}, {"at": old}):
        assert list(alone.query(renamed, **where)) == expected
    assert codes(alone, at="v1") == ["a"], "the names of then still mean what they meant"
    assert list(alone.diff(old, "main")) == []
    assert alone.verify().violations == ()


def test_names_of_then_and_of_now_may_be_mixed_where_the_past_is_read(alone):
    """Each name by itself: what the past called so, else what the accepted schema calls so, by identity."""
    guided = TRIPS.replace("mood: enum(fun, calm)", "guide: String?").replace("edge Uses", "edge Takes")
    alone.apply_schema(guided.replace("Trip -> Bus", 'Trip -> Bus @rename_from("Uses")'))
    for pattern, names, expected in (
        ("$t: Tour", ["code", "guide", "mood"], ("a", None, "fun")),
        ("$t: Trip", ["ref", "mood", "stops", "legs"], ("a", "fun", 1, 1)),
        ('$t: Tour { ref: "a" } $t takes $b', ["legs"], (1,)),
        ('$t: Trip $t uses $b $b: Bus { plate: "x" }', ["code"], ("a",)),
    ):
        asked = ", ".join(f"$t.{name}" for name in names)
        rows = alone.query(f"query q() {{ match {{ {pattern} }} return {{ {asked} }} }}", at="v1")
        assert [tuple(row.values()) for row in rows] == [expected], pattern
    null = 'query q() { match { $t: Tour $t.guide = "Ann" } return { $t.code } }'
    assert list(alone.query(null, at="v1")) == []
    with pytest.raises(QueryTypeError, match="Tour"):
        alone.query("query q() { match { $t: Tour } return { $t.ref } }")


def test_a_diff_over_a_type_that_came_back_tells_of_both(alone):
    alone.apply_schema(TOURS.replace("node Bus { plate: String @key }\nedge Uses: Tour -> Bus\n", ""))
    alone.apply_schema(TOURS)
    alone.mutate('query q() { insert Bus { plate: "x" } insert Bus { plate: "y" } }')
    told = alone.diff("v1", "main", kinds=["node"])
    assert [(each.op, each.type_name, each.id) for each in told] == [
        ("delete", "Bus", "x"),
        ("insert", "Bus", "x"),
        ("insert", "Bus", "y"),
    ]
    assert told.stats == {"node:Bus": {"inserted": 2, "updated": 0, "deleted": 1}}
    assert len(alone.diff("v1", "main", types=["Uses"])) == 1


def test_an_export_of_the_past_takes_names_of_now_and_writes_those_of_then(alone, tmp_path):
    alone.apply_schema(TRIPS)
    for name in ("Tour", "Trip"):
        lines = alone.export(at="v1", types=[name]).splitlines()
        assert [json.loads(each)["data"]["code"] for each in lines] == ["a"]
        assert b"".join(alone.export_chunks(at="v1", types=[name], format="csv")).startswith(b"id,code,")
    with pytest.raises(TypeNotFound, match="Tour"):
        alone.export(types=["Tour"])


@pytest.mark.slow
def test_a_diff_takes_former_names_of_types(alone):
    alone.apply_schema(TRIPS)
    alone.mutate('query q() { update Trip set { legs: 5 } where ref = "a" }')
    for name in ("Tour", "Trip"):
        told = [(each.type_name, each.id, each.properties) for each in alone.diff("v1", "main", types=[name])]
        assert told == [("Trip", "a", ("legs",))]
    with pytest.raises(TypeNotFound, match="Trap"):
        alone.diff("v1", "main", types=["Trap"])


@pytest.mark.slow
def test_a_revert_across_a_rename_puts_back_the_values_under_the_new_names(alone):
    alone.mutate('query q() { update Tour set { stops: 9 } where code = "a" }')
    changed = alone.commits.head().id
    alone.apply_schema(TRIPS)
    alone.revert(changed)
    assert list(alone.query("query q() { match { $t: Trip } return { $t.ref, $t.legs } }")) == [
        {"t.ref": "a", "t.legs": 1}
    ]
    assert alone.verify().violations == ()
    with pytest.raises(BadRequest, match="changed the schema"):
        alone.revert(next(each.id for each in alone.commits.list() if each.operation == "schema_apply"))


def test_a_name_that_is_dropped_and_comes_back_is_null_also_from_warm_caches(tmp_path):
    with make_graph(tmp_path / "graph", TOURS) as graph:
        graph.mutate('query q() { insert Tour { code: "a", stops: 1, mood: "fun" } }')
        stops = "query q() { match { $t: Tour } return { $t.code, $t.stops } }"
        old = graph.commits.head().id
        assert list(graph.query(stops)) == [{"t.code": "a", "t.stops": 1}]
        graph.apply_schema(TOURS.replace("  stops: I32?", ""))
        graph.apply_schema(TOURS)
        assert list(graph.query(stops)) == [{"t.code": "a", "t.stops": None}]
        assert list(graph.query(stops, at=old)) == [{"t.code": "a", "t.stops": 1}], "the past keeps its own"
    with omnigraph.open(tmp_path / "graph", settings=FAST) as graph:
        assert list(graph.query(stops)) == [{"t.code": "a", "t.stops": None}]
        assert graph.verify().violations == ()


RESTARTED = """import json, sys, omnigraph
with omnigraph.open_read_only(sys.argv[1]) as graph:
    print(json.dumps([list(graph.query(text, at=at)) for text, at in json.loads(sys.argv[2])]))
"""


@pytest.mark.slow
def test_files_of_a_dropped_text_are_not_searched_for_the_one_that_came_back(tmp_path, monkeypatch):
    """The words of a property lie in a file beside the graph; the files of the table are the same afterwards."""
    monkeypatch.setattr(segments, "SAVED_ROWS_MIN", 1)
    place, text = tmp_path / "graph", "node Doc { slug: String @key  body: String? @index }\n"
    found = 'query q() { match { $d: Doc search($d.body, "river") } return { $d.slug, $d.body } }'
    with omnigraph.init(place, schema=text, settings=FAST) as graph:
        graph.mutate(
            'query q() { insert Doc { slug: "a", body: "a river" } insert Doc { slug: "b", body: "hills" } }'
        )
        old = graph.commits.head().id
        assert [row["d.slug"] for row in graph.query(found)] == ["a"]
        BACKGROUND.drain(graph.session.root.identity)
    kept = list((place / "__cache").glob("*"))
    assert kept, "the file to be found again"
    with omnigraph.open(place, settings=FAST) as graph:
        graph.apply_schema("node Doc { slug: String @key }\n")
        graph.apply_schema(text)
    assert set(kept) <= set((place / "__cache").glob("*")), "they are still there"
    bodies = "query q() { match { $d: Doc } return { $d.body } }"
    asked = [(found, None), (bodies, None), (found, old)]
    started = subprocess.run(
        [sys.executable, "-c", RESTARTED, str(place), json.dumps(asked)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert json.loads(started.stdout) == [
        [],
        [{"d.body": None}, {"d.body": None}],
        [{"d.slug": "a", "d.body": "a river"}],
    ]


@pytest.mark.slow
def test_a_type_that_is_dropped_and_comes_back_is_a_new_empty_table(alone):
    small = TOURS.replace("node Bus { plate: String @key }\nedge Uses: Tour -> Bus\n", "")
    alone.apply_schema(small)
    alone.apply_schema(TOURS)
    assert list(alone.query("query q() { match { $b: Bus } return { $b.plate } }")) == []
    alone.mutate('query q() { insert Bus { plate: "y" } }')
    assert [
        row["b.plate"] for row in alone.query("query q() { match { $b: Bus } return { $b.plate } }", at="v1")
    ] == ["x"]
    assert alone.verify().violations == ()


@pytest.mark.parametrize("killed", [False, True], ids=["adopted", "killed"])
@pytest.mark.slow
def test_a_branch_adopts_a_type_that_came_back_under_the_name_of_one_that_it_lost(alone, killed):
    """The branch knows the former table of the name as gone: it must not read or write that one."""
    alone.apply_schema(TOURS.replace("node Bus { plate: String @key }\nedge Uses: Tour -> Bus\n", ""))
    alone.branches.create("late")
    alone.apply_schema(TOURS)
    path = alone.session.root.uri
    if killed:
        alone.close()
        command = {"command": "merge", "path": path, "source": "main", "target": "late"}
        status, errors = run_child(command, failpoints=f"{Window.SCHEMA_ADOPT_POST_COMMIT_PRE_PUBLISH}=kill")
        assert status == CUT, errors
    with omnigraph.open(path, settings=FAST) as graph:
        buses = "query q() { match { $b: Bus } return { $b.plate } }"
        assert list(graph.query(buses, branch="late")) == []
        graph.mutate('query q() { insert Bus { plate: "y" } }', branch="late")
        assert list(graph.query(buses, branch="late")) == [{"b.plate": "y"}]
        assert list(graph.query(buses, at="v1")) == [{"b.plate": "x"}]
        graph.branches.merge("late", into="main")
        assert list(graph.query(buses)) == [{"b.plate": "y"}]
        assert graph.verify().violations == ()


def test_an_empty_plan_and_a_dry_run_publish_nothing(graph):
    before = graph.commits.head().id
    assert graph.apply_schema(TOURS + "// a comment\n").applied is False
    tried = graph.apply_schema(GUIDED, dry_run=True)
    assert (tried.applied, len(tried.steps)) == (False, 2)
    with pytest.raises(MigrationUnsupported, match="OG-MF-103"):
        graph.apply_schema(TOURS.replace("stops: I32?", "stops: I32?  guide: String"))
    assert graph.commits.head().id == before


def test_a_required_property_is_refused_where_rows_would_lack_it_and_its_default_fills_them(tmp_path):
    with make_graph(tmp_path / "graph", TOURS) as graph:
        graph.mutate('query q() { insert Tour { code: "a", mood: "fun" } }')
        head = graph.commits.head().id
        tier = '  tier: String @default("basic")'
        for dry_run in (True, False):
            with pytest.raises(MigrationUnsupported, match=r"'Tour\.tier' cannot be added without a default"):
                graph.apply_schema(TOURS.replace("stops: I32?", "stops: I32?  tier: String"), dry_run=dry_run)
        assert graph.commits.head().id == head
        both = TOURS.replace("plate: String @key", "plate: String @key" + tier)
        assert graph.apply_schema(both.replace("stops: I32?", "stops: I32?" + tier)).applied
        tiers = graph.query("query q() { match { $t: Tour } return { $t.tier } }")
        assert [row["t.tier"] for row in tiers] == ["basic"]
        graph.mutate('query q() { insert Bus { plate: "x" } }')
        tiers = graph.query("query q() { match { $b: Bus } return { $b.tier } }")
        assert [row["b.tier"] for row in tiers] == ["basic"]
        assert graph.verify().ok
