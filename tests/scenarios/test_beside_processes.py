"""Writers of two processes on the same tables: what is prepared while the other one is at work is kept."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from graphs import FAST, make_graph, rows_of, run
from omnigraph.api.graph import Graph
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import Cancelled, ConstraintViolation
from omnigraph.core.events import DurableOperation, Event
from omnigraph.core.failpoints import Callback, Pause, Sequence, Window, activate
from omnigraph.core.settings import Settings
from omnigraph.engine.write.calls import call_line
from omnigraph.engine.write.requests import MutationResult
from omnigraph.maintenance import indices
from omnigraph.maintenance.indices import IndexWork, ensure_indices
from omnigraph.manifest.store import LATELY_MAX, ManifestStore
from omnigraph.recovery import lease, queues
from omnigraph.recovery.per_root import PerRoot
from omnigraph.storage import durability, staging
from waiting_calls import PERSON, PRE_PUBLISH, WAIT_S, Started

STAGED = Window.MUTATION_POST_STAGE_PRE_QUEUE
AGED = "query a($name: String, $age: I32) { insert Person { name: $name, age: $age } }"
COMPANY = "query c($name: String) { insert Company { name: $name } }"


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    with make_graph(tmp_path / "g") as made:
        yield made


@pytest.fixture
def elsewhere(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> Iterator[Graph]:
    """A handle that shares neither queues nor lease with the other one, as in another process."""
    with monkeypatch.context() as apart:
        apart.setattr(lease, "_leases", PerRoot())
        apart.setattr(queues, "_queues", PerRoot())
        made = omnigraph.open(graph.uri, settings=FAST)
    assert made.session.lease is not graph.session.lease
    with made:
        yield made


def meeting(graph: Graph, theirs: Callable[[], Any], *ours: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """Their write is held before its publish until ours are staged on what was before it."""
    other, mine, pause, staged = Started(), Started(), Pause(), threading.Event()
    graph.session.disturbed = True

    def is_theirs() -> bool:
        return threading.current_thread() in other._threads

    with (
        activate(PRE_PUBLISH, Callback(lambda at: pause(at) if is_theirs() else None)),
        activate(STAGED, Callback(lambda _: None if is_theirs() else staged.set())),
    ):
        other.start(theirs)
        pause.wait_until_reached()
        for each in ours:
            mine.start(each)
        assert staged.wait(WAIT_S)
        pause.release()
        return other.join()[0], mine.join()


@pytest.mark.slow
def test_an_upsert_keeps_its_files_and_replaces_what_the_other_process_wrote(
    graph: Graph, elsewhere: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph.mutate(AGED, {"name": "old", "age": 0})
    written: list[str] = []
    write = staging._write_rows

    def noted(*given: Any, **named: Any) -> Any:
        written.append(threading.current_thread().name)
        return write(*given, **named)

    monkeypatch.setattr(staging, "_write_rows", noted)
    both = 'query b() { insert Person { name: "a", age: 1 } insert Person { name: "old", age: 1 } }'
    _, (mine,) = meeting(
        graph,
        lambda: elsewhere.mutate(both),
        lambda: graph.mutate('query b() { insert Person { name: "a", age: 2 } insert Person { name: "c" } }'),
    )
    assert len(written) == 2, "one file of rows for each write"
    assert {name: row["age"] for name, row in rows_of(graph, "Person").items()} == {
        "old": 1,
        "a": 2,
        "c": None,
    }
    assert graph.commits.head().id == mine.commit.id
    for handle in (graph, elsewhere):
        handle.mutate(AGED, {"name": "a", "age": 3})
    assert [row["age"] for row in rows_of(graph, "Person").values()].count(3) == 1
    assert graph.verify().ok


def test_files_that_were_synced_before_the_turn_are_synced_once_and_before_the_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_graph(tmp_path / "durable", settings=Settings()) as graph:
        graph.mutate(AGED, {"name": "first", "age": 1})
        heard: list[Event] = []
        # What other threads do is heard as well.
        monkeypatch.setattr(durability, "listening", lambda: True)
        monkeypatch.setattr(durability, "emit", heard.append)
        published: list[int] = []
        graph.session.disturbed = True
        with activate(PRE_PUBLISH, Callback(lambda _: published.append(len(heard)))):
            graph.mutate(AGED, {"name": "a", "age": 1})
        synced = [
            each.path
            for each in heard[: published[0]]
            if isinstance(each, DurableOperation) and (each.kind, each.moment) == ("sync_file", "after")
        ]
        entry = graph.snapshot().entries["node:Person"]
        (data,) = [path for path in synced if f"{entry.location}/data/" in path]
        assert Path(data).exists()
        assert any(f"{entry.location}/_versions/" in path for path in synced)
        assert len(synced) == len(set(synced))


@pytest.mark.slow
def test_a_row_that_the_other_process_removed_is_not_hidden_twice(graph: Graph, elsewhere: Graph) -> None:
    for name in ("a", "b", "c"):
        graph.mutate(AGED, {"name": name, "age": 0})
    meeting(
        graph,
        lambda: elsewhere.mutate('query d() { delete Person where name = "a" }'),
        lambda: graph.mutate(AGED, {"name": "a", "age": 2}),
    )
    assert {name: row["age"] for name, row in rows_of(graph, "Person").items()} == {"a": 2, "b": 0, "c": 0}
    assert graph.verify().ok


@pytest.mark.slow
def test_a_write_whose_ground_moved_is_prepared_again_without_leaving_the_lease(
    graph: Graph, elsewhere: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[bool] = []
    approach = graph.session.lease.approach
    monkeypatch.setattr(graph.session.lease, "approach", lambda: (turns.append(True), approach())[1])
    for nick, outcome in (("n", ConstraintViolation), ("m", MutationResult)):
        turns.clear()
        _, (mine,) = meeting(
            graph,
            lambda nick=nick: elsewhere.mutate(PERSON, {"name": f"their {nick}", "nick": nick}),
            lambda: graph.mutate(PERSON, {"name": "mine", "nick": "n"}),
        )
        assert isinstance(mine, outcome)
        assert len(turns) == 1
        if nick == "n":
            elsewhere.mutate('query d() { delete Person where nick = "n" }')
    assert {name: row["nick"] for name, row in rows_of(graph, "Person").items()} == {
        "their m": "m",
        "mine": "n",
    }
    assert graph.verify().ok


@contextmanager
def nobody_comes_next(other: Graph) -> Iterator[Callable[[], None]]:
    """The other process stands before the lease and does not enter; gives what lets it go."""
    standing, leaving = threading.Event(), threading.Event()

    def stand() -> None:
        with other.session.lease.approach():
            standing.set()
            assert leaving.wait(WAIT_S)

    started = Started()
    started.start(stand)
    assert standing.wait(WAIT_S)
    try:
        yield leaving.set
    finally:
        leaving.set()
        assert started.join() == [None]


def queued(graph: Graph, monkeypatch: pytest.MonkeyPatch, *works: Callable[[], Any]) -> Started:
    """Calls that wait in the line, each behind the one before; the first leads and waits for its turn."""
    line, joined, waits = call_line(graph.session)._calls, threading.Event(), threading.Event()
    join, approach = line.join, graph.session.lease.approach
    monkeypatch.setattr(line, "join", lambda place: (join(place), joined.set()))
    monkeypatch.setattr(graph.session.lease, "approach", lambda: (waits.set(), approach())[1])
    graph.session.disturbed = True
    started = Started()
    for work in works:
        joined.clear()
        started.start(work)
        assert joined.wait(WAIT_S)
        assert waits.wait(WAIT_S)
    return started


def test_a_group_takes_everybody_who_came_until_it_is_the_next(
    graph: Graph, elsewhere: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nobody_comes_next(elsewhere) as go:
        started = queued(
            graph, monkeypatch, *((lambda n=name: graph.mutate(PERSON, {"name": n})) for name in "abc")
        )
        go()
        results = started.join()
    assert {each.commit.id for each in results} == {graph.commits.head().id}
    assert results[0].commit.requests == 3
    assert not graph.session.disturbed, "nobody came between"
    assert set(rows_of(graph, "Person")) == set("abc")


def test_calls_for_tables_the_leader_does_not_touch_come_along(
    graph: Graph, elsewhere: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nobody_comes_next(elsewhere) as go:
        started = queued(
            graph,
            monkeypatch,
            lambda: graph.mutate(PERSON, {"name": "a"}),
            lambda: graph.mutate(COMPANY, {"name": "c"}),
        )
        go()
        first, second = started.join()
    assert first.commit.id == second.commit.id
    assert (set(rows_of(graph, "Person")), set(rows_of(graph, "Company"))) == ({"a"}, {"c"})
    assert graph.verify().ok


@pytest.mark.slow
@pytest.mark.parametrize(("theirs", "is_behind"), [(1, True), (2, True), (LATELY_MAX, False)])
@pytest.mark.parametrize("branch", ["main", "side"])
def test_a_write_that_reads_nothing_reads_the_state_once_however_many_came_before_its_turn(
    graph: Graph,
    elsewhere: Graph,
    monkeypatch: pytest.MonkeyPatch,
    theirs: int,
    is_behind: bool,  # noqa: FBT001
    branch: str,
) -> None:
    graph.branches.create("side")
    graph.mutate(COMPANY, {"name": "first"}, branch=branch)
    approach, read, reads = graph.session.lease.approach, ManifestStore._read_head, []

    def after_others() -> Any:
        for number in range(theirs):
            elsewhere.mutate(COMPANY, {"name": f"c{number}"}, branch=branch)
        reads.clear()
        return approach()

    def noted(store: ManifestStore, *asked: Any) -> Any:
        if store is graph.session.manifest:
            reads.append(asked)
        return read(store, *asked)

    monkeypatch.setattr(ManifestStore, "_read_head", noted)
    monkeypatch.setattr(graph.session.lease, "approach", after_others)
    graph.session.disturbed = True
    graph.mutate(COMPANY, {"name": "c0"}, branch=branch)
    assert len(reads) == 1
    assert graph.session.disturbed is is_behind
    shown = {row["name"] for row in rows_of(graph, "Company", branch=branch).values()}
    assert shown == {"first", *(f"c{number}" for number in range(theirs))}
    assert graph.verify().ok


@pytest.mark.slow
def test_a_turn_after_a_cleanup_begins_with_the_newest_state(
    graph: Graph, elsewhere: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this process saw last is gone, and the next one too."""
    graph.mutate(COMPANY, {"name": "a"})
    approach = graph.session.lease.approach

    def after_others() -> Any:
        for name in "bcd":
            elsewhere.mutate(COMPANY, {"name": name})
        elsewhere.cleanup(keep=1)
        return approach()

    monkeypatch.setattr(graph.session.lease, "approach", after_others)
    graph.session.disturbed = True
    graph.mutate(COMPANY, {"name": "b"})
    assert set(rows_of(graph, "Company")) == set("abcd")
    assert graph.verify().ok


def test_a_leader_that_is_stopped_while_it_waits_for_its_turn_leaves_the_others_alone(
    graph: Graph, elsewhere: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Cancellation()
    with nobody_comes_next(elsewhere) as go:
        started = queued(
            graph,
            monkeypatch,
            lambda: graph.mutate(PERSON, {"name": "a"}, cancel=stop),
            lambda: graph.mutate(PERSON, {"name": "b"}),
            lambda: graph.mutate(PERSON, {"name": "c"}),
        )
        stop.request()
        started._threads[0].join(WAIT_S)
        assert isinstance(started.results[0], Cancelled)
        go()
        _, *others = started.join()
    assert {each.commit.requests for each in others} == {2}
    assert set(rows_of(graph, "Person")) == {"b", "c"}
    assert graph.pending() == ()


def test_calls_that_may_read_bytes_from_afar_keep_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_graph(tmp_path / "b", "node Doc { name: String @key  body: Blob? }") as graph:
        graph.session.disturbed = True

        def refused() -> None:
            raise AssertionError("it stood before the lease while it read")

        monkeypatch.setattr(graph.session.lease, "approach", refused)
        graph.mutate('query d() { insert Doc { name: "a", body: "base64:aGk=" } }')
        assert set(rows_of(graph, "Doc")) == {"a"}


@pytest.mark.parametrize("disturbed", [False, True])
def test_the_lease_is_taken_at_phase_a_only(graph: Graph, *, disturbed: bool) -> None:
    held: dict[Window, bool] = {}
    graph.session.disturbed = disturbed
    windows = [STAGED, Window.RECOVERY_SIDECAR_WRITE, Window.RECOVERY_SIDECAR_DELETE]
    with ExitStack() as heard:
        for window in windows:
            note = Callback(lambda at: held.setdefault(at, graph.session.lease.held))
            heard.enter_context(activate(window, note))
        graph.mutate(PERSON, {"name": "a", "nick": "n"})
    assert held == {window: window is not STAGED for window in windows}
    assert not graph.session.lease.held


@pytest.mark.parametrize(("branch", "query"), [("side", PERSON), ("main", COMPANY)])
def test_a_writer_in_its_turn_waits_for_no_other_branch_or_table(
    graph: Graph, branch: str, query: str
) -> None:
    graph.branches.create("side")
    with activate(PRE_PUBLISH, Sequence([pause := Pause()])):
        first = Started()
        first.start(lambda: graph.mutate(PERSON, {"name": "first"}, actor="one"))
        pause.wait_until_reached()
        graph.session.disturbed = True
        landed = graph.mutate(query, {"name": "second"}, branch=branch, actor="two").commit
        assert landed is not None
        assert set(rows_of(graph, "Person")) == set()
        pause.release()
        first.join()
    assert set(rows_of(graph, "Person")) == {"first"}
    assert graph.pending() == ()


# --- upkeep --------------------------------------------------------------------------------------------------


@pytest.fixture
def worn(graph: Graph) -> Graph:
    """A table of so many fragments that they are worth being folded."""
    graph.session.after_publish = None
    for number in range(40):
        graph.mutate(AGED, {"name": f"p{number:02}", "age": number})
    return graph


def folded_while(graph: Graph, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Any]) -> int:
    """Fold, while somebody else writes once the new files are there; how often rows were rewritten."""
    rewritten = [0]
    rewrite, carry = graph.session.storage.stage_rewrite, indices.carry

    def noted(*given: Any) -> Any:
        rewritten[0] += 1
        return rewrite(*given)

    def carried(*given: Any, **named: Any) -> Any:
        if rewritten[0] == 1:
            meanwhile()
        return carry(*given, **named)

    monkeypatch.setattr(graph.session.storage, "stage_rewrite", noted)
    monkeypatch.setattr(indices, "carry", carried)
    assert ensure_indices(graph.session, None, work=IndexWork.FOLDED).commit_id is not None
    return rewritten[0]


@pytest.mark.slow
def test_a_fold_follows_a_table_that_others_added_to(
    worn: Graph, elsewhere: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.session.after_publish = None
    assert folded_while(worn, monkeypatch, lambda: elsewhere.mutate(AGED, {"name": "new", "age": 99})) == 1
    assert worn.session.open_entry(worn.snapshot().entries["node:Person"]).fragment_count < 40
    ages = {name: row["age"] for name, row in rows_of(worn, "Person").items()}
    assert ages == {f"p{number:02}": number for number in range(40)} | {"new": 99}
    for name in ("new", "p00"):
        run(worn, f'insert Person {{ name: "{name}", age: 7 }}')
    assert len(rows_of(worn, "Person")) == 41
    assert worn.verify().ok


@pytest.mark.slow
def test_a_fold_whose_rows_were_replaced_is_made_again(
    worn: Graph, elsewhere: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.session.after_publish = None
    assert folded_while(worn, monkeypatch, lambda: elsewhere.mutate(AGED, {"name": "p00", "age": 99})) == 2
    ages = {name: row["age"] for name, row in rows_of(worn, "Person").items()}
    assert ages == {f"p{number:02}": number for number in range(1, 40)} | {"p00": 99}
    assert worn.verify().ok
