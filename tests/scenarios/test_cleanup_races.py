"""Cleanups beside writers, readers, clones, loads and each other; locally and on an object store."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import omnigraph
from crash.harness import CUT, run_script
from graphs import FAST, PEOPLE, make_graph, rows_of, run
from omnigraph.api.graph import Graph
from omnigraph.core.cancel import Cancellation
from omnigraph.core.clock import SYSTEM_CLOCK
from omnigraph.core.errors import (
    Cancelled,
    LoadNotFound,
    ReadSetConflict,
    ResourceBusy,
    SnapshotNotFound,
)
from omnigraph.core.events import StorageCall, Warned, listen
from omnigraph.core.failpoints import (
    Callback,
    InjectedFailure,
    Pass,
    Pause,
    Raise,
    Sequence,
    Window,
    activate,
)
from omnigraph.core.settings import Settings
from omnigraph.engine.session import open_session
from omnigraph.maintenance import cleanup_sweep
from omnigraph.maintenance.cleanup import cleanup
from omnigraph.maintenance.cleanup_report import Retention
from omnigraph.maintenance.pins import Pin, PinnedState
from omnigraph.pipeline.load.abandoned import JournaledLoads
from omnigraph.recovery.lease import Lease
from omnigraph.storage.layout import CHECKSUMS, CLEANUP, MANIFEST
from stores import TABLE_STORES, Store

pytestmark = pytest.mark.slow

SCHEMA = (
    "node P { name: String @key  n: I32?  face: Blob? }\nnode Q { name: String @key }\nedge Likes: P -> Q"
)
AT_ONCE = Settings(durability="os", leftover_seconds=0)


def made(store: Store) -> Graph:
    graph = omnigraph.init(store.uri, schema=SCHEMA, settings=FAST, storage_options=store.storage_options)
    graph.session.after_publish = None
    return graph


def reopened(graph: Graph, settings: Settings = FAST) -> Graph:
    return omnigraph.open(graph.uri, settings=settings, storage_options=graph.session.root.storage_options)


def insert(graph, name, *, branch="main"):
    run(graph, f'insert P {{ name: "{name}" }}', branch=branch)


def objects(graph) -> dict[str, int]:
    found = graph.session.adapter.sizes()
    return {
        name: size for name, size in found.items() if not name.startswith((CLEANUP, CHECKSUMS, "__lease"))
    }


def is_sound(graph) -> None:
    report = graph.verify(deep=True)
    assert (report.violations, report.corrupt) == ((), ())


@pytest.fixture
def graph(tmp_path):
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        graph.session.after_publish = None
        yield graph


@pytest.fixture(params=TABLE_STORES, ids=str)
def stored(request, tmp_path):
    with made(request.param.make(tmp_path)) as graph:
        yield graph


@pytest.mark.parametrize("fresh", [False, True], ids=["a known graph", "a first look"])
def test_a_head_that_goes_while_it_is_read_is_looked_for_again(stored, fresh) -> None:
    """A reader stands still between opening the newest state and reading it, until a cleanup took it away."""
    insert(stored, "before")
    beside = reopened(stored, AT_ONCE)
    reader = reopened(stored)
    if not fresh:
        reader.query("query q() { match { $p: P } return { $p.name } }")
    insert(beside, "p0")
    passed = []

    def stand_still(event):
        if isinstance(event, StorageCall) and event.kind == "read" and not passed:
            passed.append(event)
            for number in range(1, 4):
                insert(beside, f"p{number}")
            beside.cleanup(keep=1)

    with listen(stand_still):
        if fresh:
            reader = reopened(stored)
        found = reader.query("query q() { match { $p: P } return { $p.name } }")
    assert [each.target.rpartition("/")[2] for each in passed] == [MANIFEST]
    assert {row["p.name"] for row in found} == {"before", "p0", "p1", "p2", "p3"}


BETWEEN = {
    "tag": lambda graph, old: graph.tags.create("late", at=old),
    "branch": lambda graph, _: graph.branches.create("late"),
    "branch and a write": lambda graph, _: (graph.branches.create("late"), insert(graph, "x", branch="late")),
    "write": lambda graph, _: [insert(graph, f"w{number}") for number in range(3)],
}


@pytest.mark.parametrize(
    "window", [Window.CLEANUP_POST_NOTE_PRE_STATES, Window.CLEANUP_POST_VERSIONS_PRE_FILES]
)
@pytest.mark.parametrize("what", BETWEEN)
def test_what_appears_between_mark_and_sweep_is_safe(graph, what, window) -> None:
    for number in range(6):
        insert(graph, f"p{number}")
    old = graph.commits.list()[3].id
    rows, shown = graph.export(at=old), graph.export()
    refused = []

    def between(_window):
        try:
            BETWEEN[what](graph, old)
        except SnapshotNotFound as error:
            refused.append(error)

    with activate(window, Callback(between)):
        graph.cleanup(keep=1)
    is_sound(graph)
    late = what == "tag" and window is Window.CLEANUP_POST_VERSIONS_PRE_FILES
    assert bool(refused) == late
    if what == "tag" and not late:
        assert graph.export(at="late") == rows
    if what == "branch":
        assert graph.export(branch="late") == shown
    with reopened(graph) as other:
        is_sound(other)
        insert(other, "after")


def test_a_merge_shows_no_version_that_went_while_it_was_prepared(graph) -> None:
    insert(graph, "a")
    graph.branches.create("lazy")
    insert(graph, "b")

    def between(_window):
        insert(graph, "c")
        graph.cleanup(keep=1)

    with (
        activate(Window.BRANCH_MERGE_POST_CLASSIFY_PRE_QUEUE, Callback(between)),
        pytest.raises(ReadSetConflict, match="removed by a cleanup"),
    ):
        graph.branches.merge("main", into="lazy")
    is_sound(graph)
    graph.branches.merge("main", into="lazy")
    assert graph.export(branch="lazy") == graph.export()
    is_sound(graph)


def test_a_branch_that_is_deleted_during_the_look_is_no_failure(graph) -> None:
    """After its head was read, before anything else of it was."""
    for number in range(4):
        insert(graph, f"p{number}")
    for branch in ("a", "b"):
        graph.branches.create(branch)
        insert(graph, f"of {branch}", branch=branch)
    kept = {name: graph.export(branch=name) for name in ("main", "b")}

    def delete(_window: Window) -> None:
        graph.branches.delete("a")

    with activate(Window.CLEANUP_RESOLVE_BRANCH_SNAPSHOT, Sequence([Pass(), Pass(), Callback(delete)])):
        report = graph.cleanup(keep=1)
    assert report.removed
    assert graph.branches.list() == ["main", "b"]
    assert {name: graph.export(branch=name) for name in kept} == kept
    is_sound(graph)


def test_a_write_of_another_thread_is_no_drift(graph, monkeypatch) -> None:
    """A table that has moved and is about to be published is waited for, not reported."""
    insert(graph, "p")
    judged = threading.Event()
    alone = Lease.alone

    def asking(self, **named):
        judged.set()
        return alone(self, **named)

    monkeypatch.setattr(Lease, "alone", asking)
    window = Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER
    with ThreadPoolExecutor(2) as threads, activate(window, Pause()) as pause:
        writing = threads.submit(insert, graph, "q")
        pause.wait_until_reached()
        with reopened(graph) as other:
            cleaning = threads.submit(cleanup, other.session, Retention(1), JournaledLoads(other.session))
            cleaning.add_done_callback(lambda _: judged.set())
            assert judged.wait(60)
            pause.release()
            cleaning.result()
        writing.result()
    assert sorted(rows_of(graph, "P")) == ["p", "q"]
    is_sound(graph)


def test_two_cleanups_at_once(graph) -> None:
    for number in range(4):
        insert(graph, f"p{number}")

    def between(_window):
        with reopened(graph) as other, pytest.raises(ResourceBusy, match="another cleanup"):
            other.cleanup(keep=1)

    with activate(Window.CLEANUP_POST_NOTE_PRE_STATES, Callback(between)):
        assert graph.cleanup(keep=1).removed
    is_sound(graph)


def test_a_cleanup_that_is_stopped_is_finished_by_the_next(graph, monkeypatch) -> None:
    monkeypatch.setattr(cleanup_sweep, "CLEANUP_BATCH_FILES", 2)
    for number in range(6):
        insert(graph, f"p{number}")
    planned = graph.cleanup(keep=1, dry_run=True)
    stop = Cancellation()
    with activate(Window.CLEANUP_TABLE_GC, Callback(lambda _: stop.request())), pytest.raises(Cancelled):
        graph.cleanup(keep=1, cancel=stop)
    is_sound(graph)
    assert {each.name for each in planned.fates if not each.goes} <= graph.session.adapter.stored().keys()
    graph.cleanup(keep=1)
    assert not {each.name for each in planned.removed} & graph.session.adapter.stored().keys()
    is_sound(graph)


class SlowClock:
    """A clock that is two days behind."""

    def now_us(self) -> int:
        return SYSTEM_CLOCK.now_us() - 2 * 86_400 * 1_000_000


def test_a_clock_that_is_behind_removes_nothing_it_should_not(graph) -> None:
    insert(graph, "a")
    stray = Path(graph.uri, graph.snapshot().entries["node:P"].location, "data", "stray.lance")
    stray.write_bytes(b"x")
    heard = []
    with Graph(open_session(graph.uri, settings=FAST, clock=SlowClock())) as slow, listen(heard.append):
        slow.cleanup(keep=1)
    assert stray.exists()
    warned = [each for each in heard if isinstance(each, Warned)]
    assert ["clock of this machine is behind" in each.message for each in warned] == [True]
    is_sound(graph)


def test_cancelled_during_stage_leaves_only_files(graph) -> None:
    insert(graph, "a")
    before, rows = objects(graph), graph.export()
    with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Raise()), pytest.raises(InjectedFailure):
        insert(graph, "b")
    left = objects(graph).keys() - before.keys()
    assert left
    assert graph.export() == rows
    graph.cleanup(keep=9)
    assert left <= objects(graph).keys()  # they are young: their writer might live
    with reopened(graph, AT_ONCE) as other:
        went = {each.name for each in other.cleanup(keep=9).removed}
    assert left <= went
    assert not left & objects(graph).keys()
    assert graph.export() == rows
    is_sound(graph)


DYING_LOAD = """
import sys, omnigraph
with omnigraph.open(sys.argv[1]) as graph:
    graph.load(sys.argv[2], mode="append", engine="local")
"""


@pytest.mark.crash
def test_what_a_resumable_load_staged_stays_until_it_is_old(tmp_path) -> None:
    source = tmp_path / "people.jsonl"
    lines = [{"type": "Person", "data": {"name": f"n{number}"}} for number in range(9)]
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with make_graph(tmp_path / "g", PEOPLE) as graph:
        for _ in range(2):
            death = f"{Window.LOAD_POST_STAGE.value}=kill"
            status, errors = run_script(DYING_LOAD, graph.uri, source, failpoints=death, durability="full")
            assert status == CUT, errors
        first, second = [each.id for each in graph.resumable_loads()]
        why = {each.name: each.why for each in graph.cleanup(keep=1).fates}
        staged = [name for name, reason in why.items() if reason == f"staged by load {first}"]
        assert staged
        assert why[f"__loads/{first}.json"] == f"load {first}"
        graph.load(resume=first, engine="local")
        assert len(rows_of(graph, "Person")) == 9
        with reopened(graph, AT_ONCE) as other:
            went = {each.name: each.why for each in other.cleanup(keep=1).removed}
        assert went[f"__loads/{second}.json"] == "load that nobody resumed"
        with pytest.raises(LoadNotFound):
            graph.load(resume=second, engine="local")
        assert not any("__loads" in name for name in objects(graph))
        assert len(rows_of(graph, "Person")) == 9
        is_sound(graph)


def test_a_pin_keeps_what_a_clone_copies(graph) -> None:
    for number in range(5):
        insert(graph, f"p{number}")
    old = graph.commits.list()[2]
    rows = graph.export(at=old.id)
    state = PinnedState(None, old.manifest_version, old.id)
    pin = Pin(graph.session, "clone", [state], history=False)
    pin.renew()
    assert "pin of a clone" in {each.why for each in graph.cleanup(keep=1).fates}
    assert graph.export(at=old.id) == rows
    everything = Pin(graph.session, "clone", [state], history=True)
    everything.renew()
    insert(graph, "more")
    assert not any(
        "_versions" in each.name for each in graph.cleanup(keep=1).removed if "_graph" not in each.name
    )
    pin.release()
    everything.release()
    graph.cleanup(keep=1)
    with pytest.raises(SnapshotNotFound):
        graph.export(at=old.id)
    is_sound(graph)


def test_handles_on_a_kept_version_see_what_comes_after_a_gap(stored) -> None:
    """A tag keeps a state, the one after it goes: neither readers nor writers stop at the gap."""
    graph = stored
    graph.branches.create("side")
    for branch in ("main", "side"):
        insert(graph, f"{branch}0", branch=branch)
    with reopened(graph) as reader, reopened(graph) as writer:
        for branch in ("main", "side"):
            assert reader.export(branch=branch) == writer.export(branch=branch) == graph.export(branch=branch)
            insert(writer, f"{branch}1", branch=branch)
            reader.export(branch=branch)
            graph.tags.create(f"kept-{branch}", at=branch)
            for number in range(2, 6):
                insert(graph, f"{branch}{number}", branch=branch)
        graph.cleanup(keep=1)
        for branch in ("main", "side"):
            assert reader.export(branch=branch) == graph.export(branch=branch)
            insert(writer, f"{branch}6", branch=branch)
            assert reader.export(branch=branch) == graph.export(branch=branch)
            assert len(rows_of(reader, "P", branch=branch)) == 7
        is_sound(reader)


@pytest.mark.parametrize("more", ["", "face: Blob?"], ids=["texts", "blobs"])
def test_three_kept_states_of_312_commits_need_few_files(tmp_path, more) -> None:
    schema = f"node P {{ name: String @key {more} }}\nnode Q {{ name: String @key }}"
    with make_graph(tmp_path / "g", schema) as graph:
        for number in range(20):
            insert(graph, f"p{number}")
        graph.tags.create("v1")
        graph.branches.create("lazy")
        graph.branches.create("forked")
        for number in range(11):
            insert(graph, f"f{number}", branch="forked")
        graph.branches.merge("forked")
        for number in range(280):
            insert(graph, f"q{number}")
        before = objects(graph)
        shown = {name: graph.export(at=name) for name in ("main", "lazy", "forked", "v1")}
        assert len(before) > 2_000
        graph.cleanup(keep=3)
        after = objects(graph)
        assert len(after) <= 350, (len(before), len(after))
        assert {name: graph.export(at=name) for name in shown} == shown
        is_sound(graph)
