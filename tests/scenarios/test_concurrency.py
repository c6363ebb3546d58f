"""Several writers at once: sections 4.1 and 4.8 of the testing specification. Names are the scenario names."""

import itertools
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from graphs import PEOPLE, hear, make_graph, reopen, rows_of, run, state_of
from omnigraph.api.graph import Graph
from omnigraph.core.errors import (
    ConstraintViolation,
    ExpectedVersionMismatch,
    KeyConflict,
    ReadSetConflict,
    RecoveryRequired,
)
from omnigraph.core.events import TableCommitted, TableStaged
from omnigraph.core.failpoints import Callback, Pause, Raise, Sequence, Window, activate
from omnigraph.core.ids import TableKey
from omnigraph.engine.write import commit
from stores import TABLE_STORES, Store

CHILD = Path(__file__).with_name("writer_child.py")
PERSON = TableKey("node:Person")


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g") as made:
        yield made


def at_once(works: list[Callable[[], object]]) -> list[object]:
    """Runs all works released together; an exception is a result."""
    barrier = threading.Barrier(len(works))
    results: list[object] = [None] * len(works)

    def call(number: int) -> None:
        barrier.wait(30)
        try:
            results[number] = works[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=call, args=(n,)) for n in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return results


def all_arrive(count: int) -> Callback:
    """Nobody passes for the first time before so many threads are there: they race for one version."""
    barrier, seen = threading.Barrier(count), set[int]()

    def wait(_: Window) -> None:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            barrier.wait(60)

    return Callback(wait)


def assert_one_chain(graph: Graph, commits: int) -> None:
    history = graph.commits.list()
    assert len(history) == commits
    for newer, older in itertools.pairwise(history):
        assert newer.parents == (older.id,)
        assert newer.manifest_version == older.manifest_version + 1
    state = state_of(graph)
    assert state.heads == state.pins
    assert state.sidecars == ()
    assert graph.verify().ok


@pytest.mark.slow
def test_concurrent_writers_one_winner(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a", age: 0 }')
    handles = [reopen(graph) for _ in range(16)]
    before = state_of(graph)
    statement = 'update Person set { age: $v } where name = "a"'
    with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, all_arrive(len(handles))):
        results = at_once(
            [lambda h=h, n=n: run(h, statement, {"v": n + 1}, types="$v: I32") for n, h in enumerate(handles)]
        )
    (won,) = [n for n, r in enumerate(results) if not isinstance(r, Exception)]
    pin = before.pins[PERSON]
    lost = [r for n, r in enumerate(results) if n != won]
    assert [(type(r), r.table_key, r.expected, r.actual) for r in lost] == [
        (ExpectedVersionMismatch, PERSON, pin, pin + 1)
    ] * 15
    after = state_of(graph)
    assert after.pins[PERSON] == pin + 1
    assert rows_of(graph, "Person")["a"]["age"] == won + 1
    assert_one_chain(graph, before.commits + 1)
    for handle in handles:
        handle.close()


@pytest.mark.slow
def test_concurrent_disjoint_tables_both_win(graph: Graph) -> None:
    with reopen(graph) as other:
        results = at_once(
            [
                lambda: [run(graph, f'insert Note {{ text: "{n}" }}') for n in range(5)],
                lambda: [run(other, f'insert Company {{ name: "{n}" }}') for n in range(5)],
            ]
        )
        assert not [r for r in results if isinstance(r, Exception)]
        assert len(rows_of(graph, "Note")) == len(rows_of(graph, "Company")) == 5
        assert_one_chain(graph, 11)


@pytest.fixture(params=TABLE_STORES, ids=str)
def stored(request, tmp_path: Path):
    """A graph on local disk, and on an S3 API server."""
    store = request.param.make(tmp_path)
    with omnigraph.init(store.uri, schema=PEOPLE, storage_options=store.storage_options) as made:
        yield made, store


def start(store: Store, *arguments: str) -> subprocess.Popen:
    child = subprocess.Popen(
        [sys.executable, str(CHILD), store.uri, json.dumps(store.storage_options), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def finish(child: subprocess.Popen) -> dict:
    output, _ = child.communicate(timeout=120)
    assert child.returncode == 0
    return json.loads(output.splitlines()[-1])


def release(*children: subprocess.Popen) -> None:
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()


@pytest.mark.slow
def test_concurrent_processes_same_table(stored: tuple[Graph, Store]) -> None:
    graph, store = stored
    children = [start(store, "insert_notes", tag, "15") for tag in ("left", "right")]
    release(*children)
    assert [finish(child) for child in children] == [{"ok": True}, {"ok": True}]
    texts = Counter(r["text"] for r in rows_of(graph, "Note").values())
    assert texts == Counter(f"{tag}-{n}" for tag in ("left", "right") for n in range(15))
    assert_one_chain(graph, 31)


def test_concurrent_upserts_of_same_new_key_no_duplicate(graph: Graph) -> None:
    with reopen(graph) as other:
        pause = Pause()
        results: list[object] = []
        with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Sequence([pause])):
            slow = threading.Thread(
                target=lambda: results.append(run(other, 'insert Person { name: "k", age: 2 }'))
            )
            slow.start()
            pause.wait_until_reached()
            run(graph, 'insert Person { name: "k", age: 1 }')
            pause.release()
            slow.join(60)
        assert len(results) == 1
    assert rows_of(graph, "Person")["k"]["age"] == 2
    assert_one_chain(graph, 3)


@pytest.mark.slow
def test_concurrent_strict_inserts_of_same_key_one_winner(graph: Graph) -> None:
    handles = [reopen(graph) for _ in range(16)]
    with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, all_arrive(len(handles))):
        results = at_once([lambda h=h: run(h, 'insert new Person { name: "k" }') for h in handles])
    lost = [r for r in results if isinstance(r, Exception)]
    assert [type(r) for r in lost] == [KeyConflict] * 15
    assert lost[0].to_dict()["key_conflict"] == {
        "entity_kind": "node",
        "type_name": "Person",
        "entity_id": "k",
    }
    assert len(rows_of(graph, "Person")) == 1
    assert_one_chain(graph, 2)
    for handle in handles:
        handle.close()


def test_edge_insert_races_node_delete(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a" } insert Person { name: "b" }')
    with reopen(graph) as other:
        delete = Sequence([Callback(lambda _: run(other, 'delete Person where name = "b"'))])
        with (
            activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, delete),
            pytest.raises(ConstraintViolation) as caught,
        ):
            run(graph, 'insert Knows { from: "a", to: "b" }')
    assert caught.value.rule == "endpoint"
    assert rows_of(graph, "Knows") == {}
    assert_one_chain(graph, 3)


@pytest.mark.slow
def test_node_delete_races_edge_insert(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a" } insert Person { name: "b" }')
    with reopen(graph) as other:
        insert = Sequence([Callback(lambda _: run(other, 'insert Knows { from: "a", to: "b" }'))])
        with (
            activate(Window.MUTATION_DELETE_NODE_PRE_PRIMARY_DELETE, insert),
            pytest.raises(ExpectedVersionMismatch) as caught,
        ):
            run(graph, 'delete Person where name = "b"')
    assert caught.value.table_key == "edge:Knows"
    assert len(rows_of(graph, "Knows")) == 1
    assert_one_chain(graph, 3)


def test_unique_insert_races_unique_insert(graph: Graph) -> None:
    with reopen(graph) as other:
        winner = Sequence([Callback(lambda _: run(other, 'insert Person { name: "b", nick: "x" }'))])
        with (
            activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, winner),
            pytest.raises(ConstraintViolation) as caught,
        ):
            run(graph, 'insert Person { name: "a", nick: "x" }')
    assert caught.value.rule == "unique"
    assert set(rows_of(graph, "Person")) == {"b"}
    assert_one_chain(graph, 2)


def test_cardinality_insert_races_cardinality_insert(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a" } insert Company { name: "c" } insert Company { name: "d" }')
    with reopen(graph) as other:
        winner = Sequence([Callback(lambda _: run(other, 'insert WorksAt { from: "a", to: "c" }'))])
        with (
            activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, winner),
            pytest.raises(ConstraintViolation) as caught,
        ):
            run(graph, 'insert WorksAt { from: "a", to: "d" }')
    assert caught.value.rule == "cardinality"
    assert len(rows_of(graph, "WorksAt")) == 1


@pytest.mark.slow
def test_cross_process_upsert_same_key(stored: tuple[Graph, Store]) -> None:
    graph, store = stored
    children = [start(store, "upsert", "k", ages) for ages in ("1,2,3,4,5", "11,12,13,14,15")]
    release(*children)
    outcomes = [finish(child) for child in children]
    assert all(o["ok"] or o["kind"] in {"manifest_conflict", "commit_conflict"} for o in outcomes)
    assert any(o["ok"] for o in outcomes)
    assert list(rows_of(graph, "Person")) == ["k"]
    assert rows_of(graph, "Person")["k"]["age"] in {5, 15}
    assert graph.verify().ok


def test_stale_merge_insert_restaged_under_queue(graph: Graph) -> None:
    with reopen(graph) as other, hear() as heard:
        winner = Sequence([Callback(lambda _: run(other, 'insert Person { name: "k", age: 1 }'))])
        with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, winner):
            run(graph, 'insert Person { name: "k", age: 2 }')
    staged = [(e.primitive, e.rows) for e in heard.of(TableStaged)]
    # The first staging of the loser, the winner's, and the loser's second one.
    assert staged == [("stage_merge_insert", 1)] * 3
    assert [e.version for e in heard.of(TableCommitted)] == sorted(
        {e.version for e in heard.of(TableCommitted)}
    )
    assert len(heard.of(TableCommitted)) == 2
    assert rows_of(graph, "Person")["k"]["age"] == 2


@pytest.mark.slow
def test_two_branches_of_one_table_do_not_wait_for_each_other(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a" }')
    for branch in ("left", "right"):
        graph.branches.create(branch)
    results = at_once(
        [
            lambda b=b: [run(graph, f'insert Person {{ name: "{b}{n}" }}', branch=b) for n in range(4)]
            for b in ("left", "right")
        ]
    )
    assert not [r for r in results if isinstance(r, Exception)], results
    for branch in ("left", "right"):
        assert set(rows_of(graph, "Person", branch=branch)) == {"a", *(f"{branch}{n}" for n in range(4))}
    assert set(rows_of(graph, "Person")) == {"a"}
    assert graph.verify().ok


@pytest.mark.parametrize("elsewhere", ["another branch", "another table"])
@pytest.mark.parametrize(
    "window", [Window.MUTATION_POST_SIDECAR_PRE_COMMIT, Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER]
)
def test_a_writer_passes_by_the_pending_write_of_a_live_one(
    graph: Graph, elsewhere: str, window: Window
) -> None:
    """The first writer is held with its sidecar in place; the second one neither waits for it nor heals it."""
    graph.branches.create("side")
    branch = "side" if elsewhere == "another branch" else "main"
    first = 'query m() { insert Person { name: "ana" } }'
    second = first if elsewhere == "another branch" else 'query m() { insert Company { name: "acme" } }'
    with activate(window, Sequence([pause := Pause()])):
        writer = threading.Thread(target=lambda: graph.mutate(first, actor="one"))
        writer.start()
        pause.wait_until_reached()
        held = graph.pending()
        assert len(held) == 1
        landed = graph.mutate(second, branch=branch, actor="two").commit
        assert graph.pending() == held
        pause.release()
        writer.join(60)
    assert landed is not None
    assert landed.id == graph.commits.list(branch=branch)[0 if branch == "side" else 1].id
    assert set(rows_of(graph, "Person")) == {"ana"}
    assert graph.recoveries() == ()
    assert graph.pending() == ()


@pytest.mark.parametrize(("branch", "ahead"), [("side", True), ("main", False)])
def test_a_publish_is_prepared_ahead_beside_a_writer_of_another_branch_only(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, branch: str, *, ahead: bool
) -> None:
    """One on the same branch publishes first, and what was prepared ahead of it would be of no use."""
    graph.branches.create("side")
    run(graph, 'insert Company { name: "first" }', branch=branch)
    begun: list[bool] = []
    begin = commit.begin_ahead

    def noted(*given: Any) -> Any:
        made = begin(*given)
        begun.append(made is not None)
        return made

    with activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Sequence([pause := Pause()])):
        writer = threading.Thread(target=lambda: run(graph, 'insert Person { name: "ana" }', actor="one"))
        writer.start()
        pause.wait_until_reached()
        monkeypatch.setattr(commit, "begin_ahead", noted)
        run(graph, 'insert Company { name: "acme" }', branch=branch, actor="two")
        pause.release()
        writer.join(60)
    assert begun == [ahead]
    assert set(rows_of(graph, "Company", branch=branch)) == {"first", "acme"}
    assert graph.verify().ok


def test_a_write_finishes_the_one_it_waited_for_when_that_one_stops_half_way(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passed the other one by while that was alive, and finds its tables moved when its turn comes."""
    pause = Pause()

    def hold_and_fail(window: Window) -> None:
        pause(window)
        Raise()(window)

    line = graph.session.queues._line
    join, joined = line.join, threading.Event()
    results: list[object] = []
    query = "query m($n: String) { insert Person { name: $n } }"
    with activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Sequence([Callback(hold_and_fail)])):
        first = threading.Thread(target=lambda: results.append(_raised(graph, query, "ana", "one")))
        first.start()
        pause.wait_until_reached()
        monkeypatch.setattr(line, "join", lambda place: (join(place), joined.set()))
        second = threading.Thread(target=lambda: graph.mutate(query, {"n": "bob"}, actor="two"))
        second.start()
        assert joined.wait(60)
        pause.release()
        for thread in (first, second):
            thread.join(60)
    assert [type(each) for each in results] == [RecoveryRequired]
    assert set(rows_of(graph, "Person")) == {"ana", "bob"}
    assert graph.pending() == ()
    assert graph.verify().ok


def _raised(graph: Graph, query: str, name: str, actor: str) -> Exception | None:
    try:
        graph.mutate(query, {"n": name}, actor=actor)
    except Exception as error:
        return error
    return None


def test_a_write_that_stopped_half_way_is_healed_by_the_next_of_its_process(graph: Graph) -> None:
    with activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Raise()), pytest.raises(RecoveryRequired):
        graph.mutate('query m() { insert Person { name: "ana" } }')
    graph.mutate('query m() { insert Company { name: "acme" } }')
    assert set(rows_of(graph, "Person")) == {"ana"}
    assert graph.pending() == ()


@pytest.mark.slow
def test_an_insert_that_keeps_losing_finally_holds_what_it_reads(graph: Graph) -> None:
    run(graph, 'insert Person { name: "a" } insert Person { name: "b" }')
    moves = []

    def move(_window: Window) -> None:
        # Another thread: the losing writer may hold queues by then, and this one must be made to wait.
        thread = threading.Thread(target=lambda: run(other, f'insert Person {{ name: "m{len(moves)}" }}'))
        thread.start()
        moves.append(thread)
        thread.join(0.2 if len(moves) > 3 else 30)

    with reopen(graph) as other:
        guarded = threading.local()

        def once_per_loser(window: Window) -> None:
            if threading.current_thread() is threading.main_thread() and not getattr(guarded, "busy", False):
                guarded.busy = True
                try:
                    move(window)
                finally:
                    guarded.busy = False

        with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Callback(once_per_loser)):
            run(graph, 'insert Knows { from: "a", to: "b" }')
        for thread in moves:
            thread.join(30)
            assert not thread.is_alive()
    assert len(rows_of(graph, "Knows")) == 1
    assert len(moves) == 4
    assert len(rows_of(graph, "Person")) == 2 + len(moves)
    assert graph.verify().ok


FORKED = """
import os, sys, warnings
import omnigraph
warnings.simplefilter("ignore")  # Lance warns about every fork
graph = omnigraph.open(sys.argv[1])
add = "query add($name: String) { insert Person { name: $name } }"
count = "query q() { match { $p: Person } return { count($p) as people } }"
graph.mutate(add, {"name": "parent"})
graph.query(count)
child = os.fork()
if child == 0:
    for call in (lambda: graph.query(count), lambda: graph.mutate(add, {"name": "lost"}), graph.branches.list):
        try:
            call()
        except omnigraph.OmnigraphError as error:
            print(error.kind, error.message, error.hint, sep="; ", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
graph.mutate(add, {"name": "later"})
print([row["people"] for row in graph.query(count)])
graph.close()
"""


def test_a_branch_made_anew_under_a_write_refuses_it(graph: Graph) -> None:
    """The new branch has the old one's name and even its rows; the write was prepared for the old one."""
    run(graph, 'insert Person { name: "a" }')
    graph.branches.create("dev")

    def make_anew(_window: Window) -> None:
        with reopen(graph) as other:
            other.branches.delete("dev")
            other.branches.create("dev")

    refused = pytest.raises(ReadSetConflict, match="created anew")
    with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Sequence([Callback(make_anew)])), refused:
        run(graph, 'insert Person { name: "b" }', branch="dev")
    assert graph.pending() == ()
    assert set(rows_of(graph, "Person", branch="dev")) == {"a"}
    assert graph.verify().ok


@pytest.mark.slow
def test_what_a_write_only_read_stays_until_its_publish(graph: Graph) -> None:
    """An edge is about to be published; a change of its nodes' table, prepared before, waits until it is."""
    run(graph, 'insert Person { name: "a" } insert Person { name: "b" }')
    prepared, committed, results = Pause(), Pause(), []

    def write(statement: str) -> threading.Thread:
        return threading.Thread(target=lambda: results.append(run(graph, statement)))

    changing = write('update Person set { age: 7 } where name = "a"')
    writing = write('insert Knows { from: "a", to: "b" }')
    with (
        activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Sequence([prepared])),
        activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Sequence([committed])),
    ):
        changing.start()
        prepared.wait_until_reached()
        writing.start()
        committed.wait_until_reached()
        prepared.release()
        changing.join(1.0)
        assert changing.is_alive(), "the table moved under a write whose publish would be refused for it"
        committed.release()
        writing.join(60)
        changing.join(60)
    assert len(results) == 2
    assert rows_of(graph, "Person")["a"]["age"] == 7
    assert len(rows_of(graph, "Knows")) == 1
    assert graph.verify().ok


def test_a_publish_compares_what_the_write_only_read(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    run(graph, 'insert Person { name: "a" } insert Person { name: "b" }')
    publisher, compared = graph.session.publisher, []
    prepare = publisher.prepare

    def recorded(branch, changes, expected, intent, **options):
        compared.append(set(expected))
        return prepare(branch, changes, expected, intent, **options)

    monkeypatch.setattr(publisher, "prepare", recorded)
    run(graph, 'insert Knows { from: "a", to: "b" }')
    assert compared == [{"edge:Knows", PERSON}]


def test_a_graph_is_one_by_whatever_link_it_is_opened(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "g")
    with omnigraph.open(tmp_path / "link") as linked:
        assert linked.session.root.identity == graph.session.root.identity
        assert linked.session.queues is graph.session.queues


@pytest.mark.slow
def test_a_forked_child_is_told_that_the_handle_is_not_its_own(graph: Graph) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, graph.uri], capture_output=True, text=True, timeout=120, check=True
    )
    *refused, people = done.stdout.splitlines()
    told = (
        "bad_request; the graph was opened before this process was forked; "
        "start processes by 'spawn', or fork before the first graph is opened"
    )
    assert (refused, people) == ([told] * 3, "[2]")
