"""The nine calls that meet a state of the former schema: of a branch that owns its table, of one that inherits
it, and of a tag."""

import json
import shutil

import pytest

import omnigraph
from omnigraph.core.errors import BadRequest, BranchNotFound
from recovery_graph import FAST

SCHEMA = "node Tour { code: String @key  stops: I32? }\nnode Bus { plate: String @key }\n"
GUIDED = SCHEMA.replace("stops: I32?", "stops: I32?  guide: String?") + "node City { name: String @key }\n"
STATES = {"owning": ["a", "o"], "inheriting": ["a"], "tagged": ["a"]}
"""The tours of each."""
GUIDES = "query q() { match { $t: Tour } return { $t.code, $t.guide } order { $t.code asc } }"
CITIES = "query q() { match { $c: City } return { $c.name } }"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A graph whose schema grew while two branches and a tag live, and whose main was written to since."""
    place = tmp_path_factory.mktemp("calls") / "graph"
    with omnigraph.init(place, schema=SCHEMA, settings=FAST) as graph:
        graph.mutate('query q() { insert Tour { code: "a", stops: 1 } }', actor="ann")
        graph.branches.create("owning")
        graph.branches.create("inheriting")
        graph.tags.create("tagged")
        graph.mutate('query q() { insert Tour { code: "o" } }', branch="owning", actor="olf")
        graph.apply_schema(GUIDED)
        graph.mutate('query q() { insert Tour { code: "m", guide: "Max" } insert City { name: "Rome" } }')
    return place


@pytest.fixture
def graph(made, tmp_path):
    shutil.copytree(made, tmp_path / "graph")
    with omnigraph.open(tmp_path / "graph", settings=FAST) as opened:
        yield opened
        assert opened.verify().violations == ()


def where(state):
    return {"at": state} if state == "tagged" else {"branch": state}


def guides(graph, **place):
    return {row["t.code"]: row["t.guide"] for row in graph.query(GUIDES, **place)}


every_state = pytest.mark.parametrize("state", STATES)


@every_state
def test_a_new_property_reads_as_null_and_a_new_type_as_empty(graph, state):
    assert guides(graph, **where(state)) == dict.fromkeys(STATES[state])
    assert list(graph.query(CITIES, **where(state))) == []


@every_state
def test_main_is_merged_into_it(graph, state):
    if state == "tagged":
        with pytest.raises((BranchNotFound, BadRequest), match="tagged"):
            graph.branches.merge("main", into=state)
        return
    graph.branches.merge("main", into=state)
    assert guides(graph, branch=state) == {**dict.fromkeys(STATES[state]), "m": "Max"}
    assert [row["c.name"] for row in graph.query(CITIES, branch=state)] == ["Rome"]
    assert graph.snapshot(branch=state).schema_hash == graph.snapshot().schema_hash


@every_state
def test_it_is_merged_into_main(graph, state):
    if state == "tagged":
        with pytest.raises((BranchNotFound, BadRequest), match="tagged"):
            graph.branches.merge(state, into="main")
        return
    graph.branches.merge(state, into="main")
    assert guides(graph) == {**dict.fromkeys(STATES[state]), "m": "Max"}


@every_state
def test_it_is_verified_with_every_row(graph, state):
    checked = graph.verify(deep=True)
    assert checked.violations == ()
    assert guides(graph, **where(state)) == dict.fromkeys(STATES[state])


@every_state
def test_it_is_written_to(graph, state):
    insert = 'query q() { insert Tour { code: "n", guide: "Ann" } insert City { name: "Oslo" } }'
    if state == "tagged":
        with pytest.raises((BranchNotFound, BadRequest), match="tagged"):
            graph.mutate(insert, branch=state)
        return
    graph.mutate(insert, branch=state)
    assert guides(graph, branch=state) == {**dict.fromkeys(STATES[state]), "n": "Ann"}
    assert [row["c.name"] for row in graph.query(CITIES, branch=state)] == ["Oslo"]


@every_state
def test_it_is_compared_with_main_in_both_directions(graph, state):
    found = {(each.op, each.id) for each in graph.diff(state, "main")}
    more = {("delete", "o")} if state == "owning" else set()
    assert found == {("insert", "m"), ("insert", "Rome"), *more}
    back = {(each.op, each.id) for each in graph.diff("main", state)}
    assert back == {({"insert": "delete", "delete": "insert"}[op], key) for op, key in found}


@every_state
def test_a_commit_of_it_is_reverted(graph, state):
    """On the branch; of a tag on main, which has the schema that it has not."""
    branch = "main" if state == "tagged" else state
    commit = graph.snapshot(**where(state)).head
    graph.revert(commit, branch=branch)
    reverted = "o" if state == "owning" else "a"
    left = {code for code in STATES[state] if code != reverted} | ({"m"} if branch == "main" else set())
    assert set(guides(graph, branch=branch)) == left


@every_state
def test_its_values_have_their_origins(graph, state):
    blame = {each.property: each for each in graph.blame("Tour", "a", at=state).properties}
    assert blame["stops"].commit.actor == "ann"
    assert blame["stops"].value == 1
    assert "guide" not in blame, "it had no such property"
    if state == "owning":
        own = graph.blame("Tour", "o", at=state)["code"]
        assert (own.commit.actor, own.commit.home) == ("olf", "owning")


@every_state
def test_it_is_exported_with_its_own_schema(graph, state):
    records = [json.loads(line) for line in graph.export(**where(state)).splitlines()]
    tours = [each["data"] for each in records if each.get("type") == "Tour"]
    assert [each["code"] for each in tours] == STATES[state]
    assert all("guide" not in each for each in tours)
