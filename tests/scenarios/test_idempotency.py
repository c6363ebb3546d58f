"""A request with a key is carried out once, however often it is sent, and whoever died in between."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import omnigraph
from graphs import make_graph, rows_of
from omnigraph.api.graph import Graph
from omnigraph.core.errors import BadRequest, IdempotencyMismatch, PreconditionFailed, SnapshotNotFound
from omnigraph.core.failpoints import Pause, Raise, Sequence, Window, activate
from omnigraph.core.limits import REQUEST_KEY_HOURS
from omnigraph.engine.session import open_session
from omnigraph.engine.write.calls import call_line
from omnigraph.manifest import commits as commits_module
from omnigraph.manifest.commits import CommitLog

NOTE = "query n($text: String) { insert Note { text: $text } }"
AGE = 'query a($age: I32) { update Person set { age: $age } where name = "ana" }'
HOUR_US = 3_600_000_000


class Hands:
    """A clock that is moved by hand."""

    def __init__(self, now_us: int) -> None:
        self.us = now_us

    def now_us(self) -> int:
        return self.us


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    with make_graph(tmp_path / "g") as made:
        made.mutate('query p() { insert Person { name: "ana" } }')
        yield made


def note(graph: Graph, text: str = "hello", key: str | None = "k1", **more):
    return graph.mutate(NOTE, {"text": text}, idempotency_key=key, **more)


def test_the_same_request_is_answered_by_the_first_commit(graph: Graph) -> None:
    first = note(graph)
    again = note(graph)
    assert (first.repeated, again.repeated) == (False, True)
    assert again.commit == first.commit
    assert (again.affected_nodes, again.affected_edges) == (1, 0)
    assert again.to_dict()["repeated"] is True
    assert "repeated" not in first.to_dict()
    assert len(rows_of(graph, "Note")) == 1
    assert note(graph, key=None).commit.id != first.commit.id
    assert note(graph, key="k2").commit.id != first.commit.id
    assert len(rows_of(graph, "Note")) == 3


@pytest.mark.slow
def test_a_key_outlives_the_process_and_later_commits(graph: Graph) -> None:
    first = note(graph)
    for number in range(70):  # more than are kept back before the commit tables are written
        graph.mutate(NOTE, {"text": str(number)})
    assert note(graph).commit.id == first.commit.id
    graph.close()
    with omnigraph.open(graph.uri) as again:
        assert note(again).commit.id == first.commit.id
        assert note(again, key="k2").repeated is False
    assert note_count(graph.uri) == 72


@pytest.mark.slow
def test_a_key_outlives_the_state_that_its_commit_made(graph: Graph) -> None:
    """A cleanup removes states, not the record of what was written: within its window a key still answers."""
    first = note(graph)
    graph.mutate(NOTE, {"text": "next"})
    graph.branches.create("side")
    beside = note(graph, "beside", "k-side", branch="side")
    for number in range(5):
        graph.mutate(NOTE, {"text": str(number)})
        graph.mutate(NOTE, {"text": str(number)}, branch="side")
    graph.cleanup(keep=1)
    with pytest.raises(SnapshotNotFound):
        graph.at(first.commit.id).export()
    answers = [note(graph), note(graph, "beside", "k-side", branch="side")]
    graph.close()
    with omnigraph.open(graph.uri) as again:
        answers += [note(again), note(again, "beside", "k-side", branch="side")]
        with pytest.raises(IdempotencyMismatch):
            note(again, "another text")
        again.cleanup(keep=1)
        assert note(again).repeated
    assert [each.commit.id for each in answers] == [first.commit.id, beside.commit.id] * 2
    assert all(each.repeated and each.affected_nodes == 1 for each in answers)
    assert note_count(graph.uri) == 7


@pytest.mark.slow
def test_keys_beside_another_writer_cost_the_commits_since(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes in between: the history is read once, not with every request."""
    with omnigraph.open(graph.uri) as other:
        sent = [note(handle, key=f"{number}") for number in range(3) for handle in (graph, other)]
        assert [each.repeated for each in sent] == [False, True] * 3
        reads: list[object] = []
        since = CommitLog.since
        monkeypatch.setattr(CommitLog, "since", lambda *asked: (reads.append(asked), since(*asked))[1])
        for number in range(4):
            note(graph, "x", f"a{number}")
            other.mutate(NOTE, {"text": "no key"})
            note(other, "x", f"b{number}")
            assert note(graph, "x", f"b{number}").repeated
    assert reads == []
    assert note_count(graph.uri) == 15


def test_a_state_that_others_have_moved_on_from_asks_for_no_history(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(graph)
    older, keys = graph.session.manifest.current(None), graph.session.request_keys
    first = note(graph, "x", "k2")
    assert note(graph, "x", "k2").repeated
    monkeypatch.setattr(CommitLog, "since", None)
    found = keys.find(older, None, "k2")
    assert found is not None
    assert found[0].id == first.commit.id
    assert note(graph, "y", "k3").repeated is False


def note_count(uri: str) -> int:
    with omnigraph.open_read_only(uri) as reading:
        return len(rows_of(reading, "Note"))


def test_a_key_with_another_request_is_refused(graph: Graph) -> None:
    first = note(graph)
    for other in (
        lambda: note(graph, "another text"),
        lambda: graph.mutate(AGE, {"age": 3}, idempotency_key="k1"),
        lambda: graph.mutate_many(NOTE, [{"text": "hello"}, {"text": "hello"}], idempotency_key="k1"),
    ):
        with pytest.raises(IdempotencyMismatch, match=f"k1.*{first.commit.id}") as caught:
            other()
        assert caught.value.details == {"idempotency_key": "k1", "graph_commit_id": first.commit.id}
    assert len(rows_of(graph, "Note")) == 1


def test_keys_of_other_actors_are_other_keys(graph: Graph) -> None:
    one, other = note(graph, actor="ines"), note(graph, actor="omar")
    assert one.commit.id != other.commit.id
    assert note(graph, actor="ines").commit.id == one.commit.id
    assert note(graph, actor="omar").commit.id == other.commit.id
    assert len(rows_of(graph, "Note")) == 2


def test_a_branch_knows_the_keys_of_what_it_inherited_and_no_others(graph: Graph) -> None:
    inherited = note(graph, key="before")
    graph.branches.create("side")
    on_main = note(graph, key="after")
    with pytest.raises(IdempotencyMismatch):  # the branch is part of the request
        note(graph, key="before", branch="side")
    on_side = note(graph, key="after", branch="side")
    assert len({inherited.commit.id, on_main.commit.id, on_side.commit.id}) == 3


def test_a_conditional_and_a_strict_request_are_answered_as_well(graph: Graph) -> None:
    head = graph.commits.head().id
    ask = {"if_commit": head, "idempotency_key": "k1"}
    first = graph.mutate(AGE, {"age": 3}, **ask)
    graph.mutate(AGE, {"age": 4})
    assert graph.mutate(AGE, {"age": 3}, **ask).commit.id == first.commit.id
    assert rows_of(graph, "Person")["ana"]["age"] == 4
    with pytest.raises(PreconditionFailed):
        graph.mutate(AGE, {"age": 3}, if_commit=head, idempotency_key="k2")
    many = graph.mutate_many(NOTE, [{"text": "a"}, {"text": "b"}], idempotency_key="k3")
    again = graph.mutate_many(NOTE, [{"text": "a"}, {"text": "b"}], idempotency_key="k3")
    assert (again.commit.id, again.affected_nodes) == (many.commit.id, 2)


def test_a_key_may_be_used_again_after_its_window(graph: Graph) -> None:
    graph.close()
    clock = Hands(2_000_000_000_000_000)
    with Graph(open_session(graph.uri, clock=clock)) as timed:
        first = note(timed)
        clock.us += REQUEST_KEY_HOURS * HOUR_US - 1
        assert note(timed).commit.id == first.commit.id
        clock.us += 2
        later = note(timed, "another text")
        assert later.repeated is False
        assert note(timed, "another text").commit.id == later.commit.id, "the new one has a window of its own"
    with Graph(open_session(graph.uri, clock=clock)) as timed:
        assert note(timed, "another text").commit.id == later.commit.id


@pytest.mark.parametrize("fresh", [True, False])
def test_a_clock_that_is_behind_hides_no_key(graph: Graph, *, fresh: bool) -> None:
    """Neither the keys of commits before those of its writer, nor its own."""
    graph.close()
    right, behind = Hands(2_000_000_000_000_000), Hands(2_000_000_000_000_000 - 40 * HOUR_US)
    asks = Graph(open_session(graph.uri, clock=right))
    first = note(asks, key="before")
    with Graph(open_session(graph.uri, clock=behind)) as late:
        own = [note(late, key=f"own{number}") for number in range(3)]
    if fresh:
        asks.close()
        asks = Graph(open_session(graph.uri, clock=right))
    assert note(asks, key="before").commit.id == first.commit.id
    assert [note(asks, key=f"own{number}").commit.id for number in range(3)] == [
        each.commit.id for each in own
    ]
    assert len(rows_of(asks, "Note")) == 4
    right.us += REQUEST_KEY_HOURS * HOUR_US + 1
    assert not note(asks, key="before").repeated, "its window is over"
    asks.close()


def test_a_clock_that_is_ahead_hides_no_key(graph: Graph) -> None:
    graph.close()
    right, ahead = Hands(2_000_000_000_000_000), Hands(2_000_000_000_000_000 + 900 * HOUR_US)
    with Graph(open_session(graph.uri, clock=ahead)) as early:
        own = note(early, key="own")
    with Graph(open_session(graph.uri, clock=right)) as asks:
        assert note(asks, key="own").commit.id == own.commit.id
        first = note(asks)
        right.us += HOUR_US
        assert note(asks).commit.id == first.commit.id
        assert len(rows_of(asks, "Note")) == 2


def test_very_many_commits_of_a_clock_that_is_behind_end_the_search(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked of a long history is bounded; in this it is."""
    monkeypatch.setattr(commits_module, "COMMITS_BEHIND_MAX", 5)
    head = graph.commits.head()
    log = graph.session.commits
    for number in range(8):
        note(graph, key=f"k{number}")
    assert log.since(graph.commits.head(), head.time_us + 10**12) == []
    assert len(log.since(graph.commits.head(), head.time_us)) == 9


@pytest.mark.parametrize("key", ["", "x" * 201, 7])
def test_what_is_no_key_is_refused(graph: Graph, key) -> None:
    with pytest.raises(BadRequest, match=r"idempotency.key"):
        note(graph, key=key)


@pytest.mark.parametrize("sent_by", ["the same handle", "a new one"])
@pytest.mark.parametrize(
    "window",
    [
        Window.MUTATION_POST_STAGE_PRE_QUEUE,
        Window.MUTATION_POST_SIDECAR_PRE_COMMIT,
        Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER,
        Window.GRAPH_PUBLISH_AFTER_MANIFEST_COMMIT,
        Window.GRAPH_PUBLISH_BEFORE_COMMIT_APPEND,
    ],
)
def test_a_request_whose_outcome_nobody_knew_is_sent_again(
    graph: Graph, window: Window, sent_by: str
) -> None:
    with activate(window, Raise()), pytest.raises(Exception, match=r".+"):
        note(graph)
    if sent_by == "a new one":
        graph.close()
        graph = omnigraph.open(graph.uri)
    again = note(graph)
    once_more = note(graph)
    assert once_more.repeated
    assert once_more.commit.id == again.commit.id
    assert again.affected_nodes == once_more.affected_nodes == 1
    assert len(rows_of(graph, "Note")) == 1
    assert graph.verify().ok
    graph.close()


def test_two_handles_with_one_key_write_once(graph: Graph) -> None:
    """The second one was prepared before the first landed: it only inserts, so nothing else would stop it."""
    with (
        omnigraph.open(graph.uri) as other,
        activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Sequence([pause := Pause()])),
    ):
        results = []
        second = threading.Thread(target=lambda: results.append(note(other)))
        second.start()
        pause.wait_until_reached()
        first = note(graph)
        pause.release()
        second.join(60)
    assert results[0].repeated
    assert results[0].commit.id == first.commit.id
    assert len(rows_of(graph, "Note")) == 1


def test_one_key_twice_in_one_group_is_written_once(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    line = call_line(graph.session)._calls
    join, joined = line.join, threading.Event()
    results = []
    with activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Sequence([pause := Pause()])):
        threads = [threading.Thread(target=lambda: note(graph, "first", None))]
        threads[0].start()
        pause.wait_until_reached()
        monkeypatch.setattr(line, "join", lambda place: (join(place), joined.set()))
        for _ in range(3):
            joined.clear()
            threads.append(threading.Thread(target=lambda: results.append(note(graph))))
            threads[-1].start()
            assert joined.wait(60)
        pause.release()
        for thread in threads:
            thread.join(60)
    assert sorted(each.repeated for each in results) == [False, True, True]
    assert len({each.commit.id for each in results}) == 1
    assert len(rows_of(graph, "Note")) == 2
