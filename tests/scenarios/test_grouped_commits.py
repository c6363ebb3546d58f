"""Calls that wait for the same commit share the next one, and none of them notices the others."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from graphs import make_graph, rows_of
from omnigraph.api.graph import Graph
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import (
    Cancelled,
    ConstraintViolation,
    KeyConflict,
    RecoveryRequired,
)
from omnigraph.core.failpoints import InjectedFailure, Pause, Raise, Sequence, Window, activate
from omnigraph.engine.write.calls import call_line
from waiting_calls import PERSON, PRE_PUBLISH, Started, behind_a_commit

NEW = "query n($name: String) { insert new Person { name: $name } }"
EDGE = "query e($from: String, $to: String) { insert Knows { from: $from, to: $to } }"


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    with make_graph(tmp_path / "g") as made:
        yield made


def adding(graph: Graph, name: str, nick: str | None = None, **more: Any) -> Callable[[], Any]:
    return lambda: graph.mutate(PERSON, {"name": name, "nick": nick}, **more)


def test_calls_that_wait_share_the_next_commit(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"p{number}" for number in range(12)]
    with behind_a_commit(graph, monkeypatch) as outcomes:
        results = outcomes(*(adding(graph, name) for name in names))
    assert [each.inserted[0].id for each in results] == names
    assert {each.affected_nodes for each in results} == {1}
    (commit,) = {each.commit.id: each.commit for each in results}.values()
    assert commit.requests == 12
    assert graph.commits.head().requests == 12
    assert graph.commits.head().summary["node:Person"] == {"inserted": 12}
    assert set(rows_of(graph, "Person")) == {"first", *names}
    assert len(graph.commits.list()) == 3
    assert graph.verify().ok
    assert graph.pending() == ()


def test_how_many_calls_a_commit_carries_is_known_after_reopening(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    with behind_a_commit(graph, monkeypatch) as outcomes:
        outcomes(adding(graph, "a"), adding(graph, "b"))
    graph.close()
    with omnigraph.open(graph.uri) as again:
        assert [each.requests for each in again.commits.list()] == [2, 1, 1]


def test_a_lone_call_shares_with_nobody(graph: Graph) -> None:
    assert [graph.mutate(PERSON, {"name": name}).commit.requests for name in ("a", "b")] == [1, 1]


def test_a_call_that_fails_leaves_the_others_alone(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    with behind_a_commit(graph, monkeypatch) as outcomes:
        good, dangling, last = outcomes(
            adding(graph, "a"),
            lambda: graph.mutate(EDGE, {"from": "a", "to": "nobody"}),
            adding(graph, "b"),
        )
    assert isinstance(dangling, ConstraintViolation)
    assert dangling.violations[0].rule == "endpoint"
    assert (good.commit.requests, last.commit.id) == (2, good.commit.id)
    assert set(rows_of(graph, "Person")) == {"first", "a", "b"}
    assert rows_of(graph, "Knows") == {}


def test_a_call_sees_those_before_it(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    with behind_a_commit(graph, monkeypatch) as outcomes:
        node, edge = outcomes(adding(graph, "a"), lambda: graph.mutate(EDGE, {"from": "a", "to": "first"}))
    assert node.commit.id == edge.commit.id
    assert [(each["from"], each["to"]) for each in rows_of(graph, "Knows").values()] == [("a", "first")]


def test_two_calls_that_only_hold_together_are_refused(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each edge needs the node of the other call: no order of the two is right."""
    both = "query b($own: String, $other: String) { insert Person { name: $own } "
    both += "insert Knows { from: $own, to: $other } }"
    with behind_a_commit(graph, monkeypatch) as outcomes:
        results = outcomes(
            lambda: graph.mutate(both, {"own": "a", "other": "b"}),
            lambda: graph.mutate(both, {"own": "b", "other": "a"}),
        )
    assert [type(each) for each in results] == [ConstraintViolation, ConstraintViolation]
    assert set(rows_of(graph, "Person")) == {"first"}


@pytest.mark.parametrize("clash", ["a key that must be new", "a unique value"])
def test_of_two_calls_that_exclude_each_other_one_lands(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, clash: str
) -> None:
    if clash == "a unique value":
        works, failure = [adding(graph, "a", "nick"), adding(graph, "b", "nick")], ConstraintViolation
    else:
        works, failure = [lambda: graph.mutate(NEW, {"name": "a"}) for _ in range(2)], KeyConflict
    with behind_a_commit(graph, monkeypatch) as outcomes:
        landed, refused = outcomes(*works)
    assert landed.commit.requests == 1
    assert isinstance(refused, failure)
    assert set(rows_of(graph, "Person")) == {"first", "a"}


def test_the_loser_of_a_clash_is_told_only_what_is_committed(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner's commit fails before its first effect, so there never was anything to clash with."""
    with (
        behind_a_commit(graph, monkeypatch) as outcomes,
        activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Sequence([Raise()])),
    ):
        first, second = outcomes(adding(graph, "a", "nick"), adding(graph, "b", "nick"))
    assert isinstance(first, InjectedFailure)
    assert second.commit is not None
    assert set(rows_of(graph, "Person")) == {"first", "b"}


def test_a_call_that_is_cancelled_leaves_the_others_alone(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = Cancellation()
    with behind_a_commit(graph, monkeypatch) as outcomes:
        one, cancelled, two = outcomes(
            adding(graph, "a"), adding(graph, "b", cancel=cancel), adding(graph, "c"), before=cancel.request
        )
    assert isinstance(cancelled, Cancelled)
    assert one.commit.id == two.commit.id
    assert set(rows_of(graph, "Person")) == {"first", "a", "c"}


def test_a_call_that_is_cancelled_after_it_was_prepared_leaves_the_others_alone(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnigraph.engine.write import mutate

    cancel, prepare = Cancellation(), mutate.prepare_mutation

    def cancelling(session, staging, request):
        prepared = prepare(session, staging, request)
        if request.parameter_sets[0]["name"] == "c":
            cancel.request()
        return prepared

    with behind_a_commit(graph, monkeypatch) as outcomes:
        monkeypatch.setattr(mutate, "prepare_mutation", cancelling)
        one, cancelled, two = outcomes(
            adding(graph, "a"), adding(graph, "b", cancel=cancel), adding(graph, "c")
        )
    assert isinstance(cancelled, Cancelled)
    assert one.commit.id == two.commit.id
    assert set(rows_of(graph, "Person")) == {"first", "a", "c"}


def test_other_actors_branches_conditions_and_updates_go_alone(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph.branches.create("side")
    update = 'query u() { update Person set { age: 3 } where name = "first" }'
    with behind_a_commit(graph, monkeypatch) as outcomes:
        results = outcomes(
            adding(graph, "a"),
            adding(graph, "b"),
            adding(graph, "c", actor="ines"),
            adding(graph, "d", branch="side"),
        )
    assert [each.commit.requests for each in results] == [2, 2, 1, 1]
    assert [each.commit.actor for each in results] == [None, None, "ines", None]
    head = graph.commits.head().id
    assert graph.mutate(PERSON, {"name": "e"}, if_commit=head).commit.requests == 1
    assert graph.mutate(update).commit.requests == 1


def test_a_commit_that_stops_half_way_is_told_to_all_and_written_once(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        behind_a_commit(graph, monkeypatch) as outcomes,
        activate(Window.MUTATION_POST_SIDECAR_PRE_COMMIT, Sequence([Raise()])),
    ):
        results = outcomes(adding(graph, "a"), adding(graph, "b"))
    assert len({str(each) for each in results}) == 1
    assert all(isinstance(each, InjectedFailure) for each in results)
    assert results[0] is not results[1], "a traceback belongs to one thread"
    graph.mutate(PERSON, {"name": "later"})
    graph.close()
    with omnigraph.open(graph.uri) as again:
        people = set(rows_of(again, "Person"))
        assert people in ({"first", "later"}, {"first", "later", "a", "b"})
        assert again.verify().ok
        assert again.pending() == ()


def test_a_group_that_loses_its_leader_half_way_is_not_written_twice(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends the leader's thread: the others are told that nobody knows, and recovery decides."""

    class Gone(BaseException):
        pass

    def gone(_: Window) -> None:
        raise Gone

    with (
        behind_a_commit(graph, monkeypatch) as outcomes,
        activate(Window.GRAPH_PUBLISH_BEFORE_COMMIT_APPEND, Sequence([lambda _: None, gone])),
    ):
        leader, other = outcomes(adding(graph, "a"), adding(graph, "b"))
    assert isinstance(leader, Gone)
    assert isinstance(other, RecoveryRequired)
    graph.mutate(PERSON, {"name": "later"})
    assert set(rows_of(graph, "Person")) == {"first", "a", "b", "later"}
    assert graph.verify().ok


def test_a_group_that_loses_its_leader_before_any_effect_goes_on(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(BaseException):
        pass

    def gone(_: Window) -> None:
        raise Gone

    with (
        behind_a_commit(graph, monkeypatch) as outcomes,
        activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Sequence([gone])),
    ):
        leader, other = outcomes(adding(graph, "a"), adding(graph, "b"))
    assert isinstance(leader, Gone)
    assert other.commit.requests == 1
    assert set(rows_of(graph, "Person")) == {"first", "b"}


def test_the_main_thread_leads_nobody_so_that_its_interrupt_stops_nobody(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = call_line(graph.session)
    with activate(PRE_PUBLISH, Sequence([pause := Pause()])):
        first, second = Started(), Started()
        first.start(lambda: graph.mutate(PERSON, {"name": "first"}))
        pause.wait_until_reached()
        join = line._calls.join

        def join_and_be_followed(place) -> None:
            join(place)
            if place.on_main_thread:
                second.start(lambda: graph.mutate(PERSON, {"name": "other"}))
            else:
                pause.release()

        monkeypatch.setattr(line._calls, "join", join_and_be_followed)
        leaders: list[str] = []
        lead = line._lead
        monkeypatch.setattr(
            line,
            "_lead",
            lambda call, work: lead(
                call, lambda *a: (leaders.append(threading.current_thread().name), work(*a))
            ),
        )
        own = graph.mutate(PERSON, {"name": "own"})
        (other,) = second.join()
        first.join()
    assert own.commit.id == other.commit.id
    assert own.commit.requests == 2
    assert "MainThread" not in leaders


# --- edges that are unique by their ends ---------------------------------------------------------------------

BY_ENDS = """
node Person { name: String @key  nick: String? @unique }
edge Likes: Person -> Person { how: String?  @unique(src, dst) }
"""
LIKES = 'query l($how: String) { insert Likes { from: "x", to: "y", how: $how } }'
NEW_LIKES = 'query l($how: String) { insert new Likes { from: "x", to: "y", how: $how } }'


@pytest.fixture
def liking(tmp_path: Path) -> Iterator[Graph]:
    with make_graph(tmp_path / "liking", BY_ENDS) as made:
        made.mutate('query two() { insert Person { name: "x" } insert Person { name: "y" } }')
        yield made


@pytest.mark.parametrize("committed", [False, True])
def test_calls_that_name_the_same_edge_by_its_ends_write_one_edge_in_one_commit(
    liking: Graph, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    before = {liking.mutate(LIKES, {"how": "0"}).inserted[0].id} if committed else set()
    with behind_a_commit(liking, monkeypatch) as outcomes:
        results = outcomes(*((lambda h=how: liking.mutate(LIKES, {"how": h})) for how in ("1", "2", "3")))
    assert {each.commit.id for each in results} == {liking.commits.head().id}
    assert results[0].commit.requests == 3
    (edge_id,) = {each.inserted[0].id for each in results}
    assert before <= {edge_id}
    assert [each.inserted[0].generated for each in results] == [not committed, False, False]
    assert {key: row["how"] for key, row in rows_of(liking, "Likes").items()} == {edge_id: "3"}
    assert liking.mutate(LIKES, {"how": "4"}).inserted[0].id == edge_id, "the key index knows the one row"
    assert {key: row["how"] for key, row in rows_of(liking, "Likes").items()} == {edge_id: "4"}
    assert liking.verify().ok


def test_an_edge_that_must_be_new_is_refused_behind_a_call_that_wrote_it(
    liking: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    with behind_a_commit(liking, monkeypatch) as outcomes:
        first, refused, last = outcomes(
            lambda: liking.mutate(LIKES, {"how": "1"}),
            lambda: liking.mutate(NEW_LIKES, {"how": "2"}),
            lambda: liking.mutate(LIKES, {"how": "3"}),
        )
    assert isinstance(refused, KeyConflict)
    assert refused.entity_id == first.inserted[0].id
    assert (first.commit.requests, last.commit.id) == (2, first.commit.id)
    assert [row["how"] for row in rows_of(liking, "Likes").values()] == ["3"]


def test_a_call_with_a_key_and_a_value_of_others_leaves_alone(
    liking: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same key replaces; the same unique value in another row is refused, and takes its edge along."""
    both = "query b($name: String, $nick: String) { insert Person { name: $name, nick: $nick } "
    both += 'insert Likes { from: $name, to: "x" } }'
    with behind_a_commit(liking, monkeypatch) as outcomes:
        one, same, refused, other = outcomes(
            lambda: liking.mutate(both, {"name": "a", "nick": "n"}),
            lambda: liking.mutate(both, {"name": "a", "nick": "m"}),
            lambda: liking.mutate(both, {"name": "b", "nick": "m"}),
            lambda: liking.mutate(both, {"name": "c", "nick": "n"}),
        )
    assert isinstance(refused, ConstraintViolation)
    assert refused.violations[0].rule == "unique"
    assert {each.commit.id for each in (one, same, other)} == {one.commit.id}
    assert {key: row["nick"] for key, row in rows_of(liking, "Person").items()} == {
        "first": None,
        "x": None,
        "y": None,
        "a": "m",
        "c": "n",
    }
    ends = sorted(row["from"] for row in rows_of(liking, "Likes").values())
    assert ends == ["a", "c"]
    assert liking.verify().ok


# --- rules about single rows ---------------------------------------------------------------------------------

PLAIN = """
node Person { name: String @key  nick: String?  age: I32?  @range(age, 0..9) }
"""
AGED = "query a($name: String, $age: I32) { insert Person { name: $name, age: $age } }"


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Graph]:
    with make_graph(tmp_path / "plain", PLAIN) as made:
        yield made


def test_rows_that_no_rule_relates_are_validated_once(plain: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of many calls costs what the calls cost, not the square of it."""
    from omnigraph.engine.write import prepare

    looked: list[int] = []
    validate = prepare.validate

    def counted(catalog, changes, committed) -> None:
        looked.append(sum(each.rows.num_rows for each in changes.values()))
        validate(catalog, changes, committed)

    with behind_a_commit(plain, monkeypatch) as outcomes:
        monkeypatch.setattr(prepare, "validate", counted)
        results = outcomes(*(adding(plain, f"p{number}") for number in range(8)))
    assert {each.commit.requests for each in results} == {8}
    assert looked == [1] * 8


def test_a_row_that_breaks_a_rule_is_refused_also_where_a_later_call_replaces_it(
    plain: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [("a", 1), ("b", 99), ("b", 2), ("a", 3), ("c", -1)]
    with behind_a_commit(plain, monkeypatch) as outcomes:
        results = outcomes(
            *((lambda n=name, a=age: plain.mutate(AGED, {"name": n, "age": a})) for name, age in given)
        )
    refused = [isinstance(each, ConstraintViolation) for each in results]
    assert refused == [False, True, False, False, True]
    assert {results[at].commit.id for at in (0, 2, 3)} == {plain.commits.list()[0].id}
    shown = {name: row["age"] for name, row in rows_of(plain, "Person").items()}
    assert shown == {"first": None, "a": 3, "b": 2}
    assert plain.verify().ok
