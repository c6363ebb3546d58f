"""Merging entities property by property: conflict lists, what conflicts show, and what it costs."""

import json

import pytest

from graphs import hear, make_graph, rows_of, run
from omnigraph.core.errors import BadRequest, MergeConflicts
from omnigraph.core.events import StorageCall


def contested(graph):
    """Alice: both sides change her age, and each another property. Bob: each side changes another property."""
    run(graph, 'update Person set { age: 1, city: "Rome" } where name = "Alice"', branch="topic")
    run(graph, 'update Person set { age: 2 } where name = "Bob"', branch="topic")
    run(graph, 'update Person set { age: 3, nick: "al" } where name = "Alice"')
    run(graph, 'update Person set { nick: "bo" } where name = "Bob"')


@pytest.fixture
def told(tmp_path):
    """A graph whose people have several properties."""
    schema = "node Person { name: String @key  age: I32?  city: String?  nick: String? }"
    with make_graph(tmp_path / "told", schema) as graph:
        run(graph, 'insert Person { name: "Alice" } insert Person { name: "Bob" }')
        graph.branches.create("topic")
        contested(graph)
        yield graph


def person(graph, name):
    return {
        key: value for key, value in rows_of(graph, "Person")[name].items() if key in {"age", "city", "nick"}
    }


@pytest.mark.slow
def test_a_conflict_list_shows_properties_and_takes_a_side_for_each(told, tmp_path):
    place = tmp_path / "conflicts.json"
    told.branches.preview("topic").write_conflicts(place)
    listed = json.loads(place.read_text())
    (entry,) = listed["conflicts"]
    assert (listed["format"], entry["row_id"], entry["resolution"]) == (2, "Alice", None)
    assert entry["properties"] == [
        {"property": "age", "base": None, "ours": 3, "theirs": 1, "resolution": None}
    ]
    with pytest.raises(BadRequest, match="Alice: the resolution must be"):
        told.branches.merge("topic", resolve=place)
    entry["properties"][0]["resolution"] = "theirs"
    place.write_text(json.dumps(listed))
    report = told.branches.merge("topic", resolve=place)
    assert report.stats["node:Person"] == {"updated": 2, "resolved_theirs": 1}
    assert person(told, "Alice") == {"age": 1, "city": "Rome", "nick": "al"}
    assert person(told, "Bob") == {"age": 2, "city": None, "nick": "bo"}


@pytest.mark.slow
def test_sides_of_single_properties_are_mixed(told, tmp_path):
    run(told, 'update Person set { city: "Oslo" } where name = "Alice"')
    place = tmp_path / "conflicts.json"
    told.branches.preview("topic").write_conflicts(place)
    listed = json.loads(place.read_text())
    entry = listed["conflicts"][0]
    assert [each["property"] for each in entry["properties"]] == ["age", "city"]
    entry["resolution"] = "ours"
    entry["properties"][1]["resolution"] = "theirs"
    place.write_text(json.dumps(listed))
    report = told.branches.merge("topic", resolve=place)
    assert report.stats["node:Person"] == {"updated": 2, "resolved_mixed": 1}
    assert person(told, "Alice") == {"age": 3, "city": "Rome", "nick": "al"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "alice", "bob"),
    [
        ("theirs", {"age": 1, "city": "Rome", "nick": None}, {"age": 2, "city": None, "nick": None}),
        ("ours", {"age": 3, "city": None, "nick": "al"}, {"age": None, "city": None, "nick": "bo"}),
    ],
)
def test_a_list_from_before_properties_decides_about_whole_entities(told, tmp_path, side, alice, bob):
    """Such a list names Bob as well, who is no conflict any more: what it says of him is done."""
    preview = told.branches.preview("topic")
    entries = [
        {"table_key": "node:Person", "row_id": name, "kind": "divergent_update", "resolution": side}
        for name in ("Alice", "Bob")
    ]
    heads = {"source_commit": preview.source_commit, "target_commit": preview.target_commit}
    place = tmp_path / "conflicts.json"
    place.write_text(json.dumps({"format": 1, **heads, "conflicts": entries}))
    told.branches.merge("topic", resolve=place)
    assert (person(told, "Alice"), person(told, "Bob")) == (alice, bob)


def test_a_conflict_about_large_blobs_shows_what_tells_them_apart(tmp_path):
    with make_graph(tmp_path / "g", "node File { name: String @key  raw: Blob? }") as graph:
        run(graph, f'insert File {{ name: "a", raw: "base64:{"AAAA" * 100}" }}')
        graph.branches.create("topic")
        run(graph, f'update File set {{ raw: "base64:{"BBBB" * 100}" }} where name = "a"', branch="topic")
        run(graph, 'update File set { raw: "base64:CCCC" } where name = "a"')
        (conflict,) = graph.branches.preview("topic").conflicts
        (raw,) = conflict.properties
    assert raw.values["ours"] == "base64:CCCC"
    assert raw.values["base"].startswith("300 bytes, sha256 ")
    assert raw.values["theirs"].startswith("300 bytes, sha256 ")
    assert raw.values["base"] != raw.values["theirs"]


@pytest.mark.slow
def test_the_cost_of_a_merge_by_property_follows_what_both_sides_changed(tmp_path):
    """Ten times the table: the same calls."""
    calls = []
    for size in (200, 2_000):
        with make_graph(tmp_path / str(size), "node P { name: String @key  a: I32?  b: I32? }") as graph:
            lines = (f'{{"type": "P", "data": {{"name": "p{n}", "a": 0, "b": 0}}}}\n' for n in range(size))
            (tmp_path / f"{size}.jsonl").write_text("".join(lines))
            graph.load(tmp_path / f"{size}.jsonl", mode="append")
            graph.branches.create("topic")
            run(graph, 'update P set { a: 1 } where name = "p7"', branch="topic")
            run(graph, 'update P set { b: 1 } where name = "p7"')
            with hear(everywhere=True) as heard:
                assert graph.branches.preview("topic").stats == {"node:P": {"updated": 1}}
            calls.append(sorted(each.kind for each in heard.of(StorageCall)))
            graph.branches.merge("topic")
            assert rows_of(graph, "P")["p7"] == {"id": "p7", "name": "p7", "a": 1, "b": 1}
    assert calls[0] == calls[1]


@pytest.mark.slow
@pytest.mark.parametrize("deleting", ["f", "main"])
def test_a_preview_says_who_deleted_and_leaves_edges_to_the_choice(tmp_path, deleting):
    with make_graph(tmp_path / "g", "node P { k: String @key  a: I32? }  edge R: P -> P") as graph:
        graph.mutate('query q() { insert P { k: "x" } insert P { k: "y" } insert R { from: "x", to: "y" } }')
        graph.branches.create("f")
        updating = "main" if deleting == "f" else "f"
        graph.mutate('query q() { delete P where k = "y" }', branch=deleting)
        graph.mutate('query q() { update P set { a: 1 } where k = "y" }', branch=updating)
        preview = graph.branches.preview("f")
        (conflict,) = preview.conflicts
        said = {"f": "y: theirs deleted it, ours changed it", "main": "y: ours deleted it, theirs changed it"}
        assert conflict.message == f"{said[deleting]}; 1 edge follows the choice"
        assert preview.stats == {}, "what becomes of the edge is not clear yet"
        side = "ours" if deleting == "f" else "theirs"
        decided = graph.branches.preview("f", on_conflict="theirs" if side == "ours" else "ours").stats
        assert decided.get("edge:R", {}) == ({"deleted": 1} if deleting == "f" else {})
        graph.branches.merge("f", on_conflict=side)
        assert (len(rows_of(graph, "P")), len(rows_of(graph, "R"))) == (2, 1)


def test_a_conflict_of_a_revert_is_not_said_to_be_of_a_merge(tmp_path):
    with make_graph(tmp_path / "g", "node P { k: String @key  a: I32? }") as graph:
        graph.mutate('query q() { insert P { k: "x" } }')
        first = graph.mutate('query q() { update P set { a: 1 } where k = "x" }').commit.id
        graph.mutate('query q() { update P set { a: 2 } where k = "x" }')
        with pytest.raises(MergeConflicts, match="the revert has 1 conflict"):
            graph.revert(first)
