"""Writes that run again, give up, or wait for their turn."""

import datetime as dt
import threading
from pathlib import Path

import pytest
from lance.commit import CommitConflictError

from graphs import make_graph, reopen, rows_of, run, state_of
from omnigraph.api.graph import Graph
from omnigraph.core.errors import (
    ExpectedVersionMismatch,
    RecoveryRequired,
    Retry,
    RowLevelCasContention,
)
from omnigraph.core.failpoints import Callback, Pause, Raise, Sequence, Window, activate
from omnigraph.core.ids import TableKey
from omnigraph.core.limits import PUBLISHER_RETRY_BUDGET, REPREPARE_ATTEMPTS_MAX
from omnigraph.engine.write import mutate
from omnigraph.engine.write.ground import ReadSetMoved

PERSON = TableKey("node:Person")
EVENTS = """
node Person { name: String @key }
node Event { name: String @key  at: DateTime  again: DateTime }
edge Saw: Person -> Person { at: DateTime }
"""


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g") as made:
        run(made, 'insert Person { name: "a" } insert Person { name: "b" }')
        yield made


class SetClock:
    """Shows the time it was set to."""

    def __init__(self, moment: dt.datetime) -> None:
        self.moment = moment

    def now_us(self) -> int:
        return int(self.moment.timestamp() * 1_000_000)


@pytest.mark.slow
def test_now_has_one_value_for_all_statements_and_attempts(tmp_path: Path) -> None:
    called = dt.datetime(2031, 5, 6, 7, 8, 9, tzinfo=dt.UTC)
    clock = SetClock(called)
    attempts = []
    with make_graph(tmp_path / "g", EVENTS) as graph, reopen(graph) as other:
        run(graph, 'insert Person { name: "a" }')

        def lose(_window: Window) -> None:
            if threading.current_thread() is not writer:
                return
            attempts.append(clock.moment)
            clock.moment += dt.timedelta(hours=1)
            if len(attempts) == 1:
                another = threading.Thread(target=lambda: run(other, 'insert Person { name: "b" }'))
                another.start()
                another.join(30)

        writer = threading.current_thread()
        graph.session.clock = clock
        with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Callback(lose)):
            run(
                graph,
                """insert Saw { from: "a", to: "a", at: now() }
                   insert Event { name: "e", at: now(), again: now() }""",
            )
        assert len(attempts) == 2, "the first attempt read a table that moved"
        (event,), (saw,) = rows_of(graph, "Event").values(), rows_of(graph, "Saw").values()
    assert {event["at"], event["again"], saw["at"]} == {"2031-05-06T07:08:09.000Z"}


@pytest.mark.slow
def test_a_publish_that_always_meets_contention_says_how_often_it_tried(graph: Graph) -> None:
    before = set(rows_of(graph, "Person"))
    contention = Sequence(
        [Raise(CommitConflictError("injected", retryable=True)) for _ in range(PUBLISHER_RETRY_BUDGET + 1)]
    )
    with (
        activate(Window.PUBLISH_RETRYABLE_CONTENTION, contention),
        pytest.raises(RowLevelCasContention) as caught,
    ):
        run(graph, 'insert Person { name: "late" }')
    error = caught.value
    assert isinstance(error, RecoveryRequired)
    assert error.attempts == PUBLISHER_RETRY_BUDGET + 1
    assert f"in {PUBLISHER_RETRY_BUDGET + 1} attempts" in error.message
    assert error.retry is Retry.AFTER_RECOVERY
    assert state_of(graph).sidecars == (f"{error.operation_id}.json",)
    assert set(rows_of(graph, "Person")) == before
    run(graph, 'insert Person { name: "next" }')
    assert set(rows_of(graph, "Person")) == {*before, "late", "next"}


def test_an_insert_that_loses_every_attempt_says_how_often_it_tried(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state_of(graph)
    commits = []

    def lose(*_arguments: object, **_named: object) -> None:
        commits.append(None)
        moved = ExpectedVersionMismatch(table_key=PERSON, expected=len(commits), actual=len(commits) + 1)
        raise ReadSetMoved(moved)

    monkeypatch.setattr(mutate, "finalize_under", lose)
    with pytest.raises(ExpectedVersionMismatch) as caught:
        run(graph, 'insert Knows { from: "a", to: "b" }')
    assert len(commits) == REPREPARE_ATTEMPTS_MAX == 32
    error = caught.value
    assert (error.table_key, error.expected) == (PERSON, REPREPARE_ATTEMPTS_MAX), "the last one is raised"
    assert error.details["attempts"] == REPREPARE_ATTEMPTS_MAX
    assert "32 times" in (error.hint or "")
    assert state_of(graph) == before


@pytest.mark.slow
def test_two_merges_of_one_process_take_turns(graph: Graph) -> None:
    """The second one plans on what the first one made; without a turn it would lose, or make the first lose."""
    for branch in ("left", "right"):
        graph.branches.create(branch)
        run(graph, f'insert Person {{ name: "{branch}" }}', branch=branch)
    second_arrived = threading.Event()
    outcomes: dict[str, object] = {}

    def merge(handle: Graph, source: str) -> None:
        try:
            outcomes[source] = handle.branches.merge(source).outcome.value
        except Exception as error:
            outcomes[source] = error

    pause = Pause()
    with (
        reopen(graph) as other,
        activate(
            Window.BRANCH_MERGE_POST_CLASSIFY_PRE_QUEUE,
            Sequence([pause, Callback(lambda _: second_arrived.set())]),
        ),
    ):
        first = threading.Thread(target=merge, args=(graph, "left"))
        second = threading.Thread(target=merge, args=(other, "right"))
        first.start()
        pause.wait_until_reached()
        second.start()
        assert not second_arrived.wait(1.5), "the second merge did not wait for the first"
        pause.release()
        for thread in (first, second):
            thread.join(60)
            assert not thread.is_alive()
        assert second_arrived.is_set()
    assert outcomes == {"left": "fast_forward", "right": "merged"}
    assert set(rows_of(graph, "Person")) == {"a", "b", "left", "right"}
    assert graph.verify().ok
